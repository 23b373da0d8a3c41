"""
Runs a job's stream from its start to its totals. SIGTERM ends it after its batch.

Before Spark 4.2 a stream from queues with `Trigger.AvailableNow` ends after one micro-batch. It is
then started again on its checkpoint, until it has received all that waited after the first run.
"""

from __future__ import annotations

import json
import signal
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints, spark_api
from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import CheckpointFailure
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.spark import is_path, spread
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.fields import duration
from sqlq_spark.receive.offset import Offset
from sqlq_spark.send.dispatch import UNKNOWN, open_request, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sqlq_spark.jobs.settings import StreamSettings
    from sqlq_spark.options import SinkOptions

POLL = 0.25  # seconds between two looks at a stream
LAST_BATCH = 60.0  # seconds to wait for the end of the batch when a stream is stopped
TARGET = "sqlqueue_target"  # a folder of one file, because Spark writes only folders
UNDELIVERED = ("expired", "diverted", "forwarded")


def start(
    writer: DataStreamWriter, settings: StreamSettings, table: str | None = None
) -> StreamingQuery:
    """Start a stream on its checkpoint: as the writer says, or into a Delta table."""
    writer = with_trigger(
        writer.option("checkpointLocation", settings.checkpoint), settings.trigger
    )
    if table is None:
        return writer.start()
    writer = writer.format("delta").outputMode("append")
    return writer.start(table) if is_path(table) else writer.toTable(table)


def with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == "availableNow":
        return writer.trigger(availableNow=True)
    milliseconds = round(duration(0)(trigger) * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds")


def follow(query: StreamingQuery) -> dict[str, int]:
    """
    Wait for a stream's end, or for SIGTERM, and count.

    SIGTERM stops the stream after its batch. Under spark-submit the signal must reach this process.
    If it reaches only the JVM, the JVM ends immediately, and the next run repeats the batch.

    Returns:
        `messages`, `batches`.
    """
    with sigterm() as asked:
        tally = watch(query, asked)
    return {"messages": tally.messages, "batches": tally.batches}


def receive(
    spark: SparkSession, settings: StreamSettings, write: Callable[[DataFrame], StreamingQuery]
) -> dict[str, Any]:
    """
    Run a stream from queues to its end; SIGTERM ends it as in `follow`.

    Args:
        spark: the session.
        settings: say what to read, and when.
        write: starts the stream of a read; it may be called more than once.

    Returns:
        `messages`, `batches`, and the messages of acknowledged batches that were not delivered:
        `expired`, `diverted`, `forwarded`.
    """
    read = spread(spark, settings.read())
    source = SourceOptions.parse(read)
    totals = Counter(messages=0, batches=0, expired=0, diverted=0, forwarded=0)
    again = settings.trigger == "availableNow" and not spark_api.DRAINS_AT_ONCE
    ends: dict[str, int] | None = None
    with sigterm() as asked:
        while True:
            before = undelivered(source)
            tally = watch(write(load(spark, read)), asked)
            totals.update(messages=tally.messages, batches=tally.batches)
            totals.update(undelivered(source).get(tally.stream, Counter()))
            totals.subtract(before.get(tally.stream, Counter()))
            if not again or asked.is_set() or not tally.worked:
                return dict(totals)
            tops = read_tops(source)
            if ends is None:  # includes delayed messages that were due
                ends = {name: last for name, (_, last) in tops.items()}
            if all(first > ends[name] for name, (first, _) in tops.items() if name in ends):
                return dict(totals)  # later messages may wait
            # later messages must not be purged
            read = {name: text for name, text in read.items() if name != "purgeOnStartup"}


def load(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    """The stream of a read."""
    return spark.readStream.format("sqlqueue").options(**read).load()


@contextmanager
def sigterm() -> Iterator[threading.Event]:
    """Give an event that SIGTERM sets, instead of ending the process."""
    asked = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set()) if main else None
    try:
        yield asked
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


class Tally:
    """Counts a stream's messages and batches from its progress."""

    def __init__(self, query: StreamingQuery) -> None:
        self.messages = 0
        self.batches = 0
        self.last = -1  # the last batch that is counted
        self.worked = False  # whether a batch was run, even an empty or a replayed one
        self.stream: str | None = None  # the id of a stream from queues
        self._query = query
        self._seen: object = None

    def note(self) -> None:
        """Count new progress; Spark keeps the progress of 100 batches."""
        latest = self._query.lastProgress
        if latest is None or latest.timestamp == self._seen:
            return
        self._seen = latest.timestamp
        for progress in self._query.recentProgress:
            self.worked |= "addBatch" in progress.durationMs
            if progress.batchId > self.last and progress.numInputRows:
                self.last = progress.batchId
                self.batches += 1
                self.messages += progress.numInputRows
            self.stream = stream_of(progress.sources[0].endOffset) or self.stream


def stream_of(offset: str | dict[str, Any] | None) -> str | None:
    """Return the stream's id in an offset of the progress; None if it is of another format."""
    try:
        return Offset.parse(json.loads(offset) if isinstance(offset, str) else offset).stream
    except (CheckpointFailure, TypeError, ValueError):
        return None


def watch(query: StreamingQuery, asked: threading.Event) -> Tally:
    """Wait until a stream ends, or until it was asked to stop and its batch ended."""
    tally, active = Tally(query), True
    while active and not asked.is_set():
        active = not query.awaitTermination(POLL)  # type: ignore[arg-type]
        tally.note()
    if active:
        last, until = tally.last, time.monotonic() + LAST_BATCH
        while query.status["isDataAvailable"] and tally.last == last and time.monotonic() < until:
            query.awaitTermination(POLL)  # type: ignore[arg-type]
            tally.note()
        query.stop()
    tally.note()
    return tally


# ---------------------------------------------------------------- the database of a stream


def read_tops(source: SourceOptions) -> dict[str, tuple[int, int]]:
    """The lowest and the highest seq of each queue that is not empty."""
    with Session(source, "job") as session:
        connection = session.open()
        with transaction(connection, timeout=source.query_timeout):
            found = {
                name: connection.rows("top", tables={"queue": queue})[0]
                for name, queue in zip(source.names, source.addresses, strict=True)
            }
    return {name: (first, last) for name, (first, last) in found.items() if first is not None}


def undelivered(source: SourceOptions) -> dict[str | None, Counter[str]]:
    """How many messages each stream of the state tables has not delivered, so far."""
    if source.transaction_mode == "none":
        return {}
    with StateSession(source, "job") as session:
        connection = session.open()
        with transaction(connection, timeout=source.query_timeout):
            return {
                each.stream: Counter({name: getattr(each, name) for name in UNDELIVERED})
                for each in inspect.streams(connection)
            }


def bind(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Bind a stream's checkpoint to the database that it sends to, before the stream starts.

    If a batch was sent, but its commit did not reach the checkpoint, the next run repeats it. The
    sink's dispatch log has that batch, but the dispatch log of another database or stateSchema has
    not. An id is therefore entered into the dispatch log, and kept in the checkpoint beside Spark's
    own files. While a batch is open, the job sends only where the dispatch log has the id. After a
    run that ended without an error, the target may be changed.

    Raises:
        BadSettings: an open batch may have been sent to another target.
    """
    if sink.delivery != "exactlyOnce":
        return
    note, timeout = f"{checkpoint.rstrip('/')}/{TARGET}", sink.query_timeout
    known, _, was = checkpoints.text(spark, note).partition("\n")
    with StateSession(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        if known:
            state = session.run_with_retries(partial(read_state, sink=known, timeout=timeout))
            if state != UNKNOWN:
                return
        logs = (checkpoints.read(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
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
