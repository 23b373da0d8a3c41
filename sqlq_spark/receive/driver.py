"""
The driver's side of a stream: acknowledge, peek, pace, plan.

Spark calls `latest` with the end of the last batch in its commit log: that is the acknowledgement.
All that must last is in the offset and in the stream's row. What is kept here (where a queue
began, when to look again, the ramp) only saves work, and a new process does without.

An offset: `{"v":1,"stream":"<uuid>","batch":12,"plan":[{"queue":…,"messages":…,"share":…,
"bytes":…,"bounds":[…]}]}`; each queue with work has a part of the plan, and task i
of it receives seq in [bounds i, bounds i+1).
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import ConnectionLost, DatabaseFailure, StreamNotFound, StreamOfOtherQueue
from sqlq_spark.receive import pace, progress, receipts
from sqlq_spark.receive.delayed import Satellite
from sqlq_spark.receive.offset import plan_of, tasks_of
from sqlq_spark.receive.pace import Backlog, Limits, Outcome, Ramp
from sqlq_spark.receive.peek import Peek
from sqlq_spark.receive.receipts import Acknowledged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.task import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

Offset = dict[str, Any]
INITIAL: Offset = {"v": 1, "stream": None, "batch": 0, "plan": []}
NOTHING = Acknowledged(batch=0, outcome=Outcome(0, 0, 0))


def purge(connection: Connection, queues: Sequence[QueueAddress], *, timeout: float) -> int:
    """
    Delete every message of some queues, in one transaction; waits for those that others hold.

    Returns:
        How many. Done twice, it deletes what came in between as well.

    Raises:
        QueueNotFound, RightMissing, TimedOut: nothing was deleted.
    """
    with transaction(connection, timeout=timeout):
        return sum(connection.rows("purge", tables={"queue": each})[0][0] for each in queues)


class PeekLoop:
    """One stream's peek loop; lives in Spark's long-lived driver worker."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float],
        at_start: Callable[[Connection, SourceOptions], None],
    ) -> None:
        """
        Begin; nothing is connected yet.

        Args:
            options: of the stream.
            clock: monotonic seconds.
            at_start: checks the queues, once, before the first look; no transaction is open.
        """
        self.options = options
        self.clock = clock
        self._at_start = at_start
        self.address = ", ".join(options.names)
        self.who = receipts.Driver(
            driver=str(uuid.uuid4()),
            queue=self.address,
            state_schema=options.state_schema,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        self.ramp = Ramp(options.concurrency)
        self._sized = False  # whether the number of tasks was logged
        self.peeks = [
            Peek(options, *each) for each in zip(options.addresses, options.names, strict=True)
        ]
        self.satellites = [Satellite(options, peek.address) for peek in self.peeks]
        self._session = Session(options, f"driver {named(options)}", state=self._receipts)
        self._purged = self._checked = False
        self._claimed: str | None = None  # the stream that this process speaks for
        self._acknowledged: Offset = INITIAL
        self._closed = NOTHING  # what that came to
        self._heeded = 0  # the batch that was learned from last
        self._waiting_since: float | None = None

    # ------------------------------------------------------------ what Spark calls

    def freeze(self) -> None:
        """Take the highest seq as it stands now for the end of this run (AvailableNow)."""
        for satellite in self.satellites:
            self._do(satellite.finish)
        self._do(self._freeze)

    def latest(self, start: Offset) -> Offset:
        """
        Acknowledge `start` and plan the batch after it.

        Returns:
            The next offset; `start` itself where there is nothing to do now.
        """
        return self._do(lambda connection: self._latest(connection, start))

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge `end`, whose batch Spark has in its commit log."""
        self._do(lambda connection: self._acknowledge(connection, end))

    def tasks(self, end: Offset) -> list[Task]:
        """
        The tasks of a batch, from its offset alone.

        Its queues need not be read any more: what was received of them must still be handed out.
        """
        planned = {part["queue"] for part in end["plan"]}
        if planned and planned.isdisjoint(self.who.queues):
            self._do(lambda connection: self._own(connection, end))
        return tasks_of(end, self.options)

    def report(self) -> dict[str, Any]:
        """What the progress shows as `sources[].latestOffset`, in messages and seconds."""
        return progress.report(
            self.address,
            {peek.name: peek.found for peek in self.peeks},
            self.ramp,
            None if self._acknowledged["stream"] is None else self._closed,
            most=self.options.max_messages,
        )

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _do(self, work: Callable[[Connection], T]) -> T:
        return self._session.do(lambda connection: work(self._ready(connection)))

    def _ready(self, connection: Connection) -> Connection:
        """At the first use in this process: purge, if asked to, and look for what is wrong."""
        options = self.options
        if options.purge_on_startup and not self._purged:
            gone = purge(connection, options.addresses, timeout=options.query_timeout)
            self._purged = True
            log.warning("%s: %d messages purged, as purgeOnStartup asks for", self.address, gone)
        if not self._checked:
            self._at_start(connection, options)
            self._checked = True
        return connection

    @property
    def _receipts(self) -> bool:
        return self.options.transaction_mode == "receiveOnly"

    def _freeze(self, connection: Connection) -> None:
        with transaction(connection, timeout=self.options.query_timeout):
            for peek in self.peeks:
                peek.freeze(connection)

    def _own(self, connection: Connection, end: Offset) -> None:
        """Make sure that a batch of other queues is of our stream, which read them before."""
        stream = end["stream"]
        if stream is None:
            raise StreamOfOtherQueue(", ".join(part["queue"] for part in end["plan"]), self.address)
        with transaction(connection, timeout=self.options.query_timeout):
            row = connection.rows("stream_queue", stream=stream)
        if not row:
            raise StreamNotFound(stream, self.options.state_schema, connection.server)
        self.who.check(row[0][0])

    # ------------------------------------------------------------ the loop

    def _latest(self, connection: Connection, start: Offset) -> Offset:
        """
        Close the batch of `start` and plan the one after it, in one transaction.

        May be done again: a batch that is closed stays so, and one that was planned has its plan.
        Where that, or the move of what is due before it, fails, the batch is closed by itself.
        """
        now, known = self.clock(), start == self._acknowledged
        try:
            self._move_due(connection, now)
            if known and not any(peek.awake(now) for peek in self.peeks):
                return start
            with transaction(connection, timeout=self._timeout(known=known)):
                closed = self._closed if known else self._close(connection, start)
                following = self._next(connection, start["stream"], closed, now)
        except ConnectionLost:
            raise
        except DatabaseFailure:
            # a table that cannot be looked at must not keep the receipts of what is done
            self._acknowledge(connection, start)
            raise
        self._note(start, closed)
        if following is None:
            return self._pause(start, now)
        self._claimed = following["stream"]
        return following

    def _move_due(self, connection: Connection, now: float) -> None:
        """Move delayed messages, where it is time and that is asked for."""
        for peek, satellite in zip(self.peeks, self.satellites, strict=True):
            if satellite.turn(connection, now):
                peek.wake()

    def _next(
        self, connection: Connection, stream: str | None, closed: Acknowledged, now: float
    ) -> Offset | None:
        """Plan the next batch, in the transaction that is open; None where nothing is to do."""
        if closed.plan is not None:
            batch = closed.batch + 1
            return offset(stream, batch, plan_of(closed.plan, stream, batch))
        for peek in self.peeks:
            if peek.awake(now):
                peek.look(connection, now)
        backlogs = [self._backlog(peek) for peek in self.peeks]
        plans = pace.plans(
            backlogs, self._limits, self.ramp, waited=self._waited(now), turn=closed.batch
        )
        parts = [
            peek.plan(plan)
            for peek, plan in zip(self.peeks, plans, strict=True)
            if plan is not None
        ]
        if not parts:
            return None
        self._waiting_since = None
        self._log_size(parts)
        return self._store(connection, stream, closed.batch + 1, parts)

    def _log_size(self, parts: list[Any]) -> None:
        """Log, once in this process, how many tasks a batch may have, and what sets it."""
        if self._sized:
            return
        self._sized = True
        options, tasks = self.options, sum(len(part["bounds"]) - 1 for part in parts)
        if options.max_concurrency or options.cores or tasks < options.concurrency:
            log.info(
                "%s: the first batch has %d tasks of at most %d",
                self.address,
                tasks,
                options.concurrency,
            )
            return
        log.warning(
            "%s: the first batch has %d tasks, as many as the driver has cores, because the cores "
            "of the executors are not known here: on a cluster set maxConcurrency to those",
            self.address,
            tasks,
        )

    def _pause(self, start: Offset, now: float) -> Offset:
        """Leave the queues alone for a while, also those where something waits, but too little."""
        until = now + self.options.peek_delay
        if self._waiting_since is not None:
            until = min(until, max(now, self._waiting_since + self.options.max_trigger_delay))
        for peek in self.peeks:
            if peek.awake(now):
                peek.rest(until)
        return start

    def _acknowledge(self, connection: Connection, end: Offset) -> None:
        """Close `end`'s batch."""
        if end == self._acknowledged:
            return
        with transaction(connection, timeout=self._timeout(known=False)):
            closed = self._close(connection, end)
        self._note(end, closed)

    def _timeout(self, *, known: bool) -> float:
        """Seconds for each statement; to close a batch waits for tasks, which have as long."""
        return self.options.query_timeout * (1 if known else 2)

    def _close(self, connection: Connection, end: Offset) -> Acknowledged:
        """Close `end`'s batch, in the transaction that is open."""
        stream, batch = end["stream"], end["batch"]
        if stream is None:
            return replace(NOTHING, batch=batch)
        claim = self._claimed != stream
        tasks = sum(len(part["bounds"]) - 1 for part in end["plan"])
        closed = receipts.acknowledge(connection, stream, batch, self.who, claim=claim, tasks=tasks)
        self._heed(closed)
        return closed

    def _note(self, end: Offset, closed: Acknowledged) -> None:
        """Remember, after the commit, what is acknowledged."""
        self._acknowledged, self._closed = end, closed
        self._claimed = end["stream"]

    def _heed(self, acked: Acknowledged) -> None:
        """Learn from what a batch came to, once, however often it must be closed."""
        if not acked.outcome.tasks or acked.batch == self._heeded:
            return
        self._heeded = acked.batch
        options = self.options
        self.ramp = self.ramp.after(
            acked.outcome, options.concurrency, least=options.min_concurrency
        )
        for peek in self.peeks:
            if peek.name in acked.queues:
                peek.learn(acked.queues[peek.name].outcome)
        log.info(
            "%s: batch %d acknowledged: %d messages, %d expired, %d diverted, %d forwarded",
            self.address,
            acked.batch,
            acked.messages,
            acked.expired,
            acked.diverted,
            acked.forwarded,
        )

    @property
    def _limits(self) -> Limits:
        options = self.options
        return Limits(
            messages=options.max_messages,
            bytes=options.max_bytes,
            min_messages=None if self.peeks[0].frozen else options.min_messages,
            max_delay=options.max_trigger_delay,
            concurrency=options.concurrency,
        )

    def _backlog(self, peek: Peek) -> Backlog:
        found = peek.found
        return Backlog(found.messages, found.bytes_each, peek.most_tasks)

    def _waited(self, now: float) -> float:
        """Seconds since messages were first seen waiting, in whatever queue."""
        if not any(peek.found.messages for peek in self.peeks):
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        return 0.0 if self._waiting_since is None else now - self._waiting_since

    def _store(
        self, connection: Connection, stream: str | None, batch: int, plan: list[Any]
    ) -> Offset:
        if not self._receipts:
            return offset(None, batch, plan)
        if stream is None:
            stream = str(uuid.uuid4())
            self._warn_of_orphans(connection)
            receipts.create(connection, stream, self.who)
        stored = receipts.store_plan(connection, stream, batch, json.dumps(plan), self.who)
        return offset(stream, batch, plan_of(stored, stream, batch))

    def _warn_of_orphans(self, connection: Connection) -> None:
        """Tell of receipts of other streams of these queues: their checkpoint may be gone."""
        for peek in self.peeks:
            held = connection.rows("receipts", stream=None, queue_name=peek.name)
            if held:
                log.warning(
                    "%s: %d messages lie in receipts of other streams; if their checkpoints are "
                    "gone, `sqlqueue receipts list` and `sqlqueue receipts return` bring them back",
                    peek.name,
                    sum(row[4] for row in held),
                )


def offset(stream: str | None, batch: int, plan: list[Any]) -> Offset:
    """An offset, its keys in the one order there is: Spark compares the text."""
    return {"v": 1, "stream": stream, "batch": batch, "plan": plan}


def named(options: SourceOptions) -> str:
    """What the DBA sees of the queues: the first one's table, and how many more there are."""
    more = len(options.addresses) - 1
    return options.address.table + (f" and {more} more" if more else "")
