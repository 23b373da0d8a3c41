"""One record batch of a user's frame: checks and casts its columns, and names rows in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.errors import BadMessage, BadOption
from sqlq_spark.options.names import parse_destination, parse_reply_address
from sqlq_spark.send.message import delays
from sqlq_spark.send.message.own_headers import Own, OwnMaps, OwnTexts, default
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import find_undecodable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import Names, QueueAddress

LONGEST_LEFT = 100 * 365 * 86_400_000  # milliseconds; both databases can hold that date


class Frame:
    """One record batch of a user's frame, and how to name a row of it in an error."""

    def __init__(self, batch: pa.RecordBatch, partition: int, row: int) -> None:
        self.batch = batch
        self.partition = partition
        self.row = row
        self.rows = batch.num_rows

    def refuse(self, wrong: pa.Array, reason: str) -> None:
        """Raise BadMessage for the first row that is wrong."""
        at = pc.index(wrong, pa.scalar(value=True)).as_py()
        if at >= 0:
            raise BadMessage(partition=self.partition, row=self.row + at, reason=reason)

    def column(self, name: str) -> pa.Array | None:
        """Return one column, or None where the frame has none of this name."""
        return self.batch.column(name) if name in self.batch.schema.names else None

    def text(self, name: str) -> pa.Array:
        """Return a column of text; nulls where the frame has none."""
        found = self.column(name)
        return pa.nulls(self.rows, pa.string()) if found is None else found.cast(pa.string())

    def reply_addresses(
        self, own: Own, naming: Names, write: Callable[[QueueAddress], str]
    ) -> pa.Array:
        """
        Return the column `replyToAddress` as messages hold it; nulls where the frame has none.

        A read has the header in this column too. What equals the row's own header is null here, so
        that a message that is sent on keeps its header unchanged.
        """
        texts = self.text("replyToAddress")
        if texts.null_count == self.rows:
            return texts
        same = pc.fill_null(pc.equal(texts, own.values_of(wire.REPLY_TO_ADDRESS)), fill_value=False)
        coded = pc.if_else(same, pa.scalar(None, pa.string()), texts).dictionary_encode()
        known = []
        for code, text in enumerate(coded.dictionary.to_pylist()):
            try:
                address = parse_reply_address("replyToAddress", text, naming, in_row=True)
                known.append(write(address))
            except BadOption as error:
                reason = f"column replyToAddress is {error.found!r}: expected {error.expected}"
                self.refuse(pc.equal(coded.indices, code), reason)
        return pa.array(known, pa.string()).take(coded.indices)

    def check_queues(self, queues: pa.Array, topics: pa.Array | None, options: SinkOptions) -> None:
        """Refuse a row without a destination, or with a name that no queue can have."""
        if options.address is None:
            nowhere, neither = queues.is_null(), "queue is null, and the sink has no option queue"
            if topics is not None:
                nowhere = pc.and_(nowhere, topics.is_null())
                neither = "queue is null, topics too, and the sink has no option for either"
            self.refuse(nowhere, neither)
        for name in pc.unique(queues.drop_null()).to_pylist():
            try:
                parse_destination("queue", name, options.naming)
            except BadOption as error:
                self.refuse(pc.equal(queues, name), str(error))

    def body(self) -> pa.Array:
        """Return the bodies as bytes."""
        bodies = self.batch.column("body")
        self.refuse(bodies.is_null(), "body is null: send zero bytes instead, coalesce(body, '')")
        return bodies.cast(pa.binary())

    def lifetimes(self, default: int | None) -> pa.Array:
        """Return milliseconds until a message expires; null for never."""
        found = self.milliseconds("timeToBeReceived", wire.LONGEST_SPAN, "24.8 days")
        if found is None:
            return pa.repeat(pa.scalar(default, pa.int64()), self.rows)
        return pc.coalesce(found, pa.scalar(default, pa.int64()))

    def remaining(self, clock: Callable[[], datetime]) -> pa.Array:
        """Return milliseconds from now until `expires`, 0 if it has passed; null for never."""
        expires = self.column("expires")
        if expires is None or expires.null_count == self.rows:
            return pa.nulls(self.rows, pa.int64())
        left = pc.subtract(expires.cast(delays.MOMENT), pa.scalar(clock(), delays.MOMENT))
        milliseconds = pc.divide(left.cast(pa.int64()), 1000)
        positive = pc.max_element_wise(milliseconds, 0, skip_nulls=False)
        return pc.min_element_wise(positive, LONGEST_LEFT, skip_nulls=False)

    def headers_as_received(self, fresh: pa.Array) -> pa.Array:
        """
        Return header texts as they came, byte for byte; for an exception see `OwnTexts`.

        A message without the header MessageId gets it: its id is that of its row, which changes.
        """
        own = self.headers()
        lacking = own.lacking(wire.MESSAGE_ID)
        ids = default(wire.MESSAGE_ID, pc.coalesce(self.text("id"), fresh), lacking)
        inner = pc.binary_join_element_wise(ids, own.texts(), ",", null_handling="skip")
        whole = pc.binary_join_element_wise("{", inner, "}", "")
        return pc.if_else(lacking, whole, own.objects()) if isinstance(own, OwnTexts) else whole

    def milliseconds(self, name: str, longest: int, most: str) -> pa.Array | None:
        """Return a column of time spans; `longest` is the limit, and `most` its text for people."""
        found = self.column(name)
        if found is None:
            return None
        if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
            found = self._parse_spans(name, found, longest)
        elif pa.types.is_duration(found.type):
            found = pc.divide(found.cast(pa.duration("us")).cast(pa.int64()), 1000)
        milliseconds = found.cast(pa.int64())
        bounds = f"at least 0 and at most {longest} ms ({most})"
        self.refuse(pc.less(milliseconds, 0), f"{name} is negative: expected {bounds}")
        self.refuse(pc.greater(milliseconds, longest), f"{name} is too long: expected {bounds}")
        return milliseconds

    def _parse_spans(self, name: str, texts: pa.Array, longest: int) -> pa.Array:
        coded = texts.dictionary_encode()
        known = []
        for code, text in enumerate(coded.dictionary.to_pylist()):
            try:
                known.append(wire.parse_span(text, longest=longest, what=name))
            except wire.BadTimeSpan as error:
                self.refuse(pc.equal(coded.indices, code), str(error))
        return pa.array(known, pa.int64()).take(coded.indices)

    def headers(self) -> Own:
        """Return the headers of the rows' own."""
        found = self.column("headers")
        if found is None:
            return OwnTexts(pa.nulls(self.rows, pa.string()))
        if pa.types.is_map(found.type):
            return OwnMaps(found)
        texts = found.cast(pa.string())
        # Spark makes such a text by casting bytes to a string
        undecodable = find_undecodable(pa.chunked_array([texts])).combine_chunks()
        self.refuse(undecodable, "headers is not UTF-8")
        own = OwnTexts(texts)
        self.refuse(own.poison(), "headers is no JSON object of texts")
        return own
