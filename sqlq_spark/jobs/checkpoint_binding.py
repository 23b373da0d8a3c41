"""
The dispatch log that a stream's checkpoint belongs to.

A batch may be sent although its end did not reach the checkpoint. The next run does it again. The
sink's dispatch log recognises it, and the dispatch log of another database or stateSchema does not.
So the job enters an id into the dispatch log, and keeps it in the checkpoint beside Spark's files.
While a batch is open, the job sends only where the dispatch log has the id, whatever host name the
url has. After a run that ended well, the target may change.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database.sessions import Session
from sqlq_spark.jobs import files
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.triage.request_log import OPEN, UNKNOWN, enter_batch, read_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.options import SinkOptions

FILE = "sqlqueue_dispatch_log"  # a folder of one file: Spark writes nothing smaller


def bind(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Record in the checkpoint where a stream that is about to start sends to.

    Raises:
        BadSettings: its open batch may have been sent to another dispatch log.
    """
    if sink.delivery != "exactlyOnce":
        return
    note = f"{checkpoint.rstrip('/')}/{FILE}"
    known, _, was = files.text(spark, note).partition("\n")
    with Session(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        if known and session.do(partial(read_batch, known, sink.query_timeout)) != UNKNOWN:
            return
        batch, done = (last_batch(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
        if known and batch > done:
            raise BadSettings(
                f"setting checkpoint is {checkpoint!r}: its batch {batch} is open, and may have "
                f"been sent to {was}. The dispatch log of {here} does not have it, and a run would "
                f"send it again. Finish a run with the former target first, or, if the batch was "
                f"not sent, delete {note}"
            )
        new = f"job:{uuid.uuid4()}"
        session.do(partial(enter_batch, new, sink.query_timeout, OPEN))
    files.write(spark, note, f"{new}\n{here}")


def last_batch(spark: SparkSession, log: str) -> int:
    """Return the last batch in a log of a checkpoint; -1 where there is none."""
    numbers = (int(name) for name in files.names(spark, log) if name.isdecimal())
    return max(numbers, default=-1)
