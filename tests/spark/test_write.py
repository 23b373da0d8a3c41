"""Sending: a frame or a stream into queues, all of it once or nothing."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import StructType
from waiting import until

from spark.stand import Queue, finish, message_ids, numbered
from sqlq_spark.datasource import StreamWriter
from sqlq_spark.errors import BadOption
from sqlq_spark.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DELIVERIES = pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])


def numbers(spark: SparkSession, first: int, stop: int, partitions: int = 2) -> DataFrame:
    """Messages like those of `Queue.fill`, as a frame."""
    return spark.range(first, stop, numPartitions=partitions).select(
        F.concat(F.lit("m-"), "id").alias("id"),
        F.format_string('{"number":%d}', "id").alias("body"),
    )


def other(queue: Queue, table: str) -> Queue:
    """Give one more queue in the same place."""
    made = Queue(queue.place, table)
    made.create()
    return made


def staging(queue: Queue) -> list[int]:
    """How many chunks are left, and how many sinks have sent; a given-up write is a row of 0."""
    sent = [
        messages for (messages,) in queue.dotnet.state_rows("dispatch_log", "messages") if messages
    ]
    return [queue.state("staging"), len(sent)]


@DELIVERIES
def test_a_frame_is_sent_with_the_headers_that_endpoints_need(
    spark: SparkSession, queue: Queue, delivery: str
) -> None:
    """Defaults come from options; nothing stays in the staging."""
    queue.send(
        numbers(spark, 0, 1000),
        delivery=delivery,
        messageType="Shop.Messages.PlaceOrder",
        contentType="application/json",
        originatingEndpoint="Spark.Loader",
        replyToAddress='"public"."Shop.Web"',
        timeToBeReceived="00:30:00",
    )

    rows = queue.rows()
    assert sorted(queue.ids()) == sorted(numbered(0, 1000))
    assert all(json.loads(b) == {"number": int(h["NServiceBus.MessageId"][2:])} for h, b in rows)  # type: ignore[index]
    headers = dict(rows[0][0])
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z", str(headers.pop("NServiceBus.TimeSent"))
    )
    assert len(str(headers.pop("NServiceBus.ConversationId"))) == 36
    first = headers["NServiceBus.MessageId"]
    assert headers == {
        "NServiceBus.MessageId": first,
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.CorrelationId": first,
        "NServiceBus.ReplyToAddress": '"public"."Shop.Web"',
        "NServiceBus.OriginatingEndpoint": "Spark.Loader",
        "NServiceBus.EnclosedMessageTypes": "Shop.Messages.PlaceOrder",
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.TimeToBeReceived": "00:30:00",
    }
    lasts = queue.dba.lifetimes(queue.address)
    assert all(life is not None and 29 * 60 <= life <= 30 * 60 for life in lasts)
    assert staging(queue) == [0, int(delivery == "exactlyOnce")]


def test_bodies_may_be_text_or_bytes(spark: SparkSession, queue: Queue) -> None:
    """Text is sent as UTF-8, bytes as they are, and no bytes as no bytes."""
    queue.send(spark.createDataFrame([("grüße 🚀",)], "body string"))
    queue.send(spark.createDataFrame([(bytearray(b"\x00\xff\xfe"),)], "body binary"))
    queue.send(spark.createDataFrame([("",)], "body string"))

    assert [body for _, body in queue.rows()] == ["grüße 🚀".encode(), b"\x00\xff\xfe", b""]


@pytest.mark.parametrize("sent", ["30000", "'00:00:30'", "INTERVAL '30' SECOND"])
def test_time_to_be_received_in_every_form(spark: SparkSession, queue: Queue, sent: str) -> None:
    """Milliseconds, text and interval mean the same; null is no limit."""
    frame = spark.sql(f"SELECT '' AS body, {sent} AS timeToBeReceived UNION ALL SELECT '', NULL")

    queue.send(frame.coalesce(1))

    said = [headers.get("NServiceBus.TimeToBeReceived") for headers, _ in queue.rows()]
    assert sorted(said, key=str) == ["00:00:30", None]
    assert [life is not None for life in queue.dba.lifetimes(queue.address)].count(True) == 1


def test_headers_of_a_row_win_over_defaults(spark: SparkSession, queue: Queue) -> None:
    """A map or JSON text; null values stay null; a column of its own wins over both."""
    own = {"NServiceBus.MessageIntent": "Publish", "custom/key": "a\nb", "none": None}
    as_map = spark.createDataFrame([("", own)], "body string, headers map<string,string>")
    as_text = spark.createDataFrame([("", json.dumps(own))], "body string, headers string")

    queue.send(as_map.withColumn("correlationId", F.lit("corr")))
    queue.send(as_text.withColumn("correlationId", F.lit("corr")))

    for headers, _ in queue.rows():
        assert own.items() <= headers.items()
        assert headers["NServiceBus.CorrelationId"] == "corr"
    text = queue.dotnet.rows(queue.address)[-1].headers or ""
    assert text.endswith("," + json.dumps(own)[1:])  # headers that come as text stay as they are


def test_round_trip(spark: SparkSession, queue: Queue, wire: list[tuple[str, bytes]]) -> None:
    """Read, written back and read again, messages are what they were."""
    for headers, body in wire:
        if "NServiceBus.ConversationId" in headers:  # a complete message gets no header more
            queue.put(headers, body)
    back = other(queue, "back")
    frame = queue.reader(spark).load().drop("queue")

    back.send(frame.drop("id"), intent="Send")

    first = queue.reader(spark).load().orderBy("headers.`NServiceBus.MessageId`")
    again = back.reader(spark).load().orderBy("headers.`NServiceBus.MessageId`")
    assert_df_equality(
        first.select("headers", "body", "correlationId"),
        again.select("headers", "body", "correlationId"),
    )


def test_round_trip_of_a_whole_frame(spark: SparkSession, queue: Queue) -> None:
    """All columns of a read may be written: those that say nothing to a sender are ignored."""
    queue.fill(0, 50)
    back = other(queue, "back")

    frame = queue.reader(spark).load()
    with pytest.raises(PySparkException, match="drop the column queue, or the option"):
        back.send(frame)  # where to, and where from?
    back.send(frame.drop("queue"))

    assert sorted(back.ids()) == sorted(numbered(0, 50))
    assert queue.ids() == numbered(0, 50)


@DELIVERIES
def test_a_queue_column_names_several_destinations(
    spark: SparkSession, queue: Queue, delivery: str
) -> None:
    """Each row goes where it says, or to the sink's queue where it says nothing."""
    second = other(queue, 'a"b.c;d')
    frame = numbers(spark, 0, 100).withColumn(
        "queue", F.when(F.col("body").endswith("7}"), F.lit(second.name))
    )

    queue.send(frame, delivery=delivery)

    assert sorted(second.ids()) == sorted(f"m-{n}" for n in range(7, 100, 10))
    assert queue.count() == 90


def test_a_missing_destination_sends_nothing(spark: SparkSession, queue: Queue) -> None:
    """One of several is absent: the error names it, and nothing is visible anywhere."""
    second = other(queue, "second")
    frame = numbers(spark, 0, 100).withColumn(
        "queue",
        F.when(F.col("id") == "m-99", F.lit(queue.beside("absent").name)).otherwise(
            F.lit(second.name)
        ),
    )

    with pytest.raises(PySparkException) as refused:
        queue.send(frame)

    assert f"queue {queue.beside('absent').name} was not found in " in str(refused.value)
    assert "Create it with `sqlqueue create`" in str(refused.value)
    assert [queue.count(), second.count(), *staging(queue)] == [0, 0, 0, 0]


@DELIVERIES
@pytest.mark.parametrize("streaming", [True, False])
def test_a_missing_destination_is_told_before_a_task_runs(
    spark: SparkSession, queue: Queue, tmp_path: Path, delivery: str, *, streaming: bool
) -> None:
    """Where the options name it: what the frame costs to compute is not spent in vain."""
    ran = spark.sparkContext.accumulator(0)

    @F.udf("string", useArrow=False)
    def counted(text: str) -> str:
        ran.add(1)
        return text

    absent = queue.beside("absent")
    queue.fill(0, 10)
    source = queue.stream(spark).load() if streaming else queue.reader(spark).load()
    frame = source.select(counted(F.col("body").cast("string")).alias("body"))

    def send() -> None:
        if streaming:
            writer = frame.writeStream.format("sqlqueue")
            finish(writer.options(**absent.options, delivery=delivery), tmp_path / "checkpoint")
        else:
            absent.send(frame, delivery=delivery)

    with pytest.raises(PySparkException) as refused:
        send()

    assert f"queue {absent.name} was not found in " in str(refused.value)
    assert ran.value == 0
    absent.create()
    send()
    assert [absent.count(), ran.value] == [10, 10]


@DELIVERIES
def test_a_failed_task_sends_nothing(
    spark: SparkSession, queue: Queue, tmp_path: Path, delivery: str
) -> None:
    """One partition raises after the other is done: nothing is sent, and no chunk is left."""
    done = str(tmp_path / "done")

    @F.udf("string", useArrow=False)
    def checked(name: str) -> str:
        if name == "m-75":
            end = time.monotonic() + 60
            while not os.path.exists(done):  # noqa: PTH110 - a worker imports nothing of ours
                assert time.monotonic() < end, f"expected {done} within a minute"
                time.sleep(0.02)
            raise ValueError("no such order")
        return name

    def watch() -> None:
        until(queue.count if delivery == "atLeastOnce" else lambda: queue.state("staging"))
        Path(done).touch()

    frame = numbers(spark, 0, 100).withColumn("id", checked("id"))

    with ThreadPoolExecutor(1) as beside:
        watched = beside.submit(watch)
        with pytest.raises(PySparkException, match="no such order"):
            queue.send(frame, delivery=delivery)
    watched.result()

    # atLeastOnce has sent the other task's chunk, whole
    assert queue.count() == (0 if delivery == "exactlyOnce" else 50)
    assert staging(queue) == [0, 0]


def test_tasks_that_end_after_a_failed_write_leave_nothing(
    spark: SparkSession, queue: Queue
) -> None:
    """One partition raises while the other is at work: what that one stages is dropped too."""
    frame = numbers(spark, 0, 100).withColumn(
        "body", F.expr("if(id = 'm-99', raise_error('no such order'), body)")
    )

    with pytest.raises(PySparkException, match="no such order"):
        queue.send(frame)
    tracker = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no tasks
    until(lambda: sum(each.numRunningTasks() for each in tracker.getExecutorInfos()), 0)

    assert [queue.count(), *staging(queue)] == [0, 0, 0]


BAD_FRAMES: list[tuple[str, str]] = [
    (
        "SELECT 'x' AS id",
        "the DataFrame cannot be sent: it has no column body (binary or string); it has id",
    ),
    (
        "SELECT '' AS body, 1 AS priority",
        (
            "the DataFrame cannot be sent: column priority is not known; known are body, id, "
            "headers, correlationId, replyToAddress, timeToBeReceived, queue"
        ),
    ),
    (
        "SELECT 1 AS body",
        "the DataFrame cannot be sent: column body is int: expected binary or string",
    ),
    (
        "SELECT '' AS body, map('a', 1) AS headers",
        (
            "the DataFrame cannot be sent: column headers is map<string,int>: "
            "expected map<string,string> or string (JSON)"
        ),
    ),
    (
        "SELECT '' AS body, 1.5 AS timeToBeReceived",
        (
            "the DataFrame cannot be sent: column timeToBeReceived is decimal(2,1): "
            'expected string "hh:mm:ss", interval day to second or bigint milliseconds'
        ),
    ),
    (
        "SELECT '' AS body, 1 AS id",
        "the DataFrame cannot be sent: column id is int: expected string",
    ),
]

BAD_ROWS: list[tuple[str, str]] = [
    (
        "SELECT CAST(NULL AS string) AS body",
        "body is null: send zero bytes instead, coalesce(body, '')",
    ),
    ("""SELECT '' AS body, '["a"]' AS headers""", "headers is no JSON object of texts"),
    ("""SELECT '' AS body, 'null' AS headers""", "headers is no JSON object of texts"),
    ("""SELECT '' AS body, '{"a":1}' AS headers""", "headers is no JSON object of texts"),
    (
        "SELECT '' AS body, -1L AS timeToBeReceived",
        "timeToBeReceived is negative: expected at least 0 and at most 2147483647 ms (24.8 days)",
    ),
    (
        "SELECT '' AS body, 2147483648L AS timeToBeReceived",
        "timeToBeReceived is too long: expected at least 0 and at most 2147483647 ms (24.8 days)",
    ),
    (
        "SELECT '' AS body, '25.00:00:00' AS timeToBeReceived",
        (
            "timeToBeReceived '25.00:00:00' is longer than "
            "24.20:31:23.6470000: expected [d.]hh:mm:ss[.fffffff], as 00:30:00 or 1.12:00:00"
        ),
    ),
    (
        "SELECT '' AS body, 'soon' AS timeToBeReceived",
        (
            "timeToBeReceived 'soon' cannot be read: "
            "expected [d.]hh:mm:ss[.fffffff], as 00:30:00 or 1.12:00:00"
        ),
    ),
]


def row_of(select: str) -> str:
    """Put a bad row behind three good ones of the same columns, in one partition."""
    good = "SELECT 'fine' AS body"
    if "headers" in select:
        good += ", '{}' AS headers"
    if "timeToBeReceived" in select:
        good += f", {'1000L' if 'L AS' in select else repr('00:00:01')} AS timeToBeReceived"
    return f"SELECT * FROM ({good} UNION ALL {good} UNION ALL {good} UNION ALL {select})"


@pytest.mark.parametrize(("select", "sentence"), BAD_FRAMES)
def test_a_frame_that_does_not_fit_is_refused(
    spark: SparkSession, queue: Queue, select: str, sentence: str
) -> None:
    """Before anything is computed; the whole sentence reaches the user."""
    with pytest.raises(PySparkException) as refused:
        queue.send(spark.sql(select))

    assert sentence in str(refused.value)
    assert queue.count() == 0


@pytest.mark.parametrize(("select", "sentence"), BAD_ROWS)
def test_a_row_that_does_not_fit_sends_nothing(
    spark: SparkSession, queue: Queue, select: str, sentence: str
) -> None:
    """The error names partition and row; the good rows before it are not sent."""
    frame = spark.sql(row_of(select)).coalesce(1)

    with pytest.raises(PySparkException) as refused:
        queue.send(frame)

    assert f"row 3 of partition 0 cannot be sent: {sentence}" in str(refused.value)
    assert [queue.count(), *staging(queue)] == [0, 0, 0]


def test_no_destination_at_all(spark: SparkSession, queue: Queue) -> None:
    """Neither the option nor a column; or a column with nulls and no option."""
    options = {key: text for key, text in queue.options.items() if key != "queue"}
    nulls = numbers(spark, 0, 2).withColumn("queue", F.lit(None).cast("string"))

    def save(frame: DataFrame) -> str:
        with pytest.raises(PySparkException) as refused:
            frame.write.format("sqlqueue").options(**options).mode("append").save()
        return str(refused.value)

    assert "no destination: give the option queue, or a column queue" in save(numbers(spark, 0, 2))
    assert "queue is null, and the sink has no option queue" in save(nulls)


def test_overwrite_is_refused(spark: SparkSession, queue: Queue) -> None:
    """A queue is not a table to be replaced."""
    queue.fill(0, 3)

    with pytest.raises(PySparkException) as refused:
        numbers(spark, 0, 2).write.format("sqlqueue").options(**queue.options).mode(
            "overwrite"
        ).save()

    assert "option mode is 'overwrite': expected append: sending adds to a queue" in str(
        refused.value
    )
    with pytest.raises(BadOption, match="option outputMode is 'complete': expected append"):
        StreamWriter(SinkOptions.parse(queue.options), StructType(), overwrite=True)
    assert queue.ids() == numbered(0, 3)


@DELIVERIES
def test_a_stream_is_sent(spark: SparkSession, queue: Queue, tmp_path: Path, delivery: str) -> None:
    """From queue to queue: every message once, nothing left in between."""
    queue.fill(0, 500)
    out = other(queue, "out")
    stream = queue.stream(spark, maxMessagesPerTrigger=200).load().drop("queue")

    writer = stream.writeStream.format("sqlqueue").options(**out.options | {"delivery": delivery})
    finish(writer, tmp_path / "checkpoint")

    assert sorted(out.ids()) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("staging")] == [0, 0]
    entered = queue.dotnet.state_rows("dispatch_log", "batch")
    assert entered == ([(2,)] if delivery == "exactlyOnce" else [])


@DELIVERIES
def test_a_replayed_batch(spark: SparkSession, queue: Queue, tmp_path: Path, delivery: str) -> None:
    """
    The commit log lost its last entry: exactlyOnce sends nothing again; atLeastOnce may.

    The source is a file, so that it replays by itself.
    """
    numbers(spark, 0, 100).write.parquet(str(tmp_path / "input"))
    source = spark.readStream.schema("id string, body string").parquet(str(tmp_path / "input"))
    mine = [F.col("id").alias("correlationId"), F.col("body")]  # ids are made by the sink
    writer = (
        source.select(*mine)
        .writeStream.format("sqlqueue")
        .options(**queue.options | {"delivery": delivery})
    )
    checkpoint = tmp_path / "checkpoint"
    finish(writer, checkpoint)
    before = queue.ids()

    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink()
    finish(writer, checkpoint)

    assert len(set(before)) == 100
    if delivery == "exactlyOnce":
        assert queue.ids() == before
    else:  # repeats can be told by their message ids
        assert queue.count() == 200
        assert set(queue.ids()) == set(before)
    assert queue.state("staging") == 0


def test_a_failed_micro_batch_sends_nothing_until_it_succeeds(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A bad row stops the stream and leaves no chunk; fixed, the batch is sent once."""
    queue.fill(0, 20)
    queue.put('{"NServiceBus.MessageId":"m-20"}', None)  # a body of NULL, as no writer may send
    out = other(queue, "out")
    stream = queue.stream(spark).load().drop("queue")

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.format("sqlqueue").options(**out.options)
        finish(writer, tmp_path / "checkpoint")

    with pytest.raises(StreamingQueryException) as refused:
        run(stream)
    after = [out.count(), queue.state("staging")]
    run(stream.withColumn("body", F.coalesce("body", F.lit(b""))))

    assert "body is null: send zero bytes instead, coalesce(body, '')" in str(refused.value)
    assert after == [0, 0]
    assert sorted(out.ids()) == sorted(numbered(0, 21))
    assert queue.state("staging") == 0


def test_txn_version_inside_foreach_batch(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A write that is done is skipped when its batch comes again, as Delta does."""
    queue.fill(0, 250)
    out = other(queue, "out")
    failures = [True]

    def send(frame: DataFrame, batch: int) -> None:
        out.send(frame.drop("queue"), txnAppId="loader", txnVersion=batch)
        if batch == 1 and failures:
            failures.clear()
            raise RuntimeError("after the write")

    stream = queue.stream(spark, maxMessagesPerTrigger=100).load()
    with pytest.raises(StreamingQueryException, match="after the write"):
        finish(stream.writeStream.foreachBatch(send), tmp_path / "checkpoint")
    finish(stream.writeStream.foreachBatch(send), tmp_path / "checkpoint")

    assert sorted(out.ids()) == sorted(numbered(0, 250))
    entered = queue.dotnet.state_rows("dispatch_log", "sink, batch")
    assert entered == [("app:loader", 2)]
    assert queue.state("staging") == 0


def test_chunks_of_a_killed_attempt_are_neither_sent_nor_kept(
    spark: SparkSession, queue: Queue
) -> None:
    """What an attempt staged that did not win is dropped with the batch's dispatch."""
    row = {"sink": "app:loader", "chunk": 0, "messages": 9, "payload": b""}
    queue.dba.insert("staging", batch=6, attempt="older", **row)
    queue.dba.insert("staging", batch=7, attempt="lost", **row)

    queue.send(numbers(spark, 0, 10), txnAppId="loader", txnVersion=7)

    assert sorted(queue.ids()) == sorted(numbered(0, 10))
    assert staging(queue) == [0, 1]


def test_an_empty_frame_sends_nothing(spark: SparkSession, queue: Queue) -> None:
    """Neither message nor chunk nor error."""
    queue.send(numbers(spark, 0, 0))

    assert [queue.count(), *staging(queue)] == [0, 0, 0]


def test_many_destinations_from_one_stream(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    """A missing destination: nothing of the batch is sent; created, all of it is."""
    queue.fill(0, 100)
    even, odd = other(queue, "even"), Queue(queue.place, "odd")
    number = F.get_json_object(F.col("body").cast("string"), "$.number").cast("int")
    stream = (
        queue.stream(spark)
        .load()
        .withColumn("queue", F.when(number % 2 == 0, even.name).otherwise(odd.name))
    )
    options: dict[str, Any] = {key: text for key, text in even.options.items() if key != "queue"}
    writer = stream.writeStream.format("sqlqueue").options(**options)

    with pytest.raises(StreamingQueryException) as refused:
        finish(writer, tmp_path / "checkpoint")
    before = [even.count(), queue.state("staging")]
    odd.create()
    finish(writer, tmp_path / "checkpoint")

    assert f"queue {odd.name} was not found" in str(refused.value)
    assert before == [0, 0]
    assert [sorted(even.ids()), sorted(odd.ids())] == [
        sorted(numbered(0, 100)[::2]),
        sorted(numbered(0, 100)[1::2]),
    ]
    assert len(message_ids(odd.reader(spark).load().collect())) == 50
