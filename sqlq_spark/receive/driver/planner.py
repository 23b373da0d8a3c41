"""
What the next batch of a stream receives: look at the queues, choose the pace, cut the ranges.

All state here (where a queue starts, the ramp, how long messages have waited) only saves work. A
new process starts without it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlq_spark.receive.driver import pace
from sqlq_spark.receive.driver.pace import Limits, Ramp
from sqlq_spark.receive.driver.peeker import Peeker

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.offset import BatchPlan
    from sqlq_spark.receive.receipts import Acknowledged

log = logging.getLogger("sqlq_spark")


class Planner:
    """Plans the batches of one stream."""

    def __init__(self, options: SourceOptions, name: str, clock: Callable[[], float]) -> None:
        """
        Start; nothing was seen yet.

        Args:
            options: of the stream.
            name: of its queues, for the log.
            clock: monotonic seconds.
        """
        self.options = options
        self.name = name
        self.ramp = Ramp(options.concurrency)
        self.peekers = [
            Peeker(options, *each, clock)
            for each in zip(options.addresses, options.names, strict=True)
        ]
        self._learned = 0  # the batch that the ramp has counted last
        self._waiting_since: float | None = None
        self._logged_size = False

    def is_awake(self, now: float) -> bool:
        """Whether it is time to look at a queue."""
        return any(peeker.state.is_awake(now) for peeker in self.peekers)

    def freeze(self, connection: Connection) -> None:
        """Take each queue's highest seq as it is now for the end (AvailableNow)."""
        for peeker in self.peekers:
            peeker.freeze(connection)

    def plan(self, connection: Connection, now: float, turn: int) -> BatchPlan:
        """
        Look at the queues and plan a batch, in the transaction that is open.

        Args:
            connection: in a transaction.
            now: monotonic seconds.
            turn: number of the batch before.

        Returns:
            The plan. It is empty if there is nothing to do now.
        """
        for peeker in self.peekers:
            if peeker.state.is_awake(now):
                peeker.look(connection, now)
        asked = pace.plans(
            [peeker.backlog for peeker in self.peekers],
            self._limits,
            self.ramp,
            waited=self._count_wait(now),
            turn=turn,
        )
        plan = tuple(
            peeker.plan(each)
            for peeker, each in zip(self.peekers, asked, strict=True)
            if each is not None
        )
        if plan:
            self._waiting_since = None
            self._log_size(sum(part.tasks for part in plan))
        return plan

    def forget_plan(self) -> None:
        """Expect no outcome of the last plan: Spark may not have got it."""
        for peeker in self.peekers:
            peeker.forget_plan()

    def pause(self, now: float) -> None:
        """Let the queues rest for a while, also those in which too few messages wait."""
        until = now + self.options.peek_delay
        if self._waiting_since is not None:
            until = min(until, max(now, self._waiting_since + self.options.max_trigger_delay))
        for peeker in self.peekers:
            if peeker.state.is_awake(now):
                peeker.rest(until)

    def learn(self, closed: Acknowledged) -> None:
        """Record what a batch has received. A batch that is closed again counts once."""
        if not closed.outcome.tasks or closed.batch == self._learned:
            return
        self._learned = closed.batch
        options = self.options
        self.ramp = self.ramp.after(
            closed.outcome, options.concurrency, least=options.min_concurrency
        )
        for peeker in self.peekers:
            if peeker.name in closed.queues:
                peeker.learn(closed.queues[peeker.name].outcome)
        log.info(
            "%s: batch %d acknowledged: %d messages, %d expired, %d diverted, %d forwarded",
            self.name,
            closed.batch,
            closed.messages,
            closed.expired,
            closed.diverted,
            closed.forwarded,
        )

    @property
    def _limits(self) -> Limits:
        options = self.options
        frozen = self.peekers[0].state.frozen
        return Limits(
            messages=options.max_messages,
            bytes=options.max_bytes,
            min_messages=None if frozen else options.min_messages,
            max_delay=options.max_trigger_delay,
            concurrency=options.concurrency,
        )

    def _count_wait(self, now: float) -> float:
        """Count the seconds since messages were first seen, in any queue."""
        if not any(peeker.found.messages for peeker in self.peekers):
            self._waiting_since = None
            return 0.0
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since

    def _log_size(self, tasks: int) -> None:
        """Log, once in this process, how many tasks a batch may have, and what limits it."""
        if self._logged_size:
            return
        self._logged_size = True
        options = self.options
        if options.max_concurrency or options.cores or tasks < options.concurrency:
            log.info(
                "%s: the first batch has %d tasks of at most %d",
                self.name,
                tasks,
                options.concurrency,
            )
            return
        log.warning(
            "%s: the first batch has %d tasks, as many as the driver has cores, because the cores "
            "of the executors are not known here: on a cluster set maxConcurrency to those",
            self.name,
            tasks,
        )
