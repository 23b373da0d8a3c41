"""Sending: a frame or a stream into queues, all of it once or nothing."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from waiting import until

from spark.stand import forget, numbered
from sqlq_spark import register
from sqlq_spark.send.sender import name_sender
from sqlq_spark.wire.headers import MESSAGE_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

STATED = {
    "MessageIntent": "Send",
    "EnclosedMessageTypes": "Shop.Messages.PlaceOrder",
    "ContentType": "application/json",
    "TimeToBeReceived": "00:30:00",
}
DELIVERIES = pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])


def numbers(spark: SparkSession, first: int, stop: int) -> DataFrame:
    """Messages like those of `Queue.fill`, in two partitions."""
    return spark.range(first, stop, numPartitions=2).select(
        F.concat(F.lit("m-"), "id").alias("id"),
        F.format_string('{"number":%d}', "id").alias("body"),
    )


def staging(queue: SparkQueue) -> list[int]:
    """The number of chunks, and of messages that were dispatched."""
    sent = queue.dotnet.state_rows("dispatch_log", "messages")
    return [queue.state("staging"), sum(messages or 0 for (messages,) in sent)]


def tasks(queue: SparkQueue) -> int:
    """How many tasks run."""
    tracker = queue.spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no tasks
    return sum(each.numRunningTasks() for each in tracker.getExecutorInfos())


def refusal(queue: SparkQueue, frame: DataFrame, **options: object) -> str:
    """The error of a write that must fail."""
    with pytest.raises(PySparkException) as refused:
        queue.send(frame, **options)
    return str(refused.value)


# ---------------------------------------------------------------- a frame


@DELIVERIES
def test_a_frame_is_sent_with_the_headers_that_endpoints_need(
    queue: SparkQueue, delivery: str
) -> None:
    """Options give the defaults, and nothing stays in the staging."""
    queue.send(
        numbers(queue.spark, 0, 1000),
        delivery=delivery,
        messageType="Shop.Messages.PlaceOrder",
        contentType="application/json",
        originatingEndpoint="Spark.Loader",
        timeToBeReceived="00:30:00",
    )

    rows = queue.rows()
    assert {headers[MESSAGE_ID]: body for headers, body in rows} == {
        f"m-{at}": b'{"number":%d}' % at for at in range(1000)
    }
    headers, _ = rows[0]
    own: dict[str, str | None] = {f"NServiceBus.{name}": text for name, text in STATED.items()}
    own |= name_sender("Spark.Loader")
    own |= dict.fromkeys([MESSAGE_ID, "NServiceBus.CorrelationId"], headers[MESSAGE_ID])
    own["NServiceBus.OpenTelemetry.StartNewTrace"] = "False"
    made = headers.keys() - own.keys()
    assert made == {"NServiceBus.TimeSent", "NServiceBus.ConversationId"}
    assert headers == own | {name: headers[name] for name in made}
    lasts = queue.dba.lifetimes(queue.address)
    assert all(life is not None and 29 * 60 <= life <= 30 * 60 for life in lasts)
    assert staging(queue) == [0, 1000 if delivery == "exactlyOnce" else 0]


def test_a_message_names_the_query_or_the_application_as_its_sender(queue: SparkQueue) -> None:
    """`register` sees the application. A message that is passed on keeps its sender."""
    plain, registered = queue.spark.newSession(), queue.spark.newSession()
    register(registered)
    body = "SELECT 'x' AS body"
    (queue.folder / "texts").mkdir()
    (queue.folder / "texts" / "one").write_text("x", encoding="utf-8")
    texts = plain.readStream.text(str(queue.folder / "texts")).withColumnRenamed("value", "body")

    queue.send(plain.sql(body))
    queue.send(registered.sql(body))
    queue.send(registered.sql(f"{body}, map('NServiceBus.TimeSent', '2026') AS headers"))
    stream = texts.writeStream.format("sqlqueue").options(**queue.options)
    queue.finish(stream.queryName("invoices to billing"))

    found = [headers.get("NServiceBus.OriginatingEndpoint") for headers, _ in queue.rows()]
    application = plain.conf.get("spark.app.name")
    assert found == ["Spark", application, None, "invoices to billing"]


@pytest.mark.parametrize("streaming", [True, False])
def test_a_missing_destination_is_found_before_a_task_runs(
    queue: SparkQueue, *, streaming: bool
) -> None:
    """If the options name the destination, the frame is not computed. They override the column."""
    ran = queue.spark.sparkContext.accumulator(0)

    @F.udf("string", useArrow=False)
    def counted(text: str) -> str:
        ran.add(1)
        return text

    absent = queue.beside("absent")
    queue.fill(0, 10)
    source = queue.stream().load() if streaming else queue.reader().load()
    frame = source.select(counted(F.col("body").cast("string")).alias("body"), "queue")

    def send() -> None:
        if streaming:
            queue.finish(frame.writeStream.format("sqlqueue").options(**absent.options))
        else:
            absent.send(frame)

    with pytest.raises(PySparkException) as refused:
        send()

    assert f"queue {absent.whole_name} was not found in " in str(refused.value)
    assert ran.value == 0
    absent.create()
    send()
    assert [absent.count(), ran.value] == [10, 10]


def test_bytes_that_spark_casts_to_a_text_cost_their_row(queue: SparkQueue) -> None:
    """The error names the row and its column. With `undeliverable` only that row is diverted."""
    errors = queue.another("errors")
    text = "if(id = 7, cast(unhex('41FF42') AS string), 'blue')"
    frame = queue.spark.range(0, 10, numPartitions=1)
    frame = frame.selectExpr("string(id) AS body", f"map('tenant', {text}) AS headers")

    assert "row 7 of partition 0 cannot be sent: a value in headers is" in refusal(queue, frame)
    assert queue.count() == 0
    queue.send(frame, undeliverable=errors.name)

    assert sorted(body for _, body in queue.rows()) == [b"%d" % at for at in range(10) if at != 7]
    assert [(headers["tenant"], body) for headers, body in errors.rows()] == [("A\ufffdB", b"7")]


@pytest.mark.parametrize("kept", ["true", "false"])
def test_a_table_may_declare_its_texts_in_any_way(queue: SparkQueue, kept: str) -> None:
    """A queue's name is CHAR, and a body has a collation. A write and a stream send them."""
    spark, setting = queue.spark, "spark.sql.preserveCharVarcharTypeInfo"
    names = queue.another("names")
    size = len(names.name) + 3
    spark.conf.set(setting, kept)
    spark.sql(
        f"CREATE TABLE texts (queue CHAR({size}), id VARCHAR(9), body STRING COLLATE UTF8_LCASE, "
        f"headers MAP<STRING, CHAR(9)>) USING parquet LOCATION '{queue.folder}/texts'"
    )
    try:
        spark.sql(f"INSERT INTO texts VALUES ('{names.name}', 'm-1 ', 'Body', map('a', 'b'))")
        spark.table("texts").write.format("sqlqueue").options(**queue.database_options).save(
            mode="append"
        )
        stream = spark.readStream.table("texts").writeStream.format("sqlqueue")
        queue.finish(stream.options(**queue.database_options))
    finally:
        spark.sql("DROP TABLE texts")
        spark.conf.unset(setting)

    found = [(headers[MESSAGE_ID], headers["a"], body) for headers, body in names.rows()]
    assert found == [("m-1 ", "b", b"Body")] * 2
    read = names.reader().schema("queue STRING COLLATE UTF8_LCASE, body BINARY").load()
    assert [bytes(row.body) for row in read.collect()] == [b"Body"] * 2


@DELIVERIES
def test_a_failed_task_sends_nothing(queue: SparkQueue, delivery: str) -> None:
    """One partition raises after the other is done. Nothing is sent, and no chunk is left."""
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
    """One partition raises while the other is at work. What that one stages is dropped too."""
    frame = numbers(queue.spark, 0, 100).withColumn(
        "body", F.expr("if(id = 'm-99', raise_error('no such order'), body)")
    )

    assert "no such order" in refusal(queue, frame)
    until(lambda: tasks(queue), 0)

    assert [queue.count(), *staging(queue)] == [0, 0, 0]


def test_overwrite_is_refused(queue: SparkQueue) -> None:
    """A queue is not a table that can be replaced."""
    writer = numbers(queue.spark, 0, 2).write.format("sqlqueue").options(**queue.options)
    with pytest.raises(PySparkException, match="option mode is 'overwrite': expected append"):
        writer.mode("overwrite").save()
    assert queue.count() == 0


# ---------------------------------------------------------------- a stream


def test_two_writes_of_a_batch_need_two_names(queue: SparkQueue) -> None:
    """With one name the second write is an error. With two names each write sends once."""
    first, second = queue.another("first"), queue.another("second")
    apps = {"A": "bill", "B": "bill"}

    def write(batch: DataFrame, number: int) -> None:
        for name, target in {"A": first, "B": second}.items():
            frame = batch.select(F.col("correlationId").alias("id"), "body")
            target.send(frame, txnAppId=apps[name], txnVersion=number)

    queue.fill(0, 10)
    writer = queue.stream().load().writeStream.foreachBatch(write)
    with pytest.raises(PySparkException, match="Give each write a txnAppId of its own"):
        queue.finish(writer)
    assert [first.count(), second.count()] == [10, 0]
    apps["B"] = "archive"
    queue.finish(writer)

    assert [first.count(), second.count(), queue.count()] == [10, 10, 0]


@DELIVERIES
def test_a_replayed_batch(queue: SparkQueue, delivery: str) -> None:
    """
    The commit log lost its last entry. With exactlyOnce nothing is sent again.

    The source is a file, so that it replays alone. The sink makes the ids. With atLeastOnce
    messages may be sent again, with the same ids.
    """
    files = str(queue.folder / "input")
    numbers(queue.spark, 0, 100).write.parquet(files)
    source = queue.spark.readStream.schema("id string, body string").parquet(files)
    rows = source.select(F.col("id").alias("correlationId"), "body")
    options = queue.options | {"delivery": delivery}

    writer = rows.writeStream.format("sqlqueue").options(**options)
    queue.finish(writer)
    before = queue.ids()
    forget(queue.checkpoint, "commits", 0)
    queue.finish(writer)

    assert len(set(before)) == 100
    if delivery == "exactlyOnce":
        assert queue.ids() == before
    else:  # repeats can be recognised by their message ids
        assert queue.count() == 200
        assert set(queue.ids()) == set(before)
    assert queue.state("staging") == 0


def test_a_query_is_stopped_while_it_waits_and_sends_once_later(queue: SparkQueue) -> None:
    """The first of two tasks waits, and the other one ends. The next run does not wait."""
    out = queue.another("out")
    options = out.options | {"pauseAboveBacklog": "9"}

    stream = queue.stream(maxConcurrency=2).load().drop("queue")
    writer = stream.writeStream.format("sqlqueue").options(**options)
    out.fill(0, 10)
    queue.fill(10, 2510)
    query = writer.option("checkpointLocation", str(queue.checkpoint)).start()
    until(lambda: [queue.state("staging"), tasks(queue)], [2, 1])
    query.stop()
    until(lambda: tasks(queue), 0)
    assert out.ids() == numbered(0, 10)
    assert out.dotnet.receive(out.address)
    queue.finish(writer)

    assert sorted(out.ids()) == sorted(numbered(1, 2510))
    assert [queue.count(), queue.state("staging")] == [0, 0]


def test_a_stream_receives_and_publishes_in_one_commit(queue: SparkQueue) -> None:
    """Each subscriber gets each message once, over two micro-batches. Null takes the option."""
    placed, event, table = "Shop.Placed", "Shop.IEvent", queue.beside("Routing")
    queue.dotnet.create_subscriptions(table.address)
    topics = {"web": [placed], "mail": [event], "stock": [placed, event]}
    queues = {name: queue.another(name) for name in topics}
    for name, made in queues.items():
        for topic in topics[name]:
            queue.dotnet.subscribe(table.address, name, topic, made.name)
    queue.fill(0, 30)
    both = F.when(F.col("seq") <= 10, F.array(F.lit(placed), F.lit(event)))
    stream = queue.stream(maxMessagesPerTrigger=20).load().withColumn("topics", both)

    options = queue.database_options | {"subscriptionTable": table.name, "topics": placed}
    options |= {"transactionMode": "sendsAtomicWithReceive"}
    events = stream.select("headers", "body", "topics")
    queue.finish(events.writeStream.format("sqlqueue").options(**options))

    received = sorted(numbered(0, 30))
    found = {name: sorted(each.ids()) for name, each in queues.items()}
    assert found == {"web": received, "mail": numbered(0, 10), "stock": received}
    assert [queue.count(), queue.state("receipt"), queue.state("staging")] == [0, 0, 0]
