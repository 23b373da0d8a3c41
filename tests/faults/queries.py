"""
A model of Spark and of its queries, around the real functions on a real database.

On Spark's side a checkpoint is a log of offsets and a log of commits. A driver plans, writes the
offsets, runs tasks in attempts, hands their rows to the sink, and writes the commit. A driver may
die, run on beside its successor, or use a copy of its checkpoint. An attempt may run on when nobody
waits for it any more.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from sqlq_spark import errors
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import ConnectionLost, Deadlock
from sqlq_spark.receive import task as receiving
from sqlq_spark.receive.batch import INITIAL, Offset
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.chunk import CHUNK_ROW
from sqlq_spark.wire.rows import SparkBatch

from .steps import FIGURES, Killed, Order, Work, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from receipt_moves import Move, State

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.receive.batch import Task

    from .world import World

Key = tuple[str, int, int]  # of a receipt: stream, batch, task
Slot = tuple[int, int]  # of a task: source and number
Kind = Literal["table", "queue", "atomic"]
TIMEOUT = 60.0


@dataclass
class Sink:
    """An idempotent table, or a queue of ours."""

    kind: Kind
    options: SinkOptions | None
    batches: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)  # of a table
    keys: dict[bytes, Key] = field(default_factory=dict)  # message → the receipt by which it came


@dataclass(eq=False)
class Checkpoint:
    """What Spark keeps of a query."""

    query: str
    sink: Sink
    sources: int = 1
    offsets: dict[int, tuple[Offset, ...]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def shared(self) -> bool:
        """Whether an operator may touch its receipts at any time."""
        return self.sink.kind == "atomic" and self.sources == 1


class Receipt(NamedTuple):
    """A row of the receipts, opened."""

    state: State
    bodies: list[bytes]
    expired: int
    closed: bool  # its batch is acknowledged, so no task will hand it out


class Result(NamedTuple):
    """What an attempt hands to Spark."""

    key: Key
    bodies: list[bytes]
    staged: send.Staged | None


class Driver:
    """One process that runs a query from its checkpoint."""

    def __init__(self, world: World, checkpoint: Checkpoint) -> None:
        """Read the logs as Spark does."""
        self.world, self.checkpoint = world, checkpoint
        self.alive, self.fresh, self.killed = True, True, False
        self.idle = 0
        self.job: Work | None = None
        self.results: dict[Slot, Result] = {}
        self.streams = [
            StreamDriver(world.options_of(source), world.clock, unchecked)
            for source in range(checkpoint.sources)
        ]
        self.run = str(uuid.uuid4())  # Spark's name for this start of the query
        logs, last = checkpoint.offsets, max(checkpoint.offsets, default=-1)
        again = last >= 0 and last not in checkpoint.commits
        self.batch = last if again else last + 1
        self.start = logs.get(self.batch - 1, (INITIAL,) * checkpoint.sources)
        self.end = logs[last] if again else self.start
        self.phase = "tasks" if again else "plan"
        self.life = self._live()

    @property
    def slots(self) -> dict[Slot, Task]:
        sources = zip(self.streams, self.start, self.end, strict=True)
        return {
            (source, task.task): task
            for source, (loop, start, end) in enumerate(sources)
            if start != end
            for task in loop.tasks(end)
        }

    @property
    def names(self) -> set[str]:
        """The streams that this driver may speak for."""
        return {each.stream for each in (*self.start, *self.end) if each.stream}

    def attempts(self, slot: Slot) -> int:
        return sum(job.driver is self and job.slot == slot for job in self.world.jobs)

    def next(self) -> None:
        """Do the next step, if nothing is under way. An error that ends the query must be true."""
        if not self.alive or self.job is not None:
            return
        try:
            next(self.life)
        except StopIteration:
            self.die()
        except (errors.SqlQueueError, Killed) as error:
            self._check(error)
            self.killed = isinstance(error, Killed)
            FIGURES[type(error).__name__] += 1
            self.die()

    def _live(self) -> Generator[None]:
        """Run batches, and end as Spark ends the query. Others may work wherever it yields."""
        checkpoint = self.checkpoint
        while True:
            while self.phase == "plan":
                yield from self._plan()
            if self.phase == "log":
                if self.batch in checkpoint.offsets:  # another driver wrote it
                    return
                checkpoint.offsets[self.batch] = self.end
                self.phase = "tasks"
                yield
            while waiting := [slot for slot in self.slots if slot not in self.results]:
                if idle := [slot for slot in waiting if not self.attempts(slot)]:
                    self.attempt(idle[0])
                yield
            self.phase = "sink"
            yield
            yield from self._sink()
            self.phase = "sunk"
            yield
            if self.batch in checkpoint.commits:  # another driver wrote it
                return
            checkpoint.commits.add(self.batch)
            FIGURES["batches"] += 1
            self.fresh, self.phase = False, "plan"
            self.batch, self.start, self.results = self.batch + 1, self.end, {}
            yield

    def _plan(self) -> Generator[None]:
        ends = yield from self._do("latest", self._latest, "acknowledge")
        for start, end in zip(self.start, ends, strict=True):
            if start != end:
                self.world.owners[str(end.stream)] = self.checkpoint
        self.idle = self.idle + 1 if ends == self.start else 0
        if not self.idle:
            self.end, self.phase = ends, "log"
        yield

    def _do(
        self,
        name: str,
        call: Callable[[], Any],
        move: Move,
        on_commit: Callable[[dict[Key, Receipt]], None] | None = None,
    ) -> Generator[None, None, Any]:
        """Wait for a process of the driver, and raise what it raises."""
        name = f"{name} {self.batch}"
        job = self.world.spawn(name, call, move, driver=self, on_commit=on_commit)
        if job.done:  # it needed no statement
            self.world.jobs.remove(job)
        else:
            self.job, job.on_end = job, self._go_on
            yield
        if job.error is not None:
            raise job.error
        return job.result

    def _go_on(self) -> None:
        self.job = None
        self.next()

    def _latest(self) -> tuple[Offset, ...]:
        pairs = zip(self.streams, self.start, strict=True)
        return tuple(loop.latest(start) for loop, start in pairs)

    def _sink(self) -> Generator[None]:
        """Hand the rows to the sink, which recognises a repeated batch."""
        sink, results = self.checkpoint.sink, [self.results[slot] for slot in self.slots]
        keys = {body: result.key for result in results for body in result.bodies}
        if sink.options is None:
            name = (self.checkpoint.query, self.batch)
            if name not in sink.batches:
                sink.batches[name] = [body for result in results for body in result.bodies]
                sink.keys.update(keys)
            return
        options, staged = sink.options, [result.staged for result in results if result.staged]

        def dispatch() -> int:
            with StateSession(options, "dispatch") as session:
                return session.run_with_retries(lambda one: send.dispatch(one, staged, options))

        def committed(_: dict[Key, Receipt]) -> None:
            for body, key in keys.items():
                sink.keys.setdefault(body, key)

        yield from self._do("dispatch", dispatch, "settle", committed)

    def attempt(self, slot: Slot) -> None:
        world, task, batch, checkpoint = self.world, self.slots[slot], self.batch, self.checkpoint
        spark_batch = SparkBatch(query_id=checkpoint.query, run_id=self.run, number=batch)
        job: Work

        def run() -> Result:
            with Session(world.source, "task") as session:
                result = session.run_with_retries(
                    lambda connection: receiving.receive(connection, task, spark_batch=spark_batch)
                )
            bodies = result.rows["body"].to_pylist()
            return Result(task.key, bodies, stage_rows(checkpoint.sink, bodies, spark_batch))

        def end() -> None:
            error = job.error
            waiting = self.alive and self.batch == batch and self.phase == "tasks"
            if error is None and waiting:
                self.results.setdefault(slot, job.result)
            if isinstance(error, errors.StaleTask):
                assert task.batch <= world.stream(task.stream)[0], error
            elif isinstance(error, errors.CheckpointIncomplete):
                assert batch in checkpoint.commits or checkpoint.query in world.marred, error
            else:
                expected(error, ConnectionLost, Deadlock)
                return
            FIGURES[type(error).__name__] += 1
            if waiting:
                self.die()

        job = world.spawn(f"task {batch} {slot}", run, "save", driver=self, slot=slot, on_end=end)

    def _check(self, error: BaseException) -> None:
        """Check that the facts of the package's error are true."""
        world, pairs = self.world, [*zip(self.streams, self.start, self.end, strict=True)]
        marred = self.checkpoint.query in world.marred
        if isinstance(error, errors.CheckpointRolledBack):
            assert any(world.stream(x.stream)[0] > x.batch for _, x, _ in pairs), error
        elif isinstance(error, errors.StreamTakenOver):
            speaking = [world.stream(start.stream)[1] for _, start, _ in pairs]
            assert speaking != [loop.memory.claim.driver for loop, _, _ in pairs], error
        elif isinstance(error, errors.DispatchLogAhead):  # a copy, or a checkpoint that went back
            assert marred, error
        elif isinstance(error, errors.NothingToSettle):  # its stream closed it, or is lost
            assert marred or any(world.stream(x.stream)[0] >= x.batch for *_, x in pairs), error
        else:
            expected(error, ConnectionLost, Deadlock, errors.ChunksMissing)

    def die(self, order: Order = "die") -> None:
        """End the process. Work on executors continues."""
        if not self.alive:
            return
        self.alive = False
        if self.job is not None:
            self.world.step(self.job, order)
        for loop in self.streams:
            loop.close()


def stage_rows(sink: Sink, bodies: list[bytes], spark_batch: SparkBatch) -> send.Staged | None:
    if sink.options is None or spark_batch.number is None:
        return None
    rows = [{"headers": "{}", "body": body} for body in bodies]
    chunks = [pa.Table.from_pylist(rows[at : at + 2], CHUNK_ROW) for at in range(0, len(rows), 2)]
    name, batch = f"query:{spark_batch.query_id}", spark_batch.number
    with StateSession(sink.options, "sink") as session:
        return send.stage(session, chunks, sink=name, sink_batch=batch, spark_batch=spark_batch)


def unchecked(*_: object) -> None:
    """Replace the checks at a stream's start, which change nothing and take long."""
