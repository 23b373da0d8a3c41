"""
The driver of the cluster: `python cluster_driver.py spark://…`, one order in a line of its input.

An order's streams run together until what waits is through. A UDF in each of them is the witness:
every attempt of every task appends the message ids that it sees to a file of its own, and it is
there that rules strike:

    pause     seconds for each row
    hold      the first attempt of each task waits at this row until the file `go` is there
    fail      of each task the first attempt that comes to this row raises there
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
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS = {
    "spark.decommission.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    # a second attempt of what takes longer than the others, where a core is free
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.storage.decommission.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
EXECUTORS = 2
PATIENCE = 240.0  # seconds; less than that of those who wait for us
MESSAGE_ID = "headers['NServiceBus.MessageId']"


def witnessed(stream: dict[str, Any], frame: DataFrame) -> DataFrame:
    """Let each row pass by the witness."""
    notes, pause = stream["notes"], float(stream.get("pause", 0))
    fail, hold, double = stream.get("fail"), stream.get("hold"), stream.get("double", False)
    open_notes: list[TextIO] = []
    rows = [0]

    @F.udf("binary", useArrow=False)  # the other kind needs pandas
    def pass_on(message: str, body: bytes) -> bytes:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not open_notes:
            host = os.environ["SPARK_LOCAL_IP"]  # of the worker that started our executor
            note = Path(f"{notes}/{batch} {partition} {attempt} {host} seen")
            open_notes.append(note.open("w", buffering=1, encoding="utf-8"))
        open_notes[0].write(f"{message}\n")
        rows[0] += 1
        if rows[0] == fail and first(Path(f"{notes}/{batch} {partition} failed")):
            text = "this attempt fails, as ordered"
            raise RuntimeError(text)
        if attempt == 0 and rows[0] == hold:
            wait_for(Path(f"{notes}/go").exists, "leave to go on")
        if double and (partition, rows[0]) == (0, 10):
            wait_for(lambda: len([*Path(notes).glob(f"{batch} 0 * seen")]) > 1, "a second attempt")
        time.sleep(pause)
        return body

    return frame.withColumn("body", pass_on.asNondeterministic()(F.expr(MESSAGE_ID), "body"))


def first(mark: Path) -> bool:
    """Whether this attempt is the first that leaves this mark: a slow one may be overtaken."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait_for(true: Callable[[], object], what: str) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            text = f"expected {what} within {PATIENCE:.0f} s"
            raise TimeoutError(text)
        time.sleep(0.02)


def gather(spark: SparkSession) -> None:
    """Wait for both executors: one that was lost comes again."""
    known = spark.sparkContext._jsc.sc()  # noqa: SLF001 - the only way from Python
    with_driver = EXECUTORS + 1
    wait_for(lambda: known.getExecutorMemoryStatus().size() >= with_driver, "two executors")


def start(spark: SparkSession, stream: dict[str, Any]) -> StreamingQuery:
    """Start a stream."""
    frame = spark.readStream.format("sqlqueue").options(**stream["options"]).load()
    frame = witnessed(stream, frame)
    if stream["out"]:
        writer = frame.drop("queue").writeStream.format("sqlqueue").options(**stream["out"])
    else:
        writer = frame.writeStream.format("parquet").option("path", stream["table"])
    writer = writer.option("checkpointLocation", stream["checkpoint"])
    return writer.trigger(availableNow=True).start()


def fulfil(spark: SparkSession, order: dict[str, Any]) -> str:
    """Run an order; what its streams raise is the answer."""
    try:
        gather(spark)
        for query in [start(spark, stream) for stream in order["streams"]]:
            query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return f"{type(error).__name__}: {error}"
    return ""


def main(master: str) -> None:
    """Take orders until the input ends."""
    builder = SparkSession.builder.master(master).appName("sqlq-cluster")
    spark = builder.config(map=dict(SETTINGS)).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    for line in sys.stdin:
        order = json.loads(line)
        answer = Path(order["answer"])
        unfinished = answer.with_suffix(".part")
        unfinished.write_text(fulfil(spark, order), encoding="utf-8")
        unfinished.rename(answer)


if __name__ == "__main__":
    main(sys.argv[1])
