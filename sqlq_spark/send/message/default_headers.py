"""
The headers that rows to send do not bring themselves, built in columns.

They are written before the row's own headers, in the order of `DefaultHeaders.columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.send import topics as publishing
from sqlq_spark.send.message.own_headers import default, or_none
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import id_texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.message.frame import Frame
    from sqlq_spark.send.message.own_headers import Own
    from sqlq_spark.send.message.sent_by import SentBy
    from sqlq_spark.wire.address import QueueAddress

# headers that say who sent a message
SENT_BY = frozenset({wire.ORIGINATING_MACHINE, wire.ORIGINATING_ENDPOINT, wire.HOST_ID})


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultHeaders:
    """Default headers of the rows of one record batch."""

    frame: Frame
    options: SinkOptions
    own: Own  # the rows' own headers
    own_address: Callable[[QueueAddress], str]  # writes a reply address as messages hold it
    explicit: dict[str, pa.Array]  # header → its values from columns of the frame
    fresh: pa.Array  # two new ids for each row
    lifetime: pa.Array  # milliseconds until a message expires, or null
    topics: pa.Array | None
    delayed: bool  # whether the frame delays rows
    sent: datetime
    sent_by: SentBy | None = None

    def columns(self) -> dict[str, Callable[[], pa.Array | str | None]]:
        """Return header → its values, which are computed only where some row lacks the header."""
        options, topics, by = self.options, self.topics, self.sent_by
        found: dict[str, Callable[[], pa.Array | str | None]] = {
            wire.MESSAGE_ID: self.message_id,
            wire.MESSAGE_INTENT: lambda: publishing.intents(topics, options.intent),
            wire.CONVERSATION_ID: lambda: id_texts(self.fresh[1::2]),
            wire.CORRELATION_ID: self.correlation_id,
            wire.REPLY_TO_ADDRESS: self.reply_to_address,
            wire.ORIGINATING_MACHINE: lambda: None if by is None else by.machine,
            wire.ORIGINATING_ENDPOINT: lambda: (
                options.originating_endpoint if by is None else by.endpoint
            ),
            wire.HOST_ID: lambda: None if by is None else by.host_id,
            wire.ENCLOSED_MESSAGE_TYPES: lambda: (
                options.message_type or publishing.message_types(topics)
            ),
            wire.CONTENT_TYPE: lambda: options.content_type,
            wire.TIME_SENT: lambda: wire.wire_time(self.sent),
            wire.TIME_TO_BE_RECEIVED: lambda: span_texts(self.lifetime),
        }
        if self.delayed:
            found[wire.DELIVER_AT] = lambda: or_none(self.explicit[wire.DELIVER_AT])
        return found

    def message_id(self) -> pa.Array:
        """Return the column `id`, or a new id where it is null."""
        return pc.coalesce(self.frame.text("id"), id_texts(self.fresh[::2]))

    def correlation_id(self) -> pa.Array:
        """Return the column `correlationId`; the message's id where it is null."""
        return pc.coalesce(
            self.explicit[wire.CORRELATION_ID],
            self.own.values_of(wire.MESSAGE_ID),
            self.message_id(),
        )

    def reply_to_address(self) -> pa.Array | None:
        """Return the column `replyToAddress`; the option's value where it is null."""
        address = self.options.reply_to_address
        option = pa.scalar(None if address is None else self.own_address(address), pa.string())
        return or_none(pc.coalesce(self.explicit[wire.REPLY_TO_ADDRESS], option))

    def types_of_sink(self) -> pa.Array:
        """Return which rows get a message type that is not their own, as booleans."""
        lacking = self.own.lacking(wire.ENCLOSED_MESSAGE_TYPES)
        if self.options.message_type is not None:
            return lacking
        if self.topics is None:
            return pa.repeat(pa.scalar(value=False), self.frame.rows)
        return pc.and_(lacking, self.topics.is_valid())

    def by_default(self) -> frozenset[str]:
        """Return the headers that only rows get that nobody has sent before."""
        stated = self.options.originating_endpoint is not None
        return SENT_BY - {wire.ORIGINATING_ENDPOINT} if stated else SENT_BY

    def joined_with_own(self) -> pa.Array:
        """Return the header texts: defaults first, then the row's own headers."""
        parts, first_only = [], self.by_default()
        unsent = self.own.lacking(wire.TIME_SENT)
        for name, compute in self.columns().items():
            lacking = unsent if name == wire.TIME_SENT else self.own.lacking(name)
            if name in first_only:
                lacking = pc.and_(lacking, unsent)
            value = compute() if pc.any(lacking).as_py() else None
            if value is not None:
                parts.append(default(name, value, lacking))
        inner = pc.binary_join_element_wise(*parts, self.own.texts(), ",", null_handling="skip")
        return pc.binary_join_element_wise("{", inner, "}", "")


def span_texts(lifetimes: pa.Array) -> pa.Array | None:
    """Return TimeToBeReceived as its header writes it; None where no row has one."""
    if lifetimes.null_count == len(lifetimes):
        return None
    coded = lifetimes.dictionary_encode()
    texts = [wire.format_span(each) for each in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)
