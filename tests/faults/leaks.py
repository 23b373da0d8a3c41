"""
`python -m tests.faults.leaks`: does anything grow over thousands of micro-batches?

A stream of a few messages in each batch runs into nothing, then another one into a queue, in one
JVM. Meanwhile are sampled: the sessions of the database, and memory and open files of the driver's
Python, of Spark's streaming worker, of the tasks' workers and of the JVM (its heap after a
collection), and the size and the dead rows of the state tables.
A series is flat where the median of its last quarter is not above that of its second by more than a
few percent: the first quarter is for caches to fill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from sqlq_spark.database.sessions import IDLE

from . import measuring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .measuring import Ground

MESSAGES = 5  # in a batch
MIB = 1 << 20
# A state table of such small batches: what one minute, the pause of autovacuum, leaves in it.
SIZE, DEAD = 4.0, 5000.0  # MiB, rows
SETTINGS = "fillfactor, autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor"


@dataclass(frozen=True)
class Law:
    """What a series must keep to."""

    percent: float = 5.0  # that the last quarter may be above the second
    slack: float = 0.0  # or so much, where percents of little say nothing
    most: float | None = None  # no sample may be above; then quarters do not count


@dataclass
class Series:
    """The samples of one thing, in the order of time."""

    law: Law
    values: list[float] = field(default_factory=list)

    def quarter(self, number: int) -> float:
        """The median of a quarter, 1 to 4."""
        first, stop = ((len(self.values) * at) // 4 for at in (number - 1, number))
        return median(self.values[first:stop])

    @property
    def kept(self) -> bool:
        """Whether the law is kept."""
        if self.law.most is not None:
            return max(self.values) <= self.law.most
        before = self.quarter(2)
        return self.quarter(4) <= before + max(before * self.law.percent / 100, self.law.slack)


@dataclass
class Phase:
    """One stream, watched from its start to its end."""

    name: str
    batches: int
    seconds: float
    series: dict[str, Series]
    left: dict[str, int]  # what should be nothing at the end

    @property
    def flat(self) -> bool:
        """Whether nothing grew and nothing was left."""
        return not any(self.left.values()) and all(each.kept for each in self.series.values())


# ---------------------------------------------------------------- processes


def memory(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def handles(pid: int) -> float:
    """Open files and sockets of a process."""
    return float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


def below(pid: int) -> Iterator[tuple[int, bytes]]:
    """All processes below one, with their command lines."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = (path / "stat").read_text(encoding="utf-8", errors="replace")
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(path.name))
    level = [pid]
    while level:
        level = [child for parent in level for child in parents.get(parent, [])]
        for child in level:
            with suppress(FileNotFoundError, ProcessLookupError):
                yield child, Path(f"/proc/{child}/cmdline").read_bytes()


class Watch:
    """Samples everything that could grow, for one stream."""

    def __init__(self, ground: Ground, spark: SparkSession, *, wide: float) -> None:
        """
        Begin.

        Args:
            ground: whose sessions and tables.
            spark: whose processes.
            wide: what the laws' bounds are multiplied by.
        """
        self.ground, self.spark, self.wide = ground, spark, wide
        self.jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr] # noqa: SLF001
        self.series: dict[str, Series] = {}

    def take(self) -> None:
        """Take a sample of everything."""
        note = self._note
        # each worker of two tasks keeps one, for the source or the sink; the driver; the dispatch
        note("sessions", self.sessions(), most=10)
        self._process("driver", os.getpid())
        runtime = self.spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr] # noqa: SLF001
        runtime.gc()
        note("JVM heap", (runtime.totalMemory() - runtime.freeMemory()) / MIB, slack=3)
        note("JVM files", handles(self.jvm), slack=10)
        workers = 0
        task_memory, task_files = [0.0], [0.0]
        for pid, command in below(self.jvm):
            with suppress(FileNotFoundError, ProcessLookupError):
                workers += 1
                if b"streaming_source_runner" in command:
                    self._process("source worker", pid)
                elif b"pyspark.daemon" in command:
                    task_memory.append(memory(pid))
                    task_files.append(handles(pid))
        note("processes", workers, slack=2)
        note("task workers' memory", max(task_memory), slack=4)
        note("task workers' files", max(task_files), slack=4)
        self._tables()

    def sessions(self) -> int:
        """How many sessions the package has with this database."""
        text = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'sqlqueue %'"
        )
        return int(self.ground.sql(text)[0][0])

    def _process(self, name: str, pid: int) -> None:
        self._note(f"{name}'s memory", memory(pid), slack=2)
        self._note(f"{name}'s files", handles(pid), slack=2)

    def _tables(self) -> None:
        text = (
            "SELECT relname, pg_total_relation_size(relid), n_dead_tup "
            f"FROM pg_stat_user_tables WHERE schemaname = '{self.ground.state}'"
        )
        for table, size, dead in self.ground.sql(text):
            if table != "version":
                self._note(f"{table}: size", size / MIB, most=SIZE)
                self._note(f"{table}: dead", dead, most=DEAD)

    def _note(
        self, name: str, value: float, *, slack: float = 0.0, most: float | None = None
    ) -> None:
        if name not in self.series:
            law = Law(percent=5 * self.wide, slack=slack * self.wide, most=most)
            self.series[name] = Series(law)
        self.series[name].values.append(value)


# ---------------------------------------------------------------- a run


def run(
    ground: Ground,
    spark: SparkSession,
    checkpoints: Path,
    *,
    batches: int,
    wide: float = 1.0,
    patience: float = 2 * IDLE,
) -> Iterator[Phase]:
    """
    Watch so many batches, half of them into nothing, half into a queue; each half as it ends.

    Args:
        ground: has no queue yet.
        spark: local.
        checkpoints: a folder of its own.
        batches: of both streams.
        wide: what the laws' bounds are multiplied by: a short run is less even.
        patience: seconds for the last sessions to end: a worker keeps its connection for a while;
            0: that is not waited for, and not looked at.
    """
    alone(Watch(ground, spark, wide=wide), 2 * IDLE)
    for queue in ("orders", "out"):
        ground.create(queue)
    for name in ("noop", "sqlqueue"):
        ground.fill("orders", 0, batches // 2 * MESSAGES, notes=3)
        query = start(ground, spark, name, checkpoints / name)
        phase = watched(ground, spark, query, name, wide=wide)
        if patience and name == "sqlqueue":
            phase.left["sessions"] = alone(Watch(ground, spark, wide=wide), patience)
        yield phase


def alone(watch: Watch, patience: float) -> int:
    """Wait for the sessions of what ran before to end; returns how many are left."""
    end = time.monotonic() + patience
    while watch.sessions() and time.monotonic() < end:
        time.sleep(0.5)
    return watch.sessions()


def start(ground: Ground, spark: SparkSession, name: str, checkpoint: Path) -> StreamingQuery:
    """Start a stream that ends when what waits is through."""
    options = ground.options("orders", maxMessagesPerTrigger=MESSAGES, peekDelay="100ms")
    frame = spark.readStream.format("sqlqueue").options(**options).load().drop("queue")
    writer = frame.writeStream.format(name)
    if name == "sqlqueue":
        writer = writer.options(**ground.options("out"))
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def watched(
    ground: Ground, spark: SparkSession, query: StreamingQuery, name: str, *, wide: float
) -> Phase:
    """Sample about once a second until the stream ends; raises what it raised."""
    watch, began = Watch(ground, spark, wide=wide), time.monotonic()
    while not query.awaitTermination(1):
        if query.lastProgress is not None:
            watch.take()
    last = query.lastProgress
    assert last is not None
    sent = ground.count(ground.name("out"))
    left = {
        table: ground.count(f'"{ground.state}".{table}') for table in tables(ground, filled=False)
    } | {"orders": ground.count(ground.name("orders"))}
    if name == "sqlqueue":
        left["out, missing or twice"] = abs(sent - (last["batchId"] + 1) * MESSAGES)
    return Phase(name, last["batchId"] + 1, time.monotonic() - began, watch.series, left)


def tables(ground: Ground, *, filled: bool) -> list[str]:
    """The state tables that keep rows, or those that should be empty between two batches."""
    text = "SELECT relname FROM pg_stat_user_tables WHERE schemaname = %s ORDER BY 1"
    keep = {"version", "stream", "task", "dispatch_log"}
    return [name for (name,) in ground.sql(text, ground.state) if (name in keep) is filled]


# ---------------------------------------------------------------- the command


def main() -> int:
    """Run what the command line asks for; 1 where something grew or was left."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.leaks", description=__doc__)
    parser.add_argument("--batches", type=int, default=2000, help="of both streams together")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--url", help="a PostgreSQL, instead of a private one")
    parser.add_argument(
        "--server-defaults",
        action="store_true",
        help=f"reset {SETTINGS} of the state tables",
    )
    asked = parser.parse_args()
    with (
        measuring.ground(asked.url) as ground,
        measuring.session() as spark,
        measuring.folder() as folder,
    ):
        if asked.server_defaults:
            ground.create("orders")
            for table in [*tables(ground, filled=True), *tables(ground, filled=False)]:
                ground.sql(f'ALTER TABLE "{ground.state}".{table} RESET ({SETTINGS})')
        console, phases = Console(width=None if sys.stdout.isatty() else 110), []
        for phase in run(ground, spark, folder, batches=asked.batches):
            phases.append(phase)
            console.print(printed(phase))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(phase) for phase in phases], indent=1) + "\n")
    return 0 if all(phase.flat for phase in phases) else 1


def printed(phase: Phase) -> Table:
    """A phase as a table of figures."""
    rate = phase.batches / phase.seconds
    title = f"{phase.name}: {phase.batches} batches, {rate:.1f}/s; left: {phase.left}"
    table = Table(title=title, title_justify="left")
    heads: Sequence[str] = ("", "1st quarter", "2nd", "3rd", "4th", "most", "")
    for head in heads:
        table.add_column(head, justify="left" if not head else "right")
    for name, each in phase.series.items():
        quarters = (f"{each.quarter(number):,.1f}" for number in (1, 2, 3, 4))
        verdict = "" if each.kept else "grows"
        table.add_row(name, *quarters, f"{max(each.values):,.1f}", verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
