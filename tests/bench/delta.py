"""
Lines that end in a Delta table: streams, the job, one message; and what Delta itself can do.

The yardstick of a stream is a Parquet stream of the same rows into Delta: no source can be faster
into this sink. The yardstick of one message is an empty Python source into Delta.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlq_spark.jobs import queue_to_delta
from sqlq_spark.jobs.queue_to_delta import QueueToDeltaSettings

from .ours import drain, receiving, steady_rate
from .stand import BATCHES, CORES, ERROR_QUEUE, expect
from .yardsticks import SMALL_BATCHES, durations, source_of_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .stand import Stand

# the columns of the bodies that messages.py writes
_TYPES = (
    "OrderId string, CustomerId bigint, PlacedAt timestamp, Currency string, Total double, "
    "Lines array<struct<Sku string, Name string, Quantity int, UnitPrice double>>, "
    "ShipTo struct<Name string, Street string, PostalCode string, City string, Phone string>, "
    "GiftWrap boolean"
)
_ARRIVALS = 20  # messages of one round
_PATIENCE = 30.0  # seconds for one message to arrive


def _into_delta(stand: Stand, rows: DataFrame) -> DataStreamWriter:
    return rows.writeStream.format("delta").option("path", stand.checkpoint())


def receive(stand: Stand, **options: Any) -> list[float]:
    """Batches to a Delta table on the local disk. Messages/s."""
    return receive_in_batches(stand, stand.messages, **options)


def receive_in_batches(stand: Stand, most: int | None = None, **options: Any) -> list[float]:
    """The same messages to Delta, in batches of another size. None: they grow. Messages/s."""
    writer = _into_delta(stand, receiving(stand, most, **options))
    return [steady_rate(stand, writer, stand.messages * BATCHES)]


def write_parquet(stand: Stand) -> None:
    """Write the rows of BATCHES batches as Parquet, once: CORES files for each batch."""
    folder = _parquet(stand)
    if folder.exists():
        return
    source = stand.spark.read.format(stand.ours).option("url", stand.url)
    rows = source.option("headersFormat", "json").load("shelf").repartition(CORES).cache()
    expect("browsed", rows.count(), stand.messages)
    for _ in range(BATCHES):
        rows.write.mode("append").parquet(str(folder))
    rows.unpersist()


def _parquet(stand: Stand) -> Path:
    return stand.folder / "parquet"


def parquet_to_delta(stand: Stand) -> list[float]:
    """The same rows from a Parquet stream into Delta. Rows/s."""
    path = str(_parquet(stand))
    schema = stand.spark.read.parquet(path).schema
    source = stand.spark.readStream.schema(schema).option("maxFilesPerTrigger", CORES)
    writer = _into_delta(stand, source.parquet(path))
    return [steady_rate(stand, writer, stand.messages * BATCHES)]


def job(stand: Stand, *, typed: bool) -> list[float]:
    """
    The job queue_to_delta with an error queue, all batches, from its start to its end. Messages/s.

    With `typed` the table has the columns of the body.
    """
    settings = QueueToDeltaSettings(
        url=stand.url,
        queues="orders",
        table=stand.checkpoint(),
        checkpoint=stand.checkpoint(),
        headers_format="json",
        error_queue=ERROR_QUEUE,
        schema=_TYPES if typed else None,
        source={"maxMessagesPerTrigger": str(stand.messages)},
    )
    assert stand.ours  # the format is registered, and the state tables are there
    start = time.perf_counter()
    totals = queue_to_delta.run(stand.spark, settings)
    elapsed = time.perf_counter() - start
    messages = stand.messages * BATCHES
    expect("the job received", totals["messages"], messages)
    expect("the error queue holds", stand.database.count(ERROR_QUEUE), 0)
    return [messages / elapsed]


def small_batches(stand: Stand) -> list[float]:
    """Micro-batches of one message into Delta. Milliseconds each."""
    return durations(drain(stand, _into_delta(stand, receiving(stand, 1))))


def python_batch(stand: Stand) -> list[float]:
    """Micro-batches of one row from a Python source that does nothing, into Delta. Milliseconds."""
    stand.spark.dataSource.register(source_of_nothing(SMALL_BATCHES))
    rows = stand.spark.readStream.format("nothing").load()
    return durations(drain(stand, _into_delta(stand, rows)))


def latency(stand: Stand, *, delay: str, partitions: int = 50, commits: int = 10) -> list[float]:
    """
    Messages sent one by one to an idle stream: insert to commit in Delta. Milliseconds each.

    `partitions` are the tasks in which Delta reads its own log. After that many `commits` it writes
    a checkpoint of the log. The defaults are Delta's.
    """
    settings = {
        "spark.databricks.delta.snapshotPartitions": partitions,
        "spark.databricks.delta.properties.defaults.checkpointInterval": commits,
    }
    for name, value in settings.items():
        stand.spark.conf.set(name, value)
    rows = receiving(stand, stand.messages, peekDelay=delay)
    table = stand.checkpoint()
    writer = rows.writeStream.format("delta").option("path", table)
    query = writer.option("checkpointLocation", stand.checkpoint()).start()
    try:
        # the first batch does not count, because it loads code
        return [_arrival(stand, query, Path(table)) for _ in range(_ARRIVALS + 1)][1:]
    finally:
        query.stop()
        for name in settings:
            stand.spark.conf.unset(name)


def _arrival(stand: Stand, query: StreamingQuery, table: Path) -> float:
    """Send a message, and wait for the next entry in the table's log."""
    time.sleep(random.uniform(0.2, 1.2))  # arrive at any phase of the peek loop
    log = table / "_delta_log"
    number = len([*log.glob("*.json")])
    stand.database.send_one("orders")
    sent = time.time()
    entry = log / f"{number:020}.json"
    until = time.monotonic() + _PATIENCE
    while not entry.exists():
        if time.monotonic() > until or not query.isActive:
            message = "no message came into the Delta table"
            raise RuntimeError(message)
        time.sleep(0.001)
    return 1000 * (entry.stat().st_mtime - sent)
