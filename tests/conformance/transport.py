"""
The transport's own statements, as .NET endpoints run them: one implementation for all suites.

Written from WIRE.md and the transports' design pages, not from the package's SQL, and run by other
sessions than the package's, so that a mistake of ours is not made twice. `Database` says what can
be done to a queue; each transport adds its texts and how a session runs them. PostgreSQL's are
here, SQL Server's in transport_sqlserver.py. What an endpoint does with them is in endpoint.py.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import psycopg
from psycopg import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from sqlq_spark.wire.address import QueueAddress

    Table = QueueAddress | str  # a text is a canonical address

Connection = psycopg.Connection[tuple[Any, ...]]

MOVED = 100  # delayed messages in one transaction of the mover
PURGED = 10_000  # expired messages in one statement of the purger


class Busy(Exception):
    """Another session has locked what is asked for."""


class Session(Protocol):
    """A connection with the database; it commits each statement outside of a transaction."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Commit what the block did, or undo it."""

    def close(self) -> None:
        """End it."""


class Row(NamedTuple):
    """What the receive statement returns."""

    id: uuid.UUID
    expired: bool
    headers: str | None
    body: bytes | None


class Stored(NamedTuple):
    """A row as it is stored in a queue's table."""

    id: uuid.UUID
    expires: datetime | None
    headers: str | None
    body: bytes | None
    seq: int


class Delayed(NamedTuple):
    """A row as it is stored in a table of delayed messages."""

    id: uuid.UUID | None  # None where the table has none
    headers: str
    body: bytes | None
    due: datetime  # aware


@dataclass(frozen=True)
class Database(ABC):
    """The statements of one transport, each on a session that the caller opened."""

    url: str
    schema: str
    patience: float = 60.0  # seconds to wait for a lock; a transport waits for none

    texts: ClassVar[Mapping[str, str]]  # {queue}, {to}: tables

    @abstractmethod
    def connect(self, zone: str | None = None) -> Any:
        """Open a session, which may work in a time zone of its own where that is possible."""

    @abstractmethod
    def address(self, table: str) -> str:
        """The canonical address of a table in our schema."""

    @abstractmethod
    def ask(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> list[tuple[Any, ...]]:
        """
        Run a text on a table; returns its rows, if it has any.

        Raises:
            LookupError: there is no such table.
            Busy: another session holds what is asked for.
        """

    @abstractmethod
    def count(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> int:
        """Run a text as `ask` does; returns how many rows it changed."""

    @abstractmethod
    def install(self, session: Any, kind: str, table: Table) -> None:
        """Make a table, unless it is there or is being made."""

    def impatient(self, seconds: float) -> Self:
        """The same, with sessions that wait for no lock longer than this."""
        return replace(self, patience=seconds)

    # ------------------------------------------------------------ tables

    def create(self, session: Any, table: Table) -> None:
        """Make a queue."""
        self.install(session, "create", table)

    def create_delayed(self, session: Any, table: Table) -> None:
        """Make the table of delayed messages."""
        self.install(session, "create_delayed", table)

    def create_subscriptions(self, session: Any, table: Table) -> None:
        """Make the subscription table."""
        self.install(session, "create_subscriptions", table)

    def shape(self, session: Any, table: Table) -> list[tuple[Any, ...]]:
        """What a DBA sees of a table: its columns, then its indexes."""
        parts = (self.ask(session, self.texts[each], table) for each in ("columns", "indexes"))
        return [row for part in parts for row in part]

    # ------------------------------------------------------------ messages

    def send(
        self,
        session: Any,
        table: Table,
        headers: str | None,
        body: bytes | None,
        *,
        row: uuid.UUID | None = None,
        lives: int | None = None,
    ) -> uuid.UUID:
        """Insert a message, by default under a new id; `lives` in ms, by the database's clock."""
        row = row or uuid.uuid4()
        values: dict[str, Any] = {"row": row, "lives": lives, "headers": headers, "body": body}
        self.ask(session, self.texts["send"], table, **values)
        return row

    def receive(self, session: Any, table: Table) -> Row | None:
        """Delete the lowest message that no one else holds."""
        found = self.ask(session, self.texts["receive"], table)
        if not found:
            return None
        row, expired, headers, body = found[0]
        return Row(_uuid(row), bool(expired), headers, body)

    def rows(self, session: Any, table: Table) -> list[Stored]:
        """All rows that are committed, by seq."""
        found = self.ask(session, self.texts["rows"], table)
        return [Stored(_uuid(row), *rest) for row, *rest in found]

    def peek(self, session: Any, table: Table) -> int:
        """How many messages there may be."""
        return int(self.ask(session, self.texts["peek"], table)[0][0])

    def purge(self, session: Any, table: Table) -> int:
        """Delete everything; waits for whoever holds a message."""
        return self.count(session, "DELETE FROM {queue}", table)

    def purge_expired(self, session: Any, table: Table) -> int:
        """Delete a batch of expired messages that no one holds."""
        return self.count(session, self.texts["purge_expired"], table, most=PURGED)

    # ------------------------------------------------------------ delayed messages

    def store(
        self,
        session: Any,
        table: Table,
        headers: str,
        body: bytes | None,
        delay: int,
        *,
        row: uuid.UUID | None = None,
    ) -> None:
        """Keep a message for `delay` ms; `row` is its id, where the table has one."""
        values: dict[str, Any] = {"headers": headers, "body": body, "delay": delay}
        self.ask(session, self.texts["store"], table, row=row or uuid.uuid4(), **values)

    def move(self, session: Any, table: Table, queue: Table, most: int = MOVED) -> int:
        """Move a batch of due messages into a queue; returns how many."""
        return self.count(session, self.texts["move"], table, to=queue, most=most)

    def next_due(self, session: Any, table: Table) -> float | None:
        """The seconds until the next message is due; None where none waits."""
        found = self.ask(session, self.texts["next_due"], table)
        return max(0.0, found[0][0]) if found else None

    def delayed_rows(self, session: Any, table: Table) -> list[Delayed]:
        """What waits, by due time."""
        found = self.ask(session, self.texts["delayed_rows"], table)
        return [
            Delayed(row and _uuid(row), headers, body, _aware(due))
            for row, headers, body, due in found
        ]

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, session: Any, table: Table, endpoint: str, topic: str, queue: str) -> None:
        """Enter a subscription, or correct its queue."""
        values = {"endpoint": endpoint, "topic": topic, "address": queue}
        self.ask(session, self.texts["subscribe"], table, **values)

    def unsubscribe(self, session: Any, table: Table, endpoint: str, topic: str) -> None:
        """Drop a subscription."""
        self.ask(session, self.texts["unsubscribe"], table, endpoint=endpoint, topic=topic)

    def subscribers(self, session: Any, table: Table, topics: Sequence[str]) -> list[str]:
        """The queues subscribed to any of these topics, each once."""
        found = self.ask(session, self.texts["subscribers"], table, topics=list(topics))
        return sorted(queue for (queue,) in found)


def of(dialect: str, url: str, schema: str) -> Database:
    """The transport of a database."""
    if dialect == "sqlserver":
        from .transport_sqlserver import SQLServer  # noqa: PLC0415 - it is made of parts of ours

        return SQLServer(url, schema)
    return PostgreSQL(url, schema)


def _aware(moment: datetime) -> datetime:
    """A time as a driver gives it; without a zone it is in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _uuid(value: uuid.UUID | str) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(value)


# Due is the UTC wall clock, read as a time of the session's zone: so the transport computes it.
_POSTGRESQL = {
    "create": """
        CREATE TABLE IF NOT EXISTS {queue} (
            Id uuid NOT NULL PRIMARY KEY, Expires timestamp, Headers text NOT NULL, Body bytea,
            Seq serial NOT NULL UNIQUE)""",
    "create_delayed": """
        CREATE TABLE IF NOT EXISTS {queue} (
            Id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY, Headers text NOT NULL,
            Body bytea, Due timestamptz NOT NULL) WITH (fillfactor = 100);
        CREATE INDEX IF NOT EXISTS {due} ON {queue} (Due)""",
    "create_subscriptions": """
        CREATE TABLE IF NOT EXISTS {queue} (
            QueueAddress varchar(200) NOT NULL, Endpoint varchar(200) NOT NULL,
            Topic varchar(200) NOT NULL, PRIMARY KEY (Endpoint, Topic)) WITH (fillfactor = 100)""",
    "columns": """
        SELECT attname, format_type(atttypid, atttypmod), attnotnull, reloptions,
               (SELECT regexp_replace(pg_get_expr(adbin, adrelid), '''.*''', '')
                  FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum)
          FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
         WHERE c.oid = %(name)s::regclass AND attnum > 0 ORDER BY attnum""",
    "indexes": """
        SELECT indisprimary, indisunique, indkey::text, pg_get_indexdef(indexrelid, 1, true)
          FROM pg_index WHERE indrelid = %(name)s::regclass ORDER BY indexrelid""",
    "send": """
        INSERT INTO {queue} (Id, Expires, Headers, Body)
        VALUES (%(row)s, now() AT TIME ZONE 'UTC' + %(lives)s::int * interval '1 ms',
                %(headers)s, %(body)s)""",
    "receive": """
        DELETE FROM {queue} AS q
         WHERE q.Id = (SELECT Id FROM {queue} ORDER BY Seq LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING q.Id, coalesce(q.Expires <= now() AT TIME ZONE 'UTC', false), q.Headers, q.Body
        """,
    "rows": "SELECT Id, Expires, Headers, Body, Seq FROM {queue} ORDER BY Seq",
    "peek": """
        SELECT coalesce(
            (SELECT Seq FROM {queue} ORDER BY Seq DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
            - (SELECT Seq FROM {queue} ORDER BY Seq ASC LIMIT 1 FOR UPDATE SKIP LOCKED) + 1, 0)""",
    "purge_expired": """
        DELETE FROM {queue}
         WHERE Seq IN (SELECT Seq FROM {queue} WHERE Expires < now() AT TIME ZONE 'UTC'
                        LIMIT %(most)s FOR UPDATE SKIP LOCKED)""",
    "store": """
        INSERT INTO {queue} (Id, Headers, Body, Due)
        VALUES (%(row)s, %(headers)s, %(body)s,
                (now() AT TIME ZONE 'UTC')::timestamptz + %(delay)s::bigint * interval '1 ms')""",
    "move": """
        WITH due AS (
            DELETE FROM {queue}
             WHERE Id IN (SELECT Id FROM {queue} WHERE Due < now() AT TIME ZONE 'UTC'
                           LIMIT %(most)s)
            RETURNING Id, Headers, Body)
        INSERT INTO {to} (Id, Expires, Headers, Body) SELECT Id, NULL, Headers, Body FROM due""",
    "next_due": """
        SELECT extract(epoch FROM Due - (now() AT TIME ZONE 'UTC')::timestamptz)::float8
          FROM {queue} ORDER BY Due LIMIT 1 FOR UPDATE SKIP LOCKED""",
    "delayed_rows": "SELECT Id, Headers, Body, Due FROM {queue} ORDER BY Due",
    "subscribe": """
        INSERT INTO {queue} (QueueAddress, Topic, Endpoint)
        VALUES (%(address)s, %(topic)s, %(endpoint)s)
            ON CONFLICT (Endpoint, Topic) DO UPDATE SET QueueAddress = excluded.QueueAddress""",
    "unsubscribe": "DELETE FROM {queue} WHERE Endpoint = %(endpoint)s AND Topic = %(topic)s",
    "subscribers": "SELECT DISTINCT QueueAddress FROM {queue} WHERE Topic = ANY (%(topics)s)",
    # what a slow consumer, another mover or a DBA holds until the end of its transaction
    "hold": "SELECT FROM {queue} WHERE Seq = ANY (%(seqs)s) FOR UPDATE",
    "hold_delayed": "SELECT FROM {queue} WHERE Body = ANY (%(bodies)s) FOR UPDATE",
    "lock": "LOCK TABLE {queue} IN ACCESS EXCLUSIVE MODE",
}


@dataclass(frozen=True)
class PostgreSQL(Database):
    """The PostgreSQL transport, run by psycopg."""

    texts: ClassVar[Mapping[str, str]] = _POSTGRESQL

    def connect(self, zone: str | None = None) -> Connection:
        """As Database."""
        settings = f"-c lock_timeout={int(self.patience * 1000)}"
        settings += "" if zone is None else f" -c TimeZone={zone}"
        return psycopg.connect(self.url, autocommit=True, options=settings)

    def address(self, table: str) -> str:
        """As Database."""
        return quoted(self.schema, table)

    def ask(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> list[tuple[Any, ...]]:
        """As Database."""
        cursor = self._run(session, text, table, to, values)
        return cursor.fetchall() if cursor.description else []

    def count(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> int:
        """As Database."""
        return self._run(session, text, table, to, values).rowcount

    def install(self, session: Any, kind: str, table: Table) -> None:
        """As Database; another session may make the same table at this moment."""
        made = (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation)
        with suppress(*made), session.transaction():
            for text in self.texts[kind].split(";"):
                self.ask(session, text, table)

    def _run(
        self, session: Connection, text: str, table: Table, to: Table | None, values: dict[str, Any]
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        schema, name = names(table)
        words = {
            "queue": quoted(schema, name),
            "to": quoted(*names(to or table)),
            "due": quoted(f"{name}_Due"),
        }
        # psycopg reads % in a name as a placeholder: double it, and always pass parameters
        named = text.format(**{word: each.replace("%", "%%") for word, each in words.items()})
        try:
            return session.execute(named.encode(), {"name": words["queue"], **values})
        except errors.UndefinedTable as error:
            raise LookupError(str(table)) from error
        except errors.LockNotAvailable as error:
            raise Busy from error


def quoted(*parts: str) -> str:
    """Names as PostgreSQL quotes them, with dots between."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in parts)


def names(table: Table) -> tuple[str, str]:
    """
    Schema and table of an address.

    Raises:
        ValueError: a text that is no canonical address.
    """
    if not isinstance(table, str):
        return table.schema or "public", table.table
    part = '"((?:[^"]|"")+)"'
    found = re.fullmatch(rf"{part}\.{part}", table)
    if found is None:
        raise ValueError(table)
    schema, name = (each.replace('""', '"') for each in found.groups())
    return schema, name
