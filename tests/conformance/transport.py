"""
The transport's own statements, as .NET endpoints run them, one row in one transaction.

Written from WIRE.md and the transports' design pages, not from the package's SQL, and run by
psycopg, so that a mistake of ours is not made twice. What an endpoint does with them is in
endpoint.py; SQL Server's, of the same methods, are in transport_sqlserver.py.
"""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from psycopg import errors, sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

Connection = psycopg.Connection[tuple[Any, ...]]

MOVED = 100  # delayed messages in one transaction of the mover
PURGED = 10_000  # expired messages in one statement of the purger


class Busy(Exception):
    """Someone else has locked what is asked for."""


class Session(Protocol):
    """A connection with the database."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit what the block did, or undo it."""

    def close(self) -> None:
        """End it."""


class Database(Protocol):
    """The statements of one transport; what a connection is, is its own."""

    def connect(self) -> Any:
        """Open a session; its transactions are begun and committed by whoever uses it."""

    def impatient(self, seconds: float) -> Database:
        """The same, with sessions that wait for no lock so long."""

    def address(self, table: str) -> str:
        """The canonical address of one of our tables."""

    def create(self, connection: Any, address: str) -> None:
        """Make a queue, unless it is there or is being made."""

    def create_delayed(self, connection: Any, address: str) -> None:
        """Make the table of delayed messages."""

    def create_subscriptions(self, connection: Any, address: str) -> None:
        """Make the subscription table."""

    def shape(self, connection: Any, address: str) -> list[tuple[Any, ...]]:
        """What a DBA sees of a table: its columns, then its indexes."""

    def send(
        self,
        connection: Any,
        address: str,
        headers: str | None,
        body: bytes | None,
        *,
        row: uuid.UUID | None = None,
        lives: int | None = None,
    ) -> None:
        """Insert a message; `lives` in ms. A LookupError where there is no such queue."""

    def receive(self, connection: Any, address: str) -> Row | None:
        """Delete the lowest message that no one else holds."""

    def peek(self, connection: Any, address: str) -> int:
        """How many messages there may be."""

    def purge(self, connection: Any, address: str) -> int:
        """Delete everything. Busy where someone holds a message for too long."""

    def purge_expired(self, connection: Any, address: str) -> int:
        """Delete a batch of expired messages that no one holds."""

    def store(self, connection: Any, address: str, headers: str, body: bytes, delay: int) -> None:
        """Keep a message for `delay` ms."""

    def move(self, connection: Any, address: str, queue: str) -> float | None:
        """Move a batch of due messages into a queue; the seconds until the next is due."""

    def subscribe(
        self, connection: Any, address: str, endpoint: str, topic: str, queue: str
    ) -> None:
        """Enter a subscription, or correct its queue."""

    def unsubscribe(self, connection: Any, address: str, endpoint: str, topic: str) -> None:
        """Drop a subscription."""

    def subscribers(self, connection: Any, address: str, topics: list[str]) -> list[str]:
        """The queues subscribed to any of these topics, each once."""


def of(dialect: str, url: str, schema: str) -> Database:
    """The transport of a database."""
    if dialect == "sqlserver":
        from .transport_sqlserver import SQLServer  # noqa: PLC0415 - it is made of parts of ours

        return SQLServer(url, schema)
    return PostgreSQL(url, schema)


class Row(NamedTuple):
    """What the receive statement returns."""

    id: uuid.UUID
    expired: bool
    headers: str | None
    body: bytes | None


@dataclass(frozen=True)
class PostgreSQL:
    """The PostgreSQL transport's statements, each on a connection whose transaction is open."""

    url: str
    schema: str
    patience: float = 60.0  # seconds to wait for a lock; a transport waits for none

    def connect(self) -> Connection:
        """Open a session; its transactions are begun and committed by whoever uses it."""
        settings = f"-c lock_timeout={int(self.patience * 1000)}"
        return psycopg.connect(self.url, autocommit=True, options=settings)

    def impatient(self, seconds: float) -> PostgreSQL:
        """The same, with sessions that wait for no lock so long."""
        return replace(self, patience=seconds)

    def address(self, table: str) -> str:
        """The canonical address of one of our tables."""
        return ".".join('"' + name.replace('"', '""') + '"' for name in (self.schema, table))

    def _on(self, text: str, *addresses: str) -> sql.Composed:
        tables = [sql.Identifier(*names(address)) for address in addresses]
        return sql.SQL(text).format(*tables)

    def create(self, connection: Connection, address: str) -> None:
        """Make a queue, unless it is there or is being made."""
        text = """
        CREATE TABLE IF NOT EXISTS {} (
            Id uuid NOT NULL PRIMARY KEY, Expires timestamp, Headers text NOT NULL, Body bytea,
            Seq serial NOT NULL UNIQUE)
        """
        with tolerant(connection):
            connection.execute(self._on(text, address))

    def create_delayed(self, connection: Connection, address: str) -> None:
        """Make the table of delayed messages."""
        text = """
        CREATE TABLE IF NOT EXISTS {} (
            Id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY, Headers text NOT NULL,
            Body bytea, Due timestamptz NOT NULL) WITH (fillfactor = 100)
        """
        index = sql.Identifier(names(address)[-1] + "_Due")
        with tolerant(connection):
            connection.execute(self._on(text, address))
            on = sql.SQL(" ON {} (Due)").format(sql.Identifier(*names(address)))
            connection.execute(sql.SQL("CREATE INDEX IF NOT EXISTS {}").format(index) + on)

    def create_subscriptions(self, connection: Connection, address: str) -> None:
        """Make the subscription table."""
        text = """
        CREATE TABLE IF NOT EXISTS {} (
            QueueAddress varchar(200) NOT NULL, Endpoint varchar(200) NOT NULL,
            Topic varchar(200) NOT NULL, PRIMARY KEY (Endpoint, Topic)) WITH (fillfactor = 100)
        """
        with tolerant(connection):
            connection.execute(self._on(text, address))

    def shape(self, connection: Connection, address: str) -> list[tuple[Any, ...]]:
        """What a DBA sees of a table: its columns, then its indexes."""
        columns = """
        SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef
          FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum
        """
        indexes = """
        SELECT indisprimary, indisunique, pg_get_indexdef(indexrelid, 1, true)
          FROM pg_index WHERE indrelid = %s::regclass ORDER BY indexrelid
        """
        parts = [connection.execute(text.encode(), (address,)) for text in (columns, indexes)]
        return [row for part in parts for row in part.fetchall()]

    def send(
        self,
        connection: Connection,
        address: str,
        headers: str | None,
        body: bytes | None,
        *,
        row: uuid.UUID | None = None,
        lives: int | None = None,
    ) -> None:
        """
        Insert a message, by default under a fresh id; `lives` in ms, by the database's clock.

        Raises:
            LookupError: there is no such queue.
        """
        text = """
        INSERT INTO {} (Id, Expires, Headers, Body)
        VALUES (%s, now() AT TIME ZONE 'UTC' + %s::int * interval '1 ms', %s, %s)
        """
        try:
            connection.execute(self._on(text, address), (row or uuid.uuid4(), lives, headers, body))
        except errors.UndefinedTable as error:
            raise LookupError(address) from error

    def receive(self, connection: Connection, address: str) -> Row | None:
        """Delete the lowest message that no one else holds."""
        text = """
        DELETE FROM {} AS q
         WHERE q.Id = (SELECT Id FROM {} ORDER BY Seq LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING q.Id, coalesce(q.Expires <= now() AT TIME ZONE 'UTC', false), q.Headers, q.Body
        """
        found = connection.execute(self._on(text, address, address)).fetchone()
        return None if found is None else Row(*found)

    def peek(self, connection: Connection, address: str) -> int:
        """How many messages there may be; locks the first and the last, and takes gaps along."""
        text = """
        SELECT coalesce((SELECT Seq FROM {} ORDER BY Seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
                      - (SELECT Seq FROM {} ORDER BY Seq ASC LIMIT 1 FOR UPDATE SKIP LOCKED) + 1, 0)
        """
        (found,) = connection.execute(self._on(text, address, address)).fetchone() or (0,)
        return int(found)

    def purge(self, connection: Connection, address: str) -> int:
        """Delete everything; waits for whoever holds a message."""
        try:
            return connection.execute(self._on("DELETE FROM {}", address)).rowcount
        except errors.LockNotAvailable as error:
            raise Busy from error

    def purge_expired(self, connection: Connection, address: str) -> int:
        """Delete a batch of expired messages that no one holds."""
        text = """
        DELETE FROM {}
         WHERE Seq IN (SELECT Seq FROM {} WHERE Expires < now() AT TIME ZONE 'UTC'
                        LIMIT %s FOR UPDATE SKIP LOCKED)
        """
        return connection.execute(self._on(text, address, address), (PURGED,)).rowcount

    def store(
        self, connection: Connection, address: str, headers: str, body: bytes, delay: int
    ) -> None:
        """
        Keep a message for `delay` ms.

        Due is the UTC wall clock read as one of the session's zone, as the transport has it.
        """
        text = """
        INSERT INTO {} (Headers, Body, Due)
        VALUES (%s, %s, (now() AT TIME ZONE 'UTC')::timestamptz + %s::bigint * interval '1 ms')
        """
        connection.execute(self._on(text, address), (headers, body, delay))

    def move(self, connection: Connection, address: str, queue: str) -> float | None:
        """Move a batch of due messages into a queue; the seconds until the next is due."""
        text = """
        WITH due AS (
            DELETE FROM {}
             WHERE Id IN (SELECT Id FROM {} WHERE Due < now() AT TIME ZONE 'UTC' LIMIT %s)
            RETURNING Id, Headers, Body)
        INSERT INTO {} (Id, Expires, Headers, Body) SELECT Id, NULL, Headers, Body FROM due
        """
        connection.execute(self._on(text, address, address, queue), (MOVED,))
        text = """
        SELECT extract(epoch FROM Due - (now() AT TIME ZONE 'UTC')::timestamptz)::float8
          FROM {} ORDER BY Due LIMIT 1 FOR UPDATE SKIP LOCKED
        """
        found = connection.execute(self._on(text, address)).fetchone()
        return None if found is None else max(0.0, found[0])

    def subscribe(
        self, connection: Connection, address: str, endpoint: str, topic: str, queue: str
    ) -> None:
        """Enter a subscription, or correct its queue."""
        text = """
        INSERT INTO {} (QueueAddress, Topic, Endpoint) VALUES (%s, %s, %s)
            ON CONFLICT (Endpoint, Topic) DO UPDATE SET QueueAddress = excluded.QueueAddress
        """
        connection.execute(self._on(text, address), (queue, topic, endpoint))

    def unsubscribe(self, connection: Connection, address: str, endpoint: str, topic: str) -> None:
        """Drop a subscription."""
        text = "DELETE FROM {} WHERE Endpoint = %s AND Topic = %s"
        connection.execute(self._on(text, address), (endpoint, topic))

    def subscribers(self, connection: Connection, address: str, topics: list[str]) -> list[str]:
        """The queues subscribed to any of these topics, each once."""
        text = "SELECT DISTINCT QueueAddress FROM {} WHERE Topic = ANY (%s)"
        return [queue for (queue,) in connection.execute(self._on(text, address), (topics,))]


def names(address: str) -> tuple[str, str]:
    """
    Schema and table of a canonical address.

    Raises:
        ValueError: another form.
    """
    part = '"((?:[^"]|"")+)"'
    found = re.fullmatch(rf"{part}\.{part}", address)
    if found is None:
        raise ValueError(address)
    schema, table = (name.replace('""', '"') for name in found.groups())
    return schema, table


@contextmanager
def tolerant(connection: Connection) -> Iterator[None]:
    """Make tables in a transaction; that another one makes them at this moment is well."""
    try:
        with connection.transaction():
            yield
    except (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
        return
