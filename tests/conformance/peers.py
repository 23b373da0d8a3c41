"""
The other side: what a .NET endpoint does to a queue, in the transport's own one-row statements.

Written from WIRE.md parts 1 to 3, not from the package's SQL, and run by a driver of their own, so
that a mistake of ours is not made twice.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from conftest import Place

    from sqlq_spark.address import QueueAddress

Row = tuple[Any, ...]


class Stored(NamedTuple):
    """A row as it lies in a queue's table."""

    id: uuid.UUID
    expires: datetime | None
    headers: str | None
    body: bytes | None
    seq: int


class Received(NamedTuple):
    """What the transport's receive gives its endpoint."""

    id: uuid.UUID
    expired: bool
    headers: str | None
    body: bytes | None


class Peer(Protocol):
    """An endpoint and its DBA, on one database."""

    @property
    def url(self) -> str:
        """Where the database is."""

    @property
    def schema(self) -> str:
        """Of the queues."""

    @property
    def state(self) -> str:
        """Schema of the state tables."""

    def create(self, queue: QueueAddress) -> None:
        """Create a queue's table as the transport's installer does."""

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

    def send_many(
        self, queue: QueueAddress, bodies: Sequence[bytes], *, lives: int | None = None
    ) -> None:
        """Insert messages of equal headers."""

    def receive(self, queue: QueueAddress) -> Received | None:
        """Delete the lowest message that no one holds, in a transaction of its own."""

    def consumer(self) -> Peer:
        """Another session of the same endpoint, for a thread."""

    def rows(self, queue: QueueAddress) -> list[Stored]:
        """All rows that are committed, by seq."""

    def hold(self, queue: QueueAddress, seqs: Sequence[int]) -> Any:
        """Lock rows in a transaction as long as the block lasts; rolled back after."""

    def holding(self, queue: QueueAddress, messages: int) -> Any:
        """Insert messages and commit them only at the end of the block: low seqs that come late."""

    def locked(self, queue: QueueAddress) -> Any:
        """Lock the whole table against everyone, as long as the block lasts."""

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """Columns of a state table, in the order of the columns."""

    def state_run(self, text: str) -> None:
        """Execute a statement of the DBA on the state tables; `{state}` is their schema."""

    def alter(self, queue: QueueAddress, text: str) -> None:
        """Execute a statement of the DBA on a queue; `{queue}` is its table."""

    def clock(self) -> datetime:
        """The database's UTC clock."""

    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`; returns how many there were."""

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""


_CREATE = """
CREATE TABLE IF NOT EXISTS {queue} (
    Id uuid PRIMARY KEY, Expires timestamp, Headers text NOT NULL, Body bytea,
    Seq serial NOT NULL UNIQUE)
"""
_SEND = """
INSERT INTO {queue} (Id, Expires, Headers, Body)
VALUES (%s, (now() AT TIME ZONE 'UTC') + make_interval(secs => %s::float8 / 1000), %s, %s)
"""
_RECEIVE = """
DELETE FROM {queue}
 WHERE Id = (SELECT Id FROM {queue} ORDER BY Seq LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING Id, coalesce(Expires < now() AT TIME ZONE 'UTC', false), Headers, Body
"""
_ACTIVE = "SELECT {} FROM pg_stat_activity WHERE position(%s IN application_name) > 0"


@dataclass(frozen=True)
class PostgreSQL:
    """A peer of the PostgreSQL transport."""

    url: str
    schema: str
    state: str
    connection: psycopg.Connection[Row]

    @classmethod
    def at(cls, place: Place) -> PostgreSQL:
        """Stand in a test's place."""
        return cls(place.url, place.schema, place.state, place.connection)

    def _on(self, queue: QueueAddress, text: str) -> sql.Composed:
        # psycopg reads % in a name as a placeholder: double it, and always pass parameters
        names = [name.replace("%", "%%") for name in (queue.schema or "public", queue.table)]
        return sql.SQL(text).format(queue=sql.Identifier(*names))

    def create(self, queue: QueueAddress) -> None:
        """Create a queue's table as the transport's installer does."""
        self.connection.execute(self._on(queue, _CREATE), ())

    def send(
        self,
        queue: QueueAddress,
        headers: str | None = "{}",
        body: bytes | None = b"{}",
        *,
        lives: int | None = None,
        row: uuid.UUID | None = None,
    ) -> uuid.UUID:
        """Insert one message."""
        row = row or uuid.uuid4()
        self.connection.execute(self._on(queue, _SEND), (row, lives, headers, body))
        return row

    def send_many(
        self, queue: QueueAddress, bodies: Sequence[bytes], *, lives: int | None = None
    ) -> None:
        """Insert messages of equal headers."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(
                self._on(queue, _SEND), [(uuid.uuid4(), lives, "{}", body) for body in bodies]
            )

    def receive(self, queue: QueueAddress) -> Received | None:
        """Delete the lowest message that no one holds, in a transaction of its own."""
        found = self.connection.execute(self._on(queue, _RECEIVE), ()).fetchone()
        return None if found is None else Received(*found)

    def consumer(self) -> PostgreSQL:
        """Another session of the same endpoint, for a thread."""
        connection = psycopg.connect(self.url, autocommit=True)
        return PostgreSQL(self.url, self.schema, self.state, connection)

    def rows(self, queue: QueueAddress) -> list[Stored]:
        """All rows that are committed, by seq."""
        text = "SELECT Id, Expires, Headers, Body, Seq FROM {queue} ORDER BY Seq"
        return [Stored(*row) for row in self.connection.execute(self._on(queue, text), ())]

    @contextmanager
    def hold(self, queue: QueueAddress, seqs: Sequence[int]) -> Iterator[None]:
        """Lock rows in a transaction as long as the block lasts; rolled back after."""
        text = "SELECT FROM {queue} WHERE Seq = ANY (%s) FOR UPDATE"
        with psycopg.connect(self.url) as other:
            other.execute(self._on(queue, text), [list(seqs)])
            yield
            other.rollback()

    @contextmanager
    def holding(self, queue: QueueAddress, messages: int) -> Iterator[None]:
        """Insert messages and commit them only at the end of the block."""
        with psycopg.connect(self.url) as other:
            for _ in range(messages):
                other.execute(self._on(queue, _SEND), (uuid.uuid4(), None, "{}", b"late"))
            yield
            other.commit()

    @contextmanager
    def locked(self, queue: QueueAddress) -> Iterator[None]:
        """Lock the whole table against everyone, as long as the block lasts."""
        with psycopg.connect(self.url) as other:
            other.execute(self._on(queue, "LOCK TABLE {queue} IN ACCESS EXCLUSIVE MODE"), ())
            yield
            other.rollback()

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """Columns of a state table, in their order."""
        text = f"SELECT {columns} FROM {{}} ORDER BY {columns}"
        name = sql.Identifier(self.state, table)
        return self.connection.execute(sql.SQL(text).format(name)).fetchall()

    def state_run(self, text: str) -> None:
        """Execute a statement of the DBA on the state tables."""
        named = sql.SQL(text).format(state=sql.Identifier(self.state))
        self.connection.execute(named)

    def alter(self, queue: QueueAddress, text: str) -> None:
        """Execute a statement of the DBA on a queue."""
        self.connection.execute(self._on(queue, text), ())

    def clock(self) -> datetime:
        """The database's UTC clock."""
        found = self.connection.execute("SELECT clock_timestamp() AT TIME ZONE 'UTC'").fetchone()
        assert found is not None
        moment: datetime = found[0]
        return moment

    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`, and wait until they are gone."""
        # with a timeout of its own it polls every 100 ms
        killed = self.connection.execute(
            _ACTIVE.format("pg_terminate_backend(pid)").encode(), [application]
        ).rowcount
        while self.connection.execute(_ACTIVE.format("1").encode(), [application]).rowcount:
            time.sleep(0.001)
        return killed

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""
        text = _ACTIVE.format("count(*)") + " AND wait_event_type = 'Lock'"
        found = self.connection.execute(text.encode(), [application]).fetchone()
        return found is not None and found[0] > 0
