"""
The receipt in its table: what one task has received, written and read in the open transaction.

It has one row. A large payload is in pages, which are rows of another table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark.database.receipt_moves import name_receipt
from sqlq_spark.wire.payload import RECEIPT_KEY, Expected, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import QUEUE_ROW, weigh

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.receipt_moves import ReceiptKey
    from sqlq_spark.receive.task import Kept, Task
    from sqlq_spark.wire.rows import Origin

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20
# bytes of a row beside headers and body; a text may grow so many times as UTF-8
ROW, GROWTH = 64, 3


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
        Unpack the messages, in rows of QUEUE_ROW.

        Args:
            receipt: its name in an error.
            messages: how many it may hold.
            largest: bytes of a message that it may hold.

        Raises:
            PayloadRefused: someone has changed the receipt.
        """
        expected = Expected(
            where=name_receipt(receipt),
            schema=QUEUE_ROW,
            most=CEILING + GROWTH * (STEP + largest) + ROW * messages,  # one more step and message
            size=self.size,
            rows=self.messages,
        )
        return unpack(self.payload, (), expected)


def receipt_values(receipt: ReceiptKey) -> dict[str, Any]:
    """Give the parameters of statements on a receipt."""
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


def save(connection: Connection, task: Task, kept: Kept, origin: Origin) -> None:
    """Write the receipt, also if nothing was received: a replay must then receive nothing again."""
    payload = pack(kept.rows)
    connection.run(
        "save_receipt",
        **receipt_values(task.key),
        queue_name=connection.names.print_address(task.queue),
        messages=kept.rows.num_rows,
        expired=kept.expired,
        diverted=kept.diverted,
        forwarded=kept.forwarded,
        bytes=weigh(kept.rows),
        query_id=origin.query_id,
        query_batch=origin.query_batch,
        unpacked=payload.size,
        payload=in_row(payload.bytes),
    )
    connection.store("receipt_page", pages(payload.bytes, RECEIPT_KEY, task.key))
