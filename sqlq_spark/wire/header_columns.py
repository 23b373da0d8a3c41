"""The columns that Spark reads, computed from rows of a queue and their headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.headers import CORRELATION_ID, NEVER_FIRST, REPLY_TO_ADDRESS
from sqlq_spark.wire.ids import id_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

# columns of a read that are headers; the table's columns of these names are empty today
HEADER_COLUMNS = {"correlationId": CORRELATION_ID, "replyToAddress": REPLY_TO_ADDRESS}

LEGACY_LENGTH = 255  # bytes of such a column, if a table has them

TEXTS = frozenset({str, type(None)})  # allowed types of header values

# a letter or a dot as a hex escape in a header's name, which no transport writes
NAMED_IN_HEX = r"\\u00(?:2[Ee]|[4-7])"

# a quote with white space behind it, which no transport writes outside of values
SPACED = r'"[ \t\r\n]'


class Headers:
    """The parsed headers of some rows: each a flat JSON object of strings or nulls."""

    def __init__(self, texts: pa.Array) -> None:
        """Read header texts; `''` is `{}`."""
        self._found = [parse_object(text) for text in texts.to_pylist()]
        self._values: pa.Array | None = None

    def check(self) -> pa.Array:
        """Check every value: a row with a value that is not text becomes poison."""
        if self._values is None:
            try:
                self._values = self._flat_values()
            except (pa.ArrowException, TypeError):
                self._found = [
                    None if each is None or not is_flat(each) else each for each in self._found
                ]
                self._values = self._flat_values()
        return self._values

    def _flat_values(self) -> pa.Array:
        values = [value for each in self._found if each for value in each.values()]
        return pa.array(values, pa.string())

    def rows(self) -> list[dict[str, str | None]]:
        """The headers of each row; none for poison."""
        self.check()
        return [each or {} for each in self._found]

    def poison(self) -> pa.Array:
        """Which rows are poison, as booleans."""
        self.check()
        return pa.array([each is None for each in self._found], pa.bool_())

    def map(self, kind: pa.MapType) -> pa.MapArray:
        """The headers as a map column; null for poison."""
        values = self.check().cast(kind.item_type)
        filled = self.rows()
        offsets = np.zeros(len(filled) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, filled), np.int32, len(filled)), out=offsets[1:])
        keys = pa.array([key for each in filled for key in each], kind.key_type)
        offset_array = pa.array(offsets)
        return pa.MapArray.from_arrays(offset_array, keys, values, type=kind, mask=self.poison())

    def text(self, name: str) -> pa.Array:
        """One header of every row; null if it is missing, or if the row is poison."""
        self.check()
        return pa.array([each.get(name) if each else None for each in self._found], pa.string())


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
    return found if found is not None and is_flat(found) else None


def find_unfit(texts: pa.Array, found: Sequence[dict[str, str | None]]) -> list[int]:
    """
    Find the rows that endpoints up to 9.0 cannot read: a name is there twice, or NEVER_FIRST first.

    The first look counts `":`, which each name ends with, unless white space follows a quote. What
    has more of them than names is parsed. Measured: 1.2 us for headers of 860 bytes, where parsing
    takes 2.5 us.

    Args:
        texts: headers as JSON; null is no headers.
        found: what `parse_headers` read from each; poison is empty.
    """
    spaced = pc.match_substring_regex(texts, SPACED).to_pylist()
    rows = zip(texts.to_pylist(), spaced, found, strict=True)
    return [at for at, (text, wide, names) in enumerate(rows) if _is_unfit(text, names, wide=wide)]


def _is_unfit(text: str, names: dict[str, str | None], *, wide: bool) -> bool:
    if not names:
        return False
    if wide or text.count('":') != len(names):
        members = json.loads(text, object_pairs_hook=list)
        return len(members) != len(names) or members[0][0] == NEVER_FIRST
    return next(iter(names)) == NEVER_FIRST


def quick_text(texts: list[str | None], name: str) -> pa.Array:
    """
    Find one header of every row by a text search, without parsing; null if it is missing.

    The search assumes the form that the transports write. In JSON a quote inside a string is
    escaped, so `"name":"` without a backslash before it is a key. If the value has an escape, or if
    the name is there twice or in another form, the row is parsed. A name with a hex escape
    (`NAMED_IN_HEX`) is not found.
    Measured: 0.4 us per message; parsing takes 2 us.
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

    Headers are parsed only if a column needs all of them, or if a name may have a hex escape.
    """
    headers = texts = None
    found = rows.column("headers")
    if any(pa.types.is_map(field.type) or field.name == "corruptHeaders" for field in schema):
        headers = Headers(found)
    elif HEADER_COLUMNS.keys() & {*schema.names}:
        if pc.any(pc.match_substring_regex(found, NAMED_IN_HEX)).as_py():
            headers = Headers(found)
        else:
            texts = found.to_pylist()
    columns = [column(field, rows, headers, texts, queue) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def column(
    field: pa.Field,
    rows: pa.RecordBatch,
    headers: Headers | None,
    texts: list[str | None] | None,
    queue: str,
) -> pa.Array:
    """One column of a read, from parsed `headers`, or from `texts` if no parsing is needed."""
    name, kind = field.name, field.type
    if name == "id":
        return id_texts(rows.column("id"))
    if name in HEADER_COLUMNS:
        header = HEADER_COLUMNS[name]
        return headers.text(header) if headers else quick_text(texts or [], header)
    if headers and name == "corruptHeaders":
        # not None, for which Arrow up to 21 makes an invalid array of a slice without poison
        nothing = pa.nulls(rows.num_rows, kind)
        return pc.if_else(headers.poison(), rows.column("headers"), nothing)
    if headers and pa.types.is_map(kind):
        return headers.map(kind)
    if name == "queue":
        return pa.repeat(pa.scalar(queue, kind), rows.num_rows)
    at = rows.schema.get_field_index(name.lower())  # bodyString may be missing, see BODY_STRING
    return pa.nulls(rows.num_rows, kind) if at < 0 else rows.column(at).cast(kind)


def with_legacy_columns(rows: pa.Table) -> pa.Table:
    """
    Add the columns that version 1 endpoints read to rows to send; null if a value does not fit.

    Args:
        rows: with `headers`.
    """
    texts = rows["headers"].to_pylist()
    for name, header in HEADER_COLUMNS.items():
        found = quick_text(texts, header)
        # a varchar, in which the server would replace other characters by question marks
        short = pc.less_equal(pc.binary_length(found), LEGACY_LENGTH)
        fits = pc.and_(short, pc.string_is_ascii(found))
        rows = rows.append_column(name.lower(), pc.if_else(fits, found, None))
    return rows
