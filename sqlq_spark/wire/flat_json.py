r"""
Header texts in the form that transports write, read in columns without parsing a row.

The form is one object of texts without white space, `{"name":"value","other":"value"}`, where
texts may have the escapes of one letter. The quotes that are not escaped then come in fours, one
four for each member, and their places are all there is to find. Rows in another form are not read
here: with null values, with hex escapes, with white space, with a name that may be too long, and
all that is no object of texts.

Measured, for 11 headers of 700 bytes: 0.5 us for the quotes, 0.4 us for all names and values.
orjson takes 1.2 us for a dict, and as much again for what is asked of it.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Places = npt.NDArray[np.signedinteger[Any]]
    Flags = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]

QUOTE, COLON, COMMA, OPEN, CLOSE, BACKSLASH = b'":,{}\\'
SPACE = 0x20  # JSON has no byte below it inside of a text
# quotes, backslashes or control characters in all texts: a place takes 8 bytes, and some copies.
# 16 MB of usual headers have a million.
MOST_MARKS = 4_000_000
QUOTES = 4  # of a member
LONGEST_NAME = 50_000  # characters (UTF-16) of a name; Spark's JSON parser reads no longer one
SIMPLE = b'/"'  # an escape is its letter
ESCAPES = np.isin(np.arange(256), list(SIMPLE + b"\\bfnrt"))
NOT_SIMPLE = ~np.isin(np.arange(256), list(SIMPLE))


class FlatObjects:
    """
    The members of JSON objects that are in the form; member `i` belongs to row `parents[i]`.

    Members are in the order of the text. A name may be there twice.
    """

    def __init__(self, texts: pa.Array) -> None:
        """
        Find the members.

        Args:
            texts: of pa.string(), valid UTF-8, without nulls; `''` is an object without members.
                None is read if they have more than MOST_MARKS of a kind.
        """
        self.rows = len(texts)
        data = texts.buffers()[2] or pa.py_buffer(b"")
        ends = _ends(texts)
        self._data = data.slice(int(ends[0]))
        ends = ends - ends[0]
        text = np.frombuffer(self._data, np.uint8)[: ends[-1]]
        marks = _find_marks(text)
        self.is_read = np.full(self.rows, marks is not None)
        quotes, slashes, control = marks or [np.zeros(0, np.intp)] * 3
        self._escapes = _find_escapes(slashes)
        letters = text[np.minimum(self._escapes + 1, len(text) - 1)]
        self._hard = self._escapes[NOT_SIMPLE[letters]]
        escaped = self._escapes[letters == QUOTE] + 1
        quotes = np.delete(quotes, np.searchsorted(quotes, escaped))
        wrong = np.append(self._escapes[~ESCAPES[letters]], control)
        self.is_read[np.searchsorted(ends, wrong, side="right") - 1] = False
        self._set_members(text, ends, quotes)

    def _set_members(self, text: Bytes, ends: Places, quotes: Places) -> None:
        """Keep the quotes of the rows that are in the form."""
        counts = np.diff(np.searchsorted(quotes, ends))
        self.is_read &= counts % QUOTES == 0
        members, counts = self._keep_read(quotes, counts)
        members, counts = members.reshape(-1, QUOTES), counts // QUOTES
        self._check_form(text, ends, members, counts)
        members, counts = self._keep_read(members, counts)
        bounds = members.astype(np.int32)
        self._names = bounds[:, 0] + 1, bounds[:, 1]
        self._values = bounds[:, 2] + 1, bounds[:, 3]
        self.counts = counts
        self.parents: Places = np.repeat(np.arange(self.rows), counts)

    def _keep_read(self, found: Places, counts: Places) -> tuple[Places, Places]:
        """Return what belongs to rows that are read, and how much that is for each row."""
        if self.is_read.all():
            return found, counts
        return found[np.repeat(self.is_read, counts)], np.where(self.is_read, counts, 0)

    def _check_form(self, text: Bytes, ends: Places, members: Places, counts: Places) -> None:
        """Find the rows that have anything else than members, commas and braces."""
        begins, stops, full = ends[:-1], ends[1:], counts > 0
        last = np.cumsum(counts)[full] - 1
        first = last - counts[full] + 1
        # behind a member: a comma and the next one, or a brace and the end of the row
        following, separator = np.append(members[1:, 0], 0), np.full(len(members), COMMA, np.uint8)
        following[last], separator[last] = stops[full], CLOSE
        begin, name_stop, value, stop = members[:, :QUOTES].T
        behind = np.minimum(stop + 1, len(text) - 1)
        good = (value - name_stop == len('":')) & (following - stop == len('",'))
        good &= (text[name_stop + 1] == COLON) & (text[behind] == separator)
        good &= name_stop - begin <= LONGEST_NAME  # a character has a byte or more
        good[first] &= (begin[first] == begins[full] + 1) & (text[begins[full]] == OPEN)
        self.is_read[np.repeat(np.arange(self.rows), counts)[~good]] = False
        self.is_read[~full] &= _are_empty(text, begins[~full], stops[~full])

    def leave_out(self, rows: Sequence[int]) -> None:
        """Read some rows no longer."""
        self.is_read[rows] = False
        keep = np.flatnonzero(self.is_read[self.parents])
        self._names = self._names[0][keep], self._names[1][keep]
        self._values = self._values[0][keep], self._values[1][keep]
        self.parents, self.counts = self.parents[keep], np.where(self.is_read, self.counts, 0)
        self.__dict__.pop("names", None)

    def places(self, name: str) -> Places:
        """
        Find the members of one name.

        Args:
            name: without characters that JSON escapes.
        """
        if "names" in self.__dict__:
            code = self.names.dictionary.index(_scalar(name)).as_py()
            return np.flatnonzero(self.names.indices.to_numpy() == code)
        starts, stops = self._names
        places = np.flatnonzero(stops - starts == len(name.encode()))
        same = pc.equal(self._texts(starts[places], stops[places]), _scalar(name))
        found: Places = places[same.to_numpy(zero_copy_only=False)]
        return found

    def values_of(self, name: str) -> pa.Array:
        """Return the value of one name for each row, the last one of a row; null where absent."""
        places, last = self.places(name), np.full(self.rows, -1, np.intp)
        last[self.parents[places]] = places
        there = last >= 0
        found = self._plain_texts(*(bounds[last[there]] for bounds in self._values))
        if len(found) == self.rows:
            return found
        return found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    @cached_property
    def names(self) -> pa.DictionaryArray:
        """The name of each member."""
        return self._plain_texts(*self._names).dictionary_encode()

    def values(self) -> pa.Array:
        """Return the value of each member."""
        return self._plain_texts(*self._values)

    def repeated(self) -> list[int]:
        """Find the rows that have a name twice."""
        kinds = len(self.names.dictionary)
        entries = np.sort(self.parents * kinds + self.names.indices.to_numpy())
        again = entries[1:][entries[1:] == entries[:-1]]
        found: list[int] = np.unique(again // max(1, kinds)).tolist()
        return found

    def _plain_texts(self, starts: Places, stops: Places) -> pa.Array:
        """Copy texts out of the data, without escapes; their bounds rise."""
        found = self._texts(starts, stops)
        easy, hard = (_containing(each, starts, stops) for each in (self._escapes, self._hard))
        if not easy.any():
            return found
        plain = pc.replace_substring(found.filter(pa.array(easy)), "\\/", "/")
        plain = pc.replace_substring(plain, '\\"', '"')
        if hard.any():
            read = [orjson.loads(f'"{text}"') for text in found.filter(pa.array(hard)).to_pylist()]
            plain = pc.replace_with_mask(plain, pa.array(hard[easy]), pa.array(read, pa.string()))
        return pc.replace_with_mask(found, pa.array(easy), plain)

    def _texts(self, starts: Places, stops: Places) -> pa.Array:
        """Copy texts out of the data; their bounds rise."""
        if not len(starts):
            return pa.array([], pa.string())
        # an array of these texts and of the gaps between them, without a copy
        bounds = np.stack([starts, stops], axis=1).astype(np.int32, copy=False).ravel()
        both = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), self._data)
        return both.take(pa.array(np.arange(0, len(bounds), 2)))


@cache
def _scalar(name: str) -> pa.Scalar:
    """Make a scalar of a known name once; pyarrow looks for a module each time."""
    return pa.scalar(name)


def _ends(texts: pa.Array) -> Places:
    """Return where each text begins in the data, and where the last one ends."""
    if not len(texts):
        return np.zeros(1, np.intp)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    return offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.intp)


def _find_marks(text: Bytes) -> list[Places] | None:
    """Return the places of quotes, of backslashes and of control characters; None: too many."""
    found: list[Places] = []
    for compare, mark in ((np.equal, QUOTE), (np.equal, BACKSLASH), (np.less, SPACE)):
        there = compare(text, mark)
        if np.count_nonzero(there) > MOST_MARKS:
            return None
        found.append(np.flatnonzero(there))
    return found


def _find_escapes(found: Places) -> Places:
    """Return the places, of all backslashes, of those that are not escaped by the one before."""
    number = np.arange(len(found))
    begins_run = np.ones(len(found), bool)
    begins_run[1:] = np.diff(found) > 1
    begin = np.maximum.accumulate(np.where(begins_run, number, 0)) if len(found) else number
    escapes: Places = found[(number - begin) % 2 == 0]
    return escapes


def _containing(places: Places, starts: Places, stops: Places) -> Flags:
    """Whether each text contains one of these places; the bounds rise."""
    found = np.zeros(len(starts), bool)
    at = np.searchsorted(starts, places, side="right") - 1
    inside = at >= 0
    inside[inside] = places[inside] < stops[at[inside]]
    found[at[inside]] = True
    return found


def _are_empty(text: Bytes, begins: Places, stops: Places) -> Flags:
    """Whether rows without a quote are `{}`, or have no text at all."""
    lengths = stops - begins
    empty: Flags = lengths == 0
    braces = np.flatnonzero(lengths == len("{}"))
    at = begins[braces]
    empty[braces] = (text[at] == OPEN) & (text[at + 1] == CLOSE)
    return empty
