"""Old rows of the audit table are deleted, at the end of a run or while a stream runs on."""

from __future__ import annotations

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


def test_old_rows_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """A row of an endpoint whose clock is behind is kept as long after its arrival as any other."""
    table, now = str(tmp_path / "table"), datetime.now(UTC)
    rows = [(f"{days}", now - timedelta(days=days), now - timedelta(days=days)) for days in (40, 0)]
    rows += [("on the day", now - timedelta(days=30), now - timedelta(days=30))]
    rows += [("late", now - timedelta(days=9000), now)]
    frame = spark.createDataFrame(rows, "name string, moment timestamp, received timestamp")
    frame = frame.selectExpr("name", "received", "to_date(moment) AS date").coalesce(1)
    given: dict[str, Any] = {"url": "postgresql:///", "table": table, "checkpoint": "c"}
    settings = audit_to_delta.Settings(**given, retention_days=30)

    before = audit_to_delta.delete_old(spark, settings)
    frame.write.format("delta").partitionBy("date").save(table)
    without = audit_to_delta.delete_old(spark, audit_to_delta.Settings(**given))
    after = audit_to_delta.delete_old(spark, settings)

    assert [before, without, after] == [{}, {}, {"deletedMessages": 1}]
    rest = spark.read.format("delta").load(table).collect()
    assert sorted(row.name for row in rest) == ["0", "late", "on the day"]


def test_a_stream_deletes_after_each_batch(queue: SparkQueue) -> None:
    """And goes on; its totals have the sum."""
    table, commits = queue.folder / "table", queue.folder / "checkpoint" / "commits"
    settings = audit_to_delta.Settings(
        url=queue.place.url,
        queue=queue.name,
        table=str(table),
        checkpoint=str(queue.folder / "checkpoint"),
        trigger="100 milliseconds",
        retention_days=1e-6,
        source={"stateSchema": queue.place.state, "maxMessagesPerTrigger": "1"},
    )
    for _ in range(3):
        queue.put('{"NServiceBus.ProcessingEnded": "2026-01-01 17:05:10:000000 Z"}')
    queue.put("{}")

    with sigterm_when((commits / "3").exists):
        totals = audit_to_delta.run(queue.spark, settings)

    assert totals == {"messages": 4, "batches": 4, "deletedMessages": 3}
    assert len(delta_rows(table)) == 1
