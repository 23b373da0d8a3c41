"""`sqlqueue move-due`: once, and until it is stopped."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from waiting import until

from .database import address

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def queue(queue: str, run: Run) -> str:
    """Give the address of a new queue whose messages can be delayed."""
    for _ in range(2):  # it may be run again
        assert run("create", queue, "--delayed").code == 0
    return queue


@pytest.fixture
def delayed(place: Place) -> str:
    """Give the address of the table of delayed messages."""
    return address(place, "Shop.Orders.Delayed")


def store(place: Place, delayed: str, body: str, seconds: float) -> None:
    """Delay a message, on a server in UTC."""
    place.sql(
        f"INSERT INTO {delayed} (headers, body, due)"
        " VALUES ('{}', %s::text::bytea, now() + make_interval(secs => %s))",
        body,
        seconds,
    )


def bodies(place: Place, table: str) -> list[str]:
    """What a table holds."""
    found = place.sql(f"SELECT convert_from(body, 'UTF8') FROM {table} ORDER BY 1")
    return [str(body) for (body,) in found]


def test_move_due_moves_what_is_due_and_ends(
    run: Run, queue: str, delayed: str, place: Place
) -> None:
    """In transactions of a batch; it reports how many it moved, and when the next is due."""
    for at in range(5):
        store(place, delayed, f"due {at}", -1)
    store(place, delayed, "later", 1000)

    moved = run("move-due", queue, "--batch", "2")

    total = f"messages moved into {queue}; "
    assert moved.code == 0
    assert re.fullmatch(rf"5 {total}the next is due in 16 min \d+ s\n", moved.out)
    assert len(bodies(place, queue)) == 5
    assert bodies(place, delayed) == ["later"]
    place.sql(f"DELETE FROM {delayed}")
    assert run("move-due", queue).out == f"0 {total}no message waits\n"
    store(place, delayed, "due", -1)
    place.sql(f"BEGIN; SELECT FROM {delayed} FOR UPDATE")
    held = run("move-due", queue).out
    place.sql("ROLLBACK")
    assert held.startswith(f"0 {total}more are due, but another")
    assert run("move-due", queue, "--json").objects == [
        {"queue": queue, "moved": 1, "nextDueSeconds": None}
    ]


def test_move_due_names_what_is_missing(run: Run, queue: str, delayed: str, place: Place) -> None:
    """A time zone, or the table with the command that creates it."""
    no_zone = run("move-due", queue, "--endpoint-time-zone", "Mars/Olympus")
    place.sql(f"DROP TABLE {delayed}")
    no_table = run("move-due", queue)

    assert (no_zone.code, no_table.code) == (2, 3)
    zone = "option --endpoint-time-zone is 'Mars/Olympus': expected the time zone in "
    assert no_zone.err.startswith(zone)
    assert "Create it with `sqlqueue create QUEUE --delayed`" in no_table.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_goes_on_until_it_is_stopped(
    run: Run, queue: str, delayed: str, place: Place, number: signal.Signals
) -> None:
    """It wakes at the next due time, reports each look, and restores the signal handlers."""
    handler = signal.getsignal(number)
    store(place, delayed, "due", -1)
    store(place, delayed, "soon", 1)

    def stop() -> None:
        try:
            until(lambda: bodies(place, queue), ["due", "soon"])
        finally:
            os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    stopper.start()
    watched = run("move-due", queue, "--watch", "--json")
    stopper.join()

    assert watched.code == 0
    assert watched.objects[0]["moved"] >= 1  # the stop may come before the last report
    assert signal.getsignal(number) is handler
