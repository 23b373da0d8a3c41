"""
Kills at chosen moments around a sink's commit: every message is delivered once.

Kills at any moment are tests/faults.

The driver runs in a process group of its own, which gets SIGKILL: driver, JVM and workers at once.
The session of the tests then goes on from its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType
from waiting import until

from spark import driver
from spark.stand import Queue, finish, message_ids, numbered
from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import StaleTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]

OURS = "sqlqueue "  # in the name of every session of ours

SCHEMA = StructType().add("id", StringType()).add("seq", LongType())
START = 300.0  # seconds that a driver may need to come up on a busy machine


@pytest.fixture
def job(queue: Queue, tmp_path: Path) -> dict[str, Any]:
    """Give a driver's orders, small batches into Parquet."""
    return {
        "options": queue.options | {"maxMessagesPerTrigger": "200", "peekDelay": "100ms"},
        "sink": "parquet",
        "table": str(tmp_path / "table"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "reached": str(tmp_path / "reached"),
    }


@contextmanager
def driving(job: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run a driver; it is dead, with all its processes, when the block ends."""
    log = Path(job["checkpoint"]).with_name("driver.log")
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            [sys.executable, driver.__file__, json.dumps(job)],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """End a driver, its JVM and its workers at once; daemons of Python leave their group."""
    for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another die
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
    process.wait()


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, found.splitlines())}
    below, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        below += level
    return below


def killed_when(job: dict[str, Any], moment: Callable[[], object]) -> None:
    """Run a driver up to a moment."""
    log = Path(job["checkpoint"]).with_name("driver.log")

    def said() -> str:
        return log.read_text(encoding="utf-8")[-3000:]

    with driving(job) as process:
        until(lambda: moment() or process.poll() is not None, seconds=START, told=said)
        assert process.poll() is None, said()


def landed(spark: SparkSession, job: dict[str, Any]) -> list[str]:
    """The message ids of the table."""
    kind = "delta" if job["sink"].startswith("delta") else job["sink"]
    return sorted(message_ids(spark.read.format(kind).load(job["table"]).collect()))


def committed(job: dict[str, Any], batch: int) -> bool:
    """Whether Spark has a batch in its commit log."""
    return (Path(job["checkpoint"]) / "commits" / str(batch)).exists()


@pytest.mark.parametrize("stop", ["received", "written"])
def test_killed_around_a_write_to_delta(
    spark: SparkSession, queue: Queue, job: dict[str, Any], stop: str
) -> None:
    """Before Delta has the batch, and after, but before Spark's commit log has it."""
    queue.fill(0, 500)
    job |= {"sink": "delta each", "stop": stop, "batch": 1}

    killed_when(job, Path(job["reached"]).exists)
    assert committed(job, 0)
    assert not committed(job, 1)
    assert queue.state("receipt") == 1

    def into_delta(frame: DataFrame, batch: int) -> None:
        frame.write.format("delta").mode("append").option("txnAppId", "driver").option(
            "txnVersion", str(batch)
        ).save(job["table"])

    stream = spark.readStream.format("sqlqueue").options(**job["options"]).load()
    finish(stream.writeStream.foreachBatch(into_delta), Path(job["checkpoint"]))

    assert landed(spark, job) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def sent(queue: Queue) -> list[tuple[int | None]]:
    """The last batch of each sink; None before the first is sent."""
    return queue.dotnet.state_rows("dispatch_log", "batch")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_sink_killed_around_its_dispatch(
    spark: SparkSession, queue: Queue, job: dict[str, Any], moment: str
) -> None:
    """Chunks staged, the dispatch held up by a lock; or dispatched, but not in Spark's log."""
    out = Queue(queue.place, "out")
    out.create()
    queue.fill(0, 500)
    job |= {"sink": "sqlqueue", "out": out.options, "every": "1 hour"}

    if moment == "before":  # the dispatch waits for our lock
        with queue.dba.closed(out.address):
            killed_when(job, lambda: queue.state("staging") and queue.dotnet.waiting(OURS))
    else:
        killed_when(job, lambda: any(batch is not None for (batch,) in sent(queue)))
        for name in ("0", ".0.crc"):
            (Path(job["checkpoint"]) / "commits" / name).unlink(missing_ok=True)
    staged = queue.state("staging")
    visible = out.count()
    stream = spark.readStream.format("sqlqueue").options(**job["options"]).load()
    writer = stream.drop("queue").writeStream.format("sqlqueue").options(**out.options)
    finish(writer, Path(job["checkpoint"]))

    if moment == "before":
        assert (staged >= 1, visible) == (True, 0)
    else:
        assert (staged, visible) == (0, 200)
    assert sorted(out.ids()) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("staging"), queue.state("receipt")] == [0, 0, 0]


# ---------------------------------------------------------------- attempts

# Speculation does not run in local mode: two processes read one partition, as two attempts would.


def attempt(options: dict[str, str], end: dict[str, Any]) -> list[tuple[int, str]]:
    """Do the first task of a batch, in a process of its own, as an executor does."""
    reader = DefaultSource(options).streamReader(SCHEMA)
    (partition, *_) = reader.partitions({}, end)
    batches = cast("Iterator[pa.RecordBatch]", reader.read(partition))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["seq"], row["id"]) for row in rows]


def test_two_attempts_at_once_get_the_same(queue: Queue) -> None:
    """Both begin together; one receives, the other waits for it and replays."""
    queue.fill(0, 500)
    options = queue.options | {"queryTimeout": f"{START:g}s"}  # the first waits for the second
    reader = DefaultSource(options).streamReader(SCHEMA)
    end = reader.latestOffset({"v": 1, "stream": None, "batch": 0, "plan": []}, ReadMaxRows(500))

    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        with queue.dba.holding_streams():
            attempts = [pool.submit(attempt, options, end) for _ in range(2)]
            until(lambda: queue.dotnet.waiting_sessions(OURS), 2, seconds=START)
        first, second = (each.result() for each in attempts)

    assert first == second
    assert [seq for seq, _ in first] == list(range(1, 501))
    assert [queue.count(), queue.state("receipt")] == [0, 1]


def test_an_attempt_after_the_ack_is_stale(queue: Queue) -> None:
    """A zombie must not touch the queue: what it took, nobody would read."""
    queue.fill(0, 10)
    reader = DefaultSource(queue.options).streamReader(SCHEMA)
    end = reader.latestOffset({"v": 1, "stream": None, "batch": 0, "plan": []}, ReadMaxRows(500))
    attempt(queue.options, end)
    reader.commit(end)
    queue.dba.from_first(queue.address)  # the range fills again
    queue.fill(10, 20)

    with pytest.raises(StaleTask, match="ran after the batch was acknowledged"):
        attempt(queue.options, end)

    assert queue.ids() == numbered(10, 20)
