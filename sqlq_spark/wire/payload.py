"""
What lies in a receipt and in a chunk of the staging: rows in columns, each buffer packed by zstd.

Whoever may write the state tables may write any bytes there, so Arrow's own stream format is not
read: it unpacks whatever size its metadata claims, and trusts the offsets that it finds. Ours says
less, and `unpack` checks all of it.

    the packed buffers, one behind the other
    a list, as JSON: the names of the columns, and of each batch its rows and each buffer's sizes,
        {"columns": […], "batches": [{"rows": …, "buffers": [[plain, packed] or null, …]}]}
    the list's length, 4 bytes, little-endian

A small payload stands in its row. A large one is cut into pages, a row each in a table beside it:
measured, 13 MB cost the server 60 ms as one value, which it cuts into pieces of 2 kB by itself, and
22 ms as a COPY of pages.
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
THREADS = 2  # headers and bodies are packed beside each other, as Arrow's stream does

ROOM = 64 << 10  # bytes for what the list says of a batch, and for its ends
LARGE = 256 << 10  # bytes; a longer payload goes into pages
PAGE = 7_900  # bytes; with its key it fills a page of the table

RECEIPT_KEY = {
    "stream": pa.string(),
    "batch": pa.int64(),
    "task": pa.int32(),
    "login": pa.string(),
}
CHUNK_KEY = {
    "sink": pa.string(),
    "batch": pa.int64(),
    "attempt": pa.string(),
    "chunk": pa.int32(),
    "login": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A payload to store."""

    bytes: pa.Buffer
    size: int  # bytes of all buffers, unpacked

    @property
    def seal(self) -> Seal:
        """By which whoever packed it knows it again; 1 ms for a chunk of like messages."""
        return Seal(self.size, digest(self.bytes))


@dataclass(frozen=True, slots=True)
class Seal:
    """What Spark carries from the task that staged a chunk to the driver that sends it."""

    size: int  # bytes, unpacked
    digest: str  # of the payload


def digest(payload: pa.Buffer | bytes) -> str:
    """A digest that no other payload has."""
    return hashlib.sha256(payload).hexdigest()


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
    """The buffers of a column from its first value on: validity, then as its type has them."""
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
