"""
Receipts and the row of their stream, in the transaction that the caller has open.

A receipt is a row that says what one task has received. A large payload is in pages, which are rows
of another table. The task writes the receipt in the commit that deletes the messages, and a later
attempt hands it out again. The driver deletes it when it acknowledges the batch. An operator may
return or drop it instead: see admin/receipts.py.

A batch is open while `batch > acked_batch` of its stream. A task of any other batch is stale.
An acknowledgement also raises the high-water mark of Spark's query. After that, none of the query's
streams receives for that batch of Spark again.
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

ROW_BYTES = 64  # of a row in a payload, beside headers and body
UTF8_GROWTH = 3  # UTF-8 may take up to three times the bytes of UTF-16
# What became of messages. They are in the receipt, or they had expired, or they went to the error
# queue (diverted) or to other queues (forwarded).
COUNTS = ("messages", "expired", "diverted", "forwarded")
LONGEST_RUN = 200  # characters of the name of a query's run
MOST_MESSAGES = 10_000_000  # of a receipt that an operator opens, without its plan

# A sink may read only a part of a batch. What it has not read waits for the next batch.
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: the sink did not read the whole batch, or the "
    "database lost commits in a failover. After a failover, messages that are in the sink will be "
    "received again"
)
# how a query continues after a batch without some of its receipts
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
        """The canonical address. Several addresses are joined by ", "."""
        return ", ".join(self.options.names)

    def check(self, queue: str) -> None:
        """
        Accept the queues of a stream's row if the options still name one of them.

        Raises StreamOfOtherQueue.
        """
        if {*self.options.names}.isdisjoint(split_canonical(queue)):
            raise errors.StreamOfOtherQueue(found=queue, asked=self.queue)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The row of a stream, locked: what `lock_stream` returns."""

    queue: str  # several are joined by ", "
    driver: str
    acked_batch: int
    plan_batch: int | None  # the batch of the stored plan
    stored_plan: str | None

    def plan_of(self, batch: int) -> str | None:
        """Return the stored plan of a batch; None: it has none."""
        return self.stored_plan if self.plan_batch == batch else None


def lock_stream(connection: Connection, stream: str) -> StreamRow:
    """Lock a stream's row until commit; that waits for running tasks. Raises StreamNotFound."""
    row = connection.row("lock_stream", StreamRow, stream=stream)
    if row is None:
        raise stream_not_found(connection, stream)
    return row


def stream_not_found(connection: Connection, stream: str) -> errors.StreamNotFound:
    return errors.StreamNotFound(stream=stream, schema=connection.state, server=connection.server)


def lock_for_plan(connection: Connection, stream: str, batch: int, claim: Claim) -> str | None:
    """
    Lock a stream's row, so that a batch can get its plan. Return the plan if it already has one.

    Two plans of one batch would share its receipts. Messages that only one of them receives would
    be lost. So a batch keeps its plan if the commit of that plan had no answer.

    The caller has acknowledged the batch before it in an earlier transaction. If the row does not
    have that, the database has lost commits since: a standby that was behind took over while the
    query was running.

    Raises:
        StreamNotFound, DatabaseRolledBack, StreamTakenOver.
    """
    row = lock_stream(connection, stream)
    if row.acked_batch < batch - 1:  # before the driver: a claim may be among what was lost
        refuse_old_database(connection, stream, batch - 1, row.acked_batch, claim)
    if row.driver != claim.driver:
        raise errors.StreamTakenOver(stream=stream)
    return row.plan_of(batch)


def refuse_old_database(
    connection: Connection, stream: str, start: int, acked: int, claim: Claim
) -> None:
    """Raise that the database is older than the checkpoint, or accept it."""
    error = errors.DatabaseRolledBack(
        stream=stream, start=start, acked=acked, server=connection.server
    )
    accept_or_raise(error, claim.options)


def accept_or_raise(
    error: errors.CheckpointFailure,
    options: SourceOptions,
    instead: str = "the stream goes on after data loss",
) -> None:
    """Raise an error, unless the user accepts what happens instead."""
    if options.fail_on_data_loss:
        raise error
    log.warning("%s because failOnDataLoss=false: %s", instead, error)


# ---------------------------------------------------------------- the fence of a task


@dataclass(frozen=True, slots=True)
class Fence:
    """What a task must know of its stream before it receives: the row of `fence`."""

    acked_batch: int
    # the last batch that Spark's query had received for, by another plan, when the plan was stored
    plan_high_water: int | None
    is_reader: bool  # whether the stream may receive from the queue, for this run of the query


def read_fence(connection: Connection, stream: str, spark_batch: SparkBatch, queue: str) -> Fence:
    """
    Read a stream's row, and lock it shared with other tasks until the transaction ends.

    Until then no batch of the stream is acknowledged and none gets a plan. Raises StreamNotFound.
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
    Enter a task's stream as the one that receives from its queue for this run of Spark's query.

    It runs in a transaction of its own. An entry of an earlier run is replaced, because the
    checkpoint of that run's stream may be lost. In that case the high-water mark decides what may
    be received.

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
    """Return the name of a run of the query. A user's function may have given it any text."""
    return (spark_batch.run_id or "").replace("\0", "")[:LONGEST_RUN]


# ---------------------------------------------------------------- what a task has received


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """What a receipt holds, or held until it was deleted."""

    payload: bytes  # including what is in pages
    messages: int
    unpacked: int  # bytes of the unpacked payload
    query_id: str | None  # Spark's names of the batch that it was received for
    spark_batch: int | None

    def unpack(
        self,
        receipt: ReceiptKey,
        *,
        messages: int = MOST_MESSAGES,
        largest: int = LARGEST_MESSAGE,
    ) -> pa.Table:
        """
        Unpack the messages, in rows of QUEUE_ROW.

        No more than `messages` are accepted, and none of more than `largest` bytes. An earlier
        release could store an expiry beyond the calendar, which is null here.

        Raises PayloadRefused if someone has changed the receipt.
        """
        rows = min(self.messages, messages)
        expected = Expected(
            where="receipt {}/{}/{}".format(*receipt),
            schema=QUEUE_ROW,
            # a task may exceed its ceiling by one more step and one more message
            most=CEILING + UTF8_GROWTH * (STEP + largest) + ROW_BYTES * rows,
            size=self.unpacked,
            rows=self.messages,
        )
        return without_odd_expiries(unpack(self.payload, (), expected))


def receipt_values(receipt: ReceiptKey) -> dict[str, Any]:
    return dict(zip(RECEIPT_KEY, receipt, strict=True))


def find_receipt(connection: Connection, receipt: ReceiptKey) -> StoredReceipt | None:
    """Read a receipt; None: there is none."""
    values = receipt_values(receipt)
    stored = connection.row("find_receipt", StoredReceipt, tables=None, **values)
    if stored is None or stored.payload:
        return stored
    return replace(stored, payload=join_pages(connection, values))


def join_pages(connection: Connection, values: dict[str, Any]) -> bytes:
    """Read the pages of a receipt; empty if it has none."""
    return b"".join(connection.values("receipt_pages", tables=None, **values))


def save(connection: Connection, task: Task, result: TaskResult, spark_batch: SparkBatch) -> None:
    """
    Write the receipt, even if nothing was received.

    Spark may run the batch again, and then this task must receive nothing again.
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
    empty: int  # tasks that took nothing
    messages: int
    expired: int
    diverted: int
    forwarded: int
    query_id: str | None  # Spark's names of the last batch; None: they differ
    spark_batch: int | None

    @property
    def taken(self) -> int:
        """How many messages left the queue."""
        return self.messages + self.expired + self.diverted + self.forwarded


@dataclass(frozen=True, slots=True)
class Closed:
    """What the batch that was closed last has received, and what is stored of the next one."""

    batch: int
    outcomes: tuple[QueueOutcome, ...] = ()  # one for each queue; none if no task has a receipt
    stored_plan: str | None = None  # of the batch after it, if that was planned before
    is_passed_over: bool = False  # it was below the high-water mark, so its tasks received nothing
    unread_tasks: int = 0  # of a batch that was open until now, and of which no task ran

    @property
    def tasks(self) -> int:
        """How many tasks left a receipt."""
        return sum(outcome.tasks for outcome in self.outcomes)

    @property
    def empty(self) -> int:
        """How many of these tasks took nothing."""
        return sum(outcome.empty for outcome in self.outcomes)

    @property
    def taken(self) -> int:
        """How many messages left the queues."""
        return sum(outcome.taken for outcome in self.outcomes)

    def report(self) -> dict[str, Any]:
        """Return what the progress shows as `lastBatch`."""
        return report_batch(self.batch, self.outcomes)


def report_batch(batch: int, outcomes: Sequence[QueueOutcome]) -> dict[str, Any]:
    """Return what the progress shows of a batch, for all its queues or for one of them."""
    return {
        "batch": batch,
        "tasks": sum(outcome.tasks for outcome in outcomes),
        "emptyTasks": sum(outcome.empty for outcome in outcomes),
        **count_messages(outcomes),
    }


def count_messages(outcomes: Iterable[QueueOutcome]) -> dict[str, Any]:
    """Return how many messages of all queues became what, by the names of COUNTS."""
    counts = dict.fromkeys(COUNTS, 0)
    for outcome in outcomes:
        for name in COUNTS:
            counts[name] += getattr(outcome, name)
    return counts


def acknowledge(connection: Connection, end: Offset, claim: Claim) -> Closed:
    """
    Close all batches up to that of `end`, which Spark has in its commit log; delete their receipts.

    The row's lock waits for running tasks. Tasks that come later are stale. The first call of a
    process takes the stream over from the process before. If fewer tasks left a receipt than were
    planned, this is logged or raised. If no task left one, the caller decides what to do.

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
    # A return or a drop closes a batch and keeps its other receipts. Only those of this batch and
    # of open ones go.
    first = min(row.acked_batch + 1, batch)
    outcomes = connection.rows("outcome", QueueOutcome, stream=stream, first=first, batch=batch)
    # the plan of a batch is committed before Spark has its offset, and follows the acknowledged one
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
    Lock a stream's row. A process that has not spoken for the stream before takes it over.

    Raises:
        StreamNotFound, StreamOfOtherQueue.
        StreamTakenOver: another process has taken it over since this one did.
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
        **count_messages(closed.outcomes),
    )
    connection.run("delete_receipts", stream=stream, first=first, batch=closed.batch)


def name_in_spark(outcomes: Sequence[QueueOutcome]) -> SparkBatch:
    """Return Spark's names of a batch; none if the receipts of its queues differ in them."""
    named = [outcome for outcome in outcomes if outcome.spark_batch is not None]
    queries = {outcome.query_id for outcome in named}
    if len(queries) != 1 or None in queries:
        return SparkBatch()
    last = max(outcome.spark_batch or 0 for outcome in named)
    return SparkBatch(query_id=queries.pop(), number=last)


def is_passed_over(connection: Connection, stream: str, spark_batch: SparkBatch) -> bool:
    """Whether Spark's batch is not above the high-water mark, before it is acknowledged."""
    if spark_batch.number is None:
        return False
    plan_high_water = read_fence(connection, stream, spark_batch, queue="").plan_high_water
    return plan_high_water is not None and spark_batch.number <= plan_high_water
