"""What a file sink does with batch numbers that it has seen, and where the messages are then."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.stand import Queue

pytestmark = pytest.mark.spark


def run(spark: SparkSession, queue: Queue, checkpoint: Path, **options: object) -> list[str]:
    """Receive what waits, in batches of 100, into the folder `lake`; gives all ids there."""
    lake = str(checkpoint.with_name("lake"))
    stream = queue.stream(spark, maxMessagesPerTrigger=100, peekDelay="100ms", **options).load()
    finish(stream.writeStream.format("parquet").option("path", lake), checkpoint)
    return sorted(message_ids(spark.read.parquet(lake)), key=lambda each: int(each[2:]))


def test_a_file_sink_skips_batches_of_a_new_checkpoint_in_an_old_folder(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """It compares batch numbers only; its messages wait until the numbers pass the old ones."""
    queue.fill(0, 250)
    run(spark, queue, tmp_path / "first")
    queue.fill(250, 260)

    written = run(spark, queue, tmp_path / "second")

    batches = {int(path.name) for path in (tmp_path / "lake" / "_spark_metadata").glob("[0-9]*")}
    assert batches == {0, 1, 2, 3}
    assert written == numbered(0, 260)


def test_a_rolled_back_checkpoint_postpones_what_a_file_sink_skips(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """With failOnDataLoss=false the skipped batches are not read, so nothing is lost."""
    queue.fill(0, 100)
    run(spark, queue, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    queue.fill(100, 300)
    run(spark, queue, tmp_path / "checkpoint")
    queue.fill(300, 310)

    assert run(spark, queue, tmp_path / "old", failOnDataLoss="false") == numbered(0, 310)
