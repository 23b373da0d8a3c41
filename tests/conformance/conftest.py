"""
The fixtures of the suite: a queue, its endpoint, and our sessions, which can be watched.

Every test is run for each `dialect`; see tests/servers.py.
"""

from __future__ import annotations

import json
import secrets
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import stamina
from hypothesis import HealthCheck, settings
from recorded_connection import RecordedConnection

from sqlq_spark import database
from sqlq_spark.admin import doctor
from sqlq_spark.admin.receipts import drop_receipt, return_receipt
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import ConnectionLost
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import names_of
from sqlq_spark.receive.batch import INITIAL, Offset, Task, write_plan
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.receipts import (
    Claim,
    Closed,
    acknowledge,
    read_fence,
    receipt_values,
    save,
)
from sqlq_spark.receive.task import divert, receive, take
from sqlq_spark.wire.address import QueueAddress, delayed_of
from sqlq_spark.wire.rows import NO_SPARK_BATCH, SparkBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from sqlq_spark.database import Connection

    from .dba import Login
    from .transport import DotNet

TIMEOUT = 60.0  # seconds; nothing waits so long, but a machine may stand still for ten
# for properties that are tried on the database, in one place of it
ON_DATABASE = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Clock:
    """Monotonic seconds that pass only when a test lets them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time that it shows."""
        return self.now


class Spied(RecordedConnection):
    """A connection that records its statements' names, and may be struck before or after one."""

    def __init__(self, inner: Connection, bench: Bench) -> None:
        super().__init__(inner)
        self.bench = bench

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Record the statement, and kill the session there if a test asks for it."""
        self.bench.said.append(statement)
        strike = self.bench.strike
        return call() if strike is None else strike.around(statement, call)


@dataclass
class Strike:
    """Kill a session before its nth statement, or after it, so that only the answer is lost."""

    at: int
    kill: Callable[[], object]
    after: bool
    fell: str | None = None

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run a statement, and kill the session before or after it if it is the chosen one."""
        self.at -= 1
        if self.at != -1:
            return call()
        self.fell = statement
        if not self.after:
            self.kill()
        done = call()
        if self.after:
            self.kill()
            reason = "the answer was lost"
            raise ConnectionLost(statement=statement, reason=reason)
        return done


def through_spark(offset: Offset) -> Offset:
    """Return an offset as it comes back from a checkpoint."""
    return Offset.parse(json.loads(json.dumps(offset.to_json())))


def bodies(*tables: pa.Table) -> list[bytes]:
    """The bodies of what was received, in its order."""
    return [body for table in tables for body in table["body"].to_pylist()]


@dataclass
class Bench:
    """A queue and an error queue made by the endpoint, the state tables made by us."""

    dotnet: DotNet
    queue: QueueAddress
    errors: QueueAddress
    name: str  # of our sessions
    said: list[str] = field(default_factory=list)  # statements that watched sessions ran
    strike: Strike | None = None
    watched: bool = False  # every session that is opened now
    striking: str | None = None  # the name of sessions that are watched, and struck
    struck: list[str] = field(default_factory=list)  # statements that a strike fell on
    _stack: ExitStack = field(default_factory=ExitStack)
    _desk: Connection | None = None

    @property
    def printed(self) -> str:
        """The queue's canonical address, as text."""
        return self.desk.printed(self.queue)

    @property
    def stated(self) -> str:
        """The queue's address as options and state tables have it. SQL Server's has no database."""
        return names_of(self.dotnet.url).print_address(self.queue)

    def use_own_name(self) -> str:
        """Use a queue whose name no other test has. Return the name of its drivers' sessions."""
        self.queue = self.another(f"orders {self.name}")
        return f"sqlqueue driver {self.queue.table}"

    @property
    def delayed(self) -> QueueAddress:
        """The queue's table of delayed messages, which may not exist."""
        return delayed_of(self.queue)

    def beside(self, table: str) -> QueueAddress:
        """The address of a table beside the queue, which may not exist."""
        return QueueAddress(table, self.dotnet.schema)

    def another(self, table: str) -> QueueAddress:
        """Create a queue beside the queue, and return its address."""
        self.dotnet.create(self.beside(table))
        return self.beside(table)

    def spoil(self) -> None:
        """Make tables that cannot be sent to: `archive`, `view`, and `refuses`."""
        do = self.dotnet.dba.do
        do("archive", self.beside("archive"))
        do("view", self.beside("view"), to=self.queue)
        do("refuse", self.another("refuses"))

    def address(self, table: str) -> str:
        """The canonical address of a table beside the queue."""
        return self.desk.printed(self.beside(table))

    def source(self, **raw: str) -> SourceOptions:
        """Options of a stream of the queue, or of `queues`, given by their public names."""
        given = {"url": self.dotnet.url, "stateSchema": self.dotnet.state}
        given |= {} if "queues" in raw else {"queue": self.stated}
        return SourceOptions.parse({**given, "queryTimeout": f"{TIMEOUT:g}s", **raw})

    def sink(self, **raw: str | None) -> SinkOptions:
        """Options of a writer into the queue. With None for `queue` each row names its queue."""
        given = {"url": self.dotnet.url, "queue": self.stated, "stateSchema": self.dotnet.state}
        whole = given | {"queryTimeout": f"{TIMEOUT:g}s"} | raw
        return SinkOptions.parse({name: each for name, each in whole.items() if each is not None})

    def session(self, application: str = "", **raw: str) -> Session:
        """Give a session of the package, which is closed at the end of the test."""
        return self._stack.enter_context(Session(self.source(**raw), f"{self.name} {application}"))

    def open(self, application: str = "", **raw: str) -> Connection:
        """Open a connection in a new session."""
        return self.session(application, **raw).open()

    @property
    def desk(self) -> Connection:
        """A connection for statements that need no session of their own."""
        if self._desk is None:
            self._desk = self.open("desk")
        return self._desk

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction of the shared connection."""
        return transaction(self.desk, timeout=TIMEOUT)

    def loop(self, clock: Clock | None = None, **raw: str) -> StreamDriver:
        """Give the driver of a stream, as a new process has it. Its clock stands still."""
        made = StreamDriver(self.source(**raw), clock or Clock(), doctor.at_start)
        self._stack.callback(made.close)
        return made

    @contextmanager
    def login(self, *rights: str) -> Iterator[tuple[Login, Connection]]:
        """Give a login with these rights on the queue, and a connection of that login."""
        made = self.dotnet.dba.login()
        try:
            for right in rights:
                self.dotnet.dba.grant(made, right, self.queue)
            with self.session("login", url=made.url) as session:
                yield made, session.open()
        finally:
            self.dotnet.dba.drop_login(made)

    def thread(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a function in a thread beside the test."""
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        return pool.submit(work)

    def strikes(self, name: str | None = None) -> Iterator[tuple[Session, bool]]:
        """
        Give sessions that are killed before each statement in turn.

        Then answers of commits are lost.
        """
        self.struck.clear()
        places = [(0, False)]
        for at, after in places:
            application = f"struck {at} {after}"
            self.striking = name or f"{self.name} {application}"
            self.strike = Strike(at, partial(self.dotnet.kill, self.striking), after)
            yield self.session(application), after
            if after:
                continue
            if self.strike.fell is not None:
                self.struck.append(self.strike.fell)
                places.append((at + 1, False))
            else:
                places += [(at, True) for at, each in enumerate(self.struck) if each == "commit"]
        self.strike = self.striking = None

    def close(self) -> None:
        """End all sessions."""
        self._stack.close()

    def new_stream(self, *, acked: int = 0) -> str:
        """Make the row of a stream whose batches up to `acked` are closed, and return its id."""
        stream = str(uuid.uuid4())
        with self.transaction():
            self.desk.run(
                "new_stream", stream=stream, queue_name=self.claim.queue, driver=self.claim.driver
            )
        for batch in range(1, acked + 1):
            self.plan(stream, batch)
            self.ack(stream, batch)
        return stream

    def plan(self, stream: str, batch: int) -> None:
        """Store a plan without tasks for a batch."""
        with self.transaction():
            self.desk.run("store_plan", stream=stream, batch=batch, plan=write_plan(()))

    @property
    def claim(self) -> Claim:
        """The one driver of `new_stream`'s streams."""
        return Claim(options=self.source(), driver="the driver")

    def ack(self, stream: str, batch: int) -> Closed:
        """Acknowledge a batch, as the driver of `new_stream`."""
        with self.transaction():
            end = Offset(stream=stream, batch=batch)
            return acknowledge(self.desk, end, replace(self.claim, stream=stream))

    def return_(self, stream: str, *, batch: int = 1, task: int = 0) -> int:
        """Return a receipt to the queue, as the operator's command does."""
        with self.transaction():
            return return_receipt(self.desk, (stream, batch, task), self.queue)

    def drop(self, stream: str, *, batch: int = 1) -> int:
        """Drop a receipt as the operator's command does."""
        with self.transaction():
            return drop_receipt(self.desk, (stream, batch, 0))

    def task(self, stream: str | None, *, batch: int = 1, task: int = 0, **limits: Any) -> Task:
        """Give a task over the whole queue; `limits` are fields of the task or of its options."""
        names = limits.keys() - {each.name for each in fields(Task)}
        options = replace(self.source(), **{name: limits.pop(name) for name in names})
        whole = Task(
            queue=self.queue,
            stream=stream,
            batch=batch,
            task=task,
            first=-(2**63),
            stop=2**63 - 1,
            messages=1_000_000,
            options=options,
        )
        return replace(whole, **limits)

    def receive(
        self,
        task: Task,
        connection: Connection | None = None,
        spark_batch: SparkBatch = NO_SPARK_BATCH,
    ) -> pa.Table:
        """Run a task once, as an executor does."""
        return receive(connection or self.desk, task, spark_batch=spark_batch)

    @contextmanager
    def running(self, task: Task, application: str) -> Iterator[pa.Table]:
        """Run a task in a session of its own, and commit it with its receipt after the block."""
        connection = self.open(application)
        connection.begin()
        stream, *_ = task.key
        read_fence(connection, stream, NO_SPARK_BATCH, connection.printed(task.queue))
        connection.run("begin_receipt", **receipt_values(task.key))
        kept = divert(connection, task, take(connection, task), {})
        yield kept.rows
        save(connection, task, kept, SparkBatch())
        connection.run("commit")

    def batch(self, loop: StreamDriver, start: Offset = INITIAL) -> tuple[Offset, list[pa.Table]]:
        """Plan and receive the batch after `start`. The same offset means that there was none."""
        end = loop.latest(start)
        return end, [] if end == start else [self.receive(task) for task in loop.tasks(end)]

    def drain(self, loop: StreamDriver, start: Offset = INITIAL) -> list[bytes]:
        """Run micro-batches as AvailableNow does, until the offset stays. Return the bodies."""
        return [body for tables in self.batches(loop, start) for body in bodies(*tables)]

    def batches(self, loop: StreamDriver, start: Offset = INITIAL) -> Iterator[list[pa.Table]]:
        """
        Run micro-batches as AvailableNow does, until the offset stays.

        Yield the rows of each.
        """
        for _ in range(50):
            end, tables = self.batch(loop, start)
            if end == start:
                return
            start = end
            yield tables
        message = "there was no end after 50 batches"
        raise AssertionError(message)

    def seqs(self) -> list[int]:
        """The seqs of what waits in the queue."""
        return [row.seq for row in self.dotnet.rows(self.queue)]

    def bodies(self, queue: QueueAddress | str | None = None) -> list[bytes | None]:
        """The bodies of what waits in the queue, or in another one."""
        if isinstance(queue, str):
            queue = self.beside(queue)
        return [row.body for row in self.dotnet.rows(queue or self.queue)]

    def failures(self) -> dict[bytes | None, dict[str, str]]:
        """Headers of the messages in the error queue, by body. Each body must be there once."""
        rows = self.dotnet.rows(self.errors)
        found = {row.body: json.loads(row.headers or "") for row in rows}
        assert len(found) == len(rows)
        assert {row.expires for row in rows} <= {None}
        return found


def bench_of(dotnet: DotNet) -> Bench:
    """Make a queue and an error queue."""
    queue, errors = (QueueAddress(name, dotnet.schema) for name in ("orders", "error"))
    dotnet.create(queue)
    dotnet.create(errors)
    return Bench(dotnet, queue, errors, name=secrets.token_hex(4))


@pytest.fixture
def bare(dotnet: DotNet) -> Iterator[Bench]:
    """Give a queue and an error queue, and no state tables."""
    bench = bench_of(dotnet)
    yield bench
    bench.close()


@pytest.fixture
def bench(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """
    Give a bench with state tables.

    Sessions that are opened while it watches record their statements.
    """
    connection = bare.desk
    schema.install(connection)
    connect = database.dialect_of(bare.dotnet.url).connect

    def watch(*args: Any, application: str, **named: Any) -> Any:
        made = connect(*args, application=application, **named)
        struck = bare.striking is not None and bare.striking in application
        return Spied(made, bare) if bare.watched or struck else made

    monkeypatch.setattr(database.dialect_of(bare.dotnet.url), "connect", watch)
    return bare


@pytest.fixture
def impatient() -> Iterator[None]:
    """Retry as often as a real session, but without the pauses."""
    with stamina.set_testing(testing=True, attempts=7, cap=True):
        yield
