"""
What the dispatch log records of a return request: opened, sent, or given up.

    OPEN       entered before the table of failures names the request. So whoever finishes the
               request can recognise this dispatch log. Another one does not record what was sent.
    SENT       entered by the transaction that sends
    GIVEN_UP   entered by an operator; no attempt that still runs can send the request any more

Each is a batch number of the request's sink. A dispatch log never goes back to a lower number.
"""

from __future__ import annotations

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


class RequestLog:
    """The requests in the dispatch log that the sink's options lead to."""

    def __init__(self, sink: Callable[[str], dict[str, str]]) -> None:
        """Prepare; `sink` returns the options of the write that sends a request."""
        self._sink = sink

    def open(self, request: str) -> None:
        """Enter a new request."""
        self._do(request, enter_batch, OPEN)

    def state(self, request: str) -> int:
        """Return UNKNOWN, OPEN, SENT or GIVEN_UP."""
        return self._do(request, read_batch)

    def give_up(self, request: str) -> int:
        """Make sure that an open request is never sent, unless it was; return its state."""
        if self.state(request) == OPEN:
            self._do(request, close_request)
        return self.state(request)

    def _do(self, request: str, work: Callable[..., int], *more: int) -> int:
        options = SinkOptions.parse(self._sink(request))
        sink, timeout = f"app:{options.txn_app_id}", options.query_timeout
        with Session(options, "triage") as session:
            return session.do(partial(work, sink, timeout, *more))


def enter_batch(sink: str, timeout: float, batch: int, connection: Connection) -> int:
    """Enter a batch of a sink, unless it or a later one is there."""
    with transaction(connection, timeout=timeout):
        dispatch_log.enter(connection, sink, batch)
    return batch


def read_batch(sink: str, timeout: float, connection: Connection) -> int:
    """Return the last batch of a sink, or UNKNOWN; wait for a dispatch that runs."""
    with transaction(connection, timeout=timeout):
        found = dispatch_log.read(connection, sink)
    return UNKNOWN if found is None else found


def close_request(sink: str, timeout: float, connection: Connection) -> int:
    """Enter that an open request is given up, and delete its chunks."""
    with transaction(connection, timeout=timeout):
        login, last = dispatch_log.lock(connection, sink)
        if last is None or last < SENT:
            values: dict[str, Any] = {"sink": sink, "login": login, "batch": GIVEN_UP}
            connection.rows("advance", **values, messages=0)
            connection.run("discard", **values)
    return GIVEN_UP
