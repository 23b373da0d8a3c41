"""What sinks do with batch numbers that they have seen, and what becomes of the messages."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from spark.stand import finish, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.stand import Queue

pytestmark = pytest.mark.spark


def run(spark: SparkSession, queue: Queue, folder: Path, checkpoint: Path, **options: Any) -> None:
    """Receive what waits into Parquet files, in batches of 100."""
    stream = queue.stream(spark, maxMessagesPerTrigger=100, peekDelay="100ms", **options).load()
    finish(stream.writeStream.format("parquet").option("path", str(folder)), checkpoint)


def written(spark: SparkSession, folder: Path) -> list[str]:
    """The message ids in the folder, in order."""
    ids = spark.read.parquet(str(folder)).selectExpr("headers['NServiceBus.MessageId'] AS id")
    return sorted((row.id for row in ids.collect()), key=lambda each: int(each[2:]))


def test_a_file_sink_skips_batches_of_a_new_checkpoint_in_an_old_folder(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """It compares batch numbers only; its messages wait until the numbers pass the old ones."""
    queue.fill(0, 250)
    run(spark, queue, tmp_path / "lake", tmp_path / "first")
    queue.fill(250, 260)

    run(spark, queue, tmp_path / "lake", tmp_path / "second")

    batches = {int(path.name) for path in (tmp_path / "lake" / "_spark_metadata").glob("[0-9]*")}
    assert batches == {0, 1, 2, 3}
    assert written(spark, tmp_path / "lake") == numbered(0, 260)


def test_a_rolled_back_checkpoint_postpones_what_a_file_sink_skips(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """With failOnDataLoss=false the skipped batches are not read, so nothing is lost."""
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    queue.fill(0, 100)
    run(spark, queue, lake, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "old")
    queue.fill(100, 300)
    run(spark, queue, lake, checkpoint)
    queue.fill(300, 310)

    run(spark, queue, lake, tmp_path / "old", failOnDataLoss="false")

    assert written(spark, lake) == numbered(0, 310)
