"""
`python -m tests.bench.profile write-exactly-once jdbc-append` prints where a line's time goes.

For each line: the wall time of a message, and the CPU time of a message in the server, in the JVM,
in Spark's Python workers, and in this process. Below it stands the most memory that the processes
of each kind had at the same time, without what they share, as the server's buffers. The processes
are read ten times a second, so what a process does in its last tenth of a second is not seen. Two
cores have twice the wall time; what is not used of it is waiting.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Self

import processes

from .lines import GROWTH, LINES
from .stand import BATCHES, CORES, stand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .lines import Line
    from .stand import Stand

KINDS = ("server", "JVM", "Python workers", "this process")
# the lines that begin so move BATCHES batches
SOURCES = ("receive", "queue-to-queue", "parquet-delta", "job-delta", "batches", "growing")
PAUSE = 0.1  # seconds between two readings


def kinds(bench: Stand) -> dict[int, str]:
    """Return the processes of a bench, each with its kind."""
    name = bench.url.rpartition("/")[2]
    found = dict.fromkeys(processes.below(os.getpid()), "Python workers")
    found[os.getpid()] = "this process"
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        command = processes.command(pid)
        if f" {name} " in command:
            found[pid] = "server"
        elif pid in found and command.partition(" ")[0].endswith("java"):
            found[pid] = "JVM"
    return found


class Meter:
    """Reads the CPU time of all processes of a bench while a line runs."""

    def __init__(self, bench: Stand) -> None:
        self._bench = bench
        self._first: dict[int, float] = {}
        self._last: dict[int, tuple[str, float]] = {}
        self.memory = dict.fromkeys(KINDS, 0.0)  # the most MiB of each kind
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read_often)

    def __enter__(self) -> Self:
        self._read()
        self._first = {pid: used for pid, (_, used) in self._last.items()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._read()

    def used(self) -> Mapping[str, float]:
        """Return the CPU seconds since the start, by kind of process."""
        found: defaultdict[str, float] = defaultdict(float)
        for pid, (kind, used) in self._last.items():
            found[kind] += used - self._first.get(pid, 0.0)
        return found

    def _read_often(self) -> None:
        while not self._is_over.wait(PAUSE):
            self._read()

    def _read(self) -> None:
        memory = dict.fromkeys(KINDS, 0.0)
        for pid, kind in kinds(self._bench).items():
            memory[kind] += processes.private_memory(pid)
            used = processes.cpu_seconds(pid)
            if used is not None:
                self._last[pid] = (kind, used)
        self.memory = {kind: max(most, memory[kind]) for kind, most in self.memory.items()}


def measure(bench: Stand, line: Line) -> list[float]:
    """
    Run a line once.

    Returns:
        The wall time of a message in microseconds, its CPU time in each of KINDS, and the most
        memory of each of KINDS in MiB.
    """
    line.ready(bench)
    start = time.perf_counter()
    with Meter(bench) as meter:
        line.run(bench)
        wall = time.perf_counter() - start
    messages = bench.messages * (BATCHES if line.name.startswith(SOURCES) else 1)
    used = meter.used()
    times = [1e6 * value / messages for value in (wall, *(used[kind] for kind in KINDS))]
    return [*times, *meter.memory.values()]


def main() -> None:
    """Print a line for each line that is named."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("names", nargs="+", help="names of lines")
    parser.add_argument("--messages", type=int, default=100_000, help="in one batch")
    parser.add_argument("--rounds", type=int, default=3, help="after a warm-up")
    parser.add_argument("--url", help="a PostgreSQL server to make a database on")
    asked = parser.parse_args()
    lines = {line.name: line for line in (*LINES, *GROWTH)}
    sys.stdout.write(f"microseconds of a message on {CORES} cores: wall, {', '.join(KINDS)}\n")
    with stand(asked.url, asked.messages) as bench:
        for name in asked.names:
            measure(bench, lines[name])
            rounds = [measure(bench, lines[name]) for _ in range(asked.rounds)]
            found = [median(values) for values in zip(*rounds, strict=True)]
            times, memory = found[: -len(KINDS)], found[-len(KINDS) :]
            sys.stdout.write(f"{name:24}{''.join(f'{value:8.2f}' for value in times)}\n")
            sys.stdout.write(f"{'MiB':32}{''.join(f'{value:8.0f}' for value in memory)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
