"""
One environment's part of the compatibility run: `python -m compat.cases '{"url": …}'`.

FIRST runs in a process that its starter kills, CASES run in the next one, which prints a line of
JSON for each case and goes on after one that failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import traceback
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import functions as F  # noqa: N812 - the usual name

import sqlq_spark
from compat import iceberg
from compat.stage import MESSAGE_ID, Record, Stage, lose, numbered, raised
from sqlq_spark import functions as sqlq

PACKAGES = ("pyspark", "pyarrow", "numpy")
_RELAY = """
queues = '{source}'
error_queue = '{error}'
checkpoint = '{checkpoint}'
trigger = "availableNow"
targets = {{'{source}' = '{target}'}}
source = {{stateSchema = '{state}', maxMessagesPerTrigger = "100"}}
sink = {{stateSchema = '{state}'}}
"""


def receive_until_killed(stage: Stage) -> None:
    """Batch 0 is done, batch 1 is received and its sink waits to be killed."""
    stage.fill("orders", 0, 250)
    record = Record(stage.folder / "killed")
    record.order("stop-1")
    stage.received("orders", record)


def killed_stream_goes_on(stage: Stage) -> None:
    """The batch that was open gets the same rows again; no message is lost or repeated."""
    record = Record(stage.folder / "killed")
    record.order("stop-1").unlink()
    stage.received("orders", record)

    first, again = record.of(1)
    assert again == first
    assert record.last_ids() == numbered(0, 250)
    assert len(record.of(0)) == 1
    assert [stage.count("orders"), stage.held("orders")] == [0, 0]


def browse_finds_the_format(stage: Stage) -> None:
    """Spark finds it without a call of register; after one it works as before."""
    queue = stage.queue("browsed", 30)

    def browse() -> list[str]:
        rows = stage.browse(queue).where("body IS NOT NULL AND expires IS NULL").orderBy("seq")
        return [row[0] for row in rows.select(sqlq.header("headers", MESSAGE_ID)).collect()]

    found = browse()
    sqlq_spark.register(stage.session())

    assert found == browse() == stage.ids(queue) == numbered(0, 30)


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


def lost_entries_are_noticed(stage: Stage) -> None:
    """The last offset is lost: its batch has the same rows. It was acknowledged: an error."""
    queue = stage.queue("lost", 100)
    record = Record(stage.folder / "lost")
    record.folder.mkdir()
    stage.received(queue, record)
    stage.fill(queue, 100, 300)
    failing = record.order("fail")
    raised(lambda: stage.received(queue, record), "sink failed")
    failing.unlink()
    lose(record.folder / "checkpoint", "offsets")

    stage.received(queue, record, maxConcurrency=1, maxMessagesPerTrigger=30)
    first, again = record.of(1)
    assert again == first
    assert record.last_ids() == numbered(0, 300)
    assert stage.held(queue) == 0

    stage.fill(queue, 900, 910)
    for _ in range(2):
        lose(record.folder / "checkpoint", "offsets", "commits")
    raised(lambda: stage.received(queue, record), "was rolled back or copied")
    assert stage.ids(queue) == numbered(900, 910)


def queue_to_queue_in_one_transaction(stage: Stage) -> None:
    """A stream into a queue, and its restart, with sendsAtomicWithReceive: each message once."""
    source, target = stage.queue("atomic_in"), stage.queue("atomic_out")
    given = stage.options(target, transactionMode="sendsAtomicWithReceive")

    for first, stop in ((0, 250), (250, 400)):
        stage.fill(source, first, stop)
        stream = stage.stream(source).drop("queue", "seq")
        writer = stream.writeStream.format("sqlqueue").options(**given)
        stage.finish(writer, stage.folder / "atomic")

        assert stage.ids(target) == numbered(0, stop)
    assert [stage.count(source), stage.count("staging")] == [0, 0]


def functions_read_and_answer(stage: Stage) -> None:
    """Headers in columns, and a reply to each message, sent to the address that asked for it."""
    queue, answers = stage.queue("asked", 20), stage.queue("answers")
    frame = stage.browse(queue)

    read = frame.select(sqlq.message_type("headers"), sqlq.time_sent("headers").cast("string"))
    replies = frame.select(*sqlq.reply("body", message_type="Shop.OrderAccepted"))
    replies = replies.withColumn(  # a DBA's schema, which no endpoint would name
        "queue", F.format_string(f'"{stage.schema}"."%s"', "queue")
    )
    given = stage.options(queue)
    del given["queue"]
    replies.write.format("sqlqueue").options(**given).mode("append").save()

    assert {*map(tuple, read.collect())} == {("Shop.PlaceOrder", "2024-05-01 10:00:00.123456")}
    sent = stage.headers(answers)
    assert {each["NServiceBus.MessageIntent"] for each in sent} == {"Reply"}
    assert sorted(each["NServiceBus.RelatedTo"] for each in sent) == sorted(numbered(0, 20))


def passwords_are_hidden(stage: Stage) -> None:
    """In plans and progress of a read and a stream."""
    queue, out = stage.queue("hidden", 10), stage.queue("hidden_out")
    password = urlsplit(stage.url).password
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        stage.browse(queue).explain(extended=True)
        writer = stage.stream(queue).drop("queue").writeStream.format("sqlqueue")
        query = stage.finish(writer.options(**stage.options(out)), stage.folder / "hidden")
        query.explain(extended=True)
    text = shown.getvalue() + "".join(each.json for each in query.recentProgress)

    assert password
    assert "sqlqueue" in text
    assert password not in text
    assert stage.ids(out) == numbered(0, 10)


def a_job_drains_a_queue(stage: Stage) -> None:
    """The command `sqlqueue-relay` of the wheel, in a process and a session of its own."""
    names = {name: stage.queue(f"job_{name}") for name in ("source", "target", "error")}
    stage.fill(names["source"], 0, 250)
    settings = stage.folder / "relay.toml"
    places = {name: stage.address(queue) for name, queue in names.items()}
    text = _RELAY.format(**places, state=stage.schema, checkpoint=stage.folder / "job")
    settings.write_text(text, encoding="utf-8")
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
    assert sorted(stage.ids(names["target"])) == sorted(numbered(0, 250))
    assert stage.count(names["source"]) == 0


def sql_browses_and_sends(stage: Stage) -> None:
    """Temporary views, and tables with `WITH`; options of a table are refused."""
    spark = stage.session()
    waiting, sent = stage.queue("sql_in", 20), stage.queue("sql_out")
    given, out = (
        ", ".join(f"{name} '{text}'" for name, text in stage.options(each).items())
        for each in (waiting, sent)
    )

    spark.sql(f"CREATE TEMPORARY VIEW waiting USING sqlqueue OPTIONS ({given})")
    spark.sql("CREATE TABLE read (seq BIGINT, body BINARY) USING sqlqueue")
    spark.sql("CREATE TABLE write (body STRING) USING sqlqueue")
    found = spark.sql(f"SELECT seq, body FROM read WITH ({given}) WHERE seq > 0").count()
    spark.sql(f"INSERT INTO write WITH ({out}) SELECT CAST(body AS STRING) FROM waiting")
    raised(lambda: spark.sql(f"CREATE TABLE t USING sqlqueue OPTIONS ({given})"), "OptionsOfTable")
    raised(lambda: spark.sql("SELECT * FROM read").collect(), "WITH (url")

    assert (found, stage.count(waiting), stage.count(sent)) == (20, 20, 20)
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


FIRST = receive_until_killed
CASES = (
    killed_stream_goes_on,
    browse_finds_the_format,
    frame_is_sent_once,
    lost_entries_are_noticed,
    queue_to_queue_in_one_transaction,
    functions_read_and_answer,
    passwords_are_hidden,
    a_job_drains_a_queue,
    sql_browses_and_sends,
    a_pipeline_goes_on,
    *iceberg.CASES,
)


def main(job: dict[str, Any]) -> None:
    """Run the first case, or all others that are asked for."""
    folder = Path(job["folder"])
    stage = Stage(url=job["url"], schema=job["schema"], folder=folder, connect=job["connect"])
    wanted = [each for each in CASES if each.__name__.startswith(tuple(job["only"]))]
    lake = iceberg.settings(stage) if {*wanted} & {*iceberg.CASES} else None
    began = time.monotonic()
    stage.session(**lake or {})
    if job["first"]:
        if lake:
            iceberg.wait_to_be_killed(stage)
        FIRST(stage)
        return
    about = {"python": ".".join(map(str, sys.version_info[:3]))}
    about |= {package: version(package) for package in PACKAGES}
    say(case="session", seconds=time.monotonic() - began, about=about)
    for case in wanted:
        if case in iceberg.CASES and not lake:
            continue
        began, error = time.monotonic(), None
        try:
            case(stage)
        except Exception:  # noqa: BLE001 - whatever it is, the other cases run too
            error = traceback.format_exc()
        say(case=case.__name__, seconds=time.monotonic() - began, error=error)


def say(**what: Any) -> None:
    """Print one line for the starter."""
    print(json.dumps(what), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
