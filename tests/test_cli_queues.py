"""The commands for tables, on a real database: create, script, purge, purge-expired, doctor."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_cli import STREAM, as_role, drop_roles, received, run

from sqlq_spark.cli.screens.queues import show_findings

if TYPE_CHECKING:
    from conftest import Place

__all__ = ["run"]  # the fixture


def tables(place: Place) -> set[str]:
    """The tables of the test's schema."""
    found = place.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s", place.schema)
    return {name for (name,) in found}


def named(place: Place, table: str) -> str:
    """Write the canonical address of a table of the test's schema."""
    return f'"{place.schema}"."{table}"'


def endpoint(place: Place) -> list[str]:
    """Give the words of an endpoint with all its queues."""
    shared = ["--error", named(place, "error"), "--audit", named(place, "audit")]
    own = ["--instance", "web1", "--instance", "web2", "--qualifier", "Retries"]
    return [named(place, "shop"), *own, *shared]


ALL = ["shop", "shop.web1", "shop.web2", "shop.Retries", "error", "audit"]


# ---------------------------------------------------------------- create and script


def test_create_makes_all_queues_of_an_endpoint(run: Any, place: Place) -> None:
    """And prints each with its canonical address; again without harm."""
    for _ in range(2):
        code, said, _ = run("create", *endpoint(place))

        assert code == 0
        assert [line.partition(" is in ")[0] for line in said.splitlines()] == [
            f"queue {named(place, table)}" for table in ALL
        ]
    assert tables(place) == set(ALL)


@pytest.mark.parametrize("command", ["create", "script"])
def test_a_second_queue_is_told_its_option(run: Any, place: Place, command: str) -> None:
    """Nothing is made."""
    code, _, told = run(command, named(place, "error"), named(place, "audit"))

    assert code == 2
    assert "expected one QUEUE; name the endpoint's other queues with --error, --audit" in told
    assert tables(place) == set()


def test_create_adds_the_body_as_text_to_all_of_them(run: Any, place: Place) -> None:
    """Also to those that were there without."""
    run("create", named(place, "shop"))
    place.sql(
        f"INSERT INTO {named(place, 'shop')} VALUES (gen_random_uuid(), NULL, '{{}}', '\\xff')"
    )

    code, *_ = run("create", *endpoint(place), "--body-string")

    assert code == 0
    texts = "SELECT count(*) FROM pg_attribute WHERE attname = 'bodystring' AND attrelid::regclass"
    where = f"{texts}::text LIKE '{place.schema}.%%'"
    assert place.sql(where + " AND attgenerated = 's'") == [(len(ALL),)]
    assert place.sql(f"SELECT bodystring FROM {named(place, 'shop')}") == [("\\377",)]


def test_create_says_where_delayed_messages_wait(run: Any, place: Place) -> None:
    """For that is a table too."""
    _, said, _ = run("create", named(place, "shop"), "--delayed")

    assert f"\ntable {named(place, 'shop.Delayed')} is in " in said
    assert tables(place) == {"shop", "shop.Delayed"}


def test_nothing_is_made_where_one_name_is_bad(run: Any, place: Place) -> None:
    """Names are looked at first."""
    code, _, error = run("create", *endpoint(place), "--instance", "x" * 60)

    assert code == 2
    assert "option --instance is" in error
    assert tables(place) == set()


def test_script_makes_what_create_makes(run: Any, place: Place) -> None:
    """The stream may receive from the endpoint's own queues and insert into the shared ones."""
    reader, sender = f"{place.schema}_r", f"{place.schema}_s"
    roles = ["--reader", reader, "--sender", sender, "--state-schema", place.state]
    code, text, _ = run("script", *endpoint(place), "--body-string", *roles)
    try:
        for _ in range(2):
            place.connection.execute(text.encode())

        assert code == 0
        assert tables(place) == set(ALL)
        rights = (
            "SELECT table_name::text, string_agg(privilege_type, ' ' ORDER BY privilege_type)"
            "  FROM information_schema.role_table_grants"
            " WHERE table_schema = %s AND grantee = %s GROUP BY 1"
        )
        own = dict.fromkeys(ALL[:4], "DELETE SELECT")
        shared = dict.fromkeys(ALL[4:], "INSERT")
        assert dict(place.sql(rights, place.schema, reader)) == own | shared
        assert dict(place.sql(rights, place.schema, sender)) == dict.fromkeys(ALL[:4], "INSERT")
        shape = "SELECT count(*) FROM information_schema.columns WHERE table_schema = %s"
        assert place.sql(shape, place.schema) == [(6 * len(ALL),)]
    finally:
        drop_roles(place)


def test_the_rights_of_the_script_leave_the_doctor_nothing_to_mend(
    run: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a stream and for a sender; what the other may is a note."""
    queue = named(place, "shop")
    roles = ("--reader", f"{place.schema}_r", "--sender", f"{place.schema}_s")
    text = run("script", queue, "--state-schema", place.state, *roles)[1]
    try:
        place.connection.execute(text.encode())
        for role, note in (("r", "may not send to it"), ("s", "may not receive from it")):
            monkeypatch.setenv("SQLQUEUE_URL", as_role(place.url, f"{place.schema}_{role}"))
            code, said, _ = run("doctor", queue, "--state-schema", place.state)

            assert code == 0
            assert f"note  {queue}: login {place.schema}_{role} {note}" in said
            assert "no problems found" in said
    finally:
        drop_roles(place)


# ---------------------------------------------------------------- purge


@pytest.fixture
def shop(run: Any, place: Place) -> str:
    """Give a queue of three messages, two of them expired."""
    queue = named(place, "shop")
    run("create", queue)
    run("send", queue, stdin='{"body": "1"}')
    lines = '{"body": "2", "timeToBeReceived": 0}\n{"body": "3", "timeToBeReceived": 0}'
    run("send", queue, stdin=lines)
    return queue


def left(place: Place, queue: str) -> int:
    """Count what waits."""
    return int(place.sql(f"SELECT count(*) FROM {queue}")[0][0])


def test_purge_deletes_only_after_a_yes(run: Any, place: Place, shop: str) -> None:
    """It says what it will do, and how many."""
    refused, said, _ = run("purge", shop, stdin="n\n")
    kept = left(place, shop)
    agreed, done, _ = run("purge", shop, stdin="y\n")

    assert (refused, agreed) == (1, 0)
    assert f"This will delete 3 messages of {shop} permanently." in said
    assert kept == 3
    assert done.endswith("3 messages deleted\n")
    assert left(place, shop) == 0
    assert run("purge", shop) == (0, "0 messages deleted\n", "")


def test_purge_expired_leaves_what_lives(run: Any, place: Place, shop: str) -> None:
    """And says how many are gone."""
    code, said, _ = run("purge-expired", shop)

    assert (code, said) == (0, f"2 expired messages deleted from {shop}\n")
    assert left(place, shop) == 1
    _, printed, _ = run("purge-expired", shop, "--json")
    assert json.loads(printed) == {"queue": shop, "deleted": 0}


def test_purge_expired_shows_on_a_terminal_how_far_it_is(
    run: Any, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of how many; on standard error, so that a program reads the result alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    code, said, shown = run("purge-expired", shop)

    assert (code, said) == (0, f"2 expired messages deleted from {shop}\n")
    assert "2 of 2" in shown


# ---------------------------------------------------------------- doctor


def test_the_doctor_finds_nothing_wrong_with_what_create_and_install_made(
    run: Any, place: Place
) -> None:
    """One line says so, and the exit code."""
    run("install", "--state-schema", place.state)
    run("create", named(place, "shop"))

    code, said, error = run("doctor", named(place, "shop"), "--state-schema", place.state)
    _, printed, _ = run("doctor", named(place, "shop"), "--json", "--state-schema", place.state)

    assert (code, said, error) == (0, "no problems found\n", "")
    assert printed == ""


def test_the_doctor_tells_what_is_wrong_and_what_mends_it(run: Any, place: Place) -> None:
    """The exit code is 1; what fixes it can be run, and then nothing is wrong."""
    queue = named(place, "shop")
    run("install", "--state-schema", place.state)
    run("create", queue)
    place.sql(f"ALTER TABLE {queue} SET (autovacuum_enabled = off)")
    words = ("doctor", queue, "--body-string", "--state-schema", place.state)

    code, said, _ = run(*words)
    _, printed, _ = run(*words, "--json")

    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 1
    assert f"error  {queue}: autovacuum is off for this table" in said
    assert "no problems found" not in said
    assert [each["name"] for each in found] == ["autovacuum", "body_string"]
    for each in found:
        assert f"\n    {each['fix']}\n" in said
        place.sql(each["fix"])
    assert run(*words)[:2] == (0, "no problems found\n")


def test_the_doctor_looks_at_the_queues_of_all_streams(run: Any, place: Place) -> None:
    """When it is given none; a stream that is gone is told too."""
    queue = named(place, "Shop.Orders")
    run("install", "--state-schema", place.state)
    run("create", queue)
    run("send", queue, stdin='{"body": "1"}')
    received(place, messages=1)
    place.sql(f"UPDATE {place.state}.stream SET seen = seen - interval '2 days'")
    place.sql(f"ALTER TABLE {queue} SET (autovacuum_enabled = off)")

    code, printed, _ = run("doctor", "--json", "--state-schema", place.state)

    found = {each["name"]: each for each in map(json.loads, printed.splitlines())}
    assert code == 1
    assert set(found) == {"unseen_stream", "autovacuum"}
    command = found["unseen_stream"]["fix"]
    assert command == f"sqlqueue receipts return --stream {STREAM} --state-schema {place.state}"
    assert run(*command.split()[1:], "--yes")[0] == 0
    assert left(place, queue) == 1


def test_the_doctor_without_state_tables_says_so(run: Any, place: Place) -> None:
    """With the command that makes them; the queue is looked at all the same."""
    code, printed, _ = run("doctor", named(place, "shop"), "--json", "--state-schema", place.state)

    found = [json.loads(line) for line in printed.splitlines()]
    assert code == 1
    assert [each["name"] for each in found] == ["state", "absent"]
    for each in found:
        words = each["fix"].replace("'", "").split()[1:]
        assert run(*words)[0] == 0
    assert run("doctor", named(place, "shop"), "--state-schema", place.state)[0] == 0


def test_the_doctor_leaves_a_table_of_delayed_messages_as_it_is(run: Any, place: Place) -> None:
    """To give it the columns of a queue would fix nothing."""
    run("create", named(place, "shop"), "--delayed")
    run("install", "--state-schema", place.state)
    delayed = named(place, "shop.Delayed")

    code, printed, _ = run("doctor", delayed, "--json", "--state-schema", place.state)

    found = json.loads(printed)
    assert code == 1
    assert (found["name"], found["where"]) == ("delayed_table", delayed)
    assert "ALTER" not in found["fix"]


def test_the_doctor_says_where_it_looked_at_no_queue(run: Any, place: Place) -> None:
    """To find no problems found with none is no comfort."""
    run("install", "--state-schema", place.state)

    code, said, _ = run("doctor", "--state-schema", place.state)

    assert code == 0
    assert said == (
        "no queue was checked: none was named, and there is no stream\nno problems found\n"
    )


def test_the_doctor_grants_no_sequence_that_there_is_not(run: Any, place: Place) -> None:
    """What fixes it can be run, also where seq was made without one."""
    login, queue = f"{place.schema}_l", named(place, "bare")
    place.sql(
        f"CREATE TABLE {queue} (id uuid, expires timestamp, headers text, body bytea, seq int)"
    )
    place.sql(f"CREATE ROLE {login}")
    try:
        url = as_role(place.url, login)
        printed = run("doctor", queue, "--json", "--state-schema", place.state, "--url", url)[1]

        found = {each["name"]: each["fix"] for each in map(json.loads, printed.splitlines())}
        assert found["send_right"] == f"GRANT INSERT ON {place.schema}.bare TO {login}"
    finally:
        place.sql(f"DROP ROLE {login}")


def test_the_doctor_looks_at_a_table_whose_name_no_endpoint_takes(run: Any, place: Place) -> None:
    """Every other command refuses the name."""
    queue = named(place, "x" * 60)
    place.sql(
        f"CREATE TABLE {queue} (id uuid, expires timestamp, headers text, body bytea,"
        " seq serial UNIQUE)"
    )
    run("install", "--state-schema", place.state)

    code, said, _ = run("doctor", queue, "--state-schema", place.state)

    assert code == 1
    assert "the name has 60 bytes, but the transport allows at most 55" in said
    assert run("browse", queue)[0] == 2


def test_stats_warns_where_the_seqs_come_to_an_end(run: Any, place: Place, shop: str) -> None:
    """And no longer once the column and its sequence are wider."""
    place.sql(f"UPDATE {shop} SET seq = 2000000000 WHERE body = '1'")

    code, _, error = run("stats", shop, "--state-schema", place.state)

    assert code == 0
    assert error.startswith(f"{shop}: 93% of the seqs are used up")
    place.connection.execute(error.partition("Fix: ")[2].encode())
    assert run("stats", shop, "--state-schema", place.state)[2] == ""


def test_findings_are_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A queue's name cannot write on the operator's terminal."""
    from sqlq_spark.admin.checks import Finding  # noqa: PLC0415

    name = '"s"."[red]\x1b[2J"'
    finding = Finding(where=name, name="x", severity="note", found="\x07", fix=f"ALTER {name};\nB")

    show_findings([finding])

    assert capsys.readouterr().out == (
        'note  "s"."[red]·[2J": ·\n    ALTER "s"."[red]·[2J";\n    B\nno problems found\n'
    )


def test_a_domain_has_a_schema_and_roles_of_its_own(place: Place, run: Any) -> None:
    """Of one option; what other options name stays."""
    _, plain, _ = run("script", "Q", "--domain", "billing")
    _, other, _ = run("script", "Q", "--domain", "billing", "--reader", "clerk")

    for word in ('"sqlqueue_billing".stream', '"billing_reader"', '"billing_sender"'):
        assert word in plain
    assert '"sqlqueue".' not in plain
    assert '"clerk"' in other
    assert '"billing_reader"' not in other
    name = place.state.removeprefix("state_")
    try:
        code, said, _ = run("install", "--domain", name, "--url", place.url)
        assert code == 0
        assert f"in schema sqlqueue_{name} of" in said
    finally:
        place.sql(f'DROP SCHEMA IF EXISTS "sqlqueue_{name}" CASCADE')
