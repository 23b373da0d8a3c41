"""What a stream knows already: Spark's JDBC and rate sources; a loop of one row, and a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .figures import durations
from .stand import CORES

if TYPE_CHECKING:
    from .stand import Stand

_IDLE_BATCHES = 25


def loop(stand: Stand) -> list[float]:
    """One row a transaction, without Spark. Messages/s."""
    return [stand.database.loop()]


def limit(stand: Stand) -> list[float]:
    """What the server gives away at most, without Spark. Messages/s."""
    return [stand.database.limit(stand.pool, CORES)]


def read_plain(stand: Stand) -> list[float]:
    """One partition, default fetch size: the driver holds the whole answer. Messages/s."""
    return [_read(stand, {})]


def read_tuned(stand: Stand) -> list[float]:
    """Two partitions by seq, 10,000 rows a fetch. Messages/s."""
    first, stop = stand.database.bounds("shelf")
    bounds = {
        "partitionColumn": stand.database.seq,
        "lowerBound": str(first),
        "upperBound": str(stop),
    }
    return [_read(stand, bounds | {"numPartitions": "2", "fetchsize": "10000"})]


def append_plain(stand: Stand) -> list[float]:
    """Default batch size, one connection for each of two partitions. Messages/s."""
    return [_append(stand, "")]


def append_rewritten(stand: Stand) -> list[float]:
    """The driver joins the rows of a batch into INSERTs of many rows. Messages/s."""
    return [_append(stand, stand.database.rewriting)]


def rate_batch(stand: Stand) -> list[float]:
    """One row a micro-batch from Spark's rate source to noop, one task. Milliseconds each."""
    source = stand.spark.readStream.format("rate-micro-batch")
    rows = source.options(rowsPerBatch=1, numPartitions=1).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", stand.checkpoint()).start()
    try:
        while len(query.recentProgress) < _IDLE_BATCHES:
            time.sleep(0.2)
    finally:
        query.stop()
    return durations(query.recentProgress)


def _read(stand: Stand, options: dict[str, str]) -> float:
    connection = stand.database.jdbc()
    source = stand.spark.read.format("jdbc").options(**connection, **options)
    rows = source.option("dbtable", "shelf").load()
    start = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return stand.messages / (time.perf_counter() - start)


def _append(stand: Stand, setting: str) -> float:
    frame = stand.frame
    connection = stand.database.jdbc()
    connection["url"] += setting
    start = time.perf_counter()
    frame.write.format("jdbc").options(**connection).option("dbtable", "sent").mode("append").save()
    return stand.messages / (time.perf_counter() - start)
