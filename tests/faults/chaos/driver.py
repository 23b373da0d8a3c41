"""
The driver that is harmed: `python -m tests.faults.chaos.driver '{"sink": …}'`.

It keeps its streaming queries alive: one that ends by an error is started again in the same JVM.
When the file `drain` appears it runs each with AvailableNow until the file `finish` appears, then
writes down the numbers of the messages that the sinks hold.
What happens is appended to the file `status`, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from spark.driver import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PAUSE = 0.1  # seconds between looks at the queries


def main(orders: dict[str, Any]) -> None:
    """Stream until the file `finish` appears."""
    spark = _session(orders)
    _say(orders, event="session", java=_java(spark))
    drain, finish = Path(orders["drain"]), Path(orders["finish"])
    _keep_running(spark, orders, {"processingTime": "0 seconds"}, until=drain.exists)
    _keep_running(spark, orders, {"availableNow": True}, until=finish.exists)
    Path(orders["numbers"]).write_text(json.dumps(_in_tables(spark, orders)), encoding="utf-8")
    _say(orders, event="finished")


def _session(orders: dict[str, Any]) -> SparkSession:
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(orders["numbers"]).with_name("warehouse")),
    }
    job = {"master": orders["master"], "sink": orders["sink"], "settings": settings}
    return session(job | {"log": "WARN"})


def _java(spark: SparkSession) -> int:
    """The process id of the JVM."""
    pid: int = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
    return pid


def _keep_running(
    spark: SparkSession, orders: dict[str, Any], trigger: dict[str, Any], until: Callable[[], bool]
) -> None:
    """
    Start each query again when it ended, until it is time to stop.

    All from one thread: Spark finds a Python sink only where a session is active in the thread.
    """
    queries: dict[int, StreamingQuery] = {}
    while not until():
        for at in range(len(orders["streams"])):
            try:
                query = queries.pop(at, None)
                if query is None:
                    queries[at] = _writer(spark, orders, at).trigger(**trigger).start()
                    _say(orders, event="started", stream=at)
                elif query.isActive:
                    queries[at] = query
                else:
                    query.awaitTermination()  # raises what it ended with
                    _say(orders, event="ended", stream=at, rows=_rows(query))
            except Exception as error:  # noqa: BLE001 - that it ends is what we are here for
                _say(orders, event="failed", stream=at, error=str(error))
                _leave_without_java(spark)
        time.sleep(_PAUSE)
    for query in queries.values():
        query.stop()


def _leave_without_java(spark: SparkSession) -> None:
    """A driver whose JVM is gone has nothing left to do."""
    try:
        _java(spark)
    except Exception:  # noqa: BLE001 - py4j has many
        os._exit(3)


def _rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def _writer(spark: SparkSession, orders: dict[str, Any], at: int) -> DataStreamWriter:
    stream = orders["streams"][at]
    frame = spark.readStream.format("sqlqueue").options(**orders["source"]).load()
    if orders["out"] is not None:
        frame = frame.drop("queue")  # else each message goes back to where it came from
    writer = frame.writeStream.option("checkpointLocation", stream["checkpoint"])
    if orders["out"] is not None:
        return writer.format("sqlqueue").options(**orders["out"])
    return writer.format(orders["sink"]).option("path", stream["table"])


def _in_tables(spark: SparkSession, orders: dict[str, Any]) -> list[int]:
    """The numbers that the streams' tables hold; an output queue is counted elsewhere."""
    tables = [stream["table"] for stream in orders["streams"] if orders["out"] is None]
    number = F.get_json_object(F.col("body").cast("string"), "$.number").cast("long")
    frames = [
        spark.read.format(orders["sink"]).load(each) for each in tables if Path(each).exists()
    ]
    return [row[0] for frame in frames for row in frame.select(number).collect()]


def _say(orders: dict[str, Any], **event: Any) -> None:
    line = json.dumps({"time": time.time(), "pid": os.getpid(), **event}) + "\n"
    with Path(orders["status"]).open("a", encoding="utf-8") as status:
        status.write(line)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    main(json.loads(sys.argv[1]))
