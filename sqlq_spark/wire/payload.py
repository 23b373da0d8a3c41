"""
Payloads: the content of a receipt or of a staged chunk, in columns compressed with zstd.

A login that may write the state tables may write any bytes there, so a payload is untrusted. So
Arrow's own stream format is not used: its reader allocates any size that the metadata claims, and
trusts the offsets. The format of this module contains no types, because the reader knows them.
`unpack` checks all of it: the sizes before it decompresses anything, and each value before it uses
the value.

A payload consists of three parts:

    the compressed buffers, one after the other
    a list as JSON: the names of the columns; for each batch its number of rows and, for each
        buffer, its sizes before and after compression, or null if the buffer is absent:
        {"columns": […], "batches": [{"rows": …, "buffers": [[plain, packed] or null, …]}]}
    the length of the list, 4 bytes, little-endian

A small payload is stored in the row of its receipt or chunk. A large payload is cut into pages,
which are rows of another table. Measured with 13 MB on PostgreSQL: as one value, which the server
stores by TOAST in pieces of 2 kB, it takes the server 60 ms. As pages by COPY it takes 22 ms.
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
    from collections.abc import Iterable, Iterator

# Measured with messages of 1.2 kB: the time to compress one, and its compressed size.
#     usual messages                        level 1 2.0 us, 165 bytes; level -3 1.2 us, 262 bytes;
#                                           lz4 1.4 us, 298 bytes
#     bodies of random hexadecimal digits   level 1 1.1 us, 560 bytes; level -3 0.8 us, 1,090 bytes
ZSTD = pa.Codec("zstd", compression_level=-3)
SMALL = pa.Codec("zstd", compression_level=1)  # slower, for a buffer that ZSTD hardly shrinks
SAMPLE = 64 << 10  # bytes of a buffer that show whether ZSTD shrinks it
THREADS = 2  # headers and bodies are compressed in parallel, as in Arrow's stream
ALONE = 1 << 20  # bytes; up to this size one thread is faster, because threads take 2 ms to start

# bytes that are reserved in a payload for its list: ROOM for each batch, and ROOM for the rest
ROOM = 64 << 10
LENGTH = 4  # bytes; the size of the number at the end that says how long the list is
LONGEST_LIST = 4 << 20  # bytes; the list of a receipt of 64 MiB has 2 kB
LARGE = 256 << 10  # bytes; a longer payload is cut into pages
PAGE = 7_900  # bytes; a page and its key fill a page of the database's table

RECEIPT_KEY = {"stream": pa.string(), "batch": pa.int64(), "task": pa.int32()}
CHUNK_KEY = {
    "sink": pa.string(),
    "sink_batch": pa.int64(),
    "attempt": pa.string(),
    "chunk": pa.int32(),
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A payload to store."""

    bytes: pa.Buffer
    size: int  # bytes of all buffers before compression

    @property
    def seal(self) -> Seal:
        """The seal by which the driver recognises the payload. For a chunk this takes 1 ms."""
        return Seal(self.size, hashlib.sha256(self.bytes).hexdigest())


@dataclass(frozen=True, slots=True)
class Seal:
    """
    The fingerprint of a staged chunk, which the task sends to the driver through Spark.

    It does not pass through the database. So whoever changes the chunk there cannot change its
    seal.
    """

    size: int  # bytes before compression
    digest: str  # SHA-256 of the payload


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is known of a payload before it is read."""

    where: str  # the name of the receipt or chunk, for an error
    schema: pa.Schema  # the columns that the payload must have
    optional: tuple[pa.Field, ...] = ()  # columns that may follow those of `schema`, in this order
    most: int  # the most bytes that it may have before compression
    # What the row of the receipt or chunk says of its payload; None if the row does not say it.
    size: int | None = None  # bytes before compression
    rows: int | None = None  # how many rows
    seal: Seal | None = None  # the seal that `pack` made; None if it is not known


class BadPayload(ValueError):
    """The reason why a payload cannot be used."""


# ----- write ---------------------------------------------------------------------------------


def pack(rows: pa.Table) -> Packed:
    """
    Compress rows into a payload: about 1 MB for 27 MB of similar messages.

    The buffer is allocated for data that cannot be compressed, but only the part that is written
    takes memory. Measured with 64 MB of such data: a buffer that doubles when it is full would take
    50 MB more.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    room = pa.allocate_buffer(2 * rows.nbytes + (len(batches) + 1) * ROOM)
    sink = pa.FixedSizeBufferWriter(room)
    listed = []
    size = 0
    with ThreadPoolExecutor(THREADS) as pool:
        spread = pool.map if rows.nbytes > ALONE else map
        for batch in batches:
            buffers = [buffer for column in batch.columns for buffer in _buffers(column)]
            packed = [*spread(_compress, buffers)]
            sizes = [
                None if small is None else (plain.size, small.size)
                for plain, small in zip(buffers, packed, strict=True)
            ]
            size += sum(plain.size for plain in filter(None, buffers))
            sink.writelines(filter(None, packed))
            listed.append({"rows": batch.num_rows, "buffers": sizes})
    listing = orjson.dumps({"columns": rows.column_names, "batches": listed})
    sink.write(listing)
    sink.write(len(listing).to_bytes(LENGTH, "little"))
    return Packed(room.slice(0, sink.tell()), size)


def in_row(payload: pa.Buffer) -> bytes:
    """Return what is stored in the row itself: a small payload, or no bytes if it is large."""
    return b"" if payload.size > LARGE else payload.to_pybytes()


def pages(
    payload: pa.Buffer, kinds: dict[str, pa.DataType], key: tuple[str | int, ...]
) -> pa.Table:
    """
    Return the rows for the table of pages: many for a large payload, none for a small one.

    `kinds` has the types of the key's columns by their names. `key` has the columns' values.
    """
    count = 0 if payload.size <= LARGE else -(-payload.size // PAGE)
    offsets = np.minimum(np.arange(count + 1) * PAGE, payload.size).astype(np.int32)
    values = zip(kinds.items(), key, strict=True)
    columns = {name: pa.repeat(pa.scalar(value, kind), count) for (name, kind), value in values}
    columns["page"] = pa.array(range(count), pa.int32())
    columns["payload"] = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), payload]
    )
    return pa.table(columns)


def _buffers(column: pa.Array) -> Iterator[Any]:
    """
    Yield the buffers of a column.

    The first one is the validity bitmap, or None if no value is null. Then come the data or, for
    texts and bytes, the offsets and the data. The buffers of a slice begin at its first value.
    """
    kind = column.type
    buffers = column.buffers()
    first = column.offset
    rows = len(column)
    if column.null_count:
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        yield pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    else:
        yield None
    if _is_fixed(kind):
        width = kind.bit_width // 8
        yield buffers[1].slice(first * width, rows * width)
        return
    ends = np.frombuffer(buffers[1], np.int32)[first : first + rows + 1]
    yield pa.py_buffer(ends - ends[0])
    start = int(ends[0])
    size = int(ends[-1] - ends[0])
    if pa.types.is_list(kind):
        yield from _buffers(column.values.slice(start, size))
    else:
        yield (pa.py_buffer(b"") if buffers[2] is None else buffers[2]).slice(start, size)


def _compress(plain: pa.Buffer | None) -> pa.Buffer | None:
    """
    Compress a buffer quickly or, if that hardly shrinks a sample of it, at the better level.

    Compressing at the better level takes longer. But the server has fewer bytes to store, which
    saves more time. The sample is from the middle of the buffer.
    """
    if plain is None:
        return None
    sample = plain.slice(max(0, plain.size - SAMPLE) // 2, min(SAMPLE, plain.size))
    is_shrunk = 2 * ZSTD.compress(sample).size < sample.size
    return (ZSTD if is_shrunk else SMALL).compress(plain)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind))


# ----- read ----------------------------------------------------------------------------------


def unpack(payload: bytes, pages: Iterable[bytes], expected: Expected) -> pa.Table:
    """
    Return the rows of a payload.

    Args:
        payload: the value in the row. If it is empty, the payload is in the pages.
        pages: the pages in their order.
        expected: what the payload must have.

    Raises:
        PayloadRefused: `pack` cannot have written it, or it is too large.
    """
    whole = pa.py_buffer(payload or b"".join(pages))
    try:
        if expected.seal is not None:
            digest = hashlib.sha256(whole).hexdigest()
            _check(digest == expected.seal.digest, "it is not the one that the task wrote")
        return _read_table(whole, expected)
    except (BadPayload, pa.ArrowException, OSError) as error:
        raise PayloadRefused(where=expected.where, reason=str(error)[:300]) from None


def _read_table(whole: pa.Buffer, expected: Expected) -> pa.Table:
    """Read the list, check all that it says, and only then decompress the buffers."""
    columns, batches, end = _read_list(whole)
    fields = [*expected.schema, *(field for field in expected.optional if field.name in columns)]
    _check(columns == [field.name for field in fields], "it has other columns")
    sizes = [pair for _, pairs in batches for pair in pairs if pair is not None]
    size = sum(plain for plain, _ in sizes)
    rows = sum(count for count, _ in batches)
    _check(size <= expected.most, f"it holds {size} bytes, more than the {expected.most} it may")
    _check(expected.size in {None, size}, f"it holds {size} bytes, and {expected.size} were stored")
    _check(expected.rows in {None, rows}, f"it has {rows} rows, and {expected.rows} were stored")
    _check(sum(packed for _, packed in sizes) == end, "its buffers do not fill it")
    start = 0
    unpacked = []
    schema = pa.schema(fields)
    with ThreadPoolExecutor(THREADS) as pool:
        spread = pool.map if size > ALONE else map
        for count, pairs in batches:
            packed_sizes = [0 if pair is None else pair[1] for pair in pairs]
            starts = [*accumulate(packed_sizes, initial=start)]
            start = starts.pop()  # where the next batch begins
            buffers = spread(partial(_decompress, whole), starts, pairs)
            arrays = [_read_column(field.type, count, buffers) for field in fields]
            _check(not [*buffers], "it has more buffers than columns")
            unpacked.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    table = pa.Table.from_batches(unpacked, schema=schema)
    table.validate(full=True)
    return table


def _read_list(whole: pa.Buffer) -> tuple[list[Any], list[tuple[int, list[Any]]], int]:
    """
    Read the list.

    Returns:
        The names of the columns; for each batch its number of rows and its buffers' sizes; and the
        place where the buffers end.
    """
    _check(whole.size > LENGTH, "it is cut off")
    length = int.from_bytes(whole.slice(whole.size - LENGTH).to_pybytes(), "little")
    end = whole.size - LENGTH - length
    _check(end >= 0 and length <= LONGEST_LIST, "it is cut off")
    try:
        match orjson.loads(whole.slice(end, length).to_pybytes()):
            case {"columns": list(columns), "batches": list(batches)}:
                return columns, [_read_batch(batch) for batch in batches], end
    except orjson.JSONDecodeError:
        pass
    raise BadPayload("its list cannot be read")


def _read_batch(listed: object) -> tuple[int, list[Any]]:
    match listed:
        case {"rows": int(rows), "buffers": list(pairs)} if 0 < rows < 2**31:
            if all(map(_is_size, pairs)):
                return rows, pairs
    raise BadPayload("its list names no batch")


def _is_size(pair: object) -> bool:
    """Return whether an entry of the list is a pair of sizes, or None for an absent buffer."""
    match pair:
        case [int(plain), int(packed)]:
            return 0 <= plain < 2**62 and 0 <= packed < 2**62
    return pair is None


def _decompress(whole: pa.Buffer, start: int, pair: list[int] | None) -> pa.Buffer | None:
    if pair is None:
        return None
    plain, packed = pair
    return ZSTD.decompress(whole.slice(start, packed), plain)


def _read_column(kind: pa.DataType, rows: int, buffers: Iterator[pa.Buffer | None]) -> pa.Array:
    """Make a column of the next buffers. Their sizes must match the number of rows."""
    validity = _next_buffer(buffers, -(-rows // 8), absent=True)
    if _is_fixed(kind):
        data = _next_buffer(buffers, rows * kind.bit_width // 8)
        return pa.Array.from_buffers(kind, rows, [validity, data])
    offsets = _next_buffer(buffers, 4 * (rows + 1))
    if not pa.types.is_list(kind):
        return pa.Array.from_buffers(kind, rows, [validity, offsets, _next_buffer(buffers)])
    ends = np.frombuffer(offsets or b"", np.int32)
    _check(ends[0] == 0 and ends[-1] >= 0, "its lists are out of bounds")
    children = [_read_column(kind.value_type, int(ends[-1]), buffers)]
    return pa.Array.from_buffers(kind, rows, [validity, offsets], children=children)


def _next_buffer(
    buffers: Iterator[pa.Buffer | None], size: int | None = None, *, absent: bool = False
) -> pa.Buffer | None:
    """
    Take the next buffer.

    `size` is the size that the buffer must have. If it is None, the buffer may have any size,
    because it holds texts or bytes. `absent` says whether the buffer may be missing.
    """
    buffer = next(buffers, None)
    if buffer is None:
        _check(absent, "a buffer is missing")
    else:
        _check(size in {None, buffer.size}, f"a buffer holds {buffer.size} bytes and not {size}")
    return buffer


def _check(fine: bool, reason: str) -> None:  # noqa: FBT001
    if not fine:
        raise BadPayload(reason)
