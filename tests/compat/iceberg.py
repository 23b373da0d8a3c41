"""
Queue to Iceberg over faults, in a classic session with a Hadoop catalog `lake`.

Its runtime jar comes from Maven Central, which has one for Spark 4.0 and 4.1 only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest import mock

import pyspark
from pages.page import blocks
from pyspark.errors import PySparkException

from compat.stage import BUSY, RUNS, lose, numbered, raised
from sqlq_spark.jobs import queue_to_delta, table_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from compat.stage import Stage

MAVEN = "org.apache.iceberg:iceberg-spark-runtime"
JARS = {"4.0": f"{MAVEN}-4.0_2.13:1.11.0", "4.1": f"{MAVEN}-4.1_2.13:1.12.0"}
append = table_writer.append_iceberg


def settings(stage: Stage) -> dict[str, str]:
    """Settings of a session with Iceberg; none where there is none."""
    jar = JARS.get(".".join(pyspark.__version__.split(".")[:2]))
    if jar is None or stage.connect:
        return {}
    return {
        "spark.jars.packages": jar,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{stage.folder}/warehouse",
    }


def job(stage: Stage, ends: int | None = None) -> None:
    """Run the job from the queue `replayed` into a table, or up to an error after a batch."""
    given = queue_to_delta.QueueToDeltaSettings(
        url=stage.url,
        queues="replayed",
        table="lake.shop.replayed",
        format="iceberg",
        checkpoint=str(stage.folder / "replayed"),
        source={"maxMessagesPerTrigger": "100"},
    )

    def write(rows: DataFrame, table: str, name: str, number: int) -> None:
        append(rows, table, name, number)
        if number == ends:
            reason = "the end"
            raise RuntimeError(reason)

    with mock.patch.object(table_writer, "append_iceberg", write):
        for _ in range(RUNS):
            try:
                queue_to_delta.run(stage.session(), given)
            except PySparkException as error:  # if the machine was busy, run again
                if BUSY not in str(error):
                    raise
            else:
                return
    raise AssertionError(f"the machine was too busy {RUNS} times")


def job_that_ends_after(stage: Stage, batch: int) -> None:
    raised(lambda: job(stage, batch), "the end")


def check(stage: Stage, table: str, expected: list[str]) -> None:
    """A table has these messages, by the numbers in their bodies."""
    stage.session().sql(f"REFRESH TABLE lake.shop.{table}")
    rows = stage.session().table(f"lake.shop.{table}")
    found = [f"m-{json.loads(row.body)['number']}" for row in rows.select("body").collect()]
    assert sorted(found) == sorted(expected)


def iceberg_recognises_replays(stage: Stage) -> None:
    """A batch comes again unchanged, after its offset was lost, or the table was rolled back."""
    spark, place = stage.session(), stage.folder / "replayed"
    stage.queue("replayed", 250)
    job_that_ends_after(stage, 0)
    job_that_ends_after(stage, 1)
    lose(place, "offsets")
    job(stage)
    check(stage, "replayed", numbered(0, 250))

    stage.fill("replayed", 250, 300)
    latest = "SELECT snapshot_id FROM lake.shop.replayed.snapshots ORDER BY committed_at DESC"
    snapshot = spark.sql(latest).collect()[0][0]
    last = max(int(each.name) for each in (place / "offsets").glob("[0-9]*"))
    job_that_ends_after(stage, last + 1)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('shop.replayed', {snapshot})").collect()
    job(stage)
    check(stage, "replayed", numbered(0, 300))

    for _ in range(2):
        lose(place, "offsets", "commits")
    raised(lambda: job(stage), "was rolled back or copied")
    check(stage, "replayed", numbered(0, 300))


def iceberg_page_runs(stage: Stage) -> None:
    """Both blocks of docs/iceberg.md recognise a batch: Iceberg's own sink, and a function."""
    for name, queue in {"sink": "orders", "look": "billing"}.items():
        [block] = blocks("docs/iceberg.md", name)
        code = block.text.replace("/lake/", f"{stage.folder}/page_")
        page = stage.queue(f"page_{queue}", 50)
        code = code.replace(f'"Shop.{queue.title()}"', repr(page))
        for create in (True, False):
            if not create:
                lose(stage.folder / f"page_{queue}_checkpoint", "commits")
                code = code.replace("CREATE TABLE lake", "CREATE TABLE IF NOT EXISTS lake")
            exec(code, {"spark": stage.session(), "DATABASE": {"url": stage.url}})  # noqa: S102 - ours
        check(stage, queue, numbered(0, 50))


CASES = (iceberg_recognises_replays, iceberg_page_runs)
