"""The columns that Spark reads, computed from rows of a queue and their headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.flat_json import LONGEST_NAME, FlatObjects
from sqlq_spark.wire.headers import CORRELATION_ID, NEVER_FIRST, REPLY_TO_ADDRESS
from sqlq_spark.wire.ids import id_texts

if TYPE_CHECKING:
    import numpy.typing as npt

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
        self._parsed: dict[int, dict[str, str | None] | None] = {}  # row → its headers, or poison
        self._parse(np.flatnonzero(~self._flat.is_read).tolist())

    def _parse(self, rows: list[int]) -> None:
        texts = self._texts.take(pa.array(rows, pa.int64())).to_pylist()
        self._parsed |= zip(rows, map(parse_headers, texts), strict=True)

    def poison(self) -> pa.Array:
        """Which rows are poison, as booleans."""
        found = np.zeros(len(self._texts), bool)
        found[[row for row, headers in self._parsed.items() if headers is None]] = True
        return pa.array(found)

    def lacking(self, name: str) -> pa.Array:
        """Which rows do not have a header, as booleans."""
        lacking = np.ones(len(self._texts), bool)
        lacking[self._flat.parents[self._flat.places(name)]] = False
        lacking[[row for row, headers in self._parsed.items() if name in (headers or {})]] = False
        return pa.array(lacking)

    def text(self, name: str) -> pa.Array:
        """One header of every row; null if it is missing, or if the row is poison."""
        found = self._flat.values_of(name)
        if not self._parsed:
            return found
        parsed = [(self._parsed[row] or {}).get(name) for row in sorted(self._parsed)]
        others = pa.array(~self._flat.is_read)
        return pc.replace_with_mask(found, others, pa.array(parsed, pa.string()))

    def without_any(self) -> pa.Array:
        """Which rows have no header at all, as booleans."""
        counts = self._flat.counts.copy()
        for row, headers in self._parsed.items():
            counts[row] = len(headers or {})
        return pa.array(counts == 0)

    def unfit(self) -> list[int]:
        """Find rows that endpoints up to 9.0 cannot read: a name twice, or NEVER_FIRST first."""
        flat = self._flat
        repeated, first = flat.repeated(), flat.places(NEVER_FIRST)
        first = first[(first == 0) | (flat.parents[first] != flat.parents[first - 1])]
        texts = self._texts.take(pa.array(list(self._parsed), pa.int64())).to_pylist()
        parsed = zip(texts, self._parsed.items(), strict=True)
        others = [row for text, (row, found) in parsed if found and is_unfit(text, found)]
        return [*repeated, *flat.parents[first].tolist(), *others]

    def map(self, kind: pa.MapType) -> pa.MapArray:
        """The headers as a map column; null for poison."""
        flat = self._flat
        if repeated := flat.repeated():
            flat.leave_out(repeated)
            self._parse(repeated)
        names, values, parents = flat.names.dictionary_decode(), flat.values(), flat.parents
        if self._parsed:
            more_names, more_values, rows = self._members_parsed()
            parents = np.append(parents, rows)
            order = np.argsort(parents, kind="stable")
            names = pa.concat_arrays([names, more_names]).take(order)
            values = pa.concat_arrays([values, more_values]).take(order)
        offsets = np.zeros(len(self._texts) + 1, np.int32)
        np.cumsum(np.bincount(parents, minlength=len(self._texts)), out=offsets[1:])
        names, values = names.cast(kind.key_type), values.cast(kind.item_type)
        mask = self.poison()
        return pa.MapArray.from_arrays(pa.array(offsets), names, values, type=kind, mask=mask)

    def _members_parsed(self) -> tuple[pa.Array, pa.Array, npt.NDArray[np.intp]]:
        """Return names, values and rows of the headers that were parsed one by one."""
        found = {row: headers or {} for row, headers in self._parsed.items()}
        names = [name for headers in found.values() for name in headers]
        values = [value for headers in found.values() for value in headers.values()]
        counts = [len(headers) for headers in found.values()]
        rows = np.repeat(np.fromiter(found, np.intp, len(found)), counts)
        return pa.array(names, pa.string()), pa.array(values, pa.string()), rows


def parse_object(text: str | None) -> dict[str, str | None] | None:
    """Parse one header text into a dict with unchecked values; None if it is not an object."""
    if not text:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if type(found) is dict else None


def is_flat(headers: dict[str, str | None]) -> bool:
    """Whether all values are texts or nulls."""
    return TEXTS.issuperset(map(type, headers.values()))


def parse_headers(text: str | None) -> dict[str, str | None] | None:
    """Parse one header text, and check its values; None if it is poison."""
    found = parse_object(text)
    if found is None or not is_flat(found) or is_beyond_spark(text or ""):
        return None
    return found


def is_beyond_spark(text: str) -> bool:
    """
    Whether Spark may not read an object of texts that orjson reads.

    Its names have a limit, and so has the depth of a value that a later one of its name replaces.
    """
    if len(text) <= 2 * DEEPEST:  # a level has two brackets
        return False
    # a character outside of the first plane counts twice
    if 2 * len(text) <= LONGEST_NAME and text.count("[") + text.count("{") <= DEEPEST:
        return False
    try:
        members = json.loads(text, object_pairs_hook=list)
    except RecursionError:
        return True
    return any(
        type(value) not in TEXTS or utf16_length(name) > LONGEST_NAME for name, value in members
    )


def utf16_length(text: str) -> int:
    """Count characters as Java does."""
    return len(text.encode("utf-16-le")) // 2


def is_unfit(text: str, headers: dict[str, str | None]) -> bool:
    """
    Whether endpoints up to 9.0 cannot read an object: a name twice, or NEVER_FIRST first.

    Args:
        text: with more quotes than its headers need, if a later value replaces another.
        headers: of the text, one or more.
    """
    text = text.replace(r"\\", "")
    quotes = text.count('"') - text.count(r"\"")
    needed = 4 * len(headers) - 2 * [*headers.values()].count(None)
    return quotes != needed or next(iter(headers)) == NEVER_FIRST


def quick_text(texts: list[str | None], name: str) -> pa.Array:
    """
    Find one header of texts that may be cut, by a search; null if it is missing.

    The search assumes the form that the transports write. In JSON a quote inside a string is
    escaped, so `"name":"` without a backslash before it is a key. If the value has an escape, or if
    the name is there twice or in another form, the row is parsed. A name with a hex escape
    (`NAMED_IN_HEX`) is not found.
    """
    key, on = f'"{name}":"', len(name) + 3

    def value(text: str) -> str | None:
        at = text.find(name)  # a text without the name takes one pass
        if at < 0:
            return None
        end = text.find('"', at + on)
        found = text[at + on : end]
        plain = end >= 0 and text.startswith(key, at - 1) and "\\" not in text[at - 2] + found
        return found if plain and text.find(name, end) < 0 else parsed(text)

    def parsed(text: str) -> str | None:
        found = (parse_object(text) or {}).get(name)
        return found if isinstance(found, str) else None

    return pa.array([value(text) if text else None for text in texts], pa.string())


def to_read_columns(rows: pa.RecordBatch, schema: pa.Schema, *, queue: str) -> pa.RecordBatch:
    """
    Convert rows of a queue to the columns that Spark reads.

    Args:
        rows: of QUEUE_ROW.
        schema: any columns of a read, with Spark's types.
        queue: the address from which they came.

    Headers are read only if a column needs them.
    """
    asked = {*schema.names}
    as_map = any(pa.types.is_map(field.type) for field in schema)
    needed = as_map or asked & (HEADER_COLUMNS.keys() | {"corruptHeaders"})
    headers = Headers(rows.column("headers")) if needed else None
    columns = [column(field, rows, headers, queue) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def column(
    field: pa.Field,
    rows: pa.RecordBatch,
    headers: Headers | None,
    queue: str,
) -> pa.Array:
    """One column of a read; `headers` are those of the rows, if the columns need any of them."""
    name, kind = field.name, field.type
    if name == "id":
        return id_texts(rows.column("id"))
    if headers and name in HEADER_COLUMNS:
        return headers.text(HEADER_COLUMNS[name])
    if headers and name == "corruptHeaders":
        # not None, for which Arrow up to 21 makes an invalid array of a slice without poison
        nothing = pa.nulls(rows.num_rows, kind)
        return pc.if_else(headers.poison(), rows.column("headers"), nothing)
    if headers and pa.types.is_map(kind):
        return headers.map(kind)
    if name == "queue":
        return pa.repeat(pa.scalar(queue, kind), rows.num_rows)
    return rows.column(name).cast(kind)


def with_legacy_columns(rows: pa.Table) -> pa.Table:
    """
    Add the columns that version 1 endpoints read to rows to send; null if a value does not fit.

    Args:
        rows: with `headers`.
    """
    headers = Headers(rows["headers"].combine_chunks())
    for name, header in HEADER_COLUMNS.items():
        found = headers.text(header)
        # a varchar, in which the server would replace other characters by question marks
        short = pc.less_equal(pc.binary_length(found), LEGACY_LENGTH)
        fits = pc.and_(short, pc.string_is_ascii(found))
        rows = rows.append_column(name.lower(), pc.if_else(fits, found, None))
    return rows
