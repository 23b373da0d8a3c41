"""
Records in the dispatch log whether a request of failures was begun, sent, or given up.

    OPEN       entered before the request is written to the table. A dispatch log without it belongs
               to another database or stateSchema, and does not show what was sent.
    SENT       entered by the transaction of the write
    GIVEN_UP   entered for an operator; a write that is still running can no longer send the request

Each state is a batch number of the same sink. It only increases.
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


class ReadOnlyEnd(Exception):
    """Ends a transaction that only reads, so that it changes nothing."""


class RequestLog:
    """The requests in the dispatch log of the sink's database."""

    def __init__(self, sink: Callable[[str], dict[str, str]]) -> None:
        """Begin; `sink` gives the options of the write of a request."""
        self._sink = sink

    def open(self, request: str) -> None:
        """Enter a new request."""
        self._do(request, enter, OPEN)

    def state(self, request: str) -> int:
        """The state of a request."""
        return self._do(request, last)

    def give_up(self, request: str) -> int:
        """Prevent that an open request is sent, unless it was sent already; returns its state."""
        if self.state(request) == OPEN:
            self._do(request, close)
        return self.state(request)

    def _do(self, request: str, work: Callable[..., int], *more: int) -> int:
        options = SinkOptions.parse(self._sink(request))
        sink, timeout = f"app:{options.txn_app_id}", options.query_timeout
        with Session(options, "triage") as session:
            return session.do(partial(work, sink, timeout, *more))


def enter(sink: str, timeout: float, batch: int, connection: Connection) -> int:
    """Enter a batch, unless the dispatch log has it or a later one."""
    with transaction(connection, timeout=timeout):
        dispatch_log.enter(connection, sink, batch)
    return batch


def last(sink: str, timeout: float, connection: Connection) -> int:
    """Read the last batch of a sink; changes nothing."""
    found: int | None = None
    with suppress(ReadOnlyEnd), transaction(connection, timeout=timeout):
        found = dispatch_log.lock(connection, sink)[1]
        raise ReadOnlyEnd
    return UNKNOWN if found is None else found


def close(sink: str, timeout: float, connection: Connection) -> int:
    """Give up a request, if it is open, and delete what it staged."""
    with transaction(connection, timeout=timeout):
        login, last = dispatch_log.lock(connection, sink)
        if last is None or last < SENT:
            values: dict[str, Any] = {"sink": sink, "login": login, "batch": GIVEN_UP}
            connection.rows("advance", **values, messages=0)
            connection.run("discard", **values)
    return GIVEN_UP
