"""
Payloads read again: what someone else may have written over, so nothing in one is believed.

It says how many rows it has, which of the expected columns, and the sizes of their buffers. Types
come from us. The sizes are checked before anything is unpacked, a buffer is unpacked into as many
bytes and fails where it holds others, and every value is checked before it is used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from sqlq_spark.errors import PayloadRefused
from sqlq_spark.wire.payload import THREADS, ZSTD, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlq_spark.wire.payload import Seal

LONGEST_LIST = 4 << 20  # bytes; that of a receipt of 64 MiB has 2 kB


class Unfit(ValueError):
    """Why a payload is not used."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a payload must be, by what is known without it."""

    where: str  # which receipt or chunk, for an error
    schema: pa.Schema
    optional: tuple[pa.Field, ...] = ()  # columns that may follow, in this order
    most: int  # bytes, unpacked
    size: int | None = None  # bytes, unpacked, as stored with it; None: not stored
    rows: int | None = None  # as stored with it
    seal: Seal | None = None  # of what was packed, where that is known


def unpacked(payload: bytes, pages: Iterable[tuple[bytes]], expected: Expected) -> pa.Table:
    """
    The rows of a payload, which stands in its row or, where that is empty, in its pages.

    Raises:
        PayloadRefused: it is not what `packed` makes of such rows, or is larger than may be.
    """
    whole = pa.py_buffer(payload or b"".join(page for (page,) in pages))
    try:
        if expected.seal is not None:
            check(digest(whole) == expected.seal.digest, "it is not the one that the task wrote")
        return table(whole, expected)
    except (Unfit, pa.ArrowException, OSError) as error:
        raise PayloadRefused(expected.where, str(error)[:300]) from None


def table(whole: pa.Buffer, expected: Expected) -> pa.Table:
    """Read the list, check what it says, and only then unpack."""
    columns, batches, end = listed(whole)
    schema = chosen(columns, expected)
    sizes = [pair for _, pairs in batches for pair in pairs if pair is not None]
    size, rows = sum(each for each, _ in sizes), sum(each for each, _ in batches)
    check(size <= expected.most, f"it holds {size} bytes, more than the {expected.most} it may")
    check(expected.size in {None, size}, f"it holds {size} bytes, and {expected.size} were stored")
    check(expected.rows in {None, rows}, f"it has {rows} rows, and {expected.rows} were stored")
    check(sum(each for _, each in sizes) == end, "its buffers do not fill it")
    at, found = 0, []
    with ThreadPoolExecutor(THREADS) as pool:
        for count, pairs in batches:
            starts = [*accumulate((0 if pair is None else pair[1] for pair in pairs), initial=at)]
            at = starts.pop()
            reading = Reading(pool.map(partial(opened, whole), starts, pairs))
            arrays = [reading.column(field.type, count) for field in schema]
            reading.finish()
            found.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    made = pa.Table.from_batches(found, schema=schema)
    made.validate(full=True)
    return made


def opened(whole: pa.Buffer, at: int, pair: list[int] | None) -> pa.Buffer | None:
    """A buffer unpacked, of the size that the list says; None for one that is absent."""
    if pair is None:
        return None
    plain, small = pair
    return ZSTD.decompress(whole.slice(at, small), decompressed_size=plain)


def check(fine: bool, reason: str) -> None:  # noqa: FBT001
    """Go on only where that is so."""
    if not fine:
        raise Unfit(reason)


def listed(whole: pa.Buffer) -> tuple[list[Any], list[tuple[int, list[Any]]], int]:
    """The names of the columns, rows and buffers of each batch, and where the buffers end."""
    check(whole.size > 4, "it is cut off")  # noqa: PLR2004
    length = int.from_bytes(whole.slice(whole.size - 4).to_pybytes(), "little")
    end = whole.size - 4 - length
    check(end >= 0 and length <= LONGEST_LIST, "it is cut off")
    try:
        match orjson.loads(whole.slice(end, length).to_pybytes()):
            case {"columns": list(columns), "batches": list(batches)}:
                return columns, [batch(each) for each in batches], end
    except orjson.JSONDecodeError:
        pass
    raise Unfit("its list cannot be read")


def batch(found: object) -> tuple[int, list[Any]]:
    """Rows and buffers of one batch."""
    match found:
        case {"rows": int(rows), "buffers": list(sizes)} if 0 < rows < 2**31 and all(
            map(is_size, sizes)
        ):
            return rows, sizes
    raise Unfit("its list names no batch")


def is_size(found: object) -> bool:
    """Whether it is a pair of sizes, or null for a buffer that is absent."""
    match found:
        case None:
            return True
        case [int(plain), int(small)]:
            return 0 <= plain < 2**62 and 0 <= small < 2**62
    return False


def chosen(columns: Sequence[Any], expected: Expected) -> pa.Schema:
    """The schema that these columns have, with our types."""
    fields = [*expected.schema, *(each for each in expected.optional if each.name in columns)]
    check([*columns] == [each.name for each in fields], "it has other columns")
    return pa.schema(fields)


class Reading:
    """The buffers of one batch, one after the other, made into columns."""

    def __init__(self, found: Iterator[pa.Buffer | None]) -> None:
        self.found = found

    def column(self, kind: pa.DataType, rows: int) -> pa.Array:
        """One column; its buffers are as long as its rows ask for."""
        there = self.buffer(-(-rows // 8), absent=True)
        if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
            data = self.buffer(rows * kind.bit_width // 8)
            return pa.Array.from_buffers(kind, rows, [there, data])
        offsets = self.buffer(4 * (rows + 1))
        if not pa.types.is_list(kind):
            return pa.Array.from_buffers(kind, rows, [there, offsets, self.buffer()])
        ends = np.frombuffer(offsets or b"", np.int32)
        check(ends[0] == 0 and ends[-1] >= 0, "its lists are out of bounds")
        children = [self.column(kind.value_type, int(ends[-1]))]
        return pa.Array.from_buffers(kind, rows, [there, offsets], children=children)

    def buffer(self, size: int | None = None, *, absent: bool = False) -> pa.Buffer | None:
        """The next buffer, of a size that is known, except for the bytes of texts."""
        found = next(self.found, None)
        if found is None:
            check(absent, "a buffer is missing")
        else:
            check(size in {None, found.size}, f"a buffer holds {found.size} bytes and not {size}")
        return found

    def finish(self) -> None:
        """Make sure that nothing is left."""
        check(next(self.found, self) is self, "it has more buffers than columns")
