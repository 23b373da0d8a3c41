"""
Nothing grows from batch to batch: sessions, files, memory, state tables.

A stream with a few messages in each batch runs from one queue into another. Meanwhile are sampled:
the sessions of the database, memory and open files of the driver's Python, of Spark's streaming
worker, of the tasks' workers and of the JVM (its heap after a collection), and the size and the
dead rows of the state tables. SQLQ_LEAK_BATCHES sets the number of batches: more are more even.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import processes
import pytest
from spark.stand import Queue

from sqlq_spark import database

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]

BATCHES = int(os.environ.get("SQLQ_LEAK_BATCHES", "60"))
MESSAGES = 5  # in a batch
WIDE = 3 if BATCHES < 1000 else 1  # how much a bound is widened: a short run is less even
# A state table of such small batches: what one minute, the pause of autovacuum, leaves in it.
SIZE, DEAD = 4.0, 5000.0  # MiB, rows


@dataclass
class Series:
    """
    The samples of one thing, in the order of time.

    It is flat where the median of its last quarter is not above that of its second by more than
    a few percent: the first quarter is for caches to fill.
    """

    values: list[float] = field(default_factory=list)
    percent: float = 5.0 * WIDE  # that the last quarter may be above the second,
    slack: float = 0.0  # or so much, where percents of little say nothing
    most: float | None = None  # no sample may be above; then quarters do not count

    def quarter(self, number: int) -> float:
        """The median of a quarter, 1 to 4."""
        first, stop = ((len(self.values) * at) // 4 for at in (number - 1, number))
        return median(self.values[first:stop])

    @property
    def flat(self) -> bool:
        """Whether nothing grew."""
        if self.most is not None:
            return max(self.values) <= self.most
        before = self.quarter(2)
        return self.quarter(4) <= before + max(before * self.percent / 100, self.slack)


class Watch:
    """Samples everything that could grow, for one stream."""

    def __init__(self, place: Place, spark: SparkSession) -> None:
        self.place, self.spark = place, spark
        java = spark._jvm.java.lang  # type: ignore[union-attr] # noqa: SLF001
        self.jvm, self.runtime = int(java.ProcessHandle.current().pid()), java.Runtime.getRuntime()
        self.series: dict[str, Series] = {}
        self.others = self.sessions()  # of what ran before

    def take(self) -> None:
        """Take a sample of everything."""
        # each worker of two tasks keeps one, for the source or the sink; the driver; the dispatch
        self._note("sessions", len(self.sessions() - self.others), most=10)
        self._process("driver", os.getpid())
        self.runtime.gc()
        heap = self.runtime.totalMemory() - self.runtime.freeMemory()
        self._note("JVM heap", heap / processes.MIB, slack=3)
        self._note("JVM files", len(processes.files(self.jvm)), slack=10)
        below = processes.below(self.jvm)
        self._note("processes", len(below), slack=2)
        tasks = [(0.0, 0)]
        for pid in below:
            with suppress(*processes.GONE):
                if "streaming_source_runner" in processes.command(pid):
                    self._process("source worker", pid)
                elif "pyspark.daemon" in processes.command(pid):
                    tasks.append((processes.memory(pid), len(processes.files(pid))))
        memories, files = zip(*tasks, strict=True)
        self._note("task workers' memory", max(memories), slack=4)
        self._note("task workers' files", max(files), slack=4)
        self._tables()

    def sessions(self) -> set[int]:
        """The package's sessions with this database."""
        text = (
            "SELECT pid FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'sqlqueue %'"
        )
        return {pid for (pid,) in self.place.sql(text)}

    def _process(self, name: str, pid: int) -> None:
        self._note(f"{name}'s memory", processes.memory(pid), slack=2)
        self._note(f"{name}'s files", len(processes.files(pid)), slack=2)

    def _tables(self) -> None:
        text = (
            "SELECT relname, pg_total_relation_size(relid), n_dead_tup "
            f"FROM pg_stat_user_tables WHERE schemaname = '{self.place.state}'"
        )
        for table, size, dead in self.place.sql(text):
            self._note(f"{table}: size", size / processes.MIB, most=SIZE)
            self._note(f"{table}: dead", dead, most=DEAD)

    def _note(
        self, name: str, value: float, *, slack: float = 0.0, most: float | None = None
    ) -> None:
        series = self.series.setdefault(name, Series(slack=slack * WIDE, most=most))
        series.values.append(value)


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue with its state tables."""
    made = Queue(place, "orders")
    made.install()
    made.create()
    return made


def test_nothing_grows_from_batch_to_batch(
    queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    """Each series is flat or bounded, and the receipts and the staging are empty at the end."""
    out, watch = queue.beside("out"), Watch(queue.place, spark)
    out.create()
    queue.fill(0, BATCHES * MESSAGES)
    given = queue.options | {"maxMessagesPerTrigger": str(MESSAGES), "peekDelay": "100ms"}
    stream = spark.readStream.format("sqlqueue").options(**given).load()
    writer = stream.writeStream.format("sqlqueue").options(**out.options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    query = writer.trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        if query.lastProgress is not None:
            watch.take()

    assert {name: each.values for name, each in watch.series.items() if not each.flat} == {}
    assert len(watch.series["sessions"].values) >= 8
    assert {"source worker's memory", "receipt: size"} <= watch.series.keys()
    emptied = ("receipt", "receipt_page", "staging", "staging_page")
    assert [queue.state(table) for table in emptied] == [0, 0, 0, 0]
    assert (queue.count(), out.count()) == (0, BATCHES * MESSAGES)


@pytest.mark.parametrize(
    ("values", "most", "flat"),
    [
        ([1.0, 5.0, 5.0, 5.0], None, True),  # the first quarter is for caches
        ([5.0, 5.0, 5.0, 5.2], None, True),
        ([5.0, 5.0, 5.0, 5.3], None, False),
        ([float(at) for at in range(100, 200)], None, False),
        ([1.0, 9.0, 1.0, 1.0], 8.0, False),
        ([1.0, 2.0, 4.0, 8.0], 8.0, True),
    ],
)
def test_a_series_that_grows_is_not_flat(
    values: list[float], most: float | None, *, flat: bool
) -> None:
    """By 5% of the last quarter over the second, or by a bound."""
    assert Series(values, percent=5, most=most).flat is flat


def test_the_watch_counts_sessions_and_files(queue: Queue, spark: SparkSession) -> None:
    """A session of the package and open files that are left are counted."""
    watch = Watch(queue.place, spark)
    watch.take()
    url, names = queue.place.url, {"application": "sqlqueue test", "state": queue.place.state}
    connect = database.of(url).connect
    sessions = [connect(url, **names, timeout=60.0) for _ in range(20)]
    files = [os.dup(0) for _ in range(20)]
    watch.take()
    for session in sessions:
        session.close()
    for file in files:
        os.close(file)

    assert watch.series["sessions"].values[1] >= 20
    assert not watch.series["sessions"].flat
    before, after = watch.series["driver's files"].values
    assert after > before + 30  # a session is a socket; an earlier one may have been closed
