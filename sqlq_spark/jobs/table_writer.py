"""
Writes micro-batches into tables, exactly once, and sends answers to ServiceControl.

A write has a name and a number. By these a table recognises a write that is repeated.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints, functions
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import LOCK_PATIENCE, Destinations
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.jobs import streams
from sqlq_spark.send.insert import Inserts
from sqlq_spark.send.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from sqlq_spark.jobs.settings import StreamSettings
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

# The answers of a batch go to at most this many queues, because each queue takes a transaction.
MOST_QUEUES = 8
# An answer whose headers or address are longer is not sent.
LONGEST = 1000  # characters
# Properties of an Iceberg snapshot. They are in lower case, as Spark makes all options.
APPLICATION = "sqlqueue.application"
BATCH = "sqlqueue.batch"


def receive_into(
    spark: SparkSession,
    settings: StreamSettings,
    columns: Callable[[DataFrame], DataFrame],
    write: Callable[[DataFrame, str, int], None],
) -> dict[str, Any]:
    """
    Run a stream from queues as `streams.receive_queues`, and return its totals.

    Args:
        spark: the session.
        settings: say what to read, and when.
        columns: makes the rows to write from the rows that were read.
        write: writes a micro-batch. It gets the rows to write, the stream's id and the number of
            the batch. With Spark Connect it is pickled, and runs in a process of the server.
    """
    query = ""

    def write_batch(batch: DataFrame, number: int) -> None:
        nonlocal query
        if not query:  # a checkpoint always has the same id
            file = f"{settings.checkpoint.rstrip('/')}/metadata"
            query = str(json.loads(checkpoints.read_text(batch.sparkSession, file))["id"])
        write(batch, query, number)

    def begin(received: DataFrame) -> StreamingQuery:
        return streams.start(columns(received).writeStream.foreachBatch(write_batch), settings)

    return streams.receive_queues(spark, settings, begin)


def keep(
    spark: SparkSession,
    settings: Any,  # noqa: ANN401 - of a job with a table
    columns: Callable[[DataFrame], DataFrame],
    tidy: Callable[[SparkSession, Any], dict[str, int]],
    *partitions: str,
) -> dict[str, Any]:
    """
    Receive into the Delta table of the settings, and tidy it at the end.

    If the stream runs continuously, `tidy` is called after each batch instead. With Spark Connect
    that happens in another process, so the totals lack its counts.
    """
    done = Counter[str]()

    def write(batch: DataFrame, query: str, number: int) -> None:
        append_delta(batch, settings.table, query, number, partitions)
        if settings.trigger != "availableNow":
            done.update(tidy(batch.sparkSession, settings))

    totals = receive_into(spark, settings, columns, write)
    done.update(tidy(spark, settings))
    return totals | done


def append_delta(
    rows: DataFrame, table: str, name: str, number: int, partitions: Sequence[str] = ()
) -> None:
    """
    Append rows to a Delta table, unless it already has this write. A missing table is created.

    The write is recognised by its name and number. A new table is partitioned by the columns
    `partitions`.
    """
    writer = rows.write.format("delta").mode("append").partitionBy(*partitions)
    writer = writer.options(mergeSchema=True, txnAppId=name, txnVersion=number)
    if streams.is_path(table):
        writer.save(table)
    else:
        writer.saveAsTable(table)


def append_iceberg(rows: DataFrame, table: str, name: str, number: int) -> None:
    """
    Append rows to an Iceberg table, unless it already has this write. A missing table is created.

    Iceberg itself does not recognise a repeated write. So the name and the number of a write are
    stored in the properties of its snapshot, and are looked up before the next write, as in
    Iceberg's own streaming sink. A write is found as long as its snapshot is in the table's
    history. If two drivers run at the same time, both may find nothing, and both write.
    """
    spark = rows.sparkSession
    if not spark.catalog.tableExists(table):
        # The table is created empty. Later writes may add columns.
        creator = rows.limit(0).writeTo(table).using("iceberg")
        creator.tableProperty("write.spark.accept-any-schema", "true").create()
    spark.sql(f"REFRESH TABLE {table}")  # another session's cache may be older
    last = spark.sql(
        f"SELECT max(CAST(s.summary['{BATCH}'] AS BIGINT)) FROM {table}.snapshots AS s "  # noqa: S608 - the table is the operator's
        f"JOIN {table}.history AS h ON h.snapshot_id = s.snapshot_id "
        f"WHERE h.is_current_ancestor AND s.summary['{APPLICATION}'] = :application",
        args={"application": name},
    ).collect()[0][0]
    if last is not None and last >= number:
        return
    options = {"merge-schema": "true", "check-ordering": "false"}
    mark = {f"snapshot-property.{APPLICATION}": name, f"snapshot-property.{BATCH}": str(number)}
    rows.writeTo(table).options(**options, **mark).append()


def report_retries(processed: DataFrame, options: SinkOptions, *, json: bool) -> None:
    """
    Report to ServiceControl, after a batch was written, which messages of a retry are processed.

    The addresses of the answers come from messages. So an answer goes only where a message may be
    forwarded: to tables with the owner of the queue from which the message came, or to tables in
    allowedDestinations. An answer that cannot be sent is logged and left out. It fails no batch. A
    repeated answer has no effect.

    Args:
        processed: the rows of the batch.
        options: the options of a sink in the database of the queues.
        json: whether the headers are JSON text.
    """
    answer = F.struct(*functions.acknowledge_retries(json=json), F.col("queue").alias("source"))
    answers = (
        processed.select(F.when(functions.is_retried(json=json), answer).alias("answer"))
        .where("answer IS NOT NULL")
        .select("answer.*")
        .where(f"length(headers) <= {LONGEST} AND length(queue) <= {LONGEST}")
        .toArrow()
    )
    by_queue = answers.group_by(["source", "queue"]).aggregate([("headers", "list")]).to_pylist()
    by_queue.sort(key=lambda row: -len(row["headers_list"]))
    sent = 0
    for row in by_queue[:MOST_QUEUES]:
        sent += send_to(row["source"], row["queue"], row["headers_list"], options)
    if sent < len(answers):
        log.warning("%d of %d retries were not acknowledged", len(answers) - sent, len(answers))


def send_to(source: str, queue: str, headers: list[str], options: SinkOptions) -> int:
    """
    Send answers to the queue `queue`, for messages that came from the queue `source`.

    The answers are inserted in one transaction, which waits only for a short time.

    Returns:
        How many answers were sent; 0 if that is impossible.
    """
    rows = [{"body": b"", "headers": text, "queue": queue} for text in headers]
    try:
        answers = Sender(options=options, partition=0).messages(pa.RecordBatch.from_pylist(rows), 0)
        with Session(options, "acknowledge") as session:
            connection = session.open()
            received_from = connection.names.parse_address(source)
            connection.trusted = options.trusted.with_named([received_from])
            answered = Destinations(connection, source=received_from, by_header=True)
            with transaction(connection, timeout=min(LOCK_PATIENCE, options.query_timeout)):
                Inserts(connection, options, answered).insert(answers)
    except SqlQueueError as error:
        log.warning("%s: retries cannot be acknowledged in %.200r: %s", source, queue, error)
        return 0
    return len(headers)
