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

# an additional column with includeBodyString; older receipts may lack it
BODY_STRING = pa.field("bodystring", pa.string())

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
    """Count the bytes of headers and bodies, and of the bodies' texts, if they are there."""
    heavy = {"headers", "body", BODY_STRING.name}.intersection(rows.column_names)
    return sum(pc.sum(pc.binary_length(rows[name])).as_py() or 0 for name in heavy)


def record_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Slices of at most BATCH_ROWS rows and about BATCH_BYTES bytes, at least one row each."""
    each = max(1, rows.nbytes // max(1, rows.num_rows))
    for chunk in rows.to_batches(max_chunksize=max(1, min(BATCH_ROWS, BATCH_BYTES // each))):
        if chunk.num_rows:
            yield chunk


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
