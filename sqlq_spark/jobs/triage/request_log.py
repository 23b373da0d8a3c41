"""Records in the dispatch log whether a request of failures was begun, sent, or given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SinkOptions
from sqlq_spark.send.dispatch import OPEN, give_up, open_request, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection


T = TypeVar("T")


class RequestLog:
    """The requests in the dispatch log of the sink's database."""

    def __init__(self, sink: Callable[[str], dict[str, str]]) -> None:
        """Begin; `sink` gives the options of the write of a request."""
        self._sink = sink

    def open(self, request: str) -> None:
        """Enter a new request."""
        self._do(request, open_request)

    def state(self, request: str) -> int:
        """The state of a request."""
        return self._do(request, read_state)

    def give_up(self, request: str) -> int:
        """Prevent that an open request is sent, unless it was sent already; returns its state."""
        if self.state(request) == OPEN:
            self._do(request, give_up)
        return self.state(request)

    def _do(self, request: str, work: Callable[[Connection, str, float], T]) -> T:
        options = SinkOptions.parse(self._sink(request))
        sink, timeout = f"app:{options.txn_app_id}", options.query_timeout
        with StateSession(options, "triage") as session:
            return session.run_with_retries(lambda connection: work(connection, sink, timeout))
