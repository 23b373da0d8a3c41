"""
A model of Spark and of all who touch a queue, around the real functions on a real database.

On Spark's side a checkpoint is a log of offsets and a log of commits; a driver
plans, writes the offsets, runs tasks in attempts, hands their rows to the sink, writes the commit.
A driver may die, live on as a second one, or stand on a copy of its checkpoint; an attempt may go
on when nobody waits for it any more. Receipts, streams, fences and dispatch logs are the
package's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import (
    CheckpointIncomplete,
    CheckpointRolledBack,
    ChunksMissing,
    ConnectionLost,
    Deadlock,
    DispatchLogAhead,
    NothingToSettle,
    StaleTask,
    StreamTakenOver,
)
from sqlq_spark.receive import task as receiving
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.send import dispatch as send
from sqlq_spark.wire.rows import Origin

from .steps import FIGURES, Killed, Order, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from receipt_moves import Move, State

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.receive.task import Task

    from .participants import World

Key = tuple[str, int, int]  # of a receipt: stream, batch, task
Kind = Literal["table", "queue", "atomic"]
TIMEOUT = 60.0


@dataclass
class Sink:
    """An idempotent table, or a queue of ours."""

    name: str
    kind: Kind
    options: SinkOptions | None = None
    batches: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)  # of a table
    keys: dict[bytes, Key] = field(default_factory=dict)  # by which receipt a message came
    dispatched: set[tuple[str, int]] = field(default_factory=set)  # query, batch: to a queue


@dataclass(eq=False)
class Checkpoint:
    """What Spark keeps of a query."""

    query: str
    sink: Sink
    sources: int = 1
    offsets: dict[int, tuple[Offset, ...]] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)

    @property
    def streams(self) -> set[str]:
        """Whose receipts this checkpoint may still ask for."""
        last = self.offsets.get(max(self.offsets, default=-1), ())
        return {offset.stream for offset in last if offset.stream}


@dataclass
class Receipt:
    """A row of the receipts, opened."""

    state: State
    bodies: list[bytes]
    expired: int
    closed: bool  # its batch is acknowledged, so no task will hand it out


@dataclass
class Job:
    """A process at work, and what the model makes of it."""

    work: Work
    move: Move | None
    driver: Driver | None = None
    slot: tuple[int, int] | None = None  # of an attempt: source and task
    on_commit: Callable[[dict[Key, Receipt]], None] | None = None
    on_end: Callable[[], None] | None = None


@dataclass
class Result:
    """What an attempt hands to Spark."""

    key: Key
    bodies: list[bytes]
    staged: send.Staged | None


class Driver:
    """One process that runs a query from its checkpoint."""

    def __init__(self, world: World, checkpoint: Checkpoint) -> None:
        """Read the logs as Spark does."""
        self.world, self.checkpoint = world, checkpoint
        self.alive, self.fresh, self.idle, self.latests = True, True, 0, 0
        self.job: Job | None = None
        self.results: dict[tuple[int, int], Result] = {}
        self.streams = [
            StreamDriver(world.source, world.clock, unchecked) for _ in range(checkpoint.sources)
        ]
        logs, last = checkpoint.offsets, max(checkpoint.offsets, default=-1)
        nothing = (INITIAL,) * checkpoint.sources
        again = last >= 0 and last not in checkpoint.commits
        self.batch = last if again else last + 1
        self.start = logs.get(self.batch - 1, nothing)
        self.end = logs[last] if again else self.start
        self.phase = "tasks" if again else "plan"
        FIGURES["batches replayed"] += again

    @property
    def slots(self) -> dict[tuple[int, int], Task]:
        """The batch's tasks."""
        sources = zip(self.streams, self.start, self.end, strict=True)
        return {
            (source, task.task): task
            for source, (loop, start, end) in enumerate(sources)
            if start != end
            for task in loop.tasks(end)
        }

    def attempts(self, slot: tuple[int, int]) -> int:
        """How many attempts of a task run for this driver."""
        return sum(job.driver is self and job.slot == slot for job in self.world.jobs)

    def next(self) -> None:
        """Do the next thing, if nothing is under way."""
        if self.alive and self.job is None:
            getattr(self, f"_{self.phase}")()

    def _plan(self) -> None:
        self.latests += 1
        pairs = list(zip(self.streams, self.start, strict=True))

        def latest() -> tuple[Offset, ...]:
            return tuple(loop.latest(start) for loop, start in pairs)

        self._do("latest", latest, "acknowledge", self._planned)

    def _planned(self, ends: tuple[Offset, ...]) -> None:
        for start, end in zip(self.start, ends, strict=True):
            if start != end:
                self.world.heard(self, end)
        self.idle = self.idle + 1 if ends == self.start else 0
        if not self.idle:
            self.end, self.phase = ends, "log"

    def _log(self) -> None:
        if self.batch in self.checkpoint.offsets:  # another driver wrote it: Spark ends the query
            self.die()
            return
        self.checkpoint.offsets[self.batch] = self.end
        self.phase = "tasks"

    def _tasks(self) -> None:
        open_ = [slot for slot in self.slots if slot not in self.results]
        if not open_:
            self.phase = "sink"
        for slot in open_:
            if not self.attempts(slot):
                self.attempt(slot)
                return

    def attempt(self, slot: tuple[int, int]) -> None:
        """Start an attempt of a task: receive, and stage where the sink is a queue."""
        world, task, batch = self.world, self.slots[slot], self.batch
        origin = Origin(query_id=self.checkpoint.query, query_batch=batch)
        sink = self.checkpoint.sink
        job: Job

        def run() -> Result:
            with Session(world.source, "task") as session:
                rows = session.run_with_retries(
                    lambda connection: receiving.receive(connection, task, origin=origin)
                )
            bodies = rows["body"].to_pylist()
            staged = None if sink.options is None else world.stage_rows(sink, bodies, origin)
            return Result(task.key, bodies, staged)

        def end() -> None:
            waiting = self.alive and self.batch == batch and self.phase == "tasks"
            if job.work.error is None:
                FIGURES["attempts"] += 1
                if waiting:
                    self.results.setdefault(slot, job.work.result)
            elif isinstance(job.work.error, StaleTask):
                FIGURES["zombies refused"] += 1
                assert task.batch <= world.acked(task.stream), job.work.error
                if waiting:
                    self.die()
            elif isinstance(job.work.error, CheckpointIncomplete):
                FIGURES["incomplete checkpoints refused"] += 1
                committed = batch in self.checkpoint.commits
                assert committed or self.checkpoint.query in world.marred, job.work.error
                if waiting:
                    self.die()
            else:
                expected(job.work.error, ConnectionLost, Deadlock)

        job = world.spawn(f"task {slot}", run, "save", driver=self, slot=slot, on_end=end)

    def _sink(self) -> None:
        sink, results = self.checkpoint.sink, [self.results[slot] for slot in self.slots]
        keys = {body: result.key for result in results for body in result.bodies}
        if sink.options is None:
            name = (self.checkpoint.query, self.batch)
            FIGURES["batches the sink knew"] += name in sink.batches
            if name not in sink.batches:
                sink.batches[name] = [body for result in results for body in result.bodies]
                sink.keys.update(keys)
            self.phase = "commit"
            return
        options, staged = sink.options, [result.staged for result in results if result.staged]

        def dispatch() -> int:
            with StateSession(options, "dispatch") as session:
                return session.run_with_retries(lambda one: send.dispatch(one, staged, options))

        def committed(_: dict[Key, Receipt]) -> None:
            sink.dispatched.add((self.checkpoint.query, self.batch))
            for body, key in keys.items():
                sink.keys.setdefault(body, key)

        self._do("dispatch", dispatch, "settle", self._dispatched, committed)

    def _dispatched(self, _: int) -> None:
        self.phase = "commit"

    def _commit(self) -> None:
        if self.batch in self.checkpoint.commits:  # another driver wrote it: Spark ends the query
            self.die()
            return
        self.checkpoint.commits.add(self.batch)
        FIGURES["batches"] += 1
        self.fresh, self.phase = False, "plan"
        self.batch, self.start, self.results = self.batch + 1, self.end, {}

    def _do(
        self,
        name: str,
        call: Callable[[], Any],
        move: Move,
        then: Callable[[Any], None],
        on_commit: Callable[[dict[Key, Receipt]], None] | None = None,
    ) -> None:
        def end() -> None:
            self.job = None
            if not self.alive:
                return
            if job.work.error is None:
                then(job.work.result)
            else:
                self._failed(job.work.error)

        job = self.world.spawn(name, call, move, driver=self, on_commit=on_commit, on_end=end)
        self.job = job
        if job.work.done:  # it needed no statement
            self.world.reap()

    def _failed(self, error: BaseException) -> None:
        """End the query; the error must be true."""
        pairs = list(zip(self.start, self.end, strict=True))
        if isinstance(error, CheckpointRolledBack):
            assert any(self.world.acked(start.stream) > start.batch for start, _ in pairs)
        elif isinstance(error, StreamTakenOver):
            assert self.world.spoken_for(self), error
        elif isinstance(error, DispatchLogAhead):  # a copy, or a checkpoint that went back
            assert (self.checkpoint.query, error.found) in self.checkpoint.sink.dispatched
        elif isinstance(error, NothingToSettle):  # closed by its stream, or by one that was lost
            closed = any(self.world.acked(end.stream) >= end.batch for _, end in pairs)
            assert closed or self.checkpoint.query in self.world.marred, error
        else:
            expected(error, ConnectionLost, Deadlock, ChunksMissing)
        FIGURES[type(error).__name__] += 1
        self.die()

    def die(self, order: Order = "die") -> None:
        """End the process; what runs on executors goes on."""
        if not self.alive:
            return
        self.alive = False
        FIGURES["drivers ended"] += 1
        if self.job is not None:
            self.world.step(self.job, order)
        for loop in self.streams:
            loop.close()

    @property
    def names(self) -> set[str]:
        """The streams that this driver may speak for."""
        return {each.stream for each in (*self.start, *self.end) if each.stream}


def unchecked(*_: object) -> None:
    """Stand for what a stream checks at its start, which changes nothing and takes long."""


def expected(error: BaseException | None, *kinds: type[BaseException]) -> None:
    """Let an error be only if it is one of these; a killed process has none."""
    if error is not None and not isinstance(error, (*kinds, Killed)):
        raise error
