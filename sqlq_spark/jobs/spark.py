"""
What jobs share on Spark: the session, the cluster's size, Delta tables by path or name.

pyspark is imported inside functions, so that settings can be read and rejected without it.
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
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SourceOptions
from sqlq_spark.versions import check_java

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

R = TypeVar("R", "DataFrameReader", "DataStreamReader")

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
# Delta's error conditions for a path without a table
NO_TABLE = {"DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"}


# ---------------------------------------------------------------- the session


@contextmanager
def session(name: str, log_level: str, *, delta: bool = False) -> Iterator[SparkSession]:
    """
    Give the active session, or a new one for the block.

    A new session has Delta if `delta` is true, from delta-spark, or under spark-submit from the jar
    that was given. A Spark Connect server has what it was configured with.

    Raises:
        NoJava: a new session cannot start.
        MissingDelta: `delta` is true, and a new session cannot have Delta.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    found = SparkSession.getActiveSession()
    on_databricks = "DATABRICKS_RUNTIME_VERSION" in os.environ
    if found is not None or on_databricks:
        found = found or SparkSession.builder.getOrCreate()
        if on_databricks:  # a broken pyspark_* module there prevents the discovery of ours
            register(found)
        yield found
        return
    builder = SparkSession.builder.appName(f"sqlqueue {name}")
    connects = "SPARK_REMOTE" in os.environ or os.environ.get("SPARK_API_MODE") == "connect"
    made = connect(builder, delta=delta) if connects else start(builder, log_level, delta=delta)
    register(made)  # after the start, so that messages name the application as their sender
    try:
        yield made
    finally:
        made.stop()


def connect(builder: SparkSession.Builder, *, delta: bool) -> SparkSession:
    remote = os.environ.get("SPARK_REMOTE", "local")
    if remote.startswith("local"):  # this process starts the server
        check_java()
        builder = builder.config(map={**SETTINGS})
        if delta and has_delta():
            builder = with_delta(builder)
    made = builder.getOrCreate()
    made.conf.set("spark.sql.session.timeZone", SETTINGS["spark.sql.session.timeZone"])
    return made


def start(builder: SparkSession.Builder, log_level: str, *, delta: bool) -> SparkSession:
    """Start a session with its own JVM."""
    if not by_spark_submit():
        check_java()
    builder = builder.config(map=unless_given(SETTINGS))
    if delta:
        if not has_delta():
            raise MissingDelta
        builder = with_delta(builder)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(log_level)
    return made


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Configure Delta; under spark-submit its jar was given."""
    builder = builder.config(map=unless_given(DELTA))
    if by_spark_submit():
        return builder
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - an extra

    configured: SparkSession.Builder = configure_spark_with_delta_pip(builder)
    return configured


def by_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def unless_given(settings: dict[str, str]) -> dict[str, bool | float | int | str | None]:
    """The settings that spark-submit did not get."""
    if not by_spark_submit():
        return {**settings}
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra

    SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf reads what was given only after this
    given = SparkConf()
    return {name: text for name, text in settings.items() if not given.contains(name)}


def has_delta() -> bool:
    """Whether a new session can have Delta."""
    if not by_spark_submit():
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
            reason=f"setting secret_scope is {scope!r}: expected none outside Databricks; "
            "set the password in the environment variable SQLQUEUE_PASSWORD"
        ) from None
    from pyspark.sql import SparkSession  # noqa: PLC0415

    found: str = DBUtils(SparkSession.builder.getOrCreate()).secrets.get(scope=scope, key=key)
    return found


# ---------------------------------------------------------------- the cluster


def parallelism(spark: SparkSession) -> int | None:
    """
    How many tasks the cluster runs at the same time; None if that cannot be read.

    Spark Connect has no `sparkContext`, and some configuration of Databricks cannot be read.
    """
    sized = product(spark, "spark.executor.instances", "spark.executor.cores")
    if hasattr(spark, "sparkContext"):
        # it does not count executors that have not started yet
        return max(int(spark.sparkContext.defaultParallelism), sized or 0)
    local = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", conf(spark, "spark.master") or "")
    given = product(spark, "spark.default.parallelism") or sized
    return int(local[1]) if local and given is None else given


def product(spark: SparkSession, *names: str) -> int | None:
    found = [conf(spark, name) for name in names]
    if not all(each and each.isdecimal() for each in found):
        return None
    return math.prod(int(each) for each in found if each)


def conf(spark: SparkSession, name: str) -> str | None:
    """Read a setting of the session; None if it is missing or may not be read."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        return spark.conf.get(name, None)
    except PySparkException:
        return None


def set_conf(spark: SparkSession, name: str, text: str) -> bool:
    """Set a setting of the session; returns False if that is not allowed, as on serverless."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

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
    if found is None:
        log.warning(
            "the cores of this cluster cannot be read: a micro-batch uses at most %d tasks; "
            "set maxConcurrency in [source] to the number of the executors' cores",
            given.concurrency,
        )
        return read
    most = max(2, found, given.min_concurrency)
    log.info("a micro-batch uses at most %d tasks, because the cluster runs %d", most, found)
    return {**read, "maxConcurrency": str(most)}


# ---------------------------------------------------------------- tables


def is_path(table: str) -> bool:
    """Whether a table is a path, for example `/lake/orders` or `s3://lake/orders`, not a name."""
    return "/" in table


def quote_table(table: str) -> str:
    """A table's name or path in SQL."""
    return f"delta.`{table.replace('`', '``')}`" if is_path(table) else table


def read_table(reader: R, table: str) -> DataFrame:
    reader = reader.format("delta")
    return reader.load(table) if is_path(table) else reader.table(table)


def has_table(spark: SparkSession, table: str) -> bool:
    """Whether a Delta table exists; a folder with other content is not one."""
    if not is_path(table):
        return spark.catalog.tableExists(table)
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    try:
        return bool(
            spark.sql(f"DESCRIBE DETAIL {quote_table(table)}").collect()[0]["format"] == "delta"
        )
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return False
        raise


def delete_rows(spark: SparkSession, table: str, condition: str) -> int:
    text = f"DELETE FROM {quote_table(table)} WHERE {condition}"  # noqa: S608 - no value of others
    return int(spark.sql(text).collect()[0]["num_affected_rows"])
