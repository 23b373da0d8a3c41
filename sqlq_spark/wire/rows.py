"""
Messages as Arrow columns: in a receipt, and in batches on their way to Spark; and their ids.

A row of a queue is stored unchanged in the receipt. The columns for Spark are computed only after
the commit, and only those that Spark reads: see header_columns.py.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# a row of a queue, and of a receipt
QUEUE_ROW = pa.schema(
    [
        ("id", pa.binary(16)),
        ("expires", pa.timestamp("us")),
        ("headers", pa.string()),
        ("body", pa.binary()),
        ("seq", pa.int64()),
    ]
)

# expiries that Python can represent in each time zone lie between these
FIRST, LAST = datetime(1, 1, 2), datetime(9999, 12, 31)  # noqa: DTZ001 - UTC without a zone

BATCH_BYTES, BATCH_ROWS = 8 << 20, 10_000  # of one record batch on its way to Spark

# where the digits stand between the dashes, in the text of an id
DIGITS = np.array([at for at in range(36) if at not in {8, 13, 18, 23}])


def sort_by_seq(rows: pa.Table) -> pa.Table:
    """Return the rows in the order of `seq`; sort them only if necessary."""
    seqs = rows["seq"].to_numpy()
    is_sorted = np.all(seqs[1:] >= seqs[:-1])
    return rows if is_sorted else rows.take(pa.array(np.argsort(seqs)))


def weigh(rows: pa.Table) -> int:
    """Count the bytes of headers and bodies."""
    return int(_row_weights(rows).sum())


def record_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most BATCH_ROWS rows and about BATCH_BYTES; one row may weigh more."""
    for part in split_by_size(rows, BATCH_BYTES):
        yield from part.to_batches(max_chunksize=BATCH_ROWS)


def split_by_size(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield slices of about so many bytes at most; one row may weigh more."""
    weights = _row_weights(rows)
    weights += -(-(rows.nbytes - weights.sum()) // max(1, rows.num_rows))  # the rest of each row
    ends = np.cumsum(weights)
    first = 0
    while first < rows.num_rows:
        before = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield rows.slice(first, stop - first)
        first = stop


def _row_weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Count the bytes of each row's headers and body."""
    weights = np.zeros(rows.num_rows, np.int64)
    for name in {"headers", "body"}.intersection(rows.column_names):
        weights += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
    return weights


def without_odd_expiries(rows: pa.Table) -> pa.Table:
    """
    Replace expiries outside of Python's calendar by null, in rows of QUEUE_ROW.

    The driver of PostgreSQL returns an infinite expiry as another value, before the calendar.
    """
    expires = rows["expires"]
    known = pc.and_(pc.greater(expires, FIRST), pc.less(expires, LAST))
    if pc.all(known).as_py():  # null is not counted
        return rows
    place = rows.schema.get_field_index("expires")
    return rows.set_column(place, "expires", pc.if_else(known, expires, None))


@dataclass(frozen=True, kw_only=True)
class SparkBatch:
    """Spark's names of the micro-batch, stored in the receipt so that a sink can settle it."""

    query_id: str | None = None
    run_id: str | None = None  # another one each time the query starts; not stored in the receipt
    number: int | None = None


NO_SPARK_BATCH = SparkBatch()


# ----- ids -----------------------------------------------------------------------------------


def random_ids(
    how_many: int, *, seed: bytes | None = None, first: int = 0
) -> npt.NDArray[np.uint8]:
    """
    Return new version 4 UUIDs as uint8 of shape (how_many, 16), in network order.

    A seed of 16 bytes defines a sequence of ids, of which they begin with that of the even index
    `first`. Measured: 4.6 million/s, `uuid4` 380k/s.
    """
    if seed is None:
        ids = np.frombuffer(os.urandom(16 * how_many), np.uint8).reshape(how_many, 16).copy()
    else:  # a step of Philox is 32 bytes: two ids
        steps = np.random.Philox(key=int.from_bytes(seed)).advance(first // 2)
        ids = steps.random_raw(2 * how_many).view(np.uint8).reshape(how_many, 16)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids


def rising_ids(how_many: int) -> pa.FixedSizeBinaryArray:
    """Return new version 7 UUIDs, ascending: a unique index grows only at its end."""
    ids = random_ids(how_many)
    ids[:, :6] = np.frombuffer(int(time.time() * 1000).to_bytes(6), np.uint8)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x70
    halves = ids.view(">u8")
    rising = pa.py_buffer(ids[np.lexsort((halves[:, 1], halves[:, 0]))])
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), how_many, [None, rising])


def id_texts(ids: pa.Array | npt.NDArray[np.uint8]) -> pa.Array:
    """Return UUIDs of 16 bytes as their texts of 36 characters; null stays null."""
    if isinstance(ids, pa.Array):
        data = np.frombuffer(ids.buffers()[1], np.uint8)
        texts = id_texts(data[16 * ids.offset :][: 16 * len(ids)].reshape(-1, 16))
        return pc.if_else(ids.is_valid(), texts, None) if ids.null_count else texts
    characters = np.full((len(ids), 36), ord("-"), np.uint8)
    characters[:, DIGITS] = np.frombuffer(ids.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    offsets = np.arange(0, 36 * len(ids) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(characters))


def uuid_text(value: bytes) -> str:
    return str(UUID(bytes=value))


# ----- texts that are not UTF-8 --------------------------------------------------------------


def find_undecodable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """
    Return which texts are not UTF-8, as booleans; a database in SQL_ASCII may have any bytes.

    Measured: 0.04 us for headers of 700 bytes.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        readable = replace_undecodable(texts).cast(pa.binary())
        return pc.fill_null(pc.not_equal(readable, texts.cast(pa.binary())), fill_value=False)
    return pa.chunked_array([pa.repeat(pa.scalar(value=False), len(texts))])


def replace_undecodable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace bytes that are not UTF-8 by U+FFFD."""
    octets = texts.cast(pa.binary()).to_pylist()
    readable = [None if text is None else text.decode(errors="replace") for text in octets]
    return pa.chunked_array([pa.array(readable, pa.string())])


def with_readable_texts(rows: pa.Table, unread: pa.ChunkedArray | None = None) -> pa.Table:
    """Return rows of a queue with headers that can be read; `unread` is of `find_undecodable`."""
    if pc.any(find_undecodable(rows["headers"]) if unread is None else unread).as_py():
        at = rows.schema.get_field_index("headers")
        rows = rows.set_column(at, rows.schema.field(at), replace_undecodable(rows["headers"]))
    return rows
