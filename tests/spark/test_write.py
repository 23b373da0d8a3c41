"""Sending: a frame or a stream into queues, all of it once or nothing."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType
from waiting import until

from spark.stand import finish, numbered
from sqlq_spark import register
from sqlq_spark.datasource import DefaultSource, warn_once
from sqlq_spark.datasource.write import StreamWriter
from sqlq_spark.errors import BadOption
from sqlq_spark.functions import reply
from sqlq_spark.options import SinkOptions
from sqlq_spark.send.sender import name_sender
from sqlq_spark.wire.headers import HOST_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

DELIVERIES = pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])


def numbers(spark: SparkSession, first: int, stop: int) -> DataFrame:
    """Messages like those of `Queue.fill`, in two partitions."""
    return spark.range(first, stop, numPartitions=2).select(
        F.concat(F.lit("m-"), "id").alias("id"),
        F.format_string('{"number":%d}', "id").alias("body"),
    )


def staging(queue: SparkQueue) -> list[int]:
    """The number of chunks, and of sinks that sent; a write that was given up has 0 messages."""
    sent = queue.dotnet.state_rows("dispatch_log", "messages")
    return [queue.state("staging"), sum(messages > 0 for (messages,) in sent if messages)]


def refusal(queue: SparkQueue, frame: DataFrame, **options: object) -> str:
    """The error of a write that must fail."""
    with pytest.raises(PySparkException) as refused:
        queue.send(frame, **options)
    return str(refused.value)


@DELIVERIES
def test_a_frame_is_sent_with_the_headers_that_endpoints_need(
    queue: SparkQueue, delivery: str
) -> None:
    """Defaults come from options; nothing stays in the staging."""
    queue.send(
        numbers(queue.spark, 0, 1000),
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
        "NServiceBus.OriginatingMachine": socket.gethostname(),
        "$.diagnostics.originating.hostid": name_sender("Spark.Loader")[HOST_ID],
        "NServiceBus.EnclosedMessageTypes": "Shop.Messages.PlaceOrder",
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.TimeToBeReceived": "00:30:00",
    }
    lasts = queue.dba.lifetimes(queue.address)
    assert all(life is not None and 29 * 60 <= life <= 30 * 60 for life in lasts)
    assert staging(queue) == [0, int(delivery == "exactlyOnce")]


def test_a_message_names_the_query_or_the_application_as_its_sender(queue: SparkQueue) -> None:
    """The application where `register` saw it; a message that is passed on keeps its sender."""
    plain, registered = queue.spark.newSession(), queue.spark.newSession()
    register(registered)
    body = "SELECT 'x' AS body"
    sent = "map('NServiceBus.TimeSent', '2026-06-30 17:05:09:123456 Z')"
    (queue.folder / "texts").mkdir()
    (queue.folder / "texts" / "one").write_text("x", encoding="utf-8")
    texts = plain.readStream.text(str(queue.folder / "texts")).withColumnRenamed("value", "body")

    queue.send(plain.sql(body))
    queue.send(registered.sql(body))
    queue.send(registered.sql(f"{body}, {sent} AS headers"))
    stream = texts.writeStream.format("sqlqueue").options(**queue.options)
    finish(stream.queryName("invoices to billing"), queue.folder / "checkpoint")

    found = [headers.get("NServiceBus.OriginatingEndpoint") for headers, _ in queue.rows()]
    application = plain.conf.get("spark.app.name")
    assert found == ["Spark", application, None, "invoices to billing"]


def test_bodies_and_lifetimes_in_every_form(queue: SparkQueue) -> None:
    """Text is sent as UTF-8; milliseconds, text and interval mean the same; null is no limit."""
    lives = ["30000", "'00:00:30'", "INTERVAL '30' SECOND", "CAST(NULL AS int)"]
    bodies = ["'grüße 🚀'", "X'00fffe'", "''", "''"]

    for body, life in zip(bodies, lives, strict=True):
        queue.send(queue.spark.sql(f"SELECT {body} AS body, {life} AS timeToBeReceived"))

    found = queue.rows()
    assert [body for _, body in found] == ["grüße 🚀".encode(), b"\x00\xff\xfe", b"", b""]
    spans = [headers.get("NServiceBus.TimeToBeReceived") for headers, _ in found]
    assert spans == ["00:00:30"] * 3 + [None]
    assert [life is not None for life in queue.dba.lifetimes(queue.address)].count(True) == 3


def test_round_trip(queue: SparkQueue, wire: list[tuple[str, bytes]]) -> None:
    """A read that is written back has the same messages; other columns of a read are ignored."""
    for headers, body in wire:
        if "NServiceBus.ConversationId" in headers:  # no header is added to a complete message
            queue.put(headers, body)
    back = queue.another("back")
    frame = queue.reader().load()

    back.send(frame, intent="Send")

    first, again = (
        each.reader().load().select("headers", "body", "correlationId") for each in (queue, back)
    )
    by_id = "headers.`NServiceBus.MessageId`"
    assert first.count() > 1
    assert_df_equality(first.orderBy(by_id), again.orderBy(by_id))


def test_a_missing_destination_sends_nothing(queue: SparkQueue) -> None:
    """One of several is absent: the error names it, and nothing is visible anywhere."""
    second, absent = queue.another("second"), queue.beside("absent").name
    where = F.when(F.col("id") == "m-99", absent).otherwise(second.name)

    with pytest.raises(PySparkException) as refused:
        queue.send_by_column(numbers(queue.spark, 0, 100).withColumn("queue", where))

    assert f"queue {absent} was not found in " in str(refused.value)
    assert "Create it with `sqlqueue create`" in str(refused.value)
    assert [queue.count(), second.count(), *staging(queue)] == [0, 0, 0, 0]


@DELIVERIES
@pytest.mark.parametrize("streaming", [True, False])
def test_a_missing_destination_is_found_before_a_task_runs(
    queue: SparkQueue, delivery: str, *, streaming: bool
) -> None:
    """If the options name it, the frame is not computed in vain."""
    ran = queue.spark.sparkContext.accumulator(0)

    @F.udf("string", useArrow=False)
    def counted(text: str) -> str:
        ran.add(1)
        return text

    absent = queue.beside("absent")
    queue.fill(0, 10)
    source = queue.stream().load() if streaming else queue.reader().load()
    body = counted(F.col("body").cast("string")).alias("body")
    frame = source.select(body, "queue")  # the option overrides the column

    def send() -> None:
        if streaming:
            writer = frame.writeStream.format("sqlqueue")
            queue.finish(writer.options(**absent.options, delivery=delivery))
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
def test_a_failed_task_sends_nothing(queue: SparkQueue, delivery: str) -> None:
    """One partition raises after the other is done: nothing is sent, and no chunk is left."""
    done = str(queue.folder / "done")

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

    frame = numbers(queue.spark, 0, 100).withColumn("id", checked("id"))

    with ThreadPoolExecutor(1) as beside:
        watched = beside.submit(watch)
        assert "no such order" in refusal(queue, frame, delivery=delivery)
    watched.result()

    # atLeastOnce has sent the other task's chunk, whole
    assert queue.count() == (0 if delivery == "exactlyOnce" else 50)
    assert staging(queue) == [0, 0]


def test_tasks_that_end_after_a_failed_write_leave_nothing(queue: SparkQueue) -> None:
    """One partition raises while the other is at work: what that one stages is dropped too."""
    frame = numbers(queue.spark, 0, 100).withColumn(
        "body", F.expr("if(id = 'm-99', raise_error('no such order'), body)")
    )

    assert "no such order" in refusal(queue, frame)
    tracker = queue.spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no tasks
    until(lambda: sum(each.numRunningTasks() for each in tracker.getExecutorInfos()), 0)

    assert [queue.count(), *staging(queue)] == [0, 0, 0]


def test_what_does_not_fit_is_refused(queue: SparkQueue) -> None:
    """A frame before it is computed, a row by its partition and number; nothing is sent."""
    rows = " UNION ALL ".join(f"SELECT '' AS body, '{text}' AS headers" for text in ("{}", "[]"))

    frame = refusal(queue, queue.spark.sql("SELECT '' AS body, 1 AS priority"))
    row = refusal(queue, queue.spark.sql(f"SELECT * FROM ({rows})").coalesce(1))

    assert "cannot be sent: column priority is not known; known are body, id, " in frame
    reason = "headers is no JSON object of texts"
    assert f"row 1 of partition 0 cannot be sent: {reason}" in row
    assert [queue.count(), *staging(queue)] == [0, 0, 0]


def test_overwrite_is_refused(queue: SparkQueue) -> None:
    """A queue is not a table to be replaced."""
    writer = numbers(queue.spark, 0, 2).write.format("sqlqueue").options(**queue.options)
    expected = "option mode is 'overwrite': expected append: sending adds to a queue"

    with pytest.raises(PySparkException, match=expected):
        writer.mode("overwrite").save()
    with pytest.raises(BadOption, match="option outputMode is 'complete': expected append"):
        DefaultSource(queue.options).streamWriter(StructType(), overwrite=True)
    assert queue.count() == 0


def test_legacy_columns_on_postgresql_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The option has no effect there; Spark makes a writer for each micro-batch."""
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    warn_once.cache_clear()
    counts = []

    for legacy in ("false", "true", "true"):
        raw = {"url": "postgresql://", "queue": "q", "legacyColumns": legacy}
        frame = StructType().add("body", "binary")
        StreamWriter(SinkOptions.parse(raw), frame)
        counts.append(len(caplog.records))

    assert counts == [0, 1, 1]
    message = caplog.records[0].getMessage()
    assert message.startswith("legacyColumns=true has no effect. Queues of PostgreSQL")


@DELIVERIES
def test_a_stream_is_sent(queue: SparkQueue, delivery: str) -> None:
    """
    From queue to queue: every message once, nothing left in between.

    The option `queue` of the sink overrides the column, which says where a message came from.
    """
    queue.fill(0, 500)
    out = queue.another("out")
    stream = queue.stream(maxMessagesPerTrigger=200).load()

    writer = stream.writeStream.format("sqlqueue").options(**out.options | {"delivery": delivery})
    queue.finish(writer)

    assert sorted(out.ids()) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("staging")] == [0, 0]
    entered = queue.dotnet.state_rows("dispatch_log", "batch")
    assert entered == ([(2,)] if delivery == "exactlyOnce" else [])


@DELIVERIES
def test_a_replayed_batch(queue: SparkQueue, delivery: str) -> None:
    """
    The commit log lost its last entry: exactlyOnce sends nothing again; atLeastOnce may.

    The source is a file, so that it replays alone.
    """
    files = str(queue.folder / "input")
    numbers(queue.spark, 0, 100).write.parquet(files)
    source = queue.spark.readStream.schema("id string, body string").parquet(files)
    mine = [F.col("id").alias("correlationId"), F.col("body")]  # ids are made by the sink
    writer = (
        source.select(*mine)
        .writeStream.format("sqlqueue")
        .options(**queue.options | {"delivery": delivery})
    )
    checkpoint = queue.folder / "checkpoint"
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


def test_a_failed_micro_batch_sends_nothing_until_it_succeeds(queue: SparkQueue) -> None:
    """A bad row, then a missing destination: no message and no chunk; then all is sent once."""
    queue.fill(0, 20)
    queue.put('{"NServiceBus.MessageId":"m-20"}', None)  # a body of NULL, which must not be sent
    even, odd = queue.another("even"), queue.beside("odd")
    stream = queue.stream().load()
    where = F.when(F.col("seq") % 2 == 1, even.name).otherwise(odd.name)
    stream = stream.withColumn("queue", where)

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.format("sqlqueue").options(**queue.database_options)
        queue.finish(writer)

    fixed = stream.withColumn("body", F.coalesce("body", F.lit(b"")))
    null = "body is null: send zero bytes instead, coalesce(body, '')"
    for frame, reason in ((stream, null), (fixed, f"queue {odd.name} was not found")):
        with pytest.raises(StreamingQueryException) as refused:
            run(frame)
        assert reason in str(refused.value)
        assert [even.count(), queue.state("staging")] == [0, 0]
    odd.create()
    run(fixed)

    assert sorted(even.ids()) == sorted(numbered(0, 21)[::2])
    assert sorted(odd.ids()) == sorted(numbered(0, 21)[1::2])
    assert queue.state("staging") == 0


@DELIVERIES
def test_a_stream_of_replies_outlives_bad_reply_addresses(queue: SparkQueue, delivery: str) -> None:
    """
    No address, a hostile one, and a queue that is dropped between two batches.

    Their replies are in the error queue, once. An error queue that is missing is found before a
    task runs.
    """
    good, instance = queue.another("good"), queue.another("instance")
    errors = queue.beside("undeliverable")
    asked = [good.name, None, instance.name, "x" * 10_000, good.name]

    def ask(first: int) -> None:
        for number, address in enumerate(asked, first):
            reply_to = {} if address is None else {"NServiceBus.ReplyToAddress": address}
            queue.put(json.dumps({"NServiceBus.MessageId": f"m-{number}"} | reply_to))

    def answer() -> None:
        replies = queue.stream().load().select(*reply(F.lit("{}"), message_type="Shop.Done"))
        options = queue.database_options | {"delivery": delivery, "undeliverable": errors.name}
        queue.finish(replies.writeStream.format("sqlqueue").options(**options))

    ask(0)
    with pytest.raises(StreamingQueryException, match=f"queue {errors.name} was not found"):
        answer()
    errors.create()
    answer()
    ask(5)
    queue.dba.drop(instance.address)
    answer()

    related = "NServiceBus.RelatedTo"
    assert sorted(str(headers[related]) for headers, _ in good.rows()) == [
        "m-0",
        "m-4",
        "m-5",
        "m-9",
    ]
    failed = {str(headers[related]): headers for headers, _ in errors.rows()}
    assert (errors.count(), queue.count()) == (5, 0)
    assert {each: headers.get("NServiceBus.FailedQ") for each, headers in failed.items()} == {
        "m-1": None,
        "m-3": "x" * 1000,
        "m-6": None,
        "m-7": instance.name,
        "m-8": "x" * 1000,
    }


def test_txn_version_inside_foreach_batch(queue: SparkQueue) -> None:
    """A write that is done is skipped when its batch comes again, as Delta does."""
    queue.fill(0, 250)
    out = queue.another("out")
    failures = [True]

    def send(frame: DataFrame, batch: int) -> None:
        out.send(frame.drop("queue"), txnAppId="loader", txnVersion=batch)
        if batch == 1 and failures:
            failures.clear()
            raise RuntimeError("after the write")

    stream = queue.stream(maxMessagesPerTrigger=100).load()
    with pytest.raises(StreamingQueryException, match="after the write"):
        queue.finish(stream.writeStream.foreachBatch(send))
    queue.finish(stream.writeStream.foreachBatch(send))

    assert sorted(out.ids()) == sorted(numbered(0, 250))
    entered = queue.dotnet.state_rows("dispatch_log", "sink, batch")
    assert entered == [("app:loader", 2)]
    assert queue.state("staging") == 0
