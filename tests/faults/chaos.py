"""
Chaos: a stream, its producer and its competitor are harmed for a while, then counted.

A round: start, harm about once a second, stop, drain with AvailableNow, and find every committed
message in exactly one place: the sink, or the competitor's table. Nothing may be left in the queue,
in receipts or in the staging. What becomes of poison and of what expired: test_failpoints.py.

The server is a private one, on a disk that can be filled: a tmpfs. Where none can be mounted it
stands on the usual disk, and is never filled.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
from conformance.transport import PostgreSQL
from conftest import Place
from spark.stand import Queue
from waiting import until

from sqlq_spark.testing import embedded
from sqlq_spark.wire.address import QueueAddress

from . import cluster
from .harms import HARMS, QUERY_TIMEOUT, Ground, Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SINKS = ("parquet", "queue", "atomic")
HARMED, AROUND = 20.0, 25.0  # seconds of harm in a round; and before and after it
INSIST = 6.0  # seconds that a harm waits for its victim
DRAINING = 300.0  # seconds until the drain counts as stuck
WAITING = 4000  # messages; the producer pauses above that
# With 7,000 characters each, a batch of a few hundred messages gets two tasks. They compress well.
SEND = """
INSERT INTO {name}.orders (Id, Headers, Body)
SELECT gen_random_uuid(), '{{"NServiceBus.MessageId":"m-' || number || '"}}',
       convert_to(repeat(' ', 7000), 'UTF8')
  FROM generate_series(%s::int, %s::int) AS number
"""
NUMBERS = "SELECT substr(headers::json->>'NServiceBus.MessageId', 3)::int FROM {name}.{table}"
THREADS = r'(?s)"(?:stream execution|Thread-)[^"]*" .{1500}'  # threads in a dump of the JVM
# a lost session, whatever the server or the line says of it
LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
)


def problems(sent: set[int], places: dict[str, list[int]], counted: int) -> dict[str, list[int]]:
    """
    Find every message that was sent in exactly one place; returns what is wrong, by number.

    `counted` is how many were streamed, as the streams' rows say.
    """
    times = Counter(number for numbers in places.values() for number in numbers)
    streamed = len(places["streamed"])
    found = {
        "lost": sorted(sent - times.keys()),
        "repeated": [number for number in times if times[number] > 1],
        "left": places["left"],
        "counted": [] if counted == streamed else [counted, streamed],
    }
    return {name: numbers for name, numbers in found.items() if numbers}


@contextmanager
def ground() -> Iterator[Ground]:
    folder = Path(tempfile.mkdtemp(prefix="sqlq-chaos-", dir="/tmp"))
    folder.chmod(0o711)  # the server's own user passes through
    mount = ["mount", "-t", "tmpfs", "-o", "size=1g,mode=0711", "tmpfs", str(folder)]
    disk = folder if done(mount) else None
    try:
        with embedded.run_server(disk, tcp=True) as server:
            made = Ground(server, disk)
            # the small disk has no room for much WAL
            made.ask("ALTER SYSTEM SET checkpoint_timeout = '30s'")
            made.ask("ALTER SYSTEM SET log_line_prefix = '%m [%p] %a '")
            made.ask("SELECT pg_reload_conf()")
            yield made
    finally:
        if disk:  # the server's last process may hold it for a moment
            until(lambda: done(["umount", str(folder)]))
        folder.rmdir()


def done(command: list[str]) -> bool:
    found = subprocess.run(["/usr/bin/env", *command], capture_output=True, check=False)
    return found.returncode == 0


@dataclass
class Round:
    """One round, in schemas and a folder of its own; then its figures."""

    ground: Ground
    folder: Path
    rng: Random
    sink: str
    streams: int  # how many read the queue, each with a checkpoint of its own
    figures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    sent: set[int] = field(default_factory=set)  # numbers whose commit was answered
    given: int = 0  # numbers, also those whose commit's answer was lost

    def run(self) -> None:
        """Do all of it; the evidence is in the folder."""
        self.name = self.folder.name
        self.scene = Scene(self.ground, self.rng)
        try:
            self.order = self._make()
            with ThreadPoolExecutor(2) as pool:
                users = [pool.submit(self._use, each) for each in (self._produce, self._compete)]
                try:
                    self._harm()
                finally:
                    self.over.set()
            for user in users:
                user.result()
            self._drain()
            self._count()
        except Exception as error:  # noqa: BLE001 - a failure of this round, with its evidence
            log = self.folder / "driver.log"
            said = log.read_text(errors="replace")
            ends = [each for each in said.splitlines() if each.startswith("stream ")][-5:]
            self.scene.dump()
            threads = re.findall(THREADS, log.read_text(errors="replace")[len(said) :])
            what = [f"{type(error).__name__}: {error}", *ends, said[-2000:], *threads]
            self.wrong.append("\n".join(what))
        finally:
            self.scene.kill(workers=True)
        shutil.copy(self.ground.server.place / "log", self.folder / "server.log")

    def _note(self, what: str) -> None:
        with (self.folder / "harms.log").open("a") as file:
            file.write(f"{time.time():.2f} {what}\n")

    def _make(self) -> dict[str, Any]:
        """Create queues, state tables and the competitor's table. Return the driver's order."""
        self.ground.ask(f"CREATE SCHEMA {self.name}")
        self.ground.ask(f"CREATE TABLE {self.name}.taken (number int)")
        url, state = self.ground.server.url, f"{self.name}_state"
        with psycopg.connect(url, autocommit=True) as one:
            place = Place(url=url, superuser=url, schema=self.name, state=state, connection=one)
            orders = Queue(place, "orders").prepared()
            out = orders.another("out")
        given = {"maxMessagesPerTrigger": "400", "maxConcurrency": "3", "peekDelay": "100ms"}
        given["queryTimeout"] = f"{QUERY_TIMEOUT:g}s"
        sink = out.options | {"queryTimeout": given["queryTimeout"]}
        if self.sink == "atomic":
            sink["transactionMode"] = "sendsAtomicWithReceive"
        stream = {
            "options": orders.options | given,
            "out": None if self.sink == "parquet" else sink,
            "format": "parquet",
        }
        places = [str(self.folder / f"stream-{at}") for at in range(self.streams)]
        return {
            "streams": [stream | {"table": x, "checkpoint": f"{x}-checkpoint"} for x in places],
            "until": str(self.folder / "until"),
            "answer": str(self.folder / "answer"),
        }

    def _harm(self) -> None:
        """Do harms as long as the round lasts, beginning with the first plan."""
        self._keep_going()
        until(lambda: self.ground.ask(f"SELECT FROM {self.name}_state.stream"), seconds=DRAINING)
        end = time.monotonic() + HARMED
        while time.monotonic() < end:
            self._keep_going()
            names = [name for name in HARMS if name != "disk full" or self.ground.disk]
            name = self.rng.choices(names, [HARMS[each] for each in names])[0]
            insist = time.monotonic() + INSIST
            while not (struck := self.scene.strike(name)) and time.monotonic() < insist:
                time.sleep(0.05)  # to draw another harm would change how often each one is drawn
            if struck:
                self.figures[f"harm: {name}"] += 1
                self._note(name)
                time.sleep(min(self.rng.expovariate(1.2), 3.0))
        self.scene.thaw(everyone=True)
        self.ground.revive()

    def _keep_going(self) -> None:
        """Continue frozen processes, and start a new driver if there is none."""
        self.scene.thaw()
        if self.scene.driver is None or self.scene.driver.poll() is not None:
            self._note("driver starts")
            job = {"master": "local[2,4]", "sink": "parquet"}  # a task is tried four times
            self.scene.driver = cluster.driver(self.folder / "driver.log", job)
            cluster.give(self.scene.driver, self.order)

    def _drain(self) -> None:
        """Run AvailableNow until nothing waits and nothing is open."""
        self._note("calm")
        Path(self.order["until"]).touch()
        answer = Path(self.order["answer"])

        def done() -> bool:
            self._keep_going()
            return answer.exists()

        until(done, seconds=DRAINING)
        assert answer.read_text() == ""

    def _count(self) -> None:
        ask, name = self.ground.ask, self.name

        def numbers(table: str) -> list[int]:
            return [row[0] for row in ask(NUMBERS.format(name=name, table=table))]

        tables = [Path(stream["table"]) for stream in self.order["streams"]]
        ids = [int(each.removeprefix("m-")) for table in tables for each in cluster.landed(table)]
        taken = [row[0] for row in ask(f"SELECT number FROM {name}.taken")]
        places = {"streamed": ids + numbers("out"), "taken": taken, "left": numbers("orders")}
        counted = ask(f"SELECT sum(messages)::int FROM {name}_state.stream")[0][0]
        found = problems(self.sent, places, counted)
        for table in ("receipt", "receipt_page", "staging", "staging_page"):
            found[f"left in {table}"] = [0 for _ in ask(f"SELECT FROM {name}_state.{table}")]
        self.wrong += [f"{len(each)} {what}: {each[:10]}" for what, each in found.items() if each]
        self.figures += Counter({what: len(each) for what, each in places.items()})
        self._note(f"{self.sent} sent, {places}")
        if not self.wrong:
            ask(f"DROP SCHEMA {name}, {name}_state CASCADE")

    # ------------------------------------------------------------ others on the queue
    def _use(self, step: Callable[[Any], None]) -> None:
        """Do one transaction after another, on a new connection whenever it is lost."""
        while not self.over.is_set():
            with (
                suppress(*LOST),
                psycopg.connect(
                    self.ground.server.url, autocommit=True, connect_timeout=5
                ) as connection,
            ):
                while not self.over.is_set():
                    step(connection)
            time.sleep(0.1)

    def _produce(self, connection: psycopg.Connection[Any]) -> None:
        time.sleep(self.rng.expovariate(8.0))
        waiting = f"SELECT count(*) FROM (SELECT FROM {self.name}.orders LIMIT {WAITING})"
        if connection.execute(waiting.encode()).fetchone() != (WAITING,):
            first, self.given = self.given, self.given + self.rng.choice([1, 2, 10, 30, 60, 150])
            text = SEND.format(name=self.name).encode()
            connection.execute(text, (first, self.given - 1))
            self.sent |= {*range(first, self.given)}

    def _compete(self, connection: psycopg.Connection[Any]) -> None:
        """
        Receive as the transport does, and record it in the same commit.

        Some are held or undone.
        """
        dotnet = PostgreSQL(self.ground.server.url, self.name, "", connection)
        held, queue = self.rng.random() < 0.01, QueueAddress("orders", self.name)
        with connection.transaction(force_rollback=self.rng.random() < 0.1):
            found = [dotnet.receive(queue) for _ in range(5 if held else 1)]
            texts = [each.headers for each in found if each and each.headers]
            taken = [int(json.loads(each)["NServiceBus.MessageId"][2:]) for each in texts]
            text = f"INSERT INTO {self.name}.taken SELECT unnest(%s::int[])"
            connection.execute(text.encode(), [taken])
            time.sleep(1.0 if held else 0.0)
        time.sleep(0.02 if taken else 0.1)


def rounds(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """
    Run rounds as long as there is time: the sinks in turn, from one drawn by lot.

    The folder keeps the evidence of the last if it went wrong: logs, harms, and everyone's books.
    """
    ends, rng = time.monotonic() + minutes * 60, Random(seed)
    number, figures, wrong = rng.randrange(len(SINKS)), Counter[str](), list[str]()
    with ground() as place:
        while not figures or (time.monotonic() + HARMED + AROUND < ends and not wrong):
            made = Round(
                place,
                folder / f"round_{number}",
                Random(f"{seed}/{number}"),
                sink=SINKS[number % len(SINKS)],
                streams=rng.choice([1, 1, 2]),
            )
            made.folder.mkdir(parents=True)
            made.run()
            figures += made.figures + Counter({"rounds": 1})
            wrong += [f"{made.name}, {made.sink}: {each}" for each in made.wrong]
            if not made.wrong:
                shutil.rmtree(made.folder)
            number += 1
    return {"seed": seed, **figures, "wrong": wrong}
