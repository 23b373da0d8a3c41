"""
Streaming as Spark 4.0 and 4.1 call it: `latestOffset()` without the offset that was committed.

The calls are those that were measured there; `python -m tests.compat` runs those versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import CheckpointRolledBack

if TYPE_CHECKING:
    from spark.stand import Queue

SCHEMA = StructType().add("id", StringType()).add("seq", LongType())


@pytest.fixture
def options(queue: Queue) -> dict[str, str]:
    """Give a stream's options, one task for a batch of ten."""
    return queue.options | {"maxMessagesPerTrigger": "10", "maxConcurrency": "1"}


class Driver:
    """A driver's process: a stream that knows nothing yet, and its last offset."""

    def __init__(self, options: dict[str, str], start: Any = None) -> None:
        """Begin; as at each restart, with the last logged offset."""
        self.stream = DefaultSource(options).streamReader(SCHEMA)
        self.at = start or self.stream.initialOffset()
        if start:
            self.stream.partitions(start, start)

    def read(self, start: Any, end: Any) -> list[int]:
        """Plan and read a batch, as Spark does for each."""
        tasks = [self.stream.read(each) for each in self.stream.partitions(start, end)]
        return [seq for task in tasks for rows in task for seq in rows.column("seq").to_pylist()]

    def batch(self) -> list[int]:
        """Receive the next batch."""
        start, self.at = self.at, self.stream.latestOffset()
        return self.read(start, self.at)


def test_a_stream_and_its_restart(queue: Queue, options: dict[str, str]) -> None:
    """Every batch once; after a restart the next one, and the last is acknowledged."""
    queue.fill(0, 25)
    first = Driver(options)
    got = first.batch()
    first.stream.commit(first.at)
    got += first.batch()

    second = Driver(options, first.at)  # batch 2 is in the commit log
    got += second.batch()
    three = second.at

    assert got == list(range(1, 26))
    assert second.stream.latestOffset() == three
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def test_a_restart_after_a_crash_replays_the_batch(queue: Queue, options: dict[str, str]) -> None:
    """The last offset is not in the commit log: Spark asks for its batch again."""
    queue.fill(0, 25)
    first = Driver(options)
    start = first.at
    got = first.batch()

    second = Driver(options, first.at)

    assert second.read(start, first.at) == got
    assert second.batch() == list(range(11, 21))


def test_a_lost_offset_gets_the_stored_plan(queue: Queue, options: dict[str, str]) -> None:
    """Without the offset of the batch that was received, the plan is handed out again."""
    queue.fill(0, 25)
    first = Driver(options)
    first.batch()
    one = first.at
    got = first.batch()

    second = Driver(options | {"maxMessagesPerTrigger": "3"}, one)

    assert second.batch() == got
    assert second.at == first.at


def test_a_rolled_back_checkpoint_is_refused(queue: Queue, options: dict[str, str]) -> None:
    """Its last offset is behind the batches that were acknowledged."""
    queue.fill(0, 35)
    first = Driver(options)
    first.batch()
    one = first.at
    first.batch()
    first.batch()
    first.stream.commit(first.at)

    with pytest.raises(CheckpointRolledBack):
        Driver(options, one).batch()
