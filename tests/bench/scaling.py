"""
Four measurements along one size each: tasks of a batch, backlog, bodies, queues to send to.

Each begins with a warm-up; then its points are gone through in rounds, so that a slow minute of the
machine falls on all of them. The first batch of a stream does not count, see `figures.steady_rate`.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import processes
from pyspark.sql import functions

from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.receive.receipts import CEILING
from sqlq_spark.wire.address import QueueAddress

from . import postgresql
from .database import expect
from .figures import Figure, steady_rate
from .messages import orders
from .stand import BATCHES, CORES, stand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .stand import Stand

    Samples = dict[tuple[str, float], dict[str, list[float]]]

_BATCH = 100_000
_TASKS = (1, 2, 4, 8)
_LARGE_BACKLOG = 10_000_000
_DRAINED = 10  # batches
_BODY_BATCHES = 3
_HEADERS = 600  # bytes of a message that are not its body, about
_QUEUES = (1, 10, 100)
_DELIVERIES = ("exactlyOnce", "atLeastOnce")
_PATIENCE = 120.0  # seconds for the batches of one drain

_FILL = """
INSERT INTO orders (id, headers, body)
SELECT lpad(to_hex(n), 32, '0')::uuid,
       '{"NServiceBus.MessageId":"' || lpad(to_hex(n), 32, '0')::uuid || '"}',
       rpad(n::text, 100, '.')::bytea
  FROM generate_series(1, %s) AS n
"""


@dataclass(frozen=True)
class Point:
    """What was measured at one place of one line of a chart."""

    chart: str
    line: str
    x: float
    figures: dict[str, Figure]  # by unit

    @property
    def place(self) -> tuple[str, str, float]:
        """What a later measurement replaces."""
        return self.chart, self.line, self.x


@dataclass(frozen=True)
class Trial:
    """How thoroughly to measure."""

    rounds: int
    quick: bool


def tasks(cores: int, url: str, trial: Trial) -> Iterator[Point]:
    """Receive with so many tasks, on a Spark with so many threads for them."""
    messages = 20_000 if trial.quick else _BATCH
    # a Spark context of its own in the one JVM
    with stand(url, messages, cores) as bench:
        run = partial(_receive, bench, messages * BATCHES, messages)
        run(CORES)
        run(CORES)  # the JVM still compiles during the first
        samples = _rounds(trial.rounds, {(f"local[{cores}]", n): partial(run, n) for n in _TASKS})
    yield from _points("tasks", samples)


def backlog(sizes: Sequence[int], url: str, trial: Trial) -> Iterator[Point]:
    """Drain the first ten batches of so many waiting messages; 10 million are filled in once."""
    if trial.quick:
        sizes = [size // 100 for size in sizes]
    batches = (1_000, 10_000) if trial.quick else (1_000, _BATCH)
    rounds = 1 if _LARGE_BACKLOG in sizes else trial.rounds
    with stand(url, 1) as bench:
        _fill(bench, 2 * batches[0] * _DRAINED)
        _drain(bench, batches[0])
        samples: Samples = defaultdict(lambda: defaultdict(list))
        for _ in range(rounds):
            for size in sizes:
                fitting = [batch for batch in batches if batch * _DRAINED <= size]
                # so that the second drain finds the size again, whatever the first took too much
                _fill(bench, size + (len(fitting) - 1) * 2 * batches[0] * _DRAINED)
                for batch in fitting:
                    for unit, value in _drain(bench, batch).items():
                        samples[f"batches of {batch:,}", size][unit].append(value)
    yield from _points("backlog", samples)


def bodies(kind: str, size: int, url: str, trial: Trial) -> Iterator[Point]:
    """Receive bodies of so many bytes, on a Spark of its own with fresh workers."""
    most = 20_000 if trial.quick else _BATCH
    # a batch of two tasks is as heavy as they may hold, or has the most messages
    batch = min(most, CORES * CEILING // (size + _HEADERS))
    with stand(url, 1) as bench:
        _store(bench, batch * _BODY_BATCHES, size, _blob(kind))
        run = partial(_receive_bodies, bench, batch * _BODY_BATCHES, batch)
        run()
        samples = _rounds(trial.rounds, {(kind, size): run})
    yield from _points("bodies", samples)


def queues(url: str, trial: Trial) -> Iterator[Point]:
    """Send one DataFrame, by its column `queue`, to so many queues."""
    with stand(url, 10_000 if trial.quick else _BATCH) as bench:
        names = [f"q{at}" for at in range(max(_QUEUES))]
        with Session(SinkOptions(url=bench.url), "bench") as session:
            for name in names:
                session.open().rows("create_queue", tables={"queue": QueueAddress(name)})
        bench.frame.count()
        runs = {
            (delivery, count): partial(_send, bench, delivery, names[:count])
            for count in _QUEUES
            for delivery in _DELIVERIES
        }
        for run in runs.values():
            run()
        samples = _rounds(trial.rounds, runs)
    yield from _points("queues", samples)


def _rounds(rounds: int, runs: Mapping[tuple[str, int], Callable[[], dict[str, float]]]) -> Samples:
    samples: Samples = defaultdict(lambda: defaultdict(list))
    for _ in range(rounds):
        for place, run in runs.items():
            for unit, value in run().items():
                samples[place][unit].append(value)
    return samples


def _points(chart: str, samples: Samples) -> Iterator[Point]:
    for (line, x), figures in samples.items():
        yield Point(chart, line, x, {unit: Figure(values) for unit, values in figures.items()})


# ---------------------------------------------------------------- receive


def _receive(bench: Stand, messages: int, batch: int, tasks: int) -> dict[str, float]:
    bench.database.fill("orders", messages)
    progress = _stream(bench, batch, tasks, None)
    return {"messages/s": steady_rate(progress, messages)}


def _receive_bodies(bench: Stand, messages: int, batch: int) -> dict[str, float]:
    bench.database.fill("orders", messages)
    weight = "SELECT avg(octet_length(headers) + octet_length(body)) FROM orders"
    megabytes = float(bench.database.ask(weight)[0][0]) / 1e6
    rate = steady_rate(_stream(bench, batch, CORES, None), messages)
    return {"messages/s": rate, "MB/s": rate * megabytes, "peak MB": _peak() / 1e6}


def _peak() -> float:
    """The most bytes that a Python worker of Spark has held, shared pages too."""
    workers = (
        pid for pid in processes.below(os.getpid()) if "pyspark.daemon" in processes.command(pid)
    )
    return max(processes.peak(pid) for pid in workers)


def _drain(bench: Stand, batch: int) -> dict[str, float]:
    progress = _stream(bench, batch, CORES, _DRAINED)
    times = [each.durationMs for each in progress[1:]]
    return {
        "messages/s": steady_rate(progress, batch * _DRAINED),
        "peek ms": float(median(each["latestOffset"] for each in times)),
        "batch ms": float(median(each["triggerExecution"] for each in times)),
    }


def _stream(bench: Stand, batch: int, tasks: int, batches: int | None) -> Sequence[Any]:
    """Progress of the batches with rows: the first so many, or all that wait."""
    source = bench.spark.readStream.format(bench.ours).option("url", bench.url)
    source = source.option("headersFormat", "json").option("maxMessagesPerTrigger", batch)
    sink = source.option("maxConcurrency", tasks).load("orders").writeStream.format("noop")
    sink = sink.option("checkpointLocation", bench.checkpoint())
    if batches is None:
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        return [each for each in query.recentProgress if each.numInputRows]
    query = sink.start()
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            done = [each for each in query.recentProgress if each.numInputRows]
            if len(done) >= batches or time.monotonic() > end:
                return done[:batches]
            time.sleep(0.2)
    finally:
        query.stop()


def _fill(bench: Stand, messages: int) -> None:
    """Leave so many small messages, as `fill` does."""
    bench.database.fill("orders", 0)
    bench.database.ask(_FILL % messages)
    bench.database.settle("orders")


def _store(bench: Stand, messages: int, size: int, blob: bytes) -> None:
    """Let what `fill` copies have bodies of so many bytes, cut from a blob."""
    assert isinstance(bench.database, postgresql.PostgreSQL)
    ids, headers, _ = orders(0, messages).to_pydict().values()
    firsts = (at * 9_973 % (len(blob) - size) for at in range(messages))
    bodies = (blob[first : first + size] for first in firsts)
    bench.database.ask("TRUNCATE store")
    bench.database.keep(enumerate(zip(ids, headers, bodies, strict=True)))
    bench.database.ask("VACUUM ANALYZE store")


def _blob(kind: str) -> bytes:
    """Five megabytes: orders, one after the other, or what no compressor makes smaller."""
    if kind == "random":
        return random.Random(1).randbytes(5_000_000)
    return b"".join(orders(0, 10_000)["body"].to_pylist())


# ---------------------------------------------------------------- send


def _send(bench: Stand, delivery: str, names: Sequence[str]) -> dict[str, float]:
    for name in names:
        bench.database.fill(name, 0)
    number = functions.pmod(functions.hash("id"), functions.lit(len(names)))
    frame = bench.frame.withColumn("queue", functions.concat(functions.lit("q"), number))
    sink = frame.write.format(bench.ours).option("url", bench.url).option("delivery", delivery)
    start = time.perf_counter()
    sink.mode("append").save()
    elapsed = time.perf_counter() - start
    found = sum(bench.database.count(name) for name in names)
    expect(f"{len(names)} queues hold", found, bench.messages)
    return {"messages/s": bench.messages / elapsed}
