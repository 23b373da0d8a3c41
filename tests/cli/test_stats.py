"""`sqlqueue stats` and `report`: once, as lines, and as a live screen on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import prometheus_client.openmetrics.parser as openmetrics
import prometheus_client.parser as prometheus
import pytest
from waiting import PATIENCE

from sqlq_spark.admin import watch
from sqlq_spark.admin.inspect import Depth
from sqlq_spark.admin.problems import Finding
from sqlq_spark.cli import queues as figures
from sqlq_spark.cli.screen import NO_QUEUES, out
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import NotReachable
from sqlq_spark.options import SourceOptions

from .database import STREAM, address, received

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

    from .commands import Run

SIZE = {"COLUMNS", "LINES"}  # these variables win over the size that a terminal reports
WATCH = ("--watch", "--interval", "0.1")
EMPTY = watch.Look(at=datetime.now(UTC), queues=[], streams=None)


def test_stats_counts_what_waits_and_what_streams_hold(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """Depth, expired messages, streams and receipts."""
    run("send", orders, "--time-to-be-received", "00:00:00", stdin='{"body": "1"}')
    run("send", orders, stdin='{"body": "2"}\n{"body": "3"}')
    received(place, messages=2)

    printed = run("stats", orders, "--json", *state)
    table = run("stats", *state).out

    ((depth,), (stream,)) = (printed.objects[0][name] for name in ("queues", "streams"))
    assert printed.code == 0
    assert (depth["queue"], depth["messages"], depth["expired"]) == (orders, 1, 0)
    assert (stream["stream"], stream["receipts"], stream["held"]) == (STREAM, 1, 1)
    assert STREAM in table
    assert orders in table


def test_stats_lists_each_queue_of_a_stream(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """A comma in a name does not split it; a queue without a stream is listed too."""
    other = address(place, "Shop, Billing")
    run("create", other)
    received(place, messages=1)
    queues = f"{orders}, {other}"
    place.sql(f'UPDATE "{place.state}".stream SET queue = %s', queues)

    printed = [run("stats", *queue, "--json", *state).objects[0] for queue in ((), (other,))]
    (held,) = run("receipts", "list", orders, "--json", *state).objects

    names = [[each["queue"] for each in said["queues"]] for said in printed]
    assert [name for name in names[0] if name in {orders, other}] == [other, orders]
    assert names[1] == [other]
    assert [[each["queue"] for each in said["streams"]] for said in printed] == [[queues]] * 2
    assert held["queue"] == orders


def test_stats_reports_what_is_absent(
    run: Run, queue: str, state: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """State tables, or a queue to look at; without a stream the queues are shown."""
    shown, nothing = run("stats", queue, *state), run("stats", *state)

    assert (shown.code, nothing.code) == (0, 0)
    assert f"no state tables in schema {state[1]}" in shown.out
    assert queue in nothing.out
    out().print(figures.draw(EMPTY, "sqlqueue", "once"), soft_wrap=True)
    assert capsys.readouterr().out.startswith(f"{NO_QUEUES}\n")


def test_stats_warns_before_the_seqs_are_used_up(
    run: Run, queue: str, place: Place, state: tuple[str, str]
) -> None:
    """The proposed statement makes the column and its sequence wider."""
    run("send", queue, stdin='{"body": "1"}')
    place.sql(f"UPDATE {queue} SET seq = 2000000000")

    shown = run("stats", queue, *state)

    assert shown.code == 0
    assert f"{queue}: 93% of the seqs are used up" in shown.out
    place.connection.execute(shown.out.partition("used up")[2].partition("\n")[2].encode())
    assert "used up" not in run("stats", queue, *state).out


def test_stats_and_browse_show_delayed_messages(
    run: Run, queue: str, state: tuple[str, str]
) -> None:
    """Beside what waits; a line of browse cannot be sent again, because it would lose its delay."""
    run("create", queue, "--delayed")
    run("send", queue, stdin='{"body": "x\\u001b[2J", "delay": "01:00:00"}')

    table = run("stats", queue, *state).out
    shown = run("browse", queue, "--delayed").out
    lines = run("browse", queue, "--delayed", "--json")

    assert re.search(r"backlog +oldest +expired +delayed +due ", table)
    assert re.search(r"^ +0 +- +0 +1 +0 ", table, flags=re.MULTILINE)
    assert "x·[2J" in shown
    (found,) = lines.objects
    assert found["body"] == "x\x1b[2J"
    assert found["due"].endswith("+00:00")
    assert run("send", queue, stdin=lines.out).code == 2


# ---------------------------------------------------------------- a watch


def test_a_watch_without_a_terminal_prints_each_look(
    run: Run, orders: str, state: tuple[str, str]
) -> None:
    """With its time; the first look has no flow."""
    run("send", orders, stdin='{"body": "1"}')

    watched = run("stats", orders, *WATCH, "--count", "2", *state)

    lines = watched.out.splitlines()
    assert (watched.code, watched.err) == (0, "")
    assert [bool(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", each)) for each in lines].count(
        True
    ) == 2
    first, second = (line.split() for line in lines if line.endswith(orders))
    assert first[0] == second[0] == "1"
    assert " - - 0 - - 0 0 " in " ".join(first)
    assert " 0.0 0.0 0 - - 0 0 " in " ".join(second)


def test_a_watch_prints_each_look_as_json(
    run: Run, queue: str, place: Place, state: tuple[str, str]
) -> None:
    """A rate is null at the first look, and as long as a queue has given out no seq."""
    other = address(place, "Shop.Billing")
    run("create", other)
    run("send", queue, stdin='{"body": "1"}')

    watched = run("stats", queue, other, *WATCH, "--count", "3", "--json", *state)

    queues = [{each["queue"]: each for each in look["queues"]} for look in watched.objects]
    assert (watched.code, watched.err) == (0, "")
    assert [look[queue]["messages"] for look in queues] == [1, 1, 1]
    assert [look[queue]["outPerSecond"] for look in queues] == [None, 0, 0]
    assert [look[other]["inPerSecond"] for look in queues] == [None, None, None]


def test_only_its_owner_may_read_a_report(run: Run, queue: str, tmp_path: Path) -> None:
    """Also where all could read a page that it replaces."""
    page, new = (tmp_path / name for name in ("page.html", "new.html"))
    page.write_text("before")
    page.chmod(0o644)

    written = [run("report", queue, "--html", str(each)) for each in (page, new)]

    assert written[0] == (0, f"the report of 1 queue is in {page}\n", "")
    assert "<main>" in page.read_text(encoding="utf-8")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (page, new)] == [0o600] * 2


def test_a_watch_goes_on_when_the_database_was_away(
    orders: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports the loss, and looks again; the first look must succeed."""
    options = SourceOptions.parse({"url": place.url, "queue": orders, "stateSchema": place.state})
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE application_name LIKE 'sqlqueue {place.schema}%'"
    )
    with Session(options, place.schema) as session:
        found = figures.looks(session, [orders], options, 0.01)
        first = next(found)
        assert place.sql(end)
        after = next(found)

    assert first.at < after.at
    assert capsys.readouterr().err.endswith(". Trying again.\n")
    nowhere = SourceOptions.parse({"url": "postgresql://127.0.0.1:1/shop", "queue": "q"})
    with Session(nowhere, "test") as session, pytest.raises(NotReachable):
        next(figures.looks(session, ["q"], nowhere, 0.01))


def follow(leader: int, screen: bytearray, wanted: bytes) -> None:
    """Read what a terminal shows until it has shown something; pytest's timeout ends the wait."""
    while wanted not in screen:
        screen += os.read(leader, 4096)


def test_the_live_screen_ends_with_ctrl_c_and_restores_the_terminal(
    orders: str, place: Place, run: Run, state: tuple[str, str]
) -> None:
    """Exit 0; its screen is gone, the cursor is back, and the line's settings are as before."""
    run("send", orders, stdin='{"body": "1"}')
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    before = termios.tcgetattr(follower)
    screen = bytearray()
    # a worker of pytest-xdist sets a width of 80 columns
    inherited = {name: each for name, each in os.environ.items() if name not in SIZE}
    with subprocess.Popen(
        [sys.executable, "-m", "sqlq_spark", "stats", orders, *WATCH, *state],
        env={**inherited, "SQLQUEUE_URL": place.url, "TERM": "xterm-256color"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        follow(leader, screen, b"backlog")
        follow(leader, screen, b"0.0")  # the second look has a flow
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        follow(leader, screen, b"\x1b[?1049l")
        follow(leader, screen, b"\x1b[?25h")
    after = termios.tcgetattr(follower)
    os.close(leader)
    os.close(follower)

    assert code == 0
    text = screen.decode()
    assert text.index("\x1b[?1049h") < text.index("backlog") < text.rindex("\x1b[?1049l")
    assert orders in text
    assert "Press Ctrl-C to end" in text
    assert "Traceback" not in text
    assert after == before


# ---------------------------------------------------------------- metrics


def gauges(text: str) -> dict[str, dict[str, float]]:
    """The samples of each metric, by queue, as Prometheus's own parsers read them."""
    families = [*openmetrics.text_string_to_metric_families(text)]  # type: ignore[no-untyped-call]
    older = [*prometheus.text_string_to_metric_families(text)]
    assert {each.type for each in families} == {"gauge"}
    assert [each.samples for each in families] == [each.samples for each in older]
    samples = {each.name: each.samples for each in families}
    assert {label for its in samples.values() for each in its for label in each.labels} == {
        *("queue", "state_schema")
    }
    return {
        name: {each.labels["queue"]: each.value for each in its} for name, its in samples.items()
    }


def test_prometheus_reads_the_figures_of_each_queue(
    run: Run, orders: str, place: Place, state: tuple[str, str], tmp_path: Path
) -> None:
    """The file is replaced at once by one that all may read; what is unknown is left out."""
    run("send", orders, "--time-to-be-received", "00:00:00", stdin='{"body": "1"}')
    run("send", orders, stdin='{"body": "2"}\n{"body": "3"}')
    received(place, messages=2)
    file = tmp_path / "sqlqueue.prom"
    file.write_text("before")

    written = run("stats", orders, "--openmetrics", str(file), *state)
    printed = run("stats", orders, "--openmetrics", "-", *state)

    assert written == (0, "", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [*tmp_path.iterdir()] == [file]
    found = gauges(file.read_text(encoding="utf-8"))
    assert found.keys() == gauges(printed.out).keys()
    names = ("messages", "expired_messages", "held_messages", "problems")
    assert [found[f"sqlqueue_{name}"] for name in names] == [
        {orders: value} for value in (1, 0, 1, 0)
    ]
    assert found["sqlqueue_delayed_messages"] == {}


def test_a_hostile_name_stays_one_label() -> None:
    """Quotes, backslashes and line ends among its characters; a problem is counted."""
    name = '"a"\\n\n\r\t{}#\u2028 1\n# EOF'
    problem = Finding(where=name, name="dead_rows", severity="error", found="", fix="")
    depth = Depth(name, 7, None, 8192, None, None, estimated=True)
    look = watch.QueueLook(
        at=EMPTY.at, depth=depth, highest=None, oldest=None, delayed=None, problems=[problem]
    )

    found = gauges(watch.to_metrics(replace(EMPTY, queues=[look]), "sqlqueue"))

    assert found["sqlqueue_messages"] == {name: 7}
    assert found["sqlqueue_problems"] == {name: 1}
    assert found["sqlqueue_expired_messages"] == {}


def test_a_file_that_cannot_be_replaced_is_left_as_it_was(run: Run, tmp_path: Path) -> None:
    """Nothing else is left in the folder. A program is not asked for two forms."""
    folder = tmp_path / "taken"
    folder.mkdir()

    failed = run("stats", "--openmetrics", str(folder))
    both = run("stats", "--openmetrics", "-", "--json")

    assert (failed.code, both.code) == (2, 2)
    assert "expected a file to write (Is a directory)" in failed.err
    assert "expected no --json with it" in both.err
    assert [*tmp_path.iterdir()] == [folder]
