"""
Kills: at whatever moment a process dies, every message is delivered once.

The driver runs in a process group of its own, which gets SIGKILL: driver, JVM and workers at once.
The session of the tests then goes on from its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructType

from spark import driver
from spark.stand import Queue, finish, message_ids, numbered, until
from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import StaleTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]

SCHEMA = StructType().add("id", StringType()).add("seq", LongType())
START = 120.0  # seconds that a driver may need to come up on a busy machine


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
    with driving(job) as process:
        until(lambda: moment() or process.poll() is not None, START)
        log = Path(job["checkpoint"]).with_name("driver.log")
        assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]


def go_on(spark: SparkSession, job: dict[str, Any]) -> None:
    """Finish on the same checkpoint."""
    stream = spark.readStream.format("sqlqueue").options(**job["options"]).load()
    writer = stream.writeStream.format(job["sink"]).option("path", job["table"])
    finish(writer, Path(job["checkpoint"]))


def landed(spark: SparkSession, job: dict[str, Any]) -> list[str]:
    """The message ids of the table."""
    kind = "delta" if job["sink"].startswith("delta") else job["sink"]
    return sorted(message_ids(spark.read.format(kind).load(job["table"]).collect()))


def committed(job: dict[str, Any], batch: int) -> bool:
    """Whether Spark has a batch in its commit log."""
    return (Path(job["checkpoint"]) / "commits" / str(batch)).exists()


def test_killed_between_receive_and_sink(
    spark: SparkSession, queue: Queue, job: dict[str, Any]
) -> None:
    """The rows are in receipts, on their way to Parquet."""
    queue.fill(0, 700)
    job["slow"] = 0.005

    killed_when(job, lambda: queue.received(2))
    held, left = queue.received(2), queue.count()
    assert committed(job, 0)
    assert not committed(job, 1)
    go_on(spark, job)

    assert [held, left] == [200, 300]
    assert landed(spark, job) == sorted(numbered(0, 700))
    assert [queue.count(), queue.state("receipt")] == [0, 0]


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


def test_killed_between_commit_and_ack(
    spark: SparkSession, queue: Queue, job: dict[str, Any]
) -> None:
    """Spark has the batch in its commit log, and would acknowledge it an hour later."""
    queue.fill(0, 500)

    killed_when(job | {"every": "1 hour"}, lambda: committed(job, 0))
    held = [queue.state("receipt"), queue.count()]
    go_on(spark, job)

    assert held == [1, 300]
    assert landed(spark, job) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def test_killed_in_mid_stream_beside_competing_consumers(
    spark: SparkSession, queue: Queue, job: dict[str, Any]
) -> None:
    """Two consumers take one row in a transaction, as the transport does; all is got once."""
    total = 4000
    queue.fill(0, total)
    job["slow"] = 0.0005
    job["options"] |= {"maxMessagesPerTrigger": "300", "maxConcurrency": "2"}
    taken: list[str] = []
    stop = threading.Event()

    def consume() -> None:
        until(lambda: committed(job, 0) or stop.is_set(), START)
        with psycopg.connect(queue.place.url, autocommit=True) as connection:
            while not stop.is_set():
                row = connection.execute(
                    f"DELETE FROM {queue.name} WHERE seq = (SELECT seq FROM {queue.name} "
                    "ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING headers"
                ).fetchone()
                if row is not None:
                    taken.append(json.loads(row[0])["NServiceBus.MessageId"])
                time.sleep(0.01)

    with ThreadPoolExecutor(2) as pool:
        consumers = [pool.submit(consume) for _ in range(2)]
        try:
            killed_when(job, lambda: queue.received(4))
            go_on(spark, job)
        finally:
            stop.set()
        for each in consumers:
            each.result()

    mine = landed(spark, job)
    assert len(taken) > 10
    assert len(mine) > 600
    assert sorted([*mine, *taken, *queue.ids()]) == sorted(numbered(0, total))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_sink_killed_around_its_dispatch(
    spark: SparkSession, queue: Queue, job: dict[str, Any], moment: str
) -> None:
    """Parcels staged, the dispatch held up by a lock; or dispatched, but not in Spark's log."""
    out = Queue(queue.place, "out")
    out.create()
    queue.fill(0, 500)
    job |= {"sink": "sqlqueue", "out": out.options, "every": "1 hour"}
    locked = "SELECT" if moment == "after" else f"LOCK TABLE {out.name} IN SHARE MODE"

    with psycopg.connect(queue.place.url) as other:
        other.execute(locked)
        if moment == "before":  # the dispatch waits for our lock
            killed_when(job, lambda: queue.state("outbox") and waits(queue, out))
        else:
            killed_when(job, lambda: queue.state("dispatched"))
            (Path(job["checkpoint"]) / "commits" / "0").unlink(missing_ok=True)
        other.rollback()
    staged = queue.state("outbox")
    visible = out.count()
    stream = spark.readStream.format("sqlqueue").options(**job["options"]).load()
    writer = stream.drop("queue").writeStream.format("sqlqueue").options(**out.options)
    finish(writer, Path(job["checkpoint"]))

    if moment == "before":
        assert (staged >= 1, visible) == (True, 0)
    else:
        assert (staged, visible) == (0, 200)
    assert sorted(out.ids()) == sorted(numbered(0, 500))
    assert [queue.count(), queue.state("outbox"), queue.state("receipt")] == [0, 0, 0]


def waits(queue: Queue, out: Queue) -> bool:
    """Whether some session waits for a lock on a queue."""
    found = queue.place.sql(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)", out.name
    )
    return bool(found[0][0])


def test_killed_python_worker(spark: SparkSession, queue: Queue, job: dict[str, Any]) -> None:
    """A worker dies in mid-task: Spark tries the task again, which hands out the same receipt."""
    queue.fill(0, 600)
    job |= {"slow": 0.01, "master": "local[2,4]", "log": "WARN"}

    with driving(job) as process:
        until(lambda: queue.received(2), START)
        time.sleep(0.3)  # a quarter of what the rows take
        victims = workers(process.pid)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        process.wait(START)
        log = Path(job["checkpoint"]).with_name("driver.log").read_text(encoding="utf-8")

    assert victims
    assert process.returncode == 0, log[-3000:]
    assert "Python worker exited unexpectedly" in log
    assert landed(spark, job) == sorted(numbered(0, 600))
    assert [queue.count(), queue.state("receipt")] == [0, 0]


def workers(driver: int) -> list[int]:
    """The forked Python workers of a driver: daemons of pyspark.worker whose parent is one too."""
    kind = b"pyspark.daemon\0pyspark.worker"

    def is_kind(pid: int) -> bool:
        return kind in Path(f"/proc/{pid}/cmdline").read_bytes()

    def parent(pid: int) -> int:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        )

    return [pid for pid in descendants(driver) if is_kind(pid) and is_kind(parent(pid))]


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
    reader = DefaultSource(queue.options).streamReader(SCHEMA)
    end = reader.latestOffset({"v": 1, "reader": None, "batch": 0, "plan": []}, ReadMaxRows(500))

    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        with psycopg.connect(queue.place.url) as other:
            other.execute(f'SELECT FROM "{queue.place.state}".reader FOR UPDATE')
            attempts = [pool.submit(attempt, queue.options, end) for _ in range(2)]
            until(lambda: waiting(queue) == 2)
            other.rollback()
        first, second = (each.result() for each in attempts)

    assert first == second
    assert [seq for seq, _ in first] == list(range(1, 501))
    assert [queue.count(), queue.state("receipt")] == [0, 1]


def test_an_attempt_after_the_ack_is_stale(queue: Queue) -> None:
    """A zombie must not touch the queue: what it took, nobody would read."""
    queue.fill(0, 10)
    reader = DefaultSource(queue.options).streamReader(SCHEMA)
    end = reader.latestOffset({"v": 1, "reader": None, "batch": 0, "plan": []}, ReadMaxRows(500))
    attempt(queue.options, end)
    reader.commit(end)
    queue.place.sql(f'ALTER SEQUENCE {queue.name[:-1]}_seq_seq" RESTART')  # the range fills again
    queue.fill(10, 20)

    with pytest.raises(StaleTask, match="came after the batch was acknowledged"):
        attempt(queue.options, end)

    assert queue.ids() == numbered(10, 20)


def waiting(queue: Queue) -> int:
    """How many sessions of tasks wait for a row's lock."""
    found = queue.place.sql(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND application_name LIKE 'sqlqueue %%'"
    )
    return int(found[0][0])
