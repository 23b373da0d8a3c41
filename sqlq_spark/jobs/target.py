"""
Binds a stream's checkpoint to the database that it sends to.

If a batch was sent, but its commit did not reach the checkpoint, the next run repeats it. The
sink's dispatch log has that batch, but the dispatch log of another database or stateSchema has not.
An id is therefore entered into the dispatch log, and kept in the checkpoint beside Spark's own
files. While a batch is open, the job sends only where the dispatch log has the id. After a run that
ended without an error, the target may be changed.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark import checkpoints
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.jobs.frame.settings import BadSettings
from sqlq_spark.send.dispatch import UNKNOWN, open_request, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.options import SinkOptions

FILE = "sqlqueue_target"  # a folder of one file, because Spark writes only folders


def bind(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Bind a checkpoint to its target before the stream starts.

    Raises:
        BadSettings: an open batch may have been sent to another target.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    if sink.delivery != "exactlyOnce":
        return
    note = f"{checkpoint.rstrip('/')}/{FILE}"
    known, _, was = checkpoints.text(spark, note).partition("\n")
    with StateSession(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        timeout = sink.query_timeout
        if (
            known
            and session.run_with_retries(partial(read_state, sink=known, timeout=timeout))
            != UNKNOWN
        ):
            return
        logs = (checkpoints.names(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
        batch, done = map(checkpoints.newest, logs)
        if known and batch > done:
            raise BadSettings(
                reason=f"setting checkpoint is {checkpoint!r}: its batch {batch} is open, and may "
                f"have been sent to {was}. The dispatch log of {here} does not have it, so the "
                "batch would be sent again. First run the job with the former target until it ends "
                f"without an error. Or, if the batch was not sent, delete {note}"
            )
        fresh = f"job:{uuid.uuid4()}"
        session.run_with_retries(partial(open_request, sink=fresh, timeout=timeout))
    text = spark.range(1).select(F.lit(f"{fresh}\n{here}").alias("value")).coalesce(1)
    text.write.mode("overwrite").text(note)
