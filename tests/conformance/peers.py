"""
The other side: what a .NET endpoint does to a queue, in the transport's own one-row statements.

Written from WIRE.md parts 1 to 3 and 5, not from the package's SQL, and run by a driver of their
own, so that a mistake of ours is not made twice.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from psycopg import sql

from . import dba

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from conftest import Place

    from sqlq_spark.address import QueueAddress

    from .dba import DBA

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
    def dialect(self) -> str:
        """The name of the database's kind."""

    @property
    def dba(self) -> DBA:
        """Who has all rights."""

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

    def create_subscriptions(self, table: QueueAddress) -> None:
        """Create the table of subscriptions as the transport's installer does."""

    def creating_subscriptions(self, table: QueueAddress) -> Any:
        """Create the table of subscriptions, and commit only at the end of the block."""

    def catalog(self, table: QueueAddress) -> list[Row]:
        """What the database says of a table's columns, key and storage."""

    def subscribe(self, table: QueueAddress, endpoint: str, topic: str, address: str) -> None:
        """Subscribe an endpoint as its start does."""

    def unsubscribe(self, table: QueueAddress, endpoint: str, topic: str) -> None:
        """Take a subscription back."""

    def subscribers(self, table: QueueAddress, *topics: str) -> list[str]:
        """The addresses that a peer would publish to, in their order."""

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

    def clock(self) -> datetime:
        """The database's UTC clock."""

    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`; returns how many there were."""

    def sessions(self, application: str) -> int:
        """How many sessions have `application` in their name."""

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""

    def waiting_sessions(self, application: str) -> int:
        """How many sessions whose name holds `application` wait for a lock."""


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
_CREATE_SUBSCRIPTIONS = """
CREATE TABLE IF NOT EXISTS {queue} (
    QueueAddress varchar(200) NOT NULL, Endpoint varchar(200) NOT NULL,
    Topic varchar(200) NOT NULL, PRIMARY KEY (Endpoint, Topic)) WITH (fillfactor = 100)
"""
_SUBSCRIBE = """
INSERT INTO {queue} (QueueAddress, Topic, Endpoint) VALUES (%(queue)s, %(topic)s, %(endpoint)s)
    ON CONFLICT (Endpoint, Topic) DO UPDATE SET QueueAddress = %(queue)s
"""
_CATALOG = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull, reloptions,
       pg_get_constraintdef(k.oid), (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef AS d
                                      WHERE d.adrelid = attrelid AND d.adnum = attnum)
  FROM pg_attribute AS a
  JOIN pg_class AS c ON c.oid = attrelid
  JOIN pg_constraint AS k ON k.conrelid = c.oid AND contype = 'p'
 WHERE c.oid = %s::regclass AND attnum > 0
 ORDER BY attnum
"""
_ACTIVE = "SELECT {} FROM pg_stat_activity WHERE position(%s IN application_name) > 0"


@dataclass(frozen=True)
class PostgreSQL:
    """A peer of the PostgreSQL transport."""

    url: str
    schema: str
    state: str
    connection: psycopg.Connection[Row]
    dialect: str = "postgresql"

    @property
    def dba(self) -> DBA:
        """Who has all rights."""
        return dba.PostgreSQL(self.url, self.state, self.connection)

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

    def create_subscriptions(self, table: QueueAddress) -> None:
        """Create the table of subscriptions as the transport's installer does."""
        self.connection.execute(self._on(table, _CREATE_SUBSCRIPTIONS), ())

    @contextmanager
    def creating_subscriptions(self, table: QueueAddress) -> Iterator[None]:
        """Create the table of subscriptions, and commit only at the end of the block."""
        with psycopg.connect(self.url) as other:
            other.execute(self._on(table, _CREATE_SUBSCRIPTIONS), ())
            yield
            other.commit()

    def catalog(self, table: QueueAddress) -> list[Row]:
        """What the database says of a table's columns, key and storage."""
        name = self._on(table, "{queue}").as_string(self.connection).replace("%%", "%")
        return self.connection.execute(_CATALOG, [name]).fetchall()

    def subscribe(self, table: QueueAddress, endpoint: str, topic: str, address: str) -> None:
        """Subscribe an endpoint as its start does."""
        row = {"queue": address, "topic": topic, "endpoint": endpoint}
        self.connection.execute(self._on(table, _SUBSCRIBE), row)

    def unsubscribe(self, table: QueueAddress, endpoint: str, topic: str) -> None:
        """Take a subscription back."""
        text = "DELETE FROM {queue} WHERE Endpoint = %s AND Topic = %s"
        self.connection.execute(self._on(table, text), (endpoint, topic))

    def subscribers(self, table: QueueAddress, *topics: str) -> list[str]:
        """The addresses that a peer would publish to, in their order."""
        text = "SELECT DISTINCT QueueAddress FROM {queue} WHERE Topic = ANY (%s) ORDER BY 1"
        return [row[0] for row in self.connection.execute(self._on(table, text), [list(topics)])]

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

    def sessions(self, application: str) -> int:
        """How many sessions have `application` in their name."""
        found = self.connection.execute(
            _ACTIVE.format("count(*)").encode(), [application]
        ).fetchone()
        return 0 if found is None else int(found[0])

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""
        return self.waiting_sessions(application) > 0

    def waiting_sessions(self, application: str) -> int:
        """How many sessions whose name holds `application` wait for a lock."""
        text = _ACTIVE.format("count(*)") + " AND wait_event_type = 'Lock'"
        found = self.connection.execute(text.encode(), [application]).fetchone()
        return 0 if found is None else int(found[0])
