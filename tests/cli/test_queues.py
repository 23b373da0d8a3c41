"""The commands on queues: `stats`, `report`, `doctor` and `move-due`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import sys
import threading
from contextlib import closing
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import prometheus_client.openmetrics.parser as openmetrics
import prometheus_client.parser as prometheus
import psycopg
import pytest
from waiting import until

from sqlq_spark.admin import checks, inspect, problems
from sqlq_spark.cli import queues as figures
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.testing import embedded

from .database import STREAM, address, count, put, received

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

    from .commands import Run

FAILED = '{"NServiceBus.FailedQ": "Shop", "NServiceBus.TimeSent": "2026-01-01 00:00:00:000000 Z"}'
WATCH = ("--watch", "--interval", "0.1", "--count", "3")


def looked_at(run: Run, *words: str) -> dict[str, dict[str, Any]]:
    """The queues that `stats` finds, by table."""
    (look,) = run("stats", "--json", *words).objects
    return {each["queue"].partition(".")[2].strip('"'): each for each in look["queues"]}


# ---------------------------------------------------------------- stats


def test_all_queues_are_found_and_their_kind_is_shown(run: Run, orders: str, place: Place) -> None:
    """A locked one stops no other; its fix ends the session. Hostile names change no screen."""
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
    assert re.search(r"backlog +oldest +expired +delayed +due ", table)
    assert re.search(rf"^ +0 +- +0 +1 +0 .*{orders}", table, flags=re.MULTILINE)
    assert re.search(r"'psql of X'\) has locked the whole table", line)
    assert {"locked", "poison"} <= {each["name"] for each in page["problems"]}
    assert looked_at(run)["Shop.Locked"]["state"] == "ok"
    for text in (table, checked):
        assert ("x·[2Jy" in text, "\x1b" in text) == (True, False)


def test_a_large_queue_is_estimated(
    run: Run, orders: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marked as such, and never more than the seqs allow; a smaller one is counted."""
    put(place, orders, times=2000)
    place.sql(f"ANALYZE {orders}")
    found = [looked_at(run, orders)]
    monkeypatch.setattr(inspect, "LARGEST_COUNTED_TABLE", 0)
    found += [looked_at(run, orders)]
    assert "~2,000" in run("stats", orders).out
    place.sql(f"DELETE FROM {orders} WHERE seq <= 1990")
    found += [looked_at(run, orders)]

    fields = ("messages", "estimated", "expired")
    counts = [[each["Shop.Orders"][name] for name in fields] for each in found]
    assert counts == [[2000, False, 0], [2000, True, None], [10, True, None]]


def gauges(text: str) -> dict[str, dict[str, float]]:
    """The samples of each metric, by queue, as Prometheus's own parsers read them."""
    families = [*openmetrics.text_string_to_metric_families(text)]  # type: ignore[no-untyped-call]
    older = [*prometheus.text_string_to_metric_families(text)]
    assert {each.type for each in families} == {"gauge"}
    assert [each.samples for each in families] == [each.samples for each in older]
    return {
        each.name: {its.labels["queue"]: its.value for its in each.samples} for each in families
    }


def test_figures_are_written_for_programs_collectors_and_readers(
    run: Run, orders: str, place: Place, tmp_path: Path
) -> None:
    """A file for Prometheus that all may read, whatever the names; a page that its owner may."""
    file, page = tmp_path / "sqlqueue.prom", tmp_path / "page.html"
    odd = address(place, '""a""\\\n\n\r\t{}#\u2028 1, 2\n# EOF')
    run("create", odd)
    put(place, odd, "no JSON", times=3)
    put(place, orders, times=2)
    received(place, messages=1)
    place.sql(f"UPDATE {place.state}.stream SET queue = %s", f"{orders}, {odd}")
    for each in (file, page):
        each.write_text("before")
        each.chmod(0o604)

    (look,) = run("stats", odd, "--json").objects
    assert run("stats", orders, odd, "--openmetrics", str(file)) == (0, "", "")
    printed = run("stats", orders, odd, "--openmetrics", "-").out
    assert run("report", orders, "--html", str(page)).code == 0

    ((queue,), (stream,)) = look["queues"], look["streams"]
    assert (queue["queue"], queue["messages"]) == (odd, 3)
    assert (stream["stream"], stream["receipts"], stream["held"]) == (STREAM, 1, 1)
    assert "<main>" in page.read_text(encoding="utf-8")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, page)] == [0o644, 0o600]
    assert {*tmp_path.iterdir()} == {file, page}
    found = gauges(file.read_bytes().decode())
    assert found.keys() == gauges(printed).keys()
    assert found["sqlqueue_messages"] == {orders: 1, odd: 3}
    assert found["sqlqueue_problems"] == {orders: 0, odd: 1}
    assert found["sqlqueue_held_messages"][orders] == 1
    assert found["sqlqueue_delayed_messages"] == {}


# ---------------------------------------------------------------- a watch


def test_a_watch_shows_each_look(run: Run, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, without a rate while no seq was given out; a terminal's screen is restored."""
    looks = run("stats", orders, *WATCH, "--json").objects
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    shown = run("stats", orders, *WATCH).out

    assert [look["queues"][0]["outPerSecond"] for look in looks] == [None] * 3
    assert shown.index("\x1b[?1049h") < shown.index(orders) < shown.index("\x1b[?1049l")
    assert "\x1b[?25h" in shown  # the cursor


def test_a_watch_goes_on_when_the_database_was_away(
    orders: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports the loss, and looks again."""
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
    """Of all streams; it ends by 1 until the fixes have been run, then by 0, and prints no JSON."""
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
    assert run("doctor", "--no-warn-if-shared") == (0, "no problems found\n", "")
    assert run("doctor", "--no-warn-if-shared", "--json") == (0, "", "")


def test_doctor_creates_what_is_missing_and_shortens_names(run: Run, place: Place) -> None:
    """Its fixes do, also of a table whose name leaves no room for that of delayed messages."""
    wide, short = (address(place, "xü" + "y" * length) for length in (45, 44))
    checked = run("doctor", wide, "--json").objects
    assert [each["name"] for each in checked] == ["state", "absent"]
    for each in checked:
        assert run(*shlex.split(each["fix"].replace("`", ""))[1:]).code == 0
    place.sql(f"""
        CREATE TABLE {wide[:-1]}.Delayed"
            (id uuid DEFAULT gen_random_uuid(), headers text, body bytea, due timestamptz);
        CREATE INDEX ON {wide[:-1]}.Delayed" (due)
    """)
    assert run("send", wide, stdin='{"body": "1", "delay": "00:00:00"}').code == 0

    (found,) = run("doctor", wide, "--json").objects

    assert (found["name"], found["severity"]) == ("delayed_long_name", "warning")
    place.connection.execute(found["fix"].encode())
    assert run("doctor", short).code == 0
    assert "1 message moved" in run("move-due", short).out
    (found,) = run("doctor", f'{short[:-1]}.Delayed"', "--json").objects
    assert (found["name"], "ALTER" in found["fix"]) == ("delayed_table", False)


def test_doctor_finds_subscribers_that_publishers_cannot_reach(
    run: Run, orders: str, place: Place
) -> None:
    """A dropped queue, an address that is none, and another table; the commands end these."""
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


def test_what_pins_rows_without_a_session_is_found() -> None:
    """A prepared transaction and a replication slot that no client uses; each fix works."""
    with embedded.server() as server:
        with psycopg.connect(server.url, autocommit=True) as dba:
            dba.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        server.stop()
        server.start()
        options = SourceOptions.parse({"url": server.url, "queue": "Shop"})
        with (
            Session(options, "test") as session,
            psycopg.connect(server.url, autocommit=True) as dba,
        ):
            schema.create_queue(session.open(), options.address, body_string=False)
            dba.execute("BEGIN; LOCK TABLE \"Shop\"; PREPARE TRANSACTION 'it''s mine'")
            dba.execute("SELECT pg_create_physical_replication_slot('standby', true)")

            found = {each.name: each for each in checks.of_server(session.open(), older=0.0)}
            ((lock,),) = problems.blockers(session.open()).values()
            for name in ("prepared_transaction", "replication_slot"):
                dba.execute(found[name].fix.encode())

            assert "'it''s mine'" in found["prepared_transaction"].found
            assert lock.fix == found["prepared_transaction"].fix
            assert "keeps the WAL" in found["replication_slot"].found
            assert checks.of_server(session.open(), older=0.0) == []


# ---------------------------------------------------------------- move-due


def delay(run: Run, place: Place, orders: str, *seconds: float) -> str:
    """Delay messages, on a server in UTC; their table."""
    run("create", orders, "--delayed")
    table = f'{orders[:-1]}.Delayed"'
    row = "'{}', '', now() + make_interval(secs => unnest(%s::float[]))"
    place.sql(f"INSERT INTO {table} (headers, body, due) SELECT {row}", list(seconds))
    return table


def test_move_due_moves_what_is_due_and_ends(run: Run, orders: str, place: Place) -> None:
    """In transactions of a batch; it reports how many it moved, and when the next is due."""
    delayed = delay(run, place, orders, -1, -1, -1, 1000)

    moved = run("move-due", orders, "--batch", "2").out
    delay(run, place, orders, -1)
    place.sql(f"BEGIN; SELECT FROM {delayed} FOR UPDATE")
    held = run("move-due", orders).out
    place.sql("ROLLBACK")
    place.sql(f"DELETE FROM {delayed} WHERE due > now()")
    printed = run("move-due", orders, "--json").objects

    total = f"messages moved into {orders}; "
    assert re.fullmatch(rf"3 {total}the next is due in 16 min \d+ s\n", moved)
    assert held.startswith(f"0 {total}more are due, but another")
    assert printed == [{"queue": orders, "moved": 1, "nextDueSeconds": None}]
    assert run("move-due", orders).out == f"0 {total}no message waits\n"
    assert count(place, orders) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_goes_on_until_it_is_stopped(
    run: Run, orders: str, place: Place, number: signal.Signals
) -> None:
    """It wakes at the next due time, reports each look, and restores the signal handler."""
    handler = signal.getsignal(number)
    delay(run, place, orders, -1, 1)

    def stop() -> None:
        try:
            until(lambda: count(place, orders) == 2)
        finally:
            os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    watched = run("move-due", orders, "--watch", "--json")
    stopper.join()

    assert (watched.code, watched.objects[0]["moved"] >= 1) == (0, True)
    assert signal.getsignal(number) is handler
