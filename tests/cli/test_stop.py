"""Ctrl-C: exit code 130, nothing half done, and a line that says how much was done."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from waiting import PATIENCE, until

from .database import STREAM, count, received

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def two(run: Run, orders: str) -> str:
    """Give a queue of two messages."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}\n')
    return orders


def own_terminal() -> None:
    """Make standard input the terminal of a process, so that its Ctrl-C is a signal."""
    os.login_tty(0)


def test_ctrl_c_at_a_question_is_130(two: str, place: Place) -> None:
    """On a terminal, in a process of its own; nothing was done."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sqlq_spark", "purge", two],
        env={**os.environ, "SQLQUEUE_URL": place.url},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        preexec_fn=own_terminal,  # noqa: PLW1509 - its terminal
    ) as process:
        os.close(follower)
        screen = ""
        while "[y/N]" not in screen:
            screen += os.read(leader, 1000).decode()
        os.write(leader, b"\x03")
        code = process.wait(PATIENCE)
    os.close(leader)

    assert code == 130
    assert count(place, two) == 2


def interrupted(place: Place) -> threading.Thread:
    """Send this process a Ctrl-C as soon as a session of ours waits for a lock."""
    waiting = (
        "SELECT application_name FROM pg_stat_activity"
        " WHERE application_name LIKE 'sqlqueue %' AND wait_event_type = 'Lock'"
    )

    def strike() -> None:
        with psycopg.connect(place.url, autocommit=True) as other:
            until(lambda: other.execute(waiting).fetchall())
        os.kill(os.getpid(), signal.SIGINT)  # else the command has ended, and we would

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


@pytest.mark.parametrize("command", ["purge", "receipts return", "receipts drop"])
def test_ctrl_c_during_work_is_130_and_reports_the_progress(
    run: Run, two: str, place: Place, command: str
) -> None:
    """What was under way is undone, what was committed before it stays."""
    words, lock, done = [two], f"SELECT FROM {two} FOR UPDATE", "deleted"
    if command != "purge":
        received(place, messages=2)
        words = ["--stream", STREAM, "--state-schema", place.state]
        lock = f"SELECT FROM {place.state}.stream FOR UPDATE"
        done = "returned" if command.endswith("return") else "dropped"
    place.sql(f"BEGIN; {lock}")

    striker = interrupted(place)
    stopped = run(*command.split(), *words, "--yes")
    striker.join()
    place.sql("ROLLBACK")

    assert (stopped.code, stopped.err.splitlines()[-1]) == (130, f"stopped: 0 of 2 messages {done}")
    held = place.sql(f"SELECT coalesce(sum(messages), 0) FROM {place.state}.receipt")[0][0]
    assert count(place, two) + held == 2
