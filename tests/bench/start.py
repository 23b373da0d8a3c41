"""
Measure a process from its start to the end of its first batch.

`python -m tests.bench.start URL CHECKPOINT` runs the process. With an empty url its stream reads a
Python source that does nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from .stand import Stand


def ours(stand: Stand) -> list[float]:
    """A stream from a queue with one message. Milliseconds."""
    return [_run(stand, stand.url)]


def nothing(stand: Stand) -> list[float]:
    """A stream from a source that does nothing. Milliseconds."""
    return [_run(stand, "")]


def _run(stand: Stand, url: str) -> float:
    command = [sys.executable, "-m", "tests.bench.start", url, stand.checkpoint()]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - start)


def main(url: str, checkpoint: str) -> None:
    """Receive one batch."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    if url:
        from sqlq_spark import register  # noqa: PLC0415 the other needs none of it

        register(spark)
        rows = spark.readStream.format("sqlqueue").option("url", url).load("orders")
    else:
        from .yardsticks import source_of_nothing  # noqa: PLC0415 as above

        spark.dataSource.register(source_of_nothing(1))
        rows = spark.readStream.format("nothing").load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if sum(each.numInputRows for each in query.recentProgress) != 1:
        raise SystemExit("the stream received another number of messages than one")


if __name__ == "__main__":
    main(*sys.argv[1:])
