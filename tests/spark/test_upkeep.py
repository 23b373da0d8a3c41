"""A Delta table that is kept in order; a failed round stops no stream."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from waiting import until

from sqlq_spark.jobs.audit_to_delta import Upkeep

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_old_rows_go_small_files_are_packed_and_unused_ones_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A row of an endpoint whose clock is behind is kept as long after its arrival as any other."""
    table = str(tmp_path / "table")
    rows = [(f"{days}", NOW - timedelta(days=days), NOW - timedelta(days=days)) for days in (40, 0)]
    rows += [("on the day", NOW - timedelta(days=30), NOW - timedelta(days=30))]
    rows += [("late", NOW - timedelta(days=9000), NOW)]
    frame = spark.createDataFrame(rows, "name string, moment timestamp, received timestamp")
    frame = frame.selectExpr("name", "received", "to_date(moment) AS date").coalesce(1)
    Upkeep(spark=spark, table=table, optimize=True).once()
    writer = frame.union(frame).write.format("delta").partitionBy("date")
    writer.option("maxRecordsPerFile", 1).save(table)  # two files of each date
    session = spark.newSession()  # what is set there is no other test's
    session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    upkeep = Upkeep(
        spark=session,
        table=table,
        clock=lambda: NOW,
        optimize=True,
        retention_days=30,
        vacuum_hours=2,
    )

    left, recent = (tmp_path / "table" / name for name in ("left.parquet", "recent.parquet"))
    for file in (left, recent):
        file.write_bytes(b"of a writer that was killed")
    os.utime(left, (time.time() - 7201,) * 2)

    upkeep.prepare()
    upkeep.once()
    upkeep.retention_days, upkeep.optimize, upkeep.vacuum_hours = None, False, None
    upkeep.once()

    assert upkeep.totals == {"deletedMessages": 2, "packedFiles": 6, "vacuums": 1}
    rest = spark.read.format("delta").load(table).collect()
    assert sorted(row.name for row in rest) == sorted(2 * ["0", "late", "on the day"])
    assert [left.exists(), recent.exists()] == [False, True]


class Rounds(Upkeep):
    """Rounds, of which the first ones fail."""

    failing = 0
    done = 0

    def once(self) -> None:
        """Do nothing, or fail."""
        self.done += 1
        if self.done <= self.failing:
            raise ValueError(self.done)


def test_a_failed_round_is_repeated_and_reported_at_the_end(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """No error is raised if a later round succeeded."""
    for failing in (1, 1_000_000):
        caplog.clear()
        upkeep = Rounds(spark=spark, table="t")
        upkeep.failing = failing
        failure = nullcontext() if failing == 1 else pytest.raises(ValueError, match=r"^\d+$")
        with failure, upkeep.beside(0.001):
            until(lambda: upkeep.done > 1)  # noqa: B023 - runs in this round

        assert "t: upkeep failed and will be tried again: 1" in caplog.text
