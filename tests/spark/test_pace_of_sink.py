"""A query that waits before it sends can be stopped, and goes on later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from waiting import until

from spark.stand import numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


def running(queue: SparkQueue) -> int:
    """How many tasks run."""
    tracker = queue.spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no tasks
    return sum(each.numRunningTasks() for each in tracker.getExecutorInfos())


def drain_one(out: SparkQueue) -> None:
    """Handle one message, so that 9 wait."""
    assert out.dotnet.receive(out.address)


def pass_hours(out: SparkQueue) -> None:
    """Let the last dispatch be long ago."""
    out.dba.age("dispatch_log", "dispatched", hours=1000)


@pytest.mark.parametrize(
    ("option", "limit", "release"),
    [("pauseAboveBacklog", 9, drain_one), ("maxMessagesPerSecond", 1, pass_hours)],
)
def test_a_query_is_stopped_while_it_waits_and_sends_once_later(
    queue: SparkQueue, option: str, limit: int, release: Callable[[SparkQueue], None]
) -> None:
    """The first of two tasks waits, the other one ends; the next run waits for nothing."""
    out = queue.another("out")

    def writer() -> DataStreamWriter:
        options = {**out.options, option: str(limit)}
        stream = queue.stream(maxConcurrency=2).load().drop("queue")
        return stream.writeStream.format("sqlqueue").options(**options)

    queue.fill(0, 10)
    queue.finish(writer())
    out.dba.change("dispatch_log", messages=1_000_000)
    queue.fill(10, 2510)

    checkpoint = str(queue.folder / "checkpoint")
    query = writer().option("checkpointLocation", checkpoint).start()
    until(lambda: [queue.state("staging"), running(queue)], [2, 1])
    query.stop()
    until(lambda: running(queue), 0)
    assert sorted(out.ids()) == sorted(numbered(0, 10))
    release(out)
    left = out.ids()
    queue.finish(writer())

    assert sorted(out.ids()) == sorted([*left, *numbered(10, 2510)])
    assert [queue.count(), queue.state("staging")] == [0, 0]
