"""The commands on queues: `stats`, `report`, `doctor` and `move-due`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import threading
from contextlib import closing
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import prometheus_client.openmetrics.parser as openmetrics
import psycopg
from conftest import ORDINARY
from waiting import until

from sqlq_spark.admin import queue_sizes, state_tables
from sqlq_spark.admin.stats import plain_names
from sqlq_spark.cli import queues as figures
from sqlq_spark.database import transaction
from sqlq_spark.database.migrations import STATE_VERSION
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER

from .database import STREAM, address, count, put, received

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from conftest import Place

    from .commands import Run

FAILED = '{"NServiceBus.FailedQ": "Shop", "NServiceBus.TimeSent": "2026-01-01 00:00:00:000000 Z"}'


def looked_at(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    """The queues that `stats` finds, by table."""
    (look,) = run("stats", "--json", *words).objects
    return {each["queue"].partition(".")[2].strip('"'): each for each in look["queues"]}


# ---------------------------------------------------------------- streams


def test_streams_are_listed_and_removed(run: Run, orders: str, place: Place) -> None:
    """A stream's name cannot send escapes to a terminal. A stream that runs is not removed."""
    put(place, orders, times=2)
    received(place, messages=2)
    beat = (
        f"INSERT INTO {place.state}.heartbeat (driver, stream, name, queue, host, process, shared)"
        " VALUES (%s, %s, %s, %s, %s, 7, false)"
    )
    place.sql(beat, "d", STREAM, "night\x1b[2Jly", orders, "spark-1")
    place.sql(beat, "e", None, None, orders, "spark-2")

    listed = run("streams", "list", orders)
    (running, waiting) = sorted(run("streams", "list", "--json").objects, key=itemgetter("host"))
    refused = run("streams", "remove", STREAM, "--yes")
    place.sql(f"DELETE FROM {place.state}.receipt")
    runs = run("streams", "remove", STREAM, "--yes")
    place.sql(f"UPDATE {place.state}.heartbeat SET beat = now() - interval '1 hour'")
    place.sql(f"UPDATE {place.state}.stream SET seen = now() - interval '1 hour'")
    gone = run("streams", "list")
    removed = run("streams", "remove", "night\x1b[2Jly", "--yes")

    assert [refused.code, runs.code, removed.code] == [2, 2, 0]
    assert "\x1b" not in listed.out
    assert "night·[2Jly" in listed.out
    assert "spark-2:7" in listed.out
    assert (running["stream"], running["host"], waiting["stream"]) == (STREAM, "spark-1", "")
    assert "it holds 1 receipt." in refused.err
    assert "it runs on spark-1" in runs.err
    assert "gone for 1 h 0 min" in gone.out
    assert f"stream {STREAM}" in removed.out
    assert "no streams" in run("streams", "list").out
    assert count(place, f"{place.state}.stream") == 1  # its high-water mark stays


# ---------------------------------------------------------------- stats


def test_what_went_to_an_error_queue_is_counted_before_it_is_acknowledged(
    run: Run, orders: str, place: Place
) -> None:
    """A job counts at its end. Its last batch may not be acknowledged before the next run."""
    run("create", address(place, "bad"))
    put(place, orders, "no JSON", times=2)
    put(place, orders)
    received(place, messages=3, errors="bad")
    held = counted(place)
    place.sql(f"UPDATE {place.state}.stream SET diverted = 5, query_id = 'q', spark_batch = 0")

    both = counted(place)

    assert count(place, address(place, "bad")) == 2
    assert [held[STREAM].messages, both[STREAM].messages] == [2, 7]
    assert both[STREAM].queries == {"q"}


def counted(place: Place) -> dict[str, state_tables.DivertedTotal]:
    raw = {"url": place.url, "stateSchema": place.state, "queue": "x"}
    with StateSession(SourceOptions.parse(raw), "test") as session:
        connection = session.open()
        with transaction(connection):
            return state_tables.count_diverted(connection)


def test_all_queues_are_found_and_their_kind_is_shown(run: Run, orders: str, place: Place) -> None:
    """A locked queue stops no other, and its fix ends the session. Names are printed escaped."""
    delay(run, place, orders, 3600)
    expected = {
        "failures": ("error queue", "ok"),
        "Shop.error": ("error queue", "ok"),
        "Shop.Locked": ("queue", "locked"),
        "Shop.Poison": ("queue", "poison"),
        "x\x1b[2Jy": ("queue", "autovacuum"),
    }
    *_, odd = expected
    for name in expected:
        run("create", address(place, name))
    put(place, address(place, "failures"), FAILED)
    put(place, address(place, "Shop.Poison"), "no JSON")
    place.sql(f'CREATE VIEW "{place.schema}".seen AS SELECT * FROM {orders}')
    place.sql(f"ALTER TABLE {address(place, odd)} SET (autovacuum_enabled = off)")
    with closing(psycopg.connect(place.url, application_name="psql of X")) as other:
        other.execute(f"LOCK TABLE {address(place, 'Shop.Locked')}".encode())

        found = looked_at(run)
        table = run("stats").out
        (page,) = run("report", "--json").objects
        line, fix, *_ = table.partition("session ")[2].splitlines()
        place.sql(fix.strip())
    checked = run("doctor").out

    kinds = {name: (each["kind"], each["state"]) for name, each in found.items()}
    assert {name: kinds.get(name) for name in expected} == expected
    assert ("seen" in kinds, "Shop.Orders.Delayed" in kinds) == (False, False)
    assert (found["Shop.Orders"]["delayed"], found["failures"]["delayed"]) == (1, None)
    assert re.search(rf"^ +0 +- +0 +1 +0 .*{orders}", table, flags=re.MULTILINE)
    assert re.search(r"'psql of X'\) has locked the whole table", line)
    assert {"locked", "poison"} <= {each["name"] for each in page["problems"]}
    assert looked_at(run)["Shop.Locked"]["state"] == "ok"
    for text in (table, checked):
        assert ("x·[2Jy" in text, "\x1b" in text) == (True, False)


def gauges(text: str) -> dict[str, dict[str, float]]:
    """The samples of each metric, by queue, as Prometheus's own parser reads them."""
    families = openmetrics.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {
        each.name: {its.labels["queue"]: its.value for its in each.samples} for each in families
    }


def test_the_name_of_a_queue_in_a_gauge_is_that_of_one_queue() -> None:
    """A collector rejects a page that has the same labels twice. No table can cause this."""
    public, clash = QueueAddress("error", "public"), '"public"."x"'
    others = [QueueAddress("x.y", "public"), QueueAddress("y", "x"), QueueAddress("y", "a")]
    odd = [QueueAddress("x", "public"), QueueAddress(clash, "public")]
    texts = [*map(POSTGRESQL.print_address, [public, *others, *odd]), "no address"]

    names = plain_names(texts, POSTGRESQL, "shop")

    assert [*map(names.get, texts)] == ["error", *texts[1:3], "a.y", "x", *texts[5:]]
    for catalog, name in (("Shop", "error"), ("other", "other.error")):
        whole = SQLSERVER.print_address(QueueAddress("error", "dbo", catalog))
        assert plain_names([whole], SQLSERVER, "shop") == {whole: name}


def test_no_name_becomes_a_statement_of_a_fix(run: Run, place: Place) -> None:
    """A table's name with a line break stands in one line of `doctor`, as the server quotes it."""
    odd = address(place, "a\nDROP TABLE orders; --")
    run("create", odd)
    place.sql(f"ALTER TABLE {odd} SET (autovacuum_enabled = off)")

    printed = run("doctor", odd).out
    (fix,) = [
        each["fix"] for each in run("doctor", odd, "--json").objects if "RESET" in each["fix"]
    ]

    assert "DROP TABLE" in printed
    assert [line for line in printed.splitlines() if line.strip().startswith("DROP")] == []
    assert "a\nDROP TABLE" in fix


def test_figures_are_written_for_programs_collectors_and_readers(
    run: Run, orders: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Everyone may read the file for Prometheus, and only its owner the HTML page.

    The number of messages in a large queue is an estimate.
    """
    file, page = tmp_path / "sqlqueue.prom", tmp_path / "page.html"
    name = '"a"\\\n\n\r\t{}#\u2028 1, 2\n# EOF'
    odd = address(place, name.replace('"', '""'))
    run("create", odd)
    put(place, odd, "no JSON", times=3)
    put(place, orders, times=2)
    received(place, messages=1)
    place.sql(f"UPDATE {place.state}.stream SET queue = %s", f"{orders}, {odd}")
    for each in (file, page):
        each.write_text("before")
        each.chmod(0o604)

    (look,) = run("stats", odd, "--json").objects
    place.sql(f"ANALYZE {odd}")
    with monkeypatch.context() as patch:
        patch.setattr(queue_sizes, "LARGEST_COUNTED_TABLE", 0)
        (rough,) = looked_at(run, odd).values()
    assert run("stats", orders, odd, "--openmetrics", str(file)) == (0, "", "")
    printed = run("stats", orders, odd, "--openmetrics", "-").out
    assert run("report", orders, "--html", str(page)).code == 0

    ((queue,), (stream,)) = look["queues"], look["streams"]
    assert (queue["queue"], queue["messages"], queue["estimated"]) == (odd, 3, False)
    assert (rough["messages"], rough["estimated"], rough["expired"]) == (3, True, None)
    assert (stream["stream"], stream["receipts"], stream["held"]) == (STREAM, 1, 1)
    assert "<main>" in page.read_text(encoding="utf-8")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, page)] == [0o644, 0o600]
    assert {*tmp_path.iterdir()} == {file, page}
    found = gauges(file.read_bytes().decode())
    assert found.keys() == gauges(printed).keys()
    # a label has escapes for a line break, a quote and a backslash only: others are shown as text
    shown = f"{place.schema}.{name}"
    for odd_one in "\r\t\u2028":
        shown = shown.replace(odd_one, json.dumps(odd_one)[1:-1])
    assert not any(each < " " for each in printed.replace("\n", ""))
    plain = f"{place.schema}.Shop.Orders"
    assert found["sqlqueue_messages"] == {plain: 1, shown: 3}
    assert found["sqlqueue_problems"] == {plain: 0, shown: 1}
    assert found["sqlqueue_held_messages"][plain] == 1
    assert found["sqlqueue_stream_held_messages"] == {f"{plain}, {shown}": 1}
    assert found["sqlqueue_delayed_messages"] == {}


def test_a_watch_goes_on_when_the_database_was_away(
    run: Run, orders: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports the loss and looks again, as often as it was asked to."""
    watch = ("--watch", "--interval", "0.1", "--count", "2")
    assert len(run("stats", orders, *watch, "--json").objects) == 2
    options = SourceOptions.parse({"url": place.url, "queue": orders, "stateSchema": place.state})
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s"
    with Session(options, place.schema) as session:
        found = figures.looks(session, [orders], options, 0.01)
        first = next(found)
        assert place.sql(end, f"sqlqueue {place.schema}%")

        assert first.at < next(found).at
    assert capsys.readouterr().err.endswith(". Trying again.\n")


# ---------------------------------------------------------------- doctor


def test_doctor_reports_problems_of_streams_and_their_fixes(
    run: Run, orders: str, place: Place
) -> None:
    """`doctor` looks at all streams. Its exit code is 1 until the fixes have been run."""
    put(place, orders, '{"NServiceBus.SagaId": "7"}', times=2)
    received(place, messages=1)
    place.sql(f"""
        UPDATE {place.state}.stream SET seen = seen - interval '2 days';
        ALTER TABLE {place.state}.receipt_page SET (autovacuum_enabled = off);
        ALTER TABLE {place.state}.staging SET UNLOGGED;
        ALTER TABLE {place.state}.stream SET (autovacuum_vacuum_threshold = 90000000);
        ALTER TABLE {orders} SET (autovacuum_enabled = off)
    """)

    shown, found = run("doctor"), run("doctor", "--json").objects

    fixes = {each["name"]: each["fix"] for each in found}
    assert shown.code == 1
    assert f"error  {orders}: autovacuum is off for this table" in shown.out
    assert f"\n    {fixes['autovacuum']}\n" in shown.out
    assert any("messages among the first messages: 1" in each["found"] for each in found)
    for name in ("autovacuum", "state_autovacuum", "state_unlogged", "state_late_autovacuum"):
        place.sql(fixes[name])
    back = fixes["unseen_stream"].splitlines()[2].partition(": sqlqueue ")[2]
    assert run(*back.split(), "--yes").code == 0
    place.sql(f"UPDATE {place.state}.stream SET seen = now()")
    version = f"state schema {place.state}: version {STATE_VERSION}, as this release"
    assert run("doctor", "--no-warn-if-shared") == (0, f"no problems found\n{version}\n", "")


def test_commands_name_a_queue_that_differs_only_in_case(
    run: Run, orders: str, place: Place
) -> None:
    """This holds for each argument that is a queue. `doctor` proposes to write the other name."""
    near = address(place, "shop.orders")
    text = f"There is {orders}, which differs only in upper and lower case. Write that name, or"
    subscribe = ("subscribe", "Shop.Placed", "--endpoint", "e", "--queue", near)
    row = '{"body": "1"}'

    for words in (("stats", near), ("browse", near), ("purge", near, "--yes"), subscribe):
        found = run(*words)
        assert (found.code, text in found.err) == (3, True), (words, found)
    sent = run("send", near, stdin=row)
    assert (sent.code, text in sent.err) == (3, True)
    checked = {each["name"]: each for each in run("doctor", near, "--json").objects}
    assert checked["absent"]["fix"] == f"write the name {orders}"


def test_doctor_creates_what_is_missing_and_shortens_names(run: Run, place: Place) -> None:
    """A fix also works for a table whose name leaves no room for that of delayed messages."""
    wide, short = (address(place, "xü" + "y" * length) for length in (45, 44))
    checked = run("doctor", wide, "--json").objects
    assert [each["name"] for each in checked] == ["state", "absent"]
    for each in checked:
        assert run(*shlex.split(each["fix"].replace("`", ""))[1:]).code == 0
    place.sql(f"""
        CREATE TABLE {wide[:-1]}.Delayed"
            (id uuid DEFAULT gen_random_uuid(), headers text, body bytea, due timestamptz);
        CREATE INDEX ON {wide[:-1]}.Delayed" (due);
        ALTER TABLE {wide[:-1]}.Delayed" OWNER TO {ORDINARY}
    """)
    assert run("send", wide, stdin='{"body": "1", "delay": "00:00:00"}').code == 0

    (found,) = run("doctor", wide, "--json").objects

    assert (found["name"], found["severity"]) == ("delayed_long_name", "warning")
    place.connection.execute(found["fix"].encode())
    assert run("doctor", short).code == 0
    assert "1 message moved" in run("move-due", short).out


def test_doctor_finds_subscribers_that_publishers_cannot_reach(
    run: Run, orders: str, place: Place
) -> None:
    """
    The queue was dropped, the address is none, or the table is no queue.

    The proposed commands end these subscriptions.
    """
    table, gone = address(place, "SubscriptionRouting"), address(place, "Shop.Gone")
    run("subscribe", "Shop.Placed", "--queue", orders, "--endpoint", "Shop.Orders")
    said = {
        ("It's gone", gone): f"fails: queue {gone} was not found in",
        ("bad", '"a"."b"."c"'): "cannot be used: it has 3 parts",
        ("other", table): "is not a queue: it has no column body",
    }
    for endpoint, queue in said:
        place.sql(f"INSERT INTO {table} VALUES (%s, %s, '--yes')", queue, endpoint)

    found = run("doctor", orders, "--json").objects

    assert {each["name"] for each in found} == {"subscriber"}
    for each, text in zip(sorted(found, key=itemgetter("found")), said.values(), strict=True):
        assert text in each["found"]
        assert run(*shlex.split(each["fix"])[1:], stdin="y\n").code == 0
    assert place.sql(f"SELECT endpoint FROM {table}") == [("Shop.Orders",)]
    assert run("doctor", orders).code == 0


# ---------------------------------------------------------------- move-due


def delay(run: Run, place: Place, orders: str, *seconds: float) -> str:
    """Delay messages, on a server in UTC. Return their table."""
    run("create", orders, "--delayed")
    table = f'{orders[:-1]}.Delayed"'
    row = "'{}', '', now() + make_interval(secs => unnest(%s::float[]))"
    place.sql(f"INSERT INTO {table} (headers, body, due) SELECT {row}", list(seconds))
    return table


def test_move_due_moves_what_is_due_and_ends(run: Run, orders: str, place: Place) -> None:
    """It moves batches, and reports how many messages it moved and when the next is due."""
    delayed = delay(run, place, orders, -1, -1, -1, 1000)

    moved = run("move-due", orders, "--batch", "2").out
    delay(run, place, orders, -1)
    place.sql(f"DELETE FROM {delayed} WHERE due > now()")
    printed = run("move-due", orders, "--json").objects

    total = f"messages moved into {orders}; "
    assert re.fullmatch(rf"3 {total}the next is due in 16 min \d+ s\n", moved)
    assert printed == [{"queue": orders, "moved": 1, "nextDueSeconds": None}]
    assert run("move-due", orders).out == f"0 {total}no message waits\n"
    assert count(place, orders) == 4


def test_a_watch_goes_on_until_it_is_stopped(run: Run, orders: str, place: Place) -> None:
    """It wakes at the next due time, reports each look, and restores the signal handler."""
    handler = signal.getsignal(signal.SIGTERM)
    delay(run, place, orders, -1, 1)

    def stop() -> None:
        try:
            until(lambda: count(place, orders) == 2)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    watched = run("move-due", orders, "--watch", "--json")
    stopper.join()

    assert (watched.code, watched.objects[0]["moved"] >= 1) == (0, True)
    assert signal.getsignal(signal.SIGTERM) is handler
