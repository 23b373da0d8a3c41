"""Delayed delivery through Spark: written with a delay or a moment, moved when due, read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import message_ids
from sqlq_spark.database import schema
from sqlq_spark.wire.headers import DELIVER_AT, FORWARD_DESTINATION

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


def delayed(queue: SparkQueue) -> SparkQueue:
    """Create the table of a queue's delayed messages."""
    queue.connected(lambda c: schema.create_delayed(c, queue.address))
    return queue.beside(f"{queue.table}.Delayed")


def test_a_delayed_frame_comes_when_it_is_due(queue: SparkQueue) -> None:
    """By a moment or an interval; a stream moves it, and removes its forward header."""
    waiting = delayed(queue)
    base = queue.spark.createDataFrame([("past",), ("now",), ("hour",), ("plain",)], "id string")
    moments = base.withColumn("body", F.col("id")).withColumn(
        "deliverAt", F.when(F.col("id") == "past", F.timestamp_seconds(F.lit(1_600_000_000)))
    )
    spans = F.when(F.col("id") == "hour", F.expr("INTERVAL 1 HOUR")).when(
        F.col("id") == "now", F.expr("INTERVAL 0 HOUR")
    )

    queue.send(moments.withColumn("delay", spans))

    assert queue.ids() == ["plain"]
    stored = [json.loads(row.headers) for row in queue.dotnet.delayed_rows(waiting.address)]
    assert [each["NServiceBus.MessageId"] for each in stored] == ["past", "now", "hour"]
    assert {each[FORWARD_DESTINATION] for each in stored} == {queue.name}
    assert stored[0][DELIVER_AT] == "2020-09-13 12:26:40:000000 Z"

    queue.into_table(queue.stream(delayedDelivery="true").load())

    rows = queue.landed().collect()
    assert message_ids(rows) == ["plain", "past", "now"]
    assert all(FORWARD_DESTINATION not in row["headers"] for row in rows)
    assert rows[1]["headers"][DELIVER_AT] == stored[0][DELIVER_AT]
    assert waiting.count() == 1


def test_a_delay_of_text_waits_for_another_queue_and_is_forwarded(queue: SparkQueue) -> None:
    """Through the sender's own table, at least once, and the sender's queue."""
    waiting, billing = delayed(queue), queue.another("billing")
    frame = queue.spark.range(20).select(
        F.col("id").cast("string").alias("body"),
        F.lit("00:00:00").alias("delay"),
        F.lit(billing.name).alias("queue"),
    )
    queue.send_by_column(frame, delivery="atLeastOnce", delayedQueue=waiting.name)
    assert billing.count() == queue.count() == 0

    queue.into_table(queue.stream(delayedDelivery="true").load())

    assert sorted(int(body) for _, body in billing.rows()) == list(range(20))
    assert queue.spark.read.schema("body binary").parquet(str(queue.folder / "table")).count() == 0
