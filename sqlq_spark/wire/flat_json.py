r"""
Header texts in the form that writers use, read in columns without parsing a row.

The form is one object of texts, `{"name":"value","other":"value"}`, with little white space or none
between them. The quotes that are not escaped then come in fours, one four for each member, and
their places are all there is to find. Rows in another form are not read here: with null values,
with a name that may be too long, and all that is no object of texts.

Measured, for 11 headers of 700 bytes: 0.6 us for the quotes, 0.2 us to check what is between them,
0.3 us for all names. orjson takes 1.2 us for a dict, and as much again for what is asked of it.

An example: two texts, `{"a":"1"}` and `{"b":"\n"}`, in which `\n` are two characters. In the data
they stand one behind the other:

    place      0  1  2  3  4  5  6  7  8    9  10 11 12 13 14 15 16 17 18
    character  {  "  a  "  :  "  1  "  }    {  "  b  "  :  "  \  n  "  }

    marks      1 3 5 7 10 12 14 15 17          places of quotes, backslashes, control characters
    escapes    7                               the mark that is a backslash
    quotes     1 3 5 7 10 12 14 17             places of the quotes that are not escaped
    bounds     0 4 8                           row 0 has the quotes 0 to 3, row 1 those from 4 to 7
    members    [1 3 5 7] [10 12 14 17]         the four quotes of each member
    parents    0 1                             the row of each member
    before     3                               quotes of its row before the backslash: an odd
                                               number, so it is inside of its member's second text
    escaped    no no no yes                    name and value of each member
"""

from __future__ import annotations

from functools import cache, cached_property
from string import hexdigits
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Places = npt.NDArray[np.signedinteger[Any]]
    Flags = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]

QUOTE, COLON, COMMA, OPEN, CLOSE, BACKSLASH, HEX = b'":,{}\\u'
SPACE = 0x20  # JSON has no byte below it inside of a text
# quotes, backslashes and control characters in all texts, of which none is read if they have more:
# a place takes 8 bytes, and some copies. 16 MB of usual headers have a million.
MOST_MARKS = 4_000_000
BLOCK = 1 << 18  # bytes, which stay in the processor's cache
QUOTES = 4  # of a member
MOST_SPACES = 8  # at one side of a brace, a colon or a comma
# characters (UTF-16) of a name; Spark's JSON parser reads no longer one
LONGEST_HEADER_NAME = 50_000
BYTES = np.arange(256)
WHITE = np.isin(BYTES, list(b"\t\n\r "))
ESCAPES = np.isin(BYTES, list(b'"\\/bfnrtu'))
NO_DIGIT = 16
DIGITS = np.full(256, NO_DIGIT, np.uint8)
DIGITS[list(hexdigits.encode())] = [int(digit, 16) for digit in hexdigits]
# the first digit of half a surrogate pair, and from which second one it is the first or second half
SURROGATE, HIGH, LOW = 0xD, 0x8, 0xC
FEW_KINDS = 16  # up to which table of rows and names, in entries, a table is faster than sorting


class FlatObjects:
    """
    The members of JSON objects that are in the form; member `i` belongs to row `parents[i]`.

    Members are in the order of the text. A name may be there twice.
    """

    def __init__(self, texts: pa.Array) -> None:
        """Find the members of valid texts without nulls; `''` is an object without members."""
        self.rows = len(texts)
        data = texts.buffers()[2] or pa.py_buffer(b"")
        ends = text_ends(texts)
        self._data = data.slice(int(ends[0]))
        ends = ends - ends[0]
        text = np.frombuffer(self._data, np.uint8)[: ends[-1]]
        found = _find_marks(text)
        self.is_read = np.full(self.rows, found is not None)
        marks, kinds = found or (np.zeros(0, np.int32), text[:0])
        is_quote = kinds == QUOTE
        escapes = _find_escapes(marks, kinds)
        letters = text.take(marks[escapes] + 1, mode="clip")
        is_quote[escapes[letters == QUOTE] + 1] = False
        quotes = marks[is_quote]
        bounds = np.searchsorted(quotes, ends)

        # all marks that are no quotes: which row each is in, and how many quotes of it come before
        others = np.flatnonzero(~is_quote)
        rows = np.searchsorted(ends, marks[others], side="right") - 1
        before = others - np.arange(len(others)) - bounds[rows]
        is_inside = before % 2 == 1  # of a name or a value
        is_control = kinds[others] < SPACE
        is_wrong = is_control & (is_inside | ~WHITE[kinds[others]])
        is_wrong[np.searchsorted(others, escapes)] |= _are_wrong(text, marks[escapes], letters)
        self.is_read[rows[is_wrong]] = False

        members = self._find_members(text, ends, quotes, np.diff(bounds))
        self.parents: Places = np.repeat(np.arange(self.rows), self.counts)
        # two texts a member, its name and its value: which of them have an escape
        escaped = np.zeros(2 * len(members), bool)
        first_text = 2 * (np.cumsum(self.counts) - self.counts)  # of each row
        has_escape = self.is_read[rows] & ~is_control
        escaped[(first_text[rows] + before // 2)[has_escape]] = True
        self._names = members[:, 0] + 1, members[:, 1], escaped[::2]
        self._values = members[:, 2] + 1, members[:, 3], escaped[1::2]

    def _find_members(self, text: Bytes, ends: Places, quotes: Places, counts: Places) -> Places:
        """Return the quotes of each member of the rows that are in the form."""
        self.is_read &= counts % QUOTES == 0
        members, counts = self._keep_read(quotes, counts)
        members, counts = members.reshape(-1, QUOTES), counts // QUOTES
        self._check_form(text, ends, members, counts)
        members, self.counts = self._keep_read(members, counts)
        return members

    def _keep_read(self, found: Places, counts: Places) -> tuple[Places, Places]:
        """Return what belongs to rows that are read, and how much that is for each row."""
        if self.is_read.all():
            return found, counts
        return found[np.repeat(self.is_read, counts)], np.where(self.is_read, counts, 0)

    def _check_form(self, text: Bytes, ends: Places, members: Places, counts: Places) -> None:
        """Find the rows that have anything else than members, commas, braces and white space."""
        begins, stops, full = ends[:-1], ends[1:], counts > 0
        last = np.cumsum(counts)[full] - 1
        first = last - counts[full] + 1
        begin, name_stop, value, stop = members.T
        behind, comma = np.roll(stop, 1) + 1, np.full(len(members), COMMA, np.uint8)
        behind[first], comma[first] = begins[full], OPEN
        good = _is_between(behind, begin, comma, text)
        good &= _is_between(name_stop + 1, value, COLON, text)
        good[last] &= _is_between(stop[last] + 1, stops[full], CLOSE, text)
        good &= name_stop - begin <= LONGEST_HEADER_NAME  # a character has a byte or more
        self.is_read[np.repeat(np.arange(self.rows), counts)[~good]] = False
        self.is_read[~full] &= _are_empty(text, begins[~full], stops[~full])

    def places(self, name: str) -> Places:
        """Find the members of one name, which has no character that JSON must escape."""
        starts, stops, escaped = self._names
        if "names" in self.__dict__ or escaped.any():
            return places_of(self.names, name)
        places = np.flatnonzero(stops - starts == len(name.encode()))
        same = pc.equal(self._texts(starts[places], stops[places]), _scalar(name))
        found: Places = places[same.to_numpy(zero_copy_only=False)]
        return found

    def values_of(self, name: str) -> pa.Array:
        """Return the value of one name for each row, the last one of a row; null where absent."""
        places, last = self.places(name), np.full(self.rows, -1, np.intp)
        last[self.parents[places]] = places
        there = last >= 0
        starts, stops, escaped = self._values
        chosen = last[there]
        found = self._plain_texts(starts[chosen], stops[chosen], escaped[chosen])
        if len(found) == self.rows:
            return found
        return found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    @cached_property
    def names(self) -> pa.DictionaryArray:
        return self._plain_texts(*self._names).dictionary_encode()

    def values(self) -> pa.Array:
        return self._plain_texts(*self._values)

    def _plain_texts(self, starts: Places, stops: Places, escaped: Flags) -> pa.Array:
        """Copy texts out of the data, without escapes; their bounds rise."""
        found = self._texts(starts, stops)
        if not escaped.any():
            return found
        read = orjson.loads('["' + '","'.join(found.filter(pa.array(escaped)).to_pylist()) + '"]')
        return pc.replace_with_mask(found, pa.array(escaped), pa.array(read, pa.string()))

    def _texts(self, starts: Places, stops: Places) -> pa.Array:
        """Copy texts out of the data; their bounds rise."""
        if not len(starts):
            return pa.array([], pa.string())
        # an array of these texts and of the gaps between them, without a copy
        bounds = np.stack([starts, stops], axis=1).astype(np.int32, copy=False).ravel()
        both = pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), self._data)
        return both.take(pa.array(np.arange(0, len(bounds), 2)))


def places_of(names: pa.DictionaryArray, name: str) -> Places:
    """Find the members of one name."""
    code = names.dictionary.index(_scalar(name)).as_py()
    return np.flatnonzero(names.indices.to_numpy() == code)


def places_of_each(names: pa.DictionaryArray, parents: Places, rows: int) -> tuple[Places, Places]:
    """Find the first and the last member of each name in each row."""
    kinds = len(names.dictionary)
    entries = parents * kinds + names.indices.to_numpy()
    if rows * kinds > FEW_KINDS * len(names):
        ordered = np.sort(entries)
        again = bool((ordered[1:] == ordered[:-1]).any())
    else:
        seen = np.zeros(rows * kinds, bool)
        seen[entries] = True
        again = int(np.count_nonzero(seen)) < len(names)
    if not again:
        places = np.arange(len(names))
        return places, places
    _, first = np.unique(entries, return_index=True)
    _, from_end = np.unique(entries[::-1], return_index=True)
    order = np.argsort(first)
    return first[order], len(names) - 1 - from_end[order]


@cache
def _scalar(name: str) -> pa.Scalar:
    """Make a scalar of a known name once; pyarrow looks for a module each time."""
    return pa.scalar(name)


def text_ends(texts: pa.Array) -> Places:
    """Return where each text begins in the data, and where the last one ends."""
    if not len(texts):
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    return offsets[texts.offset : texts.offset + len(texts) + 1]


def _find_marks(text: Bytes) -> tuple[Places, Bytes] | None:
    """Find quotes, backslashes and control characters: where, and which; None: too many."""
    marks, kinds, count = [np.zeros(0, np.int32)], [text[:0]], 0
    for first in range(0, len(text), BLOCK):
        part = text[first : first + BLOCK]
        there = np.flatnonzero((part == QUOTE) | (part == BACKSLASH) | (part < SPACE))
        count += len(there)
        if count > MOST_MARKS:
            return None
        marks.append((there + first).astype(np.int32))
        kinds.append(part[there])
    return np.concatenate(marks), np.concatenate(kinds)


def _find_escapes(marks: Places, kinds: Bytes) -> Places:
    """Return which marks are backslashes that are not escaped by the one before."""
    found = np.flatnonzero(kinds == BACKSLASH)
    number = np.arange(len(found))
    begins_run = np.ones(len(found), bool)
    begins_run[1:] = np.diff(marks[found]) > 1
    begin = np.maximum.accumulate(np.where(begins_run, number, 0)) if len(found) else number
    escapes: Places = found[(number - begin) % 2 == 0]
    return escapes


def _are_wrong(text: Bytes, escapes: Places, letters: Bytes) -> Flags:
    """Whether escapes have no such letter, lack digits, or are half of a surrogate pair."""
    wrong = ~ESCAPES[letters]
    hexes = np.flatnonzero(letters == HEX)
    at = escapes[hexes]
    first, second, third, fourth = (
        DIGITS[text.take(at + digit, mode="clip")] for digit in range(2, 6)
    )
    half, low = (first == SURROGATE) & (second >= HIGH), second >= LOW
    pair = half[:-1] & ~low[:-1] & half[1:] & low[1:] & (np.diff(at) == len(r"\uD83D"))
    half[:-1] &= ~pair
    half[1:] &= ~pair
    wrong[hexes] = half | (np.maximum.reduce([first, second, third, fourth]) == NO_DIGIT)
    return wrong


def _is_between(starts: Places, stops: Places, mark: Bytes | int, text: Bytes) -> Flags:
    """Whether a mark stands between two places, with MOST_SPACES of white space around at most."""
    wide = np.flatnonzero(stops - starts > 1)
    if len(wide):
        start, stop = starts[wide], stops[wide]
        for _ in range(MOST_SPACES):
            start += (text[start] <= SPACE) & (stop - start > 1)
            stop -= (text[stop - 1] <= SPACE) & (stop - start > 1)
            if (stop - start == 1).all():
                break
        starts, stops = starts.copy(), stops.copy()
        starts[wide], stops[wide] = start, stop
    found: Flags = (stops - starts == 1) & (text.take(starts, mode="clip") == mark)
    return found


def _are_empty(text: Bytes, begins: Places, stops: Places) -> Flags:
    """Whether rows without a quote are `{}`, or have no text at all."""
    lengths = stops - begins
    empty: Flags = lengths == 0
    braces = np.flatnonzero(lengths == len("{}"))
    at = begins[braces]
    empty[braces] = (text[at] == OPEN) & (text[at + 1] == CLOSE)
    return empty
