"""
The driver of clusters and of chaos: `python -m faults.driver '{"master": …}'`, in tests.

It takes orders, one in a line of its input. An order's streams run together until they have
received what waits. Then the file `answer` has the error of the first stream that failed, or
nothing. With `until` a stream that ends is started again until that file exists, and then until
nothing waits.

A stream with `notes` has a UDF as its witness. Each attempt of a task appends the message ids that
it sees to a file of its own. The witness also applies the rules of the stream:

    pause     it waits so long at each row, in seconds
    hold      the first attempt of each task waits at this row until the file `go` exists
    fail      in each task, the first attempt that reaches this row raises an error
    double    each attempt of partition 0 waits at its tenth row until there are two that have begun
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from spark.driver import session

import sqlq_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 240.0  # seconds; less than that of those who wait for us
PAUSE = 0.1  # seconds between looks at the queries
MESSAGE_ID = "headers['NServiceBus.MessageId']"


def witnessed(stream: dict[str, Any], frame: DataFrame) -> DataFrame:
    """Pass each row through the witness."""
    notes, pause = stream["notes"], float(stream.get("pause", 0))
    fail, hold, double = stream.get("fail"), stream.get("hold"), stream.get("double", False)
    open_notes: list[TextIO] = []
    rows = [0]

    @F.udf("binary", useArrow=False)  # a UDF with Arrow needs pandas
    def pass_on(message: str, body: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not open_notes:
            # the address of the worker that started this executor
            host = os.environ["SPARK_LOCAL_IP"]
            note = Path(f"{notes}/{batch} {partition} {attempt} {host} seen")
            open_notes.append(note.open("w", buffering=1))
        open_notes[0].write(f"{message}\n")
        rows[0] += 1
        mark = Path(f"{notes}/{batch} {partition} failed")
        if rows[0] == fail and not mark.exists():
            mark.touch()
            text = "this attempt fails, as ordered"
            raise RuntimeError(text)
        if attempt == 0 and rows[0] == hold:
            wait_for(Path(f"{notes}/go").exists, "leave to go on")
        if double and (partition, rows[0]) == (0, 10):
            wait_for(lambda: len([*Path(notes).glob(f"{batch} 0 * seen")]) > 1, "a second attempt")
        time.sleep(pause)
        return body

    return frame.withColumn("body", pass_on.asNondeterministic()(F.expr(MESSAGE_ID), "body"))


def wait_for(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            text = f"expected {what} within {PATIENCE:.0f} s"
            raise TimeoutError(text)
        time.sleep(0.02)


def start(spark: SparkSession, stream: dict[str, Any], **trigger: Any) -> StreamingQuery:
    frame = spark.readStream.format("sqlqueue").options(**stream["options"]).load()
    if "notes" in stream:
        frame = witnessed(stream, frame)
    if stream["out"]:
        writer = frame.drop("queue").writeStream.format("sqlqueue").options(**stream["out"])
    else:
        writer = frame.writeStream.format(stream["format"]).option("path", stream["table"])
    writer = writer.option("checkpointLocation", stream["checkpoint"])
    return writer.trigger(**trigger).start()


def run(spark: SparkSession, order: dict[str, Any]) -> None:
    """Run streams once; raises what the first of them raised."""
    known = spark.sparkContext._jsc.sc()  # noqa: SLF001 - the only way from Python
    with_driver = order.get("executors", 0) + 1  # a lost executor is started again
    wait_for(lambda: known.getExecutorMemoryStatus().size() >= with_driver, "executors")
    for query in [start(spark, stream, availableNow=True) for stream in order["streams"]]:
        query.awaitTermination()


def keep_running(spark: SparkSession, order: dict[str, Any]) -> None:
    """
    Run streams until the file `until` exists, and then until a run of each has no rows.

    All run from one thread, because Spark finds a Python sink only where a session is active in
    the thread.
    """
    left = dict(enumerate(order["streams"]))
    queries: dict[int, StreamingQuery] = {}
    trigger: dict[str, Any] = {"processingTime": "0 seconds"}
    while left:
        if "availableNow" not in trigger and Path(order["until"]).exists():
            trigger = {"availableNow": True}
            for query in queries.values():
                query.stop()
            queries.clear()
        for at, stream in list(left.items()):
            try:
                if at not in queries:
                    queries[at] = start(spark, stream, **trigger)
                elif not queries[at].isActive:
                    query = queries.pop(at)
                    query.awaitTermination()  # raises what it ended with
                    rows = sum(progress.numInputRows for progress in query.recentProgress)
                    if not rows and "availableNow" in trigger:
                        del left[at]
            except Exception as error:  # noqa: BLE001 - that it ends is what we are here for
                sys.stderr.write(f"stream {at}: {error}\n")
        time.sleep(PAUSE)


def main(job: dict[str, Any]) -> None:
    spark = session({"log": "WARN", **job})
    # Spark looks for formats once in a JVM. If that fails, on a busy machine, it never looks again.
    sqlq_spark.register(spark)
    for line in sys.stdin:
        order, error = json.loads(line), ""
        try:
            (keep_running if "until" in order else run)(spark, order)
        except Exception as found:  # noqa: BLE001 - it is the answer
            error = f"{type(found).__name__}: {found}"
        unfinished = Path(order["answer"]).with_suffix(".part")
        unfinished.write_text(error)
        unfinished.rename(order["answer"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
