"""
A driver in a process of its own, to be killed: `python driver.py '{"queue": …}'`.

It streams one queue until what waits is through, into a file table, Delta or another queue.
Where it is to stop, it touches the file `reached` and waits for its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def session(job: dict[str, Any]) -> SparkSession:
    """Start Spark as the tests do."""
    settings: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        **job.get("settings", {}),
    }
    builder = SparkSession.builder.master(job.get("master", "local[2]")).appName("sqlq-driver")
    builder = builder.config(map=settings)
    if job["sink"].startswith("delta"):
        from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - slow

        builder = configure_spark_with_delta_pip(
            builder.config(
                map={
                    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
                    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                }
            )
        )
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel(job.get("log", "ERROR"))
    return made


def wait(job: dict[str, Any]) -> None:
    """Say that the point is reached, and wait to be killed."""
    Path(job["reached"]).touch()
    time.sleep(600)


def main(job: dict[str, Any]) -> None:
    """Run the stream."""
    spark = session(job)
    stream = spark.readStream.format("sqlqueue").options(**job["options"]).load()
    if job["sink"] == "sqlqueue":
        stream = stream.drop("queue")  # else each message goes back to where it came from
    writer = stream.writeStream.option("checkpointLocation", job["checkpoint"])
    stop = (job.get("stop"), int(job.get("batch", 0)))

    def into_delta(frame: DataFrame, batch: int) -> None:
        if stop == ("received", batch):
            frame.collect()
            wait(job)
        frame.write.format("delta").mode("append").option("txnAppId", "driver").option(
            "txnVersion", str(batch)
        ).save(job["table"])
        if stop == ("written", batch):
            wait(job)

    if job["sink"] == "delta each":
        writer = writer.foreachBatch(into_delta)
    elif job["sink"] == "sqlqueue":
        writer = writer.format("sqlqueue").options(**job["out"])
    else:
        writer = writer.format(job["sink"]).option("path", job["table"])
    if "every" in job:
        query = writer.trigger(processingTime=job["every"]).start()
    else:
        query = writer.trigger(availableNow=True).start()
    print("started", flush=True)  # noqa: T201 - for a stream of the log
    query.awaitTermination()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(json.loads(sys.argv[1]))
