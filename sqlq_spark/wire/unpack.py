"""
Reads payloads. Another login may have changed them, so all of their content is untrusted.

A payload says how many rows it has, which of the expected columns, and the sizes of their buffers.
The types are known. The sizes are checked before anything is decompressed. A buffer with another
size fails, and every value is checked before it is used.
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
from sqlq_spark.wire.payload import ALONE, THREADS, ZSTD, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlq_spark.wire.payload import Seal

LONGEST_LIST = 4 << 20  # bytes; that of a receipt of 64 MiB has 2 kB


class Unfit(ValueError):
    """The reason why a payload cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of a payload before it is read."""

    where: str  # which receipt or chunk, for an error
    schema: pa.Schema
    optional: tuple[pa.Field, ...] = ()  # columns that may follow, in this order
    most: int  # bytes, unpacked
    size: int | None = None  # bytes, unpacked, as stored with it; None: not stored
    rows: int | None = None  # as stored with it
    seal: Seal | None = None  # of the payload when it was packed, if known


def unpack(payload: bytes, pages: Iterable[tuple[bytes]], expected: Expected) -> pa.Table:
    """
    The rows of a payload, which is in its row, or in its pages if the row's value is empty.

    Raises:
        PayloadRefused: `pack` cannot have written it, or it is too large.
    """
    whole = pa.py_buffer(payload or b"".join(page for (page,) in pages))
    try:
        if expected.seal is not None:
            check(digest(whole) == expected.seal.digest, "it is not the one that the task wrote")
        return table(whole, expected)
    except (Unfit, pa.ArrowException, OSError) as error:
        raise PayloadRefused(where=expected.where, reason=str(error)[:300]) from None


def table(whole: pa.Buffer, expected: Expected) -> pa.Table:
    """Read the list, check what it says, and only then unpack."""
    columns, batches, end = read_list(whole)
    schema = schema_of(columns, expected)
    sizes = [pair for _, pairs in batches for pair in pairs if pair is not None]
    size, rows = sum(each for each, _ in sizes), sum(each for each, _ in batches)
    check(size <= expected.most, f"it holds {size} bytes, more than the {expected.most} it may")
    check(expected.size in {None, size}, f"it holds {size} bytes, and {expected.size} were stored")
    check(expected.rows in {None, rows}, f"it has {rows} rows, and {expected.rows} were stored")
    check(sum(each for _, each in sizes) == end, "its buffers do not fill it")
    at, found = 0, []
    with ThreadPoolExecutor(THREADS) as pool:
        spread = pool.map if size > ALONE else map
        for count, pairs in batches:
            starts = [*accumulate((0 if pair is None else pair[1] for pair in pairs), initial=at)]
            at = starts.pop()
            reading = Reading(spread(partial(decompress, whole), starts, pairs))
            arrays = [reading.column(field.type, count) for field in schema]
            reading.finish()
            found.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    made = pa.Table.from_batches(found, schema=schema)
    made.validate(full=True)
    return made


def decompress(whole: pa.Buffer, at: int, pair: list[int] | None) -> pa.Buffer | None:
    """Decompress a buffer to the size in the list; None for a missing one."""
    if pair is None:
        return None
    plain, small = pair
    return ZSTD.decompress(whole.slice(at, small), decompressed_size=plain)


def check(fine: bool, reason: str) -> None:  # noqa: FBT001
    """Raise Unfit, unless the condition is true."""
    if not fine:
        raise Unfit(reason)


def read_list(whole: pa.Buffer) -> tuple[list[Any], list[tuple[int, list[Any]]], int]:
    """Read the list: the columns, each batch's rows and buffers, and the end of the buffers."""
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
    """Whether it is a pair of sizes, or null for a missing buffer."""
    match found:
        case None:
            return True
        case [int(plain), int(small)]:
            return 0 <= plain < 2**62 and 0 <= small < 2**62
    return False


def schema_of(columns: Sequence[Any], expected: Expected) -> pa.Schema:
    """The schema of these columns, with the known types."""
    fields = [*expected.schema, *(each for each in expected.optional if each.name in columns)]
    check([*columns] == [each.name for each in fields], "it has other columns")
    return pa.schema(fields)


class Reading:
    """Turns the buffers of one batch into columns, in their order."""

    def __init__(self, found: Iterator[pa.Buffer | None]) -> None:
        self.found = found

    def column(self, kind: pa.DataType, rows: int) -> pa.Array:
        """One column; the sizes of its buffers must fit its rows."""
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
        """The next buffer; its size is known, except for the bytes of texts."""
        found = next(self.found, None)
        if found is None:
            check(absent, "a buffer is missing")
        else:
            check(size in {None, found.size}, f"a buffer holds {found.size} bytes and not {size}")
        return found

    def finish(self) -> None:
        """Check that all buffers were read."""
        check(next(self.found, self) is self, "it has more buffers than columns")
