"""
Two lines without Spark: the transport's loop, and the limit of what a PostgreSQL gives away.

Both talk to the server through psycopg alone. The limit is a receive without Spark and without
Arrow: two connections delete half the queue each, in COPY's binary form, keep a compressed receipt,
commit and throw the rows away.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from conformance.transport import PostgreSQL
from psycopg import sql

from .database import SECONDS, edges

if TYPE_CHECKING:
    from concurrent.futures import Executor

_RECEIVE = PostgreSQL.texts["receive"].format(queue="orders").encode()
_RECEIPTS = """
CREATE TABLE IF NOT EXISTS limit_receipt (batch serial PRIMARY KEY, payload bytea NOT NULL);
ALTER TABLE limit_receipt ALTER payload SET STORAGE EXTERNAL
"""
_TAKE = """
COPY (DELETE FROM orders WHERE seq >= {} AND seq < {}
      RETURNING id, expires <= now() AT TIME ZONE 'UTC', headers, body, seq)
  TO STDOUT (FORMAT binary)
"""


def loop(url: str) -> float:
    """
    Receive one row in one prepared transaction after another. Messages/s.

    Autocommit spares it the transport's BEGIN and COMMIT: measured, 10 to 50 % faster.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        taken, start = 0, time.perf_counter()
        while connection.execute(_RECEIVE, prepare=True).rowcount:
            taken += 1
            if time.perf_counter() - start > SECONDS:
                break
        return taken / (time.perf_counter() - start)


def limit(
    url: str,
    connection: psycopg.Connection[tuple[object, ...]],
    bounds: tuple[int, int],
    pool: Executor,
    cores: int,
) -> float:
    """Delete by ranges on some connections, with a receipt each. Messages/s."""
    connection.execute(_RECEIPTS)
    first, stop = bounds
    ends = edges(bounds, cores)
    start = time.perf_counter()
    taken = sum(pool.map(_take, [url] * cores, ends, ends[1:]))
    elapsed = time.perf_counter() - start
    connection.execute("TRUNCATE limit_receipt")
    if taken != stop - first:
        message = f"the limit line took {taken} messages of {stop - first}"
        raise RuntimeError(message)
    return taken / elapsed


@cache  # so that it stays open from round to round
def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url)


def _take(url: str, first: int, stop: int) -> int:
    """Run in a process of the pool."""
    connection = _connect(url)
    with connection.cursor() as cursor:
        with cursor.copy(sql.SQL(_TAKE).format(sql.Literal(first), sql.Literal(stop))) as copy:
            rows = b"".join(copy)
        taken = cursor.rowcount
        payload = pa.compress(rows, codec="zstd", asbytes=True)
        cursor.execute("INSERT INTO limit_receipt (payload) VALUES (%b)", [payload])
    connection.commit()
    return taken
