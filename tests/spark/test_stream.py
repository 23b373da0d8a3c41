"""Browsing shows what waits and deletes nothing; receiving: triggers, batches and progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import datasource
from wire import messages

from spark.stand import message_ids, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

COLUMNS = (
    "id string, correlationId string, replyToAddress string, expires timestamp, "
    "headers map<string,string>, corruptHeaders string, body binary, seq bigint, queue string"
)
PUSHDOWN = hasattr(datasource, "Filter")  # from Spark 4.1


# ---------------------------------------------------------------- browsing


def test_messages_of_net_endpoints_become_columns_and_are_written_back(queue: SparkQueue) -> None:
    """
    A browse and a stream give the values that a JSON parser finds, or the raw text.

    A browse may be evaluated many times, and needs no state tables.
    """
    wire = [(json.loads(headers), headers, body) for headers, body in messages()]
    for _, text, body in wire:
        queue.put(text, body)
    names = ("NServiceBus.CorrelationId", "NServiceBus.ReplyToAddress")
    address = queue.whole_name
    rows = [
        (*map(parsed.get, names), None, parsed, None, body, seq, address)
        for seq, (parsed, _, body) in enumerate(wire, 1)
    ]
    expected = queue.spark.createDataFrame(rows, COLUMNS.removeprefix("id string, "))
    read = queue.reader(stateSchema="absent", maxConcurrency=3).load().orderBy("seq")
    raw = queue.reader(headersFormat="json").load().orderBy("seq").drop("id")
    back = queue.another("back")
    whole = read.where("headers['NServiceBus.ConversationId'] IS NOT NULL")  # complete as they are

    assert read.first() == read.first()
    assert_df_equality(read.drop("id"), expected)
    assert [row.headers for row in raw.collect()] == [text for _, text, _ in wire]
    assert "corruptHeaders" not in raw.columns
    back.send(whole, intent="Send")
    first, again = (
        each.select("headers", "body", "correlationId").orderBy("headers.`NServiceBus.MessageId`")
        for each in (whole, back.reader().load())
    )
    assert first.count() > 1
    assert_df_equality(first, again)
    queue.into_table(queue.stream().load())
    assert_df_equality(queue.landed().drop("id"), expected)


def test_a_schema_of_fewer_columns_is_read(queue: SparkQueue) -> None:
    """A browse and a stream without state tables read it. Other columns raise an error."""
    queue.fill(0, 3)
    queue.put('["poison"]')

    pair = queue.reader().schema("body binary, seq bigint").load().orderBy("seq").collect()
    texts = queue.reader().schema("headers map<string,string>, corruptHeaders string").load()
    poison = texts.where("headers IS NULL").collect()
    for wrong in ("sequence bigint", "seq int", "headers string", "seq bigint, body string"):
        with pytest.raises(Exception, match="the DataFrame cannot be read: ") as refused:
            queue.reader().schema(wrong).load().collect()
        reason = f"a read has no column {wrong.rpartition(', ')[2]}; choose from {COLUMNS}"
        assert reason in str(refused.value)
    queue.dba.drop_schema(queue.place.state)
    stream = queue.stream(transactionMode="none", maxMessagesPerTrigger=2, peekDelay="100ms")
    query = queue.into_table(stream.schema("seq bigint").load())

    assert [*pair[0]] == [bytearray(b'{"number":0}'), 1]
    assert poison == [(None, '["poison"]')]
    assert queue.landed().columns == ["seq"]
    assert [row.seq for row in queue.landed().collect()] == [1, 2, 3, 4]
    assert batches(query) == [2, 2]


def test_a_browse_applies_filters_of_seq_and_queue(
    queue: SparkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark pushes them if a setting says so. The rows are the same without it."""
    queue.fill(0, 100)
    address = queue.whole_name
    pushed = "spark.sql.python.filterPushdown.enabled"

    def browsed(condition: str) -> DataFrame:
        read = queue.reader(maxConcurrency=4).load()
        return read.where(condition.format(address)).orderBy("seq")

    for condition, seqs, left in (  # whether Spark filters too
        ("seq BETWEEN 5 AND 7 AND queue = '{}'", [5, 6, 7], False),
        ("queue IN ('{}', 'absent') AND seq < 3", [1, 2], False),
        ("seq IN (2, 4)", [2, 4], True),
        ("seq >= 99 AND corruptHeaders IS NULL", [99, 100], True),
    ):
        assert [row.seq for row in browsed(condition).collect()] == seqs
        try:
            queue.spark.conf.set(pushed, "true")
            frame = browsed(condition)
            capsys.readouterr()
            frame.explain()
            plan = capsys.readouterr().out

            assert [row.seq for row in frame.collect()] == seqs
            assert ("Filter" in plan.replace("RuntimeFilters", "")) == (left or not PUSHDOWN)
        finally:
            queue.spark.conf.unset(pushed)


# ---------------------------------------------------------------- receiving


def batches(query: StreamingQuery) -> list[int]:
    """Rows of each micro-batch that had some."""
    return [each.numInputRows for each in query.recentProgress if each.numInputRows]


def backlogs(query: StreamingQuery) -> list[dict[str, Any]]:
    """What each micro-batch reported about the queue."""
    return [json.loads(each.sources[0].latestOffset) for each in query.recentProgress]


def test_available_now_takes_what_waits_at_its_start(queue: SparkQueue) -> None:
    """It takes limited batches. What is sent during a run waits for the next one."""
    queue.fill(0, 2500)
    got: list[str] = []

    def land(frame: DataFrame, _batch: int) -> None:
        got.extend(message_ids(frame))
        if len(got) <= 2500:
            queue.fill(2500 + len(got), 2510 + len(got))

    writer = queue.stream(maxMessagesPerTrigger=1000).load().writeStream.foreachBatch(land)
    runs = [batches(queue.finish(writer)) for _ in range(3)]

    more = [*numbered(3500, 3510), *numbered(4500, 4510), *numbered(5000, 5010)]
    assert got == numbered(0, 2500) + more
    assert runs == [[1000, 1000, 500], [30], []]
    assert [queue.count(), queue.state("receipt"), queue.state("stream")] == [0, 0, 1]


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


def test_two_queues_are_received_into_one_table(queue: SparkQueue) -> None:
    """The first batch has rows of both; progress lists a queue until its last batch is closed."""
    small = queue.another("Shop, Billing")
    queue.fill(0, 300)
    small.fill(0, 10)
    names = {"queues": ", ".join(queue.dotnet.in_list(each.table) for each in (queue, small))}
    stream = queue.spark.readStream.format("sqlqueue").options(**queue.database_options | names)

    query = queue.into_table(stream.option("maxMessagesPerTrigger", 100).load())

    sizes = {queue.name: 300, small.name: 10}
    landed = {queue.whole_name: 300, small.whole_name: 10}
    assert dict(queue.landed().groupBy("queue").count().collect()) == landed
    assert [queue.count(), small.count(), queue.state("receipt")] == [0, 0, 0]
    first, _, third, *_ = [each["queues"] for each in backlogs(query)]
    assert {each["queue"]: each["backlog"] for each in first} == sizes
    assert [each["queue"] for each in third] == [queue.name]
    first = json.loads(query.recentProgress[0].sources[0].endOffset)
    assert [part["messages"] for part in first["plan"]] == [90, 10]
