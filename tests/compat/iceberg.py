"""
Queue to Iceberg over faults, in a classic session with a Hadoop catalog `lake`.

Its runtime jar comes from Maven Central, which has one for Spark 4.0 and 4.1 only.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyspark
from pages.page import blocks
from pyspark.errors import PySparkException

from compat.stage import BUSY, RUNS, TIMEOUT, lose, numbered, raised
from sqlq_spark.functions import header
from sqlq_spark.jobs import queue_to_delta, table_writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from compat.stage import Stage

MAVEN = "org.apache.iceberg:iceberg-spark-runtime"
JARS = {"4.0": f"{MAVEN}-4.0_2.13:1.11.0", "4.1": f"{MAVEN}-4.1_2.13:1.12.0"}
SCHEMA = "number INT NOT NULL"
append = table_writer.append_iceberg


def settings(stage: Stage) -> dict[str, str] | None:
    """Settings of a session with Iceberg; None where there is none."""
    jar = JARS.get(".".join(pyspark.__version__.split(".")[:2]))
    if jar is None or stage.connect:
        return None
    return {
        "spark.jars.packages": jar,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{stage.folder}/warehouse",
    }


def checkpoint(stage: Stage, queue: str) -> Path:
    """The checkpoint of a queue's stream."""
    return stage.folder / f"iceberg_{queue}"


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


def job(
    stage: Stage, queue: str, after: tuple[int, Callable[[], None]] | None = None, **more: Any
) -> None:
    """Run the job from a queue into the table of its name; do something after a batch's write."""
    given = queue_to_delta.Settings(
        url=stage.url,
        queues=stage.address(queue),
        table=f"lake.shop.{queue}",
        format="iceberg",
        checkpoint=str(checkpoint(stage, queue)),
        error_queue=stage.address("errors"),
        source={"stateSchema": stage.schema, "maxMessagesPerTrigger": "100"},
        **more,
    )

    def write(rows: DataFrame, table: str, name: str, number: int) -> None:
        append(rows, table, name, number)
        if after and after[0] == number:
            after[1]()

    with mock.patch.object(table_writer, "append_iceberg", write):
        patient(lambda: queue_to_delta.run(stage.session(), given))


def job_that_ends_after(stage: Stage, queue: str, batch: int) -> None:
    """Run the job up to an error after the write of a batch."""

    def end() -> None:
        reason = "the end"
        raise RuntimeError(reason)

    raised(lambda: job(stage, queue, (batch, end)), "the end")


def ids(stage: Stage, table: str) -> list[str]:
    """The message ids of a table, in the order of their numbers."""
    stage.session().sql(f"REFRESH TABLE lake.shop.{table}")
    rows = stage.session().table(f"lake.shop.{table}")
    found = rows.select(header("headers", "NServiceBus.MessageId")).collect()
    return sorted((row[0] for row in found), key=lambda name: int(name[2:]))


# ---------------------------------------------------------------- cases


def wait_to_be_killed(stage: Stage) -> None:
    """The second batch is in the table; its bodies that do not fit are not in the error queue."""
    stage.queue("errors")
    stage.queue("typed", 250)
    last = "Headers LIKE '%0\",\"NServiceBus.Reply%'"
    stage.sql(f"UPDATE {stage.schema}.typed SET Body = 'x' WHERE {last}")
    reached = threading.Event()

    def wait() -> None:
        reached.set()
        time.sleep(TIMEOUT)

    given = (stage, "typed", (1, wait))
    running = threading.Thread(target=job, args=given, kwargs={"schema": SCHEMA}, daemon=True)
    running.start()
    while not reached.wait(0.1):
        assert running.is_alive(), "the job ended"


def iceberg_job_goes_on_after_a_kill(stage: Stage) -> None:
    """Each message is in the table or in the error queue, once."""
    before = stage.count("errors")

    job(stage, "typed", schema=SCHEMA)

    assert (before, stage.count("errors")) == (10, 25)
    assert ids(stage, "typed") == [each for each in numbered(0, 250) if each[-1] != "0"]


def iceberg_recognises_replays(stage: Stage) -> None:
    """Of a batch as it was, with its last offset lost, and after the table was set back."""
    spark, place = stage.session(), checkpoint(stage, "replayed")
    stage.queue("replayed", 250)
    job_that_ends_after(stage, "replayed", 0)
    job_that_ends_after(stage, "replayed", 1)
    lose(place, "offsets")
    job(stage, "replayed")
    assert ids(stage, "replayed") == numbered(0, 250)

    stage.fill("replayed", 250, 300)
    latest = "SELECT snapshot_id FROM lake.shop.replayed.snapshots ORDER BY committed_at DESC"
    snapshot = spark.sql(latest).collect()[0][0]
    last = max(int(each.name) for each in (place / "offsets").glob("[0-9]*"))
    job_that_ends_after(stage, "replayed", last + 1)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('shop.replayed', {snapshot})").collect()
    job(stage, "replayed")
    assert ids(stage, "replayed") == numbered(0, 300)

    for _ in range(2):
        lose(place, "offsets", "commits")
    raised(lambda: job(stage, "replayed"), "was rolled back or copied")
    assert ids(stage, "replayed") == numbered(0, 300)


def iceberg_page_runs(stage: Stage) -> None:
    """Both blocks of docs/iceberg.md recognise a batch: Iceberg's own sink, and a function."""
    options = {"url": stage.url, "stateSchema": stage.schema}
    for name, queue in {"sink": "orders", "look": "billing"}.items():
        [block] = blocks("docs/iceberg.md", name)
        code = block.text.replace("/lake/", f"{stage.folder}/page_")
        page = stage.address(stage.queue(f"page_{queue}", 50))
        code = code.replace(f'"Shop.{queue.title()}"', repr(page))
        for create in (True, False):
            if not create:
                lose(stage.folder / f"page_{queue}_checkpoint", "commits")
                code = code.replace("CREATE TABLE lake", "CREATE TABLE IF NOT EXISTS lake")
            exec(code, {"spark": stage.session(), "DATABASE": options})  # noqa: S102 - ours
        stage.session().sql(f"REFRESH TABLE lake.shop.{queue}")
        assert stage.session().table(f"lake.shop.{queue}").count() == 50


CASES = (
    iceberg_job_goes_on_after_a_kill,
    iceberg_recognises_replays,
    iceberg_page_runs,
)
