"""
The driver's side of a stream: close the last batch, look at the queues, plan the next batch.

Spark calls `latest` with the end of the last batch in its commit log. `latest` acknowledges this
batch and plans the next one. All that must survive a restart is in the offset and in the stream's
row. What the process remembers beside that only saves work: see Memory.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import ceil, inf
from pathlib import Path
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
from sqlq_spark.log import name_batch
from sqlq_spark.options.names import database_name
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
from sqlq_spark.receive.heartbeat import HeartbeatWriter
from sqlq_spark.receive.pace import Backlog, Ramp
from sqlq_spark.receive.peek import Found, PeekState
from sqlq_spark.receive.receipts import Claim, Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.batch import BatchPlan, Task
    from sqlq_spark.receive.peek import Look, Question
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

MOST_CUTS = 1000  # how many places a full batch has where it can be cut into tasks
# One run of AvailableNow receives at most this many messages whose seq is higher than the queue's
# sequence has given. Such messages were copied into the queue, or their writer chose the seq.
MOST_ABOVE = 10_000_000
LOCAL_MASTER = r"(?:\0--master\0|spark\.master=)local(?:\[|\0|$)"
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


# ---------------------------------------------------------------- what a process remembers


@dataclass(frozen=True, kw_only=True)
class Memory:
    """
    What a driver process remembers of its stream between two calls of Spark.

    A call computes the next memory and stores it after the commit. So a transaction that fails
    changes nothing in memory. If a commit succeeds but its answer is lost, the next memory is not
    stored. Then the ramp and the looks do not learn from that batch, but no batch is counted twice.
    """

    claim: Claim
    end: Offset = INITIAL  # the end of the batch that was closed last
    closed: Closed  # what the batch that was closed last has received
    ramp: Ramp
    growth: int = 1  # how many times as large as usual the next batch may be
    looks: Mapping[str, PeekState]  # canonical address of a queue → what is remembered of it
    planned_end: Offset | None = None  # the end of the batch that this process planned last
    # when messages were first seen waiting, in monotonic seconds; None if none wait
    waiting_since: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether this is a run of AvailableNow, which receives what waited at its start."""
        return any(look.is_frozen for look in self.looks.values())

    @property
    def rests_until(self) -> float:
        """When the first of the queues may be looked at again, in monotonic seconds."""
        return min(look.rests_until for look in self.looks.values())

    def close(self, end: Offset, closed: Closed, options: SourceOptions) -> Memory:
        """Remember that the batch of `end` is closed, and learn from what it has received."""
        claim = replace(self.claim, stream=end.stream)
        memory = replace(self, end=end, closed=closed, claim=claim)
        # A batch that was passed over received nothing because Spark's batch was not above the
        # high-water mark. That says nothing about the queues, so nothing is learned from it.
        if not closed.tasks or closed.is_passed_over:
            return memory
        looks = dict(self.looks)
        for outcome in closed.outcomes:
            if outcome.queue in looks:
                looks[outcome.queue] = peek.learn(looks[outcome.queue], outcome.taken)
        ramp = self.ramp.after(tasks=closed.tasks, empty=closed.empty, options=options)
        return replace(memory, looks=looks, ramp=ramp)

    def wait(self, now: float) -> Memory:
        """Remember when messages were first seen waiting."""
        if not any(look.found.messages for look in self.looks.values()):
            return replace(self, waiting_since=None)
        if self.waiting_since is None:
            return replace(self, waiting_since=now)
        return self

    def waited(self, now: float) -> float:
        """Count the seconds since messages were first seen waiting."""
        if self.is_frozen:
            return inf  # AvailableNow waits for no more messages
        return 0.0 if self.waiting_since is None else now - self.waiting_since

    def follow(self, end: Offset) -> Memory:
        """Remember the end of the batch that was planned now."""
        return replace(self, planned_end=end, claim=replace(self.claim, stream=end.stream))

    def follow_stored(self, end: Offset) -> Memory:
        """Remember the end of a batch whose plan was stored before, after an earlier look."""
        looks = {name: peek.forget_batch(look) for name, look in self.looks.items()}
        return replace(self.follow(end), looks=looks)

    def rest(self, now: float, options: SourceOptions) -> Memory:
        """Let the queues rest for a while, including those in which too few messages wait."""
        until = now + options.peek_delay
        if self.waiting_since is not None:
            until = min(until, max(now, self.waiting_since + options.max_trigger_delay))
        looks = {
            name: peek.rest(look, until) if look.is_awake(now) else look
            for name, look in self.looks.items()
        }
        return replace(self, looks=looks)


def plan_batch(memory: Memory, options: SourceOptions, now: float) -> tuple[Memory, BatchPlan]:
    """Plan the next batch by what the last looks found. An empty plan: nothing is to be done."""
    memory = memory.wait(now)
    options = options.grown(memory.growth)
    ramp = replace(memory.ramp, tasks=memory.growth * memory.ramp.tasks)
    backlogs = [
        Backlog(
            memory.looks[name].found.messages,
            memory.looks[name].found.bytes_each,
            options.most_tasks(queue),
        )
        for name, queue in zip(options.names, options.addresses, strict=True)
    ]
    quotas = pace.quotas(
        backlogs, options, ramp, waited=memory.waited(now), turn=memory.closed.batch
    )
    looks = dict(memory.looks)
    plan = []
    for name, quota in zip(options.names, quotas, strict=True):
        if quota is None:
            continue
        look, share, bounds = peek.plan_ranges(looks[name], quota)
        if options.transaction_mode == "none":  # without receipts no one knows what a batch took
            look = peek.spend(look, quota.messages)
        looks[name] = look
        plan.append(
            QueuePlan(
                queue=name,
                messages=quota.messages,
                share=share,
                # The mean is rounded up: SAMPLED times the mean must not be less than the sample.
                bytes=ceil(look.found.bytes_each),
                bounds=bounds,
            )
        )
    if not plan:
        return replace(memory, growth=1), ()
    growth = pace.next_growth(options, planned=sum(queue_plan.messages for queue_plan in plan))
    memory = replace(memory, looks=looks, waiting_since=None, growth=growth)
    return memory, deal_to_partitions(plan, options.concurrency)


# ---------------------------------------------------------------- the driver


class StreamDriver:
    """One stream on the driver. It lives in Spark's long-lived driver worker."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Callable[[], float],
        at_start: Callable[[Connection, SourceOptions], None],
        *,
        jitter: float = 0.0,
        heartbeat: float | None = None,
    ) -> None:
        """
        Create the driver of a stream, without a connection.

        Args:
            options: the options of the read.
            clock: returns monotonic seconds.
            at_start: checks the queues once, before the first look.
            jitter: the share of `peekDelay` by which each of its pauses is longer. Streams that
                started together then do not look at their queues together.
            heartbeat: the time between two heartbeats, in seconds. If it is None, there are none.
        """
        self.options = replace(options, peek_delay=options.peek_delay * (1 + jitter))
        self.clock = clock
        self.queues = dict(zip(options.names, options.addresses, strict=True))
        self.memory = Memory(
            claim=Claim(options=options, driver=str(uuid.uuid4())),
            closed=Closed(0),
            ramp=Ramp(options.concurrency),
            looks=dict.fromkeys(options.names, PeekState()),
        )
        self.due_pollers = {
            name: DueMessagePoller(queue, options) for name, queue in self.queues.items()
        }
        self._has_receipts = options.transaction_mode == "receiveOnly"
        session = StateSession if self._has_receipts else Session
        others = len(options.addresses) - 1
        queues = options.address.table + (f" and {others} more" if others else "")
        self._session = session(options, f"driver {queues}")
        self._heartbeat: HeartbeatWriter | None = None
        if heartbeat is not None and self._has_receipts:
            self._heartbeat = HeartbeatWriter(self.memory.claim, heartbeat)
        self._at_start = at_start
        self._given = options  # without the jitter, for what at_start says of peekDelay
        self._is_purged = False
        self._is_checked = False
        self._is_over = False  # whether a run of AvailableNow ended before its queues were empty
        self._has_warned_of_cores = False
        self._warned_of_unread = -inf  # time of the last warning of a batch of which no task ran

    # ------------------------------------------------------------ what Spark calls

    def freeze(self) -> None:
        """End this run of AvailableNow at the highest seq that each queue has now."""
        self._session.run_with_retries(self._freeze)

    def latest(self, start: Offset) -> Offset:
        """
        Acknowledge `start`, plan the batch after it, and return that batch's end.

        Returns `start` if there is nothing to do now.
        """
        return self._session.run_with_retries(partial(self._latest, start=start))

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge the batch that ends at `end`. Spark has it in its commit log."""
        self._session.run_with_retries(partial(self._acknowledge, end=end))

    def tasks(self, end: Offset) -> list[Task]:
        """
        Make the tasks of a batch, from its offset alone.

        The options may no longer name the queues of the batch. What was received from these queues
        must still be handed out.

        At a restart Spark may run the tasks of an open batch before it asks for anything else. So
        this method checks the version of the state tables too.
        """
        if self._has_receipts:
            # a StateSession checks when it connects
            self._session.run_with_retries(partial(self._beat, stream=end.stream))
        planned = {queue_plan.queue for queue_plan in end.plan}
        if planned and planned.isdisjoint(self.queues):
            self._session.run_with_retries(partial(self._check_owner, end=end))
        return tasks_of(end, self.options)

    def report(self) -> dict[str, Any]:
        """Report what the progress shows as `sources[].latestOffset`, in messages and seconds."""
        now = datetime.now(UTC)
        memory = self.memory
        closed = memory.closed
        outcomes = {outcome.queue: outcome for outcome in closed.outcomes}
        naming = self.options.naming
        queues = {
            name: peek.report_queue(name, look.found, now)
            | {"name": naming.plain_name(self.queues[name])}
            for name, look in memory.looks.items()
            if look.found.messages or name in outcomes
        }
        ages = [queue["oldestWaited"] for queue in queues.values()]
        report: dict[str, Any] = {
            "queue": memory.claim.queue,
            "database": database_name(self.options.url),
            "backlog": sum(queue["backlog"] for queue in queues.values()),
            "backlogIsEstimate": any(queue["backlogIsEstimate"] for queue in queues.values()),
            "oldestWaited": max((age for age in ages if age is not None), default=None),
            "tasks": memory.ramp.tasks,
            "ramp": {"successes": memory.ramp.successes, "failures": memory.ramp.failures},
        }
        if memory.end.stream is not None:
            report["lastBatch"] = closed.report()
        if len(memory.looks) == 1:
            report["name"] = naming.plain_name(self.options.address)
        else:
            for name in queues.keys() & outcomes.keys():
                last_batch = receipts.report_batch(closed.batch, [outcomes[name]])
                queues[name]["lastBatch"] = last_batch
            report["queues"] = [*queues.values()]
        return report

    def rest(self) -> float:
        """Return how many seconds must pass before the next look."""
        return max(0.0, self.memory.rests_until - self.clock())

    def close(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._session.close()

    def _beat(self, connection: Connection, stream: str | None) -> None:
        """Write a heartbeat, if one is due."""
        if self._heartbeat is not None:
            self._heartbeat.beat(connection, stream)

    # ------------------------------------------------------------ the start

    def _prepare(self, connection: Connection) -> None:
        """Once in this process: purge if the options ask for it, then check the queues."""
        options = self.options
        if options.purge_on_startup and not self._is_purged:
            purged = purge(connection, options.addresses)
            self._is_purged = True
            queues = ", ".join(map(connection.printed, options.addresses))
            log.warning("%s: %d messages purged (purgeOnStartup=true)", queues, purged)
        if not self._is_checked:
            self._at_start(connection, self._given)
            self._is_checked = True

    def _freeze(self, connection: Connection) -> None:
        self._prepare(connection)
        for poller in self.due_pollers.values():
            poller.finish(connection)
        looks = {}
        with transaction(connection):
            use(connection, self.queues.values(), READ)
            for name, queue in self.queues.items():
                ends = connection.row("top", SeqEnds, tables={"queue": queue})
                last = None if ends is None else ends.last
                sequence = find_above(connection, queue, last)
                looks[name] = peek.freeze(self.memory.looks[name], last, sequence)
        self.memory = replace(self.memory, looks=looks)

    def _check_owner(self, connection: Connection, end: Offset) -> None:
        """Check that a batch is of this stream, though the options name none of its queues."""
        self._prepare(connection)
        claim = self.memory.claim
        if end.stream is None:
            queues = ", ".join(queue_plan.queue for queue_plan in end.plan)
            raise StreamOfOtherQueue(found=queues, asked=claim.queue)
        with transaction(connection):
            queue = connection.value("stream_queue", stream=end.stream)
        if queue is None:
            raise receipts.stream_not_found(connection, end.stream)
        claim.check(queue)

    # ------------------------------------------------------------ one call of Spark

    def _latest(self, connection: Connection, start: Offset) -> Offset:
        """
        Close the batch that ends at `start`, look, and plan the next batch, in one transaction.

        A call may be repeated: a closed batch stays closed, and a planned batch keeps its plan. If
        due messages cannot be moved, or planning fails, the batch is still closed, in another
        transaction.

        If no task of the closed batch ran, its messages still wait, and the next batch would ask
        for the same messages. So it is planned only after the queues have rested. There is no such
        pause if another process planned the closed batch: Spark 4.0 and 4.1 ask for a batch only
        once in each run of AvailableNow, and would get none.
        """
        self._prepare(connection)
        self._beat(connection, start.stream)
        if self._is_over:
            return start
        now = self.clock()
        is_known = start == self.memory.end
        try:
            self._move_due(connection, now)
            if is_known and now < self.memory.rests_until:
                return start
            # Closing waits for running tasks, whose statements have the same timeout. So closing
            # may take twice as long as one statement.
            timeout = connection.timeout * (1 if is_known else 2)
            with transaction(connection, timeout=timeout):
                memory = self.memory if is_known else self._close_last(connection, start)
                has_unread = not is_known and memory.closed.unread_tasks > 0
                is_unread = has_unread and start == memory.planned_end
                if memory.closed.stored_plan is None:
                    memory = self._look(connection, memory, now)
                following = None
                if not is_unread:
                    memory, following = self._plan_next(connection, memory, now, is_known=is_known)
        except ConnectionLost:
            raise
        except DatabaseFailure:
            # if a queue's table cannot be read, the receipts of a finished batch must still go
            self._acknowledge(connection, start)
            raise
        self.memory = memory.rest(now, self.options) if following is None else memory
        if is_unread:
            self._report_unread(memory.closed, now)
        elif not is_known:
            self._report_closed(memory.closed)
        return start if following is None else following

    def _acknowledge(self, connection: Connection, end: Offset) -> None:
        self._prepare(connection)
        if end == self.memory.end:
            return
        with transaction(connection, timeout=2 * connection.timeout):
            memory = self._close_last(connection, end)
        self.memory = memory
        self._report_closed(memory.closed)

    def _move_due(self, connection: Connection, now: float) -> None:
        """Move due messages, in transactions of their own. A queue that gets some stops resting."""
        for name, poller in self.due_pollers.items():
            if poller.poll(connection, now):
                awake = {name: peek.wake(self.memory.looks[name])}
                self.memory = replace(self.memory, looks={**self.memory.looks, **awake})

    # ------------------------------------------------------------ close the last batch

    def _close_last(self, connection: Connection, end: Offset) -> Memory:
        """Close the batch of `end`, in the transaction that is open."""
        closed = receipts.acknowledge(connection, end, self.memory.claim)
        return self.memory.close(end, closed, self.options)

    def _report_closed(self, closed: Closed) -> None:
        """Log what a closed batch has received, or that none of its tasks ran."""
        spark_batch = receipts.name_in_spark(closed.outcomes)
        name_batch(spark_batch.name, spark_batch.number)
        queue = self.memory.claim.queue
        if closed.unread_tasks:
            log.warning(receipts.MISSING, queue, closed.batch, closed.unread_tasks, 0)
        if closed.tasks and not closed.is_passed_over:
            log.info(
                "%s: batch %d acknowledged: %d messages, %d expired, %d diverted, %d forwarded",
                queue,
                closed.batch,
                *receipts.count_messages(closed.outcomes).values(),
            )
        name_batch(spark_batch.name)  # what follows is about another batch

    def _report_unread(self, closed: Closed, now: float) -> None:
        """
        Warn of a batch of which no task ran.

        A run of AvailableNow is ended too: its next batch would have the same messages, and so on.

        Raises:
            ReceiptsMissing: in a run of AvailableNow, if failOnMissingReceipts is not given. If it
                is true, the error was raised when the batch was closed.
        """
        queue = self.memory.claim.queue
        tasks = closed.unread_tasks
        if not self.memory.is_frozen:
            if now >= self._warned_of_unread + WARN_AGAIN:
                self._warned_of_unread = now
                log.warning(UNREAD, queue, closed.batch, tasks)
            return
        self._is_over = True
        if self.options.fail_on_missing_receipts is None:
            raise ReceiptsMissing(
                stream=self.memory.claim.stream,
                batch=closed.batch,
                tasks=tasks,
                found=0,
                next_start=receipts.IS_CLOSED,
            )
        backlog = self.report()
        at_least = "at least " if backlog["backlogIsEstimate"] else ""
        log.warning(UNREAD_AT_END, queue, closed.batch, tasks, at_least, backlog["backlog"])

    # ------------------------------------------------------------ look

    def _look(self, connection: Connection, memory: Memory, now: float) -> Memory:
        """
        See what waits in the queues that do not rest, and where a batch can be cut into tasks.

        A look only reads. It locks no row and waits for none. One statement asks all queues in
        which the last look found nothing.
        """
        awake = {name: look for name, look in memory.looks.items() if look.is_awake(now)}
        use(connection, [self.queues[name] for name in awake], READ)
        idle = [name for name, look in awake.items() if not look.found.messages]
        tables = {f"queue{place}": self.queues[name] for place, name in enumerate(idle)}
        places = connection.values("waiting", tables=tables) if idle else []
        empty = {*idle} - {idle[place] for place in places}
        looks = dict(memory.looks)
        options = self.options.grown(memory.growth)
        for name, look in awake.items():
            queue = None if name in empty else self.queues[name]
            looks[name] = self._look_at(connection, queue, peek.look(look, now, options))
        return replace(memory, looks=looks)

    def _look_at(self, connection: Connection, queue: QueueAddress | None, look: Look) -> PeekState:
        """
        Answer the questions of a look at a queue.

        `queue` is None if the queue is known to be empty.
        """
        try:
            question = next(look)
            while True:
                started = self.clock()
                found = Found() if queue is None else find(connection, queue, question)
                question = look.send((found, self.clock() - started))
        except StopIteration as end:
            result: PeekState = end.value
            return result

    # ------------------------------------------------------------ plan

    def _plan_next(
        self, connection: Connection, memory: Memory, now: float, *, is_known: bool
    ) -> tuple[Memory, Offset | None]:
        """
        Plan the batch after the closed one, in the transaction that is open.

        If `is_known`, an earlier transaction has closed that batch, and the open transaction has
        not locked the stream's row yet.

        Returns the memory, and the end of the new batch, or None if there is nothing to do.
        """
        stream = memory.end.stream
        batch = memory.closed.batch + 1
        stored_plan = memory.closed.stored_plan
        if stored_plan is None:
            memory, plan = plan_batch(memory, self.options, now)
            if not plan:
                return memory, None
            self._warn_of_cores(sum(queue_plan.tasks for queue_plan in plan))
            if not self._has_receipts:
                end = Offset(stream=None, batch=batch, plan=plan)
                return memory.follow(end), end
            if stream is None:
                end = self._begin_stream(connection, plan)
                return memory.follow(end), end
            if is_known:
                claim = memory.claim
                stored_plan = receipts.lock_for_plan(connection, stream, batch, claim)
        if stored_plan is not None:
            plan = read_plan(stored_plan, stream, batch)
            end = Offset(stream=stream, batch=batch, plan=plan)
            return memory.follow_stored(end), end
        connection.run("store_plan", stream=stream, batch=batch, stored_plan=write_plan(plan))
        end = Offset(stream=stream, batch=batch, plan=plan)
        return memory.follow(end), end

    def _begin_stream(self, connection: Connection, plan: BatchPlan) -> Offset:
        """Create the stream with the plan of its first batch. A stream numbers its own batches."""
        stream = str(uuid.uuid4())
        batch = 1
        claim = self.memory.claim
        self._warn_of_orphans(connection)
        connection.run("new_stream", stream=stream, queue_name=claim.queue, driver=claim.driver)
        connection.run("store_plan", stream=stream, batch=batch, stored_plan=write_plan(plan))
        return Offset(stream=stream, batch=batch, plan=plan)

    def _warn_of_cores(self, tasks: int) -> None:
        """Warn once in this process if perhaps only the driver's cores limit a batch's tasks."""
        options = self.options
        most = options.max_concurrency or options.cores
        cores = os.cpu_count()
        if self._has_warned_of_cores or most or tasks < options.concurrency or tasks != cores:
            return
        self._has_warned_of_cores = True
        if not is_below_local_spark():
            log.warning(
                "%s: a batch has %d tasks, because the driver has %d cores and those of the "
                "executors are not known here. Call sqlq_spark.register(spark), or set "
                "clusterCores",
                self.memory.claim.queue,
                tasks,
                cores,
            )

    def _warn_of_orphans(self, connection: Connection) -> None:
        """Warn of receipts that other streams have for these queues. A checkpoint may be lost."""
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


# ---------------------------------------------------------------- what a driver asks the machine


def is_below_local_spark() -> bool:
    """
    Whether this process was started by a Spark whose master is `local`, as far as is known.

    A Python source cannot read Spark's settings. So the command line of the parent process is read,
    which on Linux names the master.
    """
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace")
    except OSError:
        return False
    return re.search(LOCAL_MASTER, words) is not None


# ---------------------------------------------------------------- what a driver asks the database


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
        is_full=waiting.messages >= question.messages,
    )


def find_above(
    connection: Connection, queue: QueueAddress, last: int | None
) -> AboveSequence | None:
    """
    Find the messages with a seq higher than the last one that the queue's sequence has given.

    `last` is the highest seq of the queue, as the caller has read it. Only messages up to `last`
    are looked for: what is sent later gets its seq from the sequence. If `last` is None, the queue
    is empty, and None is returned. No warning is logged here, because the checks of a starting
    stream warn of such messages.
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
    Delete every message of some queues, in one transaction. Wait for messages that others hold.

    Returns how many messages were deleted. If there is an audit trail, each queue that had messages
    gets an entry in it.
    """
    total = 0
    with transaction(connection):
        is_recorded = has_trail(connection)
        use(connection, queues, DELETE)
        for queue in queues:
            check_types(connection, queue)
            messages = int(connection.value("purge", tables={"queue": queue}))
            if is_recorded and messages:
                record_action(connection, "purge", connection.printed(queue), messages)
            total += messages
    return total
