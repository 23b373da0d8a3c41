"""
What lies in a receipt and in a parcel of the outbox: rows in columns, each buffer packed by zstd.

Whoever may write the state tables may write any bytes there. So a payload says no more than how many
rows it has, which of the expected columns, and the sizes of their buffers. Types come from us. Sizes
are checked before anything is unpacked, and every value before it is used. Arrow's own stream format
is not read: it unpacks whatever size its metadata claims, and trusts the offsets that it finds.

    the packed buffers, one behind the other
    a list, as JSON: {"columns": […], "batches": [{"rows": …, "buffers": [[size, packed] or null, …]}]}
    the list's length, 4 bytes, little-endian

A small payload stands in its row. A large one is cut into pages, a row each in a table beside it:
measured, 13 MB cost the server 60 ms as one value, which it cuts into pieces of 2 kB by itself, and
22 ms as a COPY of pages.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from sqlq_spark.errors import PayloadRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Measured on messages of 1.2 kB: level 1 2.0 us and 165 bytes a message, level -3 1.2 us and 262,
# lz4 1.4 us and 298.
ZSTD = pa.Codec("zstd", compression_level=-3)
THREADS = 2  # headers and bodies are packed beside each other, as Arrow's stream does

ROOM = 64 << 10  # bytes for what the list says of a batch, and for its ends
LARGE = 256 << 10  # bytes; a longer payload goes into pages
PAGE = 7_900  # bytes; with its key it fills a page of the table
LONGEST_LIST = 4 << 20  # bytes; one of a receipt of 64 MiB has 2 kB

RECEIPT_KEY = {"reader": pa.string(), "batch": pa.int64(), "task": pa.int32()}
PARCEL_KEY = {
    "sink": pa.string(),
    "batch": pa.int64(),
    "attempt": pa.string(),
    "parcel": pa.int32(),
}


class Unfit(ValueError):
    """Why a payload is not used."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A payload to store."""

    bytes: pa.Buffer
    size: int  # bytes of all buffers, unpacked


    @property
    def seal(self) -> Seal:
        """By which whoever packed it knows it again; 1 ms for a parcel of like messages."""
        return Seal(self.size, digest(self.bytes))


@dataclass(frozen=True, slots=True)
class Seal:
    """What Spark carries from the task that staged a parcel to the driver that sends it."""

    size: int  # bytes, unpacked
    digest: str  # of the payload


def digest(payload: pa.Buffer | bytes) -> str:
    """A digest that no other payload has."""
    return hashlib.sha256(payload).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a payload must be, by what is known without it."""

    where: str  # which receipt or parcel, for an error
    schema: pa.Schema
    optional: tuple[pa.Field, ...] = ()  # columns that may follow, in this order
    most: int  # bytes, unpacked
    size: int | None = None  # bytes, unpacked, as stored with it; None: not stored
    rows: int | None = None  # as stored with it
    seal: Seal | None = None  # of what was packed, where that is known


# ---------------------------------------------------------------- packing


def packed(rows: pa.Table) -> Packed:
    """
    The rows as a payload: about 1 MB for 27 MB of like messages.

    It is written into room for the worst, of which only what is written takes memory: a stream that
    grows by doubling held 50 MB more for 64 MB that cannot be compressed.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    room = pa.allocate_buffer(2 * rows.nbytes + (len(batches) + 1) * ROOM)
    sink, listed, size = pa.FixedSizeBufferWriter(room), [], 0
    with ThreadPoolExecutor(THREADS) as pool:
        for batch in batches:
            plain = [buffer for column in batch.columns for buffer in buffers(column)]
            sizes: list[tuple[int, int] | None] = []
            for buffer, small in zip(plain, pool.map(squeezed, plain), strict=True):
                sizes.append(None if buffer is None or small is None else (buffer.size, small.size))
                size += 0 if buffer is None else buffer.size
                if small is not None:
                    sink.write(small)
            listed.append({"rows": batch.num_rows, "buffers": sizes})
    listing = orjson.dumps({"columns": rows.column_names, "batches": listed})
    sink.write(listing)
    sink.write(len(listing).to_bytes(4, "little"))
    return Packed(room.slice(0, sink.tell()), size)


def squeezed(buffer: pa.Buffer | None) -> pa.Buffer | None:
    """A buffer packed; None for one that is absent."""
    return None if buffer is None else ZSTD.compress(buffer)


def buffers(column: pa.Array) -> Iterator[pa.Buffer | None]:
    """The buffers of a column, beginning at its first value: validity, then as its type has them."""
    kind, found, first, rows = column.type, column.buffers(), column.offset, len(column)
    yield validity(column)
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.bit_width // 8
        yield found[1].slice(first * width, rows * width)
        return
    ends = np.frombuffer(found[1], np.int32)[first : first + rows + 1]
    yield pa.py_buffer(ends - ends[0])
    if pa.types.is_list(kind):
        yield from buffers(column.values.slice(ends[0], ends[-1] - ends[0]))
        return
    data = found[2] if found[2] is not None else pa.py_buffer(b"")
    yield data.slice(int(ends[0]), int(ends[-1] - ends[0]))


def validity(column: pa.Array) -> pa.Buffer | None:
    """Which values are there, a bit each; None where all are."""
    if not column.null_count:
        return None
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(there, bitorder="little"))


# ---------------------------------------------------------------- unpacking


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
    """A buffer unpacked, of the size that the list says or it fails; None for one that is absent."""
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
    check(0 <= end and length <= LONGEST_LIST, "it is cut off")
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
        ends = np.frombuffer(offsets, np.int32)
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


# ---------------------------------------------------------------- pages


def in_row(payload: pa.Buffer) -> bytes:
    """What stands in the row itself: all of a small payload, nothing of a large one."""
    return b"" if payload.size > LARGE else payload.to_pybytes()


def pages(
    payload: pa.Buffer, kinds: dict[str, pa.DataType], key: tuple[str | int, ...]
) -> pa.Table:
    """
    A large payload as rows of its table of pages; no row for a small one.

    Args:
        payload: of `packed`.
        kinds: column → type of the key.
        key: one value for each of them.
    """
    count = 0 if payload.size <= LARGE else -(-payload.size // PAGE)
    offsets = np.minimum(np.arange(count + 1) * PAGE, payload.size).astype(np.int32)
    named = zip(kinds.items(), key, strict=True)
    columns = {name: pa.repeat(pa.scalar(value, kind), count) for (name, kind), value in named}
    columns["page"] = pa.array(range(count), pa.int32())
    columns["payload"] = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), payload]
    )
    return pa.table(columns)
