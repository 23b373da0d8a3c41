"""
What lies in a receipt and in a parcel of the outbox: rows as an Arrow IPC stream, zstd.

A small payload stands in its row. A large one is cut into pages, a row each in a table beside it:
measured, 13 MB cost the server 60 ms as one value, which it cuts into pieces of 2 kB by itself, and
22 ms as a COPY of pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

# Measured on messages of 1.2 kB: level 1 2.0 us and 165 bytes a message, level -3 1.2 us and 262,
# lz4 1.4 us and 298.
PACKED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=-3))

ROOM = 64 << 10  # bytes for what a stream says of a batch, and for its ends
LARGE = 256 << 10  # bytes; a longer payload goes into pages
PAGE = 7_900  # bytes; with its key it fills a page of the table

RECEIPT_KEY = {
    "reader": pa.string(),
    "batch": pa.int64(),
    "task": pa.int32(),
    "login": pa.string(),
}
PARCEL_KEY = {
    "sink": pa.string(),
    "batch": pa.int64(),
    "attempt": pa.string(),
    "parcel": pa.int32(),
    "login": pa.string(),
}


def packed(rows: pa.Table) -> pa.Buffer:
    """
    The rows as an Arrow IPC stream: about 1 MB for 27 MB of like messages.

    It is written into room for the worst, of which only what is written takes memory: a stream that
    grows by doubling held 50 MB more for 64 MB that cannot be compressed.
    """
    batches = sum(column.num_chunks for column in rows.columns)
    room = pa.allocate_buffer(2 * rows.nbytes + (batches + 1) * ROOM)
    sink = pa.FixedSizeBufferWriter(room)
    with pa.ipc.new_stream(sink, rows.schema, options=PACKED) as writer:
        writer.write_table(rows)
    return room.slice(0, sink.tell())


def unpacked(payload: bytes, pages: Iterable[tuple[bytes]] = ()) -> pa.Table:
    """The rows of a payload, which stands in its row or, where that is empty, in its pages."""
    return pa.ipc.open_stream(payload or b"".join(page for (page,) in pages)).read_all()


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
