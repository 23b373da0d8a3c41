"""`sqlqueue doctor`: what it finds, and that what it proposes fixes it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sqlq_spark.admin.problems import Finding
from sqlq_spark.cli.screen import finding_lines, out

from .database import STREAM, address, as_role, count, received

if TYPE_CHECKING:
    import pytest
    from conftest import Place

    from .commands import Run

BARE = "(id uuid, expires timestamp, headers text, body bytea, seq {})"


def test_doctor_reports_problems_and_their_fixes(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """It ends by 1 until the fixes have been run, then by 0, with nothing to print as JSON."""
    place.sql(f"ALTER TABLE {orders} SET (autovacuum_enabled = off)")
    words = ("doctor", orders, *state)

    shown = run(*words)
    found = run(*words, "--json").objects

    assert shown.code == 1
    assert f"error  {orders}: autovacuum is off for this table" in shown.out
    assert "no problems found" not in shown.out
    assert [each["name"] for each in found] == ["autovacuum"]
    for each in found:
        assert f"\n    {each['fix']}\n" in shown.out
        place.sql(each["fix"])
    assert run(*words) == (0, "no problems found\n", "")
    assert run(*words, "--json") == (0, "", "")


def test_doctor_checks_the_queues_of_all_streams(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """If none is named; it also reports a stream that was not seen for days."""
    run("send", orders, stdin='{"body": "1"}')
    received(place, messages=1)
    place.sql(f"UPDATE {place.state}.stream SET seen = seen - interval '2 days'")
    place.sql(f"ALTER TABLE {orders} SET (autovacuum_enabled = off)")

    checked = run("doctor", "--json", *state)

    found = {each["name"]: each for each in checked.objects}
    assert checked.code == 1
    assert set(found) == {"unseen_stream", "autovacuum"}
    start, look, *commands = found["unseen_stream"]["fix"].splitlines()
    assert (start.split()[0], look.split()[:2]) == ("start", ["only", "if"])
    back, drop = (command.partition(": sqlqueue ")[2] for command in commands)
    words = f"--stream {STREAM} --state-schema {place.state}"
    assert (back, drop) == (f"receipts return {words}", f"receipts drop {words}")
    assert run(*back.split(), "--yes").code == 0
    assert count(place, orders) == 1


def test_doctor_looks_at_the_state_tables_of_every_team(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """At one schema only if it is named."""
    other = f"{place.state}_other"
    assert run("install", "--state-schema", other).code == 0
    try:
        place.sql(f"ALTER TABLE {other}.receipt SET (autovacuum_enabled = off)")

        every, one = (run("doctor", orders, "--json", *words) for words in ((), state))

        found = [each["found"] for each in every.objects if each["name"] == "state_autovacuum"]
        assert [other in each for each in found] == [True]
        assert (every.code, one) == (1, (0, "", ""))
    finally:
        place.sql(f"DROP SCHEMA {other} CASCADE")


def test_doctor_warns_that_a_stream_reads_the_queue_of_an_endpoint(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """Only where a stream reads it, and unless it is allowed."""
    saga = '{"body": "1", "headers": {"NServiceBus.SagaId": "7"}}'
    run("send", orders, stdin=f"{saga}\n{saga}")
    assert run("doctor", orders, *state).code == 0
    received(place, messages=1)

    warned = run("doctor", orders, *state)
    allowed = run("doctor", orders, "--no-warn-if-shared", *state)

    assert warned.code == 1
    assert "messages among the first messages: 1" in " ".join(warned.out.split())
    assert (allowed.code, allowed.out) == (0, "no problems found\n")


def test_doctor_proposes_the_commands_that_create_what_is_missing(
    run: Run, place: Place, state: tuple[str, str]
) -> None:
    """State tables and the queue; without a name all queues are checked."""
    queue = address(place, "shop")

    checked = run("doctor", queue, "--json", *state)

    assert checked.code == 1
    assert [each["name"] for each in checked.objects] == ["state", "absent"]
    for each in checked.objects:
        assert run(*each["fix"].replace("'", "").split()[1:]).code == 0
    assert run("doctor", queue, *state).code == 0
    assert run("doctor", *state) == (0, "no problems found\n", "")


def test_doctor_does_not_make_a_queue_of_a_table_of_delayed_messages(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """It proposes no columns of a queue for it."""
    run("create", orders, "--delayed")
    delayed = address(place, "Shop.Orders.Delayed")

    checked = run("doctor", delayed, "--json", *state)

    (found,) = checked.objects
    assert checked.code == 1
    assert (found["name"], found["where"]) == ("delayed_table", delayed)
    assert "ALTER" not in found["fix"]


def test_doctor_grants_no_sequence_where_there_is_none(
    run: Run, place: Place, state: tuple[str, str]
) -> None:
    """The fix can be run for a table whose seq has no sequence."""
    login, queue = f"{place.schema}_l", address(place, "bare")
    place.sql(f"CREATE TABLE {queue} {BARE.format('int')}")
    place.sql(f"CREATE ROLE {login}")
    try:
        found = run("doctor", queue, "--json", *state, "--url", as_role(place.url, login)).objects

        fixes = {each["name"]: each["fix"] for each in found}
        assert fixes["send_right"] == f"GRANT INSERT ON {place.schema}.bare TO {login}"
    finally:
        place.sql(f"DROP ROLE {login}")


def test_doctor_checks_a_table_whose_name_no_endpoint_accepts(
    run: Run, place: Place, state: tuple[str, str]
) -> None:
    """Every other command refuses the name."""
    queue = address(place, "x" * 60)
    place.sql(f"CREATE TABLE {queue} {BARE.format('serial UNIQUE')}")

    checked = run("doctor", queue, *state)

    assert checked.code == 1
    assert "the name has 60 bytes, but the transport allows at most 55" in checked.out
    assert run("browse", queue).code == 2


def test_doctor_reports_a_delayed_table_whose_name_no_installer_accepts(
    run: Run, place: Place, state: tuple[str, str]
) -> None:
    """It still works; the fix renames both tables, and keeps a letter whole."""
    queue, short = (address(place, "xü" + "y" * length) for length in (45, 44))
    run("install", *state)
    run("create", queue)
    delayed = "(id uuid DEFAULT gen_random_uuid(), headers text, body bytea, due timestamptz)"
    place.sql(f'CREATE TABLE {queue[:-1]}.Delayed" {delayed}')
    place.sql(f'CREATE INDEX ON {queue[:-1]}.Delayed" (due)')
    assert run("send", queue, stdin='{"body": "1", "delay": "00:00:00"}').code == 0

    checked = run("doctor", queue, "--json", *state)

    (found,) = checked.objects
    assert (found["name"], found["severity"]) == ("delayed_long_name", "warning")
    assert "56 bytes" in found["found"]
    for statement in found["fix"].split("\n"):
        place.sql(statement)
    assert run("doctor", short, *state) == (0, "no problems found\n", "")
    assert "1 message moved" in run("move-due", short).out


def test_doctor_finds_subscribers_that_publishers_cannot_reach(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """A dropped queue, an address that is none, and another table; the commands end these."""
    table = address(place, "Routing")
    words = ("doctor", orders, *state, "--subscription-table", table)
    assert run(*words).code == 0
    subscribe = ("subscribe", "Shop.Placed", "--queue", orders, "--subscription-table", table)
    assert run(*subscribe, "--endpoint", "Shop.Orders").code == 0
    gone = address(place, "Shop.Gone")
    for endpoint, topic, at in (
        ("It's gone", "Shop.Placed", gone),
        ("It's gone", "--yes", gone),
        ("bad", "Shop.Placed", '"a"."b"."c"'),
        ("other", "Shop.Placed", table),
    ):
        place.sql(f"INSERT INTO {table} VALUES (%s, %s, %s)", at, endpoint, topic)

    found = run(*words, "--json").objects

    said = {each["found"].split()[1]: each for each in found}
    assert {each["name"] for each in found} == {"subscriber"}
    assert set(said) == {"It's", "bad", "other"}
    assert f"fails: queue {gone} was not found in" in said["It's"]["found"]
    assert "Create it with `sqlqueue create`" in said["It's"]["found"]
    assert "cannot be used: it has 3 parts" in said["bad"]["found"]
    assert "is not a queue: it has no column body" in said["other"]["found"]
    for each in found:
        assert run(*shlex.split(each["fix"])[1:], stdin="y\n").code == 0
    assert place.sql(f"SELECT endpoint FROM {table}") == [("Shop.Orders",)]
    assert run(*words).code == 0


def test_findings_are_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue's name cannot write on the operator's terminal."""
    name = '"s"."[red]\x1b[2J"'
    finding = Finding(where=name, name="x", severity="note", found="\x07", fix=f"ALTER {name};\nB")

    for line in finding_lines(finding):
        out().print(line, soft_wrap=True)

    assert capsys.readouterr().out == (
        'note  "s"."[red]·[2J": ·\n    ALTER "s"."[red]·[2J";\n    B\n'
    )
