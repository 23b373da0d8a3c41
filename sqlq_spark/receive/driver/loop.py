"""
The driver's side of a stream: acknowledge, plan, and make the tasks.

Spark calls `latest` with the end of the last batch in its commit log: that is the acknowledgement.
All that must last is in the offset and in the stream's row.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import ConnectionLost, DatabaseFailure, StreamNotFound, StreamOfOtherQueue
from sqlq_spark.receive import receipts, streams
from sqlq_spark.receive.driver import progress
from sqlq_spark.receive.driver.pace import Outcome
from sqlq_spark.receive.driver.planner import Planner
from sqlq_spark.receive.offset import INITIAL, Offset, read_plan, tasks_of
from sqlq_spark.receive.purge import purge
from sqlq_spark.receive.receipts import Acknowledged
from sqlq_spark.send.delayed import DueMessagePoller

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.task import Task

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

NOTHING = Acknowledged(batch=0, outcome=Outcome(0, 0, 0))


class PeekLoop:
    """One stream's peek loop; lives in Spark's long-lived driver worker."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float],
        at_start: Callable[[Connection, SourceOptions], None],
    ) -> None:
        """
        Start; nothing is connected yet.

        Args:
            options: of the stream.
            clock: monotonic seconds.
            at_start: checks the queues, once, before the first look; no transaction is open.
        """
        self.options = options
        self.clock = clock
        self.who = streams.Claim(
            driver=str(uuid.uuid4()),
            queue=", ".join(options.names),
            fail_on_data_loss=options.fail_on_data_loss,
            fail_on_missing_receipts=options.fail_on_missing_receipts,
        )
        self.planner = Planner(options, self.who.queue, clock)
        self.due_pollers = [
            DueMessagePoller(options, each.address) for each in self.planner.peekers
        ]
        self._receipts = options.transaction_mode == "receiveOnly"
        self._session = Session(options, f"driver {name_queues(options)}", state=self._receipts)
        self._at_start = at_start
        self._purged = self._checked = False
        self._claimed: str | None = None  # the stream that this process speaks for
        self._acknowledged = INITIAL
        self._closed = NOTHING  # what the acknowledged batch has received

    # ------------------------------------------------------------ what Spark calls

    def freeze(self) -> None:
        """Take the highest seq as it is now for the end of this run (AvailableNow)."""
        for poller in self.due_pollers:
            self._do(poller.finish)
        self._do(self._freeze)

    def latest(self, start: Offset) -> Offset:
        """
        Acknowledge `start` and plan the batch after it.

        Returns:
            The next offset; `start` if there is nothing to do now.
        """
        return self._do(lambda connection: self._latest(connection, start))

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge `end`, whose batch Spark has in its commit log."""
        self._do(lambda connection: self._acknowledge(connection, end))

    def tasks(self, end: Offset) -> list[Task]:
        """
        Make the tasks of a batch, from its offset alone.

        The options need not name its queues any more: what was received of them must still be
        handed out.
        """
        planned = {part.queue for part in end.plan}
        if planned and planned.isdisjoint(self.who.queues):
            self._do(lambda connection: self._check_owner(connection, end))
        return tasks_of(end, self.options)

    def report(self) -> dict[str, Any]:
        """Report what the progress shows as `sources[].latestOffset`, in messages and seconds."""
        return progress.report_stream(
            self.who.queue,
            {each.name: each.found for each in self.planner.peekers},
            self.planner.ramp,
            None if self._acknowledged.stream is None else self._closed,
            most=self.options.max_messages,
        )

    def close(self) -> None:
        """End the session."""
        self._session.close()

    # ------------------------------------------------------------ the start

    def _do(self, work: Callable[[Connection], T]) -> T:
        return self._session.do(lambda connection: work(self._prepare(connection)))

    def _prepare(self, connection: Connection) -> Connection:
        """At the first use in this process, purge if the options ask for it, and check."""
        options = self.options
        if options.purge_on_startup and not self._purged:
            gone = purge(connection, options.addresses, timeout=options.query_timeout)
            self._purged = True
            log.warning("%s: %d messages purged (purgeOnStartup=true)", self.who.queue, gone)
        if not self._checked:
            self._at_start(connection, options)
            self._checked = True
        return connection

    def _freeze(self, connection: Connection) -> None:
        with transaction(connection, timeout=self.options.query_timeout):
            self.planner.freeze(connection)

    def _check_owner(self, connection: Connection, end: Offset) -> None:
        """Make sure that a batch of other queues is of our stream, which read them before."""
        if end.stream is None:
            raise StreamOfOtherQueue(
                found=", ".join(part.queue for part in end.plan), asked=self.who.queue
            )
        with transaction(connection, timeout=self.options.query_timeout):
            row = connection.rows("stream_queue", stream=end.stream)
        if not row:
            raise StreamNotFound(
                stream=end.stream, schema=self.options.state_schema, server=connection.server
            )
        self.who.check(row[0][0])

    # ------------------------------------------------------------ the loop

    def _latest(self, connection: Connection, start: Offset) -> Offset:
        """
        Close the batch of `start` and plan the one after it, in one transaction.

        It may run again: a batch that is closed stays closed, and a planned batch has its plan. If
        the plan, or the move of due messages before it, fails, the batch is closed alone.
        """
        now, known = self.clock(), start == self._acknowledged
        try:
            self._move_due(connection, now)
            if known and not self.planner.is_awake(now):
                return start
            with transaction(connection, timeout=self._timeout(known=known)):
                closed = self._closed if known else self._close(connection, start)
                following = self._plan_next(connection, start.stream, closed, now, locked=not known)
        except ConnectionLost:
            self.planner.forget_plan()
            raise
        except DatabaseFailure:
            # a table that cannot be read must not keep the receipts of a finished batch
            self._acknowledge(connection, start)
            raise
        self._note(start, closed)
        if following is None:
            self.planner.pause(now)
            return start
        self._claimed = following.stream
        return following

    def _move_due(self, connection: Connection, now: float) -> None:
        """Move delayed messages that are due, if the options ask for it."""
        for peeker, poller in zip(self.planner.peekers, self.due_pollers, strict=True):
            if poller.poll(connection, now):
                peeker.wake()

    def _plan_next(
        self,
        connection: Connection,
        stream: str | None,
        closed: Acknowledged,
        now: float,
        *,
        locked: bool,
    ) -> Offset | None:
        """
        Plan the next batch, in the transaction that is open; None: there is nothing to do.

        `locked`: this transaction has acknowledged the batch before, so it has the stream's row.
        """
        batch = closed.batch + 1
        if closed.plan is not None:
            return Offset(stream=stream, batch=batch, plan=read_plan(closed.plan, stream, batch))
        plan = self.planner.plan(connection, now, closed.batch)
        if not plan:
            return None
        if not self._receipts:
            return Offset(stream=None, batch=batch, plan=plan)
        if stream is None:  # the first plan creates the stream
            stream = str(uuid.uuid4())
            self._warn_of_orphans(connection)
            streams.create(connection, stream, self.who)
        elif not locked:
            stored = streams.lock_for_plan(connection, stream, batch, self.who)
            if stored is not None:
                return Offset(stream=stream, batch=batch, plan=stored)
        streams.store_plan(connection, stream, batch, plan)
        return Offset(stream=stream, batch=batch, plan=plan)

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
        stream, batch = end.stream, end.batch
        if stream is None:  # a stream that receipts begin counts its own batches, also after none
            return replace(NOTHING, batch=0 if self._receipts else batch)
        claim = self._claimed != stream
        closed = receipts.acknowledge(
            connection, stream, batch, self.who, claim=claim, tasks=end.tasks
        )
        if not closed.is_passed_over:  # its messages wait: no other consumer holds them
            self.planner.learn(closed)
        return closed

    def _note(self, end: Offset, closed: Acknowledged) -> None:
        """Remember, after the commit, what is acknowledged."""
        self._acknowledged, self._closed = end, closed
        self._claimed = end.stream

    def _warn_of_orphans(self, connection: Connection) -> None:
        """Warn of receipts of other streams of these queues: their checkpoint may be gone."""
        for name in self.options.names:
            held = connection.rows("receipts", stream=None, queue_name=name)
            if held:
                log.warning(
                    "%s: %d messages lie in receipts of other streams. Start those queries once. "
                    "If a checkpoint is lost, see docs/operations.md before you run `sqlqueue "
                    "receipts return`: their sink may have the messages already",
                    name,
                    sum(row[4] for row in held),
                )


def name_queues(options: SourceOptions) -> str:
    """Give what the DBA sees of the queues: the first one's table, and how many more there are."""
    more = len(options.addresses) - 1
    return options.address.table + (f" and {more} more" if more else "")
