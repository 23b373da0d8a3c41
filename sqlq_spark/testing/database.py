"""A test's own database, and its queues."""

from __future__ import annotations

import secrets
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from sqlq_spark import database
from sqlq_spark.admin import inspect
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.postgresql.url import redact
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.testing.messages import Message, as_message, table_rows
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

TIMEOUT = 60.0  # seconds, for every statement
MOST = 1 << 40  # messages of a queue


@dataclass(frozen=True)
class Queue:
    """A queue of a test."""

    database: Database
    name: str  # as the options of a read or a write name it

    @property
    def options(self) -> dict[str, str]:
        """Options of a read or a write of this queue."""
        return self.database.options | {"queue": self.name}

    def send(self, *messages: object) -> None:
        """
        Add messages, in their order and in one transaction.

        Args:
            messages: each a Message, or the body of one.
        """
        rows = table_rows(map(as_message, messages)).drop_columns("seq")
        with self.database.connection() as connection, transaction(connection, timeout=TIMEOUT):
            connection.load(self._address, rows)

    def messages(self) -> list[Message]:
        """Return what waits now, in the order of seq; deletes nothing."""
        with self.database.connection() as connection:
            found = inspect.messages(connection, self._address, limit=MOST)
            return [received(each) for each in found]

    @property
    def _address(self) -> QueueAddress:
        return parse_queue("queue", self.name, names_of(self.database.url))


@dataclass(frozen=True)
class Database:
    """A database with state tables, for one test."""

    url: str = field(repr=False)  # with the password

    @property
    def options(self) -> dict[str, str]:
        """Options of a read or a write that name no queue."""
        return {"url": self.url}

    def queue(self, name: str) -> Queue:
        """Return a queue, and create its table if it is absent."""
        found = Queue(self, name)
        with self.connection() as connection:
            schema.create_queue(connection, found._address, timeout=TIMEOUT)  # noqa: SLF001
        return found

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Give a connection of this package."""
        made = database.of(self.url).connect(
            self.url,
            application="sqlqueue test",
            timeout=TIMEOUT,
            state=DatabaseOptions.state_schema,
        )
        with closing(made):
            yield made


@contextmanager
def new_database(server: str) -> Iterator[Database]:
    """
    Create a database with state tables on a server, and drop it after the block.

    Args:
        server: the url of any database there. Its login may create databases.
    """
    name = f"sqlqueue_test_{secrets.token_hex(6)}"
    execute(server, f'CREATE DATABASE "{name}"')
    try:
        made = Database(urlunsplit(urlsplit(server)._replace(path=f"/{name}")))
        with made.connection() as connection:
            schema.install(connection, timeout=TIMEOUT)
        yield made
    finally:
        # Spark's processes keep their connections for a while
        execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def execute(url: str, statement: str) -> None:
    """Run a statement that must be alone in its transaction."""
    with (
        drivers.connect(url, redact(url), "sqlqueue test", TIMEOUT) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)


def received(found: inspect.Message) -> Message:
    """Return a row of a queue as a test compares it."""
    types = None if found.headers is None else found.headers.get(ENCLOSED_MESSAGE_TYPES)
    return Message(
        found.body,
        message_type=types,
        headers=found.headers,
        corrupt_headers=found.corrupt_headers,
        expires=None if found.expires is None else found.expires.replace(tzinfo=UTC),
        seq=found.seq,
    )
