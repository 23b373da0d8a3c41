"""
The headers that the rows have themselves, and functions that write headers as JSON.

The headers of a frame are maps or JSON texts. There is a class for each of these forms, with the
same methods. They report which rows lack a header, so that only those rows get a default. All rows
are computed at once, in columns. Measured: with flat arrays of keys and values 840,000 maps are
converted each second. Row by row it is 200,000.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.flat_json import places_of, places_of_each, text_ends
from sqlq_spark.wire.header_columns import Headers, parse_headers

if TYPE_CHECKING:
    import numpy.typing as npt

Own: TypeAlias = "OwnTexts | OwnMaps"


class OwnTexts(Headers):
    """
    Headers that came as JSON.

    If no header of a text is changed, the text stays as it is, byte for byte.

    There is one exception. A text that endpoints up to 9.0 cannot read is always written again: see
    `Headers.unreadable_by_9_0`.
    """

    def __init__(self, texts: pa.Array) -> None:
        super().__init__(texts)
        self.objects = texts
        unreadable = self._read(self.unreadable_by_9_0())
        self._replace({row: wire.dumps(headers) for row, headers in unreadable.items()})

    def _read(self, rows: list[int]) -> dict[int, dict[str, str | None]]:
        texts = self.objects.take(pa.array(rows, pa.int64())).to_pylist()
        return {row: parse_headers(text) or {} for row, text in zip(rows, texts, strict=True)}

    def _replace(self, changed: dict[int, str]) -> None:
        """Replace the texts of some rows."""
        if changed:
            texts = self.objects.to_pylist()
            for row, text in changed.items():
                texts[row] = text
            self.objects = pa.array(texts, pa.string())
            super().__init__(self.objects)

    def without(self, explicit: dict[str, pa.Array]) -> OwnTexts:
        """
        Remove each header that a column overrides. Return the changed headers.

        `explicit` has a column for the name of each such header. A header stays if its value is the
        column's, or if the column is null. Rows without such a header stay as they are.
        """
        names: dict[int, list[str]] = defaultdict(list)  # row → names to remove
        for name, column in explicit.items():
            if column.null_count < len(column):
                # a header that is null in the text differs from the value of the column
                same = pc.fill_null(pc.equal(self.text(name), column), fill_value=False)
                other = pc.and_not(column.is_valid(), pc.or_(same, self.missing(name)))
                for row in np.flatnonzero(other.to_numpy(zero_copy_only=False)).tolist():
                    names[row].append(name)
        changed: dict[int, str] = {}
        for row, headers in self._read([*names]).items():
            kept = {name: value for name, value in headers.items() if name not in names[row]}
            changed[row] = wire.dumps(kept)
        self._replace(changed)
        return self

    def members(self) -> pa.Array:
        """Return the JSON objects without their braces. Rows without headers are null."""
        objects = pc.ascii_trim_whitespace(self.objects).cast(pa.binary())
        insides = pc.binary_slice(objects, 1, -1).cast(pa.string())
        return pc.if_else(self.without_any(), None, insides)


class OwnMaps:
    """
    Headers that came as maps.

    The entries of all maps are in one list. `parents[i]` is the row of entry `i`.
    """

    def __init__(self, maps: pa.MapArray) -> None:
        self.rows = len(maps)
        self.parents, first = parents_of_entries(maps)
        names = maps.keys.slice(first, len(self.parents)).cast(pa.string())
        self.names = names.dictionary_encode()
        self.values = maps.items.slice(first, len(self.parents)).cast(pa.string())
        # A map may have a name twice. The last value is kept, as readers of JSON do.
        _, last = places_of_each(self.names, self.parents, self.rows)
        if len(last) < len(self.names):
            self._keep(np.sort(last))
        self._put_type_last()

    def without(self, explicit: dict[str, pa.Array]) -> OwnMaps:
        """Remove each header that a column overrides, and return the changed headers."""
        keep = np.ones(len(self.parents), bool)
        for name, column in explicit.items():
            if column.null_count < self.rows:
                places = places_of(self.names, name)
                stated = column.is_valid().to_numpy(zero_copy_only=False)
                keep[places] = ~stated[self.parents[places]]
        self._keep(np.flatnonzero(keep))
        return self

    def _put_type_last(self) -> None:
        """Put the header NEVER_FIRST behind the other headers of its row."""
        is_last = np.zeros(len(self.parents), bool)
        is_last[places_of(self.names, wire.NEVER_FIRST)] = True
        if is_last.any():
            self._keep(np.lexsort((is_last, self.parents)))

    def _keep(self, places: npt.NDArray[np.intp]) -> None:
        """Keep the entries at some places, in the order of the places."""
        if not np.array_equal(places, np.arange(len(self.parents))):
            self.parents = self.parents[places]
            self.names = self.names.take(places)
            self.values = self.values.take(places)

    def missing(self, name: str) -> pa.Array:
        """Return which rows do not have a header, as booleans."""
        missing = np.ones(self.rows, bool)
        missing[self.parents[places_of(self.names, name)]] = False
        return pa.array(missing)

    def text(self, name: str) -> pa.Array:
        """Return one header of every row. Rows without the header are null."""
        entries = places_of(self.names, name)
        of_rows = np.full(self.rows, -1, np.int64)  # the entry of each row
        of_rows[self.parents[entries]] = entries
        return self.values.take(pa.array(of_rows, mask=of_rows < 0))

    def members(self) -> pa.Array:
        """Return the JSON objects without their braces. Rows without headers are null."""
        names = [wire.escape(name) for name in self.names.dictionary.to_pylist()]
        heads = pa.array([f'"{name}":"' for name in names], pa.string()).take(self.names.indices)
        entries = pc.binary_join_element_wise(heads, escape_all(self.values), '"', "")
        if self.values.null_count:
            nulls = pa.array([f'"{name}":null' for name in names], pa.string())
            entries = pc.coalesce(entries, nulls.take(self.names.indices))
        counts = np.bincount(self.parents, minlength=self.rows)
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), entries), ",")
        return pc.if_else(pa.array(counts > 0), texts, None)


def parents_of_entries(maps: pa.MapArray) -> tuple[npt.NDArray[np.intp], int]:
    """Return the row of each entry of some maps, and the place of the first entry."""
    offsets = maps.offsets.to_numpy()
    # not list_parent_indices, which ends the process for a map (pyarrow 26)
    return np.repeat(np.arange(len(maps)), np.diff(offsets)), int(offsets[0])


def default(name: str, value: pa.Array | str, missing: pa.Array) -> pa.Array:
    """Return a header as `"name":"value"` for the rows that lack it. The other rows are null."""
    head = f'"{wire.escape(name)}":"'
    if isinstance(value, str):
        text = pa.scalar(f'{head}{wire.escape(value)}"')
    else:
        text = pc.binary_join_element_wise(head, escape_all(value), '"', "")
    return pc.if_else(missing, text, None)


def join_members(*members: pa.Array) -> pa.Array:
    """Join columns of members to one JSON object for each row. A null adds no member to its row."""
    first, *others = members
    # a row whose texts are all null would be left out (pyarrow 26)
    are_all_null = reduce(pc.and_, [texts.is_null() for texts in members])
    first = pc.if_else(are_all_null, "", first)
    inner = pc.binary_join_element_wise(first, *others, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inner, "}", "")


def escape_all(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings without quotes. Each distinct text is escaped once."""
    ends = text_ends(texts)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    special = data - np.uint8(ord(" ")) > ord("~") - ord(" ")
    for character in b'"/\\':
        special |= data == character
    if not special.any():
        return texts
    is_special = np.zeros(len(texts), bool)
    is_full = np.diff(ends) > 0
    is_special[is_full] = np.logical_or.reduceat(special, (ends[:-1] - ends[0])[is_full])
    coded = pc.if_else(pa.array(is_special), texts, None).dictionary_encode()
    escaped = pa.array(map(wire.escape, coded.dictionary.to_pylist()), pa.string())
    return pc.coalesce(escaped.take(coded.indices), texts)
