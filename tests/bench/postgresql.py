"""
A database of the bench's own, on PostgreSQL.

A refill copies prepared messages from the table `store` on the server, which is faster than sending
them again.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pyarrow as pa
from conformance.transport import PostgreSQL as Transport
from psycopg.conninfo import conninfo_to_dict

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.wire.address import QueueAddress

from .messages import orders
from .stand import expect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

_SECONDS = 3.0  # how long the loop of one row runs
_PORTION = 50_000  # messages that are made and copied at a time
_PATIENCE = 600.0  # seconds that the copy of a portion may take
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
def opened(server: str) -> Iterator[Database]:
    """Make a database on the server with this URI, open it, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as desk:
        desk.execute(f"CREATE DATABASE {name}".encode())
        try:
            url = uri(server, name)
            with psycopg.connect(url, autocommit=True) as connection:
                yield Database(url, connection)
        finally:
            desk.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def uri(server: str, database: str) -> str:
    """Name another database of the same server, as libpq reads it."""
    parts = conninfo_to_dict(server)
    user, password, host = (parts.get(key, "") for key in ("user", "password", "host"))
    return f"postgresql://{user}:{password}@{host}:{parts.get('port') or 5432}/{database}"


@cache  # cached, so that the connection stays open from round to round
def _connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
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
class Database:
    """A database, with a session that commits each statement."""

    url: str  # in the form of the option url
    connection: psycopg.Connection[Any]

    jar = "org.postgresql:postgresql:42.7.14"  # the JDBC driver's coordinates on Maven Central
    settings = """
SELECT name, current_setting(name) FROM pg_settings
 WHERE name IN ('server_version', 'shared_buffers', 'max_wal_size', 'fsync', 'synchronous_commit',
                'wal_compression', 'full_page_writes')
"""
    # creates a second store, whose bodies are 1 kB of random hexadecimal digits
    hard = """
CREATE UNLOGGED TABLE hard AS
SELECT seq, id, headers,
       (SELECT convert_to(string_agg(md5(random()::text || each), ''), 'UTF8')
          FROM generate_series(1, 31 + 0 * seq) AS each) AS body
  FROM store
"""

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement, commit it, and return its rows."""
        cursor = self.connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []

    def jdbc(self) -> dict[str, str]:
        """The same connection in the words of Spark's JDBC source."""
        parts = {name: str(value) for name, value in conninfo_to_dict(self.url).items()}
        server = f"{parts['host']}:{parts['port']}"
        return {
            "url": f"jdbc:postgresql://{server}/{parts['dbname']}?stringtype=unspecified",
            "user": parts["user"],
            "password": parts["password"],
            "driver": "org.postgresql.Driver",
        }

    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """Make the queues, and the stores of messages that `fill` copies from."""
        with Session(SinkOptions(url=self.url), "bench") as session:
            connection = session.open()
            for queue in (*queues, "store"):
                connection.run("create_queue", tables={"queue": QueueAddress(queue)})
            for first in range(0, messages, _PORTION):
                portion = orders(first, min(first + _PORTION, messages))
                ids = pa.array([UUID(each).bytes for each in portion["id"].to_pylist()])
                with transaction(connection, timeout=_PATIENCE):
                    rows = portion.set_column(0, "id", ids.cast(pa.binary(16)))
                    connection.load(QueueAddress("store"), rows)
        self.settle("store")
        self.ask(self.hard)

    def fill(
        self, queue: str, messages: int, *, store: str = "store", settled: bool = True
    ) -> None:
        """
        Fill a queue with messages of a store. `settled`: leave no dead rows, and analyze it.

        The checkpoint runs before the messages are inserted. The first change of a page after a
        checkpoint writes the whole page to the WAL. In a real queue rows live shorter than the time
        between two checkpoints, so receiving them seldom writes whole pages. Measured: with a
        checkpoint after the insert receiving wrote 144 MB of WAL, and with one before it 25 MB.
        """
        self.ask(f"TRUNCATE TABLE {queue}")
        if settled:
            self.ask("CHECKPOINT")
        self.ask(
            f"INSERT INTO {queue} (id, headers, body) SELECT id, headers, body FROM {store} "
            f"WHERE seq <= {messages} ORDER BY seq"
        )
        if settled:
            self.settle(queue)

    def settle(self, queue: str) -> None:
        """Vacuum and analyze a queue now, so that the server does not do it while a line runs."""
        self.ask(f"VACUUM ANALYZE {queue}")

    def send_one(self, queue: str) -> None:
        """Send a message, and commit."""
        self.ask(
            f"INSERT INTO {queue} (id, headers, body) "
            "SELECT gen_random_uuid(), headers, body FROM store WHERE seq = 1"
        )

    def count(self, queue: str) -> int:
        """Count what waits in the queue."""
        return int(self.ask(f"SELECT count(*) FROM {queue}")[0][0])

    def bounds(self, queue: str) -> tuple[int, int]:
        """Find the lowest seq, and the one after the highest."""
        first, stop = self.ask(f"SELECT min(seq), max(seq) + 1 FROM {queue}")[0]
        return int(first), int(stop)

    def loop(self) -> float:
        """
        Receive one row of `orders` in one transaction after another. Messages/s.

        Autocommit saves the transport's BEGIN and COMMIT: measured, 10 to 50 % faster.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            taken, start = 0, time.perf_counter()
            while connection.execute(_RECEIVE, prepare=True).rowcount:
                taken += 1
                if time.perf_counter() - start > _SECONDS:
                    break
            return taken / (time.perf_counter() - start)

    def limit(self, pool: Executor, cores: int) -> float:
        """Delete `orders` by ranges on some connections, with a receipt each. Messages/s."""
        self.ask(_RECEIPTS)
        first, stop = self.bounds("orders")
        ends = [first + (stop - first) * at // cores for at in range(cores + 1)]
        start = time.perf_counter()
        taken = sum(pool.map(take, [self.url] * cores, ends, ends[1:]))
        elapsed = time.perf_counter() - start
        expect("the limit line took", taken, stop - first)
        self.ask("TRUNCATE TABLE limit_receipt")
        return taken / elapsed
