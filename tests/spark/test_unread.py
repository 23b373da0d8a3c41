"""Batches that nothing reads: Spark starts no task, and commits the batch anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


def returns_early(queue: SparkQueue, rows: DataFrame) -> DataStreamWriter:
    """A function that reads nothing."""
    del queue
    return rows.writeStream.foreachBatch(lambda _rows, _number: None)


def joins_nothing(queue: SparkQueue, rows: DataFrame) -> DataStreamWriter:
    """A join with an empty broadcast side, which Spark does not compute."""
    nothing = queue.spark.createDataFrame([], "key bigint")

    def write(batch: DataFrame, _number: int) -> None:
        batch.join(F.broadcast(nothing), batch["seq"] == nothing["key"]).collect()

    return rows.writeStream.foreachBatch(write)


def skips_in_delta(queue: SparkQueue, rows: DataFrame) -> DataStreamWriter:
    """A Delta write under a transaction that the table has."""
    table = f"{queue.folder}/delta"
    old = {"txnAppId": "orders", "txnVersion": "1000"}
    one = queue.spark.createDataFrame([(0,)], "seq bigint")
    one.write.format("delta").options(**old).save(table)

    def write(batch: DataFrame, number: int) -> None:
        options = {"txnAppId": "orders", "txnVersion": str(number)}
        batch.select("seq").write.format("delta").mode("append").options(**options).save(table)

    return rows.writeStream.foreachBatch(write)


@pytest.mark.parametrize("make", [returns_early, joins_nothing, skips_in_delta])
def test_a_run_that_reads_nothing_ends_and_loses_nothing(
    queue: SparkQueue,
    make: Callable[[SparkQueue, DataFrame], DataStreamWriter],
) -> None:
    """It ends after one batch, and failOnMissingReceipts says whether that is an error."""
    queue.fill(0, 10)
    strict = make(queue, queue.stream().load())
    with pytest.raises(StreamingQueryException, match=r"had \d tasks and left 0 receipts"):
        finish(strict, queue.checkpoint)
    lax = queue.stream(failOnMissingReceipts="false").load()
    seen: list[str] = []

    finish(returns_early(queue, lax), queue.checkpoint)
    left, batches = queue.count(), queue.batches()
    reading = queue.stream().load().writeStream
    finish(reading.foreachBatch(lambda rows, _: seen.extend(message_ids(rows))), queue.checkpoint)

    assert (left, batches) == (10, [0, 1])
    assert seen == numbered(0, 10)


def test_the_first_batch_of_a_checkpoint_may_be_empty(queue: SparkQueue) -> None:
    """Spark runs it although nothing waits; a later start without messages runs none."""
    for _ in range(2):
        queue.into_table(queue.stream().load())

    assert queue.batches() == [0]
