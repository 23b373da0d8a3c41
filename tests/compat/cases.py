"""
One environment's part of the compatibility run: `python -m compat.cases '{"url": …}'`.

The first case runs in a process that its starter kills. CASES run in the next one, which prints a
line of JSON for each case and goes on after one that failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
import traceback
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pages.page import blocks
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import LongType, StructField, StructType

import sqlq_spark
from compat import iceberg
from compat.stage import MESSAGE_ID, Record, Stage, lose, numbered, raised
from sqlq_spark import functions as sqlq
from sqlq_spark import spark_api
from sqlq_spark.datasource.stream import StreamReader
from sqlq_spark.options import SourceOptions

BIN = Path(sys.executable).parent
RELAY = """
queues = '{source}'
error_queue = '{error}'
checkpoint = '{checkpoint}'
trigger = "availableNow"
targets = {{'{source}' = '{target}'}}
source = {{maxMessagesPerTrigger = "100"}}
"""


def receive_until_killed(stage: Stage) -> None:
    """Batch 0 is done, batch 1 is received and its sink waits to be killed."""
    stage.fill("orders", 0, 250)
    record = Record(stage.folder / "killed")
    record.order("stop-1")
    stage.received("orders", record)


def killed_stream_goes_on(stage: Stage) -> None:
    """
    The batch that was open gets the same rows again; no message is lost or repeated.

    So does a batch that failed and whose offset is lost. A checkpoint that was rolled back is an
    error.
    """
    record = Record(stage.folder / "killed")
    checkpoint = record.folder / "checkpoint"
    record.order("stop-1").unlink()
    stage.received("orders", record)
    first, again = record.of(1)
    assert again == first
    assert record.last_ids() == numbered(0, 250)
    assert len(record.of(0)) == 1

    stage.fill("orders", 250, 450)
    failing = record.order("fail")
    raised(lambda: stage.received("orders", record), "sink failed")
    failing.unlink()
    failed = record.batches()[-1]
    lose(checkpoint, "offsets")
    stage.received("orders", record, maxConcurrency=1, maxMessagesPerTrigger=30)
    first, again = record.of(failed)
    assert again == first
    assert record.last_ids() == numbered(0, 450)
    assert [stage.count("orders"), stage.count("sqlqueue.receipt")] == [0, 0]

    stage.fill("orders", 900, 910)
    for _ in range(2):
        lose(checkpoint, "offsets", "commits")
    raised(lambda: stage.received("orders", record), "was rolled back or copied")
    assert stage.ids("orders") == numbered(900, 910)


def frame_is_sent_once(stage: Stage) -> None:
    """Written twice under one txnAppId and txnVersion; with a map and an interval."""
    queue, rows = stage.queue("sent"), stage.session().range(100)
    frame = rows.select(
        F.encode(F.col("id").cast("string"), "UTF-8").alias("body"),
        F.create_map(F.lit(MESSAGE_ID), F.concat(F.lit("m-"), "id")).alias("headers"),
        F.expr("INTERVAL '1' HOUR").alias("timeToBeReceived"),
    )

    for _ in range(2):
        given = stage.options(queue, txnAppId="compat", txnVersion=1)
        frame.write.format("sqlqueue").options(**given).mode("append").save()

    assert sorted(stage.ids(queue)) == sorted(numbered(0, 100))
    assert stage.sql("SELECT count(Expires) FROM sent") == [100]


def queue_to_queue_in_one_transaction(stage: Stage) -> None:
    """
    A stream into a queue, and its restart, with sendsAtomicWithReceive: each message once.

    Its plan and its progress hide the password, and so does a browse's plan.
    """
    source, target = stage.queue("atomic_in"), stage.queue("atomic_out")
    given = stage.options(target, transactionMode="sendsAtomicWithReceive")
    shown = io.StringIO()

    for first, stop in ((0, 250), (250, 400)):
        stage.fill(source, first, stop)
        stream = stage.stream(source).drop("queue", "seq")
        query = stage.finish(stream.writeStream.format("sqlqueue").options(**given), "atomic")

        assert stage.ids(target) == numbered(0, stop)
        with contextlib.redirect_stdout(shown):
            query.explain(extended=True)
            stage.browse(source).explain(extended=True)
        shown.writelines(each.json for each in query.recentProgress)
    assert [stage.count(source), stage.count("sqlqueue.staging")] == [0, 0]
    assert "sqlqueue" in shown.getvalue()
    assert str(urlsplit(stage.url).password) not in shown.getvalue()


def functions_read_and_answer(stage: Stage) -> None:
    """
    Spark finds the format, before and after a call of register; functions read headers.

    A reply to each message is sent to the address that asked for it.
    """
    queue, answers = stage.queue("asked", 20), stage.queue("answers")

    def browse() -> list[str]:
        rows = stage.browse(queue).where("body IS NOT NULL AND expires IS NULL").orderBy("seq")
        return [row[0] for row in rows.select(sqlq.header("headers", MESSAGE_ID)).collect()]

    found, frame = browse(), stage.browse(queue)
    sqlq_spark.register(stage.session())
    read = frame.select(sqlq.message_type("headers"), sqlq.sent_at("headers").cast("string"))
    replies = frame.select(*sqlq.reply("body", message_type="Shop.OrderAccepted"))
    given = {"url": stage.url}
    replies.write.format("sqlqueue").options(**given).mode("append").save()

    assert found == browse() == stage.ids(queue) == numbered(0, 20)
    assert {*map(tuple, read.collect())} == {("Shop.PlaceOrder", "2024-05-01 10:00:00.123456")}
    related = [each["NServiceBus.RelatedTo"] for each in stage.headers(answers)]
    assert sorted(related) == sorted(numbered(0, 20))


def a_job_drains_a_queue(stage: Stage) -> None:
    """The command `sqlqueue-relay` of the wheel, in a process and a session of its own."""
    names = {name: stage.queue(f"job_{name}") for name in ("source", "target", "error")}
    stage.fill(names["source"], 0, 250)
    settings = stage.folder / "relay.toml"
    text = RELAY.format(**names, checkpoint=stage.folder / "job")
    settings.write_text(text)
    urls = {"SQLQUEUE_SOURCE_URL": stage.url, "SQLQUEUE_TARGET_URL": stage.url}
    # with SPARK_TESTING Spark chooses the port: the server of this process has the default one
    remote = {"SPARK_REMOTE": "local[2]", "SPARK_TESTING": "1"} if stage.connect else {}

    command = [str(BIN / "sqlqueue-relay"), "--settings", str(settings)]
    done = subprocess.run(command, env=os.environ | urls | remote, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(stage.ids(names["target"])) == sorted(numbered(0, 250))
    assert stage.count(names["source"]) == 0


def sql_browses_and_sends(stage: Stage) -> None:
    """Temporary views, and tables with `WITH`."""
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

    assert (found, stage.count(waiting), stage.count(sent)) == (20, 20, 20)


def named_sources_come_and_go(stage: Stage) -> None:
    """
    Queues are added, swapped, removed and put back, and a batch comes again: each message once.

    The code is that of docs/guide/checkpoints.md. Before Spark 4.3 it has not been tried.
    """
    if [*map(int, version("pyspark").split(".")[:2])] < [4, 3]:
        return
    [block] = blocks("docs/guide/checkpoints.md", "named")
    code = block.text.replace("/lake/", f"{stage.folder}/named_")
    code = re.sub(r"QUEUES = .*", "QUEUES = given", code)
    sent = 0
    for each in "abc":
        stage.queue(f"named_{each}")

    def run(**sources: str) -> None:
        """Send 10 messages to each queue, and receive from some."""
        nonlocal sent
        for each in "abc":
            stage.fill(f"named_{each}", sent, sent + 10)
            sent += 10
        given = {name: f"named_{queue}" for name, queue in sources.items()}
        names = {"spark": stage.session(), "DATABASE": {"url": stage.url}, "given": given}
        exec(code, names)  # noqa: S102 - ours

    def check(**waiting: int) -> None:
        """Each message that does not wait is once in the files, and no receipt is left."""
        rows = stage.session().read.parquet(f"{stage.folder}/named_all").select("headers")
        queues = {each: stage.ids(f"named_{each}") for each in "abc"}
        found = [row.headers[MESSAGE_ID] for row in rows.collect()]
        found += [each for ids in queues.values() for each in ids]
        assert sorted(found) == sorted(numbered(0, sent))
        assert {each: len(ids) for each, ids in queues.items() if ids} == waiting
        assert stage.count("sqlqueue.receipt WHERE queue LIKE '%named_%'") == 0

    run(x="a")
    check(b=10, c=10)
    run(x="a", y="b")
    check(c=20)
    run(y="b", x="a")
    check(c=30)
    run(x="a", z="c")
    check(b=10)
    lose(stage.folder / "named_all_checkpoint", "commits")
    run(x="a", z="c")
    check(b=20)
    run(x="a", y="b", z="c")
    check()


def a_pipeline_goes_on(stage: Stage) -> None:
    """
    The pipeline of conf/pipelines is killed, run, and fully refreshed.

    It has a server of Spark Connect of its own, so one of the two kinds of session is enough. Spark
    4.0 has no pipelines.
    """
    if not stage.connect or find_spec("pyspark.pipelines") is None:
        return
    from compat.pipeline import Pipeline, killed_and_refreshed  # noqa: PLC0415 - not on 4.0

    for name in ("Shop.Orders", "Shop.Billing"):
        subprocess.run([BIN / "sqlqueue", "create", name, "--url", stage.url], check=True)
    pipeline = Pipeline(stage.folder / "pipeline", stage.url)
    pipeline.copy()
    killed_and_refreshed(pipeline)


def the_limit_of_a_read_is_built(stage: Stage) -> None:
    """A stream returns its ReadLimit, also on a Spark that does not have this class."""
    options = SourceOptions.parse(stage.options("orders"))
    reader = StreamReader(options, StructType([StructField("seq", LongType())]))

    limit = reader.getDefaultReadLimit()

    assert limit == spark_api.ReadMaxRows(options.max_messages)


CASES = (
    the_limit_of_a_read_is_built,
    killed_stream_goes_on,
    frame_is_sent_once,
    queue_to_queue_in_one_transaction,
    functions_read_and_answer,
    a_job_drains_a_queue,
    sql_browses_and_sends,
    named_sources_come_and_go,
    a_pipeline_goes_on,
    *iceberg.CASES,
)


def main(job: dict[str, Any]) -> int:
    """Run the first case, or all others that are asked for; returns how many failed."""
    folder, failed = Path(job["folder"]), 0
    stage = Stage(os.environ["SQLQUEUE_URL"], folder, job["connect"])
    if job["only"] is None:
        receive_until_killed(stage)
        return 1
    wanted = [each for each in CASES if each.__name__.startswith(tuple(job["only"]))]
    lake = iceberg.settings(stage) if {*wanted} & {*iceberg.CASES} else {}
    stage.session(**lake)
    versions = [f"{x} {version(x)}" for x in ("pyspark", "pyarrow", "numpy")]
    say(job["name"], "Python", sys.version.split()[0], *versions)
    for case in wanted:
        if case in iceberg.CASES and not lake:
            continue
        began, error = time.monotonic(), "ok"
        try:
            case(stage)
        except Exception:  # noqa: BLE001 - whatever it is, the other cases run too
            error = f"FAILED\n{traceback.format_exc()}"
            failed += 1
        say(job["name"], f"{case.__name__:36} {time.monotonic() - began:6.1f} s ", error)
    return failed


def say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
