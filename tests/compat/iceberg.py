"""
Queue to Iceberg over faults, as a program: `python -m compat.iceberg '{"step": …}'`.

spark-defaults.conf of SPARK_CONF_DIR names a Hadoop catalog `lake`, and the runtime jar from Maven
Central, which there is for Spark 4.0 and 4.1 only. The first step runs the job and waits to be
killed, with a batch in the table that is not yet in the error queue. The second step is the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from processes import kill_session
from pyspark.errors import PySparkException

from compat.stage import BUSY, RUNS, Stage, numbered
from sqlq_spark.functions import header
from sqlq_spark.jobs import queue_to_delta, streams, table_writer
from sqlq_spark.jobs.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
MAVEN = "org.apache.iceberg:iceberg-spark-runtime"
JARS = {"4.0": f"{MAVEN}-4.0_2.13:1.11.0", "4.1": f"{MAVEN}-4.1_2.13:1.12.0"}
DEFAULTS = """
spark.master local[2]
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.jars.packages {jar}
spark.sql.extensions org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
spark.sql.catalog.lake org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.lake.type hadoop
spark.sql.catalog.lake.warehouse {folder}/warehouse
"""
PATIENCE = 900  # seconds of a step; the first start fetches 48 MB
SCHEMA = "number INT NOT NULL"
_BODIES = """
UPDATE {} SET Body = convert_to(CASE WHEN Headers LIKE '%0","NServiceBus.Reply%'
    THEN '{{"number":"x"}}' ELSE '{{"number":1}}' END, 'UTF8')
"""


def jar() -> str | None:
    """The runtime of this Spark; None if there is none."""
    return JARS.get(".".join(version("pyspark").split(".")[:2]))


# ---------------------------------------------------------------- from the suite


def prove(stage: Stage) -> None:
    """Run both steps, each in a process of its own; the first one is killed."""
    stage.queue("errors")
    for name in ("typed", "replayed", "own", "bare", "expired"):
        stage.queue(name, 250)
    for name in ("page_orders", "page_billing"):
        stage.queue(name, 50)
    stage.sql(_BODIES.format(f"{stage.schema}.typed"), rows=False)
    conf = stage.folder / "conf"
    conf.mkdir()
    text = DEFAULTS.format(jar=jar(), folder=stage.folder)
    (conf / "spark-defaults.conf").write_text(text, encoding="utf-8")
    with start(stage, "kill") as process:
        end = time.monotonic() + PATIENCE
        try:
            while not (stage.folder / "iceberg_reached").exists():
                assert process.poll() is None, log(stage)
                assert time.monotonic() < end, log(stage)
                time.sleep(0.1)
        finally:
            kill_session(process)
    with start(stage, "rest") as process:
        assert process.wait(PATIENCE) == 0, log(stage)


def start(stage: Stage, step: str) -> subprocess.Popen[bytes]:
    """Start a step."""
    place = {"url": stage.url, "schema": stage.schema, "folder": str(stage.folder)}
    with (stage.folder / "iceberg.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "compat.iceberg", json.dumps({"step": step, **place})],
            env=os.environ | {"SPARK_CONF_DIR": str(stage.folder / "conf")},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def log(stage: Stage) -> str:
    """The end of what a step printed."""
    return (stage.folder / "iceberg.log").read_text(encoding="utf-8")[-3000:]


# ---------------------------------------------------------------- in a session with Iceberg


@dataclass(frozen=True)
class Lake:
    """A session with Iceberg, and the queues."""

    stage: Stage
    spark: SparkSession

    def job(self, queue: str, **more: Any) -> None:
        """Run the job from a queue into the table of its name."""
        settings = queue_to_delta.Settings(
            url=self.stage.url,
            queues=self.stage.address(queue),
            table=f"lake.shop.{queue}",
            format="iceberg",
            checkpoint=str(self.checkpoint(queue)),
            error_queue=self.stage.address("errors"),
            source={"stateSchema": self.stage.schema, "maxMessagesPerTrigger": "100"},
            **more,
        )
        patient(lambda: queue_to_delta.run(self.spark, settings))

    def job_that_ends_after(self, batch: int, queue: str, **more: Any) -> None:
        """Run the job up to an error after the write of a batch."""

        def end() -> None:
            reason = "the end"
            raise RuntimeError(reason)

        with mock.patch.object(table_writer, "append_iceberg", then(batch, end)):
            raised(lambda: self.job(queue, **more), "the end")

    def stream(self, queue: str, write: Any = None) -> None:
        """Run one micro-batch into Iceberg's own sink, or by a function."""

        def run() -> None:
            rows = self.stage.stream(queue).select("headers", "body")
            writer = rows.writeStream.option("checkpointLocation", str(self.checkpoint(queue)))
            writer = writer.trigger(availableNow=True)
            if write is None:
                query = writer.format("iceberg").outputMode("append").toTable(f"lake.shop.{queue}")
            else:
                query = writer.foreachBatch(write).start()
            assert query.awaitTermination(PATIENCE)

        patient(run)

    def ids(self, table: str) -> list[str]:
        """The message ids of a table, in the order of their numbers."""
        self.spark.sql(f"REFRESH TABLE lake.shop.{table}")
        found = self.spark.table(f"lake.shop.{table}").select(
            header("headers", "NServiceBus.MessageId")
        )
        return sorted((row[0] for row in found.collect()), key=lambda name: int(name[2:]))

    def checkpoint(self, queue: str) -> Path:
        """The checkpoint of a queue's stream."""
        return self.stage.folder / f"iceberg_{queue}"

    def lose(self, queue: str, *logs: str) -> None:
        """Remove the last entry of logs of a checkpoint."""
        for each in logs:
            entries = (self.checkpoint(queue) / each).glob("[0-9]*")
            last = max(entries, key=lambda entry: int(entry.name))
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def call(self, procedure: str) -> None:
        """Call a procedure of the catalog."""
        self.spark.sql(f"CALL lake.system.{procedure}").collect()


def patient(work: Callable[[], object]) -> None:
    """Do something again if the machine was too busy to start a worker; it is recognised."""
    for _ in range(RUNS):
        try:
            work()
        except PySparkException as error:
            if BUSY not in str(error):
                raise
        else:
            return
    raise AssertionError(f"the machine was too busy {RUNS} times")


def then(batch: int, work: Callable[[], object]) -> Callable[..., None]:
    """Do something after the write of a batch."""
    append = table_writer.append_iceberg

    def both(rows: DataFrame, table: str, name: str, number: int) -> None:
        append(rows, table, name, number)
        if number == batch:
            work()

    return both


def raised(work: Callable[[], object], words: str) -> None:
    """Do what must fail with these words."""
    found = ""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
        found = str(error)
    assert words in found, found


def wait_to_be_killed(lake: Lake) -> None:
    """The second batch is in the table; its bodies that do not fit are not in the error queue."""

    def wait() -> None:
        (lake.stage.folder / "iceberg_reached").touch()
        time.sleep(PATIENCE)

    with mock.patch.object(table_writer, "append_iceberg", then(1, wait)):
        lake.job("typed", schema=SCHEMA)


def killed_job_goes_on(lake: Lake) -> None:
    """Each message is in the table or in the error queue, once."""
    before = lake.stage.count("errors")

    lake.job("typed", schema=SCHEMA)

    assert (before, lake.stage.count("errors")) == (10, 25)
    assert lake.ids("typed") == [each for each in numbered(0, 250) if each[-1] != "0"]


def replays_are_recognised(lake: Lake) -> None:
    """Of a batch as it was, with its last offset lost, and after the table was set back."""
    lake.job_that_ends_after(0, "replayed")
    lake.job_that_ends_after(1, "replayed")
    lake.lose("replayed", "offsets")
    lake.job("replayed")
    assert lake.ids("replayed") == numbered(0, 250)

    lake.stage.fill("replayed", 250, 300)
    latest = "SELECT snapshot_id FROM lake.shop.replayed.snapshots ORDER BY committed_at DESC"
    snapshot = lake.spark.sql(latest).collect()[0][0]
    entries = (lake.checkpoint("replayed") / "offsets").glob("[0-9]*")
    lake.job_that_ends_after(max(int(each.name) for each in entries) + 1, "replayed")
    lake.call(f"rollback_to_snapshot('shop.replayed', {snapshot})")
    lake.job("replayed")
    assert lake.ids("replayed") == numbered(0, 300)

    for _ in range(2):
        lake.lose("replayed", "offsets", "commits")
    raised(lambda: lake.job("replayed"), "was rolled back or copied")
    assert lake.ids("replayed") == numbered(0, 300)


def own_sink_recognises_a_batch(lake: Lake) -> None:
    """Iceberg's own sink, after the last commit and the last offset were lost."""
    lake.spark.sql("CREATE TABLE lake.shop.own (headers MAP<STRING, STRING>, body BINARY)")
    lake.stream("own")
    lake.lose("own", "commits")
    lake.stream("own")
    lake.stream("own")
    lake.lose("own", "offsets", "commits")
    for _ in range(3):
        lake.stream("own")

    assert lake.ids("own") == numbered(0, 250)


def bare_function_repeats_a_batch(lake: Lake) -> None:
    """A write without a look before it: Iceberg does not recognise the batch."""
    lake.spark.sql("CREATE TABLE lake.shop.bare (headers MAP<STRING, STRING>, body BINARY)")

    def write(rows: DataFrame, _: int) -> None:
        rows.writeTo("lake.shop.bare").append()

    lake.stream("bare", write)
    lake.lose("bare", "commits")
    lake.stream("bare", write)

    assert len(lake.ids("bare")) == 200
    assert set(lake.ids("bare")) == {*numbered(0, 100)}


def expired_snapshot_repeats_a_batch(lake: Lake) -> None:
    """The limit: the write of an open batch is recognised by its snapshot only."""
    lake.job_that_ends_after(0, "expired")
    lake.spark.sql("INSERT INTO lake.shop.expired SELECT * FROM lake.shop.expired LIMIT 0")
    lake.call("rewrite_data_files(table => 'shop.expired', options => map('rewrite-all', 'true'))")
    later = "TIMESTAMP '2999-01-01 00:00:00'"
    lake.call(f"expire_snapshots(table => 'shop.expired', older_than => {later}, retain_last => 1)")
    lake.job("expired")

    twice, rest = numbered(0, 100), numbered(100, 250)
    assert sorted(lake.ids("expired")) == sorted([*twice, *twice, *rest])


def code_of_the_page_runs(lake: Lake) -> None:
    """Both blocks of docs/iceberg.md; the second one recognises a batch."""
    page = (ROOT / "docs" / "iceberg.md").read_text(encoding="utf-8")
    options = {"url": lake.stage.url, "stateSchema": lake.stage.schema}
    for name in ("sink", "look"):
        code = page.partition(f"<!-- block: {name} -->\n```python\n")[2].partition("```")[0]
        code = code.replace("/lake/", f"{lake.stage.folder}/page_")
        for queue in ("orders", "billing"):
            code = code.replace(
                f'"Shop.{queue.title()}"', repr(lake.stage.address(f"page_{queue}"))
            )
        assert code
        names = {"spark": lake.spark, "DATABASE": options}
        exec(code, names)  # noqa: S102 - a page of ours
        if name == "look":
            (lake.stage.folder / "page_billing_checkpoint/commits/0").unlink()
            (lake.stage.folder / "page_billing_checkpoint/commits/.0.crc").unlink(missing_ok=True)
            exec(code, names)  # noqa: S102 - again

    for table in ("orders", "billing"):
        lake.spark.sql(f"REFRESH TABLE lake.shop.{table}")
        assert lake.spark.table(f"lake.shop.{table}").count() == 50


STEPS = {
    "kill": (wait_to_be_killed,),
    "rest": (
        killed_job_goes_on,
        replays_are_recognised,
        own_sink_recognises_a_batch,
        bare_function_repeats_a_batch,
        expired_snapshot_repeats_a_batch,
        code_of_the_page_runs,
    ),
}


def main(job: dict[str, Any]) -> None:
    """Do a step."""
    stage = Stage(url=job["url"], schema=job["schema"], folder=Path(job["folder"]), connect=False)
    with streams.session("iceberg", Settings(log_level="ERROR")) as spark:
        for work in STEPS[job["step"]]:
            began = time.monotonic()
            work(Lake(stage, spark))
            print(work.__name__, round(time.monotonic() - began, 1), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
