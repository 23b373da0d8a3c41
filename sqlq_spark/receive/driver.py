"""
The driver's side of a stream: acknowledge, look at the queues, plan a batch, and make its tasks.

Spark calls `latest` with the end of the last batch in its commit log: that is the acknowledgement.
All that must last is in the offset and in the stream's row. What is remembered here (where a queue
starts, the ramp, how long messages have waited) only saves work. A new process starts without it.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import check_types, transaction
from sqlq_spark.database.looks import AboveSequence, Sample, SeqEnds, Waiting
from sqlq_spark.database.schema import has_trail, record_action
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.state_rows import HeldReceipt
from sqlq_spark.database.trust import DELETE, READ, use
from sqlq_spark.errors import (
    ConnectionLost,
    DatabaseFailure,
    ReceiptsMissing,
    StreamOfOtherQueue,
)
from sqlq_spark.receive import pace, peek, receipts
from sqlq_spark.receive.batch import (
    INITIAL,
    Offset,
    QueuePlan,
    deal_to_partitions,
    read_plan,
    tasks_of,
    write_plan,
)
from sqlq_spark.receive.due import DueMessagePoller
from sqlq_spark.receive.pace import Backlog, Ramp
from sqlq_spark.receive.peek import Found, PeekState
from sqlq_spark.receive.receipts import Claim, Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.batch import BatchPlan, Task
    from sqlq_spark.receive.peek import Question
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

MOST_CUTS = 1000  # places of a full batch where it can be cut
MOST_ABOVE = 10_000_000  # messages above the sequence that one run of AvailableNow receives
WARN_AGAIN = 60.0  # seconds between two warnings of batches of which no task ran
UNREAD = (
    "%s: no task of batch %d ran, of %d that were planned. foreachBatch returned before it read "
    "its DataFrame, a join had an empty side, or the sink skipped a batch that it has. The "
    "messages are in the queue. The next batch comes after peekDelay. If no sink does this, the "
    "database lost commits in a failover, and messages that are in the sink will be received again"
)
UNREAD_AT_END = (
    "%s: no task of batch %d ran, of %d that were planned, so this run ends. %s%d messages are "
    "left in the queue"
)


class StreamDriver:
    """One stream on the driver; lives in Spark's long-lived driver worker."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float],
        at_start: Callable[[Connection, SourceOptions], None],
    ) -> None:
        """
        Start; nothing is connected yet.

        `clock` gives monotonic seconds. `at_start` checks the queues, once, before the first look.
        """
        self.options = options
        self.clock = clock
        self.claim = Claim(options=options, driver=str(uuid.uuid4()))
        self.queues = dict(zip(options.names, options.addresses, strict=True))
        self.looks = dict.fromkeys(options.names, PeekState())
        self.ramp = Ramp(options.concurrency)
        self.due_pollers = {name: DueMessagePoller(at, options) for name, at in self.queues.items()}
        self._receipts = options.transaction_mode == "receiveOnly"
        session = StateSession if self._receipts else Session
        more = len(options.addresses) - 1
        named = options.address.table + (f" and {more} more" if more else "")
        self._session = session(options, f"driver {named}")
        self._at_start = at_start
        self._purged = self._checked = self._warned = False
        self._is_over = False  # whether a run of AvailableNow ended before its queues were empty
        self._planned: Offset | None = None  # the batch that this process has planned last
        self._warned_of_unread = -inf  # when it was warned of a batch of which no task ran
        self._acknowledged = INITIAL
        self._closed = Closed(batch=0)  # what the acknowledged batch has received
        self._learned = 0  # the batch that the ramp has counted last
        self._waiting_since: float | None = None

    # ------------------------------------------------------------ what Spark calls

    def freeze(self) -> None:
        """Take the highest seq as it is now for the end of this run (AvailableNow)."""
        self._session.run_with_retries(self._freeze)

    def latest(self, start: Offset) -> Offset:
        """Acknowledge `start` and plan the batch after it; `start`: there is nothing to do now."""
        return self._session.run_with_retries(partial(self._latest, start=start))

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge `end`, whose batch Spark has in its commit log."""
        self._session.run_with_retries(partial(self._acknowledge, end=end))

    def tasks(self, end: Offset) -> list[Task]:
        """
        Make the tasks of a batch, from its offset alone.

        The options need not name its queues any more: what was received of them must still be
        handed out.
        """
        planned = {part.queue for part in end.plan}
        if planned and planned.isdisjoint(self.queues):
            self._session.run_with_retries(partial(self._check_owner, end=end))
        return tasks_of(end, self.options)

    def report(self) -> dict[str, Any]:
        """Report what the progress shows as `sources[].latestOffset`, in messages and seconds."""
        now, most, closed = datetime.now(UTC), self.options.max_messages, self._closed
        outcomes = {outcome.queue: outcome for outcome in closed.outcomes}
        queues = {
            name: peek.report_queue(name, look.found, most, now)
            for name, look in self.looks.items()
            if look.found.messages or name in outcomes
        }
        waiting = queues.values()
        ages = [each["oldestWaited"] for each in waiting if each["oldestWaited"] is not None]
        report: dict[str, Any] = {
            "queue": self.claim.queue,
            "backlog": sum(each["backlog"] for each in waiting),
            "backlogIsEstimate": any(each["backlogIsEstimate"] for each in waiting),
            "oldestWaited": max(ages, default=None),
            "tasks": self.ramp.tasks,
            "ramp": {"successes": self.ramp.successes, "failures": self.ramp.failures},
        }
        if self._acknowledged.stream is not None:
            report["lastBatch"] = closed.report()
        if len(self.looks) > 1:
            for name in queues.keys() & outcomes.keys():
                last = receipts.report_batch(closed.batch, [outcomes[name]])
                queues[name]["lastBatch"] = last
            report["queues"] = [*waiting]
        return report

    def rest(self) -> float:
        """Return in how many seconds the next look may be."""
        return max(0.0, min(each.rests_until for each in self.looks.values()) - self.clock())

    def close(self) -> None:
        self._session.close()

    # ------------------------------------------------------------ the start

    def _prepare(self, connection: Connection) -> None:
        """At the first use in this process, purge if the options ask for it, and check."""
        options = self.options
        if options.purge_on_startup and not self._purged:
            gone = purge(connection, options.addresses)
            self._purged = True
            queues = ", ".join(map(connection.printed, options.addresses))
            log.warning("%s: %d messages purged (purgeOnStartup=true)", queues, gone)
        if not self._checked:
            self._at_start(connection, options)
            self._checked = True

    def _freeze(self, connection: Connection) -> None:
        self._prepare(connection)
        for poller in self.due_pollers.values():
            poller.finish(connection)
        with transaction(connection):
            use(connection, self.queues.values(), READ)
            for name, queue in self.queues.items():
                ends = connection.row("top", SeqEnds, tables={"queue": queue})
                last = None if ends is None else ends.last
                sequence = find_above(connection, queue, last)
                self.looks[name] = peek.freeze(self.looks[name], last, sequence)

    def _check_owner(self, connection: Connection, end: Offset) -> None:
        """Make sure that a batch of other queues is of our stream, which read them before."""
        self._prepare(connection)
        if end.stream is None:
            found = ", ".join(part.queue for part in end.plan)
            raise StreamOfOtherQueue(found=found, asked=self.claim.queue)
        with transaction(connection):
            queue = connection.value("stream_queue", stream=end.stream)
        if queue is None:
            raise receipts.stream_not_found(connection, end.stream)
        self.claim.check(queue)

    # ------------------------------------------------------------ acknowledge

    def _latest(self, connection: Connection, start: Offset) -> Offset:
        """
        Close the batch of `start` and plan the one after it, in one transaction.

        It may run again: a batch that is closed stays closed, and a planned batch has its plan. If
        the plan, or the move of due messages before it, fails, the batch is closed alone.

        After a batch of which no task ran, none is planned at once: without a pause the same batch
        would come again and again. A batch that another process planned is followed at once,
        because Spark 4.0 and 4.1 ask only once in each run of AvailableNow.
        """
        self._prepare(connection)
        if self._is_over:
            return start
        now, known = self.clock(), start == self._acknowledged
        try:
            self._move_due(connection, now)
            if known and not any(look.is_awake(now) for look in self.looks.values()):
                return start
            # to close a batch waits for tasks, which have as long for each statement
            timeout = connection.timeout * (1 if known else 2)
            with transaction(connection, timeout=timeout):
                closed = self._closed
                if not known:
                    closed = receipts.acknowledge(connection, start, self.claim)
                    self._learn(closed)
                if closed.stored_plan is None:
                    self._look(connection, now)
                is_unread = closed.unread_tasks > 0 and start == self._planned and not known
                following = None if is_unread else self._plan_next(connection, start, closed, now)
        except ConnectionLost:
            # Spark may not have got the last plan: expect no outcome of it
            self.looks = {name: peek.forget_batch(look) for name, look in self.looks.items()}
            raise
        except DatabaseFailure:
            # a table that cannot be read must not keep the receipts of a finished batch
            self._acknowledge(connection, start)
            raise
        self._note(start, closed)
        if is_unread:
            self._report_unread(closed, now)
        elif not known:
            self._warn_of_unread(closed)
        if following is None:
            self._pause(now)
            return start
        self.claim = replace(self.claim, stream=following.stream)
        self._planned = following
        return following

    def _report_unread(self, closed: Closed, now: float) -> None:
        """
        Warn of a batch of which no task ran; end a run of AvailableNow, which would have no end.

        Raises:
            ReceiptsMissing: in a run of AvailableNow, unless failOnMissingReceipts is set.
        """
        queue, tasks = self.claim.queue, closed.unread_tasks
        if not self._is_frozen:
            if now >= self._warned_of_unread + WARN_AGAIN:
                self._warned_of_unread = now
                log.warning(UNREAD, queue, closed.batch, tasks)
            return
        self._is_over = True
        if self.options.fail_on_missing_receipts is None:
            raise ReceiptsMissing(
                stream=self.claim.stream,
                batch=closed.batch,
                tasks=tasks,
                found=0,
                next_start=receipts.IS_CLOSED,
            )
        backlog = self.report()
        at_least = "at least " if backlog["backlogIsEstimate"] else ""
        log.warning(UNREAD_AT_END, queue, closed.batch, tasks, at_least, backlog["backlog"])

    def _warn_of_unread(self, closed: Closed) -> None:
        """Warn of a batch of which no task ran, if nothing else reports it."""
        if closed.unread_tasks:
            log.warning(receipts.MISSING, self.claim.queue, closed.batch, closed.unread_tasks, 0)

    @property
    def _is_frozen(self) -> bool:
        """Whether this is a run of AvailableNow, which receives what waited at its start."""
        return any(look.is_frozen for look in self.looks.values())

    def _move_due(self, connection: Connection, now: float) -> None:
        for name, poller in self.due_pollers.items():
            if poller.poll(connection, now):
                self.looks[name] = peek.wake(self.looks[name])

    def _acknowledge(self, connection: Connection, end: Offset) -> None:
        self._prepare(connection)
        if end == self._acknowledged:
            return
        with transaction(connection, timeout=2 * connection.timeout):
            closed = receipts.acknowledge(connection, end, self.claim)
            self._learn(closed)
        self._note(end, closed)
        self._warn_of_unread(closed)

    def _learn(self, closed: Closed) -> None:
        """Record what a batch has received. A batch that is closed again counts once."""
        # the messages of one that was passed over wait: no other consumer holds them
        if not closed.tasks or closed.batch == self._learned or closed.is_passed_over:
            return
        self._learned = closed.batch
        self.ramp = self.ramp.after(tasks=closed.tasks, empty=closed.empty, options=self.options)
        for outcome in closed.outcomes:
            if outcome.queue in self.looks:
                look = self.looks[outcome.queue]
                self.looks[outcome.queue] = peek.learn(look, outcome.taken)
        log.info(
            "%s: batch %d acknowledged: %d messages, %d expired, %d diverted, %d forwarded",
            self.claim.queue,
            closed.batch,
            *receipts.count_messages(closed.outcomes).values(),
        )

    def _note(self, end: Offset, closed: Closed) -> None:
        """Remember, after the commit, what is acknowledged."""
        self._acknowledged, self._closed = end, closed
        self.claim = replace(self.claim, stream=end.stream)

    # ------------------------------------------------------------ plan

    def _look(self, connection: Connection, now: float) -> None:
        """
        See what waits in the queues that do not rest, and where to cut it.

        These are plain reads that lock and wait for no row. One statement asks for all queues that
        had nothing at the last look.
        """
        options = self.options
        awake = {name: look for name, look in self.looks.items() if look.is_awake(now)}
        use(connection, [self.queues[name] for name in awake], READ)
        idle = [name for name, look in awake.items() if not look.found.messages]
        tables = {f"queue{at}": self.queues[name] for at, name in enumerate(idle)}
        waiting = connection.values("waiting", tables=tables) if idle else []
        empty = {*idle} - {idle[place] for place in waiting}
        for name, look in awake.items():
            queue = None if name in empty else self.queues[name]
            self.looks[name] = self._look_at(connection, queue, look, now)

    def _look_at(
        self, connection: Connection, queue: QueueAddress | None, state: PeekState, now: float
    ) -> PeekState:
        """Answer the questions of a look at a queue; None: the queue is known to be empty."""
        look = peek.look(state, now, self.options)
        try:
            question = next(look)
            while True:
                started = self.clock()
                found = Found() if queue is None else find(connection, queue, question)
                question = look.send((found, self.clock() - started))
        except StopIteration as end:
            result: PeekState = end.value
            return result

    def _plan_next(
        self, connection: Connection, start: Offset, closed: Closed, now: float
    ) -> Offset | None:
        """Plan the next batch, in the transaction that is open; None: there is nothing to do."""
        stream, batch, stored = start.stream, closed.batch + 1, closed.stored_plan
        if stored is None:
            plan = self._plan(now, closed.batch)
            if not plan:
                return None
            if not self._receipts:
                return Offset(stream=None, batch=batch, plan=plan)
            if stream is None:  # the first plan creates the stream, which counts its own batches
                stream, batch = str(uuid.uuid4()), 1
                self._warn_of_orphans(connection)
                connection.run(
                    "new_stream",
                    stream=stream,
                    queue_name=self.claim.queue,
                    driver=self.claim.driver,
                )
            elif start == self._acknowledged:  # else this transaction has locked its stream
                stored = receipts.lock_for_plan(connection, stream, batch, self.claim)
        if stored is None:
            connection.run("store_plan", stream=stream, batch=batch, plan=write_plan(plan))
        else:
            plan = read_plan(stored, stream, batch)
        return Offset(stream=stream, batch=batch, plan=plan)

    def _plan(self, now: float, turn: int) -> BatchPlan:
        """Plan a batch by what the last looks found; `turn` is the batch before."""
        options = self.options
        backlogs = [
            Backlog(look.found.messages, look.found.bytes_each, options.most_tasks(queue))
            for look, queue in zip(self.looks.values(), self.queues.values(), strict=True)
        ]
        waited = self._count_wait(now)
        asked = pace.quotas(backlogs, options, self.ramp, waited=waited, turn=turn)
        plan = []
        for (name, look), part in zip(self.looks.items(), asked, strict=True):
            if part is not None:
                planned, share, bounds = peek.plan_ranges(look, part)
                # without receipts no outcome is learnt
                spent = 0 if self._receipts else part.messages
                self.looks[name] = peek.spend(planned, spent)
                each = ceil(look.found.bytes_each)  # the sum of the sample is at most 50 of them
                plan.append(
                    QueuePlan(
                        queue=name, messages=part.messages, share=share, bytes=each, bounds=bounds
                    )
                )
        if plan:
            self._waiting_since = None
            self._warn_of_cores(sum(part.tasks for part in plan))
        return deal_to_partitions(plan, options.concurrency)

    def _count_wait(self, now: float) -> float:
        if self._is_frozen:
            return inf  # AvailableNow waits for no more messages
        if not any(look.found.messages for look in self.looks.values()):
            self._waiting_since = None
            return 0.0
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since

    def _pause(self, now: float) -> None:
        """Let the queues rest for a while, also those in which too few messages wait."""
        until = now + self.options.peek_delay
        if self._waiting_since is not None:
            until = min(until, max(now, self._waiting_since + self.options.max_trigger_delay))
        for name, look in self.looks.items():
            if look.is_awake(now):
                self.looks[name] = peek.rest(look, until)

    def _warn_of_cores(self, tasks: int) -> None:
        """Warn, once in this process, of a batch that only the driver's cores may limit."""
        options = self.options
        most = options.max_concurrency or options.cores
        if self._warned or most or tasks < options.concurrency:
            return
        self._warned = True
        log.warning(
            "%s: a batch has %d tasks, as many as the driver has cores, because the cores of the "
            "executors are not known here: on a cluster set maxConcurrency to those",
            self.claim.queue,
            tasks,
        )

    def _warn_of_orphans(self, connection: Connection) -> None:
        """Warn of receipts of other streams of these queues: their checkpoint may be gone."""
        for name in self.queues:
            held = connection.rows("receipts", HeldReceipt, stream=None, queue_name=name)
            if held:
                log.warning(
                    "%s: %d messages lie in receipts of other streams. Start those queries once. "
                    "If a checkpoint is lost, see docs/operations.md before you run `sqlqueue "
                    "receipts return`: their sink may have the messages already",
                    name,
                    sum(receipt.messages for receipt in held),
                )


def find(connection: Connection, queue: QueueAddress, question: Question) -> Found:
    """Count what waits in a range of a queue, and find where to cut it."""
    tables = {"queue": queue}
    grain = max(1, question.messages // MOST_CUTS)
    waiting = connection.row(
        "peek",
        Waiting,
        tables=tables,
        first=question.first,
        last=question.last,
        messages=question.messages,
        grain=grain,
    )
    if waiting is None or not waiting.messages or not waiting.cuts or waiting.last is None:
        return Found()
    lowest = waiting.cuts[0]
    sample = connection.row("sample", Sample, tables=tables, first=lowest)
    sample = sample or Sample(bytes=None, sent=None, span=None)
    return Found(
        waiting.messages,
        waiting.cuts,
        grain,
        waiting.last,
        bytes_each=max(1.0, sample.bytes or 1024.0),
        sent=sample.sent,
        span=sample.span or 0,
    )


def find_above(
    connection: Connection, queue: QueueAddress, last: int | None
) -> AboveSequence | None:
    """
    Find the messages above what the sequence of a queue has given; None: the queue is empty.

    `last` is the highest seq. It was read before: what is sent meanwhile has one that was given.
    The checks of a starting stream have warned of such messages.
    """
    if last is None:
        return None
    return connection.row(
        "above_sequence",
        AboveSequence,
        tables={"queue": queue},
        table_name=connection.names.quote_address(queue),
        last=last,
        messages=MOST_ABOVE,
    )


def purge(connection: Connection, queues: Sequence[QueueAddress]) -> int:
    """
    Delete every message of some queues, in one transaction; waits for those that others hold.

    Returns how many. Each queue gets an entry in the audit trail, if there is one.
    """
    with transaction(connection):
        recorded, total = has_trail(connection), 0
        use(connection, queues, DELETE)
        for each in queues:
            check_types(connection, each)
            gone = int(connection.value("purge", tables={"queue": each}))
            if recorded and gone:
                record_action(connection, "purge", connection.printed(each), gone)
            total += gone
        return total
