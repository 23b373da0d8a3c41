"""
Make messages of the rows of a DataFrame: their ids, headers and lifetimes, in chunks.

All rows of a record batch are computed at once, in columns. The headers are complete when they
leave the executor. The driver only copies them.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.errors import BadMessage, BadOption
from sqlq_spark.options.names import parse_destination
from sqlq_spark.send.chunk import (
    CHUNK_DELAYS,
    CHUNK_FAULT,
    CHUNK_ID,
    CHUNK_ROW,
    CHUNK_TOPICS,
    write_fault,
)
from sqlq_spark.send.defaults import SENT_BY, Defaults, NewIds
from sqlq_spark.send.frame import MOMENT, ROW_ID, Frame
from sqlq_spark.send.own_headers import OwnTexts, default, join_members
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import with_legacy_columns
from sqlq_spark.wire.rows import id_texts, random_ids, split_by_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.own_headers import Own
    from sqlq_spark.wire.address import QueueAddress

CHUNK_BYTES = 16 << 20

UNNAMED = "Spark"  # the sender's name if no name of the query or the application is known
# a message that has one of these headers was made by another sender
SENT_BEFORE = (wire.MESSAGE_ID, wire.TIME_SENT, wire.FAILED_Q)
# The reason for which a message with a type but an empty body is refused. Without this check an
# endpoint would take such a message, run no handler, and send it to the audit queue as if it was
# handled (tried with NServiceBus 9.2 and 10.2).
EMPTY = (
    "body is empty, and the message has a type: an endpoint runs no handler for it, and reports no "
    "error. Give it a body, such as {}, or the header NServiceBus.ControlMessage with the value "
    "True if its receiver expects a message without a body"
)


def own_clock() -> datetime:
    return datetime.now(UTC)


def name_sender(endpoint: str | None) -> dict[str, str]:
    """
    Return the headers by which ServiceControl and ServicePulse know the sender of a write.

    The driver calls this once, so that all attempts of a task write the same headers. One of them
    is the host id, which has 32 hexadecimal digits, as endpoints write it (seen with NServiceBus
    10.2). An endpoint makes it by hashing the path of its program and the machine's name. This
    function hashes the sender's name instead of the path.
    """
    name = endpoint or UNNAMED
    machine = socket.gethostname()
    host_id = hashlib.sha256(f"{name}\0{machine}".encode()).hexdigest()[:32]
    return dict(zip(SENT_BY, (machine, name, host_id), strict=True))


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Makes messages from the rows of one task."""

    options: SinkOptions
    partition: int
    seed: bytes | None = None  # a task with the same seed makes the same message ids
    sent: datetime | None = None  # the header TimeSent; if it is None, the current time
    # With asReceived, this clock decides which messages have expired since they were received.
    # Without asReceived it is not used.
    clock: Callable[[], datetime] = own_clock
    # Returns the text of an address for a header. If it is None, the dialect's own text is used.
    own_address: Callable[[QueueAddress], str] | None = None
    # whether a row's own queue overrides the option `queue`, as on the command line
    rows_choose: bool = False
    # columns in which trailing blanks are not part of a text: see `padded_texts`
    padded: frozenset[tuple[str, str]] = frozenset()
    # headers from `name_sender`; if empty, only the option originatingEndpoint names the sender
    sent_by: dict[str, str] = field(default_factory=dict)

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield messages in chunks, each with about CHUNK_BYTES bytes at most."""
        parts: list[pa.Table] = []  # parts of the next chunk
        weight = 0  # bytes of all parts
        row = 0  # number in the partition of the first row of the next record batch
        for batch in batches:
            messages = self.messages(batch, row)
            row += batch.num_rows
            for part in split_by_size(messages, CHUNK_BYTES):
                if parts and weight + part.nbytes > CHUNK_BYTES:
                    yield _unite(parts)
                    parts = []
                    weight = 0
                parts.append(part)
                weight += part.nbytes
        if parts:
            yield _unite(parts)

    def messages(self, batch: pa.RecordBatch, row: int) -> pa.Table:
        """Return the messages of a record batch, whose first row is row `row` of the partition."""
        options = self.options
        frame = Frame(batch, self.partition, row).without_padding(self.padded)
        frame, faults = self._find_faults(frame)
        lifetime = frame.lifetimes(options.time_to_be_received)
        if options.as_received:
            lifetime = pc.coalesce(frame.remaining(self.clock), lifetime)
        if self._rows_choose_queue:
            queues = frame.text("queue")
        else:
            queues = pa.nulls(frame.rows, pa.string())
        topics = frame.topics(queues, options)
        delays = frame.delays(lifetime)
        headers = self._headers(frame, queues, lifetime, topics, delays)
        bodies = frame.body()
        frame.check_size(headers, bodies, options.naming)
        columns = [queues, headers, bodies, lifetime]
        if options.undeliverable_address is None:
            frame.check_queues(queues, topics, options)
        messages = pa.Table.from_arrays(columns, schema=CHUNK_ROW)
        for name, column in delays.items():
            messages = messages.append_column(CHUNK_DELAYS[name], column)
        if topics is not None:
            messages = messages.append_column(CHUNK_TOPICS, topics)
        if options.fills_legacy_columns:
            messages = with_legacy_columns(messages)
        if (row_ids := frame.column(ROW_ID)) is not None:
            messages = messages.append_column(CHUNK_ID, row_ids)
        return messages if faults is None else messages.append_column(CHUNK_FAULT, faults)

    def _find_faults(self, frame: Frame) -> tuple[Frame, pa.Array | None]:
        """
        Find rows with a text that is not UTF-8. Raise BadMessage unless they go to an error queue.

        Returns:
            The frame with all texts in valid UTF-8, and the column CHUNK_FAULT, or None if all
            rows can be sent.
        """
        unused = set()
        if not self._rows_choose_queue:
            unused.add("queue")
        if self.options.as_received:
            unused |= {"correlationId", "replyToAddress"}
        reasons = frame.find_undecodable(unused)
        if not reasons:
            return frame, None
        if self.options.undeliverable_address is None:
            row = min(reasons)
            raise BadMessage(partition=frame.partition, row=frame.row + row, reason=reasons[row])
        faults: list[str | None] = [None] * frame.rows
        for row, reason in reasons.items():
            faults[row] = write_fault(frame.partition, frame.row + row, reason)
        return frame.replace_undecodable([*reasons]), pa.array(faults, pa.string())

    @property
    def _rows_choose_queue(self) -> bool:
        return self.options.address is None or self.rows_choose

    def _write(self, address: QueueAddress) -> str:
        return (self.own_address or self.options.naming.print_address)(address)

    def _forward_destinations(self, frame: Frame, queues: pa.Array, delayed: pa.Array) -> pa.Array:
        """
        Return the queue to which each delayed row goes when it is due.

        It is null for other rows, and for rows with an address that cannot be read.
        """
        if not pc.any(delayed).as_py():
            return pa.nulls(frame.rows, pa.string())

        def read(name: str) -> str | None:
            try:
                return self._write(parse_destination("queue", name, self.options.naming))
            except BadOption:
                return None  # `Frame.check_queues` raises it, or the message is diverted

        places = frame.convert(queues, pa.string(), read)
        if self.options.address is not None:
            places = pc.if_else(queues.is_null(), self._write(self.options.address), places)
        return pc.if_else(delayed, places, None)

    def _headers(
        self,
        frame: Frame,
        queues: pa.Array,
        lifetime: pa.Array,
        topics: pa.Array | None,
        delays: dict[str, pa.Array],
    ) -> pa.Array:
        """Return the header text of each row: first the defaults, then the row's own headers."""
        options = self.options
        sent = self.sent or own_clock()
        ids = NewIds(frame, random_ids(2 * frame.rows, seed=self.seed, first=2 * frame.row))
        own_headers = frame.headers()
        deliver_at = _deliver_at(delays, sent, frame.rows)
        forward = self._forward_destinations(frame, queues, deliver_at.is_valid())
        if options.as_received:
            return _as_received(own_headers, _missing_ids(frame, ids), forward)
        correlation = frame.text("correlationId")
        replies = frame.reply_addresses(own_headers, options.naming, self._write)
        traced_later = _traced_later(own_headers, deliver_at)
        stated = {
            wire.CORRELATION_ID: correlation,
            wire.REPLY_TO_ADDRESS: replies,
            wire.DELIVER_AT: deliver_at,
            wire.START_NEW_TRACE: traced_later,
            wire.FORWARD_DESTINATION: forward,
        }
        own_headers = own_headers.without(stated)
        _refuse_empty_bodies(frame, own_headers, options, topics)
        defaults = Defaults(
            options=options,
            frame=frame,
            own_headers=own_headers,
            ids=ids,
            topics=topics,
            lifetime=lifetime,
            correlation=correlation,
            replies=replies,
            deliver_at=deliver_at,
            traced_later=traced_later,
            forward=forward,
            sent=sent,
            sent_by=self.sent_by,
            write=self._write,
        )
        return join_members(*defaults.members(), own_headers.members())


def _traced_later(own_headers: Own, deliver_at: pa.Array) -> pa.Array:
    """Return "True" for each delayed row with a header traceparent, and null for all others."""
    if deliver_at.null_count == len(deliver_at):
        return pa.nulls(len(deliver_at), pa.string())
    traced = pc.and_(deliver_at.is_valid(), own_headers.text(wire.TRACE_PARENT).is_valid())
    return pc.if_else(traced, "True", pa.scalar(None, pa.string()))


def _unite(parts: list[pa.Table]) -> pa.Table:
    """Join parts to one chunk. A part without the column CHUNK_FAULT gets nulls in it."""
    return pa.concat_tables(parts, promote_options="default")


def with_new_ids(chunk: pa.Table) -> pa.Table:
    """
    Drop the column CHUNK_ID, so that the rows get new ids.

    A message without the header MessageId gets this header first, with the id of its row. So it
    keeps its message id.
    """
    names = id_texts(chunk[CHUNK_ID.name].combine_chunks())
    own_headers = OwnTexts(chunk["headers"].combine_chunks())
    headers = _as_received(own_headers, names, pa.nulls(chunk.num_rows, pa.string()))
    place = chunk.schema.get_field_index("headers")
    return chunk.set_column(place, "headers", headers).drop_columns(CHUNK_ID.name)


def _missing_ids(frame: Frame, ids: NewIds) -> pa.Array:
    """Return the new ids of messages. It is null for a message that keeps the id of its row."""
    row_ids = frame.column(ROW_ID)
    return (
        ids.message_ids
        if row_ids is None
        else pc.if_else(row_ids.is_valid(), None, ids.message_ids)
    )


def _as_received(own_headers: Own, message_ids: pa.Array, forward: pa.Array) -> pa.Array:
    """
    Return the header texts as they came, byte for byte. At most two headers are added.

    - MessageId, if a message lacks it. Until now the id of its row was its message id, but its new
      row gets another id. The value comes from `message_ids`. If it is null, the header is not
      added.
    - ForwardDestination, if a message is delayed. The value comes from `forward`.

    In one other case `OwnTexts` changes a text: see there.
    """
    own_headers = own_headers.without({wire.FORWARD_DESTINATION: forward})
    unnamed = pc.and_(own_headers.missing(wire.MESSAGE_ID), message_ids.is_valid())
    undirected = own_headers.missing(wire.FORWARD_DESTINATION)
    texts = join_members(
        default(wire.MESSAGE_ID, message_ids, unnamed),
        own_headers.members(),
        default(wire.FORWARD_DESTINATION, forward, undirected),
    )
    if not isinstance(own_headers, OwnTexts):
        return texts
    changed = pc.or_(unnamed, pc.and_(forward.is_valid(), undirected))
    return pc.if_else(changed, texts, own_headers.objects)


def _refuse_empty_bodies(
    frame: Frame, own_headers: Own, options: SinkOptions, topics: pa.Array | None
) -> None:
    """
    Refuse an empty body of a message that has a type and is no control message.

    A message that another sender has sent before is not refused. It is recognised by the headers in
    SENT_BEFORE, or by the column `id`. `forward` and similar functions fill this column, even if
    the message has no MessageId.
    """
    empty = pc.equal(pc.binary_length(frame.batch.column("body")), 0)
    if not pc.any(empty).as_py():
        return
    own_type = pc.fill_null(
        pc.not_equal(own_headers.text(wire.ENCLOSED_MESSAGE_TYPES), ""), fill_value=False
    )
    sink_type = own_headers.missing(wire.ENCLOSED_MESSAGE_TYPES)
    if options.message_type is None:
        sink_type = pc.and_(sink_type, False if topics is None else topics.is_valid())
    exempt = pc.fill_null(
        pc.equal(pc.utf8_lower(own_headers.text(wire.CONTROL_MESSAGE)), "true"), fill_value=False
    )
    exempt = pc.or_(exempt, pc.and_(own_type, frame.text("id").is_valid()))
    for name in SENT_BEFORE:
        exempt = pc.or_(exempt, pc.invert(own_headers.missing(name)))
    typed = pc.or_(own_type, sink_type)
    frame.refuse(pc.and_not(pc.and_(empty, typed), exempt), EMPTY)


def _deliver_at(delays: dict[str, pa.Array], sent: datetime, rows: int) -> pa.Array:
    """
    Return the header DeliverAt. It is null if a message is not delayed.

    For a message with a delay the header is `sent` plus the delay. It is only close to the due
    time, because the database computes the due time later, with its own clock.
    """
    if not delays:
        return pa.nulls(rows, pa.string())
    moments = []
    if "due" in delays:
        moments.append(delays["due"])
    if "delay" in delays:
        wait = pc.multiply(delays["delay"], 1000).cast(pa.duration("us"))
        moments.append(pc.add(pa.scalar(sent, MOMENT).cast(pa.timestamp("us")), wait))
    texts = pc.strftime(pc.coalesce(*moments), "%Y-%m-%d %H:%M:%S")
    return pc.binary_join_element_wise(pc.replace_substring(texts, ".", ":"), "Z", " ")
