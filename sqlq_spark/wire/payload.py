"""
The content of a receipt or a staged chunk: rows as columns, each buffer compressed with zstd.

A login that may write the state tables may write any bytes there. Arrow's stream format is not
used, because its reader allocates any size that the metadata claims, and trusts the offsets. This
format contains less, and `unpack` checks all of it.

    the compressed buffers, one after the other
    a list, as JSON: the names of the columns, and of each batch its rows and each buffer's sizes,
        {"columns": […], "batches": [{"rows": …, "buffers": [[plain, packed] or null, …]}]}
    the list's length, 4 bytes, little-endian

A small payload is in its row. A large one is cut into pages, which are rows of another table.
Measured: 13 MB take the server 60 ms as one value, which it cuts into pieces of 2 kB, and 22 ms as
a COPY of pages.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

# Measured on messages of 1.2 kB: level 1 2.0 us and 165 bytes a message, level -3 1.2 us and 262,
# lz4 1.4 us and 298.
ZSTD = pa.Codec("zstd", compression_level=-3)
THREADS = 2  # headers and bodies are compressed in parallel, as in Arrow's stream
ALONE = 1 << 20  # bytes; less takes longer to share among threads, which take 2 ms to start

ROOM = 64 << 10  # bytes for a batch in the list, and for the list's ends
LARGE = 256 << 10  # bytes; a longer payload is cut into pages
PAGE = 7_900  # bytes; with its key it fills a page of the table

RECEIPT_KEY = {"stream": pa.string(), "batch": pa.int64(), "task": pa.int32()}
CHUNK_KEY = {
    "sink": pa.string(),
    "batch": pa.int64(),
    "attempt": pa.string(),
    "chunk": pa.int32(),
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A payload to store."""

    bytes: pa.Buffer
    size: int  # bytes of all buffers, unpacked

    @property
    def seal(self) -> Seal:
        """The seal by which the driver recognises the payload; takes 1 ms for a chunk."""
        return Seal(self.size, digest(self.bytes))


@dataclass(frozen=True, slots=True)
class Seal:
    """What Spark carries from the task that staged a chunk to the driver that sends it."""

    size: int  # bytes, unpacked
    digest: str  # of the payload


def digest(payload: pa.Buffer | bytes) -> str:
    """The SHA-256 digest of a payload."""
    return hashlib.sha256(payload).hexdigest()


def pack(rows: pa.Table) -> Packed:
    """
    Compress rows into a payload: about 1 MB for 27 MB of similar messages.

    The buffer is allocated for the worst case, but only the written part takes memory. A stream
    that doubles its size took 50 MB more for 64 MB that cannot be compressed.
    """
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    room = pa.allocate_buffer(2 * rows.nbytes + (len(batches) + 1) * ROOM)
    sink, listed, size = pa.FixedSizeBufferWriter(room), [], 0
    with ThreadPoolExecutor(THREADS) as pool:
        spread = pool.map if rows.nbytes > ALONE else map
        for batch in batches:
            plain = [buffer for column in batch.columns for buffer in buffers(column)]
            sizes: list[tuple[int, int] | None] = []
            for buffer, small in zip(plain, spread(compress, plain), strict=True):
                sizes.append(None if buffer is None or small is None else (buffer.size, small.size))
                size += 0 if buffer is None else buffer.size
                if small is not None:
                    sink.write(small)
            listed.append({"rows": batch.num_rows, "buffers": sizes})
    listing = orjson.dumps({"columns": rows.column_names, "batches": listed})
    sink.write(listing)
    sink.write(len(listing).to_bytes(4, "little"))
    return Packed(room.slice(0, sink.tell()), size)


def compress(buffer: pa.Buffer | None) -> pa.Buffer | None:
    """A compressed buffer; None for a missing one."""
    return None if buffer is None else ZSTD.compress(buffer)


def buffers(column: pa.Array) -> Iterator[pa.Buffer | None]:
    """The buffers of a column from its first value: validity, then those of its type."""
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
    """A bit for each value that is not null; None if there are no nulls."""
    if not column.null_count:
        return None
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(there, bitorder="little"))


def in_row(payload: pa.Buffer) -> bytes:
    """The part in the row itself: all of a small payload, nothing of a large one."""
    return b"" if payload.size > LARGE else payload.to_pybytes()


def pages(
    payload: pa.Buffer, kinds: dict[str, pa.DataType], key: tuple[str | int, ...]
) -> pa.Table:
    """
    The rows of the table of pages for a large payload; none for a small one.

    Args:
        payload: the result of `pack`.
        kinds: columns of the key, with their types.
        key: a value for each of them.
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
