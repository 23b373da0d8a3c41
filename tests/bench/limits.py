"""
What a message costs the server, and what goes through one connection at a time, without Spark.

The package's own classes do what Spark would call, on one connection after the other. Time on the
server's processors is that of its backends, by the system's scheduler; WAL is what was inserted.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlq_spark.admin import checks
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch, insert
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.rows import Origin

from . import postgresql
from .database import expect, install_state
from .figures import Figure
from .messages import orders
from .scaling import Point, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from sqlq_spark.database import Connection

    Costs = Mapping[str, float]

_BATCHES = 4
_TIMEOUT = 60.0  # seconds
_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True)
class Bench:
    """A database of this part's own."""

    database: postgresql.PostgreSQL
    batch: int

    @property
    def url(self) -> str:
        """Where it is."""
        return self.database.url

    def spent(self) -> tuple[float, float]:
        """Seconds of all other backends that are connected, and bytes of WAL, so far."""
        pids = [pid for (pid,) in self.database.ask(_BACKENDS)]
        seconds = sum(
            int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pids
        )
        return seconds, float(self.database.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])

    def begin(self) -> tuple[float, float]:
        """Begin a measurement: what was spent before it."""
        return self.spent()

    def messages(self) -> pa.Table:
        """Give the messages to send."""
        return orders(0, self.batch)

    def cost(self, before: tuple[float, float], messages: int) -> dict[str, float]:
        """What each of so many messages has cost since."""
        seconds, wal = (now - then for now, then in zip(self.spent(), before, strict=True))
        return {"server us/message": seconds / messages * 1e6, "WAL bytes/message": wal / messages}

    @contextmanager
    def timing(self, before: tuple[float, float] | None = None) -> Iterator[dict[str, float]]:
        """Measure what a batch costs, from `before` on, and how long the block takes."""
        costs: dict[str, float] = {}
        before, start = before or self.begin(), time.perf_counter()
        yield costs
        elapsed = time.perf_counter() - start
        costs |= self.cost(before, self.batch)
        costs["connection us/message"] = elapsed / self.batch * 1e6


def limits(url: str, trial: Trial) -> Iterator[Point]:
    """Measure peek, receive, and both ways to send; a batch of each warms up."""
    batch = 10_000 if trial.quick else 100_000
    with postgresql.opened(url) as database:
        install_state(database.url)
        database.prepare(("orders", "sent"), batch * _BATCHES)
        bench = Bench(database, batch)
        samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for at in range(trial.rounds + 1):
            for name, costs in _round(bench).items():
                for unit, value in costs.items() if at else ():
                    samples[name][unit].append(value)
    for name, figures in samples.items():
        found = {unit: Figure(values) for unit, values in figures.items()}
        yield Point("limits", name, batch, found)


def _round(bench: Bench) -> dict[str, Costs]:
    return {
        "receive": receive_batches(bench),
        "copy": _copy(bench),
        "atLeastOnce": send_now(bench),
        "exactlyOnce": stage_and_dispatch(bench),
    }


def receive_batches(bench: Bench) -> Costs:
    """Take batches by two tasks in turn, each with its receipt, and acknowledge them."""
    bench.database.fill("orders", bench.batch * _BATCHES)
    raw = {"url": bench.url, "queue": "orders", "maxMessagesPerTrigger": str(bench.batch)}
    options = SourceOptions.parse(raw | {"maxConcurrency": "2"})
    query = str(uuid.uuid4())  # Spark gives each query another name
    loop, offset, taken = StreamDriver(options, time.monotonic, checks.at_start), INITIAL, 0
    with StateSession(options, "limits") as session:
        peek = _peek(options, session.open())
        loop.freeze()
        before = bench.begin()
        while (following := loop.latest(offset)) != offset:
            offset = following
            for task in loop.tasks(offset):
                origin = Origin(query_id=query, query_batch=offset.batch)
                taken += receive(session.open(), task, origin=origin).num_rows
        costs = bench.cost(before, taken)
    loop.close()
    expect("received", taken, bench.batch * _BATCHES)
    return costs | {"peek ms": peek}


def _peek(options: SourceOptions, connection: Connection) -> float:
    """Milliseconds to see a batch and where to cut it."""
    driver = StreamDriver(options, time.monotonic, checks.at_start)
    with closing(driver), transaction(connection, timeout=_TIMEOUT):
        start = time.perf_counter()
        driver._look(connection, time.monotonic())  # noqa: SLF001 - the part that is measured
        elapsed = time.perf_counter() - start
    expect("saw", driver.looks[options.names[0]].found.messages, options.max_messages)
    return elapsed * 1000


def _copy(bench: Bench) -> Costs:
    """The COPY of a batch alone, on one connection, without begin and commit."""
    options, chunks = _to_send(bench)
    with StateSession(options, "limits") as session, transaction(session.open(), timeout=_TIMEOUT):
        clock = insert.add_expires
        tables = [insert.add_ids(clock(session.open(), chunk)) for chunk in chunks]
        with bench.timing() as costs:
            for rows in tables:
                session.open().load(insert.destination_of(None, options), rows)
    return costs


def send_now(bench: Bench) -> Costs:
    """A task's way to send at once."""
    options, chunks = _to_send(bench)
    with StateSession(options, "limits") as session:
        session.open()
        with bench.timing() as costs:
            insert.send_now(session, chunks, options)
    expect("sent", bench.database.count("sent"), bench.batch)
    return costs


def stage_and_dispatch(bench: Bench) -> Costs:
    """A task's staging and the driver's dispatch, whose one connection is timed."""
    options, chunks = _to_send(bench)
    with StateSession(options, "limits") as session:
        session.open()
        before = bench.begin()
        staged = dispatch.stage(session, chunks, sink=f"{dispatch.NAMELESS}{uuid.uuid4()}", batch=0)
        with bench.timing(before) as costs:
            dispatch.dispatch(session.open(), [staged], options)
    expect("dispatched", bench.database.count("sent"), bench.batch)
    return costs


def _to_send(bench: Bench) -> tuple[SinkOptions, list[pa.Table]]:
    """An empty queue, and the chunks of a batch for it."""
    bench.database.fill("sent", 0)
    options = SinkOptions.parse({"url": bench.url, "queue": "sent"})
    frame = bench.messages().to_batches()
    return options, list(Sender(options=options, partition=0).chunks(frame))
