"""Compute the columns that Spark reads from rows of a queue and their headers."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.flat_json import LONGEST_HEADER_NAME, FlatObjects, places_of_each
from sqlq_spark.wire.headers import CORRELATION_ID, MESSAGE_ID, NEVER_FIRST, REPLY_TO_ADDRESS
from sqlq_spark.wire.rows import id_texts

if TYPE_CHECKING:
    from collections.abc import Iterable

# Columns of a read whose values are headers. A queue's table may have columns of these names too,
# but today's endpoints leave those empty.
HEADER_COLUMNS = {"correlationId": CORRELATION_ID, "replyToAddress": REPLY_TO_ADDRESS}
LEGACY_LENGTH = 255  # how many bytes such a column of a table can hold
TEXTS = frozenset({str, type(None)})  # allowed types of header values
DEEPEST = 1000  # how many levels of nesting Spark's JSON parser reads
# A letter or a dot of a header's name as a hexadecimal escape. No transport writes such escapes.
NAMED_IN_HEX = r"\\u00(?:2[Ee]|[4-7])"


class Headers:
    """
    The headers of some rows. Each row has a flat JSON object of texts or nulls.

    Rows in the form of FlatObjects are read in columns. Other rows are parsed one by one.
    """

    def __init__(self, texts: pa.Array) -> None:
        """Read a column of header texts. A null and an empty text count as `{}`."""
        self._texts = pc.fill_null(texts, "") if texts.null_count else texts
        self._flat = FlatObjects(self._texts)
        self._others = np.flatnonzero(~self._flat.is_read)  # the rows that are parsed
        self._other_texts: list[str] = self._texts.take(pa.array(self._others)).to_pylist()
        parsed = [*map(parse_headers, self._other_texts)]
        self._poison = self._others[[headers is None for headers in parsed]]
        self._parsed = [headers or {} for headers in parsed]

    def poison(self) -> pa.Array:
        """Return for each row whether it is poison."""
        is_poison = np.zeros(len(self._texts), bool)
        is_poison[self._poison] = True
        return pa.array(is_poison)

    def missing(self, name: str) -> pa.Array:
        """Return for each row whether the header is missing."""
        missing = np.ones(len(self._texts), bool)
        missing[self._flat.parents[self._flat.places(name)]] = False
        missing[self._others] = [name not in headers for headers in self._parsed]
        return pa.array(missing)

    def text(self, name: str) -> pa.Array:
        """Return one header of each row. It is null if it is missing, or if the row is poison."""
        values = self._flat.values_of(name)
        if not self._parsed:
            return values
        parsed = pa.array([headers.get(name) for headers in self._parsed], pa.string())
        return pc.replace_with_mask(values, pa.array(~self._flat.is_read), parsed)

    def without_any(self) -> pa.Array:
        """Return for each row whether it has no header at all."""
        counts = self._flat.counts.copy()
        counts[self._others] = [*map(len, self._parsed)]
        return pa.array(counts == 0)

    def unreadable_by_9_0(self) -> list[int]:
        """
        Return the numbers of the rows that endpoints up to 9.0 cannot read.

        In such a row a name comes twice, or NEVER_FIRST is the first name.
        """
        flat = self._flat
        first, last = places_of_each(flat.names, flat.parents, flat.rows)
        repeated = first[first < last]
        never_first = flat.places(NEVER_FIRST)
        is_first = (never_first == 0) | (flat.parents[never_first] != flat.parents[never_first - 1])
        members = np.append(repeated, never_first[is_first])
        others = self._others[[*map(_fails_9_0, self._other_texts, self._parsed)]]
        return [*flat.parents[members].tolist(), *others.tolist()]

    def map(self, kind: pa.MapType) -> pa.MapArray:
        """Return the headers as a map column. The map of a poison row is null."""
        flat = self._flat
        names = flat.names.dictionary_decode()
        values = flat.values()
        parents = flat.parents
        first, last = places_of_each(flat.names, parents, flat.rows)
        if len(first) < len(names):
            # As in a dict, a repeated name stands at its first place and has its last value.
            names = names.take(first)
            values = values.take(last)
            parents = parents[first]
        if self._parsed:
            more_names = [name for headers in self._parsed for name in headers]
            more_values = [value for headers in self._parsed for value in headers.values()]
            parents = np.append(parents, np.repeat(self._others, [*map(len, self._parsed)]))
            order = np.argsort(parents, kind="stable")
            names = pa.concat_arrays([names, pa.array(more_names, pa.string())]).take(order)
            values = pa.concat_arrays([values, pa.array(more_values, pa.string())]).take(order)
        offsets = np.zeros(len(self._texts) + 1, np.int32)
        np.cumsum(np.bincount(parents, minlength=len(self._texts)), out=offsets[1:])
        keys = names.cast(kind.key_type)
        items = values.cast(kind.item_type)
        mask = self.poison()
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=kind, mask=mask)


def parse_headers(text: str | None) -> dict[str, str | None] | None:
    """Parse one header text. Return None if it cannot be read, so that the message is poison."""
    if not text:
        return {}
    try:
        headers = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if type(headers) is not dict or not TEXTS.issuperset(map(type, headers.values())):
        return None
    return None if _is_beyond_spark(text) else headers


def _is_beyond_spark(text: str) -> bool:
    """
    Return whether Spark's parser may fail on an object of texts that orjson has read.

    Spark limits the length of a name and the depth of a value. All values that orjson has returned
    are texts or nulls. But if a name comes twice, orjson drops its first value, which may be an
    object of great depth.
    """
    if len(text) <= 2 * DEEPEST:  # each level needs two brackets
        return False
    # Spark counts a character outside of Unicode's first plane as two.
    if 2 * len(text) <= LONGEST_HEADER_NAME and text.count("[") + text.count("{") <= DEEPEST:
        return False
    try:
        members = json.loads(text, object_pairs_hook=list)
    except RecursionError:
        return True
    return any(
        type(value) not in TEXTS or len(name.encode("utf-16-le")) // 2 > LONGEST_HEADER_NAME
        for name, value in members
    )


def _fails_9_0(text: str, headers: dict[str, str | None]) -> bool:
    """
    Return whether endpoints up to 9.0 cannot read a header text.

    Such an endpoint fails if a name occurs twice, or if NEVER_FIRST is the first name. `headers` is
    the parsed text. It has each name only once, so a name that occurs twice is found by counting
    the quotes of the text. A header has four quotes, or two if its value is null. If the text has
    more quotes than `headers` needs, a name occurs twice. Python's own parser would show both, but
    it fails if the first value is nested deeply.
    """
    if not headers:
        return False
    without_backslashes = text.replace(r"\\", "")
    quotes = without_backslashes.count('"') - without_backslashes.count(r"\"")
    nulls = [*headers.values()].count(None)
    return quotes != 4 * len(headers) - 2 * nulls or next(iter(headers)) == NEVER_FIRST


def to_read_columns(
    rows: pa.RecordBatch, schema: pa.Schema, *, queue: str, headers: Headers | None = None
) -> pa.RecordBatch:
    """
    Convert rows of a queue (QUEUE_ROW) to the columns that Spark asks for.

    `headers` has the headers of the rows, if they are parsed already.
    """
    # The headers are parsed only once, and only if a column needs them.
    read_headers = cache(lambda: headers or Headers(rows.column("headers")))

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name == "id":
            return id_texts(rows.column("id"))
        if name in HEADER_COLUMNS:
            return read_headers().text(HEADER_COLUMNS[name])
        if name == "corruptHeaders":
            # With `None` in place of `nothing`, Arrow up to 21 returns an invalid array if the rows
            # are a slice without poison.
            nothing = pa.nulls(rows.num_rows, kind)
            return pc.if_else(read_headers().poison(), rows.column("headers"), nothing)
        if pa.types.is_map(kind):
            return read_headers().map(kind)
        if name == "queue":
            return pa.repeat(pa.scalar(queue, kind), rows.num_rows)
        return rows.column(name).cast(kind)

    columns = [column(field.name, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_legacy_columns(rows: pa.Table) -> pa.Table:
    """Add the columns that endpoints of version 1 read. A value that does not fit becomes null."""
    headers = Headers(rows["headers"].combine_chunks())
    for name, header in HEADER_COLUMNS.items():
        values = headers.text(header)
        # The columns are varchar. There the server replaces characters beyond ASCII by question
        # marks.
        is_short = pc.less_equal(pc.binary_length(values), LEGACY_LENGTH)
        fits = pc.and_(is_short, pc.string_is_ascii(values))
        rows = rows.append_column(name.lower(), pc.if_else(fits, values, None))
    return rows


def has_id(rows: pa.Table, ids: Iterable[str]) -> pa.Array:
    """Return for each row whether its id or its MessageId is one of `ids`, ignoring case."""
    wanted = pc.utf8_lower(pa.array([*ids], pa.string()))
    row_ids = id_texts(rows["id"].combine_chunks())
    message_ids = Headers(rows["headers"].combine_chunks()).text(MESSAGE_ID)
    is_row = pc.is_in(pc.utf8_lower(row_ids), wanted)
    is_message = pc.is_in(pc.utf8_lower(message_ids), wanted)
    return pc.or_(is_row, is_message)
