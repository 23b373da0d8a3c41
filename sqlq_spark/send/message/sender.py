"""Rows of a DataFrame → messages in chunks: ids, headers and lifetimes, built in columns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.send import topics as publishing
from sqlq_spark.send.message import delays
from sqlq_spark.send.message.default_headers import DefaultHeaders
from sqlq_spark.send.message.empty_bodies import refuse_empty_bodies
from sqlq_spark.send.message.frame import Frame
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import id_texts, random_ids, split_by_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.message.sent_by import SentBy
    from sqlq_spark.wire.address import QueueAddress

# a row of a chunk; `queue` null is the sink's own
# delays.CHUNK_DELAYS and topics.CHUNK_TOPICS follow where the frame has these columns
CHUNK_ROW = pa.schema(
    [
        pa.field("queue", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("lifetime", pa.int64()),  # milliseconds until it expires
    ]
)

CHUNK_BYTES = 16 << 20


def own_clock() -> datetime:
    """Return this machine's time."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Turns the rows of one task into messages."""

    options: SinkOptions
    partition: int
    seed: bytes | None = None  # the same seed gives the same message ids again
    sent: datetime | None = None
    clock: Callable[[], datetime] = own_clock  # decides what has expired since it was received
    # writes a reply address as messages hold it; None: as the database writes addresses
    own_address: Callable[[QueueAddress], str] | None = None
    # whether a row's own queue overrides the option `queue`, as on the command line
    rows_choose: bool = False
    sent_by: SentBy | None = None  # None: only the option originatingEndpoint is written

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield messages in tables of CHUNK_ROW, each of about CHUNK_BYTES at most."""
        held: list[pa.Table] = []
        weight = row = 0
        for batch in batches:
            messages = self.messages(batch, row)
            row += batch.num_rows
            for part in split_by_size(messages, CHUNK_BYTES):
                if held and weight + part.nbytes > CHUNK_BYTES:
                    yield pa.concat_tables(held)
                    held, weight = [], 0
                held.append(part)
                weight += part.nbytes
        if held:
            yield pa.concat_tables(held)

    def messages(self, batch: pa.RecordBatch, row: int) -> pa.Table:
        """Return the messages of a record batch; its first row is row `row` of the partition."""
        frame = Frame(batch, self.partition, row)
        lifetime = frame.lifetimes(self.options.time_to_be_received)
        if self.options.as_received:
            lifetime = pc.coalesce(frame.remaining(self.clock), lifetime)
        queues = self.queues(frame)
        topics = publishing.read_topics(frame, queues, self.options)
        later = delays.read_delays(frame, lifetime)
        columns = [
            queues,
            self.headers(frame, lifetime, topics, later),
            frame.body(),
            lifetime,
        ]
        if self.options.undeliverable_address is None:
            frame.check_queues(queues, topics, self.options)
        messages = delays.append_delays(pa.Table.from_arrays(columns, schema=CHUNK_ROW), later)
        if topics is None:
            return messages
        return messages.append_column(publishing.CHUNK_TOPICS, topics)

    def queues(self, frame: Frame) -> pa.Array:
        """Return the rows' own queues; nulls where they go to the option's queue."""
        if self.options.address is None or self.rows_choose:
            return frame.text("queue")
        return pa.nulls(frame.rows, pa.string())

    def headers(
        self,
        frame: Frame,
        lifetime: pa.Array,
        topics: pa.Array | None,
        later: dict[str, pa.Array],
    ) -> pa.Array:
        """
        Return the header texts of a record batch.

        Args:
            frame: the rows.
            lifetime: milliseconds until they expire, or null.
            topics: of `read_topics`.
            later: of `read_delays`.
        """
        sent = self.sent or own_clock()
        fresh = random_ids(2 * frame.rows, seed=self.seed, first=2 * frame.row)
        if self.options.as_received:
            return frame.headers_as_received(id_texts(fresh[::2]))
        own, own_address = frame.headers(), self.own_address or self.options.naming.print_address
        explicit = {
            wire.CORRELATION_ID: frame.text("correlationId"),
            wire.REPLY_TO_ADDRESS: frame.reply_addresses(own, self.options.naming, own_address),
        } | delays.delay_headers(later, sent)
        own = own.without(explicit)
        defaults = DefaultHeaders(
            frame=frame,
            options=self.options,
            own=own,
            own_address=own_address,
            explicit=explicit,
            fresh=fresh,
            lifetime=lifetime,
            topics=topics,
            delayed=bool(later),
            sent=sent,
            sent_by=self.sent_by,
        )
        refuse_empty_bodies(frame, own, defaults.types_of_sink)
        return defaults.joined_with_own()
