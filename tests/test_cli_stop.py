"""Ctrl-C: exit code 130, nothing half done, and a line that says how much was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from test_cli import STREAM, orders, received, run
from waiting import PATIENCE, until

if TYPE_CHECKING:
    from conftest import Place

__all__ = ["orders", "run"]  # the fixtures


def own_terminal() -> None:
    """Make standard input the terminal of a process, so that its Ctrl-C is a signal."""
    os.login_tty(0)


def test_ctrl_c_at_a_question_is_130(run: Any, orders: str, place: Place) -> None:
    """On a terminal, in a process of its own; nothing was done."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}\n')
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "sqlq_spark", "purge", orders],
        env={**os.environ, "SQLQUEUE_URL": place.url},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        preexec_fn=own_terminal,  # noqa: PLW1509 - its terminal
    ) as process:
        os.close(follower)
        said = ""
        while "[y/N]" not in said:
            said += os.read(leader, 1000).decode()
        os.write(leader, b"\x03")
        code = process.wait(PATIENCE)
    os.close(leader)

    assert code == 130
    assert place.sql(f"SELECT count(*) FROM {orders}") == [(2,)]


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
def test_ctrl_c_during_work_is_130_and_tells_how_far_it_was(
    run: Any, orders: str, place: Place, command: str
) -> None:
    """What was under way is undone, what was committed before it stays."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}\n')
    if command == "purge":
        words, lock = [orders], f"SELECT FROM {orders} FOR UPDATE"
        done = "deleted"
    else:
        received(place, messages=2)
        words = ["--stream", STREAM, "--state-schema", place.state]
        lock = f"SELECT FROM {place.state}.stream FOR UPDATE"
        done = "returned" if command.endswith("return") else "dropped"
    place.sql(f"BEGIN; {lock}")

    striker = interrupted(place)
    code, _, error = run(*command.split(), *words, "--yes")
    striker.join()
    place.sql("ROLLBACK")

    assert code == 130
    assert error == f"stopped: 0 messages of 2 {done}\n"
    waits = place.sql(f"SELECT count(*) FROM {orders}")[0][0]
    held = place.sql(f"SELECT coalesce(sum(messages), 0) FROM {place.state}.receipt")[0][0]
    assert waits + held == 2
