"""
Sessions with the database: opened where Spark calls us, and opened again where that is safe.

What is passed to `Session.do` must be a whole transaction, or several, that may be done twice:
receiving, acknowledging, staging and dispatching are, because each finds out what it did before.

A worker's session that ended well leaves its connection to the next one of its process, for IDLE
seconds: connecting costs 35 ms and more, the task of a small batch 10.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import stamina

from sqlq_spark import database
from sqlq_spark.database.schema import VERSION
from sqlq_spark.errors import (
    ConnectionLost,
    Deadlock,
    DestinationChanged,
    LockTimedOut,
    LogFull,
    NotReachable,
    SqlQueueError,
    StateNotInstalled,
    StateTooNew,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

ATTEMPTS = 7
LONGEST_PAUSE = 5.0  # seconds; all pauses together are about 10
TRANSIENT = (ConnectionLost, Deadlock, DestinationChanged, LockTimedOut, LogFull)
IDLE = 20.0  # seconds after which a connection that no session takes is closed


class Target(Protocol):
    """Where a session leads to, as the options of a read or a write say it."""

    @property
    def url(self) -> str:
        """It may hold a password."""

    @property
    def state_schema(self) -> str:
        """The schema of the state tables."""

    @property
    def query_timeout(self) -> float:
        """Seconds for each statement and wait."""


class Idle:
    """Connections of sessions that ended, one for each place they lead to; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[object, tuple[Connection, threading.Timer]] = {}

    def take(self, key: object) -> Connection | None:
        """A connection for the taker alone, if there is one."""
        with self._lock:
            connection, timer = self._kept.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return connection

    def keep(self, key: object, connection: Connection, seconds: float) -> None:
        """Keep a connection that has no transaction open; a second one for a place is closed."""
        timer = threading.Timer(seconds, self._close, (key, connection))
        timer.daemon = True
        with self._lock:
            full = key in self._kept
            if not full:
                self._kept[key] = connection, timer
        if full:
            connection.close()
        else:
            timer.start()

    def _close(self, key: object, connection: Connection) -> None:
        with self._lock:
            mine = self._kept.get(key, (None, None))[0] is connection
            if mine:
                del self._kept[key]
        if mine:
            connection.close()


idle = Idle()


class Session:
    """A connection that is opened when it is first needed, and again when it broke."""

    def __init__(
        self,
        options: Target,
        application: str,
        *,
        state: bool = True,
        worker: bool = False,
        reached: bool = False,
    ) -> None:
        """
        Begin; nothing is connected yet.

        Args:
            options: where to, and how long to wait.
            application: what the DBA sees behind `sqlqueue`.
            state: make sure, after connecting, that the state tables are there.
            worker: many sessions follow one another in this process: keep the connection for the
                next one, if the `with` block ends well, which it must with no transaction open.
            reached: others were there a moment ago, by the same url: one that is gone now, as while
                a standby takes over, is waited for like a connection that breaks.
        """
        self.options = options
        self.application = application
        self._state = state
        self._worker = worker
        self._connection: Connection | None = None
        self._reached = reached

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._worker and failed is None and self._connection is not None:
            idle.keep(self._key, self._connection, IDLE)
            self._connection = None
        self.close()

    @property
    def _key(self) -> object:
        """What makes a connection of another session fit for this one; not beyond a fork."""
        options = self.options
        place = options.url, options.state_schema, options.query_timeout
        return os.getpid(), place, self._state

    def do(self, work: Callable[[Connection], T]) -> T:
        """
        Do `work`, and again with growing pauses after what may be over soon.

        That is a connection that breaks, a deadlock, a lock that others keep for too long or a full
        log; where the answer to a commit is lost, `work` finds out by itself whether it was done.

        A server that was never reached is not waited for: that is more likely a wrong url.
        """
        attempts = stamina.retry_context(
            on=self._worth_another, attempts=ATTEMPTS, timeout=None, wait_max=LONGEST_PAUSE
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._once(work)
        except SqlQueueError as error:
            # its sentence tells all; Spark prints every frame above it, 25 of them the retries'
            raise error.with_traceback(None) from None
        raise AssertionError  # pragma: no cover - stamina raises the last error itself

    def _worth_another(self, error: Exception) -> bool:
        return isinstance(error, TRANSIENT) or (self._reached and isinstance(error, NotReachable))

    def _once(self, work: Callable[[Connection], T]) -> T:
        try:
            return work(self.open())
        except ConnectionLost as error:
            log.warning("%s; connecting again", error)
            self.close()
            raise

    def open(self) -> Connection:
        """The connection, opened if need be."""
        if self._connection is None:
            kept = idle.take(self._key) if self._worker else None
            self._connection = kept or self._connect()
            self._connection.application = f"sqlqueue {self.application}"
            self._reached = True
        return self._connection

    def _connect(self) -> Connection:
        options = self.options
        connection = database.of(options.url).connect(
            options.url,
            application=f"sqlqueue {self.application}",
            timeout=options.query_timeout,
            state=options.state_schema,
        )
        self._reached = True
        if self._state:
            check_state(connection, options.state_schema)
        return connection

    def close(self) -> None:
        """End the session; what was not committed is undone."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_state(connection: Connection, schema: str) -> None:
    """
    Make sure that the state tables are there and of our version.

    Raises:
        StateNotInstalled, StateTooNew.
    """
    row = connection.rows("version")
    if not row or row[0][0] < VERSION:
        raise StateNotInstalled(schema, connection.server)
    if row[0][0] > VERSION:
        raise StateTooNew(schema, row[0][0], VERSION)
