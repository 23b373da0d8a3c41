"""`sqlqueue stats`: once, as lines, and as a live screen on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pytest
from test_cli import orders, run
from waiting import PATIENCE

from sqlq_spark.admin import history
from sqlq_spark.admin.watch import Look
from sqlq_spark.cli import stats
from sqlq_spark.cli.screens.screen import NO_QUEUES
from sqlq_spark.cli.screens.watch import Lines, sparkline
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import ConnectionLost, NotReachable
from sqlq_spark.options import SourceOptions

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

__all__ = ["orders", "run"]  # the fixtures

SIZE = {"COLUMNS", "LINES"}  # which win over what a terminal says of itself


def words(place: Place, *more: str) -> list[str]:
    """Give the words of a watch."""
    return ["--watch", "--interval", "0.1", "--state-schema", place.state, *more]


def test_a_watch_without_a_terminal_prints_lines(run: Any, orders: str, place: Place) -> None:
    """One for each queue and look; the first knows of no flow."""
    run("send", orders, stdin='{"body": "1"}')

    code, text, error = run("stats", orders, *words(place, "--count", "2"))

    first, second = text.splitlines()
    assert (code, error) == (0, "")
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", first)
    assert re.search(rf" {re.escape(orders)}: backlog 1, oldest \d", first)
    assert "in/s -, out/s -, expired 0, delayed -, due -, receipts 0, held 0" in first
    assert "in/s 0.0, out/s 0.0" in second


def test_a_watch_in_json_is_a_history(run: Any, orders: str, place: Place, tmp_path: Any) -> None:
    """Of several queues; a report draws it."""
    other = f'"{place.schema}"."Shop.Billing"'
    run("create", other)
    run("send", orders, stdin='{"body": "1"}')

    code, text, _ = run("stats", orders, other, *words(place, "--count", "3", "--json"))
    kept = history.read(text.encode().splitlines())
    (tmp_path / "history").write_text(text)
    page = tmp_path / "page.html"
    drawn = run("report", orders, "--html", str(page), "--history", str(tmp_path / "history"))

    assert code == 0
    assert [len(json.loads(line)["queues"]) for line in text.splitlines()] == [2, 2, 2]
    assert [each.messages for each in kept[orders]] == [1, 1, 1]
    assert [each.incoming for each in kept[other]] == [None, None, None]  # no seq was given out
    assert [each.outgoing for each in kept[orders]] == [None, 0, 0]
    assert drawn == (0, f"the report of 1 queue is in {page}\n", "")
    assert "Backlog over time" in page.read_text(encoding="utf-8")


def test_a_watch_goes_on_when_the_database_was_away(
    orders: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and looks again; the first look must succeed."""
    options = SourceOptions.parse({"url": place.url, "queue": orders, "stateSchema": place.state})
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE application_name LIKE 'sqlqueue {place.schema}%'"
    )
    with Session(options, place.schema, state=False) as session:
        found = stats.looks(session, [orders], options, 0.01)
        first = next(found)
        assert place.sql(end)
        lost, after = next(found), next(found)

    Lines().fail(str(lost))
    assert isinstance(first, Look)
    assert isinstance(lost, ConnectionLost)
    assert isinstance(after, Look)
    assert capsys.readouterr().err.endswith(". Trying again.\n")
    nowhere = SourceOptions.parse({"url": "postgresql://127.0.0.1:1/shop", "queue": "q"})
    with Session(nowhere, "test", state=False) as session, pytest.raises(NotReachable):
        next(stats.looks(session, ["q"], nowhere, 0.01))


def test_a_watch_of_nothing_says_so(run: Any, place: Place) -> None:
    """No queue is named, and no stream has one."""
    code, text, _ = run("stats", *words(place, "--count", "1"))

    assert code == 0
    assert text.endswith(f" {NO_QUEUES}\n")


def test_a_look_at_nothing_says_so(run: Any, place: Place) -> None:
    """And what to do."""
    code, text, _ = run("stats", "--state-schema", place.state)

    assert code == 0
    assert text.splitlines()[0] == NO_QUEUES


def test_count_is_for_a_watch(run: Any, orders: str) -> None:
    """Elsewhere it would do nothing."""
    code, _, error = run("stats", orders, "--count", "2")

    assert code == 2
    assert error == "option --count is '2': expected --watch with it\n"


def test_stats_tells_what_is_delayed(run: Any, orders: str, place: Place) -> None:
    """Beside what waits; and browse shows it."""
    run("create", orders, "--delayed")
    run("send", orders, stdin='{"body": "x\\u001b[2J", "delay": "01:00:00"}')

    table = run("stats", orders, "--state-schema", place.state)[1]
    shown = run("browse", orders, "--delayed")[1]
    (line,) = run("browse", orders, "--delayed", "--json")[1].splitlines()

    assert re.search(r"messages +oldest +expired +delayed +due ", table)
    assert re.search(r"^ +0 +- +0 +1 +0 ", table, flags=re.MULTILINE)
    assert "x·[2J" in shown
    found = json.loads(line)
    assert found["body"] == "x\x1b[2J"
    assert found["due"].endswith("+00:00")
    assert run("send", orders, stdin=line)[0] == 2  # it would no longer be delayed


# ---------------------------------------------------------------- a terminal


def follow(leader: int, said: bytearray, until: bytes) -> None:
    """Read what a terminal shows until something is there."""
    end = time.monotonic() + PATIENCE
    while until not in said:
        assert time.monotonic() < end, said
        said += os.read(leader, 4096)


def test_the_live_screen_ends_with_ctrl_c_and_leaves_the_terminal_well(
    orders: str, place: Place, run: Any
) -> None:
    """Exit 0; its screen is gone, the cursor is back, and the line's settings are as before."""
    run("send", orders, stdin='{"body": "1"}')
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    before = termios.tcgetattr(follower)
    said = bytearray()
    # a worker of pytest-xdist says that it is 80 columns wide
    inherited = {name: each for name, each in os.environ.items() if name not in SIZE}
    with subprocess.Popen(
        [sys.executable, "-m", "sqlq_spark", "stats", orders, *words(place)],
        env={**inherited, "SQLQUEUE_URL": place.url, "TERM": "xterm-256color"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        follow(leader, said, b"backlog")
        follow(leader, said, b"0.0")  # the second look has a flow
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
        follow(leader, said, b"\x1b[?1049l")
        follow(leader, said, b"\x1b[?25h")
    after = termios.tcgetattr(follower)
    os.close(leader)
    os.close(follower)

    assert code == 0
    text = said.decode()
    assert text.index("\x1b[?1049h") < text.index("backlog") < text.rindex("\x1b[?1049l")
    assert orders in text
    assert "Press Ctrl-C to end" in text
    assert "██" in text  # its backlog at both looks
    assert "Traceback" not in text
    assert after == before


def test_a_line_of_bars_tells_how_the_backlog_went() -> None:
    """The highest for the most; flat where nothing waited."""
    assert sparkline([0, 1, 4, 8]) == "▁▂▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([7]) == "█"


def test_only_its_owner_may_read_the_page(run: Any, orders: str, tmp_path: Path) -> None:
    """A new one, and one that was there and that all could read."""
    page = tmp_path / "page.html"
    page.write_text("before")
    page.chmod(0o644)

    assert run("report", orders, "--html", str(page))[0] == 0
    assert run("report", orders, "--html", str(tmp_path / "new.html"))[0] == 0

    assert [stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()] == [0o600] * 2
    assert "before" not in page.read_text(encoding="utf-8")
