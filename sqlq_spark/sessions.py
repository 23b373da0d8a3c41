"""
Sessions with the database: opened where Spark calls us, and opened again where that is safe.

What is passed to `Session.do` must be a whole transaction, or several, that may be done twice:
receiving, acknowledging, staging and dispatching are, because each finds out what it did before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self, TypeVar

import stamina

from sqlq_spark import dialects
from sqlq_spark.errors import ConnectionLost, Deadlock, NotReachable, StateNotInstalled, StateTooNew
from sqlq_spark.install import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.dialects import Connection
    from sqlq_spark.options import DatabaseOptions

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

ATTEMPTS = 7
LONGEST_PAUSE = 5.0  # seconds; all pauses together are about 10


class Session:
    """A connection that is opened when it is first needed, and again when it broke."""

    def __init__(self, options: DatabaseOptions, application: str, *, state: bool = True) -> None:
        """
        Begin; nothing is connected yet.

        Args:
            options: where to, and how long to wait.
            application: what the DBA sees behind `sqlqueue`.
            state: make sure, after connecting, that the state tables are there.
        """
        self.options = options
        self.application = application
        self._state = state
        self._connection: Connection | None = None
        self._reached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, work: Callable[[Connection], T]) -> T:
        """
        Do `work`, and again with growing pauses if the connection breaks or a deadlock ends it.

        A server that was never reached is not waited for: that is more likely a wrong url.
        """
        attempts = stamina.retry_context(
            on=self._worth_another, attempts=ATTEMPTS, timeout=None, wait_max=LONGEST_PAUSE
        )
        for attempt in attempts:
            with attempt:
                return self._once(work)
        raise AssertionError  # pragma: no cover - stamina raises the last error itself

    def _worth_another(self, error: Exception) -> bool:
        return isinstance(error, (ConnectionLost, Deadlock)) or (
            self._reached and isinstance(error, NotReachable)
        )

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
            options = self.options
            connection = dialects.of(options.url).connect(
                options.url,
                application=f"sqlqueue {self.application}",
                timeout=options.query_timeout,
                state=options.state_schema,
            )
            self._reached = True
            if self._state:
                check_state(connection, options.state_schema)
            self._connection = connection
        return self._connection

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
