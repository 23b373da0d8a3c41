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
# for properties that are tried on a database: all examples share one place
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


class WatchedConnection(RecordedConnection):
    """A connection that records its statements' names, and may be killed before or after one."""

    def __init__(self, inner: Connection, bench: Bench) -> None:
        super().__init__(inner)
        self.bench = bench

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Record the statement, and kill the session there if a test asks for it."""
        self.bench.statements.append(statement)
        kill = self.bench.planned_kill
        return call() if kill is None else kill.around(statement, call)


@dataclass
class PlannedKill:
    """Kill a session before its nth statement, or after it, so that only the answer is lost."""

    statements_before: int
    kill: Callable[[], object]
    after: bool
    killed_at: str | None = None

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run a statement, and kill the session before or after it if it is the chosen one."""
        self.statements_before -= 1
        if self.statements_before != -1:
            return call()
        self.killed_at = statement
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
    error_queue: QueueAddress
    session_prefix: str  # begins the names of our sessions
    statements: list[str] = field(default_factory=list)  # statements that recorded sessions ran
    planned_kill: PlannedKill | None = None
    records_statements: bool = False  # sessions that are opened now record them
    session_to_kill: str | None = None  # the name of sessions that are killed
    killed_statements: list[str] = field(default_factory=list)  # at which a session was killed
    _stack: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None

    @property
    def queue_address(self) -> str:
        """The queue's canonical address, as text."""
        return self.connection.printed(self.queue)

    @property
    def queue_in_options(self) -> str:
        """The queue's address as options and state tables have it. SQL Server's has no database."""
        return names_of(self.dotnet.url).print_address(self.queue)

    def use_unique_queue(self) -> str:
        """Use a queue whose name no other test has. Return the name of its drivers' sessions."""
        self.queue = self.create_queue(f"orders {self.session_prefix}")
        return f"sqlqueue driver {self.queue.table}"

    @property
    def delayed_table(self) -> QueueAddress:
        """The queue's table of delayed messages, which may not exist."""
        return delayed_of(self.queue)

    def table_beside(self, table: str) -> QueueAddress:
        """The address of a table beside the queue, which may not exist."""
        return QueueAddress(table, self.dotnet.schema)

    def create_queue(self, table: str) -> QueueAddress:
        """Create a queue beside the queue, and return its address."""
        self.dotnet.create(self.table_beside(table))
        return self.table_beside(table)

    def create_bad_destinations(self) -> None:
        """Make tables that cannot be sent to: `archive`, `view`, and `refuses`."""
        do = self.dotnet.dba.do
        do("archive", self.table_beside("archive"))
        do("view", self.table_beside("view"), to=self.queue)
        do("refuse", self.create_queue("refuses"))

    def address(self, table: str) -> str:
        """The canonical address of a table beside the queue."""
        return self.connection.printed(self.table_beside(table))

    def source_options(self, **raw: str) -> SourceOptions:
        """Options of a stream of the queue, or of `queues`, given by their public names."""
        given = {"url": self.dotnet.url, "stateSchema": self.dotnet.state}
        given |= {} if "queues" in raw else {"queue": self.queue_in_options}
        return SourceOptions.parse({**given, "queryTimeout": f"{TIMEOUT:g}s", **raw})

    def sink_options(self, **raw: str | None) -> SinkOptions:
        """Options of a writer into the queue. With None for `queue` each row names its queue."""
        given = {
            "url": self.dotnet.url,
            "queue": self.queue_in_options,
            "stateSchema": self.dotnet.state,
        }
        whole = given | {"queryTimeout": f"{TIMEOUT:g}s"} | raw
        return SinkOptions.parse({name: each for name, each in whole.items() if each is not None})

    def new_session(self, application: str = "", **raw: str) -> Session:
        """Give a session of the package, which is closed at the end of the test."""
        return self._stack.enter_context(
            Session(self.source_options(**raw), f"{self.session_prefix} {application}")
        )

    def open_connection(self, application: str = "", **raw: str) -> Connection:
        """Open a connection in a new session."""
        return self.new_session(application, **raw).open()

    @property
    def connection(self) -> Connection:
        """A connection for statements that need no session of their own."""
        if self._connection is None:
            self._connection = self.open_connection("shared")
        return self._connection

    def transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction of the shared connection."""
        return transaction(self.connection, timeout=TIMEOUT)

    def stream_driver(self, clock: Clock | None = None, **raw: str) -> StreamDriver:
        """Give the driver of a stream, as a new process has it. Its clock stands still."""
        return self.beating_driver(None, clock, self.source_options(**raw))

    def beating_driver(
        self, heartbeat: float | None, clock: Clock | None, options: SourceOptions
    ) -> StreamDriver:
        """Give a driver that writes a heartbeat every `heartbeat` seconds; None: it writes none."""
        made = StreamDriver(options, clock or Clock(), doctor.at_start, heartbeat=heartbeat)
        self._stack.callback(made.close)
        return made

    @contextmanager
    def login_with_rights(self, *rights: str) -> Iterator[tuple[Login, Connection]]:
        """Give a login with these rights on the queue, and a connection of that login."""
        made = self.dotnet.dba.login()
        try:
            for right in rights:
                self.dotnet.dba.grant(made, right, self.queue)
            with self.new_session("login", url=made.url) as session:
                yield made, session.open()
        finally:
            self.dotnet.dba.drop_login(made)

    def run_in_thread(self, work: Callable[[], Any]) -> Future[Any]:
        """Run a function in a thread beside the test."""
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        return pool.submit(work)

    def kill_at_each_statement(self, name: str | None = None) -> Iterator[tuple[Session, bool]]:
        """
        Give sessions that are killed before each statement in turn.

        Then answers of commits are lost.
        """
        self.killed_statements.clear()
        places = [(0, False)]
        for at, after in places:
            application = f"killed {at} {after}"
            self.session_to_kill = name or f"{self.session_prefix} {application}"
            self.planned_kill = PlannedKill(
                at, partial(self.dotnet.kill, self.session_to_kill), after
            )
            yield self.new_session(application), after
            if after:
                continue
            if self.planned_kill.killed_at is not None:
                self.killed_statements.append(self.planned_kill.killed_at)
                places.append((at + 1, False))
            else:
                places += [
                    (at, True) for at, each in enumerate(self.killed_statements) if each == "commit"
                ]
        self.planned_kill = self.session_to_kill = None

    def close(self) -> None:
        """End all sessions."""
        self._stack.close()

    def new_stream(self, *, acked: int = 0) -> str:
        """Make the row of a stream whose batches up to `acked` are closed, and return its id."""
        stream = str(uuid.uuid4())
        with self.transaction():
            self.connection.run(
                "new_stream", stream=stream, queue_name=self.claim.queue, driver=self.claim.driver
            )
        for batch in range(1, acked + 1):
            self.store_empty_plan(stream, batch)
            self.acknowledge(stream, batch)
        return stream

    def store_empty_plan(self, stream: str, batch: int) -> None:
        """Store a plan without tasks for a batch."""
        with self.transaction():
            self.connection.run(
                "store_plan", stream=stream, batch=batch, stored_plan=write_plan(())
            )

    @property
    def claim(self) -> Claim:
        """The one driver of `new_stream`'s streams."""
        return Claim(options=self.source_options(), driver="the driver")

    def acknowledge(self, stream: str, batch: int) -> Closed:
        """Acknowledge a batch, as the driver of `new_stream`."""
        with self.transaction():
            end = Offset(stream=stream, batch=batch)
            return acknowledge(self.connection, end, replace(self.claim, stream=stream))

    def return_receipt(self, stream: str, *, batch: int = 1, task: int = 0) -> int:
        """Return a receipt to the queue, as the operator's command does."""
        with self.transaction():
            return return_receipt(self.connection, (stream, batch, task), self.queue)

    def drop_receipt(self, stream: str, *, batch: int = 1) -> int:
        """Drop a receipt as the operator's command does."""
        with self.transaction():
            return drop_receipt(self.connection, (stream, batch, 0))

    def task(self, stream: str | None, *, batch: int = 1, task: int = 0, **limits: Any) -> Task:
        """Give a task over the whole queue; `limits` are fields of the task or of its options."""
        names = limits.keys() - {each.name for each in fields(Task)}
        options = replace(self.source_options(), **{name: limits.pop(name) for name in names})
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
        return receive(connection or self.connection, task, spark_batch=spark_batch).rows

    @contextmanager
    def uncommitted_task(self, task: Task, application: str) -> Iterator[pa.Table]:
        """Run a task in a session of its own, and commit it with its receipt after the block."""
        connection = self.open_connection(application)
        connection.begin()
        stream, *_ = task.key
        read_fence(connection, stream, NO_SPARK_BATCH, connection.printed(task.queue))
        connection.run("begin_receipt", **receipt_values(task.key))
        kept = divert(connection, task, take(connection, task), {})
        yield kept.rows
        save(connection, task, kept, SparkBatch())
        connection.run("commit")

    def run_batch(
        self, driver: StreamDriver, start: Offset = INITIAL
    ) -> tuple[Offset, list[pa.Table]]:
        """Plan and receive the batch after `start`. The same offset means that there was none."""
        end = driver.latest(start)
        return end, [] if end == start else [self.receive(task) for task in driver.tasks(end)]

    def drain(self, driver: StreamDriver, start: Offset = INITIAL) -> list[bytes]:
        """Run micro-batches as AvailableNow does, until the offset stays. Return the bodies."""
        return [body for tables in self.run_batches(driver, start) for body in bodies(*tables)]

    def run_batches(
        self, driver: StreamDriver, start: Offset = INITIAL
    ) -> Iterator[list[pa.Table]]:
        """
        Run micro-batches as AvailableNow does, until the offset stays.

        Yield the rows of each.
        """
        for _ in range(50):
            end, tables = self.run_batch(driver, start)
            if end == start:
                return
            start = end
            yield tables
        message = "there was no end after 50 batches"
        raise AssertionError(message)

    def waiting_seqs(self) -> list[int]:
        """The seqs of what waits in the queue."""
        return [row.seq for row in self.dotnet.rows(self.queue)]

    def waiting_bodies(self, queue: QueueAddress | str | None = None) -> list[bytes | None]:
        """The bodies of what waits in the queue, or in another one."""
        if isinstance(queue, str):
            queue = self.table_beside(queue)
        return [row.body for row in self.dotnet.rows(queue or self.queue)]

    def error_queue_headers(self) -> dict[bytes | None, dict[str, str]]:
        """Headers of the messages in the error queue, by body. Each body must be there once."""
        rows = self.dotnet.rows(self.error_queue)
        found = {row.body: json.loads(row.headers or "") for row in rows}
        assert len(found) == len(rows)
        assert {row.expires for row in rows} <= {None}
        return found


def create_bench(dotnet: DotNet) -> Bench:
    """Make a queue and an error queue."""
    queue, errors = (QueueAddress(name, dotnet.schema) for name in ("orders", "error"))
    dotnet.create(queue)
    dotnet.create(errors)
    return Bench(dotnet, queue, errors, session_prefix=secrets.token_hex(4))


@pytest.fixture
def bare(dotnet: DotNet) -> Iterator[Bench]:
    """Give a queue and an error queue, and no state tables."""
    bench = create_bench(dotnet)
    yield bench
    bench.close()


@pytest.fixture
def bench(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """
    Give a bench with state tables.

    Sessions that are opened while it watches record their statements.
    """
    connection = bare.connection
    schema.install(connection)
    connect = database.dialect_of(bare.dotnet.url).connect

    def watch(*args: Any, application: str, **named: Any) -> Any:
        made = connect(*args, application=application, **named)
        is_killed = bare.session_to_kill is not None and bare.session_to_kill in application
        return WatchedConnection(made, bare) if bare.records_statements or is_killed else made

    monkeypatch.setattr(database.dialect_of(bare.dotnet.url), "connect", watch)
    return bare


@pytest.fixture
def impatient() -> Iterator[None]:
    """Retry as often as a real session, but without the pauses."""
    with stamina.set_testing(testing=True, attempts=7, cap=True):
        yield
