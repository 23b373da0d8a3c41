"""What a test of a pipeline uses: messages, queues, databases, servers, and frames of messages."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa

from sqlq_spark.admin.messages import StoredMessage, list_messages
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.postgresql.url import redact
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.testing import embedded
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import QUEUE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

VARIABLE: Final = "SQLQ_TEST_POSTGRES"
TIMEOUT = 60.0  # seconds for each statement
MOST = 1 << 40  # as a limit: more messages than any queue has


@dataclass(frozen=True)
class Message:
    """
    A message that a test sends, or that waits in a queue.

    Attributes:
        body: bytes and text are sent unchanged. Any other value is sent as JSON. The body of a
            message that waits is bytes or None.
        message_type: the .NET type's full name, for the header EnclosedMessageTypes.
        headers: `send` adds these headers, as an endpoint does: MessageId, CorrelationId,
            ConversationId, MessageIntent, TimeSent, OriginatingEndpoint, and ContentType for a JSON
            body. The headers given here override them. In a message that waits it is None if the
            headers cannot be read.
        corrupt_headers: the text of headers that cannot be read. It is sent unchanged, instead of
            all headers.
        expires: when the message expires, with a time zone. If it is None, it never expires.
        seq: the seq of a message that waits; None for a message to send.
    """

    body: Any = b"{}"
    message_type: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str | None] | None = field(default_factory=dict, kw_only=True)
    corrupt_headers: str | None = field(default=None, kw_only=True)
    expires: datetime | None = field(default=None, kw_only=True)
    seq: int | None = field(default=None, kw_only=True)

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body, read as JSON."""
        return json.loads(self.bytes or b"null")

    @property
    def bytes(self) -> bytes | None:
        """The bytes of the body that are sent."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return text.encode()


@dataclass(frozen=True)
class Queue:
    """A queue of a test."""

    database: Database
    name: str  # as the options of a read or a write name it

    @property
    def options(self) -> dict[str, str]:
        """The options with which Spark reads or writes this queue."""
        return self.database.options | {"queue": self.name}

    def send(self, *messages: object) -> None:
        """
        Add messages, in their order and in one transaction.

        Args:
            messages: each a Message, or the body of one.
        """
        rows = _table_rows(messages).drop_columns("seq")
        with self.database.connection() as connection, transaction(connection, timeout=TIMEOUT):
            connection.load(self._address, rows)

    def messages(self) -> list[Message]:
        """Return the messages that wait now, in the order of seq. Deletes nothing."""
        with self.database.connection() as connection:
            found = list_messages(connection, self._address, limit=MOST)
            return [*map(_received, found)]

    @property
    def _address(self) -> QueueAddress:
        return SourceOptions.parse(self.options).addresses[0]


@dataclass(frozen=True)
class Database:
    """A database with state tables, for one test."""

    url: str = field(repr=False)  # with the password

    @property
    def options(self) -> dict[str, str]:
        """The options with which Spark reads or writes in this database, without a queue."""
        return {"url": self.url}

    def queue(self, name: str) -> Queue:
        """Return a queue, and create its table if it is absent."""
        queue = Queue(self, name)
        with self.connection() as connection:
            schema.create_queue(connection, queue._address)  # noqa: SLF001
        return queue

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Give a connection of this package."""
        options = DatabaseOptions(url=self.url, query_timeout=TIMEOUT)
        with Session(options, "test") as session:
            yield session.open()


@contextmanager
def server() -> Iterator[str]:
    """
    Give the url of a PostgreSQL server: the one in SQLQ_TEST_POSTGRES, or a private one.

    A private server listens on a free port of 127.0.0.1, needs a password, and is removed at the
    end.

    Raises:
        MissingPackage: the extra `demo` is not installed, and the variable is not set.
    """
    if named := os.environ.get(VARIABLE):
        yield named
    else:
        with embedded.run_server(tcp=True) as running:
            yield running.url


@contextmanager
def new_database(server: str) -> Iterator[Database]:
    """
    Create a database with state tables on a server, and drop it after the block.

    Args:
        server: the url of any database of the server. The url's login may create databases.
    """
    name = f"sqlqueue_test_{secrets.token_hex(6)}"
    _execute(server, f'CREATE DATABASE "{name}"')
    try:
        made = Database(urlunsplit(urlsplit(server)._replace(path=f"/{name}")))
        with made.connection() as connection:
            schema.install(connection)
        yield made
    finally:
        # FORCE, because Spark's processes keep their connections for a while
        _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def frame(
    spark: SparkSession, messages: Iterable[object], *, queue: str = "Shop.Orders", **options: str
) -> DataFrame:
    """
    Return a frame as a read of a queue gives it, for a function that `foreachBatch` calls.

    Args:
        spark: a session, classic or Spark Connect.
        messages: each a Message, or the body of one. Messages without a seq are numbered from 1.
        queue: the queue's name, for the column `queue`.
        options: options of a read. Only `headersFormat` changes the columns.

    Raises:
        BadOption: an option's value cannot be used.
        UnknownOption: an option's name is a likely typo.
    """
    from sqlq_spark.spark_api import to_arrow_schema  # noqa: PLC0415 - imports pyspark

    nowhere = "postgresql://user@host/database"  # nothing connects
    read = SourceOptions.parse({"url": nowhere, "queue": queue, **options})
    ddl = ", ".join(f"{name} {kind}" for name, kind in read.columns.items())
    empty = spark.createDataFrame([], ddl)
    arrow = to_arrow_schema(empty.schema)
    batches = [
        to_read_columns(rows, arrow, queue=read.names[0])
        for rows in _table_rows(messages).to_batches()
    ]
    if not batches:
        return empty  # Spark takes no Arrow table without a batch
    return spark.createDataFrame(pa.Table.from_batches(batches, arrow), schema=empty.schema)


# ---------------------------------------------------------------- rows of a queue's table


def _table_rows(messages: Iterable[object]) -> pa.Table:
    """
    Make the rows of a queue out of messages or bodies.

    A message without a seq gets its number in the list, from 1 on.
    """
    whole = [given if isinstance(given, Message) else Message(given) for given in messages]
    rows = [
        {
            "id": uuid.uuid4().bytes,
            "expires": _without_zone(message.expires),
            "headers": message.corrupt_headers or wire.dumps(_all_headers(message)),
            "body": message.bytes,
            "seq": number if message.seq is None else message.seq,
        }
        for number, message in enumerate(whole, 1)
    ]
    return pa.Table.from_pylist(rows, schema=QUEUE_ROW)


def _all_headers(message: Message) -> dict[str, str | None]:
    """Return the headers that an endpoint would write, overridden by those of the message."""
    own = dict(message.headers or {})
    message_id = own.get(wire.MESSAGE_ID) or str(uuid.uuid4())
    added = {
        wire.MESSAGE_ID: message_id,
        wire.CORRELATION_ID: message_id,
        wire.CONVERSATION_ID: str(uuid.uuid4()),
        wire.MESSAGE_INTENT: "Send",
        wire.TIME_SENT: wire.format_wire_time(datetime.now(UTC)),
        wire.ORIGINATING_ENDPOINT: "Test",
    }
    if message.message_type is not None:
        added[wire.ENCLOSED_MESSAGE_TYPES] = message.message_type
    if not isinstance(message.body, bytes | str | None):
        added[wire.CONTENT_TYPE] = "application/json"
    return added | own


def _without_zone(moment: datetime | None) -> datetime | None:
    """Return a time as a queue's table has it: in UTC, without its zone."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        problem = f"expires={moment!r} has no time zone: add tzinfo=UTC"
        raise ValueError(problem)
    return moment.astimezone(UTC).replace(tzinfo=None)


def _received(found: StoredMessage) -> Message:
    return Message(
        found.body,
        message_type=(found.headers or {}).get(wire.ENCLOSED_MESSAGE_TYPES),
        headers=found.headers,
        corrupt_headers=found.corrupt_headers,
        expires=None if found.expires is None else found.expires.replace(tzinfo=UTC),
        seq=found.seq,
    )


def _execute(url: str, statement: str) -> None:
    """Run a statement that must be alone in its transaction."""
    with drivers.open_session(url, redact(url), "sqlqueue test", TIMEOUT) as connection:
        connection.execute(statement).close()
