"""
Browsing: read pages of a queue in the order of seq, without locking or deleting messages.

Each page is read in one or two short transactions. If a reader is slow, no transaction is open
between its pages, so it does not keep the server from removing dead rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import check_types, transaction
from sqlq_spark.database.looks import SeqEnds
from sqlq_spark.database.trust import READ, use
from sqlq_spark.options.fields import DEFAULT_MESSAGE_SIZE
from sqlq_spark.receive.pace import apportion
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ
from sqlq_spark.wire.rows import QUEUE_ROW, with_readable_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql.datasource import Filter

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

PAGE_BYTES = 8 << 20  # bytes of a page, which has one message at least
# Rows of the first page. Later pages grow towards PAGE_BYTES, by the size of the rows read so far.
FIRST_PAGE = 50
LARGEST_PAGE = 20_000  # rows of a page
GROWTH_OF_PAGES = 8  # a page has at most 8 times as many rows as the page before it
MOST_NAMED = 20  # how many seqs a warning lists
HIGHEST_COUNT = 2**31 - 1  # the most messages that a statement can be asked for
STOP = HIGHEST_SEQ + 1  # after all seqs
EQUAL = ("EqualTo", "EqualNullSafe")  # filters that mean the same, as seq and queue are never null
# For each kind of filter on seq: a function from the filter's value to the half-open range that it
# selects.
RANGES: dict[str, Callable[[int], tuple[int, int]]] = {
    **dict.fromkeys(EQUAL, lambda seq: (seq, seq + 1)),
    "GreaterThan": lambda seq: (seq + 1, STOP),
    "GreaterThanOrEqual": lambda seq: (seq, STOP),
    "LessThan": lambda seq: (LOWEST_SEQ, seq),
    "LessThanOrEqual": lambda seq: (LOWEST_SEQ, seq + 1),
}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """
    Which messages a browse reads: a half-open range of seqs, of all queues or of some.

    `queues` has the canonical addresses of the queues. It is None for all queues. Spark may pass
    the filters of the query to this package. A filter becomes part of the selection if it compares
    seq with numbers, or `queue` with addresses. Then the database reads fewer rows. Spark applies
    all other filters.
    """

    first: int = LOWEST_SEQ
    stop: int = STOP
    queues: frozenset[str] | None = None

    def within(self, first: int, stop: int) -> Self:
        return replace(self, first=max(self.first, first), stop=min(self.stop, stop))

    def narrow(self, condition: Filter) -> tuple[Self, bool]:
        """
        Narrow the selection by one of Spark's filters.

        Filters are recognised by the names of their classes, because Spark 4.0 lacks these classes.

        Returns:
            The selection, and True if Spark need not apply the filter too.
        """
        kind = type(condition).__name__
        column = getattr(condition, "attribute", None)
        value: Any = getattr(condition, "value", None)
        if kind == "IsNotNull":
            return self, column in (("seq",), ("queue",))  # neither is ever null
        if column == ("seq",) and kind in RANGES and type(value) is int:
            return self.within(*RANGES[kind](value)), True
        if column == ("seq",) and kind == "In":
            # the range is from the lowest to the highest; Spark removes the other seqs in it
            seqs = [seq for seq in value if type(seq) is int]
            return self.within(min(seqs), max(seqs) + 1) if seqs else self, False
        if column == ("queue",) and kind in {*EQUAL, "In"}:
            queues = frozenset(value if kind == "In" else [value])
            if self.queues is not None:
                queues &= self.queues
            return replace(self, queues=queues), True
        return self, False


ALL = Selection()


def split_queues(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    count: int,
    wanted: Selection = ALL,
) -> list[tuple[QueueAddress, int, int]]:
    """
    Split the wanted seqs of queues into about `count` ranges of about even width.

    Returns:
        Half-open ranges, each with its queue: (queue, first, stop). Each queue with wanted seqs has
        at least one range. The ranges of one queue ascend.
    """
    if wanted.queues is not None:
        queues = [queue for queue in queues if connection.canonical(queue) in wanted.queues]
    selections = []
    with transaction(connection):
        use(connection, queues, READ)
        for queue in queues:
            check_types(connection, queue)
            ends = connection.row("top", SeqEnds, tables={"queue": queue})
            if ends is None or ends.first is None or ends.last is None:
                selections.append(wanted.within(0, 0))
            else:
                selections.append(wanted.within(ends.first, ends.last + 1))
    widths = [max(0, selection.stop - selection.first) for selection in selections]
    shares = apportion(widths, widths, tasks=count)
    ranges = []
    for queue, selection, share in zip(queues, selections, shares, strict=True):
        if share:
            for first, stop in split_range(selection.first, selection.stop, count=share):
                ranges.append((queue, first, stop))
    return ranges


def split_range(first: int, stop: int, *, count: int) -> list[tuple[int, int]]:
    """Split a half-open range of seqs into at most `count` ranges of even width."""
    width = -(-(stop - first) // count)
    return [(start, min(start + width, stop)) for start in range(first, stop, width)]


def read_pages(
    connection: Connection,
    queue: QueueAddress,
    first: int,
    stop: int,
    *,
    narrow: bool,
    largest: int = DEFAULT_MESSAGE_SIZE,
) -> Iterator[pa.Table]:
    """
    Page through a range of seqs.

    If `narrow`, headers and bodies are not read, and their columns are null. A message of more
    bytes than `largest` is left out, with a warning.

    Returns:
        Tables with the columns of QUEUE_ROW, sorted by seq. U+FFFD replaces each byte that is not
        UTF-8.
    """
    rows = LARGEST_PAGE if narrow else FIRST_PAGE
    while first < stop:
        page, following = read_page(
            connection, queue, first, stop, messages=rows, narrow=narrow, largest=largest
        )
        if not page.num_rows:
            return
        yield fill_columns(leave_out_large(page, connection.printed(queue), largest))
        first = following
        row_bytes = max(1, page.nbytes // page.num_rows)
        rows = max(1, min(LARGEST_PAGE, rows * GROWTH_OF_PAGES, PAGE_BYTES // row_bytes))


def read_messages(
    connection: Connection, queue: QueueAddress, first: int, stop: int, messages: int
) -> tuple[pa.Table, int]:
    """Read one page as `read_pages` does. Return also the seq where the next page begins."""
    page, following = read_page(
        connection,
        queue,
        first,
        stop,
        messages=messages,
        narrow=False,
        largest=DEFAULT_MESSAGE_SIZE,
    )
    if not page.num_rows:
        return QUEUE_ROW.empty_table(), following
    printed = connection.printed(queue)
    return fill_columns(leave_out_large(page, printed, DEFAULT_MESSAGE_SIZE)), following


def read_page(
    connection: Connection,
    queue: QueueAddress,
    first: int,
    stop: int,
    *,
    messages: int,
    narrow: bool,
    largest: int,
) -> tuple[pa.Table, int]:
    """
    Read the lowest messages of a range. Messages that share a seq are always read together.

    In a table without a unique index on seq, several messages may share a seq. If a full page ends
    between such messages, all of them are left for the next page. If the page has only this one
    seq, all messages of the seq are read now.

    Returns:
        The page, and the seq where the next page begins.
    """

    def read(first: int, stop: int, messages: int, size: int, *, narrow: bool) -> pa.Table:
        # each read has a transaction of its own, because a read that is stopped at PAGE_BYTES ends
        # its transaction
        with transaction(connection):
            use(connection, [queue], READ)
            return connection.arrow(
                "browse_seq" if narrow else "browse",
                tables={"queue": queue},
                first=first,
                stop=stop,
                messages=messages,
                bytes=size,
                largest=largest,
            )

    page = read(first, stop, messages, PAGE_BYTES, narrow=narrow)
    if not page.num_rows:
        return page, stop
    last = page["seq"][-1].as_py()
    if page.num_rows < messages and page.nbytes < PAGE_BYTES:
        return page, last + 1
    is_before = pc.less(page["seq"], last)
    before = pc.sum(is_before).as_py()
    same = read(last, last + 1, HIGHEST_COUNT, PAGE_BYTES, narrow=True).num_rows
    if same <= page.num_rows - before:
        return page, last + 1
    if before:
        return page.filter(is_before), last
    return read(last, last + 1, same, same * largest, narrow=narrow), last + 1


def leave_out_large(page: pa.Table, queue: str, largest: int) -> pa.Table:
    """Return the messages of a page that are not too large. Their texts are made valid UTF-8."""
    if "large" not in page.column_names:
        return page
    large = page["large"].is_valid()
    if pc.any(large).as_py():
        log.warning(
            "%s: messages larger than %d bytes are left out: seq %s",
            queue,
            largest,
            ", ".join(map(str, page["seq"].filter(large)[:MOST_NAMED].to_pylist())),
        )
        page = page.filter(pc.invert(large))
    return with_readable_texts(page)


def fill_columns(page: pa.Table) -> pa.Table:
    """Return a page with all columns of QUEUE_ROW. Columns that were not read are null."""
    columns = [
        page[field.name].cast(field.type)
        if field.name in page.column_names
        else pa.nulls(page.num_rows, field.type)
        for field in QUEUE_ROW
    ]
    return pa.Table.from_arrays(columns, schema=QUEUE_ROW)
