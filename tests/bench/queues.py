"""
A stream of many queues: what a batch of small ranges takes, and what an idle stream costs.

CPU is that of this process, of those below it (the JVM, the workers of Python) and of the sessions
of the bench's database, if the server is on this machine.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import processes

from .figures import durations
from .ours import SMALL_BATCHES, drain
from .stand import MANY

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .stand import Stand

IDLE = 10.0  # seconds of an idle stream
WARM = 4.0  # seconds before them


def fill(stand: Stand) -> None:
    """Put the messages of SMALL_BATCHES batches into each queue: one message a batch."""
    for queue in MANY:
        stand.database.fill(queue, SMALL_BATCHES, settled=False)


def empty(stand: Stand) -> None:
    """Leave no message in any of the queues."""
    for queue in MANY:
        stand.database.ask(f"TRUNCATE TABLE {queue}")


def many_small(stand: Stand) -> list[float]:
    """Micro-batches of one message from each of 64 queues, to noop. Milliseconds each."""
    return durations(drain(stand, _stream(stand, len(MANY))))


def idle_one(stand: Stand) -> list[float]:
    """CPU of an idle stream of one queue. Milliseconds a second."""
    return [_idle(stand, 1)]


def idle_many(stand: Stand) -> list[float]:
    """CPU of an idle stream of 64 queues. Milliseconds a second."""
    return [_idle(stand, len(MANY))]


def _stream(stand: Stand, queues: int) -> DataStreamWriter:
    source = stand.spark.readStream.format(stand.ours).option("url", stand.url)
    source = source.option("headersFormat", "json").option("maxMessagesPerTrigger", queues)
    return source.option("queues", ",".join(MANY[:queues])).load().writeStream.format("noop")


def _idle(stand: Stand, queues: int) -> float:
    writer = _stream(stand, queues).option("checkpointLocation", stand.checkpoint())
    query = writer.start()
    try:
        time.sleep(WARM)
        before, start = _cpu(stand), time.perf_counter()
        time.sleep(IDLE)
        used = sum(each - before.get(pid, 0.0) for pid, each in _cpu(stand).items())
        return 1000 * used / (time.perf_counter() - start)
    finally:
        query.stop()


def _cpu(stand: Stand) -> dict[int, float]:
    """Seconds of CPU that each process has used so far."""
    its = {os.getpid(), *processes.below(os.getpid())}
    name, tick = stand.url.rpartition("/")[2], os.sysconf("SC_CLK_TCK")
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(*processes.GONE):
            pid = int(path.name)
            if pid in its or f" {name} " in processes.command(pid):
                user, system = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
                found[pid] = (int(user) + int(system)) / tick
    return found
