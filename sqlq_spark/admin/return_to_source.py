"""
Return to source: moves messages of an error queue to the queues where they failed.

`give_back` returns planned messages batch by batch, one destination after the other. Each batch is
one transaction: it deletes messages that are not locked from the error queue, and inserts them
where they failed. The inserted row lacks the headers that the failure added, and does not expire.

A message is in exactly one of the two queues at any time. An interrupted return can be run again,
because returned messages are no longer in the error queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.errors import (
    DestinationRefused,
    MessageChanged,
    NotAQueue,
    QueueNotFound,
    QueueNotWritable,
    RightMissing,
    SqlQueueError,
    StatementRefused,
)
from sqlq_spark.send.insert import add_ids
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import (
    FAILED_Q,
    FAULT_PREFIXES,
    MESSAGE_ID,
    dumps,
)
from sqlq_spark.wire.rows import sort_by_seq, uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.failed_messages import Failed, Plan
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.wire.address import QueueAddress

BATCH = 1000  # messages in one transaction
BATCH_BYTES = 16 << 20  # of headers and bodies in one transaction, but at least one message

# errors that another attempt would raise again
REFUSALS = (
    QueueNotFound,
    NotAQueue,
    QueueNotWritable,
    DestinationRefused,
    RightMissing,
    StatementRefused,
)


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a batch."""

    destination: QueueAddress
    messages: int  # that were returned
    skipped: int = 0  # that others have locked, or that were gone
    left: int = 0  # that stay, including later batches of the destination
    reason: SqlQueueError | None = None  # why they stay


def give_back(
    session: Session,
    errors: QueueAddress,
    planned: Plan,
    *,
    batch: int = BATCH,
    allowed: Sequence[QueueAddress] = (),
) -> Iterator[Returned]:
    """
    Return the planned messages, each batch in one transaction. A lost connection is retried.

    A batch that is run twice finds its messages gone and does nothing.

    Args:
        session: no transaction open.
        errors: the error queue.
        planned: see `plan`.
        batch: messages in one transaction, at most.
        allowed: the option allowedDestinations, as in `plan`.

    Returns:
        The result of each batch, after its commit. If a destination refuses a batch for a reason
        that will not change, its later batches are not tried.

    Raises:
        DatabaseFailure: the earlier batches are returned, the others stay in the error queue.
    """
    for destination, chosen in planned.returning.items():
        left = len(chosen)
        for part in parts(chosen, batch):
            try:
                messages = session.run_with_retries(
                    partial(
                        return_batch,
                        errors=errors,
                        destination=destination,
                        chosen=part,
                        timeout=session.options.query_timeout,
                        allowed=allowed,
                    )
                )
            except Refused as error:
                yield Returned(destination, 0, left=left, reason=error.reason)
                break
            left -= len(part)
            yield Returned(destination, messages, skipped=len(part) - messages)


def parts(chosen: Sequence[Failed], batch: int) -> Iterator[list[Failed]]:
    """Cut into batches, by the number of messages and by their bytes."""
    part: list[Failed] = []
    weight = 0
    for each in chosen:
        if part and (len(part) == batch or weight + each.bytes > BATCH_BYTES):
            yield part
            part, weight = [], 0
        part.append(each)
        weight += each.bytes
    if part:
        yield part


class Refused(Exception):
    """A destination accepts no message. The transaction is rolled back and not retried."""

    def __init__(self, reason: SqlQueueError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def return_batch(
    connection: Connection,
    *,
    errors: QueueAddress,
    destination: QueueAddress,
    chosen: Sequence[Failed],
    timeout: float,
    allowed: Sequence[QueueAddress],
) -> int:
    """
    Move messages from the error queue to where they failed, in one transaction.

    The messages are found by seq. If a table was emptied and its sequence restarted, other messages
    may have these numbers. The ids are therefore compared, and then nothing is moved.

    Returns:
        How many were moved; the others are locked or gone.

    Raises:
        Refused, MessageChanged, DatabaseFailure: none was moved.
    """
    with transaction(connection, timeout=timeout):
        ids = {each.seq: each.id for each in chosen}
        taken = sort_by_seq(connection.arrow("take", tables={"queue": errors}, seqs=[*ids]))
        for seq, row in zip(taken["seq"].to_pylist(), taken["id"].to_pylist(), strict=True):
            if ids[seq] != uuid_text(row):
                raise MessageChanged(row=uuid_text(row), queue=connection.printed(errors))
        if taken.num_rows:
            rows = to_source(connection, errors, destination, taken)
            known = Destinations(connection, allowed, source=errors, by_header=True)
            try:
                known.lock_and_check([destination], RETURNED)
                connection.load(destination, rows)
            except REFUSALS as error:
                raise Refused(error) from None
            known.confirm()
    return int(taken.num_rows)


def to_source(
    connection: Connection, errors: QueueAddress, destination: QueueAddress, taken: pa.Table
) -> pa.Table:
    """Make the rows to insert where the messages failed; a null body becomes empty."""
    texts = []
    for row, text in zip(taken["id"].to_pylist(), taken["headers"].to_pylist(), strict=True):
        headers = parse_headers(text) or {}
        source = headers.get(FAILED_Q)
        if not source or connection.names.parse_address(source) != destination:
            raise MessageChanged(row=uuid_text(row), queue=connection.printed(errors))
        texts.append(dumps(remove_faults(headers, uuid_text(row))))
    body = pc.fill_null(taken["body"], b"")
    return add_ids(pa.table({"headers": pa.array(texts, pa.string()), "body": body}))


def remove_faults(headers: dict[str, str | None], row: str) -> dict[str, str | None]:
    """
    Remove the headers that the failure added.

    A message without the header MessageId is known by its row's id. It gets that id as a header,
    because the returned row has a new id.
    """
    kept = {name: value for name, value in headers.items() if not name.startswith(FAULT_PREFIXES)}
    return kept if MESSAGE_ID in kept else {MESSAGE_ID: row, **kept}
