"""A Delta table that is kept in order; a failed round stops no stream."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows, sigterm_when

from sqlq_spark.jobs import audit_to_delta

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.stand import SparkQueue

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
    given: dict[str, Any] = {"url": "postgresql:///", "table": table, "checkpoint": "c"}
    settings = audit_to_delta.Settings(**given, optimize=True, retention_days=30, vacuum_hours=2)
    done = Counter[str]()
    audit_to_delta.maintain(spark, settings, done, NOW)
    writer = frame.union(frame).write.format("delta").partitionBy("date")
    writer.option("maxRecordsPerFile", 1).save(table)  # two files of each date
    session = spark.newSession()  # what is set there is no other test's
    session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    left, recent = (tmp_path / "table" / name for name in ("left.parquet", "recent.parquet"))
    for file in (left, recent):
        file.write_bytes(b"of a writer that was killed")
    os.utime(left, (time.time() - 7201,) * 2)

    audit_to_delta.maintain(session, settings, done, NOW)
    audit_to_delta.maintain(session, audit_to_delta.Settings(**given), done, NOW)

    assert done == {"deletedMessages": 2, "packedFiles": 6, "vacuums": 1}
    rest = spark.read.format("delta").load(table).collect()
    assert sorted(row.name for row in rest) == sorted(2 * ["0", "late", "on the day"])
    assert [left.exists(), recent.exists()] == [False, True]


def test_a_failed_round_is_repeated_and_stops_no_stream(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next batch is received; the next round does its work."""
    table, maintain, rounds = queue.folder / "table", audit_to_delta.maintain, list[int]()

    def failing_once(*given: Any) -> None:
        rounds.append(queue.count())
        queue.put("{}")
        if len(rounds) == 1:
            raise ValueError("the end")
        maintain(*given)

    monkeypatch.setattr(audit_to_delta, "maintain", failing_once)
    monkeypatch.setattr(audit_to_delta, "duration", lambda _: lambda _: 0)
    settings = audit_to_delta.Settings(
        url=queue.place.url,
        queue=queue.name,
        table=str(table),
        checkpoint=str(queue.folder / "checkpoint"),
        trigger="100ms",
        retention_days=30,
        source={"stateSchema": queue.place.state},
    )
    queue.put("{}")
    with sigterm_when((queue.folder / "checkpoint" / "commits" / "2").exists):
        totals = audit_to_delta.run(queue.spark, settings)

    assert "upkeep failed and will be tried again: the end" in caplog.text
    assert totals["deletedMessages"] == 0
    assert totals["messages"] == len(delta_rows(table)) >= 3
