"""
Sessions with the database: opened where Spark calls us, and reopened where that is safe.

The function that `Session.do` runs must consist of whole transactions that may run twice.
Receiving, acknowledging, staging and dispatching may, because each checks what was done before.

A worker's session that ends well leaves its connection to the next session of the process, for IDLE
seconds. Connecting takes 35 ms and more, the task of a small batch 10.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from sqlq_spark import database
from sqlq_spark.database.credentials import log_in
from sqlq_spark.database.schema import check_state
from sqlq_spark.errors import (
    ConnectionLost,
    CredentialsFailed,
    DatabaseNotFound,
    Deadlock,
    DestinationChanged,
    LockTimedOut,
    LoginRefused,
    LoginUnclear,
    NotReachable,
    ReceiptExists,
    ServerShort,
    SqlQueueError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

ATTEMPTS = 7
LONGEST_PAUSE = 5.0  # seconds; all pauses together are about 10
TRANSIENT = (
    *(ConnectionLost, Deadlock, DestinationChanged, LockTimedOut, ReceiptExists, ServerShort),
)
# worth another attempt only once the url led to a database: during a failover the server, or a
# database that recovers there, may be absent
ABSENT = (DatabaseNotFound, LoginUnclear, NotReachable)
# worth another attempt with the option `credentials`, which then gives another password
EXPIRED = (CredentialsFailed, LoginRefused)
IDLE = 20.0  # seconds after which a connection that no session takes is closed


class Target(Protocol):
    """What a session needs of the options of a read or a write."""

    @property
    def url(self) -> str:
        """It may hold a password."""

    @property
    def credentials(self) -> str | None:
        """What gives a password at each connect; None: the url has one, or none is needed."""

    @property
    def state_schema(self) -> str:
        """The schema of the state tables."""

    @property
    def query_timeout(self) -> float:
        """Seconds for each statement and wait."""


class Idle:
    """Connections of sessions that ended, one for each database and login; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[object, tuple[Connection, threading.Timer]] = {}

    def take(self, key: object) -> Connection | None:
        """Remove and return a connection, if there is one."""
        with self._lock:
            connection, timer = self._kept.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return connection

    def keep(self, key: object, connection: Connection, seconds: float) -> None:
        """Keep a connection that has no open transaction; close a second one for the same key."""
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
        Prepare; nothing is connected yet.

        Args:
            options: the url, and how long to wait.
            application: what the DBA sees behind `sqlqueue`.
            state: whether to check, after connecting, that the state tables are there.
            worker: whether to keep the connection for the next session of this process, if the
                `with` block ends well. It must end with no transaction open.
            reached: whether another session reached this url a moment ago. Then a server that is
                not reached, as while a standby takes over, is waited for like one that was lost.
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
        """Sessions with equal keys may share a connection; never beyond a fork."""
        options = self.options
        place = options.url, options.credentials, options.state_schema, options.query_timeout
        return os.getpid(), place, self._state

    def do(self, work: Callable[[Connection], T]) -> T:
        """
        Run `work`, and run it again with growing pauses after a failure that may end soon.

        Such failures are a lost connection, a deadlock, a lock that others hold for too long, a
        receipt of another attempt, a full log, and a server that is short of memory or space. If
        the answer to a commit is lost, `work` must find out whether it was done.

        With the option `credentials` a login that was refused is such a failure too: the password
        may have changed since it was given. So is an error of the service that gives it.

        A server or a database that was never reached is not waited for, because the url is
        probably wrong.
        """
        import stamina  # noqa: PLC0415 - brings asyncio, for which `--help` need not wait

        attempts = stamina.retry_context(
            on=self._worth_another, attempts=ATTEMPTS, timeout=None, wait_max=LONGEST_PAUSE
        )
        try:
            for attempt in attempts:
                with attempt:
                    return self._once(work)
        except SqlQueueError as error:
            # Spark prints every frame of the traceback, 25 of them the retries'
            raise error.with_traceback(None) from None
        raise AssertionError  # pragma: no cover - stamina raises the last error itself

    def _worth_another(self, error: Exception) -> bool:
        if self.options.credentials is not None and isinstance(error, EXPIRED):
            return True
        return isinstance(error, TRANSIENT) or (self._reached and isinstance(error, ABSENT))

    def _once(self, work: Callable[[Connection], T]) -> T:
        try:
            return work(self.open())
        except ConnectionLost as error:
            log.warning("%s; connecting again", error)
            self.close()
            raise

    def open(self) -> Connection:
        """Return the connection; open it if there is none."""
        if self._connection is None:
            kept = idle.take(self._key) if self._worker else None
            self._connection = kept or self._connect()
            self._connection.application = f"sqlqueue {self.application}"
            self._reached = True
        return self._connection

    def _connect(self) -> Connection:
        options = self.options
        connection = database.of(options.url).connect(
            log_in(options.url, options.credentials),
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
