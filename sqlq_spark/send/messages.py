"""
Rows of a DataFrame → messages: ids, headers and lifetimes, built in columns.

Headers that a row does not bring are written before its own, in the order of `defaults`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.errors import BadFrame
from sqlq_spark.send import delays
from sqlq_spark.send import topics as publishing
from sqlq_spark.send.frame import Frame
from sqlq_spark.send.own_headers import default, or_none
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import id_texts, random_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlq_spark.options import SinkOptions

# a row to send, as it lies in a chunk; `queue` null is the sink's own
# further columns are there only where the frame has them: see delays.CHUNK_DELAYS
CHUNK_ROW = pa.schema(
    [
        pa.field("queue", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("lifetime", pa.int64()),  # milliseconds until it expires
    ]
)

CHUNK_BYTES = 16 << 20

WRITTEN = (
    "body",
    "id",
    "headers",
    "correlationId",
    "replyToAddress",
    "timeToBeReceived",
    "queue",
    "topics",
    "deliverAt",
    "delay",
)
IGNORED = ("seq", "expires", "bodyString", "corruptHeaders")  # a read can be written back


def is_span(kind: str) -> bool:
    """Whether a column of this type can hold times; not years and months, which vary in length."""
    days = kind.startswith("interval ") and {"year", "month"}.isdisjoint(kind.split())
    return days or kind in {"string", "bigint", "int"}


def check(
    types: dict[str, str], *, queue: bool, topics: bool = False, as_received: bool = False
) -> None:
    """
    Refuse a frame that cannot be sent, before any of it is.

    Args:
        types: column → Spark's simple name of its type.
        queue: whether the sink has a queue of its own for rows without one.
        topics: whether it publishes them instead.
        as_received: whether `expires` holds.
    """
    text = {"string"}
    fits: dict[str, Callable[[str], bool]] = dict.fromkeys(WRITTEN, text.__contains__) | {
        "body": {"binary", "string"}.__contains__,
        "headers": {"string", "map<string,string>"}.__contains__,
        "topics": "array<string>".__eq__,
        "timeToBeReceived": is_span,
        "delay": is_span,
        "deliverAt": {"timestamp"}.__contains__,
    }
    span = 'string "hh:mm:ss", interval day to second or bigint milliseconds'
    expected = {
        "body": "binary or string",
        "headers": "map<string,string> or string (JSON)",
        "topics": "array<string>",
        "timeToBeReceived": span,
        "delay": span,
        "deliverAt": "timestamp",
    }
    known = ", ".join(WRITTEN)
    for name, kind in types.items():
        if as_received and name == "expires" and kind != "timestamp":
            raise BadFrame(f"column expires is {kind}: expected timestamp")
        if name in IGNORED:
            continue
        if name not in fits:
            raise BadFrame(
                f"column {name} is not known; known are {known} (ignored: {', '.join(IGNORED)})"
            )
        if not fits[name](kind):
            raise BadFrame(f"column {name} is {kind}: expected {expected.get(name, 'string')}")
    if "body" not in types:
        raise BadFrame(
            f"it has no column body (binary or string); it has {', '.join(types) or 'none'}"
        )
    if types.keys().isdisjoint({"queue", "topics"}) and not queue and not topics:
        raise BadFrame(
            "no destination: give the option queue, or a column queue; to publish, the option "
            "topics, or a column topics"
        )
    if "queue" in types and "seq" in types and (queue or topics):
        option = "queue" if queue else "topics"
        raise BadFrame(
            "its columns queue and seq, as a read gives them, say where each row came from, and "
            f"the option {option} says where to: drop the column queue, or the option"
        )


def own_clock() -> datetime:
    """This machine's."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Sender:
    """What all messages of one task share."""

    options: SinkOptions
    partition: int
    seed: bytes | None = None  # the same seed gives the same message ids again
    sent: datetime | None = None
    clock: Callable[[], datetime] = own_clock  # by which what was received expires

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Messages in tables of CHUNK_ROW, each of about CHUNK_BYTES at most."""
        held: list[pa.Table] = []
        weight = row = 0
        for batch in batches:
            messages = self.messages(batch, row)
            row += batch.num_rows
            for part in parts(messages):
                if held and weight + part.nbytes > CHUNK_BYTES:
                    yield pa.concat_tables(held)
                    held, weight = [], 0
                held.append(part)
                weight += part.nbytes
        if held:
            yield pa.concat_tables(held)

    def messages(self, batch: pa.RecordBatch, row: int) -> pa.Table:
        """The messages of one record batch, whose first row is the partition's row number `row`."""
        frame = Frame(batch, self.partition, row)
        lifetime = frame.lifetimes(self.options.time_to_be_received)
        if self.options.as_received:
            lifetime = pc.coalesce(frame.remaining(self.clock), lifetime)
        queues = frame.text("queue")
        topics = publishing.of_rows(frame, queues, self.options)
        later = delays.of_rows(frame, lifetime)
        columns = [
            queues,
            self.headers(frame, lifetime, topics, later),
            frame.body(),
            lifetime,
        ]
        frame.check_queues(queues, topics, self.options)
        messages = delays.appended(pa.Table.from_arrays(columns, schema=CHUNK_ROW), later)
        if topics is None:
            return messages
        return messages.append_column(publishing.CHUNK_TOPICS, topics)

    def headers(
        self,
        frame: Frame,
        lifetime: pa.Array,
        topics: pa.Array | None,
        later: dict[str, pa.Array],
    ) -> pa.Array:
        """The header texts of a record batch; `topics` of rows to publish, `later` the delays."""
        rows, sent = frame.rows, self.sent or own_clock()
        fresh = random_ids(2 * rows, seed=self.seed, first=2 * frame.row)
        if self.options.as_received:
            return frame.headers_as_received(id_texts(fresh[::2]))
        explicit = {
            wire.CORRELATION_ID: frame.text("correlationId"),
            wire.REPLY_TO_ADDRESS: frame.text("replyToAddress"),
        } | delays.stated(later, sent)
        own = frame.headers(explicit)
        options = self.options

        def message_id() -> pa.Array:
            return pc.coalesce(frame.text("id"), id_texts(fresh[::2]))

        # each is computed only where some row lacks it
        defaults: dict[str, Callable[[], pa.Array | str | None]] = {
            wire.MESSAGE_ID: message_id,
            wire.MESSAGE_INTENT: lambda: publishing.intents(topics, options.intent),
            wire.CONVERSATION_ID: lambda: id_texts(fresh[1::2]),
            wire.CORRELATION_ID: lambda: pc.coalesce(
                explicit[wire.CORRELATION_ID], own.values_of(wire.MESSAGE_ID), message_id()
            ),
            wire.REPLY_TO_ADDRESS: lambda: or_none(
                pc.coalesce(
                    explicit[wire.REPLY_TO_ADDRESS],
                    pa.scalar(options.reply_to_address, pa.string()),
                )
            ),
            wire.ORIGINATING_ENDPOINT: lambda: options.originating_endpoint,
            wire.ENCLOSED_MESSAGE_TYPES: lambda: options.message_type or publishing.types(topics),
            wire.CONTENT_TYPE: lambda: options.content_type,
            wire.TIME_SENT: lambda: wire.wire_time(sent),
            wire.TIME_TO_BE_RECEIVED: lambda: spans(lifetime),
        }
        if later:
            defaults[wire.DELIVER_AT] = lambda: or_none(explicit[wire.DELIVER_AT])
        parts = [
            default(name, value, lacking)
            for name, make in defaults.items()
            if pc.any(lacking := own.lacking(name)).as_py() and (value := make()) is not None
        ]
        inner = pc.binary_join_element_wise(*parts, own.texts(), ",", null_handling="skip")
        return pc.binary_join_element_wise("{", inner, "}", "")


def spans(lifetimes: pa.Array) -> pa.Array | None:
    """Times to be received as the header writes them; None where no row has one."""
    if lifetimes.null_count == len(lifetimes):
        return None
    coded = lifetimes.dictionary_encode()
    texts = [wire.format_span(each) for each in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)


def parts(messages: pa.Table) -> Iterator[pa.Table]:
    """Slices of about CHUNK_BYTES at most; one row may weigh more."""
    each = max(1, messages.nbytes // max(1, messages.num_rows))
    step = max(1, CHUNK_BYTES // each)
    for first in range(0, messages.num_rows, step):
        yield messages.slice(first, step)
