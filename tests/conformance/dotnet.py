"""
The other side of a test: what a .NET endpoint does to queues, one call for each thing.

Its statements are the transport's own, see transport.py. Beside them stands what a test asks of the
server about sessions. SQL Server's endpoint is in sqlserver.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import psycopg
from psycopg import sql

from . import dba, transport
from .transport import Delayed, Stored
from .transport import Row as Received

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from conftest import Place

    from sqlq_spark.wire.address import QueueAddress

    from .dba import DBA

__all__ = ["Delayed", "DotNet", "PostgreSQL", "Received", "Stored"]

Row = tuple[Any, ...]


@dataclass(frozen=True)
class DotNet(ABC):
    """An endpoint and its DBA, on one database."""

    url: str
    schema: str  # of the queues
    state: str  # schema of the state tables
    connection: Any  # commits each statement, unless a transaction was begun

    dialect: ClassVar[str]

    @property
    @abstractmethod
    def dba(self) -> DBA:
        """Who has all rights."""

    @property
    def transport(self) -> transport.Database:
        """The statements that it runs."""
        return transport.of(self.dialect, self.url, self.schema)

    # ------------------------------------------------------------ sessions

    def consumer(self, zone: str | None = None) -> Self:
        """Another session of the same endpoint, for a thread, or in a time zone of its own."""
        return replace(self, connection=self.transport.connect(zone))

    @contextmanager
    def apart(self, *, commit: bool = False) -> Iterator[Self]:
        """Give another session, with a transaction open as long as the block lasts."""
        other = self.consumer()
        try:
            other.execute("BEGIN TRANSACTION")
            yield other
            other.execute("COMMIT" if commit else "ROLLBACK")
        finally:
            other.connection.close()

    @abstractmethod
    def execute(self, text: str, *values: object) -> list[Row]:
        """Run a statement with the driver's own marks for values; returns its rows."""

    # ------------------------------------------------------------ tables

    def create(self, queue: QueueAddress) -> None:
        """Create a queue's table as the transport's installer does."""
        self.transport.create(self.connection, queue)

    def create_subscriptions(self, table: QueueAddress) -> None:
        """Create the table of subscriptions as the transport's installer does."""
        self.transport.create_subscriptions(self.connection, table)

    @contextmanager
    def creating_subscriptions(self, table: QueueAddress) -> Iterator[None]:
        """Create the table of subscriptions, and commit only at the end of the block."""
        with self.apart(commit=True) as other:
            other.create_subscriptions(table)
            yield

    def catalog(self, table: QueueAddress) -> list[Row]:
        """What the database says of a table's columns, indexes and storage."""
        return self.transport.shape(self.connection, table)

    # ------------------------------------------------------------ messages

    def send(
        self,
        queue: QueueAddress,
        headers: str | None = "{}",
        body: bytes | None = b"{}",
        *,
        lives: int | None = None,
        row: uuid.UUID | None = None,
    ) -> uuid.UUID:
        """Insert one message; `lives` in ms until it expires by the database's clock."""
        return self.transport.send(self.connection, queue, headers, body, row=row, lives=lives)

    def send_many(
        self, queue: QueueAddress, bodies: Sequence[bytes], *, lives: int | None = None
    ) -> None:
        """Insert messages of equal headers, in one transaction."""
        with self.connection.transaction():
            for body in bodies:
                self.send(queue, body=body, lives=lives)

    def receive(self, queue: QueueAddress) -> Received | None:
        """Delete the lowest message that no one holds, in a transaction of its own."""
        return self.transport.receive(self.connection, queue)

    def rows(self, queue: QueueAddress) -> list[Stored]:
        """All rows that are committed, by seq."""
        return self.transport.rows(self.connection, queue)

    @contextmanager
    def hold(self, queue: QueueAddress, seqs: Sequence[int]) -> Iterator[None]:
        """Lock rows in a transaction as long as the block lasts; rolled back after."""
        with self._holding("hold", queue, seqs=list(seqs)):
            yield

    @contextmanager
    def hold_delayed(self, table: QueueAddress, bodies: list[bytes]) -> Iterator[None]:
        """Lock delayed messages, as another mover does, as long as the block lasts."""
        with self._holding("hold_delayed", table, bodies=bodies):
            yield

    @contextmanager
    def locked(self, queue: QueueAddress) -> Iterator[None]:
        """Lock the whole table against everyone, as long as the block lasts."""
        with self._holding("lock", queue):
            yield

    @contextmanager
    def _holding(self, text: str, table: QueueAddress, **values: Any) -> Iterator[None]:
        with self.apart() as other:
            self.transport.ask(other.connection, self.transport.texts[text], table, **values)
            yield

    @contextmanager
    def holding(self, queue: QueueAddress, messages: int) -> Iterator[None]:
        """Insert messages and commit them only at the end of the block: low seqs that come late."""
        with self.apart(commit=True) as other:
            for _ in range(messages):
                other.send(queue, body=b"late")
            yield

    # ------------------------------------------------------------ delayed messages

    def create_delayed(self, table: QueueAddress) -> None:
        """Create a table of delayed messages as the transport's installer does."""
        self.transport.create_delayed(self.connection, table)

    def store(
        self,
        table: QueueAddress,
        headers: str = "{}",
        body: bytes | None = b"{}",
        *,
        delay: float,
        row: uuid.UUID | None = None,
    ) -> None:
        """Delay a message by some seconds."""
        milliseconds = int(delay * 1000)
        self.transport.store(self.connection, table, headers, body, milliseconds, row=row)

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move what is due, in a transaction of its own; returns how many messages."""
        return self.transport.move(self.connection, table, queue, most)

    def delayed_rows(self, table: QueueAddress) -> list[Delayed]:
        """What waits, by due time."""
        return self.transport.delayed_rows(self.connection, table)

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, table: QueueAddress, endpoint: str, topic: str, address: str) -> None:
        """Subscribe an endpoint as its start does."""
        self.transport.subscribe(self.connection, table, endpoint, topic, address)

    def unsubscribe(self, table: QueueAddress, endpoint: str, topic: str) -> None:
        """Take a subscription back."""
        self.transport.unsubscribe(self.connection, table, endpoint, topic)

    def subscribers(self, table: QueueAddress, *topics: str) -> list[str]:
        """The addresses that an endpoint would publish to, in their order."""
        return self.transport.subscribers(self.connection, table, topics)

    # ------------------------------------------------------------ what the server says

    @abstractmethod
    def state_rows(self, table: str, columns: str) -> list[Row]:
        """Columns of a state table, in the order of the columns."""

    @abstractmethod
    def clock(self) -> datetime:
        """The database's UTC clock."""

    @abstractmethod
    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`; returns how many there were."""

    @abstractmethod
    def sessions(self, application: str) -> int:
        """How many sessions have `application` in their name."""

    @abstractmethod
    def waiting_sessions(self, application: str) -> int:
        """How many sessions whose name holds `application` wait for a lock."""

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""
        return self.waiting_sessions(application) > 0


_ACTIVE = "SELECT {} FROM pg_stat_activity WHERE position(%s IN application_name) > 0"


@dataclass(frozen=True)
class PostgreSQL(DotNet):
    """An endpoint of the PostgreSQL transport."""

    connection: psycopg.Connection[Row]
    dialect: ClassVar[str] = "postgresql"

    @property
    def dba(self) -> DBA:
        """As DotNet."""
        return dba.PostgreSQL(self.url, self.state, self.connection)

    @classmethod
    def at(cls, place: Place) -> PostgreSQL:
        """Stand in a test's place."""
        return cls(place.url, place.schema, place.state, place.connection)

    def execute(self, text: str, *values: object) -> list[Row]:
        """As DotNet."""
        cursor = self.connection.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """As DotNet."""
        text = f"SELECT {columns} FROM {{}} ORDER BY {columns}"
        name = sql.Identifier(self.state, table)
        return self.connection.execute(sql.SQL(text).format(name)).fetchall()

    def clock(self) -> datetime:
        """As DotNet."""
        moment: datetime = self.execute("SELECT clock_timestamp() AT TIME ZONE 'UTC'")[0][0]
        return moment

    def kill(self, application: str) -> int:
        """As DotNet; waits until they are gone."""
        # with a timeout of its own it polls every 100 ms
        killed = self.execute(_ACTIVE.format("pg_terminate_backend(pid)"), application)
        while self.sessions(application):
            time.sleep(0.001)
        return len(killed)

    def sessions(self, application: str) -> int:
        """As DotNet."""
        return int(self.execute(_ACTIVE.format("count(*)"), application)[0][0])

    def waiting_sessions(self, application: str) -> int:
        """As DotNet."""
        text = _ACTIVE.format("count(*)") + " AND wait_event_type = 'Lock'"
        return int(self.execute(text, application)[0][0])
