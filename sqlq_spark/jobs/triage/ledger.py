"""
What the database's ledger knows of a return: whether it was begun here, sent, or given up.

    OPEN       entered before the table knows of it, so that who goes on with it can tell this
               ledger from another, where what was sent is not known
    SENT       by the write's own transaction
    GIVEN_UP   by an operator; no attempt that is still under way can send it any more

Each is a batch number of the same sink, and a later one is never undone.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import dispatch_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

UNKNOWN, OPEN, SENT, GIVEN_UP = -2, -1, 0, 1  # batches; SENT is the txnVersion of the write


class Asked(Exception):
    """Ends the transaction that asked, so that it changes nothing."""


class Ledger:
    """The ledger that the sink's options lead to."""

    def __init__(self, sink: Callable[[str], dict[str, str]]) -> None:
        """Begin; `sink` gives the options of the write of a request."""
        self._sink = sink

    def open(self, request: str) -> None:
        """Enter a request that is about to be chosen."""
        self._do(request, enter, OPEN)

    def state(self, request: str) -> int:
        """What is known of a request."""
        return self._do(request, last)

    def give_up(self, request: str) -> int:
        """See to it that an open request is never sent, unless it was; returns what it is now."""
        if self.state(request) == OPEN:
            self._do(request, close)
        return self.state(request)

    def _do(self, request: str, work: Callable[..., int], *more: int) -> int:
        options = SinkOptions.parse(self._sink(request))
        sink, timeout = f"app:{options.txn_app_id}", options.query_timeout
        with Session(options, "triage") as session:
            return session.do(partial(work, sink, timeout, *more))


def enter(sink: str, timeout: float, batch: int, connection: Connection) -> int:
    """Enter a batch, unless it or a later one is there."""
    with transaction(connection, timeout=timeout):
        dispatch_log.enter(connection, sink, batch)
    return batch


def last(sink: str, timeout: float, connection: Connection) -> int:
    """The last batch that is there; nothing is changed."""
    found: int | None = None
    with suppress(Asked), transaction(connection, timeout=timeout):
        found = dispatch_log.lock(connection, sink)[1]
        raise Asked
    return UNKNOWN if found is None else found


def close(sink: str, timeout: float, connection: Connection) -> int:
    """Enter that a request is given up, where it is open; drop what it staged."""
    with transaction(connection, timeout=timeout):
        login, last = dispatch_log.lock(connection, sink)
        if last is None or last < SENT:
            values: dict[str, Any] = {"sink": sink, "login": login, "batch": GIVEN_UP}
            connection.rows("advance", **values, messages=0)
            connection.run("discard", **values)
    return GIVEN_UP
