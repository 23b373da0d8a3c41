"""
PostgreSQL for the bench: tables in a database of its own, so that no one's queue is touched.

A refill copies prepared messages from a table on the server, faster than sending them again.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from conformance.transport import PostgreSQL as Transport
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from . import transport
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor
    from typing import LiteralString

    from .database import Database

    Connection = psycopg.Connection[tuple[object, ...]]

JAR = "org.postgresql:postgresql:42.7.14"
_PORTION = 50_000  # messages made and copied at a time
_SETTINGS = [
    "server_version",
    "shared_buffers",
    "max_wal_size",
    "fsync",
    "synchronous_commit",
    "wal_compression",
    "full_page_writes",
]

_STORE = """
CREATE UNLOGGED TABLE store (number int PRIMARY KEY, id uuid, headers text, body bytea)
"""
_FILL = """
INSERT INTO {} (id, headers, body)
SELECT id, headers, body FROM store WHERE number < {} ORDER BY number
"""
_SEND_ONE = """
INSERT INTO {} (id, headers, body)
SELECT gen_random_uuid(), headers, body FROM store LIMIT 1
"""


@contextmanager
def fresh(server: str) -> Iterator[str]:
    """Make a database on the server with this URI, yield its URI, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield uri(server, name)
        finally:
            connection.execute(
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            )


def uri(server: str, database: str) -> str:
    """Name another database of the same server, as libpq reads it."""
    parts = conninfo_to_dict(server) | {"dbname": database}
    user, password, host, port = (
        parts.pop(key, "") for key in ("user", "password", "host", "port")
    )
    return f"postgresql://{user}:{password}@{host}:{port or 5432}/{parts['dbname']}"


def jdbc(url: str) -> dict[str, str]:
    """Say the same connection in the words of Spark's JDBC source."""
    parts = conninfo_to_dict(url)
    return {
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}?stringtype=unspecified",
        "user": str(parts["user"]),
        "password": str(parts["password"]),
        "driver": "org.postgresql.Driver",
    }


def prepare(connection: Connection, queues: Sequence[str], messages: int) -> None:
    """Make the queues, and the store of messages that `fill` copies from."""
    for queue in queues:
        Transport("", "public").create(connection, f'"public"."{queue}"')
    connection.execute(_STORE)
    for first in range(0, messages, _PORTION):
        stop = min(first + _PORTION, messages)
        with connection.cursor().copy("COPY store FROM STDIN") as copy:
            columns = orders(first, stop).to_pydict()
            for row in zip(range(first, stop), *columns.values(), strict=True):
                copy.write_row(row)
    connection.execute("VACUUM ANALYZE store")


def fill(connection: Connection, queue: str, messages: int) -> None:
    """
    Leave so many messages, no dead rows and fresh statistics.

    The checkpoint comes before the sends: a queue's rows live shorter than a checkpoint's cycle, so
    receiving them seldom pays for the first touch of a page. (It did: 144 MB of WAL against 25.)
    """
    name = sql.Identifier(queue)
    connection.execute(sql.SQL("TRUNCATE {}").format(name))
    connection.execute("CHECKPOINT")
    connection.execute(sql.SQL(_FILL).format(name, sql.Literal(messages)))
    settle(connection, queue)


def send_one(connection: Connection, queue: str) -> None:
    """Send a message, and commit."""
    connection.execute(sql.SQL(_SEND_ONE).format(sql.Identifier(queue)))


def settle(connection: Connection, queue: str) -> None:
    """Do now what autovacuum would else do during the next measurement."""
    connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(queue)))


def count(connection: Connection, queue: str) -> int:
    """Count what waits in the queue."""
    return _numbers(connection, "SELECT count(*) FROM {}", queue)[0]


def bounds(connection: Connection, queue: str) -> tuple[int, int]:
    """Find the lowest seq, and the one after the highest."""
    first, stop = _numbers(connection, "SELECT min(seq), max(seq) + 1 FROM {}", queue)
    return first, stop


def settings(connection: Connection) -> dict[str, str]:
    """Read what a figure depends on."""
    query = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)"
    rows = connection.execute(query, [_SETTINGS]).fetchall()
    return {str(name): str(value) for name, value in rows}


def _numbers(connection: Connection, query: LiteralString, queue: str) -> list[int]:
    row = connection.execute(sql.SQL(query).format(sql.Identifier(queue))).fetchone()
    return [int(str(value)) for value in row or ()]


@contextmanager
def opened(server: str) -> Iterator[PostgreSQL]:
    """Make a database on the server with this URI, open it, and drop it afterwards."""
    with fresh(server) as url, psycopg.connect(url, autocommit=True) as connection:
        yield PostgreSQL(url, connection)


def session(database: Database) -> Connection:
    """The session of a database that is one of these, for what no other could be asked."""
    if not isinstance(database, PostgreSQL):
        raise TypeError(database)
    return database.connection


@dataclass(frozen=True)
class PostgreSQL:
    """See Database."""

    url: str
    connection: Connection
    jar: str = JAR
    seq: str = "seq"
    rewriting: str = "&reWriteBatchedInserts=true"

    def jdbc(self) -> dict[str, str]:
        """As Database."""
        return jdbc(self.url)

    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """As Database."""
        prepare(self.connection, queues, messages)

    def fill(self, queue: str, messages: int) -> None:
        """As Database."""
        fill(self.connection, queue, messages)

    def settle(self, queue: str) -> None:
        """As Database."""
        settle(self.connection, queue)

    def send_one(self, queue: str) -> None:
        """As Database."""
        send_one(self.connection, queue)

    def count(self, queue: str) -> int:
        """As Database."""
        return count(self.connection, queue)

    def bounds(self, queue: str) -> tuple[int, int]:
        """As Database."""
        return bounds(self.connection, queue)

    def settings(self) -> dict[str, str]:
        """As Database."""
        return settings(self.connection)

    def loop(self) -> float:
        """As Database."""
        return transport.loop(self.url)

    def limit(self, pool: Executor, cores: int) -> float:
        """As Database."""
        return transport.limit(self.url, self.connection, self.bounds("orders"), pool, cores)
