"""
A .NET endpoint's delayed delivery: what its sender stores and what its satellite moves.

Written from WIRE.md parts 1 and 4, in the statements' own arithmetic: on PostgreSQL a due time is
the server's UTC clock, taken for a time of the session's zone. So each satellite works in a zone.
On SQL Server it is UTC for everyone, and a moved message gets a new id.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from psycopg import sql

from . import sqlserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.address import QueueAddress

    from .peers import Peer


class Delayed(NamedTuple):
    """A row as it waits."""

    id: uuid.UUID | None  # None where the table has none
    headers: str
    body: bytes | None
    due: datetime  # aware


class Satellite(Protocol):
    """An endpoint's session with a table of delayed messages."""

    @property
    def keeps_ids(self) -> bool:
        """Whether a moved message has the id that it was stored under."""

    def kept(self, due: datetime) -> datetime:
        """A time in UTC as the column holds it."""

    def create(self, table: QueueAddress) -> None:
        """Create the table as the transport's installer does."""

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

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move what is due, in a transaction of its own; returns how many messages."""

    def rows(self, table: QueueAddress) -> list[Delayed]:
        """What waits, by due time."""

    def holding(self, table: QueueAddress, bodies: list[bytes]) -> Any:
        """Lock rows, as another mover does, as long as the block lasts."""


_CREATE = """
CREATE TABLE IF NOT EXISTS {0} (
    Id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY, Headers text NOT NULL, Body bytea,
    Due timestamptz NOT NULL) WITH (fillfactor = 100)
"""
_STORE = """
INSERT INTO {0} (Id, Headers, Body, Due)
VALUES (%s, %s, %s, timestamptz(now() AT TIME ZONE 'UTC') + make_interval(secs => %s))
"""
_MOVE = """
WITH message AS (
    DELETE FROM {0}
     WHERE Id IN (SELECT Id FROM {0} WHERE Due < now() AT TIME ZONE 'UTC' LIMIT %s)
    RETURNING Id, Headers, Body)
INSERT INTO {1} (Id, Expires, Headers, Body) SELECT Id, NULL, Headers, Body FROM message
"""


@dataclass(frozen=True)
class PostgreSQL:
    """A satellite of the PostgreSQL transport."""

    connection: psycopg.Connection[tuple[Any, ...]]
    keeps_ids: bool = True

    def kept(self, due: datetime) -> datetime:
        """As Satellite: in microseconds."""
        return due

    def _on(self, text: str, *tables: QueueAddress) -> sql.Composed:
        # psycopg reads % in a name as a placeholder: double it, and always pass parameters
        names = [
            sql.Identifier(
                (each.schema or "public").replace("%", "%%"), each.table.replace("%", "%%")
            )
            for each in tables
        ]
        return sql.SQL(text).format(*names)

    def create(self, table: QueueAddress) -> None:
        """Create the table as the transport's installer does."""
        self.connection.execute(self._on(_CREATE, table), ())

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
        values = (row or uuid.uuid4(), headers, body, delay)
        self.connection.execute(self._on(_STORE, table), values)

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move what is due, in a transaction of its own; returns how many messages."""
        return self.connection.execute(self._on(_MOVE, table, queue), (most,)).rowcount

    def rows(self, table: QueueAddress) -> list[Delayed]:
        """What waits, by due time."""
        text = "SELECT Id, Headers, Body, Due FROM {0} ORDER BY Due"
        return [Delayed(*row) for row in self.connection.execute(self._on(text, table), ())]

    @contextmanager
    def holding(self, table: QueueAddress, bodies: list[bytes]) -> Iterator[None]:
        """Lock rows, as another mover does, as long as the block lasts."""
        text = "SELECT FROM {0} WHERE Body = ANY (%s) FOR UPDATE"
        with self.connection.transaction():
            self.connection.execute(self._on(text, table), (bodies,))
            yield


_CREATE_T_SQL = """
IF OBJECT_ID(N'{text}', N'U') IS NULL
BEGIN
    CREATE TABLE {queue} (
        Headers nvarchar(max) NOT NULL, Body varbinary(max), Due datetime NOT NULL,
        RowVersion bigint IDENTITY(1,1) NOT NULL);
    CREATE NONCLUSTERED INDEX Index_Due ON {queue} (Due);
END
"""
_STORE_T_SQL = """
INSERT INTO {queue} (Headers, Body, Due)
VALUES (CAST(? AS nvarchar(max)), {body}, DATEADD(ms, {delay}, GETUTCDATE()))
"""
_MOVE_T_SQL = """
WITH message AS (
    SELECT TOP({most}) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK)
     WHERE Due < GETUTCDATE() ORDER BY Due)
DELETE FROM message
OUTPUT NEWID(), NULL, NULL, 1, NULL, deleted.Headers, deleted.Body
  INTO {to} (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body);
SELECT @@ROWCOUNT
"""
_HOLD_T_SQL = "DELETE FROM {queue} WHERE Body IN ({bodies})"
_EPOCH = datetime(1900, 1, 1)  # noqa: DTZ001 - of the type datetime, in no zone


@dataclass(frozen=True)
class SQLServer:
    """A satellite of the SQL Server transport."""

    peer: sqlserver.SQLServer
    keeps_ids: bool = False

    def kept(self, due: datetime) -> datetime:
        """As Satellite: in 1/300 s, which are shown in whole milliseconds."""
        ticks = round((due - _EPOCH) / timedelta(seconds=1) * 300)
        seconds, rest = divmod(ticks, 300)
        return _EPOCH + timedelta(seconds=seconds, milliseconds=round(rest * 10 / 3))

    def create(self, table: QueueAddress) -> None:
        """Create the table as the transport's installer does."""
        self.peer.on(table, _CREATE_T_SQL)

    def store(
        self,
        table: QueueAddress,
        headers: str = "{}",
        body: bytes | None = b"{}",
        *,
        delay: float,
        row: uuid.UUID | None = None,
    ) -> None:
        """Delay a message by some seconds; there is no id to store it under."""
        del row
        mark = "NULL" if body is None else "CAST(? AS varbinary(max))"
        values = [headers] if body is None else [headers, body]
        self.peer.on(table, _STORE_T_SQL, *values, body=mark, delay=str(int(delay * 1000)))

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move what is due, in a transaction of its own; returns how many messages."""
        to = self.peer.dba.quoted(queue)
        return int(self.peer.on(table, _MOVE_T_SQL, most=str(most), to=to)[0][0])

    def rows(self, table: QueueAddress) -> list[Delayed]:
        """What waits, by due time."""
        found = self.peer.on(table, "SELECT Headers, Body, Due FROM {queue} ORDER BY Due")
        return [
            Delayed(None, headers, body, due.replace(tzinfo=UTC)) for headers, body, due in found
        ]

    @contextmanager
    def holding(self, table: QueueAddress, bodies: list[bytes]) -> Iterator[None]:
        """Lock rows, as another mover does, as long as the block lasts."""
        with self.peer.transaction() as other:
            literals = ", ".join(f"0x{body.hex()}" for body in bodies)
            other.on(table, _HOLD_T_SQL, bodies=literals)
            yield


@contextmanager
def at(peer: Peer, zone: str | None = None) -> Iterator[Satellite]:
    """Give a satellite of a peer's endpoint; on PostgreSQL it may work in a zone of its own."""
    with ExitStack() as stack:
        if isinstance(peer, sqlserver.SQLServer):
            other = peer.consumer()
            stack.enter_context(closing(other.connection))
            yield SQLServer(other)
            return
        options = "" if zone is None else f"-c TimeZone={zone}"
        opened = psycopg.connect(peer.url, autocommit=True, options=options)
        yield PostgreSQL(stack.enter_context(closing(opened)))
