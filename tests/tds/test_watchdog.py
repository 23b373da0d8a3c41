"""A transaction that does nothing for too long ends with its session, on the client."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.sqlserver.drivers import Watchdog
from sqlq_spark.wire.address import QueueAddress

from . import tokens
from .server import Answer

if TYPE_CHECKING:
    from .conftest import Connect
    from .stage import Stage

QUEUE = QueueAddress("orders")
ROWS = Answer(tokens.columns(("seq", "int")) + tokens.row(tokens.number(7)))


def test_a_transaction_that_is_idle_for_too_long_ends_with_its_session(
    connect: Connect, script: Stage
) -> None:
    """The server sees the connection go, and the next statement is a lost connection."""
    script.answers({"sqlqueue:take": ROWS})
    session = connect()

    def stand_still() -> None:
        with transaction(session, timeout=0.2):
            assert session.rows("take", tables={"queue": QUEUE}, seqs="[1]") == [(7,)]
            until(lambda: script.open == 0)
            session.rows("take", tables={"queue": QUEUE}, seqs="[1]")

    with pytest.raises(errors.ConnectionLost, match=r"idle for 0.2 s \(queryTimeout\)"):
        stand_still()


def test_a_session_without_a_transaction_is_not_watched(connect: Connect, script: Stage) -> None:
    """After the commit, and after an error, no timer runs."""
    script.answers({"sqlqueue:take": ROWS})
    session = connect()
    before = threading.active_count()

    with transaction(session, timeout=30):
        session.rows("take", tables={"queue": QUEUE}, seqs="[1]")
        during = threading.active_count()
    until(lambda: threading.active_count() == before)
    script.answers({"sqlqueue:take": Answer(cut=True)})
    with pytest.raises(errors.ConnectionLost), transaction(session, timeout=30):
        session.rows("take", tables={"queue": QUEUE}, seqs="[1]")

    assert during == before + 1
    until(lambda: threading.active_count() == before)


def test_the_limit_counts_from_the_end_of_the_last_statement() -> None:
    """A statement that runs is not ended, however long it takes; it has a timeout of its own."""
    now, ended = [0.0], []
    watchdog = Watchdog(lambda: ended.append(now[0]), clock=lambda: now[0])
    watchdog.watch(1000)
    with watchdog.statement():
        looking = threading.Thread(target=watchdog.look)
        now[0] = 5000
        looking.start()
    looking.join()
    now[0] = 5999
    watchdog.look()
    before = list(ended)
    now[0] = 6000
    watchdog.look()
    watchdog.look()
    watchdog.watch(None)

    assert (before, ended) == ([], [6000])
