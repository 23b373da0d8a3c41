"""
The cases of the compatibility run, in the order in which they run.

FIRST runs in a process that is killed at its end; CASES run in the next one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark.sql import functions as F  # noqa: N812 - the usual name

import sqlq_spark
from compat import iceberg
from compat.stage import Record, numbered
from sqlq_spark import functions as sqlq

if TYPE_CHECKING:
    from collections.abc import Callable

    from compat.stage import Stage


def receive_until_killed(stage: Stage) -> None:
    """Batch 0 is done, batch 1 is received and its sink waits to be killed."""
    stage.fill("orders", 0, 250)
    record = Record(stage.folder / "killed")
    record.order("stop-1")
    stage.received("orders", record)


def killed_stream_goes_on(stage: Stage) -> None:
    """The batch that was open gets the same rows again; no message is lost or repeated."""
    record = Record(stage.folder / "killed")
    record.order("stop-1", given=False)
    stage.received("orders", record)

    first, again = record.of(1)
    assert again == first
    assert record.last_ids() == numbered(0, 250)
    assert len(record.of(0)) == 1
    assert [stage.count("orders"), stage.count("receipt")] == [0, 0]


def browse_finds_the_format(stage: Stage) -> None:
    """Spark finds it without a call of register; after one it works as before."""
    spark, queue = stage.session(), stage.queue("browsed", 30)

    def browse() -> list[str]:
        frame = spark.read.format("sqlqueue").options(**stage.options(queue)).load()
        frame = frame.where("body IS NOT NULL AND expires IS NULL").orderBy("seq")
        return [row[0] for row in frame.select(sqlq.header("headers", MESSAGE_ID)).collect()]

    found = browse()
    sqlq_spark.register(spark)

    assert found == browse() == numbered(0, 30)
    assert stage.count(queue) == 30


def frame_is_sent_once(stage: Stage) -> None:
    """Written twice under one txnAppId and txnVersion; with a map and an interval."""
    queue = stage.queue("sent")
    frame = (
        stage.session()
        .range(100)
        .select(
            F.encode(F.col("id").cast("string"), "UTF-8").alias("body"),
            F.create_map(F.lit(MESSAGE_ID), F.concat(F.lit("m-"), "id")).alias("headers"),
            F.expr("INTERVAL '1' HOUR").alias("timeToBeReceived"),
        )
    )

    for _ in range(2):
        given = stage.options(queue, txnAppId="compat", txnVersion=1)
        frame.write.format("sqlqueue").options(**given).mode("append").save()

    assert sorted(stage.ids(queue)) == sorted(numbered(0, 100))
    assert stage.sql(f"SELECT count(Expires) FROM {stage.schema}.sent") == [(100,)]


def lost_entries_get_the_stored_plan(stage: Stage) -> None:
    """The last offset is lost, with no commit of its batch: the batch has the same rows."""
    queue = stage.queue("lost", 100)
    record = Record(stage.folder / "lost")
    stage.received(queue, record)
    stage.fill(queue, 100, 300)
    record.order("fail")
    raised(lambda: stage.received(queue, record), "sink failed")
    record.order("fail", given=False)
    record.remove("offsets", record.last("offsets"))

    stage.received(queue, record, maxConcurrency=1, maxMessagesPerTrigger=30)

    first, again = record.of(1)
    assert again == first
    assert record.last_ids() == numbered(0, 300)
    assert stage.count("receipt") == 0


def rolled_back_checkpoint_is_refused(stage: Stage) -> None:
    """The last batch's entries are lost after it was acknowledged: nothing is received."""
    queue = stage.queue("rolled", 250)
    record = Record(stage.folder / "rolled")
    stage.received(queue, record)
    stage.fill(queue, 900, 910)
    last = record.last("offsets")
    for batch in (last, last - 1):
        record.remove("offsets", batch)
        record.remove("commits", batch)

    raised(lambda: stage.received(queue, record), "was rolled back or copied")

    assert stage.ids(queue) == numbered(900, 910)


def queue_to_queue(stage: Stage) -> None:
    """A stream into a queue, and its restart."""
    relayed(stage, "plain")


def queue_to_queue_in_one_transaction(stage: Stage) -> None:
    """The same with sendsAtomicWithReceive."""
    relayed(stage, "atomic", transactionMode="sendsAtomicWithReceive")


def relayed(stage: Stage, name: str, **more: object) -> None:
    """Move messages from one queue to another in two runs: each message once, in order."""
    source, target = stage.queue(f"{name}_in", 250), stage.queue(f"{name}_out")
    given = stage.options(target, **more)

    for first, stop in ((0, 250), (250, 400)):
        stage.fill(source, max(first, 250), stop)
        stream = stage.stream(source).drop("queue", "seq")
        writer = stream.writeStream.format("sqlqueue").options(**given)
        stage.finish(writer, stage.folder / name)

        assert stage.ids(target) == numbered(0, stop)
    assert [stage.count(source), stage.count("staging")] == [0, 0]


def functions_read_and_answer(stage: Stage) -> None:
    """Headers in columns, and a reply to each message, sent to the address that asked for it."""
    spark, queue = stage.session(), stage.queue("asked", 20)
    answers = stage.queue("answers")
    frame = spark.read.format("sqlqueue").options(**stage.options(queue)).load()

    read = frame.select(sqlq.message_type("headers"), sqlq.time_sent("headers").cast("string"))
    replies = frame.select(*sqlq.reply("body", message_type="Shop.OrderAccepted"))
    replies = replies.withColumn(  # a DBA's schema, which no endpoint would name
        "queue", F.format_string(f'"{stage.schema}"."%s"', "queue")
    )
    given = stage.options(queue)
    del given["queue"]
    replies.write.format("sqlqueue").options(**given).mode("append").save()

    assert {tuple(row) for row in read.collect()} == {
        ("Shop.PlaceOrder", "2024-05-01 10:00:00.123456")
    }
    sent = [json.loads(row[0]) for row in stage.sql(f"SELECT Headers FROM {stage.schema}.answers")]
    assert len(sent) == stage.count(answers) == 20
    assert {each["NServiceBus.MessageIntent"] for each in sent} == {"Reply"}
    assert {each["NServiceBus.RelatedTo"] for each in sent} == set(numbered(0, 20))


def passwords_are_hidden(stage: Stage) -> None:
    """In plans and progress of a read and a stream."""
    queue, out = stage.queue("hidden", 10), stage.queue("hidden_out")
    password = urlsplit(stage.url).password
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame = stage.session().read.format("sqlqueue").options(**stage.options(queue)).load()
        frame.explain(extended=True)
        writer = stage.stream(queue).drop("queue").writeStream.format("sqlqueue")
        given = stage.options(out)
        query = stage.finish(writer.options(**given), stage.folder / "hidden")
        query.explain(extended=True)
    text = shown.getvalue() + "".join(each.json for each in query.recentProgress)

    assert password
    assert "sqlqueue" in text
    assert password not in text
    assert stage.count(out) == 10


def a_job_drains_a_queue(stage: Stage) -> None:
    """The command `sqlqueue-relay` of the wheel, in a process and a session of its own."""
    source, target, error = (stage.queue(f"job_{name}") for name in ("in", "out", "error"))
    stage.fill(source, 0, 250)
    settings = stage.folder / "relay.toml"
    settings.write_text(
        _RELAY.format(
            source=stage.address(source),
            target=stage.address(target),
            error=stage.address(error),
            state=stage.schema,
            checkpoint=stage.folder / "job",
        ),
        encoding="utf-8",
    )
    urls = {"SQLQUEUE_SOURCE_URL": stage.url, "SQLQUEUE_TARGET_URL": stage.url}
    # with SPARK_TESTING Spark chooses the port: the server of this process has the default one
    remote = {"SPARK_REMOTE": "local[2]", "SPARK_TESTING": "1"} if stage.connect else {}

    done = subprocess.run(
        [Path(sys.executable).with_name("sqlqueue-relay"), "--settings", settings],
        env=os.environ | urls | remote,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(stage.ids(target)) == sorted(numbered(0, 250))
    assert stage.count(source) == 0


def sql_browses_and_sends(stage: Stage) -> None:
    """Temporary views, tables with `WITH`, a view of a stream; options of a table are refused."""
    spark = stage.session()
    waiting, sent = stage.queue("sql_in", 20), stage.queue("sql_out")
    given, out = (
        ", ".join(f"{name} '{text}'" for name, text in stage.options(each).items())
        for each in (waiting, sent)
    )
    with_type = f"{out}, messageType 'Shop.BillOrder'"

    spark.sql(f"CREATE TEMPORARY VIEW waiting USING sqlqueue OPTIONS ({given})")
    spark.sql(f"CREATE TEMPORARY VIEW sent (body STRING) USING sqlqueue OPTIONS ({with_type})")
    spark.sql("CREATE TABLE read (seq BIGINT, body BINARY) USING sqlqueue")
    spark.sql("CREATE TABLE write (body STRING) USING sqlqueue")
    found = spark.sql(f"SELECT seq, body FROM read WITH ({given}) WHERE seq > 0").count()
    spark.sql("INSERT INTO sent SELECT CAST(body AS STRING) FROM waiting")
    spark.sql(f"INSERT INTO write WITH ({out}) VALUES ('one more')")
    raised(lambda: spark.sql(f"CREATE TABLE t USING sqlqueue OPTIONS ({given})"), "OptionsOfTable")
    raised(lambda: spark.sql("SELECT * FROM read").collect(), "WITH (url")
    stage.stream(waiting).createOrReplaceTempView("received")
    query = spark.sql("SELECT CAST(seq AS STRING) AS body FROM received WHERE seq > 0")
    writer = query.writeStream.format("sqlqueue").options(**stage.options(sent))
    stage.finish(writer, stage.folder / "sql")

    assert (found, stage.count(waiting), stage.count(sent)) == (20, 0, 41)
    for each in ("read", "write"):
        spark.sql(f"DROP TABLE {each}")


def a_pipeline_goes_on(stage: Stage) -> None:
    """
    The pipeline of conf/pipelines is killed, run, and fully refreshed.

    It has a server of Spark Connect of its own, so one of the two kinds of session is enough. Spark
    4.0 has no pipelines.
    """
    if not stage.connect or find_spec("pyspark.pipelines") is None:
        return
    from compat.pipeline import Pipeline, killed_twice, refreshed  # noqa: PLC0415 - not on 4.0

    with stage.database() as url:
        program = Path(sys.executable).with_name("sqlqueue")
        for words in (["install"], ["create", "Shop.Orders"], ["create", "Shop.Billing"]):
            subprocess.run([program, *words, "--url", url], check=True)
        pipeline = Pipeline(stage.folder / "pipeline", url)
        pipeline.copy()

        killed_twice(pipeline)
        refreshed(pipeline)


def iceberg_has_each_message_once(stage: Stage) -> None:
    """Over faults; Iceberg has no release for Spark 4.2 and later."""
    if iceberg.jar() is not None and not stage.connect:
        iceberg.prove(stage)


def raised(work: Callable[[], object], words: str) -> None:
    """Do what must fail with these words."""
    found = ""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - classic and Connect raise different classes
        found = str(error)

    assert words in found


MESSAGE_ID = "NServiceBus.MessageId"
_RELAY = """
queues = '{source}'
error_queue = '{error}'
checkpoint = '{checkpoint}'
trigger = "availableNow"

[targets]
'{source}' = '{target}'

[source]
stateSchema = '{state}'
maxMessagesPerTrigger = "100"

[sink]
stateSchema = '{state}'
"""
FIRST = receive_until_killed
CASES = (
    killed_stream_goes_on,
    browse_finds_the_format,
    frame_is_sent_once,
    lost_entries_get_the_stored_plan,
    rolled_back_checkpoint_is_refused,
    queue_to_queue,
    queue_to_queue_in_one_transaction,
    functions_read_and_answer,
    passwords_are_hidden,
    a_job_drains_a_queue,
    sql_browses_and_sends,
    a_pipeline_goes_on,
    iceberg_has_each_message_once,
)
