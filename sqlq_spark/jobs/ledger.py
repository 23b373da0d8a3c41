"""
The ledger that a stream's checkpoint goes with.

A batch that was sent, and whose end did not reach the checkpoint, is done again by the next run:
the sink's ledger knows that it was sent, and that of another database or stateSchema does not. So
an id is entered into the ledger and kept in the checkpoint, beside Spark's own files. While a
batch is open, it is sent only where the id is known, by whatever host name that is reached; after a
run that ended well the target may be changed.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database.sessions import Session
from sqlq_spark.jobs import files
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.triage.ledger import OPEN, UNKNOWN, enter, last

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.options import SinkOptions

FILE = "sqlqueue_ledger"  # a folder of one file, for Spark writes no other


def bind(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Note where a stream that is about to start sends to.

    Raises:
        BadSettings: what it has open may have been sent elsewhere.
    """
    if sink.delivery != "exactlyOnce":
        return
    note = f"{checkpoint.rstrip('/')}/{FILE}"
    known, _, was = files.text(spark, note).partition("\n")
    with Session(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        if known and session.do(partial(last, known, sink.query_timeout)) != UNKNOWN:
            return
        batch, done = (newest(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
        if known and batch > done:
            raise BadSettings(
                f"setting checkpoint is {checkpoint!r}: its batch {batch} is open, and may have "
                f"been sent to {was}; {here} does not know of it, and would send it again. Let a "
                f"run with the former target end well first; or, if it was not sent, delete {note}"
            )
        fresh = f"job:{uuid.uuid4()}"
        session.do(partial(enter, fresh, sink.query_timeout, OPEN))
    files.write(spark, note, f"{fresh}\n{here}")


def newest(spark: SparkSession, log: str) -> int:
    """The last batch in a log of a checkpoint; -1 where there is none."""
    numbers = (int(name) for name in files.names(spark, log) if name.isdecimal())
    return max(numbers, default=-1)
