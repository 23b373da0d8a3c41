"""
The headers that a message gets if its row does not have them.

All rows of a record batch are computed at once, in columns. The value of a header comes from the
first of these that has one:

1. A column of the frame that overrides the header: `correlationId`, `replyToAddress`, `deliverAt`
or `delay`. sender.py has removed the row's own header of that name: see `OwnTexts.without`.
2. The row's own header, in the column `headers`.
3. The default, which this module takes from an option or computes.

The headers in SENT_BY together name the sender. A row with the header TimeSent was sent by another
sender before. It gets none of the headers in SENT_BY, with one exception: the option
originatingEndpoint is a default for all rows.

StartNewTrace is "True" for an event and "False" for all other messages, as endpoints write it. A
row with the header TimeSent keeps what it has. A delayed row with a traceparent gets "True",
because its receiver would otherwise continue a trace that ended long before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.send.own_headers import default
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import id_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    import numpy as np
    import numpy.typing as npt

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.frame import Frame
    from sqlq_spark.send.own_headers import Own
    from sqlq_spark.wire.address import QueueAddress

# headers that say who sent a message
SENT_BY = (wire.ORIGINATING_MACHINE, wire.ORIGINATING_ENDPOINT, wire.HOST_ID)


class NewIds:
    """New ids for the messages of a record batch, and new ids for their conversations."""

    def __init__(self, frame: Frame, ids: npt.NDArray[np.uint8]) -> None:
        self._frame = frame
        self._ids = ids  # two ids for each row

    @cached_property
    def message_ids(self) -> pa.Array:
        """The column `id`. Where it is null, a new id."""
        return pc.coalesce(self._frame.text("id"), id_texts(self._ids[::2]))

    def conversation_ids(self) -> pa.Array:
        return id_texts(self._ids[1::2])


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """
    The default of each header: a column with one text for each row, or one text for all rows.

    If a column of the frame overrides a header, the column counts as its default. This works
    because the rows' own header of that name was removed before.
    """

    options: SinkOptions
    frame: Frame
    own_headers: Own  # the rows' own headers, without headers that a column overrides
    ids: NewIds
    topics: pa.Array | None
    lifetime: pa.Array  # milliseconds
    correlation: pa.Array  # the column `correlationId`
    replies: pa.Array  # the column `replyToAddress`
    deliver_at: pa.Array  # the text of the header DeliverAt; null if the row is not delayed
    traced_later: pa.Array  # "True" for a delayed row with a traceparent, otherwise null
    forward: pa.Array  # where delayed messages go when they are due
    sent: datetime
    sent_by: Mapping[str, str]  # the headers that `name_sender` returned
    write: Callable[[QueueAddress], str]  # returns the text of an address for a header

    def members(self) -> Iterator[pa.Array]:
        """Yield each header as a column: `"name":"value"`, or null if the row has the header."""
        unsent = self.own_headers.missing(wire.TIME_SENT)
        for name, compute in self._columns().items():
            missing = unsent if name == wire.TIME_SENT else self.own_headers.missing(name)
            if name in SENT_BY and not self._is_stated(name):
                missing = pc.and_(missing, unsent)
            elif name == wire.START_NEW_TRACE:
                missing = pc.and_(missing, pc.or_(unsent, self.traced_later.is_valid()))
            # a default is computed only where some row lacks the header
            value = compute() if pc.any(missing).as_py() else None
            if isinstance(value, str) or (value is not None and value.null_count < len(value)):
                yield default(name, value, missing)

    def _is_stated(self, name: str) -> bool:
        """Whether the header is set by the option originatingEndpoint."""
        return name == wire.ORIGINATING_ENDPOINT and self.options.originating_endpoint is not None

    def _columns(self) -> dict[str, Callable[[], pa.Array | str | None]]:
        """
        Return, for each header, a function that computes it.

        The headers are in the order of messages.
        """
        columns: dict[str, Callable[[], pa.Array | str | None]] = {
            wire.MESSAGE_ID: lambda: self.ids.message_ids,
            wire.START_NEW_TRACE: self._new_traces,
            wire.MESSAGE_INTENT: self._intents,
            wire.CONVERSATION_ID: self.ids.conversation_ids,
            wire.CORRELATION_ID: self._correlation_ids,
            wire.REPLY_TO_ADDRESS: self._reply_addresses,
            **{name: partial(self._sender_header, name) for name in SENT_BY},
            wire.ENCLOSED_MESSAGE_TYPES: self._message_types,
            wire.CONTENT_TYPE: lambda: self.options.content_type,
            wire.TIME_SENT: lambda: wire.format_wire_time(self.sent),
            wire.TIME_TO_BE_RECEIVED: self._lifetimes,
        }
        if self.deliver_at.null_count < len(self.deliver_at):
            columns[wire.DELIVER_AT] = lambda: self.deliver_at
            columns[wire.FORWARD_DESTINATION] = lambda: self.forward
        return columns

    def _intents(self) -> pa.Array | str:
        if self.topics is None:
            return self.options.intent
        return pc.if_else(self.topics.is_valid(), "Publish", self.options.intent)

    def _new_traces(self) -> pa.Array | str:
        if self.topics is not None:
            return pc.if_else(
                pc.or_(self.topics.is_valid(), self.traced_later.is_valid()), "True", "False"
            )
        if self.traced_later.null_count == len(self.traced_later):
            return "False"
        return pc.coalesce(self.traced_later, "False")

    def _message_types(self) -> pa.Array | str | None:
        """Return the option messageType. If it is not set, return the topics of published rows."""
        if self.options.message_type is not None or self.topics is None:
            return self.options.message_type
        return pc.binary_join(self.topics, wire.SEPARATOR)

    def _correlation_ids(self) -> pa.Array:
        """Return the column `correlationId`. Where it is null, return the id of the message."""
        own_ids = self.own_headers.text(wire.MESSAGE_ID)
        return pc.coalesce(self.correlation, own_ids, self.ids.message_ids)

    def _reply_addresses(self) -> pa.Array:
        """Return the column `replyToAddress`. Where it is null, return the option of that name."""
        address = self.options.reply_to_address
        return self.replies if address is None else pc.coalesce(self.replies, self.write(address))

    def _sender_header(self, name: str) -> str | None:
        if name in self.sent_by:
            return self.sent_by[name]
        return self.options.originating_endpoint if name == wire.ORIGINATING_ENDPOINT else None

    def _lifetimes(self) -> pa.Array:
        return self.frame.convert(self.lifetime, pa.string(), wire.format_span)
