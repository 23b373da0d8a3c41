"""
Receipts of tasks, and the row of their stream. Everything runs in the caller's transaction.

A receipt is a row that holds what one task has received. A large payload is in pages, which are
rows of another table. The task writes the receipt in the transaction that deletes the messages. If
Spark runs the task again, the later attempt hands out the receipt. The driver deletes the receipt
when it acknowledges the batch. An operator may return or drop it instead: see admin/receipts.py.

A batch is open while its number is above `acked_batch` of its stream. A task of a batch that is not
open is stale. An acknowledgement also stores the number that Spark gave the batch. No stream of
Spark's query receives for a batch of this or a lower number again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.options.fields import LARGEST_MESSAGE
from sqlq_spark.receive.batch import CEILING, STEP
from sqlq_spark.wire.dialects import split_canonical
from sqlq_spark.wire.payload import RECEIPT_KEY, Expected, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import QUEUE_ROW, SparkBatch, weigh, without_odd_expiries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.batch import Offset, ReceiptKey, Task, TaskResult

log = logging.getLogger("sqlq_spark")

ROW_BYTES = 64  # bytes of a row in a payload, apart from headers and body
UTF8_GROWTH = 3  # UTF-8 may take up to three times the bytes of UTF-16
# What becomes of the messages that a task takes. They are in the receipt (messages), or were
# deleted because they had expired, or went to the error queue (diverted) or to other queues
# (forwarded). `acknowledge` adds them to the columns of the stream that have these names.
COUNTS = ("messages", "expired", "diverted", "forwarded")
LONGEST_RUN = 200  # characters of the id of a query's run
# how many messages a receipt may hold if an operator opens it, when its plan is not known
MOST_MESSAGES = 10_000_000

# Logged if a batch left fewer receipts than it had tasks. If the sink has read only a part of the
# batch, the other messages stay in the queue for the next batch.
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: the sink did not read the whole batch, or the "
    "database lost commits in a failover. After a failover, messages that are in the sink will be "
    "received again"
)
# what the next start of a query does after a batch of which some receipts are missing
STAYS_OPEN = (
    "The batch stays open. To accept what happened, start once with failOnDataLoss=false. If the "
    "sink does not read all of each batch, do not set failOnMissingReceipts=true."
)
IS_CLOSED = (
    "The batch is closed: the next start receives what is in the queue. If the sink leaves "
    "batches unread on purpose, set failOnMissingReceipts=false."
)


# ---------------------------------------------------------------- the row of a stream


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of one driver process on a stream, with the queues that its options name."""

    options: SourceOptions
    driver: str  # a new id for each driver process
    stream: str | None = None  # the stream that this process has already taken over

    @property
    def queue(self) -> str:
        """The canonical address of the stream's queue. Several addresses are joined by ", "."""
        return ", ".join(self.options.names)

    def check(self, queue: str) -> None:
        """
        Check that the options still name one of the queues in a stream's row.

        Raises StreamOfOtherQueue.
        """
        if {*self.options.names}.isdisjoint(split_canonical(queue)):
            raise errors.StreamOfOtherQueue(found=queue, asked=self.queue)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The row of a stream, locked: what `lock_stream` returns."""

    queue: str  # the canonical address; several addresses are joined by ", "
    driver: str
    acked_batch: int
    plan_batch: int | None  # the batch of the stored plan
    stored_plan: str | None

    def plan_of(self, batch: int) -> str | None:
        """Return the stored plan of a batch. Returns None if the batch has none."""
        return self.stored_plan if self.plan_batch == batch else None


def lock_stream(connection: Connection, stream: str) -> StreamRow:
    """Wait for running tasks, and lock a stream's row until commit. Raises StreamNotFound."""
    row = connection.row("lock_stream", StreamRow, stream=stream)
    if row is None:
        raise stream_not_found(connection, stream)
    return row


def stream_not_found(connection: Connection, stream: str) -> errors.StreamNotFound:
    return errors.StreamNotFound(stream=stream, schema=connection.state, server=connection.server)


def lock_for_plan(connection: Connection, stream: str, batch: int, claim: Claim) -> str | None:
    """
    Lock a stream's row, so that `batch` can get its plan. Return the plan if it already has one.

    A batch may have a plan already if it was committed but the answer was lost. Then the batch
    keeps that plan. With two plans it would have receipts of both, and messages that only one of
    them receives would be lost.

    The caller has acknowledged the batch before `batch` in an earlier transaction. If the row does
    not show this, the database has lost commits since then. This happens if a standby that was
    behind took over while the query was running.

    Raises:
        StreamNotFound, DatabaseRolledBack, StreamTakenOver.
    """
    row = lock_stream(connection, stream)
    if row.acked_batch < batch - 1:  # checked first: the claim may be among the lost commits
        refuse_old_database(connection, stream, batch - 1, row.acked_batch, claim)
    if row.driver != claim.driver:
        raise errors.StreamTakenOver(stream=stream)
    return row.plan_of(batch)


def refuse_old_database(
    connection: Connection, stream: str, start: int, acked: int, claim: Claim
) -> None:
    """Raise that the database is older than the checkpoint, unless the user accepts data loss."""
    error = errors.DatabaseRolledBack(
        stream=stream, start=start, acked=acked, server=connection.server
    )
    accept_or_raise(error, claim.options)


def accept_or_raise(
    error: errors.CheckpointFailure,
    options: SourceOptions,
    instead: str = "the stream goes on after data loss",
) -> None:
    """Raise an error. If failOnDataLoss=false, log what happens `instead`."""
    if options.fail_on_data_loss:
        raise error
    log.warning("%s because failOnDataLoss=false: %s", instead, error)


# ---------------------------------------------------------------- the fence of a task


@dataclass(frozen=True, slots=True)
class Fence:
    """What a task must know of its stream before it receives: the row of `fence`."""

    acked_batch: int
    # The highest batch of Spark's query that a stream of the query had closed, or had receipts of,
    # when the plan was stored. None if there was no such batch.
    plan_high_water: int | None
    is_reader: bool  # whether the stream may receive from the queue, for this run of the query


def read_fence(connection: Connection, stream: str, spark_batch: SparkBatch, queue: str) -> Fence:
    """
    Read a stream's row, and lock it shared with other tasks until the transaction ends.

    Until then no batch of the stream is acknowledged, and no batch of it gets a plan.

    Raises StreamNotFound.
    """
    fence = connection.row(
        "fence",
        Fence,
        stream=stream,
        query_id=spark_batch.query_id,
        run_id=name_run(spark_batch),
        queue_name=queue,
    )
    if fence is None:
        raise stream_not_found(connection, stream)
    return fence


def enter_query(connection: Connection, task: Task, spark_batch: SparkBatch) -> None:
    """
    Record that the task's stream receives from the task's queue in this run of Spark's query.

    This has a transaction of its own. It replaces the entry of an earlier run, even if that run
    used another stream, whose checkpoint may be lost. The high-water mark still keeps the query
    from receiving twice for one batch.

    Raises:
        QueueReadTwice: another stream receives from the queue in this run. Each stream would get a
            part of the messages, and a join of the two would lose the others.
    """
    stream, *_ = task.key
    queue = connection.printed(task.queue)
    with transaction(connection):
        connection.run(
            "enter_query",
            query_id=spark_batch.query_id,
            queue_name=queue,
            stream=stream,
            run_id=name_run(spark_batch),
        )
        reader = connection.value("query_reader", query_id=spark_batch.query_id, queue_name=queue)
    if reader != stream:
        raise errors.QueueReadTwice(
            query=spark_batch.query_id, queue=queue, stream=stream, reader=reader
        )


def name_run(spark_batch: SparkBatch) -> str:
    """
    Return the run's id as text that the database can store.

    A user's function may have set the id to any text.
    """
    return (spark_batch.run_id or "").replace("\0", "")[:LONGEST_RUN]


# ---------------------------------------------------------------- what a task has received


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """What a receipt holds, or held until it was deleted."""

    payload: bytes  # the whole payload, with the bytes that are stored in pages
    messages: int
    unpacked: int  # bytes of the unpacked payload
    # the query and batch of Spark for which the messages were received
    query_id: str | None
    spark_batch: int | None

    def unpack(
        self,
        receipt: ReceiptKey,
        *,
        messages: int = MOST_MESSAGES,
        largest: int = LARGEST_MESSAGE,
    ) -> pa.Table:
        """
        Unpack the messages, with the columns of QUEUE_ROW.

        A receipt is refused if it has more than `messages` messages, or more bytes than a task can
        take if one message has `largest` bytes. If an expiry lies beyond the calendar, which an
        earlier release could store, it becomes null.

        Raises PayloadRefused if someone has changed the receipt.
        """
        rows = min(self.messages, messages)
        expected = Expected(
            where="receipt {}/{}/{}".format(*receipt),
            schema=QUEUE_ROW,
            # A task may take more than its ceiling: its last step and the last message of that step
            # may exceed it.
            most=CEILING + UTF8_GROWTH * (STEP + largest) + ROW_BYTES * rows,
            size=self.unpacked,
            rows=self.messages,
        )
        return without_odd_expiries(unpack(self.payload, (), expected))


def receipt_values(receipt: ReceiptKey) -> dict[str, Any]:
    return dict(zip(RECEIPT_KEY, receipt, strict=True))


def find_receipt(connection: Connection, receipt: ReceiptKey) -> StoredReceipt | None:
    """Read a receipt. Returns None if there is none."""
    values = receipt_values(receipt)
    stored = connection.row("find_receipt", StoredReceipt, tables=None, **values)
    if stored is None or stored.payload:
        return stored
    return replace(stored, payload=join_pages(connection, values))


def join_pages(connection: Connection, values: dict[str, Any]) -> bytes:
    """Read the pages of a receipt and join them. The result is empty if there are no pages."""
    return b"".join(connection.values("receipt_pages", tables=None, **values))


def save(connection: Connection, task: Task, result: TaskResult, spark_batch: SparkBatch) -> None:
    """
    Write the receipt of a task, even if the task received nothing.

    If Spark runs the batch again, the empty receipt keeps the task from receiving messages then.
    """
    payload = pack(result.rows)
    connection.run(
        "save_receipt",
        **receipt_values(task.key),
        queue_name=connection.names.print_address(task.queue),
        messages=result.rows.num_rows,
        expired=result.expired,
        diverted=result.diverted,
        forwarded=result.forwarded,
        bytes=weigh(result.rows),
        query_id=spark_batch.query_id,
        spark_batch=spark_batch.number,
        query_name=spark_batch.query_name,
        unpacked=payload.size,
        payload=in_row(payload.bytes),
    )
    connection.store("receipt_page", pages(payload.bytes, RECEIPT_KEY, task.key))


# ---------------------------------------------------------------- the acknowledgement


@dataclass(frozen=True, slots=True)
class QueueOutcome:
    """What the tasks of some batches received from one queue: a row of `outcome`."""

    queue: str
    tasks: int
    empty: int  # how many tasks took nothing
    messages: int
    expired: int
    diverted: int
    forwarded: int
    # Spark's query, its last batch and its name; None if the receipts name several queries or none
    query_id: str | None
    spark_batch: int | None
    query_name: str | None

    @property
    def taken(self) -> int:
        """How many messages left the queue."""
        return self.messages + self.expired + self.diverted + self.forwarded


@dataclass(frozen=True, slots=True)
class Closed:
    """What the batch that was closed last has received, and what is stored of the next one."""

    batch: int
    outcomes: tuple[QueueOutcome, ...] = ()  # one for each queue; empty if no task has a receipt
    stored_plan: str | None = None  # the plan of the next batch, if one was stored before
    # whether the batch was not above the high-water mark, so that its tasks received nothing
    is_passed_over: bool = False
    # how many tasks the batch has, if it was open until now and no task of it ran; else 0
    unread_tasks: int = 0

    @property
    def tasks(self) -> int:
        """How many tasks left a receipt."""
        return sum(outcome.tasks for outcome in self.outcomes)

    @property
    def empty(self) -> int:
        """How many tasks left a receipt but took nothing."""
        return sum(outcome.empty for outcome in self.outcomes)

    @property
    def taken(self) -> int:
        """How many messages left the queues."""
        return sum(outcome.taken for outcome in self.outcomes)

    def report(self) -> dict[str, Any]:
        """Return what Spark's progress shows as `lastBatch`."""
        return report_batch(self.batch, self.outcomes)


def report_batch(batch: int, outcomes: Sequence[QueueOutcome]) -> dict[str, Any]:
    """Return what Spark's progress shows of a batch, for all its queues or for one of them."""
    return {
        "batch": batch,
        "tasks": sum(outcome.tasks for outcome in outcomes),
        "emptyTasks": sum(outcome.empty for outcome in outcomes),
        **count_messages(outcomes),
    }


def count_messages(outcomes: Iterable[QueueOutcome]) -> dict[str, Any]:
    """Add up the messages of all queues, for each name of COUNTS."""
    counts = dict.fromkeys(COUNTS, 0)
    for outcome in outcomes:
        for name in COUNTS:
            counts[name] += getattr(outcome, name)
    return counts


def find_outcomes(
    connection: Connection, stream: str, first: int, batch: int
) -> list[QueueOutcome]:
    """Return what the tasks of the batches from `first` to `batch` received, for each queue."""
    return connection.rows("outcome", QueueOutcome, stream=stream, first=first, batch=batch)


def acknowledge(connection: Connection, end: Offset, claim: Claim) -> Closed:
    """
    Close all batches up to the batch of `end`, and delete their receipts.

    Spark has that batch in its commit log. This function locks the stream's row, so it waits for
    running tasks. Tasks that come later are stale. The first call in a process takes the stream
    over from the process before. If only some of the planned tasks left a receipt, this function
    logs that, or raises ReceiptsMissing. If no task left one, the caller decides what to do.

    Raises:
        StreamNotFound, StreamOfOtherQueue, StreamTakenOver, CheckpointRolledBack,
        DatabaseRolledBack, ReceiptsMissing.
    """
    stream = end.stream
    batch = end.batch
    if stream is None:  # transactionMode=none, or nothing was planned yet
        return Closed(batch)
    row = take_over(connection, stream, claim)
    if row.acked_batch > batch:
        error = errors.CheckpointRolledBack(stream=stream, start=batch, acked=row.acked_batch)
        accept_or_raise(error, claim.options)
        return Closed(row.acked_batch, stored_plan=row.stored_plan)
    is_open = row.acked_batch < batch
    # Only the receipts of this batch and of open batches before it are deleted. A batch of which an
    # operator has returned or dropped a receipt is closed, and its other receipts must stay.
    first = min(row.acked_batch + 1, batch)
    outcomes = find_outcomes(connection, stream, first, batch)
    # A database that has lost commits may show neither a plan nor a receipt of this batch. In a
    # database that has lost none, the plan of a batch is committed before Spark gets the batch's
    # offset. Only the batch after the acknowledged one gets a plan.
    was_planned = row.plan_batch == batch or bool(outcomes)
    if row.acked_batch < batch - 1 or (is_open and not was_planned):
        refuse_old_database(connection, stream, batch, row.acked_batch, claim)
    closed = Closed(batch, tuple(outcomes), stored_plan=row.plan_of(batch + 1))
    spark_batch = name_in_spark(outcomes)
    if is_open:
        check_receipts(end, closed.tasks, claim)
    if not claim.options.fail_on_data_loss and not closed.taken:
        passed = is_passed_over(connection, stream, spark_batch)
        closed = replace(closed, is_passed_over=passed)
    if is_open or outcomes:
        close(connection, stream, closed, spark_batch, first=first)
    if is_open and not closed.tasks:
        closed = replace(closed, unread_tasks=end.tasks)
    return closed


def take_over(connection: Connection, stream: str, claim: Claim) -> StreamRow:
    """
    Lock a stream's row. At the first call in a process, the process takes the stream over.

    Raises:
        StreamNotFound, StreamOfOtherQueue.
        StreamTakenOver: after this process took the stream over, another one did.
    """
    row = lock_stream(connection, stream)
    claim.check(row.queue)
    if claim.stream != stream:
        connection.run("claim", stream=stream, driver=claim.driver, queue_name=claim.queue)
    elif row.driver != claim.driver:
        raise errors.StreamTakenOver(stream=stream)
    return row


def check_receipts(end: Offset, receipts: int, claim: Claim) -> None:
    """Log or raise that a batch left fewer receipts than it had tasks."""
    if receipts >= end.tasks:
        return
    if claim.options.fail_on_missing_receipts:
        missing = errors.ReceiptsMissing(
            stream=end.stream,
            batch=end.batch,
            tasks=end.tasks,
            found=receipts,
            next_start=STAYS_OPEN,
        )
        accept_or_raise(missing, claim.options)
    elif receipts:
        log.warning(MISSING, claim.queue, end.batch, end.tasks, receipts)


def close(
    connection: Connection, stream: str, closed: Closed, spark_batch: SparkBatch, *, first: int
) -> None:
    """Close the batches of a stream up to `closed`, and delete their receipts from `first` on."""
    connection.run(
        "acknowledge",
        stream=stream,
        batch=closed.batch,
        query_id=spark_batch.query_id,
        spark_batch=spark_batch.number,
        query_name=spark_batch.query_name,
        **count_messages(closed.outcomes),
    )
    connection.run("delete_receipts", stream=stream, first=first, batch=closed.batch)


def name_in_spark(outcomes: Sequence[QueueOutcome]) -> SparkBatch:
    """Return Spark's names of a batch. They are None unless all receipts name the same query."""
    named = [outcome for outcome in outcomes if outcome.spark_batch is not None]
    queries = {outcome.query_id for outcome in named}
    if len(queries) != 1 or None in queries:
        return SparkBatch()
    last = max(outcome.spark_batch or 0 for outcome in named)
    names = {outcome.query_name for outcome in named}
    name = names.pop() if len(names) == 1 else None
    return SparkBatch(query_id=queries.pop(), number=last, query_name=name)


def is_passed_over(connection: Connection, stream: str, spark_batch: SparkBatch) -> bool:
    """
    Whether Spark's batch is not above the high-water mark, so that its tasks received nothing.

    Call this before the batch is acknowledged.
    """
    if spark_batch.number is None:
        return False
    plan_high_water = read_fence(connection, stream, spark_batch, queue="").plan_high_water
    return plan_high_water is not None and spark_batch.number <= plan_high_water
