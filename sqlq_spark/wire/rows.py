"""
Messages as Arrow columns: in a receipt, and in batches on their way to Spark.

A row of a queue is stored unchanged in the receipt. The columns for Spark are computed only after
the commit, and only those that Spark reads: see header_columns.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# a row of a queue, and of a receipt
QUEUE_ROW = pa.schema(
    [
        pa.field("id", pa.binary(16)),
        pa.field("expires", pa.timestamp("us")),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("seq", pa.int64()),
    ]
)

LOWEST_SEQ, HIGHEST_SEQ = -(2**63), 2**63 - 1  # a seq is a bigint

# expiries that Python can represent lie between these
FIRST, LAST = datetime(1, 1, 2), datetime(9999, 12, 31)  # noqa: DTZ001 - UTC without a zone

BATCH_BYTES = 8 << 20  # of one record batch on its way to Spark

BATCH_ROWS = 10_000


def sort_by_seq(rows: pa.Table) -> pa.Table:
    """The rows in the order of `seq`; sorts them only if necessary."""
    seqs = rows["seq"].to_numpy()
    if np.all(seqs[1:] > seqs[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(seqs)))


def weigh(rows: pa.Table) -> int:
    """Count the bytes of headers and bodies."""
    return int(row_weights(rows).sum())


def record_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most BATCH_ROWS rows and about BATCH_BYTES; one row may weigh more."""
    for part in split_by_size(rows, BATCH_BYTES):
        yield from part.to_batches(max_chunksize=BATCH_ROWS)


def split_by_size(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield slices of about so many bytes at most; one row may weigh more."""
    weights = row_weights(rows)
    weights += -(-(rows.nbytes - weights.sum()) // max(1, rows.num_rows))  # the rest of each row
    ends = np.cumsum(weights)
    first = 0
    while first < rows.num_rows:
        before = ends[first - 1] if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield rows.slice(first, stop - first)
        first = stop


def row_weights(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Count the bytes of each row's headers and body."""
    found = np.zeros(rows.num_rows, np.int64)
    for name in ("headers", "body"):
        if name in rows.column_names:
            found += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
    return found


def without_odd_expiries(rows: pa.Table) -> pa.Table:
    """
    Replace expiries outside of Python's calendar by null, in rows of QUEUE_ROW.

    The driver returns an infinite expiry as another value, which could not be shown or stored.
    """
    expires = rows["expires"]
    known = pc.and_(pc.greater(expires, FIRST), pc.less(expires, LAST))
    place = rows.schema.get_field_index("expires")
    return rows.set_column(place, "expires", pc.if_else(known, expires, None))


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Spark's names of the micro-batch, stored in the receipt so that a sink can settle it."""

    query_id: str | None = None
    query_batch: int | None = None


NO_STREAM = Origin()
