"""
What jobs share that use Spark: the session, the cluster's size, tables, and a run of a stream.

Before Spark 4.2 a stream from queues with `Trigger.AvailableNow` ends after one micro-batch. Then
the job starts the stream again on its checkpoint, until it has received all messages that waited
when the first run ended.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import stamina
from py4j.java_gateway import JavaClass
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints, errors, register, spark_api, versions
from sqlq_spark.admin import state_tables
from sqlq_spark.database import transaction
from sqlq_spark.database.looks import SeqEnds
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import READ, use
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SourceOptions
from sqlq_spark.send.dispatch import REQUEST_UNKNOWN, open_request, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from sqlq_spark.admin.state_tables import DivertedTotal
    from sqlq_spark.database import Connection
    from sqlq_spark.jobs.settings import Settings, StreamSettings
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

SETTINGS = {
    # Over TCP each micro-batch of a Python source waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # The path of a container's temporary folder may be too long for a socket.
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - a socket of its owner's alone
    "spark.sql.session.timeZone": "UTC",
    # A kill may leave a temporary file beside the first offset. Spark would then refuse to start.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.ui.showConsoleProgress": "false",
}
DELTA = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}
# Spark's error conditions for a path or a name without a table.
NO_TABLE = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
}

# Delta's errors if another commit came first. After one of them a second attempt can succeed.
CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|"
    r"\b(?:Concurrent\w+|(?:Metadata|Protocol)Changed)Exception\b"
)


# ---------------------------------------------------------------- the session


@contextmanager
def session(name: str, settings: Settings) -> Iterator[SparkSession]:
    """
    Give the active session, or a new one for the block.

    A new session has Delta if the job needs it. Delta comes from the package delta-spark. Under
    spark-submit it comes from the jar that was given. With Spark Connect, the server's
    configuration decides whether there is Delta.

    Raises:
        NoJava: a new session cannot start.
        MissingDelta: the job needs Delta, and a new session cannot have it.
    """
    found = SparkSession.getActiveSession()
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        found = found or SparkSession.builder.getOrCreate()
        register(found)  # on Databricks a broken pyspark_* module prevents the discovery of ours
    if found is not None:
        yield found
        return
    builder = SparkSession.builder.appName(f"sqlqueue {name}")
    remote = os.environ.get("SPARK_REMOTE", "local")
    if remote.startswith("local"):  # this process starts the server, or Spark itself
        builder = configure(builder, delta=settings.needs_delta())
    made = builder.getOrCreate()
    if hasattr(made, "sparkContext"):
        made.sparkContext.setLogLevel(settings.log_level)
    else:  # Spark Connect
        made.conf.set("spark.sql.session.timeZone", "UTC")
    register(made)  # after the start, so that messages name the application as their sender
    try:
        yield made
    finally:
        made.stop()


def configure(builder: SparkSession.Builder, *, delta: bool) -> SparkSession.Builder:
    """
    Set the SETTINGS that spark-submit was not given, and add Delta if `delta`.

    Under spark-submit, Delta cannot be added here: its jar must be named in the command line.
    """
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


def product(spark: SparkSession, *names: str) -> int:
    """Return the product of settings of the session; 0 if one is missing or may not be read."""
    try:
        return math.prod(int(spark.conf.get(name, "0") or 0) for name in names)
    except PySparkException:
        return 0


def spread(spark: SparkSession, read: dict[str, str]) -> dict[str, str]:
    """
    Set clusterCores to the number of tasks that the cluster runs at the same time.

    Without this the data source would count only the driver's cores. Nothing is set if the options
    have clusterCores or maxConcurrency already.
    """
    given = SourceOptions.parse(read)
    if given.max_concurrency is not None or given.cores is not None:
        return read
    found = product(spark, "spark.executor.instances", "spark.executor.cores")
    if hasattr(spark, "sparkContext"):  # not with Spark Connect
        # defaultParallelism does not count executors that have not started yet.
        found = max(int(spark.sparkContext.defaultParallelism), found)
    else:
        found = product(spark, "spark.default.parallelism") or found
    if not found:
        log.warning(
            "the cores of this cluster cannot be read: a micro-batch uses at most %d tasks; "
            "set clusterCores in [source] to the number of the executors' cores",
            given.concurrency,
        )
        return read
    return {**read, "clusterCores": str(found)}


# ---------------------------------------------------------------- tables


def is_path(table: str) -> bool:
    """Return whether a table is a path, for example `s3://lake/orders`, and not a name."""
    return "/" in table


def quote_table(table: str) -> str:
    """Return a table's name or path as SQL spells it."""
    return f"delta.`{table.replace('`', '``')}`" if is_path(table) else table


def read_table(reader: DataFrameReader | DataStreamReader, table: str) -> DataFrame:
    reader = reader.format("delta")
    return reader.load(table) if is_path(table) else reader.table(table)


def table_columns(spark: SparkSession, table: str) -> list[str]:
    """Return the names of a table's columns; [] if there is no table."""
    return read_table(spark.read, table).columns if has_table(spark, table) else []


def former_columns(spark: SparkSession, table: str, former: Mapping[str, str]) -> dict[str, str]:
    """
    Find the columns that a table has under the names of earlier versions.

    `former` is new name → old name. Returns those of its pairs that hold for the table. A new table
    has none.
    """
    columns = table_columns(spark, table)
    return {new: old for new, old in former.items() if old in columns and new not in columns}


def has_table(spark: SparkSession, table: str) -> bool:
    """Return whether a Delta table exists. A folder with other content is no Delta table."""
    try:
        return isinstance(read_table(spark.read, table).columns, list)
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return False
        raise


# The decorated function does one commit of a table. If another commit came first, it is called
# again, with pauses of 8 s in total.
retry_conflicts = stamina.retry(
    on=lambda error: bool(CONFLICT.search(f"{type(error).__name__}: {error}")),
    attempts=8,
    timeout=None,
)


@retry_conflicts
def commit(spark: SparkSession, text: str) -> Row:
    """Change a table by an SQL statement. Return the row with the statement's counts."""
    return spark.sql(text).collect()[0]


def delete_rows(spark: SparkSession, table: str, condition: str) -> int:
    text = f"DELETE FROM {quote_table(table)} WHERE {condition}"  # noqa: S608 - no untrusted value
    return int(commit(spark, text)["num_affected_rows"])


# ---------------------------------------------------------------- a stream


def start(writer: DataStreamWriter, settings: StreamSettings) -> StreamingQuery:
    trigger = settings.trigger
    when: Any = {trigger: True} if trigger == "availableNow" else {"processingTime": trigger}
    return writer.option("checkpointLocation", settings.checkpoint).trigger(**when).start()


def receive_queues(
    spark: SparkSession, settings: StreamSettings, write: Callable[[DataFrame], StreamingQuery]
) -> dict[str, Any]:
    """
    Run a stream from queues to its end. SIGTERM ends it after its batch.

    Args:
        spark: the session.
        settings: say what to read, and when.
        write: starts the stream of a read. It may be called more than once.

    Returns:
        How many `messages` and how many `batches`. If there is an error queue, also how many
        messages `failed`, which are in the `error_queue`.
    """
    read = spread(spark, settings.read())
    source = SourceOptions.parse(read)
    before = find_diverted(source)
    again = settings.trigger == "availableNow" and not spark_api.DRAINS_AT_ONCE
    totals = Counter(messages=0, batches=0)
    stops: list[int | None] = []  # the highest seq of each queue when the first run ended
    with sigterm() as asked:
        while True:
            tally = watch(write(load_stream(spark, read)), asked)
            totals.update(messages=tally.messages, batches=tally.batches)
            ends = find_ends(source) if again else []
            # The stops are read only now, because the first run has moved due messages into the
            # queues.
            stops = stops or [end.last for end in ends]
            if not any_waits(ends, stops) or asked.is_set() or not tally.worked:
                break  # messages behind the stops may still wait
            read.pop("purgeOnStartup", None)  # the next run must not purge what came since
    failed = count_failed(source, before, str(tally.query.id))
    if failed is None:
        return dict(totals)
    return {**totals, "failed": failed, "error_queue": read["errorQueue"]}


def has_counts(source: SourceOptions) -> bool:
    """Return whether a read has an error queue, and state tables that count what goes there."""
    return source.error_address is not None and source.transaction_mode != "none"


def find_diverted(source: SourceOptions) -> dict[str, DivertedTotal]:
    """Count what streams moved to error queues so far; {} if the read has no such counts."""
    if not has_counts(source):
        return {}
    with StateSession(source, "job") as session:
        return session.run_with_retries(read_diverted)


def read_diverted(connection: Connection) -> dict[str, DivertedTotal]:
    with transaction(connection):
        return state_tables.count_diverted(connection)


def count_failed(
    source: SourceOptions, before: Mapping[str, DivertedTotal], query: str
) -> int | None:
    """
    Count the messages that a run moved to its error queue.

    Args:
        source: the options of the read.
        before: what `find_diverted` returned before the run.
        query: the id of Spark's query.

    Returns:
        None if the read has no error queue, or no state tables that count (transactionMode=none).
    """
    if not has_counts(source):
        return None
    return sum(
        now.messages - (before[stream].messages if stream in before else 0)
        for stream, now in find_diverted(source).items()
        if query in now.queries
    )


def any_waits(ends: Sequence[SeqEnds], stops: Sequence[int | None]) -> bool:
    """
    Return whether any queue has messages up to its stop.

    A stop is the highest seq of a queue, or None if the queue was empty.
    """
    return any(
        end.first is not None and stop is not None and end.first <= stop
        for end, stop in zip(ends, stops, strict=True)
    )


def find_ends(source: SourceOptions) -> list[SeqEnds]:
    """Return the lowest and the highest seq of each queue."""
    with Session(source, "job") as session:
        connection = session.open()
        with transaction(connection):
            use(connection, source.addresses, READ)
            return [
                connection.rows("top", SeqEnds, tables={"queue": queue})[0]
                for queue in source.addresses
            ]


def load_stream(spark: SparkSession, read: dict[str, str]) -> DataFrame:
    """Return the stream of a read."""
    return spark.readStream.format("sqlqueue").options(**read).load()


@contextmanager
def sigterm() -> Iterator[threading.Event]:
    """
    Give an event that SIGTERM sets, instead of ending the process.

    Under spark-submit the signal must reach this process. If only the JVM gets it, the JVM ends
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
    last: int = -1  # the number of the last batch that is counted
    worked: bool = False  # whether a batch was run, even an empty or a replayed one
    seen: str = ""  # the time of the last progress that is counted

    def note(self) -> None:
        """Count new progress. Spark keeps the progress of 100 batches."""
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


def watch(query: StreamingQuery, asked: threading.Event) -> Tally:
    """Wait until a stream ends. If `asked` is set, stop it after its batch."""
    tally = Tally(query)
    while not query.awaitTermination(0.25):  # type: ignore[arg-type]  # takes fractions
        before = tally.last
        tally.note()
        if asked.is_set() and (tally.last > before or not query.status["isDataAvailable"]):
            query.stop()
    tally.note()
    return tally


# ---------------------------------------------------------------- the database of a stream


def bind_checkpoint(spark: SparkSession, checkpoint: str, sink: SinkOptions) -> None:
    """
    Bind a stream's checkpoint to the database that it sends to, before the stream starts.

    If a batch was sent but its commit did not reach the checkpoint, the next run repeats the batch.
    It is not sent again, because the sink's dispatch log has it. But the dispatch log of another
    database or stateSchema does not have it, and the batch would be sent twice. Therefore the job
    enters an id into the dispatch log, and keeps the id in the checkpoint beside Spark's own files.
    While a batch is open, the job sends only to a database whose dispatch log has this id. After a
    run that ended without an error, the target may be changed.

    Raises:
        BadSettings: an open batch may have been sent to another target.
    """
    if sink.delivery != "exactlyOnce":
        return
    # The id is noted in a folder with one file, because Spark writes only folders.
    note = f"{checkpoint.rstrip('/')}/sqlqueue_target"
    known, _, was = checkpoints.read_text(spark, note).partition("\n")
    with StateSession(sink, "job") as session:
        here = f"{session.open().server}, stateSchema {sink.state_schema}"
        if known and session.run_with_retries(partial(read_state, sink=known)) != REQUEST_UNKNOWN:
            return
        logs = (
            checkpoints.read_files(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits")
        )
        spark_batch, done = map(checkpoints.newest, logs)
        if known and spark_batch > done:
            raise BadSettings(
                reason=f"setting checkpoint is {checkpoint!r}: its batch {spark_batch} is open, "
                f"and may have been sent to {was}. The dispatch log of {here} does not have it, so "
                "the batch would be sent again. First run the job with the former target until it "
                f"ends without an error. Or, if the batch was not sent, delete {note}"
            )
        fresh = f"job:{uuid.uuid4()}"
        session.run_with_retries(partial(open_request, sink=fresh))
    text = spark.range(1).select(F.lit(f"{fresh}\n{here}").alias("value")).coalesce(1)
    text.write.mode("overwrite").text(note)
