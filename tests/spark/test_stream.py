"""Receiving: triggers, sinks, batches and what the progress says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from waiting import until

from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.stand import Queue

pytestmark = pytest.mark.spark


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had some."""
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_available_now_takes_all_in_limited_batches(
    spark: SparkSession, queue: Queue, tmp_path: Path, sink: str
) -> None:
    """Every message is in the table once; the queue is empty and no receipt is left."""
    queue.fill(0, 2500)
    table = str(tmp_path / "table")

    stream = queue.stream(spark, maxMessagesPerTrigger=1000).load()
    query = finish(stream.writeStream.format(sink).option("path", table), tmp_path / "checkpoint")

    got = message_ids(spark.read.format(sink).load(table).orderBy("seq").collect())
    assert got == numbered(0, 2500)
    assert batches(query) == [1000, 1000, 500]
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def test_available_now_goes_on_where_it_ended(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A second and a third run on the same checkpoint take what came since, or nothing."""
    table = str(tmp_path / "table")
    writer = queue.stream(spark).load().writeStream.format("parquet").option("path", table)

    queue.fill(0, 30)
    finish(writer, tmp_path / "checkpoint")
    idle = finish(writer, tmp_path / "checkpoint")
    queue.fill(30, 50)
    finish(writer, tmp_path / "checkpoint")

    assert batches(idle) == []
    assert sorted(message_ids(spark.read.parquet(table).collect())) == sorted(numbered(0, 50))
    assert queue.state("stream") == 1


def test_available_now_ends_at_what_waited_at_the_start(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """What is sent while it runs waits for the next run, or it might never end."""
    queue.fill(0, 40)

    def send_more(frame: DataFrame, _batch: int) -> None:
        frame.collect()
        queue.fill(1000, 1020)

    stream = queue.stream(spark, maxMessagesPerTrigger=20).load()
    query = finish(stream.writeStream.foreachBatch(send_more), tmp_path / "checkpoint")

    assert batches(query) == [20, 20]
    assert queue.count() == 40


def test_available_now_ends_though_others_hold_messages(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """Rows that another consumer holds are left to it; the rest is taken."""
    queue.fill(0, 100)
    table = str(tmp_path / "table")
    stream = queue.stream(spark, peekDelay="100ms").load()

    with queue.held([*range(1, 11), *range(96, 101)]):
        finish(stream.writeStream.format("parquet").option("path", table), tmp_path / "checkpoint")

    assert queue.ids() == [*numbered(0, 10), *numbered(95, 100)]
    got = message_ids(spark.read.parquet(table).orderBy("seq").collect())
    assert got == numbered(10, 95)


def test_available_now_gets_past_expired_and_poisoned_rows(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """1,000 rows at the head that are not delivered do not look like the end of the queue."""
    errors = type(queue)(queue.place, "error")
    errors.create()
    queue.dba.poison(queue.address, 1010, expired=1000)
    queue.fill(0, 50)
    table = str(tmp_path / "table")

    stream = queue.stream(spark, maxMessagesPerTrigger=500, errorQueue=errors.name).load()
    query = finish(
        stream.writeStream.format("parquet").option("path", table), tmp_path / "checkpoint"
    )

    assert sorted(message_ids(spark.read.parquet(table).collect())) == sorted(numbered(0, 50))
    assert [queue.count(), errors.count()] == [0, 10]
    last = [
        json.loads(each.sources[0].latestOffset).get("lastBatch") for each in query.recentProgress
    ]
    assert {"messages": 0, "expired": 500, "diverted": 0}.items() <= last[1].items()


@pytest.mark.parametrize("trigger", ["processing time", "default"])
def test_a_running_stream_takes_what_comes(
    spark: SparkSession, queue: Queue, tmp_path: Path, trigger: str
) -> None:
    """Messages sent while it runs arrive, its progress says what it did, and a restart goes on."""
    table = str(tmp_path / "table")
    writer = (
        queue.stream(spark, peekDelay="100ms")
        .load()
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
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

    assert sorted(message_ids(spark.read.parquet(table).collect())) == sorted(numbered(0, 200))
    assert sum(batches(query)) == 100


def test_progress_tells_backlog_and_last_batch(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """What an operator wants on a chart stands in sources[].latestOffset."""
    queue.fill(0, 250)

    stream = queue.stream(spark, maxMessagesPerTrigger=100).load()
    query = finish(stream.writeStream.format("noop"), tmp_path / "checkpoint")

    said = [json.loads(each.sources[0].latestOffset) for each in query.recentProgress]
    waits = [each.pop("oldestWaited") for each in said[:3]]
    assert said[0] == {
        "queue": queue.name,
        "backlog": 250,
        "backlogIsEstimate": True,
        "tasks": 2,
        "ramp": {"successes": 0, "failures": 0},
    }
    assert said[2] == {
        "queue": queue.name,
        "backlog": 50,
        "backlogIsEstimate": False,
        "tasks": 2,
        "ramp": {"successes": 2, "failures": 0},
        "lastBatch": {
            "batch": 2,
            "tasks": 1,
            "emptyTasks": 0,
            "messages": 100,
            "expired": 0,
            "diverted": 0,
            "forwarded": 0,
        },
    }
    assert all(each >= 0 for each in waits)
    end = json.loads(query.recentProgress[0].sources[0].endOffset)
    assert list(end) == ["v", "stream", "batch", "plan"]


def test_concurrency_is_the_most_tasks_of_a_batch(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A backlog worth it is cut into maxConcurrency ranges, in the order of seq."""
    queue.fill(0, 6000)
    seen: list[tuple[int, list[str]]] = []

    def look(frame: DataFrame, _batch: int) -> None:
        seen.append((frame.rdd.getNumPartitions(), message_ids(frame.collect())))

    stream = queue.stream(spark, maxConcurrency=3).load()
    finish(stream.writeStream.foreachBatch(look), tmp_path / "checkpoint")

    assert seen == [(3, numbered(0, 6000))]


def test_one_task_keeps_the_order(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """maxConcurrency=1 is one task, however long the queue."""
    queue.fill(0, 3000)
    tasks: list[int] = []

    def look(frame: DataFrame, _batch: int) -> None:
        tasks.append(frame.rdd.getNumPartitions())
        frame.write.format("noop").mode("append").save()

    stream = queue.stream(spark, maxConcurrency=1).load()
    finish(stream.writeStream.foreachBatch(look), tmp_path / "checkpoint")

    assert tasks == [1]
    assert queue.count() == 0


def test_messages_of_net_endpoints_reach_the_table(
    spark: SparkSession, queue: Queue, tmp_path: Path, wire: list[tuple[str, bytes]]
) -> None:
    """A stream's rows are those that browsing showed before, in both header formats."""
    shown = {}
    for kind in ("map", "json"):
        for headers, body in wire:
            queue.put(headers, body)
        browse = queue.reader(spark, headersFormat=kind).load().orderBy("seq")
        shown[kind] = spark.createDataFrame(browse.collect(), browse.schema)
        writer = queue.stream(spark, headersFormat=kind).load().writeStream.format("parquet")
        finish(writer.option("path", str(tmp_path / kind)), tmp_path / f"checkpoint {kind}")

    for kind, expected in shown.items():
        got = spark.read.parquet(str(tmp_path / kind)).orderBy("seq")
        assert got.count() == len(wire)
        assert_df_equality(got, expected)


def test_a_schema_of_fewer_columns_prunes_a_stream(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """The sink gets the columns asked for; poison needs no parsing then."""
    queue.fill(0, 3)
    queue.put("null")
    table = str(tmp_path / "table")

    stream = queue.stream(spark).schema("seq bigint").load()
    finish(stream.writeStream.format("parquet").option("path", table), tmp_path / "checkpoint")

    got = spark.read.parquet(table)
    assert got.columns == ["seq"]
    assert sorted(row.seq for row in got.collect()) == [1, 2, 3, 4]


def test_transaction_mode_none_leaves_no_receipt(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """The delete is committed at once; no state tables are needed."""
    queue.dba.drop_schema(queue.place.state)
    queue.fill(0, 250)
    table = str(tmp_path / "table")

    stream = queue.stream(
        spark, transactionMode="none", maxMessagesPerTrigger=100, peekDelay="100ms"
    ).load()
    query = finish(
        stream.writeStream.format("parquet").option("path", table), tmp_path / "checkpoint"
    )

    assert sorted(message_ids(spark.read.parquet(table).collect())) == sorted(numbered(0, 250))
    assert batches(query) == [100, 100, 50]


def test_min_messages_waits_for_so_many_or_so_long(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A batch smaller than minMessagesPerTrigger is held back until maxTriggerDelay is over."""

    def start(longest: str) -> StreamingQuery:
        stream = queue.stream(
            spark, minMessagesPerTrigger=20, maxTriggerDelay=longest, peekDelay="100ms"
        ).load()
        writer = stream.writeStream.format("noop").trigger(processingTime="50 milliseconds")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    queue.fill(0, 5)
    many = start("1h")
    try:
        until(lambda: [each.numInputRows for each in many.recentProgress], [0], told=many.exception)
        held = queue.count()
        queue.fill(5, 25)
        until(lambda: batches(many), [25], told=many.exception)
    finally:
        many.stop()
    queue.fill(25, 28)
    long = start("1s")
    try:
        until(lambda: batches(long), [3], told=long.exception)
    finally:
        long.stop()

    assert held == 5
    assert long.recentProgress[0].numInputRows == 0  # the first look was too early


def test_purge_on_startup_purges_once(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """What waited at the start is gone, what comes later is received."""
    queue.fill(0, 20)
    got: list[str] = []
    query = (
        queue.stream(spark, purgeOnStartup="true", peekDelay="100ms")
        .load()
        .writeStream.foreachBatch(lambda frame, _: got.extend(message_ids(frame.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(queue.count, 0, told=query.exception)
        queue.fill(20, 30)
        until(lambda: got, numbered(20, 30), told=query.exception)
    finally:
        query.stop()

    assert got == numbered(20, 30)
