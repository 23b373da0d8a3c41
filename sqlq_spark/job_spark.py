"""
What jobs have in common on Spark: the session, Delta tables by path or name, a stream's run.

pyspark is imported where it is needed: settings are read, and refused, without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlq_spark import inspect, register
from sqlq_spark.dialects import transaction
from sqlq_spark.errors import MissingDelta
from sqlq_spark.java import check_java
from sqlq_spark.job_settings import BadSettings
from sqlq_spark.options import duration
from sqlq_spark.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from sqlq_spark.options import SourceOptions

R = TypeVar("R", "DataFrameReader", "DataStreamReader")

POLL = 0.25  # seconds between two looks at a stream
LAST_BATCH = 60.0  # seconds that a stream may need to end its batch when it is told to stop

SETTINGS = {
    # over TCP each micro-batch of a Python source waits 40 ms for a delayed acknowledgement
    "spark.python.unix.domain.socket.enabled": "true",
    # a container's own folder for temporary files may be too long for a socket's path
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - a socket of its owner's alone
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
DELTA = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}


# ---------------------------------------------------------------- the session


def on_databricks() -> bool:
    """Whether a cluster of Databricks runs us."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


@contextmanager
def session(name: str, log_level: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """
    Give the session that is there, or one of our own for the block.

    Ours has Delta, where delta-spark is installed and, under spark-submit, its jar was given.

    Raises:
        NoJava: ours cannot start.
        MissingDelta: `delta` is asked for, and ours cannot have it.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    found = SparkSession.getActiveSession()
    if found is not None or on_databricks():
        found = found or SparkSession.builder.getOrCreate()
        if on_databricks():  # where a broken pyspark_* module hides ours
            register(found)
        yield found
        return
    if not submitted():
        check_java()
    builder = SparkSession.builder.appName(f"sqlqueue {name}").config(map=unless_given(SETTINGS))
    if has_delta():
        builder = builder.config(map=unless_given(DELTA))
        if not submitted():
            from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - an extra

            builder = configure_spark_with_delta_pip(builder)
    elif delta:
        raise MissingDelta
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(log_level)
    try:
        yield made
    finally:
        made.stop()


def submitted() -> bool:
    """Whether spark-submit started the JVM before us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def unless_given(settings: dict[str, str]) -> dict[str, bool | float | int | str | None]:
    """Those settings that spark-submit was not given."""
    if not submitted():
        return {**settings}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra

    SparkContext._ensure_initialized()  # noqa: SLF001 - else SparkConf does not see what was given
    given = SparkConf()
    return {name: text for name, text in settings.items() if not given.contains(name)}


def has_delta() -> bool:
    """Whether a session of ours can have Delta."""
    if not submitted():
        return importlib.util.find_spec("delta") is not None
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(DELTA["spark.sql.extensions"])
    except Py4JJavaError:
        return False
    return True


def secret(scope: str, key: str) -> str:
    """
    Read a secret of Databricks.

    Raises:
        BadSettings: this is not Databricks.
    """
    try:
        from pyspark.dbutils import DBUtils  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        raise BadSettings(
            f"setting secret_scope is {scope!r}: expected none outside Databricks; "
            "give the password in the environment variable SQLQUEUE_PASSWORD"
        ) from None
    from pyspark.sql import SparkSession  # noqa: PLC0415

    found: str = DBUtils(SparkSession.builder.getOrCreate()).secrets.get(scope=scope, key=key)
    return found


# ---------------------------------------------------------------- tables


def is_path(table: str) -> bool:
    """Whether a table is a path, as `/lake/orders` or `s3://lake/orders`, not a name."""
    return "/" in table


def quoted(table: str) -> str:
    """A table as SQL needs it."""
    return f"delta.`{table.replace('`', '``')}`" if is_path(table) else table


def read_table(reader: R, table: str) -> DataFrame:
    """Load a Delta table, by path or name."""
    reader = reader.format("delta")
    return reader.load(table) if is_path(table) else reader.table(table)


def start_into(writer: DataStreamWriter, table: str) -> StreamingQuery:
    """Start a stream into a Delta table, by path or name; it is made if need be."""
    writer = writer.format("delta").outputMode("append")
    return writer.start(table) if is_path(table) else writer.toTable(table)


def has_table(spark: SparkSession, table: str) -> bool:
    """Whether a Delta table is there; a folder that holds something else is not."""
    if not is_path(table):
        return spark.catalog.tableExists(table)
    from delta.tables import DeltaTable  # noqa: PLC0415 - an extra

    return bool(DeltaTable.isDeltaTable(spark, table))


# ---------------------------------------------------------------- a stream


def triggered(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    """Set what the setting `trigger` says."""
    if trigger == "availableNow":
        return writer.trigger(availableNow=True)
    milliseconds = round(duration(0)(trigger) * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds")


class Stop:
    """SIGTERM asks a stream to end after its batch; as a block, within which it does."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    @property
    def asked(self) -> bool:
        """Whether it came."""
        return self._asked.is_set()


class Tally:
    """What a stream has come to, from the progress of its batches."""

    def __init__(self, query: StreamingQuery) -> None:
        self.messages = 0
        self.batches = 0
        self.last = -1  # the last batch that is counted
        self.reader: str | None = None  # of a stream from queues
        self._query = query
        self._seen: object = None

    def note(self) -> None:
        """Take over what is new; Spark keeps the progress of 100 batches."""
        latest = self._query.lastProgress
        if latest is None or latest.timestamp == self._seen:
            return
        self._seen = latest.timestamp
        for progress in self._query.recentProgress:
            if progress.batchId > self.last and progress.numInputRows:
                self.last = progress.batchId
                self.batches += 1
                self.messages += progress.numInputRows
            self.reader = reader_of(progress.sources[0].endOffset) or self.reader


def follow(query: StreamingQuery, source: SourceOptions | None = None) -> dict[str, Any]:
    """
    Wait for a stream's end, or for SIGTERM, and count.

    SIGTERM stops it after its batch; were that cut short, the next run would do it again. Under
    spark-submit the signal must reach this process: the JVM in front of it ends at once, which
    loses nothing either.

    Args:
        query: as started.
        source: of a stream from queues: what was not delivered is counted too, as far as its
            batches are acknowledged.

    Returns:
        `messages`, `batches`; of a `source` also `expired`, `diverted`, `forwarded`.
    """
    tally = Tally(query)
    before = {} if source is None else readers(source)
    with Stop() as stop:
        active = True
        while active and not stop.asked:
            active = not query.awaitTermination(POLL)  # type: ignore[arg-type]
            tally.note()
        if active:
            end(query, tally)
    tally.note()
    said = {"messages": tally.messages, "batches": tally.batches}
    return said if source is None else said | dropped(tally.reader, before, readers(source))


def end(query: StreamingQuery, tally: Tally) -> None:
    """Stop a stream when it has ended the batch that it is at."""
    last, until = tally.last, time.monotonic() + LAST_BATCH
    while query.status["isDataAvailable"] and tally.last == last and time.monotonic() < until:
        query.awaitTermination(POLL)  # type: ignore[arg-type]
        tally.note()
    query.stop()


def readers(source: SourceOptions) -> dict[str, inspect.Reader]:
    """What each reader has come to."""
    if source.transaction_mode == "none":
        return {}
    with Session(source, "job") as opened:
        connection = opened.open()
        with transaction(connection, timeout=source.query_timeout):
            return {each.reader: each for each in inspect.readers(connection)}


def dropped(
    reader: str | None, before: dict[str, inspect.Reader], after: dict[str, inspect.Reader]
) -> dict[str, int]:
    """What a stream's reader did not deliver, between two looks."""
    now, was = after.get(reader or ""), before.get(reader or "")
    names = ("expired", "diverted", "forwarded")
    return {name: getattr(now, name, 0) - getattr(was, name, 0) for name in names}


def reader_of(offset: Any) -> str | None:  # noqa: ANN401
    """The reader that a progress' offset names."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
        return None if found["reader"] is None else str(found["reader"])
    except (TypeError, KeyError, ValueError):
        return None
