"""
A limit for idle transactions, on the client: SQL Server has none.

PostgreSQL has idle_in_transaction_session_timeout. Here a timer runs beside each transaction. If no
statement ran for as long as the limit, it ends the session, and the server undoes the transaction.
It is a part of the process: a process that stands still as a whole does not end its session.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Watchdog:
    """Ends one session if its open transaction does nothing for too long; safe for threads."""

    def __init__(
        self, end: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Start with no transaction open.

        Args:
            end: closes the session. It is called while no statement runs.
            clock: monotonic seconds.
        """
        self._end = end
        self._clock = clock
        self._turn = threading.Lock()  # of whoever uses the session
        self._timer: threading.Timer | None = None
        self._limit: float | None = None  # seconds; None: no transaction is open
        self._rested = clock()  # when the last statement ended
        self.ended: float | None = None  # the limit by which the session was ended

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Keep the session for a statement, which has a timeout of its own."""
        with self._turn:
            try:
                yield
            finally:
                self._rested = self._clock()

    def watch(self, limit: float | None) -> None:
        """Say how long the transaction may be idle from now on; None: none is open."""
        with self._turn:
            if limit == self._limit:
                return
            self._limit = limit
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if limit is not None:
                self._start(limit)

    def look(self) -> None:
        """End the session if it was idle for too long, else look again when it could be."""
        with self._turn:
            limit = self._limit
            if limit is None or self.ended is not None:
                return
            left = self._rested + limit - self._clock()
            if left > 0:
                self._start(left)
                return
            self.ended = limit
            self._end()

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.look)
        self._timer.daemon = True
        self._timer.start()
