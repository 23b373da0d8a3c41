"""
The end of receipts: the driver acknowledges a batch, or an operator returns or drops a receipt.

database/receipt_moves.py lists the moves of a receipt.

A batch is open while `batch > acked_batch` of its stream; a task of another batch is stale.
An acknowledgement also raises the high-water mark of Spark's query: none of its streams receives
for that batch of Spark again.
To return or drop a receipt closes its batch in both, so that a checkpoint that comes back cannot
receive for it again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sqlq_spark.database.trust import SENT, Destinations
from sqlq_spark.errors import (
    CheckpointRolledBack,
    DatabaseRolledBack,
    ReceiptSettled,
    ReceiptsMissing,
    StreamTakenOver,
)
from sqlq_spark.options.parse import LARGEST_MESSAGE
from sqlq_spark.receive.driver.pace import Outcome
from sqlq_spark.receive.stored_receipt import StoredReceipt, join_pages, receipt_values
from sqlq_spark.receive.streams import accept_or_raise, lacks_commits, lock_stream
from sqlq_spark.wire.header_columns import has_id
from sqlq_spark.wire.rows import Origin, without_odd_expiries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection, Row
    from sqlq_spark.database.receipt_moves import Move, ReceiptKey
    from sqlq_spark.receive.streams import Claim
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

MOST_MESSAGES = 10_000_000  # of a receipt, for its bound: that of an operator's has no plan

# a sink may read only a part of a batch; what it has not read waits for the next one
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: its sink did not read all of it, or the "
    "database has lost commits (a standby that was behind took over); in that case messages that "
    "the sink has come again"
)


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


# ---------------------------------------------------------------- the acknowledgement


def acknowledge(
    connection: Connection, stream: str, batch: int, who: Claim, *, claim: bool, tasks: int = 0
) -> Acknowledged:
    """
    Close all batches up to `batch` and delete their receipts, in the transaction that is open.

    The row's lock waits for running tasks; those that come later are stale.

    Args:
        connection: in a transaction.
        stream: from the checkpoint.
        batch: Spark has it in its commit log.
        who: this driver.
        claim: take the stream over from the driver before (at the first call of a process).
        tasks: how many the batch was planned for; fewer receipts cause a warning or an error.

    Raises:
        StreamNotFound, StreamOfOtherQueue, StreamTakenOver, CheckpointRolledBack,
        DatabaseRolledBack, ReceiptsMissing.
    """
    row = lock_stream(connection, stream)
    who.check(row.queue)
    if claim:
        connection.run("claim", stream=stream, driver=who.driver, queue_name=who.queue)
    elif row.driver != who.driver:
        raise StreamTakenOver(stream=stream)
    if row.acked > batch:
        accept_or_raise(CheckpointRolledBack(stream=stream, start=batch, acked=row.acked), who)
        return Acknowledged(batch=row.acked, outcome=Outcome(0, 0, 0), plan=row.plan)
    # a batch that a return or a drop has closed keeps its other receipts
    first = min(row.acked + 1, batch)
    counts = connection.rows("outcome", stream=stream, first=first, batch=batch)
    if lacks_commits(row, batch, found=bool(counts)):
        accept_or_raise(
            DatabaseRolledBack(
                stream=stream, start=batch, acked=row.acked, server=connection.server
            ),
            who,
        )
    total = count_batch(batch, [each[:6] for _, *each in counts])
    if row.acked < batch and total.outcome.tasks < tasks:
        miss_receipts(stream, batch, tasks, total.outcome.tasks, who)
    origin = name_in_spark(counts)
    passed = not (who.fail_on_data_loss or total.outcome.got)
    passed = passed and is_passed_over(connection, stream, origin)
    if counts or row.acked < batch:
        close_batch(connection, stream, first, total, origin)
    queues = {queue: count_batch(batch, [each[:6]]) for queue, *each in counts}
    plan = row.plan_of(batch + 1)
    return replace(total, plan=plan, queues=queues, is_passed_over=passed)


def miss_receipts(stream: str, batch: int, tasks: int, found: int, who: Claim) -> None:
    """
    Report a batch that has fewer receipts than tasks.

    Raises:
        ReceiptsMissing: the options failOnMissingReceipts and failOnDataLoss ask for it.
    """
    if who.fail_on_missing_receipts:
        accept_or_raise(ReceiptsMissing(stream=stream, batch=batch, tasks=tasks, found=found), who)
    else:
        log.warning(MISSING, who.queue, batch, tasks, found)


def close_batch(
    connection: Connection, stream: str, first: int, total: Acknowledged, origin: Origin
) -> None:
    """Raise the acknowledged batch of stream and query, and delete the receipts from `first` on."""
    connection.run(
        "acknowledge",
        stream=stream,
        batch=total.batch,
        messages=total.messages,
        expired=total.expired,
        diverted=total.diverted,
        forwarded=total.forwarded,
        query_id=origin.query_id,
        query_batch=origin.query_batch,
    )
    connection.run("delete_receipts", stream=stream, first=first, batch=total.batch)


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
    tasks, empty, messages, expired, diverted, forwarded = (
        sum(row[column] for row in rows) for column in range(6)
    )
    return Acknowledged(
        batch=batch,
        outcome=Outcome(tasks, empty, messages + expired + diverted + forwarded),
        messages=messages,
        expired=expired,
        diverted=diverted,
        forwarded=forwarded,
    )


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
    Put the messages of a receipt back into their queue, in the transaction that is open.

    They keep their ids, headers, bodies and expiry, and get new seqs, behind all others. A message
    whose expiry is beyond the calendar never expires.

    Args:
        connection: in a transaction.
        stream: of the receipt,
        batch: its batch,
        task: and its task.
        queue: of the receipt.
        without: ids of messages that are deleted instead, see `has_id`.
        allowed: the option allowedDestinations.

    Returns:
        How many.

    Raises:
        ReceiptSettled: they were already sent on.
        QueueNotFound, NotAQueue, DestinationRefused: the queue would not take them.
    """
    receipt = stream, batch, task
    removed = delete_receipt(connection, "return_", receipt)
    if removed is None or not removed.messages:
        return 0
    rows = without_odd_expiries(rows_of(removed, receipt))
    if without:
        rows = rows.filter(pc.invert(has_id(rows, without)))
    if rows.num_rows:
        destinations = Destinations(connection, allowed)
        destinations.lock_and_check([queue])
        connection.load(queue, rows.select(SENT))
        destinations.confirm()
    return int(rows.num_rows)


def drop(connection: Connection, stream: str, batch: int, task: int) -> int:
    """Delete a receipt and its messages; the arguments and the result are those of `return_`."""
    removed = delete_receipt(connection, "drop", (stream, batch, task))
    return 0 if removed is None else removed.messages


def delete_receipt(connection: Connection, move: Move, receipt: ReceiptKey) -> StoredReceipt | None:
    """Delete a receipt and close its batch; the stream's lock waits for running tasks."""
    stream, batch, task = receipt
    connection.run("lock_stream", stream=stream)  # its row may be gone
    values = receipt_values(receipt)
    paged = join_pages(connection, values)
    found = connection.rows("drop_receipt", **values)
    if not found:
        return None
    _, messages, settled, payload, size, query_id, query_batch = found[0]
    if settled and move == "return_":
        raise ReceiptSettled(stream=stream, batch=batch, task=task)
    query_id = None if query_batch is None else query_id
    names = {"query_id": query_id, "query_batch": query_batch}
    connection.run("retire_stream", stream=stream, batch=batch, **names)
    return StoredReceipt(payload or paged, messages, size, query_id, query_batch)
