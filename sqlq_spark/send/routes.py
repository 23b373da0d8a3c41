"""
Where the messages of a chunk go: which rows go into which table, and with which columns.

This module finds the queues that the option `queue` and the column `queue` name. For the queues of
subscribers see publish.py, and for the tables where delayed messages wait see delayed.py. These
three modules only read from the database. insert.py locks the tables and inserts the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.database import unite
from sqlq_spark.options.names import parse_destination
from sqlq_spark.send.chunk import (
    add_ids,
    find_named,
    has_lifetimes,
    names_of_queues,
    to_queue_rows,
    topics_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress


class TableKind(Enum):
    """What the table of a route is."""

    QUEUE = auto()
    DELAYED_OF_QUEUE = auto()  # the table where one queue's delayed messages wait
    DELAYED_OF_OPTION = auto()  # the table of the option delayedQueue, for messages of all queues


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """Which messages of a chunk go into one table, and the rows that the table gets for them."""

    place: QueueAddress  # the queue that the messages are for
    table: QueueAddress  # where they are inserted: this queue, or the table where they wait
    kind: TableKind
    messages: pa.Table  # all messages of the chunk
    rows: pa.Table  # the same messages with the columns of the table, without new ids
    mask: pa.ChunkedArray | None = None  # which messages take this route; None means all

    def chosen_messages(self) -> pa.Table:
        """Return the messages that take this route."""
        return self.messages if self.mask is None else self.messages.filter(self.mask)

    def chosen_rows(self) -> pa.Table:
        """Return the rows to insert. If the table is a queue, each call gives the rows new ids."""
        rows = self.rows if self.mask is None else self.rows.filter(self.mask)
        return add_ids(rows) if self.kind is TableKind.QUEUE else rows


def merge_routes(routes: Iterable[Route]) -> list[Route]:
    """Merge the routes into one table to one route, so that the rows keep their order."""
    merged: dict[QueueAddress, Route] = {}
    for route in routes:
        other = merged.get(route.table)
        if other is None:
            merged[route.table] = route
        else:
            merged[route.table] = replace(other, mask=pc.or_(other.mask, route.mask))
    return [*merged.values()]


# ---------------------------------------------------------------- the queues that rows name


def own_routes(
    connection: Connection, options: SinkOptions, chunk: pa.Table, rows: pa.Table
) -> list[Route]:
    """Return the routes of the messages that are not published, into the queues they name."""
    masks = rows_by_queue(chunk, options, connection)
    if topics_of(chunk) is None and len(masks) == 1:
        (queue,) = masks
        return [Route(queue, queue, TableKind.QUEUE, chunk, rows)]
    return [
        Route(queue, queue, TableKind.QUEUE, chunk, rows, mask) for queue, mask in masks.items()
    ]


def rows_by_queue(
    chunk: pa.Table, options: SinkOptions, connection: Connection | None = None
) -> dict[QueueAddress, pa.ChunkedArray]:
    """
    Return, for each queue, which rows are sent to it.

    If there is a `connection`, the database compares the addresses, so that all spellings of a
    queue count as one queue, and its rows keep their order.
    """
    queues = {name: destination_of(name, options) for name in names_of_queues(chunk)}
    are_several = len(set(queues.values())) > 1
    first = unite(connection, queues.values()) if connection and are_several else {}
    spellings: dict[QueueAddress, list[str | None]] = {}
    for name, queue in queues.items():
        spellings.setdefault(first.get(queue, queue), []).append(name)
    return {queue: find_named(chunk, names) for queue, names in spellings.items()}


def destination_of(name: str | None, options: SinkOptions) -> QueueAddress:
    """Return where a row goes. `name` is the row's queue, untrusted, or None: the sink's queue."""
    if name is None:
        if options.address is None:
            raise errors.MissingOption(
                option="queue", example="a queue's name, or a column queue without nulls"
            )
        return options.address
    return parse_destination("queue (column)", name, options.naming)


def read_queue_rows(connection: Connection, chunk: pa.Table) -> pa.Table:
    """Return a chunk as rows of a queue. The database's clock is read if a row has a lifetime."""
    return to_queue_rows(chunk, connection.value("clock") if has_lifetimes(chunk) else None)
