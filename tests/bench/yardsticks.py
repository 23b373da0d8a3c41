"""Yardsticks: Spark's JDBC and rate sources, which users have without this package; and a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .stand import CORES, expect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from .stand import Stand

SMALL_BATCHES = 25
_COLD = 5  # the first small batches do not count, because they load and compile code


def durations(progress: Sequence[Any]) -> list[float]:
    """Take the whole duration of each batch with rows, in ms, but for the first few."""
    batches = [batch for batch in progress if batch.numInputRows]
    return [float(batch.durationMs["triggerExecution"]) for batch in batches[_COLD:]]


def first_batches(stand: Stand, rows: DataFrame) -> list[float]:
    """Run the first micro-batches of a stream to noop. Milliseconds each."""
    query = rows.writeStream.format("noop").option("checkpointLocation", stand.checkpoint()).start()
    try:
        while len(query.recentProgress) < SMALL_BATCHES:
            time.sleep(0.2)
    finally:
        query.stop()
    return durations(query.recentProgress)


def read(stand: Stand, *, tuned: bool) -> list[float]:
    """
    A JDBC read of all that waits. Messages/s.

    Plain: one partition, and the driver holds the whole answer. Tuned: two partitions by seq, and
    10,000 rows a fetch.
    """
    options = _tuned(*stand.database.bounds("shelf")) if tuned else {}
    start = time.perf_counter()
    _read(stand, "shelf", options)
    return [stand.messages / (time.perf_counter() - start)]


def limit(stand: Stand) -> list[float]:
    """The most messages that the server can give to clients without Spark. Messages/s."""
    return [stand.database.limit(stand.pool, CORES)]


def by_hand(stand: Stand) -> list[float]:
    """A tuned read of a range of seq, then one DELETE of it: not exactly once. Messages/s."""
    start = time.perf_counter()
    first, stop = stand.database.bounds("orders")
    part = f"FROM orders WHERE seq >= {first} AND seq < {stop}"
    _read(stand, f"(SELECT * {part}) AS part", _tuned(first, stop))
    stand.database.ask(f"DELETE {part}")
    elapsed = time.perf_counter() - start
    expect("left by hand:", stand.database.count("orders"), 0)
    return [stand.messages / elapsed]


def append(stand: Stand, setting: str = "", form: str = "") -> list[float]:
    """Default batch size, one connection for each of two partitions. Messages/s."""
    frame = stand.forms[form] if form else stand.frame
    connection = stand.database.jdbc()
    connection["url"] += setting
    start = time.perf_counter()
    frame.write.format("jdbc").options(**connection).option("dbtable", "sent").mode("append").save()
    return [stand.messages / (time.perf_counter() - start)]


def append_rewritten(stand: Stand) -> list[float]:
    """The driver joins the rows of a batch into INSERTs of many rows. Messages/s."""
    return append(stand, "&reWriteBatchedInserts=true")


def rate_batch(stand: Stand) -> list[float]:
    """One row a micro-batch from Spark's rate source to noop, one task. Milliseconds each."""
    source = stand.spark.readStream.format("rate-micro-batch")
    return first_batches(stand, source.options(rowsPerBatch=1, numPartitions=1).load())


def python_batch(stand: Stand) -> list[float]:
    """
    One row a micro-batch from a Python source that does nothing, to noop. Milliseconds each.

    This is the time that Spark needs for any source in Python. The source's offsets come to an end,
    as those of a queue that is drained.
    """
    stand.spark.dataSource.register(source_of_nothing(SMALL_BATCHES))
    rows = stand.spark.readStream.format("nothing").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", stand.checkpoint())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return durations(query.recentProgress)


def source_of_nothing(batches: int) -> type[DataSource]:
    """Return a class for the source. It is local, because Spark pickles a local class by value."""

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 Spark's name
            return {"batch": 0}

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadMaxRows(1)

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
            return {"batch": min(start["batch"] + 1, batches)}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Need nothing."""

        def partitions(self, *_: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, _: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"one": pa.array([1], pa.int64())})

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def schema(self) -> str:
            return "one bigint"

        def streamReader(self, schema: StructType) -> Reader:  # noqa: ARG002, N802
            return Reader()

    return Source


def _tuned(first: int, stop: int) -> dict[str, str]:
    column = {"partitionColumn": "seq", "lowerBound": str(first), "upperBound": str(stop)}
    return {**column, "numPartitions": "2", "fetchsize": "10000"}


def _read(stand: Stand, table: str, options: dict[str, str]) -> None:
    source = stand.spark.read.format("jdbc").options(**stand.database.jdbc(), **options)
    rows = source.option("dbtable", table).load()
    rows.write.format("noop").mode("overwrite").save()
