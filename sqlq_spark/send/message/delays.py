"""
The delays of rows to send, in columns: the frame's, and the headers that follow from them.

A row waits for a time span (`delay`), waits until a time (`deliverAt`), or is sent at once. The
database computes when it is due, in the transaction that stores it: see delayed.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from sqlq_spark.send.message.frame import Frame

# columns of a chunk whose frame delays rows; a row has one of them or neither
CHUNK_DELAYS = {
    "delay": pa.field("delay", pa.int64()),  # milliseconds
    "due": pa.field("due", pa.timestamp("us")),  # UTC
}
MOMENT = pa.timestamp("us", "UTC")
# a due time between them is a valid time for the database, Python and .NET, in every time zone
FIRST, STOP = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def read_delays(frame: Frame, lifetime: pa.Array) -> dict[str, pa.Array]:
    """
    Return the columns `delay` and `due` of a record batch, each only where the frame has it.

    Args:
        frame: the rows.
        lifetime: milliseconds until they expire, or null.

    Raises:
        BadMessage: a delay is negative or too long, a time is outside of what .NET can read, or a
            row has both, or a time-to-be-received beside one, which the transport refuses too.
    """
    delay = frame.milliseconds("delay", wire.LONGEST_DELAY, "365,000 days")
    due = _read_times(frame)
    if delay is not None and due is not None:
        both = pc.and_(delay.is_valid(), due.is_valid())
        frame.refuse(both, "it has both deliverAt and delay: leave one of them null")
    found = {"delay": delay, "due": due}
    later = {name: column for name, column in found.items() if column is not None}
    if later:
        frame.refuse(
            pc.and_(_any_valid(later), lifetime.is_valid()),
            "it has a delay and a time-to-be-received, from its column or from the option "
            "timeToBeReceived: the transport cannot delay a message that expires",
        )
    return later


def _read_times(frame: Frame) -> pa.Array | None:
    column = frame.column("deliverAt")
    if column is None:
        return None
    moments = column.cast(MOMENT)
    outside = pc.or_(
        pc.less(moments, pa.scalar(FIRST, MOMENT)),
        pc.greater_equal(moments, pa.scalar(STOP, MOMENT)),
    )
    frame.refuse(outside, "deliverAt is outside of the years 1900 to 9998")
    return moments.cast(pa.timestamp("us"))


def _any_valid(later: dict[str, pa.Array]) -> pa.Array:
    valid = [column.is_valid() for column in later.values()]
    return valid[0] if len(valid) == 1 else pc.or_(*valid)


def delay_headers(later: dict[str, pa.Array], sent: datetime) -> dict[str, pa.Array]:
    """
    Return the headers of delayed rows: DeliverAt, and no ForwardDestination of the row's own.

    Args:
        later: of `read_delays`.
        sent: when a delay starts, for DeliverAt only; the database computes the due time.
    """
    if not later:
        return {}
    moments = []
    if "due" in later:
        moments.append(later["due"])
    if "delay" in later:
        wait = pc.multiply(later["delay"], 1000).cast(pa.duration("us"))
        start = pa.scalar(sent.astimezone(UTC).replace(tzinfo=None), pa.timestamp("us"))
        moments.append(pc.add(start, wait))
    at = pc.coalesce(*moments)
    whole = pc.replace_substring(pc.strftime(at, "%Y-%m-%d %H:%M:%S"), ".", ":")
    none = pa.scalar(None, pa.string())
    return {
        wire.DELIVER_AT: pc.binary_join_element_wise(whole, "Z", " "),
        wire.FORWARD_DESTINATION: pc.if_else(at.is_valid(), "", none),
    }


def append_delays(chunk: pa.Table, later: dict[str, pa.Array]) -> pa.Table:
    """Return a chunk with the columns of its delays, if it has any."""
    for name, column in later.items():
        chunk = chunk.append_column(CHUNK_DELAYS[name], column)
    return chunk
