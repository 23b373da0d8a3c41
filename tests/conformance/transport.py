"""
A .NET endpoint: the transport's own statements, one method for each, in one place for all suites.

They are written from the transports' design pages, not from the package's SQL, and run in other
sessions. So a mistake of ours is not made twice. In addition an endpoint has what a test asks the
server about sessions. SQL Server's endpoint is in transport_sqlserver.py.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import psycopg
from psycopg import errors

from sqlq_spark.wire.address import QueueAddress

from .dba import DBA
from .shapes import POSTGRESQL, Shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pytest
    from conftest import Place

Row = tuple[Any, ...]

PURGED = 10_000  # expired messages in one statement of the purger


class Busy(Exception):
    """Another session has locked the table or the rows."""


class Received(NamedTuple):
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
class DotNet(ABC):
    """An endpoint and its DBA, on one database."""

    url: str
    schema: str  # the schema of the queues
    state: str  # schema of the state tables
    connection: Any  # commits each statement, unless a transaction was begun

    dialect: ClassVar[str]
    shapes: ClassVar[Shapes]
    texts: ClassVar[Mapping[str, str]]  # name → SQL, with the words of `words` in braces
    home: ClassVar[str]  # the schema of tables without one
    mark: ClassVar[str]  # how a text marks the place of a value, by the value's name
    counts: ClassVar[str] = ""  # added to a text, so that it returns how many rows it changed
    earlier: ClassVar[str]  # an expression: a column's time, some hours earlier
    active: ClassVar[str]  # sessions with a word in their names, and whether they wait for a lock
    ends: ClassVar[str]  # ends a session
    makes_expires_index: ClassVar[bool]  # the transport makes an index on Expires
    keeps_ids: ClassVar[bool]  # a delayed message has an id, which a move keeps
    numbers_once: ClassVar[bool]  # no two rows of a queue have the same seq
    stored: ClassVar[str]  # the encoding of headers in a table
    has_body_string: ClassVar[bool]  # `create` may add the column BodyString

    @classmethod
    @abstractmethod
    def placed(cls, request: pytest.FixtureRequest) -> AbstractContextManager[Self]:
        """Give an endpoint in a place of its own, on the server of the tests."""

    @abstractmethod
    def spellings(self, table: str) -> list[str]:
        """Other ways to write the address of a table of `schema`, the shortest first."""

    @abstractmethod
    def in_list(self, table: str) -> str:
        """How a list of queues names a table of `schema`, whatever its name holds."""

    @property
    def dba(self) -> DBA:
        """The DBA of this database, who has all rights."""
        return DBA(self)

    @abstractmethod
    def connect(self, zone: str | None, patience: float) -> Any:
        """Open a session, which waits for a lock for `patience` seconds."""

    def consumer(self, zone: str | None = None, patience: float = 60.0) -> Self:
        """Another session of the same endpoint, for a thread, or in a time zone of its own."""
        return replace(self, connection=self.connect(zone, patience))

    @contextmanager
    def apart(self, *, commit: bool = False) -> Iterator[Self]:
        """Give another session, whose transaction is open as long as the block lasts."""
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

    @abstractmethod
    def ask(
        self, text: str, table: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> list[Row]:
        """
        Run a text on a table, and return its rows, if it has any.

        Raises:
            LookupError: The table does not exist.
            Busy: Another session has locked it.
        """

    def count(self, text: str, table: QueueAddress, **values: Any) -> int:
        """Run a text as `ask` does; returns how many rows it changed."""
        return int(self.ask(text + self.counts, table, **values)[0][0])

    @abstractmethod
    def quote(self, name: str) -> str:
        """A name as SQL quotes it."""

    def quoted(self, table: QueueAddress) -> str:
        """A table as SQL names it."""
        names = (table.catalog, table.schema or self.home, table.table)
        return ".".join(self.quote(each) for each in names if each is not None)

    def words(self, table: QueueAddress, to: QueueAddress | None = None) -> dict[str, str]:
        """The values of the words in braces. `text` is the table within a literal."""
        queue, name = self.quoted(table), table.table
        return {
            "queue": queue,
            "to": self.quoted(to or table),
            "text": queue.replace("'", "''"),
            "table": name,
            "due": self.quote(f"{name}_Due"),
            "sequence": self.quoted(replace(table, table=f"{name}_seq_seq")),
            "refuse": self.quoted(replace(table, table="refuse")),
        }

    @abstractmethod
    def drop_schema(self, name: str) -> None:
        """Drop a schema with its tables, if it is there."""

    @abstractmethod
    def install(self, kind: str, table: QueueAddress) -> None:
        """Make a table as the transport's installer does, unless another session is making it."""

    def create(self, queue: QueueAddress) -> None:
        self.install("create", queue)

    def create_delayed(self, table: QueueAddress) -> None:
        self.install("create_delayed", table)

    def create_subscriptions(self, table: QueueAddress) -> None:
        self.install("create_subscriptions", table)

    def catalog(self, table: QueueAddress) -> list[Row]:
        """The columns, indexes and storage of a table, from the database's catalogue."""
        parts = (self.ask(self.texts[each], table) for each in ("columns", "indexes"))
        return [row for part in parts for row in part]

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
        row = row or uuid.uuid4()
        self.ask(self.texts["send"], queue, row=row, lives=lives, headers=headers, body=body)
        return row

    def send_many(self, queue: QueueAddress, bodies: Sequence[bytes]) -> None:
        """Insert messages of equal headers, in one transaction."""
        with self.connection.transaction():
            for body in bodies:
                self.send(queue, body=body)

    def receive(self, queue: QueueAddress) -> Received | None:
        """Delete the lowest message that no session has locked, and return it."""
        found = self.ask(self.texts["receive"], queue)
        if not found:
            return None
        row, expired, headers, body = found[0]
        return Received(_uuid(row), bool(expired), headers, body)

    def rows(self, queue: QueueAddress) -> list[Stored]:
        """All committed rows, by seq."""
        return [Stored(_uuid(row), *rest) for row, *rest in self.ask(self.texts["rows"], queue)]

    def peek(self, queue: QueueAddress) -> int:
        """How many messages there may be."""
        return int(self.ask(self.texts["peek"], queue)[0][0])

    def purge(self, queue: QueueAddress) -> int:
        """Delete everything, and wait for sessions that have locked a message."""
        return self.count("DELETE FROM {queue}", queue)

    def purge_expired(self, queue: QueueAddress) -> int:
        """Delete a batch of expired messages that no session has locked."""
        return self.count(self.texts["purge_expired"], queue, most=PURGED)

    @contextmanager
    def holding(self, text: str, table: QueueAddress, **values: Any) -> Iterator[None]:
        """Hold the locks of a statement as long as the block lasts, and roll it back."""
        with self.apart() as other:
            other.ask(self.texts[text], table, **values)
            yield

    def hold(self, queue: QueueAddress, seqs: Sequence[int]) -> Any:
        """Lock rows as long as the block lasts."""
        return self.holding("hold", queue, seqs=list(seqs))

    def locked(self, queue: QueueAddress) -> Any:
        """Lock the whole table against everyone, as long as the block lasts."""
        return self.holding("lock", queue)

    # ------------------------------------------------------------ delayed messages

    def store(
        self,
        table: QueueAddress,
        headers: str = "{}",
        body: bytes | None = b"{}",
        *,
        delay: float,
        row: uuid.UUID | None = None,
    ) -> None:
        """Delay a message by some seconds; `row` is its id, where the table has one."""
        values: dict[str, Any] = {"headers": headers, "body": body, "delay": int(delay * 1000)}
        self.ask(self.texts["store"], table, row=row or uuid.uuid4(), **values)

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move a batch of due messages into a queue; returns how many."""
        return self.count(self.texts["move"], table, to=queue, most=most)

    def delayed_rows(self, table: QueueAddress) -> list[Delayed]:
        """The delayed messages, by due time. A time without a zone is in UTC."""
        return [
            Delayed(
                row and _uuid(row), headers, body, due if due.tzinfo else due.replace(tzinfo=UTC)
            )
            for row, headers, body, due in self.ask(self.texts["delayed_rows"], table)
        ]

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, table: QueueAddress, endpoint: str, topic: str, address: str) -> None:
        """Enter a subscription, or correct its queue."""
        values: dict[str, Any] = {"endpoint": endpoint, "topic": topic, "address": address}
        self.ask(self.texts["subscribe"], table, **values)

    def unsubscribe(self, table: QueueAddress, endpoint: str, topic: str) -> None:
        self.ask(self.texts["unsubscribe"], table, endpoint=endpoint, topic=topic)

    def subscribers(self, table: QueueAddress, *topics: str) -> list[str]:
        """The queues subscribed to any of these topics, each once, in their order."""
        found = self.ask(self.texts["subscribers"], table, topics=list(topics))
        return sorted(queue for (queue,) in found)

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """Columns of a state table, in the order of the columns."""
        names = (each.strip() for each in columns.split(","))
        listed = ", ".join(f'"{each}"' if each.isidentifier() else each for each in names)
        text = f"SELECT {listed} FROM {{queue}} ORDER BY {listed}"
        return self.ask(text, QueueAddress(table, self.state))

    def clock(self) -> datetime:
        """The database's UTC clock."""
        moment: datetime = self.execute(self.texts["clock"])[0][0]
        return moment

    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`, and wait; returns how many."""
        found = {session for session, _ in self.execute(self.active, application)}
        for session in found:
            self.execute(self.ends.format(session))
        while self.sessions(application):
            time.sleep(0.001)
        return len(found)

    def sessions(self, application: str) -> int:
        """How many sessions have `application` in their name."""
        return len({session for session, _ in self.execute(self.active, application)})

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""
        return any(waits for _, waits in self.execute(self.active, application))


def _uuid(value: uuid.UUID | str) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(value)


# As in the transport, Due is the server's UTC time, stored as if it were local to the session.
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
    "clock": "SELECT clock_timestamp() AT TIME ZONE 'UTC'",
}
_REFUSE = (
    "CREATE OR REPLACE FUNCTION {refuse}() RETURNS trigger LANGUAGE plpgsql"
    " AS $$BEGIN RAISE EXCEPTION 'not today'; END$$;"
)
# what a DBA does
_DBA = {
    "count": "SELECT count(*) FROM {queue}",
    "closed": "LOCK TABLE {queue} IN SHARE MODE",
    # as an endpoint writes them
    "fill": (
        "INSERT INTO {queue} (id, headers, body) SELECT gen_random_uuid(), "
        """ '{{"NServiceBus.MessageId":"m-' || n || '","NServiceBus.MessageIntent":"Send",' """
        """ || '"NServiceBus.ContentType":"application\\/json",' """
        """ || '"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder",' """
        """ || '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}', """
        """ convert_to('{{"number":' || n || '}}', 'UTF8') """
        "FROM generate_series(%(before)s::int + 1, %(before)s::int + %(many)s::int) AS n ORDER BY n"
    ),
    "poison": (
        "INSERT INTO {queue} (id, expires, headers, body) SELECT gen_random_uuid(),"
        " CASE WHEN n <= %(expired)s THEN timestamp '2026-01-01' END, '[\"poison\"]', ''"
        " FROM generate_series(1, %(many)s) AS n ORDER BY n"
    ),
    "set_expires": "UPDATE {queue} SET Expires = %(moment)s::timestamp WHERE Id = %(row)s::uuid",
    "set_expires_text": (
        "UPDATE {queue} SET Expires = %(moment)s::text::timestamp WHERE Id = %(row)s::uuid"
    ),
    "lifetimes": (
        "SELECT extract(epoch FROM Expires - (now() AT TIME ZONE 'UTC'))::float8"
        " FROM {queue} ORDER BY Seq"
    ),
    "truncate": "TRUNCATE {queue}",
    "delete": "DELETE FROM {queue} WHERE Seq = ANY (%(seqs)s)",
    "rewrite": "UPDATE {queue} SET Headers = %(headers)s",
    "put_at": "INSERT INTO {queue} (Id, Headers, Seq) VALUES (gen_random_uuid(), '{{}}', %(seq)s)",
    "set_next": "SELECT setval('{sequence}', %(seq)s, false)",
    "make_due": "UPDATE {queue} SET due = due - %(seconds)s::float8 * interval '1 s'",
    "refuse": (
        f"{_REFUSE} CREATE TRIGGER t BEFORE INSERT ON {{queue}} EXECUTE FUNCTION {{refuse}}()"
    ),
    # when it is committed
    "refuse_late": (
        f"{_REFUSE} CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {{queue}}"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {refuse}()"
    ),
    "own": "ALTER TABLE {queue} OWNER TO sqlq_tests",  # let the login of our sessions own it
    "archive": "CREATE TABLE {queue} (id uuid, headers text, body bytea)",
    "use_numbers": "GRANT USAGE ON SEQUENCE {sequence} TO [login]",
    "view": "CREATE VIEW {queue} AS SELECT * FROM {to}",
}


@dataclass(frozen=True)
class PostgreSQL(DotNet):
    """An endpoint of the PostgreSQL transport, run by psycopg."""

    connection: psycopg.Connection[Row]
    dialect: ClassVar[str] = "postgresql"
    shapes: ClassVar[Shapes] = POSTGRESQL
    texts: ClassVar[Mapping[str, str]] = _POSTGRESQL | _DBA
    home: ClassVar[str] = "public"
    mark: ClassVar[str] = "%({})s"
    earlier: ClassVar[str] = "{} - {} * interval '1 hour'"
    active: ClassVar[str] = """
        SELECT pid, wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity
         WHERE position(%s IN application_name) > 0"""
    ends: ClassVar[str] = "SELECT pg_terminate_backend({})"
    makes_expires_index: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = True
    numbers_once: ClassVar[bool] = True
    stored: ClassVar[str] = "utf-8"
    has_body_string: ClassVar[bool] = True

    @classmethod
    def at(cls, place: Place) -> Self:
        """Stand in a test's place."""
        return cls(place.url, place.schema, place.state, place.connection)

    @classmethod
    @contextmanager
    def placed(cls, request: pytest.FixtureRequest) -> Iterator[Self]:
        yield cls.at(request.getfixturevalue("place"))

    def spellings(self, table: str) -> list[str]:
        return [f"{self.schema}.{table}", f'"{self.schema}".{table}']

    def in_list(self, table: str) -> str:
        return f"{self.quote(self.schema)}.{self.quote(table)}"

    def connect(self, zone: str | None, patience: float) -> psycopg.Connection[Row]:
        settings = f"-c lock_timeout={int(patience * 1000)}"
        settings += "" if zone is None else f" -c TimeZone={zone}"
        return psycopg.connect(self.url, autocommit=True, options=settings)

    def execute(self, text: str, *values: object) -> list[Row]:
        """Run a text as `DotNet.execute` does. One without values may hold several statements."""
        cursor = self.connection.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def ask(
        self, text: str, table: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> list[Row]:
        """Run a text as `DotNet.ask` does. A statement without rows returns how many it changed."""
        words = self.words(table, to)
        # psycopg reads % in a name as a placeholder: double it, and always pass parameters
        named = text.format(**{word: each.replace("%", "%%") for word, each in words.items()})
        try:
            cursor = self.connection.execute(named.encode(), {"name": words["queue"], **values})
        except errors.UndefinedTable as error:
            raise LookupError(str(table)) from error
        except errors.LockNotAvailable as error:
            raise Busy from error
        return cursor.fetchall() if cursor.description else [(cursor.rowcount,)]

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def install(self, kind: str, table: QueueAddress) -> None:
        made = (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation)
        with suppress(*made), self.connection.transaction():
            for text in self.texts[kind].split(";"):
                self.ask(text, table)

    def drop_schema(self, name: str) -> None:
        self.execute(f"DROP SCHEMA IF EXISTS {self.quote(name)} CASCADE")
