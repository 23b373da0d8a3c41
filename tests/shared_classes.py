"""
An archive of the classes that Spark loads at its start. A JVM starts with it a third faster.

SQLQ_TEST_CLASSES names the archive's file. If the file is missing, it is made, once, in half a
minute. So it pays for a run of all tests, and not for a run of a few. A JVM that cannot use the
archive starts without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "SQLQ_TEST_CLASSES"
LIMIT = 300  # seconds
# What most tests do: a frame of Python's rows, JSON, an aggregate, and a stream.
PROGRAM = """
import sys
import tempfile
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
rows = spark.createDataFrame([(1, '{"a": "b"}')], "number int, headers string")
parsed = rows.selectExpr("number", "from_json(headers, 'map<string,string>') AS headers")
parsed.groupBy("number").count().collect()
parsed.write.format("noop").mode("overwrite").save()
with tempfile.TemporaryDirectory() as folder:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
    query = writer.trigger(once=True).start()
    query.awaitTermination()
spark.stop()
"""


def use(archive: Path) -> None:
    """Make the archive if it is missing, and let all JVMs that are started from now on use it."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    using = f"-XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr"
    if using in options:  # a process of pytest-xdist has the environment of its parent
        return
    if not archive.exists():
        make(archive, options)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {using}"


def make(archive: Path, options: str) -> None:
    """Run a program on Spark whose JVM writes the classes that it has loaded when it ends."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    making = f"{options} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    environment = os.environ | {"SPARK_SUBMIT_OPTS": making}
    words = [sys.executable, "-c", PROGRAM]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=LIMIT)
