"""PostgreSQL for the bench: tables in a database of its own, so that no one's queue is touched."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pyarrow as pa
from conformance.transport import PostgreSQL as Transport
from psycopg.conninfo import conninfo_to_dict

from sqlq_spark.wire.address import QueueAddress

from .database import Database
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Connection = psycopg.Connection[tuple[Any, ...]]

_PORTION = 50_000  # messages made and copied at a time
_STORE = "CREATE UNLOGGED TABLE store (number int PRIMARY KEY, id uuid, headers text, body bytea)"
# bodies that hardly compress: 1 kB of random hexadecimal digits
_HARD = """
CREATE UNLOGGED TABLE hard AS
SELECT number, id, headers,
       (SELECT convert_to(string_agg(md5(random()::text || each), ''), 'UTF8')
          FROM generate_series(1, 31 + 0 * number) AS each) AS body
  FROM store
"""
_SETTINGS = """
SELECT name, current_setting(name) FROM pg_settings
 WHERE name IN ('server_version', 'shared_buffers', 'max_wal_size', 'fsync', 'synchronous_commit',
                'wal_compression', 'full_page_writes')
"""
_RECEIVE = Transport.texts["receive"].format(queue="orders").encode()
_RECEIPTS = """
CREATE TABLE IF NOT EXISTS limit_receipt (batch serial PRIMARY KEY, payload bytea NOT NULL);
ALTER TABLE limit_receipt ALTER payload SET STORAGE EXTERNAL
"""
_TAKE = """
COPY (DELETE FROM orders WHERE seq >= {} AND seq < {}
      RETURNING id, expires <= now() AT TIME ZONE 'UTC', headers, body, seq)
  TO STDOUT (FORMAT binary)
"""


@contextmanager
def opened(server: str) -> Iterator[PostgreSQL]:
    """Make a database on the server with this URI, open it, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as desk:
        desk.execute(f"CREATE DATABASE {name}".encode())
        try:
            url = uri(server, name)
            with psycopg.connect(url, autocommit=True) as connection:
                yield PostgreSQL(url, connection)
        finally:
            desk.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def uri(server: str, database: str) -> str:
    """Name another database of the same server, as libpq reads it."""
    parts = conninfo_to_dict(server)
    user, password, host, port = (
        parts.get(key, "") for key in ("user", "password", "host", "port")
    )
    return f"postgresql://{user}:{password}@{host}:{port or 5432}/{database}"


@cache  # so that it stays open from round to round
def _connect(url: str) -> Connection:
    return psycopg.connect(url)


def take(url: str, first: int, stop: int) -> int:
    """Delete a range in COPY's binary form, keep a compressed receipt, and throw the rows away."""
    connection = _connect(url)
    with connection.cursor() as cursor:
        with cursor.copy(_TAKE.format(first, stop).encode()) as copy:
            rows = b"".join(copy)
        taken = cursor.rowcount
        payload = pa.compress(rows, codec="zstd", asbytes=True)
        cursor.execute("INSERT INTO limit_receipt (payload) VALUES (%b)", [payload])
    connection.commit()
    return taken


@dataclass(frozen=True)
class PostgreSQL(Database):
    """See Database."""

    connection: Connection

    jar = "org.postgresql:postgresql:42.7.14"
    seq = "seq"
    rewriting = "&reWriteBatchedInserts=true"
    analyze = "VACUUM ANALYZE"
    new_id = "gen_random_uuid()"
    texts: ClassVar[dict[str, str]] = {
        "settings": _SETTINGS,
        "receipts": _RECEIPTS,
        "hard": _HARD,
    }
    take = take

    def ask(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """As Database."""
        cursor = self.connection.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

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
            Transport("", "public", "", self.connection).create(QueueAddress(queue, "public"))
        self.ask(_STORE)
        for first in range(0, messages, _PORTION):
            table = orders(first, min(first + _PORTION, messages))
            self.keep(enumerate(zip(*table.to_pydict().values(), strict=True), first))
        self.ask("VACUUM ANALYZE store")

    def keep(self, rows: Iterator[tuple[int, tuple[str, str, bytes]]]) -> None:
        """Put messages into the store."""
        with self.connection.cursor().copy("COPY store FROM STDIN") as copy:
            for number, row in rows:
                copy.write_row((number, *row))

    @contextmanager
    def receiving(self) -> Iterator[Callable[[], int]]:
        """As Database; the statement is prepared."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            yield lambda: connection.execute(_RECEIVE, prepare=True).rowcount
