"""
Refuses rows with a message type and without a body.

An endpoint runs no handler for such a message. It goes to the audit queue as if it was handled, and
nothing is in the error queue (tried with NServiceBus 9.2 and 10.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sqlq_spark.send.message.frame import Frame
    from sqlq_spark.send.message.own_headers import Own

REASON = (
    "body is empty, and the message has a type: an endpoint runs no handler for it, and reports no "
    "error. Give it a body, such as {}, or the header NServiceBus.ControlMessage with the value "
    "True if its receiver expects a message without a body"
)
SENT_BEFORE = (wire.MESSAGE_ID, wire.TIME_SENT, wire.FAILED_Q)


def refuse_empty_bodies(frame: Frame, own: Own, sink_types: Callable[[], pa.Array]) -> None:
    """
    Refuse a row that is made here, has a type, has zero bytes, and is no control message.

    Args:
        frame: the rows.
        own: their own headers.
        sink_types: computes which rows get a type from the sink's options or from their topics.

    Raises:
        BadMessage.
    """
    empty = pc.equal(pc.binary_length(frame.batch.column("body")), 0)
    if not pc.any(empty).as_py():
        return
    own_types = has_text(own, wire.ENCLOSED_MESSAGE_TYPES)
    typed = pc.or_(own_types, sink_types())
    control = pc.fill_null(
        pc.equal(pc.utf8_lower(own.values_of(wire.CONTROL_MESSAGE)), "true"), fill_value=False
    )
    exempt = pc.or_(control, _passed_on(frame, own, own_types))
    frame.refuse(pc.and_(pc.and_(empty, typed), pc.invert(exempt)), REASON)


def has_text(own: Own, name: str) -> pa.Array:
    """Return which rows have a header that is not empty, as booleans."""
    return pc.fill_null(pc.not_equal(own.values_of(name), ""), fill_value=False)


def _passed_on(frame: Frame, own: Own, own_types: pa.Array) -> pa.Array:
    """
    Which rows are messages that another sender made.

    They have an id or a time from there. `forward` and the functions like it give their rows the
    column `id`, also where the message has no such header.
    """
    found = pc.and_(own_types, frame.text("id").is_valid())
    for name in SENT_BEFORE:
        found = pc.or_(found, pc.invert(own.lacking(name)))
    return found
