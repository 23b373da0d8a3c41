"""
Make rows for the error queue of messages that cannot be sent to their destination.

The option `undeliverable` of a sink names that error queue. Headers of a diverted message say why
it is there. Forwarding uses the same headers for its own error queue: see receive/forward.py.
Nothing is inserted here: insert.py does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.send.chunk import (
    CHUNK_FAULT,
    add_ids,
    find_named,
    find_waiting,
    names_of_queues,
    read_fault,
)
from sqlq_spark.send.routes import destination_of
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import LONGEST_ADDRESS
from sqlq_spark.wire.header_columns import parse_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions

MOST_NAMED = 5  # how many destinations a warning names
LONGEST_REASON = 16_384  # characters; the transport cuts ExceptionInfo.Message at this length
NOWHERE = "the row has no queue, and the sink has no option queue; a reply needs a ReplyToAddress"


@dataclass(frozen=True, slots=True)
class Diverted:
    """Messages for the error queue. Their headers say why they go there."""

    texts: list[str]  # the headers of each message
    bodies: list[pa.Array]  # the arrays together have one body for each message
    reasons: dict[str, SqlQueueError]  # destination or fault → why


def divert_faulty(connection: Connection, chunk: pa.Table) -> tuple[pa.Table, list[Diverted]]:
    """
    Return the messages without a fault in CHUNK_FAULT. Return the faulty ones as Diverted.

    The texts of faulty messages were changed to valid UTF-8. So they get no header FailedQ: without
    it no tool can send them on before a person has looked at them.
    """
    if CHUNK_FAULT.name not in chunk.column_names:
        return chunk, []
    faults = chunk[CHUNK_FAULT.name]
    faulty = chunk.filter(pc.is_valid(faults))
    reasons = [read_fault(text) for text in faulty[CHUNK_FAULT.name].to_pylist()]
    if not reasons:
        return chunk, []
    added = [failure_headers(connection, None, reason) for reason in reasons]
    diverted = _divert(faulty, added, {reason.reason: reason for reason in reasons})
    return chunk.filter(pc.is_null(faults)), [diverted]


def divert_unreadable(
    connection: Connection, options: SinkOptions, chunk: pa.Table
) -> tuple[pa.Table, list[Diverted]]:
    """Return the messages whose destination can be read. Return the others as Diverted."""
    reasons: dict[str | None, SqlQueueError] = {}
    for name in names_of_queues(chunk):
        try:
            destination_of(name, options)
        except errors.BadInput as error:
            is_absent = name is None
            reasons[name] = errors.BadAddress(text="", reason=NOWHERE) if is_absent else error
    if not reasons:
        return chunk, []
    is_unreadable = find_named(chunk, reasons)
    unreadable = chunk.filter(is_unreadable)
    added = {name: failure_headers(connection, name, reasons[name]) for name in reasons}
    diverted = _divert(
        unreadable,
        [added[name] for name in unreadable["queue"].to_pylist()],
        {name or "": reason for name, reason in reasons.items()},
    )
    return chunk.filter(pc.invert(is_unreadable)), [diverted]


def divert_refused(
    connection: Connection, messages: pa.Table, address: str, reason: SqlQueueError
) -> Diverted:
    """Return messages as Diverted, because their untrusted destination `address` refuses them."""
    added = failure_headers(connection, address, reason)
    return _divert(messages, [added] * messages.num_rows, {address: reason})


def _divert(
    messages: pa.Table, added: Sequence[dict[str, str]], reasons: dict[str, SqlQueueError]
) -> Diverted:
    """
    Add to each message headers that say why it is diverted.

    They replace a FailedQ of an earlier failure. A delayed message also loses the header
    ForwardDestination.
    """
    waiting = find_waiting(messages)
    are_delayed = [False] * messages.num_rows if waiting is None else waiting.to_pylist()
    texts = []
    for text, more, is_delayed in zip(
        messages["headers"].to_pylist(), added, are_delayed, strict=True
    ):
        headers = parse_headers(text) or {}
        headers.pop(wire.FAILED_Q, None)
        if is_delayed:
            headers.pop(wire.FORWARD_DESTINATION, None)
        texts.append(wire.dumps(headers | more))
    return Diverted(texts, messages["body"].chunks, reasons)


def failure_headers(
    connection: Connection, destination: str | None, reason: SqlQueueError
) -> dict[str, str]:
    """
    Return the headers that a failure adds to a message.

    `destination`, which is untrusted, becomes the header FailedQ. `sqlqueue retry` sends the
    message there. If `destination` is None, there is no header FailedQ.
    """
    # the url is removed, because the message with this header may leave the database
    text = str(reason).replace(connection.server, "this database")
    headers = {
        f"{wire.EXCEPTION_INFO}ExceptionType": f"sqlq_spark.errors.{type(reason).__name__}",
        f"{wire.EXCEPTION_INFO}Message": text[:LONGEST_REASON],
        wire.TIME_OF_FAILURE: wire.format_wire_time(datetime.now(UTC)),
    }
    if destination is not None:
        headers[wire.FAILED_Q] = destination[:LONGEST_ADDRESS]
    return headers


def rows_to_store(texts: Sequence[str], bodies: pa.ChunkedArray) -> pa.Table:
    """Return rows of a queue, with new ids and without expiry. A null body becomes empty."""
    rows = {"headers": pa.array(texts, pa.string()), "body": pc.fill_null(bodies, b"")}
    return add_ids(pa.table(rows))


def diverted_rows(diverted: Iterable[Diverted]) -> pa.Table:
    """Return the rows that the error queue gets for all diverted messages."""
    texts = [text for some in diverted for text in some.texts]
    bodies = [body for some in diverted for body in some.bodies]
    return rows_to_store(texts, pa.chunked_array(bodies, pa.binary()))


def list_reasons(reasons: Sequence[SqlQueueError]) -> str:
    """Return one line of a log with the first few reasons. Reasons quote untrusted text."""
    first = "; ".join(ascii(str(reason)[:300]) for reason in reasons[:MOST_NAMED])
    more = len(reasons) - MOST_NAMED
    return first + (f"; and {more} more destinations" if more > 0 else "")
