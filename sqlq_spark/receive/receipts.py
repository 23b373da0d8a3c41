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

from sqlq_spark.database.trust import Destinations
from sqlq_spark.errors import (
    CheckpointFailure,
    CheckpointRolledBack,
    DatabaseRolledBack,
    ReceiptSettled,
    ReceiptsMissing,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
)
from sqlq_spark.options.fields import LARGEST_MESSAGE
from sqlq_spark.receive.pace import Outcome
from sqlq_spark.wire.address import split_canonical
from sqlq_spark.wire.header_columns import has_id
from sqlq_spark.wire.payload import RECEIPT_KEY, Expected, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import QUEUE_ROW, Origin, weigh, without_odd_expiries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection, Row
    from sqlq_spark.receive.task import Task, TaskResult
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

ReceiptKey: TypeAlias = tuple[str, int, int]  # stream, batch and task

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20
# bytes of a row beside headers and body; a text may grow so many times as UTF-8
ROW, GROWTH = 64, 3
COUNTS = ("messages", "expired", "diverted", "forwarded")  # what became of messages
MOST_MESSAGES = 10_000_000  # of a receipt, for its bound: that of an operator's has no plan

# a sink may read only a part of a batch; what it has not read waits for the next one
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: its sink did not read all of it, or the "
    "database has lost commits (a standby that was behind took over); in that case messages that "
    "the sink has come again"
)


# ---------------------------------------------------------------- the row of a stream


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of one driver process on a stream, with the queues that it reads."""

    driver: str  # a fresh id for each driver process
    queue: str  # the canonical address; of several queues joined by ", "
    fail_on_data_loss: bool = True
    fail_on_missing_receipts: bool = False

    def check(self, queue: str) -> None:
        """
        Accept the queues of a stream's row: others may have come or gone since, but not all.

        Raises:
            StreamOfOtherQueue: none of them is read here.
        """
        mine = set(split_canonical(self.queue))
        if queue != self.queue and mine.isdisjoint(split_canonical(queue)):
            raise StreamOfOtherQueue(found=queue, asked=self.queue)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream's row, locked."""

    queue: str
    driver: str
    acked: int
    plan_batch: int | None
    plan: str | None

    def plan_of(self, batch: int) -> str | None:
        return self.plan if self.plan_batch == batch else None


def lock_stream(connection: Connection, stream: str) -> StreamRow:
    """
    Lock a stream's row until commit; that waits for running tasks.

    Raises:
        StreamNotFound: there is none.
    """
    found = connection.rows("lock_stream", stream=stream)
    if not found:
        raise StreamNotFound(stream=stream, schema=connection.state, server=connection.server)
    return StreamRow(*found[0])


def lock_for_plan(connection: Connection, stream: str, batch: int, who: Claim) -> str | None:
    """
    Lock a stream's row, so that a batch can get its plan. A batch never gets a second plan.

    Two plans of one batch would share its receipts. Messages that only one of them receives would
    be lost.

    The caller has acknowledged the batch before, in an earlier transaction. If the row has not, the
    database has lost commits since: a standby that was behind took over from under a query that
    runs.

    Returns:
        The text of the plan that is there, if the answer of its commit was lost.

    Raises:
        StreamNotFound: the stream's row is gone.
        DatabaseRolledBack: the row has not acknowledged the batch before.
        StreamTakenOver: another driver speaks for the stream.
    """
    row = lock_stream(connection, stream)
    if row.acked < batch - 1:  # before the driver: a claim may be among what was lost
        went_back(connection, stream, batch - 1, row, who)
    if row.driver != who.driver:
        raise StreamTakenOver(stream=stream)
    return row.plan_of(batch)


def went_back(connection: Connection, stream: str, start: int, row: StreamRow, who: Claim) -> None:
    """Refuse a database that is older than the checkpoint."""
    where = connection.server
    error = DatabaseRolledBack(stream=stream, start=start, acked=row.acked, server=where)
    accept_or_raise(error, who)


def accept_or_raise(error: CheckpointFailure, who: Claim) -> None:
    """Refuse a checkpoint and a stream's row of different times, unless the user accepts that."""
    if who.fail_on_data_loss:
        raise error
    log.warning("the stream goes on after data loss because failOnDataLoss=false: %s", error)


# ---------------------------------------------------------------- what a task has received


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """What a receipt holds, or held until it was deleted."""

    payload: bytes  # also what is in pages
    messages: int
    size: int  # bytes of the payload, unpacked
    query_id: str | None  # Spark's names for the batch that it was received for
    query_batch: int | None

    def unpack(self, receipt: ReceiptKey, *, messages: int, largest: int) -> pa.Table:
        """
        Unpack the messages, in rows of QUEUE_ROW: at most so many, none of more bytes.

        Raises:
            PayloadRefused: someone has changed the receipt.
        """
        expected = Expected(
            where="receipt {}/{}/{}".format(*receipt),
            schema=QUEUE_ROW,
            most=CEILING + GROWTH * (STEP + largest) + ROW * messages,  # one more step and message
            size=self.size,
            rows=self.messages,
        )
        return unpack(self.payload, (), expected)


def receipt_values(receipt: ReceiptKey) -> dict[str, Any]:
    return dict(zip(RECEIPT_KEY, receipt, strict=True))


def find_receipt(connection: Connection, receipt: ReceiptKey) -> StoredReceipt | None:
    """Read a receipt; None if there is none. Changes nothing."""
    values = receipt_values(receipt)
    found = connection.rows("find_receipt", **values)
    if not found:
        return None
    payload, *rest = found[0]
    return StoredReceipt(payload or join_pages(connection, values), *rest)


def join_pages(connection: Connection, values: dict[str, Any]) -> bytes:
    """Read the pages of a receipt; empty if it has none."""
    return b"".join(page for (page,) in connection.rows("receipt_pages", **values))


def save(connection: Connection, task: Task, result: TaskResult, origin: Origin) -> None:
    """Write the receipt, also if nothing was received: a replay must then receive nothing again."""
    payload = pack(result.rows)
    connection.rows(
        "save_receipt",
        **receipt_values(task.key),
        queue_name=connection.names.print_address(task.queue),
        messages=result.rows.num_rows,
        expired=result.expired,
        diverted=result.diverted,
        forwarded=result.forwarded,
        bytes=weigh(result.rows),
        query_id=origin.query_id,
        query_batch=origin.query_batch,
        unpacked=payload.size,
        payload=in_row(payload.bytes),
    )
    connection.store("receipt_page", pages(payload.bytes, RECEIPT_KEY, task.key))


# ---------------------------------------------------------------- the acknowledgement


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """What a batch has received, and where the stream stands."""

    batch: int  # the last that is closed
    outcome: Outcome
    messages: int = 0
    expired: int = 0
    diverted: int = 0  # to the error queue
    forwarded: int = 0  # to other queues
    plan: str | None = None  # stored text: of the batch after it, if that was planned before
    queues: dict[str, Acknowledged] = field(default_factory=dict)  # the same of each queue
    is_passed_over: bool = False  # it was below the high-water mark, so its tasks received nothing

    @property
    def counts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COUNTS}


def acknowledge(
    connection: Connection, stream: str, batch: int, who: Claim, *, claim: bool, tasks: int = 0
) -> Acknowledged:
    """
    Close all batches up to `batch`, which Spark has in its commit log, and delete their receipts.

    The row's lock waits for running tasks; those that come later are stale. `claim` takes the
    stream over from the driver before (at the first call of a process). Fewer receipts than the
    `tasks` that were planned cause a warning or an error.

    Raises:
        StreamNotFound, StreamOfOtherQueue, StreamTakenOver, CheckpointRolledBack,
        DatabaseRolledBack, ReceiptsMissing.
    """
    row = lock_stream(connection, stream)
    who.check(row.queue)
    if claim:
        connection.rows("claim", stream=stream, driver=who.driver, queue_name=who.queue)
    elif row.driver != who.driver:
        raise StreamTakenOver(stream=stream)
    if row.acked > batch:
        accept_or_raise(CheckpointRolledBack(stream=stream, start=batch, acked=row.acked), who)
        return Acknowledged(batch=row.acked, outcome=Outcome(0, 0, 0), plan=row.plan)
    # a batch that a return or a drop has closed keeps its other receipts
    first = min(row.acked + 1, batch)
    counts = connection.rows("outcome", stream=stream, first=first, batch=batch)
    # a batch's plan is committed before Spark has its offset, and it follows the acknowledged one
    planned = row.plan_batch == batch or counts
    if row.acked < batch - 1 or (row.acked < batch and not planned):
        went_back(connection, stream, batch, row, who)
    total = count_batch(batch, [each[:6] for _, *each in counts])
    found = total.outcome.tasks
    if row.acked < batch and found < tasks:
        if who.fail_on_missing_receipts:
            missing = ReceiptsMissing(stream=stream, batch=batch, tasks=tasks, found=found)
            accept_or_raise(missing, who)
        else:
            log.warning(MISSING, who.queue, batch, tasks, found)
    origin = name_in_spark(counts)
    passed = not (who.fail_on_data_loss or total.outcome.got)
    passed = passed and is_passed_over(connection, stream, origin)
    if counts or row.acked < batch:
        connection.rows(
            "acknowledge",
            stream=stream,
            batch=batch,
            query_id=origin.query_id,
            query_batch=origin.query_batch,
            **total.counts,
        )
        connection.rows("delete_receipts", stream=stream, first=first, batch=batch)
    queues = {queue: count_batch(batch, [each[:6]]) for queue, *each in counts}
    plan = row.plan_of(batch + 1)
    return replace(total, plan=plan, queues=queues, is_passed_over=passed)


def name_in_spark(counts: Sequence[Row]) -> Origin:
    """Give Spark's names for a batch, by the rows of `outcome`; none where they differ."""
    names = {(query, number) for *_, query, number in counts}
    queries = {query for query, number in names if number is not None}
    if len(queries) != 1 or None in queries:
        return Origin()
    last = max(number for _, number in names if number is not None)
    return Origin(query_id=queries.pop(), query_batch=last)


def is_passed_over(connection: Connection, stream: str, origin: Origin) -> bool:
    """Whether Spark's batch is not above the high-water mark, before it is acknowledged."""
    if origin.query_batch is None:
        return False
    (_, high_water), *_ = connection.rows("fence", stream=stream, query_id=origin.query_id)
    return high_water is not None and origin.query_batch <= high_water


def count_batch(batch: int, rows: Sequence[Sequence[int]]) -> Acknowledged:
    """Sum up what a batch received, by the numbers of rows of `outcome`."""
    tasks, empty, *counts = (sum(row[column] for row in rows) for column in range(6))
    outcome = Outcome(tasks, empty, sum(counts))
    named: dict[str, Any] = dict(zip(COUNTS, counts, strict=True))
    return Acknowledged(batch=batch, outcome=outcome, **named)


# ---------------------------------------------------------------- by an operator


def rows_of(stored: StoredReceipt, receipt: ReceiptKey) -> pa.Table:
    """
    Unpack the messages of a receipt, whatever the options that it was received with.

    Raises:
        PayloadRefused: someone has changed the receipt.
    """
    messages = min(stored.messages, MOST_MESSAGES)
    return stored.unpack(receipt, messages=messages, largest=LARGEST_MESSAGE)


def return_(
    connection: Connection,
    stream: str,
    batch: int,
    task: int,
    queue: QueueAddress,
    *,
    without: Sequence[str] = (),
    allowed: Sequence[QueueAddress] = (),
) -> int:
    """
    Put the messages of a receipt back into their queue; how many.

    They keep their ids, headers, bodies and expiry, and get new seqs, behind all others. A message
    whose expiry is beyond the calendar never expires. `without` are ids of messages that are
    deleted instead, see `has_id`; `allowed` is the option allowedDestinations.

    Raises:
        ReceiptSettled: they were already sent on.
        QueueNotFound, NotAQueue, DestinationRefused: the queue would not take them.
    """
    receipt = stream, batch, task
    removed = delete_receipt(connection, receipt, returns=True)
    if removed is None or not removed.messages:
        return 0
    rows = without_odd_expiries(rows_of(removed, receipt))
    if without:
        rows = rows.filter(pc.invert(has_id(rows, without)))
    if rows.num_rows:
        destinations = Destinations(connection, allowed)
        destinations.lock_and_check([queue])
        connection.load(queue, rows.select(["id", "expires", "headers", "body"]))
        destinations.confirm()
    return int(rows.num_rows)


def drop(connection: Connection, stream: str, batch: int, task: int) -> int:
    """Delete a receipt and its messages; how many."""
    removed = delete_receipt(connection, (stream, batch, task), returns=False)
    return 0 if removed is None else removed.messages


def delete_receipt(
    connection: Connection, receipt: ReceiptKey, *, returns: bool
) -> StoredReceipt | None:
    """Delete a receipt and close its batch; the stream's lock waits for running tasks."""
    stream, batch, task = receipt
    connection.rows("lock_stream", stream=stream)  # its row may be gone
    values = receipt_values(receipt)
    paged = join_pages(connection, values)
    found = connection.rows("drop_receipt", **values)
    if not found:
        return None
    _, messages, settled, payload, size, query_id, query_batch = found[0]
    if settled and returns:
        raise ReceiptSettled(stream=stream, batch=batch, task=task)
    query_id = None if query_batch is None else query_id
    names = {"query_id": query_id, "query_batch": query_batch}
    connection.rows("retire_stream", stream=stream, batch=batch, **names)
    return StoredReceipt(payload or paged, messages, size, query_id, query_batch)
