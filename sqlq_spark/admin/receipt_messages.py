"""One message of a stream's receipts: what a stream has received and not acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.receive.receipts import find_receipt
from sqlq_spark.wire.header_columns import has_id
from sqlq_spark.wire.rows import without_odd_expiries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlq_spark.database import Connection


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message, and the receipt that holds it."""

    receipt: inspect.Receipt
    message: inspect.Message


def find(
    connection: Connection, found: Iterable[inspect.Receipt], name: str, *, timeout: float
) -> Iterator[ReceivedMessage]:
    """
    Look for a message in receipts; changes and locks nothing.

    Args:
        connection: no transaction open.
        found: the receipts, as `inspect.receipts` lists them.
        name: the id of the row, or the header NServiceBus.MessageId.
        timeout: seconds for each statement.

    Yields:
        Each row that has the id. Ids are not unique: a message may have been sent twice.

    Raises:
        PayloadRefused: someone has changed a receipt.
    """
    for each in found:
        with transaction(connection, timeout=timeout):
            stored = find_receipt(connection, each.key)
        if stored is not None:
            rows = stored.unpack(each.key)
            for row in without_odd_expiries(rows.filter(has_id(rows, [name]))).to_pylist():
                yield ReceivedMessage(each, inspect.message(row))
