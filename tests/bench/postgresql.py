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
from .database import Database
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager
    from typing import LiteralString

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
class PostgreSQL(Database):
    """See Database."""

    connection: Connection
    jar: str = JAR
    seq: str = "seq"
    rewriting: str = "&reWriteBatchedInserts=true"

    def jdbc(self) -> dict[str, str]:
        """As Database."""
        parts = conninfo_to_dict(self.url)
        server = f"{parts['host']}:{parts['port']}"
        return {
            "url": f"jdbc:postgresql://{server}/{parts['dbname']}?stringtype=unspecified",
            "user": str(parts["user"]),
            "password": str(parts["password"]),
            "driver": "org.postgresql.Driver",
        }

    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """As Database."""
        for queue in queues:
            Transport("", "public").create(self.connection, f'"public"."{queue}"')
        self.connection.execute(_STORE)
        for first in range(0, messages, _PORTION):
            stop = min(first + _PORTION, messages)
            with self.connection.cursor().copy("COPY store FROM STDIN") as copy:
                columns = orders(first, stop).to_pydict()
                for row in zip(range(first, stop), *columns.values(), strict=True):
                    copy.write_row(row)
        self.connection.execute("VACUUM ANALYZE store")

    def fill(self, queue: str, messages: int) -> None:
        """
        As Database; no dead rows are left.

        The checkpoint comes before the sends: a queue's rows live shorter than a checkpoint's
        cycle, so receiving them seldom pays for the first touch of a page. (It did: 144 MB of WAL
        against 25.)
        """
        self._run("TRUNCATE {}", queue)
        self.connection.execute("CHECKPOINT")
        self._run(_FILL, queue, messages)
        self.settle(queue)

    def settle(self, queue: str) -> None:
        """As Database: what autovacuum would else do."""
        self._run("VACUUM ANALYZE {}", queue)

    def send_one(self, queue: str) -> None:
        """As Database."""
        self._run(_SEND_ONE, queue)

    def count(self, queue: str) -> int:
        """As Database."""
        return self._numbers("SELECT count(*) FROM {}", queue)[0]

    def bounds(self, queue: str) -> tuple[int, int]:
        """As Database."""
        first, stop = self._numbers("SELECT min(seq), max(seq) + 1 FROM {}", queue)
        return first, stop

    def settings(self) -> dict[str, str]:
        """As Database."""
        query = "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY (%s)"
        rows = self.connection.execute(query, [_SETTINGS]).fetchall()
        return {str(name): str(value) for name, value in rows}

    def receiving(self) -> AbstractContextManager[Callable[[], object]]:
        """As Database."""
        return transport.receiving(self.url)

    def limit(self, pool: Executor, cores: int) -> float:
        """As Database."""
        self.connection.execute(transport.RECEIPTS)
        rate = self.taken(pool, cores, transport.take)
        self.connection.execute("TRUNCATE limit_receipt")
        return rate

    def _run(
        self, text: LiteralString, queue: str, *values: object
    ) -> psycopg.Cursor[tuple[object, ...]]:
        literals = map(sql.Literal, values)
        return self.connection.execute(sql.SQL(text).format(sql.Identifier(queue), *literals))

    def _numbers(self, text: LiteralString, queue: str) -> list[int]:
        return [int(str(value)) for value in self._run(text, queue).fetchone() or ()]
