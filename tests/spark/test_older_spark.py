"""
Streaming as Spark 4.0 and 4.1 call it: `latestOffset()` without the offset that was committed.

The calls are those that were measured there; `python -m tests.compat` runs the versions themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from sqlq_spark.datasource import DefaultSource, StreamReader
from sqlq_spark.errors import CheckpointRolledBack

if TYPE_CHECKING:
    from spark.stand import Queue

SCHEMA = StructType().add("id", StringType()).add("seq", LongType())


@pytest.fixture
def options(queue: Queue) -> dict[str, str]:
    """Give a stream's options, one task for a batch of ten."""
    return queue.options | {"maxMessagesPerTrigger": "10", "maxConcurrency": "1"}


def process(options: dict[str, str]) -> StreamReader:
    """Start a driver's process: a stream that knows nothing."""
    return cast("StreamReader", DefaultSource(options).streamReader(SCHEMA))


def batch(stream: StreamReader, start: Any, end: Any) -> list[int]:
    """Plan and read a batch, as Spark does for each."""
    found = []
    for partition in stream.partitions(start, end):
        for rows in stream.read(partition):
            found += rows.column("seq").to_pylist()
    return found


def test_a_stream_and_its_restart(queue: Queue, options: dict[str, str]) -> None:
    """Every batch once; after a restart the next one, and the last is acknowledged."""
    queue.fill(0, 25)
    first = process(options)
    start = first.initialOffset()
    one = first.latestOffset()
    got = batch(first, start, one)
    two = first.latestOffset()
    first.commit(one)
    got += batch(first, one, two)

    second = process(options)  # batch 2 is in the commit log
    second.partitions(two, two)
    three = second.latestOffset()
    second.commit(two)
    got += batch(second, two, three)
    last = second.latestOffset()

    assert got == list(range(1, 26))
    assert last == three
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def test_a_restart_after_a_crash_replays_the_batch(queue: Queue, options: dict[str, str]) -> None:
    """The last offset is not in the commit log: Spark asks for its batch again."""
    queue.fill(0, 25)
    first = process(options)
    start, one = first.initialOffset(), first.latestOffset()
    got = batch(first, start, one)

    second = process(options)
    second.partitions(one, one)
    again = batch(second, start, one)
    two = second.latestOffset()

    assert again == got
    assert batch(second, one, two) == list(range(11, 21))


def test_a_lost_offset_gets_the_stored_plan(queue: Queue, options: dict[str, str]) -> None:
    """The offset of the batch that was received is gone: the plan is handed out again."""
    queue.fill(0, 25)
    first = process(options)
    start, one = first.initialOffset(), first.latestOffset()
    batch(first, start, one)
    two = first.latestOffset()
    got = batch(first, one, two)

    second = process(options | {"maxMessagesPerTrigger": "3"})
    second.partitions(one, one)
    planned = second.latestOffset()

    assert planned == two
    assert batch(second, one, planned) == got


def test_a_rolled_back_checkpoint_is_refused(queue: Queue, options: dict[str, str]) -> None:
    """Its last offset is behind what was acknowledged."""
    queue.fill(0, 35)
    first = process(options)
    start, one = first.initialOffset(), first.latestOffset()
    batch(first, start, one)
    two = first.latestOffset()
    batch(first, one, two)
    three = first.latestOffset()
    batch(first, two, three)
    first.commit(three)

    second = process(options)
    second.partitions(one, one)
    with pytest.raises(CheckpointRolledBack):
        second.latestOffset()
