"""
One record batch of a user's frame: which columns it may have, and how each row is read.

A row that cannot be sent raises BadMessage, which names the row by its number in the partition.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.errors import BadFrame, BadMessage, BadOption
from sqlq_spark.options.names import parse_destination, parse_reply_address
from sqlq_spark.send.own_headers import OwnMaps, OwnTexts, parents_of_entries
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import find_undecodable, replace_undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.own_headers import Own
    from sqlq_spark.wire.address import Names, QueueAddress

SPAN = 'string "hh:mm:ss", interval day to second or bigint milliseconds'
TEXT = ("string", {"string"})
# column → the expected types as an error names them, and the types as Spark names them. A SPAN may
# also be an interval.
COLUMNS = {
    "body": ("binary or string", {"binary", "string"}),
    "id": TEXT,
    "headers": ("map<string,string> or string (JSON)", {"map<string,string>", "string"}),
    "correlationId": TEXT,
    "replyToAddress": TEXT,
    "timeToBeReceived": (SPAN, {"string", "bigint", "int"}),
    "queue": TEXT,
    "topics": ("array<string>", {"array<string>"}),
    "deliverAt": ("timestamp", {"timestamp"}),
    "delay": (SPAN, {"string", "bigint", "int"}),
}
WRITTEN = tuple(COLUMNS)
IGNORED = ("seq", "expires", "corruptHeaders")  # columns of a read, which may be written back
# The column with the id that a message's row gets in the queue. Where it is null, the row gets a
# new id. Only commands use this column.
ROW_ID = "rowId"

# columns that decide where a row goes, and when
ROUTES = ("queue", "topics", "deliverAt", "delay", "timeToBeReceived", "replyToAddress")

TOPICS = pa.list_(pa.string())
MOMENT = pa.timestamp("us", "UTC")
LONGEST_LEFT = 100 * 365 * 86_400_000  # milliseconds from now; both databases can hold that date
# A due time from FIRST_DUE to STOP_DUE is valid for the database, Python and .NET in any time zone.
FIRST_DUE = datetime(1900, 1, 1, tzinfo=UTC)
STOP_DUE = datetime(9999, 1, 1, tzinfo=UTC)


def check_frame(
    types: dict[str, str], *, queue: bool, topics: bool = False, as_received: bool = False
) -> None:
    """
    Raise BadFrame for a frame that cannot be sent, before any row is sent.

    Args:
        types: column → Spark's simple name of its type.
        queue: whether the sink has a queue for all rows.
        topics: whether the sink has topics for rows without a queue instead.
        as_received: whether the column `expires` is used.
    """
    faults = [_find_fault(name, kind) for name, kind in types.items() if name not in IGNORED]
    if as_received and types.get("expires", "timestamp") != "timestamp":
        faults.insert(0, f"column expires is {types['expires']}: expected timestamp")
    if "body" not in types:
        faults.append(
            f"it has no column body (binary or string); it has {', '.join(types) or 'none'}"
        )
    if types.keys().isdisjoint({"queue", "topics"}) and not queue and not topics:
        faults.append(
            "no destination: give the option queue, or a column queue; to publish, the option "
            "topics, or a column topics"
        )
    if {"queue", "delay"} <= types.keys() and "seq" not in types and queue:
        faults.append(
            "its columns queue and delay, as retry_later makes them, say where each row comes "
            "back, and the option queue would override them: drop the option, and name the error "
            "queue by to"
        )
    if {"queue", "seq"} <= types.keys() and topics:
        faults.append(
            "its columns queue and seq, as a read gives them, say where each row came from, and "
            "would override the option topics: drop the column queue, or the option"
        )
    for reason in filter(None, faults):
        raise BadFrame(done="sent", reason=reason)


def _find_fault(name: str, kind: str) -> str | None:
    if name not in COLUMNS:
        known, ignored = ", ".join(WRITTEN), ", ".join(IGNORED)
        return f"column {name} is not known; known are {known} (ignored: {ignored})"
    expected, kinds = COLUMNS[name]
    # intervals of years or months are refused, because years and months vary in length
    days = kind.startswith("interval ") and {"year", "month"}.isdisjoint(kind.split())
    if kind in kinds or (days and expected == SPAN):
        return None
    return f"column {name} is {kind}: expected {expected}"


class Frame:
    """One record batch of a user's frame, and how to name a row of it in an error."""

    def __init__(self, batch: pa.RecordBatch, partition: int, row: int) -> None:
        self.batch = batch
        self.partition = partition
        self.row = row  # the number of the first row in its partition
        self.rows = batch.num_rows

    def refuse(self, wrong: pa.Array, reason: str) -> None:
        """Raise BadMessage for the first row that is wrong."""
        place = pc.index(wrong, pa.scalar(value=True)).as_py()
        if place >= 0:
            raise BadMessage(partition=self.partition, row=self.row + place, reason=reason)

    def column(self, name: str) -> pa.Array | None:
        return self.batch.column(name) if name in self.batch.schema.names else None

    def text(self, name: str) -> pa.Array:
        """Return a column of text. If the frame does not have the column, return nulls."""
        column = self.column(name)
        return pa.nulls(self.rows, pa.string()) if column is None else column.cast(pa.string())

    def convert(
        self,
        column: pa.Array,
        kind: pa.DataType,
        read: Callable[[Any], Any],
        explain: Callable[[Any], str] = str,
    ) -> pa.Array:
        """Convert each distinct value once. Refuse the first row whose value cannot be read."""
        coded = column.dictionary_encode()
        values = []
        for code, value in enumerate(coded.dictionary.to_pylist()):
            try:
                values.append(read(value))
            except (BadOption, wire.BadTimeSpan) as error:
                self.refuse(pc.equal(coded.indices, code), explain(error))
        return pa.array(values, kind).take(coded.indices)

    # ------------------------------------------------------------ texts as Spark hands them over

    def without_padding(self, padded: frozenset[tuple[str, str]]) -> Frame:
        """Remove trailing blanks from the texts that `padded` names: see `padded_texts`."""
        batch = self.batch
        for name in sorted({name for name, _ in padded} & COLUMNS.keys()):
            place = batch.schema.get_field_index(name)

            def cut(texts: pa.Array, part: str, name: str = name) -> pa.Array:
                # not utf8_rtrim, which fails for a text that is not UTF-8
                return pc.ascii_rtrim(texts, " ") if (name, part) in padded else texts

            batch = batch.set_column(place, name, _change_texts(batch.column(place), cut))
        return Frame(batch, self.partition, self.row)

    def find_undecodable(self, unused: set[str]) -> dict[int, str]:
        """
        Return the rows with a text that is not UTF-8, and what is wrong with each row.

        Spark makes such texts when it casts bytes to a string. Bodies are not checked here, because
        they may be any bytes. The method `headers` checks headers that are JSON. `unused` names
        columns that have no effect.
        """
        reasons: dict[int, str] = {}
        for name in COLUMNS:
            column = None if name in unused else self.column(name)
            if column is None:
                continue
            for rows, reason in _find_undecodable(name, column):
                for row in rows.tolist():
                    reasons.setdefault(row, reason)
        return reasons

    def replace_undecodable(self, rows: list[int]) -> Frame:
        """
        Return the frame with U+FFFD for each byte that is not UTF-8.

        `rows` are for an error queue. They lose their destination and their delay, because nobody
        knows what was meant.
        """
        chosen = np.zeros(self.rows, bool)
        chosen[rows] = True
        batch = self.batch
        for place, name in enumerate(batch.schema.names):
            column = batch.column(place)
            if name in ROUTES:
                column = pc.if_else(pa.array(chosen), pa.scalar(None, column.type), column)
            elif name in {"id", "correlationId"} or pa.types.is_map(column.type):
                column = _change_texts(column, lambda texts, _: _readable(texts))
            batch = batch.set_column(place, name, column)
        return Frame(batch, self.partition, self.row)

    # ------------------------------------------------------------ what a message holds

    def body(self) -> pa.Array:
        bodies = self.batch.column("body")
        self.refuse(bodies.is_null(), "body is null: send zero bytes instead, coalesce(body, '')")
        return bodies.cast(pa.binary())

    def check_size(self, headers: pa.Array, bodies: pa.Array, naming: Names) -> None:
        """Refuse a message that is too large to be sent to the database."""
        sizes = pc.add(*(pc.binary_length(texts).cast(pa.int64()) for texts in (headers, bodies)))
        most = naming.largest_message
        reason = f"headers and body have more than {most} bytes, the most that can be sent"
        self.refuse(pc.greater(sizes, most), reason)

    def headers(self) -> Own:
        """Return the rows' own headers. Refuse a row whose text is not JSON of headers."""
        column = self.column("headers")
        if column is None:
            return OwnTexts(pa.nulls(self.rows, pa.string()))
        if pa.types.is_map(column.type):
            return OwnMaps(column)
        texts = column.cast(pa.string())
        # a text is not UTF-8 if Spark has cast other bytes to a string
        undecodable = find_undecodable(pa.chunked_array([texts])).combine_chunks()
        self.refuse(undecodable, "headers is not UTF-8")
        own_headers = OwnTexts(texts)
        self.refuse(own_headers.poison(), "headers is no JSON object of texts")
        return own_headers

    def reply_addresses(
        self, own_headers: Own, naming: Names, write: Callable[[QueueAddress], str]
    ) -> pa.Array:
        """
        Return the column `replyToAddress` as texts for the header, or nulls if there is no column.

        Null means that the row's own header ReplyToAddress stays. Null is also returned if the
        column equals that header, because a read fills the column from the header. So a message
        that was read and is sent on keeps its header unchanged.
        """
        texts = self.text("replyToAddress")
        if texts.null_count == self.rows:
            return texts
        same = pc.fill_null(
            pc.equal(texts, own_headers.text(wire.REPLY_TO_ADDRESS)), fill_value=False
        )
        return self.convert(
            pc.if_else(same, None, texts),
            pa.string(),
            lambda text: write(parse_reply_address("replyToAddress", text, naming, in_row=True)),
            lambda error: f"column replyToAddress is {error.found!r}: expected {error.expected}",
        )

    # ------------------------------------------------------------ where a row goes

    def check_queues(self, queues: pa.Array, topics: pa.Array | None, options: SinkOptions) -> None:
        """Refuse a row without a destination, or with a name that no queue can have."""
        if options.address is None:
            nowhere = queues.is_null()
            reason = "queue is null, and the sink has no option queue"
            if topics is not None:
                nowhere = pc.and_(nowhere, topics.is_null())
                reason = "queue is null, topics too, and the sink has no option for either"
            self.refuse(nowhere, reason)
        for name in pc.unique(queues.drop_null()).to_pylist():
            try:
                parse_destination("queue", name, options.naming)
            except BadOption as error:
                self.refuse(pc.equal(queues, name), str(error))

    def topics(self, queues: pa.Array, options: SinkOptions) -> pa.Array | None:
        """
        Return the topics of each row. Returns None if neither the frame nor the sink has topics.

        A row that is not published has null, never an empty list. `queues` are the queues that the
        rows name, which are untrusted. If the option `queue` overrides them, they are null.

        Raises:
            BadMessage: a row has topics and a queue, topics and a delay, or an item that is no
                topic.
        """
        column = self.column("topics")
        if column is None and options.topics is None:
            return None
        nothing = pa.nulls(self.rows, TOPICS)
        topics = nothing if column is None else self._check_lists(column.cast(TOPICS))
        both = pc.and_(topics.is_valid(), queues.is_valid())
        self.refuse(both, "it has both a queue and topics: a message is sent to one or published")
        if options.topics is not None:
            missing = pc.and_(topics.is_null(), queues.is_null())
            topics = pc.if_else(missing, pa.scalar(list(options.topics), TOPICS), topics)
        for name in ("delay", "deliverAt"):
            if (delay := self.column(name)) is not None:
                late = pc.and_(topics.is_valid(), delay.is_valid())
                reason = f"it has topics and a {name}: the transport cannot delay an event"
                self.refuse(late, reason)
        return topics

    def _check_lists(self, topics: pa.Array) -> pa.Array:
        """Refuse items that are no topics. Return the lists, with null for each empty list."""
        wrong = {
            topic: reason
            for topic in pc.unique(topics.flatten()).to_pylist()
            if (reason := "a null" if topic is None else wire.topic_problem(topic)) is not None
        }
        for row, items in enumerate(topics.to_pylist() if wrong else ()):
            for topic in items or ():
                if topic in wrong:
                    reason = f"topics holds {wrong[topic]}"
                    raise BadMessage(partition=self.partition, row=self.row + row, reason=reason)
        return pc.if_else(pc.greater(pc.list_value_length(topics), 0), topics, None)

    # ------------------------------------------------------------ how long a message lives or waits

    def lifetimes(self, default: int | None) -> pa.Array:
        """Return the milliseconds from the insert until a message expires; null means never."""
        spans = self._milliseconds("timeToBeReceived", wire.LONGEST_SPAN, "24.8 days")
        span = pa.scalar(default, pa.int64())
        return pa.repeat(span, self.rows) if spans is None else pc.coalesce(spans, span)

    def remaining(self, clock: Callable[[], datetime]) -> pa.Array:
        """Return milliseconds from now until `expires`: 0 if it has passed; null means never."""
        expires = self.column("expires")
        if expires is None or expires.null_count == self.rows:
            return pa.nulls(self.rows, pa.int64())
        left = pc.subtract(expires.cast(MOMENT), pa.scalar(clock(), MOMENT))
        milliseconds = pc.divide(left.cast(pa.int64()), 1000)
        positive = pc.max_element_wise(milliseconds, 0, skip_nulls=False)
        return pc.min_element_wise(positive, LONGEST_LEFT, skip_nulls=False)

    def delays(self, lifetime: pa.Array) -> dict[str, pa.Array]:
        """
        Return the columns `delay`, in milliseconds, and `due`, in UTC, if the frame has them.

        `lifetime` is in milliseconds, and null for rows that never expire. From these columns the
        database computes when a row is due, in the transaction that stores the row: see delayed.py.

        Raises:
            BadMessage: a delay is negative or too long, or a due time is one that .NET cannot read.
                Or a row has both a delay and a due time, or one of them and a lifetime. The
                transport refuses these combinations too.
        """
        both = {
            "delay": self._milliseconds("delay", wire.LONGEST_DELAY, "365,000 days"),
            "due": self._due_times(),
        }
        delays = {name: column for name, column in both.items() if column is not None}
        waits = [column.is_valid() for column in delays.values()]
        if len(waits) > 1:
            self.refuse(pc.and_(*waits), "it has both deliverAt and delay: leave one of them null")
        if waits:
            self.refuse(
                pc.and_(pc.or_(waits[0], waits[-1]), lifetime.is_valid()),
                "it has a delay and a time-to-be-received, from its column or from the option "
                "timeToBeReceived: the transport cannot delay a message that expires",
            )
        return delays

    def _due_times(self) -> pa.Array | None:
        column = self.column("deliverAt")
        if column is None:
            return None
        moments = column.cast(MOMENT)
        outside = pc.or_(
            pc.less(moments, pa.scalar(FIRST_DUE, MOMENT)),
            pc.greater_equal(moments, pa.scalar(STOP_DUE, MOMENT)),
        )
        self.refuse(outside, "deliverAt is outside of the years 1900 to 9998")
        return moments.cast(pa.timestamp("us"))

    def _milliseconds(self, name: str, longest: int, most: str) -> pa.Array | None:
        """Return a column of time spans up to `longest` milliseconds, which errors call `most`."""
        column = self.column(name)
        if column is None:
            return None
        if _is_text(column):
            column = self.convert(
                column, pa.int64(), lambda text: wire.parse_span(text, longest=longest, what=name)
            )
        elif pa.types.is_duration(column.type):
            column = pc.divide(column.cast(pa.duration("us")).cast(pa.int64()), 1000)
        milliseconds = column.cast(pa.int64())
        bounds = f"at least 0 and at most {longest} ms ({most})"
        self.refuse(pc.less(milliseconds, 0), f"{name} is negative: expected {bounds}")
        self.refuse(pc.greater(milliseconds, longest), f"{name} is too long: expected {bounds}")
        return milliseconds


# ---------------------------------------------------------------- texts as Spark hands them over


def _change_texts(column: pa.Array, change: Callable[[pa.Array, str], pa.Array]) -> pa.Array:
    """Change the texts in a column of maps (keys and values), of lists (items), or of texts."""
    if pa.types.is_map(column.type):
        keys, items = change(column.keys, "key"), change(column.items, "value")
        # the offsets are copied, because pyarrow takes no mask with sliced offsets
        offsets = pa.array(column.offsets.to_numpy())
        return pa.MapArray.from_arrays(offsets, keys, items, mask=column.is_null())
    if pa.types.is_list(column.type):
        offsets = pa.array(column.offsets.to_numpy())
        return pa.ListArray.from_arrays(offsets, change(column.values, ""), mask=column.is_null())
    return change(column, "")


def _find_undecodable(name: str, column: pa.Array) -> Iterator[tuple[npt.NDArray[np.intp], str]]:
    """Yield the places of the rows with a text that is not UTF-8, and what is wrong there."""
    if pa.types.is_map(column.type):
        parents, first = parents_of_entries(column)
        for kind, texts in (("name", column.keys), ("value", column.items)):
            entries = texts.slice(first, len(parents))
            yield parents[_places_undecodable(entries)], f"a {kind} in {name} is not UTF-8"
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        counts = pc.fill_null(pc.list_value_length(column), 0)
        parents = np.repeat(np.arange(len(column)), counts)
        reason = f"{name} holds a text that is not UTF-8"
        yield parents[_places_undecodable(pc.list_flatten(column))], reason
    elif _is_text(column) and name not in {"body", "headers"}:
        yield _places_undecodable(column), f"{name} is not UTF-8"


def _places_undecodable(texts: pa.Array) -> npt.NDArray[np.intp]:
    wrong = find_undecodable(pa.chunked_array([texts.cast(pa.string())]))
    return np.flatnonzero(wrong.to_numpy())


def _readable(texts: pa.Array) -> pa.Array:
    return replace_undecodable(pa.chunked_array([texts.cast(pa.string())])).combine_chunks()


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
