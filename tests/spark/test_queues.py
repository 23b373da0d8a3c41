"""Several queues by Spark: the column `queue` tells which, and all are there once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from spark.stand import Queue, finish

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def found(frame: DataFrame) -> Counter[tuple[str, str]]:
    """Queue and message id of each row."""
    rows = frame.selectExpr("queue", "headers['NServiceBus.MessageId'] AS id").collect()
    return Counter((row.queue, row.id) for row in rows)


def test_two_queues_are_browsed_and_received_into_one_table(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A large one and a small one share each batch; progress tells of both."""
    small = Queue(queue.place, "Shop, Billing")
    small.create()
    queue.fill(0, 300)
    small.fill(0, 10)
    sent = Counter(
        {(queue.name, f"m-{at}"): 1 for at in range(300)}
        | {(small.name, f"m-{at}"): 1 for at in range(10)}
    )
    options = {name: text for name, text in queue.options.items() if name != "queue"}
    options |= {"queues": f"{queue.name}, {small.name}"}
    table = str(tmp_path / "table")

    browsed = found(spark.read.format("sqlqueue").options(**options).load())
    stream = spark.readStream.format("sqlqueue").options(**options, maxMessagesPerTrigger=100)
    query = finish(
        stream.load().writeStream.format("parquet").option("path", table), tmp_path / "checkpoint"
    )

    assert browsed == sent
    assert found(spark.read.parquet(table)) == sent
    assert [queue.count(), small.count(), queue.state("receipt")] == [0, 0, 0]
    said = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress]
    assert [each["queue"] for each in said[0]["queues"]] == [queue.name, small.name]
    assert [each["backlog"] for each in said[0]["queues"]] == [300, 10]
    first = json.loads(query.recentProgress[0].sources[0].endOffset)
    assert [part["messages"] for part in first["plan"]] == [90, 10]
