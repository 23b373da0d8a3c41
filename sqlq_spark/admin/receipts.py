"""
What an operator does with receipts: return their messages to the queue, or drop them.

Both run in the caller's transaction, and both close the receipt's batch for its stream and for
Spark's query. So if an old checkpoint is restored, its stream cannot receive for that batch again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sqlq_spark.database.destinations import SENT_COLUMNS
from sqlq_spark.database.trust import Use, use
from sqlq_spark.errors import ReceiptSettled
from sqlq_spark.receive.receipts import StoredReceipt, StreamRow, join_pages, receipt_values
from sqlq_spark.wire.header_columns import has_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.batch import ReceiptKey
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class DroppedReceipt(StoredReceipt):
    """A receipt that an operator deleted: the row that `drop_receipt` returns."""

    queue: str
    settled: bool


def return_receipt(
    connection: Connection,
    receipt: ReceiptKey,
    queue: QueueAddress,
    *,
    without: Sequence[str] = (),
) -> int:
    """
    Put the messages of a receipt back into their queue, and return how many.

    The messages keep their ids, headers, bodies and expiry. They get new seqs, higher than those of
    all other messages. `without` has ids of messages that are deleted instead, see `has_id`.

    Raises:
        ReceiptSettled: the messages were already sent on.
        QueueNotFound, NotAQueue, TableRefused: the queue does not accept the messages.
    """
    dropped = delete_receipt(connection, receipt, returns=True)
    if dropped is None or not dropped.messages:
        return 0
    rows = dropped.unpack(receipt)
    if without:
        rows = rows.filter(pc.invert(has_id(rows, without)))
    if rows.num_rows:
        use(connection, [queue], Use("insert", SENT_COLUMNS))
        connection.load(queue, rows.select(["id", "expires", "headers", "body"]))
    return int(rows.num_rows)


def drop_receipt(connection: Connection, receipt: ReceiptKey) -> int:
    """Delete a receipt with its messages, and return how many messages it had."""
    dropped = delete_receipt(connection, receipt, returns=False)
    return 0 if dropped is None else dropped.messages


def delete_receipt(
    connection: Connection, receipt: ReceiptKey, *, returns: bool
) -> DroppedReceipt | None:
    """
    Delete a receipt and close its batch. Return None if there is no such receipt.

    This locks the stream's row, so it waits for running tasks. If `returns`, the caller will put
    the messages back into the queue, and a settled receipt raises ReceiptSettled.
    """
    stream, batch, task = receipt
    connection.row("lock_stream", StreamRow, stream=stream)  # returns None if the row is gone
    values = receipt_values(receipt)
    paged = join_pages(connection, values)
    dropped = connection.row("drop_receipt", DroppedReceipt, tables=None, **values)
    if dropped is None:
        return None
    if dropped.settled and returns:
        raise ReceiptSettled(stream=stream, batch=batch, task=task)
    connection.run(
        "close_batch",
        stream=stream,
        batch=batch,
        query_id=None if dropped.spark_batch is None else dropped.query_id,
        spark_batch=dropped.spark_batch,
    )
    return replace(dropped, payload=dropped.payload or paged)
