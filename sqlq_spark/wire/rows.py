"""
Messages as Arrow columns, their division into batches for Spark, and the ids of messages.

A receipt stores the rows of a queue unchanged, in the columns QUEUE_ROW. After the commit of a
receive, header_columns.py computes from them the columns that Spark asks for.
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

# the columns of a queue's row, and of a receipt's payload
QUEUE_ROW = pa.schema(
    [
        ("id", pa.binary(16)),
        ("expires", pa.timestamp("us")),
        ("headers", pa.string()),
        ("body", pa.binary()),
        ("seq", pa.int64()),
    ]
)

# Python can represent an expiry between these two times in every time zone.
FIRST = datetime(1, 1, 2)  # noqa: DTZ001 - UTC without a zone
LAST = datetime(9999, 12, 31)  # noqa: DTZ001 - UTC without a zone

# limits of one record batch on its way to Spark
BATCH_BYTES = 8 << 20
BATCH_ROWS = 10_000

# the places of the digits in the text of an id; at the other places there is a dash
DIGITS = np.array([place for place in range(36) if place not in {8, 13, 18, 23}])


def sort_by_seq(rows: pa.Table) -> pa.Table:
    """Return the rows in the order of `seq`. They are copied only if they are not sorted yet."""
    seqs = rows["seq"].to_numpy()
    is_sorted = np.all(seqs[1:] >= seqs[:-1])
    return rows if is_sorted else rows.take(pa.array(np.argsort(seqs)))


def weigh(rows: pa.Table) -> int:
    """Return how many bytes all headers and bodies have together."""
    return int(_row_weights(rows).sum())


def record_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most BATCH_ROWS rows and about BATCH_BYTES. One row may be larger."""
    for part in split_by_size(rows, BATCH_BYTES):
        yield from part.to_batches(max_chunksize=BATCH_ROWS)


def split_by_size(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield slices of about `most` bytes at most. A slice of one row may have more."""
    weights = _row_weights(rows)
    # the bytes of all other columns are spread evenly over the rows
    weights += -(-(rows.nbytes - weights.sum()) // max(1, rows.num_rows))
    ends = np.cumsum(weights)
    first = 0
    while first < rows.num_rows:
        before = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield rows.slice(first, stop - first)
        first = stop


def _row_weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return how many bytes each row's headers and body have."""
    weights = np.zeros(rows.num_rows, np.int64)
    for name in {"headers", "body"}.intersection(rows.column_names):
        weights += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
    return weights


def without_odd_expiries(rows: pa.Table) -> pa.Table:
    """
    Replace expiries outside of Python's calendar by null, in rows of QUEUE_ROW.

    PostgreSQL's driver returns an infinite expiry as a time before the calendar.
    """
    expires = rows["expires"]
    is_known = pc.and_(pc.greater(expires, FIRST), pc.less(expires, LAST))
    if pc.all(is_known).as_py():  # ignores nulls
        return rows
    place = rows.schema.get_field_index("expires")
    return rows.set_column(place, "expires", pc.if_else(is_known, expires, None))


@dataclass(frozen=True, kw_only=True)
class SparkBatch:
    """
    The names by which Spark knows a micro-batch.

    A receipt stores them, so that a sink can settle it.
    """

    query_id: str | None = None
    run_id: str | None = None  # new at each start of the query; not stored in the receipt
    number: int | None = None
    query_name: str | None = None  # stored only for people

    @property
    def name(self) -> str | None:
        """The name of Spark's query, or its id."""
        return self.query_name or self.query_id


NO_SPARK_BATCH = SparkBatch()


# ----- ids -----------------------------------------------------------------------------------


def random_ids(
    how_many: int, *, seed: bytes | None = None, first: int = 0
) -> npt.NDArray[np.uint8]:
    """
    Return new version 4 UUIDs as uint8 of shape (how_many, 16), in network order.

    With a `seed` of 16 bytes the ids are always the same: a part of the endless sequence of ids
    that the seed defines. The part begins at the index `first`, which must be even. Measured: this
    makes 4.6 million ids each second, and `uuid4` makes 380,000.
    """
    if seed is None:
        ids = np.frombuffer(os.urandom(16 * how_many), np.uint8).reshape(how_many, 16).copy()
    else:
        # Each step of the generator Philox gives 32 bytes, which make two ids.
        steps = np.random.Philox(key=int.from_bytes(seed)).advance(first // 2)
        ids = steps.random_raw(2 * how_many).view(np.uint8).reshape(how_many, 16)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x40
    ids[:, 8] = ids[:, 8] & 0x3F | 0x80
    return ids


def rising_ids(how_many: int) -> pa.FixedSizeBinaryArray:
    """Return new version 7 UUIDs in ascending order, so that a unique index grows at its end."""
    ids = random_ids(how_many)
    ids[:, :6] = np.frombuffer(int(time.time() * 1000).to_bytes(6), np.uint8)
    ids[:, 6] = ids[:, 6] & 0x0F | 0x70
    halves = ids.view(">u8")
    rising = pa.py_buffer(ids[np.lexsort((halves[:, 1], halves[:, 0]))])
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), how_many, [None, rising])


def id_texts(ids: pa.Array | npt.NDArray[np.uint8]) -> pa.Array:
    """Return UUIDs of 16 bytes as texts of 36 characters. A null stays null."""
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
    Return for each text whether it is not valid UTF-8.

    A database with encoding SQL_ASCII may store any bytes as text. Measured: the check takes
    0.04 us for headers of 700 bytes.
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
    """
    Return rows of a queue with bytes that are not UTF-8 replaced in their headers.

    `unread` is the result of `find_undecodable` for the headers. It is computed here if it is None.
    """
    if unread is None:
        unread = find_undecodable(rows["headers"])
    if pc.any(unread).as_py():
        place = rows.schema.get_field_index("headers")
        field = rows.schema.field(place)
        rows = rows.set_column(place, field, replace_undecodable(rows["headers"]))
    return rows
