"""Receiving: triggers, sinks, batches and the progress."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from waiting import until

from spark.stand import message_ids, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had some."""
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def backlogs(query: StreamingQuery) -> list[dict[str, Any]]:
    """What each micro-batch reported about the queue."""
    return [json.loads(each.sources[0].latestOffset) for each in query.recentProgress]


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_available_now_takes_all_in_limited_batches(queue: SparkQueue, sink: str) -> None:
    """Each message is in the table once, no receipt is left, and later runs go on from there."""
    queue.fill(0, 2500)
    stream = queue.stream(maxMessagesPerTrigger=1000).load()

    first, idle = (queue.into_table(stream, sink) for _ in range(2))
    queue.fill(2500, 2520)
    queue.into_table(stream, sink)

    assert message_ids(queue.landed(sink)) == numbered(0, 2520)
    assert [batches(first), batches(idle)] == [[1000, 1000, 500], []]
    assert [queue.count(), queue.state("receipt"), queue.state("stream")] == [0, 0, 1]


def test_available_now_ends_at_what_waited_at_the_start(queue: SparkQueue) -> None:
    """Messages that are sent during a run wait for the next run, or it might never end."""
    queue.fill(0, 40)

    def send_more(frame: DataFrame, _batch: int) -> None:
        frame.collect()
        queue.fill(1000, 1020)

    stream = queue.stream(maxMessagesPerTrigger=20).load()
    query = queue.finish(stream.writeStream.foreachBatch(send_more))

    assert batches(query) == [20, 20]
    assert queue.count() == 40


def test_available_now_gets_past_expired_and_poisoned_rows(queue: SparkQueue) -> None:
    """1,000 rows at the head that are not delivered do not look like the end of the queue."""
    errors = queue.another("error")
    queue.dba.poison(queue.address, 1010, expired=1000)
    queue.fill(0, 50)

    stream = queue.stream(maxMessagesPerTrigger=500, errorQueue=errors.name).load()
    query = queue.into_table(stream)

    assert message_ids(queue.landed()) == numbered(0, 50)
    assert [queue.count(), errors.count()] == [0, 10]
    last = backlogs(query)[1]["lastBatch"]
    assert {"messages": 0, "expired": 500, "diverted": 0}.items() <= last.items()


@pytest.mark.parametrize("trigger", ["processing time", "default"])
def test_a_running_stream_takes_what_comes(queue: SparkQueue, trigger: str) -> None:
    """Messages sent while it runs arrive, its progress counts them, and a restart goes on."""
    writer = (
        queue.stream(peekDelay="100ms")
        .load()
        .writeStream.format("parquet")
        .option("path", str(queue.folder / "table"))
        .option("checkpointLocation", str(queue.folder / "checkpoint"))
    )
    if trigger == "processing time":
        writer = writer.trigger(processingTime="200 milliseconds")

    for first in (0, 100):  # the second time it goes on from its checkpoint
        query = writer.start()
        try:
            queue.fill(first, first + 50)
            until(queue.count, 0, told=query.exception)
            queue.fill(first + 50, first + 100)
            until(lambda: [queue.count(), queue.state("receipt")], [0, 0], told=query.exception)
        finally:
            query.stop()
        assert query.exception() is None

    assert message_ids(queue.landed()) == numbered(0, 200)
    assert sum(batches(query)) == 100


def test_progress_has_the_backlog_and_the_last_batch(queue: SparkQueue) -> None:
    """sources[].latestOffset has what an operator puts on a chart."""
    queue.fill(0, 250)

    stream = queue.stream(maxMessagesPerTrigger=100).load()
    query = queue.finish(stream.writeStream.format("noop"))

    found = backlogs(query)
    waits = [each.pop("oldestWaited") for each in found[:3]]
    assert found[0] == {
        "queue": queue.name,
        "backlog": 250,
        "backlogIsEstimate": True,
        "tasks": 2,
        "ramp": {"successes": 0, "failures": 0},
    }
    counts = {"messages": 100, "expired": 0, "diverted": 0, "forwarded": 0}
    assert found[2] == {
        "queue": queue.name,
        "backlog": 50,
        "backlogIsEstimate": False,
        "tasks": 2,
        "ramp": {"successes": 2, "failures": 0},
        "lastBatch": {"batch": 2, "tasks": 1, "emptyTasks": 0} | counts,
    }
    assert all(each >= 0 for each in waits)
    end = json.loads(query.recentProgress[0].sources[0].endOffset)
    assert list(end) == ["v", "stream", "batch", "plan"]


@pytest.mark.parametrize("most", [1, 3])
def test_concurrency_is_the_most_tasks_of_a_batch(queue: SparkQueue, most: int) -> None:
    """A large backlog is cut into maxConcurrency ranges, in the order of seq."""
    queue.fill(0, 6000)
    seen: list[tuple[int, list[str]]] = []

    def look(frame: DataFrame, _batch: int) -> None:
        seen.append((frame.rdd.getNumPartitions(), message_ids(frame)))

    stream = queue.stream(maxConcurrency=most).load()
    queue.finish(stream.writeStream.foreachBatch(look))

    assert seen == [(most, numbered(0, 6000))]


def test_two_queues_are_browsed_and_received_into_one_table(queue: SparkQueue) -> None:
    """Each batch has rows of the large queue and of the small one; progress lists both."""
    small = queue.another("Shop, Billing")
    sizes = {queue.name: 300, small.name: 10}
    queue.fill(0, 300)
    small.fill(0, 10)
    sent = Counter((name, f"m-{at}") for name, size in sizes.items() for at in range(size))
    options = queue.database_options | {"queues": f"{queue.name}, {small.name}"}

    def found(frame: DataFrame) -> Counter[tuple[str, str]]:
        return Counter(
            map(tuple, frame.select("queue", "headers.`NServiceBus.MessageId`").collect())
        )

    browsed = found(queue.spark.read.format("sqlqueue").options(**options).load())
    stream = queue.spark.readStream.format("sqlqueue").options(**options, maxMessagesPerTrigger=100)
    query = queue.into_table(stream.load())

    assert browsed == sent == found(queue.landed())
    assert [queue.count(), small.count(), queue.state("receipt")] == [0, 0, 0]
    assert {each["queue"]: each["backlog"] for each in backlogs(query)[0]["queues"]} == sizes
    first = json.loads(query.recentProgress[0].sources[0].endOffset)
    assert [part["messages"] for part in first["plan"]] == [90, 10]


def test_a_stream_has_the_rows_that_a_browse_shows(
    queue: SparkQueue, wire: list[tuple[str, bytes]]
) -> None:
    """Of messages by .NET endpoints, in both header formats."""
    for kind in ("map", "json"):
        for headers, body in wire:
            queue.put(headers, body)
        browse = queue.reader(headersFormat=kind).load().orderBy("seq")
        shown = queue.spark.createDataFrame(browse.collect(), browse.schema)
        here = replace(queue, folder=queue.folder / kind)
        here.into_table(queue.stream(headersFormat=kind).load())

        assert shown.count() == len(wire)
        assert_df_equality(here.landed(), shown)


def test_a_stream_may_have_fewer_columns(queue: SparkQueue) -> None:
    """The sink gets the columns of the user's schema; then poison needs no parsing."""
    queue.fill(0, 3)
    queue.put("null")

    queue.into_table(queue.stream().schema("seq bigint").load())

    got = queue.landed()
    assert got.columns == ["seq"]
    assert [row.seq for row in got.collect()] == [1, 2, 3, 4]


def test_transaction_mode_none_leaves_no_receipt(queue: SparkQueue) -> None:
    """The delete is committed at once; no state tables are needed."""
    queue.dba.drop_schema(queue.place.state)
    queue.fill(0, 250)
    options = {"transactionMode": "none", "maxMessagesPerTrigger": 100, "peekDelay": "100ms"}

    query = queue.into_table(queue.stream(**options).load())

    assert message_ids(queue.landed()) == numbered(0, 250)
    assert batches(query) == [100, 100, 50]
