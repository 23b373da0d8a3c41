"""The micro-batch that a task works for."""

from __future__ import annotations

from pyspark import TaskContext

from sqlq_spark.wire.rows import Origin


def origin() -> Origin:
    """What Spark calls the micro-batch of this task."""
    context = TaskContext.get()
    if context is None:
        return Origin()
    batch = context.getLocalProperty("streaming.sql.batchId")
    return Origin(
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        query_batch=None if batch is None else int(batch),
    )
