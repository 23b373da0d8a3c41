"""
Two lines without Spark: the transport's loop, and the limit of what this server gives away.

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
from psycopg import sql

from . import database
from .stand import CORES

if TYPE_CHECKING:
    from .stand import Stand

_SECONDS = 3.0  # of the one-row loop

_RECEIVE = """
DELETE FROM orders
 WHERE id = (SELECT id FROM orders ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, expires < now() AT TIME ZONE 'UTC' AS expired, headers, body
"""
_RECEIPTS = """
CREATE TABLE IF NOT EXISTS limit_receipt (batch serial PRIMARY KEY, payload bytea NOT NULL);
ALTER TABLE limit_receipt ALTER payload SET STORAGE EXTERNAL
"""
_TAKE = """
COPY (DELETE FROM orders WHERE seq >= {} AND seq < {}
      RETURNING id, expires <= now() AT TIME ZONE 'UTC', headers, body, seq)
  TO STDOUT (FORMAT binary)
"""


def loop(stand: Stand) -> list[float]:
    """
    Receive one row in one prepared transaction after another. Messages/s.

    Autocommit spares it the transport's BEGIN and COMMIT: measured, 10 to 50 % faster.
    """
    with psycopg.connect(stand.url, autocommit=True) as connection:
        taken, start = 0, time.perf_counter()
        while connection.execute(_RECEIVE, prepare=True).rowcount:
            taken += 1
            if time.perf_counter() - start > _SECONDS:
                break
        return [taken / (time.perf_counter() - start)]


def limit(stand: Stand) -> list[float]:
    """Delete by ranges on two connections, with a receipt each. Messages/s."""
    stand.connection.execute(_RECEIPTS)
    first, stop = database.bounds(stand.connection, "orders")
    edges = [first + (stop - first) * at // CORES for at in range(CORES + 1)]
    start = time.perf_counter()
    taken = sum(stand.pool.map(_take, [stand.url] * CORES, edges, edges[1:]))
    elapsed = time.perf_counter() - start
    stand.connection.execute("TRUNCATE limit_receipt")
    if taken != stop - first:
        message = f"the limit line took {taken} messages of {stop - first}"
        raise RuntimeError(message)
    return [taken / elapsed]


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
