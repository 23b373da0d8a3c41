"""
Receipts and the row of their stream, in the transaction that the caller has open.

A receipt is a row: what one task has received. A large payload is in pages, which are rows of
another table. A task writes it in the commit that deletes the messages, and a later attempt hands
it out again. The driver deletes it when it acknowledges the batch. Or an operator returns or drops
it.

A batch is open while `batch > acked_batch` of its stream; a task of another batch is stale.
An acknowledgement also raises the high-water mark of Spark's query: none of its streams receives
for that batch of Spark again.
To return or drop a receipt closes its batch in both, so that a checkpoint that comes back cannot
receive for it again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import SENT_COLUMNS
from sqlq_spark.database.trust import Use, use
from sqlq_spark.options.fields import LARGEST_MESSAGE
from sqlq_spark.receive.pace import Outcome
from sqlq_spark.wire.dialects import split_canonical
from sqlq_spark.wire.header_columns import has_id
from sqlq_spark.wire.payload import RECEIPT_KEY, Expected, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import QUEUE_ROW, SparkBatch, weigh, without_odd_expiries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.offset import Offset
    from sqlq_spark.receive.task import Task, TaskResult
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

ReceiptKey: TypeAlias = tuple[str, int, int]  # stream, batch and task

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20
# bytes of a row beside headers and body; a text may grow so many times as UTF-8
ROW, GROWTH = 64, 3
# what became of messages: diverted to the error queue, forwarded to other queues
COUNTS = ("messages", "expired", "diverted", "forwarded")
LONGEST_RUN = 200  # characters of the name of a query's run
MOST_MESSAGES = 10_000_000  # of a receipt that an operator opens, without its plan

NOTHING = Outcome(tasks=0, empty=0, got=0)

# a sink may read only a part of a batch; what it has not read waits for the next one
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: the sink did not read the whole batch, or the "
    "database lost commits in a failover. After a failover, messages that are in the sink will be "
    "received again"
)
# how a query goes on after a batch without some of its receipts
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
    driver: str  # a fresh id for each driver process
    stream: str | None = None  # for which the process speaks already

    @property
    def queue(self) -> str:
        """The canonical address; of several queues joined by ", "."""
        return ", ".join(self.options.names)

    def check(self, queue: str) -> None:
        """Accept the queues of a stream's row: others may have come or gone since, but not all."""
        if {*self.options.names}.isdisjoint(split_canonical(queue)):
            raise errors.StreamOfOtherQueue(found=queue, asked=self.queue)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """The row of a stream, locked: what `lock_stream` returns."""

    queue: str  # of several, joined by ", "
    driver: str
    acked_batch: int
    plan_batch: int | None  # of the stored plan
    plan: str | None  # its text


def lock_stream(connection: Connection, stream: str) -> StreamRow:
    """Lock a stream's row until commit; that waits for running tasks. Raises StreamNotFound."""
    row = connection.row("lock_stream", StreamRow, stream=stream)
    if row is None:
        raise stream_not_found(connection, stream)
    return row


def stream_not_found(connection: Connection, stream: str) -> errors.StreamNotFound:
    return errors.StreamNotFound(stream=stream, schema=connection.state, server=connection.server)


def lock_for_plan(connection: Connection, stream: str, batch: int, who: Claim) -> str | None:
    """
    Lock a stream's row, so that a batch can get its plan; or return the text of the one it has.

    Two plans of one batch would share its receipts. Messages that only one of them receives would
    be lost. So a batch whose plan's commit had no answer keeps that plan.

    The caller has acknowledged the batch before, in an earlier transaction. If the row has not, the
    database has lost commits since: a standby that was behind took over from under a query that
    runs.

    Raises:
        StreamNotFound, DatabaseRolledBack, StreamTakenOver.
    """
    row = lock_stream(connection, stream)
    if row.acked_batch < batch - 1:  # before the driver: a claim may be among what was lost
        went_back(connection, stream, batch - 1, row.acked_batch, who)
    if row.driver != who.driver:
        raise errors.StreamTakenOver(stream=stream)
    return row.plan if row.plan_batch == batch else None


def went_back(connection: Connection, stream: str, start: int, acked: int, who: Claim) -> None:
    """Refuse a database that is older than the checkpoint."""
    error = errors.DatabaseRolledBack(
        stream=stream, start=start, acked=acked, server=connection.server
    )
    accept_or_raise(error, who.options)


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
    """What a task must know of its stream before it receives."""

    acked_batch: int
    plan_high_water: int | None  # the last batch of Spark's query that has other messages
    is_reader: bool  # whether the stream may receive from the queue, for this run of the query


def read_fence(
    connection: Connection, stream: str, spark_batch: SparkBatch, queue: str
) -> Fence | None:
    """Read a stream's row and lock it, shared; None: it is not there."""
    return connection.row(
        "fence",
        Fence,
        stream=stream,
        query_id=spark_batch.query_id,
        run_id=name_run(spark_batch),
        queue_name=queue,
    )


def enter_query(connection: Connection, task: Task, spark_batch: SparkBatch) -> None:
    """
    Enter a task's stream as the one that receives from its queue for this run of Spark's query.

    No transaction is open. An entry of an earlier run is replaced, because the checkpoint of its
    stream may be lost. Then the high-water mark decides what may be received.

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
    """Return the name of a run of the query; it may be a text of a user's function."""
    return (spark_batch.run_id or "").replace("\0", "")[:LONGEST_RUN]


# ---------------------------------------------------------------- what a task has received


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """What a receipt holds, or held until it was deleted."""

    payload: bytes  # also what is in pages
    messages: int
    unpacked: int  # bytes of the payload, unpacked
    query_id: str | None  # Spark's names for the batch that it was received for
    spark_batch: int | None

    def unpack(
        self,
        receipt: ReceiptKey,
        *,
        messages: int = MOST_MESSAGES,
        largest: int = LARGEST_MESSAGE,
    ) -> pa.Table:
        """
        Unpack the messages, in rows of QUEUE_ROW: at most so many, none of more bytes.

        An expiry beyond the calendar, which an earlier release could store, is null.

        Raises PayloadRefused if someone has changed the receipt.
        """
        rows = min(self.messages, messages)
        expected = Expected(
            where="receipt {}/{}/{}".format(*receipt),
            schema=QUEUE_ROW,
            most=CEILING + GROWTH * (STEP + largest) + ROW * rows,  # one more step and message
            size=self.unpacked,
            rows=self.messages,
        )
        return without_odd_expiries(unpack(self.payload, (), expected))


@dataclass(frozen=True, slots=True)
class DroppedReceipt(StoredReceipt):
    """A receipt that was deleted for an operator: what `drop_receipt` returns."""

    queue: str
    settled: bool


def receipt_values(receipt: ReceiptKey) -> dict[str, Any]:
    return dict(zip(RECEIPT_KEY, receipt, strict=True))


def find_receipt(connection: Connection, receipt: ReceiptKey) -> StoredReceipt | None:
    """Read a receipt; None if there is none. Changes nothing."""
    values = receipt_values(receipt)
    stored = connection.row("find_receipt", StoredReceipt, tables=None, **values)
    if stored is None or stored.payload:
        return stored
    return replace(stored, payload=join_pages(connection, values))


def join_pages(connection: Connection, values: dict[str, Any]) -> bytes:
    """Read the pages of a receipt; empty if it has none."""
    return b"".join(connection.values("receipt_pages", tables=None, **values))


def save(connection: Connection, task: Task, result: TaskResult, spark_batch: SparkBatch) -> None:
    """Write the receipt, also if nothing was received: a replay must then receive nothing again."""
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
    query_id: str | None  # Spark's names for the last batch; None: they differ
    spark_batch: int | None


@dataclass(frozen=True)
class Acknowledged:
    """What a batch has received, and where the stream stands."""

    batch: int  # the last that is closed
    outcome: Outcome = NOTHING
    counts: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    plan: str | None = None  # stored text: of the batch after it, if that was planned before
    queues: dict[str, Acknowledged] = field(default_factory=dict)  # the same of each queue
    is_passed_over: bool = False  # it was below the high-water mark, so its tasks received nothing
    unread_tasks: int = 0  # of a batch that is closed now, and of which no task ran

    def report(self) -> dict[str, Any]:
        """Give what the progress shows as `lastBatch`."""
        return {
            "batch": self.batch,
            "tasks": self.outcome.tasks,
            "emptyTasks": self.outcome.empty,
            **self.counts,
        }


def acknowledge(connection: Connection, end: Offset, who: Claim) -> Acknowledged:
    """
    Close all batches up to that of `end`, which Spark has in its commit log; delete their receipts.

    The row's lock waits for running tasks; those that come later are stale. The first call of a
    process takes the stream over from the driver before. Fewer receipts than tasks that were
    planned cause a warning or an error. If there is none, the caller decides.

    Raises:
        StreamNotFound, StreamOfOtherQueue, StreamTakenOver, CheckpointRolledBack,
        DatabaseRolledBack, ReceiptsMissing.
    """
    stream, batch = end.stream, end.batch
    if stream is None:  # of transactionMode=none, or no batch at all
        return Acknowledged(batch=batch)
    row = lock_stream(connection, stream)
    acked = row.acked_batch
    who.check(row.queue)
    if who.stream != stream:
        connection.run("claim", stream=stream, driver=who.driver, queue_name=who.queue)
    elif row.driver != who.driver:
        raise errors.StreamTakenOver(stream=stream)
    if acked > batch:
        error = errors.CheckpointRolledBack(stream=stream, start=batch, acked=acked)
        accept_or_raise(error, who.options)
        return Acknowledged(batch=acked, plan=row.plan)
    # an earlier batch that a return or a drop has closed keeps its other receipts
    first = min(acked + 1, batch)
    outcomes = connection.rows("outcome", QueueOutcome, stream=stream, first=first, batch=batch)
    # a batch's plan is committed before Spark has its offset, and it follows the acknowledged one
    was_planned = row.plan_batch == batch or bool(outcomes)
    if acked < batch - 1 or (acked < batch and not was_planned):
        went_back(connection, stream, batch, acked, who)
    total = count_batch(batch, outcomes)
    found = total.outcome.tasks
    if acked < batch and found < end.tasks:
        if who.options.fail_on_missing_receipts:
            missing = errors.ReceiptsMissing(
                stream=stream, batch=batch, tasks=end.tasks, found=found, next_start=STAYS_OPEN
            )
            accept_or_raise(missing, who.options)
        elif found:
            log.warning(MISSING, who.queue, batch, end.tasks, found)
    spark_batch = name_in_spark(outcomes)
    passed = (
        not who.options.fail_on_data_loss
        and not total.outcome.got
        and is_passed_over(connection, stream, spark_batch)
    )
    if outcomes or acked < batch:
        connection.run(
            "acknowledge",
            stream=stream,
            batch=batch,
            query_id=spark_batch.query_id,
            spark_batch=spark_batch.number,
            **total.counts,
        )
        connection.run("delete_receipts", stream=stream, first=first, batch=batch)
    queues = {outcome.queue: count_batch(batch, [outcome]) for outcome in outcomes}
    following = row.plan if row.plan_batch == batch + 1 else None
    unread = end.tasks if acked < batch and not found else 0
    return replace(total, plan=following, queues=queues, is_passed_over=passed, unread_tasks=unread)


def name_in_spark(outcomes: Sequence[QueueOutcome]) -> SparkBatch:
    """Give Spark's names for a batch; none where they differ."""
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
    row = read_fence(connection, stream, spark_batch, queue="")
    high_water = None if row is None else row.plan_high_water
    return high_water is not None and spark_batch.number <= high_water


def count_batch(batch: int, outcomes: Sequence[QueueOutcome]) -> Acknowledged:
    """Sum up what a batch received."""
    counts = {name: sum(getattr(outcome, name) for outcome in outcomes) for name in COUNTS}
    total = Outcome(
        tasks=sum(outcome.tasks for outcome in outcomes),
        empty=sum(outcome.empty for outcome in outcomes),
        got=sum(counts.values()),
    )
    return Acknowledged(batch, total, counts)


# ---------------------------------------------------------------- by an operator


def return_(
    connection: Connection,
    receipt: ReceiptKey,
    queue: QueueAddress,
    *,
    without: Sequence[str] = (),
) -> int:
    """
    Put the messages of a receipt back into their queue; how many.

    They keep their ids, headers, bodies and expiry, and get new seqs, behind all others. `without`
    are ids of messages that are deleted instead, see `has_id`.

    Raises:
        ReceiptSettled: they were already sent on.
        QueueNotFound, NotAQueue, TableRefused: the queue would not take them.
    """
    removed = delete_receipt(connection, receipt, returns=True)
    if removed is None or not removed.messages:
        return 0
    rows = removed.unpack(receipt)
    if without:
        rows = rows.filter(pc.invert(has_id(rows, without)))
    if rows.num_rows:
        use(connection, [queue], Use("insert", SENT_COLUMNS))
        connection.load(queue, rows.select(["id", "expires", "headers", "body"]))
    return int(rows.num_rows)


def drop(connection: Connection, receipt: ReceiptKey) -> int:
    """Delete a receipt and its messages; how many."""
    removed = delete_receipt(connection, receipt, returns=False)
    return 0 if removed is None else removed.messages


def delete_receipt(
    connection: Connection, receipt: ReceiptKey, *, returns: bool
) -> StoredReceipt | None:
    """Delete a receipt and close its batch; the stream's lock waits for running tasks."""
    stream, batch, task = receipt
    connection.row("lock_stream", StreamRow, stream=stream)  # its row may be gone
    values = receipt_values(receipt)
    paged = join_pages(connection, values)
    dropped = connection.row("drop_receipt", DroppedReceipt, tables=None, **values)
    if dropped is None:
        return None
    if dropped.settled and returns:
        raise errors.ReceiptSettled(stream=stream, batch=batch, task=task)
    connection.run(
        "retire_stream",
        stream=stream,
        batch=batch,
        query_id=None if dropped.spark_batch is None else dropped.query_id,
        spark_batch=dropped.spark_batch,
    )
    return replace(dropped, payload=dropped.payload or paged)
