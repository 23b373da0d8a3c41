"""
Reading without receiving: pages of a queue, in the order of seq, that lock and delete nothing.

A page is a short transaction of its own, so that a slow reader holds no snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sqlq_spark.dialects import transaction
from sqlq_spark.message import QUEUE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

PAGE_BYTES = 8 << 20
FIRST_PAGE = 50  # rows; later ones grow to PAGE_BYTES by what the rows before weighed
LARGEST_PAGE = 20_000


def ranges(
    connection: Connection, queue: QueueAddress, *, parts: int, timeout: float
) -> list[tuple[int, int]]:
    """
    Cut the seqs of a queue into ranges of even width.

    Returns:
        At most `parts` half-open ranges, ascending; none where the queue is empty.
    """
    with transaction(connection, timeout=timeout):
        first, last = connection.rows("top", tables={"queue": queue})[0]
    if first is None:
        return []
    width = -(-(last + 1 - first) // parts)
    return [(at, min(at + width, last + 1)) for at in range(first, last + 1, width)]


def pages(
    connection: Connection,
    queue: QueueAddress,
    first: int,
    stop: int,
    *,
    narrow: bool,
    timeout: float,
) -> Iterator[pa.Table]:
    """
    Page through a range of seqs.

    Args:
        connection: no transaction open.
        queue: where.
        first: of the range of seqs.
        stop: the seq behind the range.
        narrow: without headers and bodies, which are null then.
        timeout: seconds for each page.

    Returns:
        Tables of QUEUE_ROW by seq.
    """
    rows = LARGEST_PAGE if narrow else FIRST_PAGE
    while first < stop:
        with transaction(connection, timeout=timeout):
            page = connection.arrow(
                "browse_seq" if narrow else "browse",
                tables={"queue": queue},
                first=first,
                stop=stop,
                messages=rows,
            )
        if not page.num_rows:
            return
        yield whole(page)
        first = page["seq"][-1].as_py() + 1
        each = max(1, page.nbytes // page.num_rows)
        rows = max(1, min(LARGEST_PAGE, rows * 8, PAGE_BYTES // each))


def whole(page: pa.Table) -> pa.Table:
    """A page with all columns of QUEUE_ROW; null for those that were not asked for."""
    columns = [
        page[field.name].cast(field.type)
        if field.name in page.column_names
        else pa.nulls(page.num_rows, field.type)
        for field in QUEUE_ROW
    ]
    return pa.Table.from_arrays(columns, schema=QUEUE_ROW)
