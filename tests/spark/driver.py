"""
A driver in a process of its own, to be killed: `python driver.py '{"streams": [{"options": …}]}'`.

It runs streams until they have received what waits: into Delta, or into another queue.
With the batch `stop` in Delta, it touches the file `reached` and waits to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from sqlq_spark.functions import fail, forward

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# For a short-lived JVM on few cores: only the compiler C1, a collector with one thread, and no
# verification of classes.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
DELTA: dict[str, Any] = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
}
# a session on this machine alone, with little to do
SMALL = {
    "spark.databricks.delta.snapshotPartitions": "2",  # for small tables; the default is 50
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def delta_jars() -> list[str]:
    """Delta's jars in Ivy's cache, which a session can use without resolving them again."""
    cache = Path.home() / ".ivy2.5.2/jars"
    names = (f"io.delta_*-{version('delta-spark')}.jar", "io.unitycatalog_*.jar")
    return [str(jar) for name in names for jar in cache.glob(name)]


def with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Configure Delta, from the cache of jars, or from Maven the first time."""
    builder = builder.config(map=DELTA)
    if jars := delta_jars():
        return builder.config("spark.driver.extraClassPath", ":".join(jars))
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - slow

    configured: SparkSession.Builder = configure_spark_with_delta_pip(builder)
    return configured


def session(job: dict[str, Any]) -> SparkSession:
    """Start Spark as the tests do; with Delta, if a `sink` is delta."""
    settings: dict[str, Any] = {
        **SMALL,
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        **job.get("settings", {}),
    }
    builder = SparkSession.builder.master(job.get("master", "local[2]")).appName("sqlq-driver")
    builder = builder.config(map=settings)
    if any(each["sink"].startswith("delta") for each in job.get("streams", [job])):
        builder = with_delta(builder)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(job.get("log", "ERROR"))
    return made


def into_delta(spark: SparkSession, given: dict[str, Any]) -> Callable[[DataFrame, int], None]:
    """Give what writes a batch into a table, by its number, and into a page's table by `upsert`."""
    names: dict[str, Any] = {"spark": spark}
    exec(given["code"], names)  # noqa: S102 - ours

    def write(frame: DataFrame, batch: int) -> None:
        options = {"txnAppId": "driver", "txnVersion": str(batch)}
        frame.write.format("delta").mode("append").options(**options).save(given["table"])
        names["upsert"](frame, batch)

    return write


def relayed(stream: DataFrame, to: dict[str, str]) -> DataFrame:
    """
    What to send for numbered messages, with a destination in each row.

    Those whose id ends with 7 fail, to the queue `errors`. One of 50 is sent to `absent`, which is
    not there. All others go to `out`.
    """
    by_id = F.col("headers")["NServiceBus.MessageId"]
    bad = by_id.endswith("7")
    lost = by_id.rlike("(^m-|[05])0$")
    failed = stream.where(bad).select(*fail("Shop.BadOrder", "it ends with 7", to["errors"]))
    queue = F.when(lost, to["absent"]).otherwise(to["out"])
    return stream.where(~bad).select(*forward(queue)).unionByName(failed)


def start(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    """Start a stream."""
    stream = spark.readStream.format("sqlqueue").options(**given["options"]).load()

    if given["sink"] == "delta":
        write = into_delta(spark, given)

        def stopped(frame: DataFrame, batch: int) -> None:
            write(frame, batch)
            if batch == given["stop"]:
                Path(given["reached"]).touch()
                time.sleep(600)

        writer = stream.writeStream.foreachBatch(stopped)
    else:
        rows = relayed(stream, given["to"]) if "to" in given else stream.drop("queue")
        writer = rows.writeStream.format("sqlqueue").options(**given["out"])
    writer = writer.option("checkpointLocation", given["checkpoint"])
    return writer.trigger(availableNow=True).start()


def main(job: dict[str, Any]) -> None:
    """Run the streams."""
    spark = session({"settings": {"spark.driver.extraJavaOptions": SHORT_LIVED}, **job})
    for query in [start(spark, each) for each in job["streams"]]:
        query.awaitTermination()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(json.loads(sys.argv[1]))
