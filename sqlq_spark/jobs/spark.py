"""
What jobs have in common on Spark: the session, the cluster's size, Delta tables by path or name.

pyspark is imported where it is needed: settings are read, and refused, without it.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark import register
from sqlq_spark.errors import MissingDelta
from sqlq_spark.java import check_java
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

R = TypeVar("R", "DataFrameReader", "DataStreamReader")

log = logging.getLogger("sqlq_spark")

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
# what Delta says of a path where none of its tables is
NO_TABLE = {"DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"}


# ---------------------------------------------------------------- the session


def on_databricks() -> bool:
    """Whether a cluster of Databricks runs us."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def connects() -> bool:
    """Whether a session of ours is one of Spark Connect: as Spark's own variables say."""
    return "SPARK_REMOTE" in os.environ or os.environ.get("SPARK_API_MODE") == "connect"


@contextmanager
def session(name: str, log_level: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """
    Give the session that is there, or one of our own for the block.

    Ours has Delta, where delta-spark is installed and, under spark-submit, its jar was given; a
    server of Spark Connect has what its owner gave it.

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
    made = connected(name) if connects() else started(name, log_level, delta=delta)
    try:
        yield made
    finally:
        made.stop()


def connected(name: str) -> SparkSession:
    """Give a session of Spark Connect, whose server need not have found the format."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    builder = SparkSession.builder.appName(f"sqlqueue {name}")
    if os.environ.get("SPARK_REMOTE", "local").startswith("local"):  # a server of this process
        check_java()
        builder = builder.config(map={**SETTINGS})
        if has_delta():
            builder = with_delta(builder)
    made = builder.getOrCreate()
    made.conf.set("spark.sql.session.timeZone", SETTINGS["spark.sql.session.timeZone"])
    register(made)
    return made


def started(name: str, log_level: str, *, delta: bool) -> SparkSession:
    """Give a session with a JVM of its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    if not submitted():
        check_java()
    builder = SparkSession.builder.appName(f"sqlqueue {name}").config(map=unless_given(SETTINGS))
    if has_delta():
        builder = with_delta(builder)
    elif delta:
        raise MissingDelta
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(log_level)
    return made


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add Delta; under spark-submit its jar is there."""
    builder = builder.config(map=unless_given(DELTA))
    if submitted():
        return builder
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - an extra

    configured: SparkSession.Builder = configure_spark_with_delta_pip(builder)
    return configured


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


# ---------------------------------------------------------------- the cluster


def parallelism(spark: SparkSession) -> int | None:
    """
    How many tasks the cluster runs at once; None where the session does not know.

    Spark Connect has no `sparkContext`, and some of Databricks' configuration cannot be read.
    """
    sized = product(spark, "spark.executor.instances", "spark.executor.cores")
    if hasattr(spark, "sparkContext"):
        # executors that are still on their way are not counted in it
        return max(int(spark.sparkContext.defaultParallelism), sized or 0)
    local = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", conf(spark, "spark.master") or "")
    given = product(spark, "spark.default.parallelism") or sized
    return int(local[1]) if local and given is None else given


def product(spark: SparkSession, *names: str) -> int | None:
    """Multiply numbers of the configuration; None where one is not there."""
    found = [conf(spark, name) for name in names]
    if not all(each and each.isdecimal() for each in found):
        return None
    return math.prod(int(each) for each in found if each)


def conf(spark: SparkSession, name: str) -> str | None:
    """Read a setting of the session; None where it is not there, or may not be read."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def set_conf(spark: SparkSession, name: str, text: str) -> bool:
    """Set a setting of the session; returns whether it may be set, as few may on serverless."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        spark.conf.set(name, text)
    except PySparkException:
        return False
    return True


def spread(spark: SparkSession, read: dict[str, str]) -> dict[str, str]:
    """
    Options of a read with as many tasks as the cluster runs at once, unless they say how many.

    By itself the data source looks at the driver's cores, for it knows no session. Where a queue of
    one instance of an endpoint is read, nothing is set: its replies are for one task.
    """
    given = SourceOptions.parse(read)
    if given.max_concurrency is not None or given.instances:
        return read
    found = parallelism(spark)
    if found is None:
        log.warning(
            "the cores of this cluster cannot be read here: a micro-batch is received by %d tasks "
            "at most; set maxConcurrency in [source] to the number of its executors' cores",
            given.concurrency,
        )
        return read
    most = max(2, found, given.min_concurrency)
    log.info("a micro-batch is received by %d tasks at most, as the cluster runs %d", most, found)
    return {**read, "maxConcurrency": str(most)}


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
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        return bool(spark.sql(f"DESCRIBE DETAIL {quoted(table)}").collect()[0]["format"] == "delta")
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return False
        raise
