"""
The ledger that a stream's checkpoint goes with.

A batch that was sent, and whose end did not reach the checkpoint, is done again by the next run:
the sink's ledger knows that it was sent, and that of another database or stateSchema does not. So
an id is entered into the ledger and kept in a file of the checkpoint, beside Spark's own. While a
batch is open, it is sent only where the id is known, by whatever host name that is reached; after a
run that ended well the target may be changed.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark.job_settings import BadSettings
from sqlq_spark.sessions import Session
from sqlq_spark.triage_ledger import OPEN, UNKNOWN, enter, last

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.options import SinkOptions

FILE = "sqlqueue_ledger"


def bind(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Note where a stream that is about to start sends to.

    Raises:
        BadSettings: what it has open may have been sent elsewhere.
    """
    if sink.delivery != "exactlyOnce":
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - checkpoints lie wherever Hadoop reaches
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint)
    files = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    note = jvm.org.apache.hadoop.fs.Path(folder, FILE)
    known, _, was = noted(jvm, files, note).partition("\n")
    with Session(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        if known and session.do(partial(last, known, sink.query_timeout)) != UNKNOWN:
            return
        batch, done = (newest(jvm, files, folder, each) for each in ("offsets", "commits"))
        if known and batch > done:
            raise BadSettings(
                f"setting checkpoint is {checkpoint!r}: its batch {batch} is open, and may have "
                f"been sent to {was}; {here} does not know of it, and would send it again. Let a "
                f"run with the former target end well first; or, if it was not sent, delete {note}"
            )
        fresh = f"job:{uuid.uuid4()}"
        session.do(partial(enter, fresh, sink.query_timeout, OPEN))
    stream = files.create(note, True)  # noqa: FBT003 - a Java call
    stream.write(bytearray(f"{fresh}\n{here}", "utf-8"))
    stream.close()


def noted(jvm: Any, files: Any, note: Any) -> str:  # noqa: ANN401 - Java's
    """What the file says; nothing where it is not there, or was not finished."""
    if not files.exists(note):
        return ""
    stream = files.open(note)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def newest(jvm: Any, files: Any, folder: Any, log: str) -> int:  # noqa: ANN401 - Java's
    """The last batch in a log of the checkpoint; -1 where there is none."""
    path = jvm.org.apache.hadoop.fs.Path(folder, log)
    if not files.exists(path):
        return -1
    names = (each.getPath().getName() for each in files.listStatus(path))
    return max((int(name) for name in names if name.isdigit()), default=-1)
