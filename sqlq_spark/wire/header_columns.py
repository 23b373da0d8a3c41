"""The columns that Spark reads, computed from rows of a queue and their headers."""

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

# columns of a read that are headers; the table's columns of these names are empty today
HEADER_COLUMNS = {"correlationId": CORRELATION_ID, "replyToAddress": REPLY_TO_ADDRESS}
LEGACY_LENGTH = 255  # bytes of such a column, if a table has them
TEXTS = frozenset({str, type(None)})  # allowed types of header values
DEEPEST = 1000  # levels of an object that Spark's JSON parser reads
# a letter or a dot as a hex escape in a header's name, which no transport writes
NAMED_IN_HEX = r"\\u00(?:2[Ee]|[4-7])"


class Headers:
    """
    The headers of some rows: each a flat JSON object of texts or nulls.

    Rows in the form of FlatObjects are read in columns, others are parsed one by one.
    """

    def __init__(self, texts: pa.Array) -> None:
        """Read header texts, of pa.string(); null and `''` are `{}`."""
        self._texts = pc.fill_null(texts, "") if texts.null_count else texts
        self._flat = FlatObjects(self._texts)
        self._others = np.flatnonzero(~self._flat.is_read)  # rows that are parsed
        self._other_texts: list[str] = self._texts.take(pa.array(self._others)).to_pylist()
        parsed = [*map(parse_headers, self._other_texts)]
        self._poison = self._others[[headers is None for headers in parsed]]
        self._parsed = [headers or {} for headers in parsed]

    def poison(self) -> pa.Array:
        """Return which rows are poison, as booleans."""
        found = np.zeros(len(self._texts), bool)
        found[self._poison] = True
        return pa.array(found)

    def missing(self, name: str) -> pa.Array:
        """Return which rows do not have a header, as booleans."""
        missing = np.ones(len(self._texts), bool)
        missing[self._flat.parents[self._flat.places(name)]] = False
        missing[self._others] = [name not in headers for headers in self._parsed]
        return pa.array(missing)

    def text(self, name: str) -> pa.Array:
        """Return one header of every row; null if it is missing, or if the row is poison."""
        found = self._flat.values_of(name)
        if not self._parsed:
            return found
        parsed = pa.array([headers.get(name) for headers in self._parsed], pa.string())
        return pc.replace_with_mask(found, pa.array(~self._flat.is_read), parsed)

    def without_any(self) -> pa.Array:
        """Return which rows have no header at all, as booleans."""
        counts = self._flat.counts.copy()
        counts[self._others] = [*map(len, self._parsed)]
        return pa.array(counts == 0)

    def unreadable_by_9_0(self) -> list[int]:
        """Return rows that endpoints up to 9.0 cannot read: a name twice, NEVER_FIRST first."""
        flat = self._flat
        one, last = places_of_each(flat.names, flat.parents, flat.rows)
        first = flat.places(NEVER_FIRST)
        first = first[(first == 0) | (flat.parents[first] != flat.parents[first - 1])]
        others = self._others[[*map(_fails_9_0, self._other_texts, self._parsed)]]
        return [*flat.parents[np.append(one[one < last], first)].tolist(), *others.tolist()]

    def map(self, kind: pa.MapType) -> pa.MapArray:
        """Return the headers as a map column; null for poison."""
        flat = self._flat
        names, values, parents = flat.names.dictionary_decode(), flat.values(), flat.parents
        first, last = places_of_each(flat.names, parents, flat.rows)
        if len(first) < len(names):  # as a dict: the last value, where the name first was
            names, values, parents = names.take(first), values.take(last), parents[first]
        if self._parsed:
            more_names = [name for headers in self._parsed for name in headers]
            more_values = [value for headers in self._parsed for value in headers.values()]
            parents = np.append(parents, np.repeat(self._others, [*map(len, self._parsed)]))
            order = np.argsort(parents, kind="stable")
            names = pa.concat_arrays([names, pa.array(more_names, pa.string())]).take(order)
            values = pa.concat_arrays([values, pa.array(more_values, pa.string())]).take(order)
        offsets = np.zeros(len(self._texts) + 1, np.int32)
        np.cumsum(np.bincount(parents, minlength=len(self._texts)), out=offsets[1:])
        names, values = names.cast(kind.key_type), values.cast(kind.item_type)
        mask = self.poison()
        return pa.MapArray.from_arrays(pa.array(offsets), names, values, type=kind, mask=mask)


def parse_headers(text: str | None) -> dict[str, str | None] | None:
    """Parse one header text; None if it is poison."""
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
    Whether Spark may not read an object of texts that orjson reads.

    Its names have a limit, and so has the depth of a value that a later one of its name replaces.
    """
    if len(text) <= 2 * DEEPEST:  # a level has two brackets
        return False
    # a character outside of the first plane counts twice
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
    Whether endpoints up to 9.0 cannot read an object: a name twice, or NEVER_FIRST first.

    A name that is there twice is seen by the number of quotes. A header needs four of them, or two
    if its value is null. `headers` has each name once, so a second one leaves quotes over. No
    parser is asked: Python's fails for a replaced value that is nested deeply.
    """
    if not headers:
        return False
    without_backslashes = text.replace(r"\\", "")
    quotes = without_backslashes.count('"') - without_backslashes.count(r"\"")
    nulls = [*headers.values()].count(None)
    return quotes != 4 * len(headers) - 2 * nulls or next(iter(headers)) == NEVER_FIRST


def to_read_columns(rows: pa.RecordBatch, schema: pa.Schema, *, queue: str) -> pa.RecordBatch:
    """Convert rows of QUEUE_ROW from a queue to any columns of a read, with Spark's types."""
    read_headers = cache(lambda: Headers(rows.column("headers")))  # only if a column needs them

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name == "id":
            return id_texts(rows.column("id"))
        if name in HEADER_COLUMNS:
            return read_headers().text(HEADER_COLUMNS[name])
        if name == "corruptHeaders":
            # not None, for which Arrow up to 21 makes an invalid array of a slice without poison
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
    """Add the columns that version 1 endpoints read to rows; null if a value does not fit."""
    headers = Headers(rows["headers"].combine_chunks())
    for name, header in HEADER_COLUMNS.items():
        found = headers.text(header)
        # a varchar, in which the server would replace other characters by question marks
        short = pc.less_equal(pc.binary_length(found), LEGACY_LENGTH)
        fits = pc.and_(short, pc.string_is_ascii(found))
        rows = rows.append_column(name.lower(), pc.if_else(fits, found, None))
    return rows


def has_id(rows: pa.Table, ids: Iterable[str]) -> pa.Array:
    """Return which rows have one of some ids or MessageIds, in any case, as booleans."""
    wanted = pc.utf8_lower(pa.array([*ids], pa.string()))
    row_ids = id_texts(rows["id"].combine_chunks())
    message_ids = Headers(rows["headers"].combine_chunks()).text(MESSAGE_ID)
    return pc.or_(*(pc.is_in(pc.utf8_lower(each), wanted) for each in (row_ids, message_ids)))
