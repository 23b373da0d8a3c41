"""
What jobs share on Spark: the session, the cluster's size, tables, a stream up to its totals.

Before Spark 4.2 a stream from queues with `Trigger.AvailableNow` ends after one micro-batch. It is
then started again on its checkpoint, until it has received all that waited after the first run.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints, errors, register, spark_api, versions
from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.fields import duration
from sqlq_spark.send.dispatch import UNKNOWN, open_request, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from sqlq_spark.jobs.settings import Settings, StreamSettings
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

SETTINGS = {
    # over TCP each micro-batch of a Python source waits 40 ms for a delayed acknowledgement
    "spark.python.unix.domain.socket.enabled": "true",
    # the path of a container's temporary folder may be too long for a socket
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - a socket of its owner's alone
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
DELTA = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}
# error conditions for a path or a name without a table
NO_TABLE = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
}

POLL = 0.25  # seconds between two looks at a stream
LAST_BATCH = 60.0  # seconds to wait for the end of the batch when a stream is stopped
TARGET = "sqlqueue_target"  # a folder of one file, because Spark writes only folders
STREAM = re.compile(r"stream\W+([0-9a-f-]{36})")  # in an offset of the source
UNDELIVERED = ("expired", "diverted", "forwarded")


# ---------------------------------------------------------------- the session


@contextmanager
def session(name: str, settings: Settings) -> Iterator[SparkSession]:
    """
    Give the active session, or a new one for the block.

    A new session has Delta if the job needs it, from delta-spark, or under spark-submit from the
    jar that was given. A Spark Connect server has what it was configured with.

    Raises:
        NoJava: a new session cannot start.
        MissingDelta: the job needs Delta, and a new session cannot have it.
    """
    found = SparkSession.getActiveSession()
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        found = found or SparkSession.builder.getOrCreate()
        register(found)  # a broken pyspark_* module there prevents the discovery of ours
    if found is not None:
        yield found
        return
    builder = SparkSession.builder.appName(f"sqlqueue {name}")
    remote = os.environ.get("SPARK_REMOTE", "local")
    if remote.startswith("local"):  # this process starts the server, or Spark itself
        builder = configure(builder, delta=settings.needs_delta())
    made = builder.getOrCreate()
    if "SPARK_REMOTE" in os.environ or os.environ.get("SPARK_API_MODE") == "connect":
        made.conf.set("spark.sql.session.timeZone", "UTC")
    else:
        made.sparkContext.setLogLevel(settings.log_level)
    register(made)  # after the start, so that messages name the application as their sender
    try:
        yield made
    finally:
        made.stop()


def configure(builder: SparkSession.Builder, *, delta: bool) -> SparkSession.Builder:
    """Set what spark-submit did not get, and add Delta, whose jar spark-submit was given."""
    settings = SETTINGS | DELTA if delta else SETTINGS
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit
        SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf reads what was given only after this
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        if delta and not isinstance(jvm.io.delta.sql.DeltaSparkSessionExtension, JavaClass):
            raise errors.MissingDelta
        given = SparkConf()
        settings = {name: text for name, text in settings.items() if not given.contains(name)}
        return builder.config(map={**settings})
    versions.check_java()
    builder = builder.config(map={**settings})
    if delta:
        try:
            from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - an extra
        except ImportError:
            raise errors.MissingDelta from None
        builder = configure_spark_with_delta_pip(builder)
    return builder


# ---------------------------------------------------------------- the cluster


def parallelism(spark: SparkSession) -> int:
    """
    How many tasks the cluster runs at the same time; 0 if that cannot be read.

    Spark Connect has no `sparkContext`, and some configuration of Databricks cannot be read.
    """
    sized = product(spark, "spark.executor.instances", "spark.executor.cores")
    if hasattr(spark, "sparkContext"):
        # it does not count executors that have not started yet
        return max(int(spark.sparkContext.defaultParallelism), sized)
    return product(spark, "spark.default.parallelism") or sized


def product(spark: SparkSession, *names: str) -> int:
    """The product of settings of the session; 0 if one is missing or may not be read."""
    try:
        return math.prod(int(spark.conf.get(name, "0") or 0) for name in names)
    except PySparkException:
        return 0


def set_conf(spark: SparkSession, name: str, text: str) -> bool:
    """Set a setting of the session; returns False if that is not allowed, as on serverless."""
    try:
        spark.conf.set(name, text)
    except PySparkException:
        return False
    return True


def spread(spark: SparkSession, read: dict[str, str]) -> dict[str, str]:
    """
    Set maxConcurrency to the number of tasks that the cluster runs at the same time.

    The data source itself knows only the driver's cores. Nothing is set if the options have the
    number, or if they read the queue of one instance of an endpoint, whose replies need one task.
    """
    given = SourceOptions.parse(read)
    if given.max_concurrency is not None or given.instances:
        return read
    found = parallelism(spark)
    if not found:
        log.warning(
            "the cores of this cluster cannot be read: a micro-batch uses at most %d tasks; "
            "set maxConcurrency in [source] to the number of the executors' cores",
            given.concurrency,
        )
        return read
    return {**read, "maxConcurrency": str(max(2, found, given.min_concurrency))}


# ---------------------------------------------------------------- tables


def is_path(table: str) -> bool:
    """Whether a table is a path, for example `/lake/orders` or `s3://lake/orders`, not a name."""
    return "/" in table


def quote_table(table: str) -> str:
    """A table's name or path in SQL."""
    return f"delta.`{table.replace('`', '``')}`" if is_path(table) else table


def read_table(reader: DataFrameReader | DataStreamReader, table: str) -> DataFrame:
    reader = reader.format("delta")
    return reader.load(table) if is_path(table) else reader.table(table)


def has_table(spark: SparkSession, table: str) -> bool:
    """Whether a Delta table exists; a folder with other content is not one."""
    try:
        return isinstance(read_table(spark.read, table).columns, list)
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return False
        raise


def delete_rows(spark: SparkSession, table: str, condition: str) -> int:
    text = f"DELETE FROM {quote_table(table)} WHERE {condition}"  # noqa: S608 - no value of others
    return int(spark.sql(text).collect()[0]["num_affected_rows"])


# ---------------------------------------------------------------- a stream


def start(writer: DataStreamWriter, settings: StreamSettings) -> StreamingQuery:
    writer = writer.option("checkpointLocation", settings.checkpoint)
    return with_trigger(writer, settings.trigger).start()


def with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    if trigger == "availableNow":
        return writer.trigger(availableNow=True)
    milliseconds = round(duration(0)(trigger) * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds")


def receive(
    spark: SparkSession, settings: StreamSettings, write: Callable[[DataFrame], StreamingQuery]
) -> dict[str, Any]:
    """
    Run a stream from queues to its end. SIGTERM ends it after its batch.

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
    again = settings.trigger == "availableNow" and not spark_api.DRAINS_AT_ONCE
    totals = Counter(messages=0, batches=0, **dict.fromkeys(UNDELIVERED, 0))
    _, before = look(source, tops=False)
    ends: list[Any] = []
    with sigterm() as asked:
        while True:
            tally = watch(write(load(spark, read)), asked)
            tops, after = look(source, tops=again)
            totals.update(messages=tally.messages, batches=tally.batches)
            for name in UNDELIVERED:
                totals[name] += getattr(after.get(tally.stream), name, 0)
                totals[name] -= getattr(before.get(tally.stream), name, 0)
            ends = ends or [last for _, last in tops]  # of delayed messages that were due, too
            left = any(
                None not in (first, end) and first <= end
                for (first, _), end in zip(tops, ends, strict=True)
            )
            if not left or asked.is_set() or not tally.worked:
                return dict(totals)  # later messages may wait
            before = after
            read.pop("purgeOnStartup", None)  # later messages must not be purged


def load(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    """The stream of a read."""
    return spark.readStream.format("sqlqueue").options(**read).load()


@contextmanager
def sigterm() -> Iterator[threading.Event]:
    """
    Give an event that SIGTERM sets, instead of ending the process.

    Under spark-submit the signal must reach this process. If it reaches only the JVM, the JVM ends
    immediately, and the next run repeats the batch.
    """
    asked = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set()) if main else None
    try:
        yield asked
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@dataclass
class Tally:
    """Counts a stream's messages and batches from its progress."""

    query: StreamingQuery
    messages: int = 0
    batches: int = 0
    last: int = -1  # the last batch that is counted
    worked: bool = False  # whether a batch was run, even an empty or a replayed one
    stream: str = ""  # the id of a stream from queues
    seen: str = ""  # the time of the last progress

    def note(self) -> None:
        """Count new progress; Spark keeps the progress of 100 batches."""
        latest = self.query.lastProgress
        if latest is None or latest.timestamp == self.seen:
            return
        self.seen = latest.timestamp
        for progress in self.query.recentProgress:
            self.worked |= "addBatch" in progress.durationMs
            if progress.batchId > self.last and progress.numInputRows:
                self.last = progress.batchId
                self.batches += 1
                self.messages += progress.numInputRows
            if found := STREAM.search(str(progress.sources[0].endOffset)):
                self.stream = found[1]


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


def look(
    source: SourceOptions, *, tops: bool
) -> tuple[list[tuple[Any, ...]], dict[str, inspect.Stream]]:
    """
    Look at the queues, if `tops`, and at the state tables.

    Returns:
        The lowest and the highest seq of each queue, None where it is empty; and the streams.
    """
    with Session(source, "job") as session:
        connection = session.open()
        with transaction(connection, timeout=source.query_timeout):
            queues = source.addresses if tops else ()
            ends = [connection.rows("top", tables={"queue": queue})[0] for queue in queues]
            streams = [] if source.transaction_mode == "none" else inspect.streams(connection)
    return ends, {each.stream: each for each in streams}


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
