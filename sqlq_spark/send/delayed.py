"""
Delayed messages: store them in the table where they wait.

The header ForwardDestination of a stored message names its destination. The endpoint that owns the
table moves due messages into its own queue, and forwards them from there: see receive/due.py and
receive/forward.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - read at run time, as the type of a column
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import endpoint_zone
from sqlq_spark.database.destinations import DELAYED_COLUMNS, Destinations
from sqlq_spark.errors import DelayedQueueNotFound, NotAQueue, QueueNotFound
from sqlq_spark.send.chunk import CHUNK_DELAYS
from sqlq_spark.send.frame import MOMENT
from sqlq_spark.send.routes import Route, TableKind, rows_by_queue
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class Dues:
    """When messages are due, as the database computes it from each distinct delay and time."""

    delays: tuple[datetime, ...]  # for delays, in the order in which they were asked for
    moments: tuple[datetime, ...]  # for times, in the same way


def delayed_routes(connection: Connection, options: SinkOptions, chunk: pa.Table) -> list[Route]:
    """
    Return the routes of delayed messages into the tables where they wait.

    Due is computed here, by the database's clock. A time in the past is stored as the current time,
    and the next mover takes it.

    Raises:
        BadOption, MissingOption.
    """
    if not chunk.num_rows:
        return []
    masks = rows_by_queue(chunk, options)
    zone = endpoint_zone(connection, options.endpoint_time_zone)
    due = _due_times(connection, chunk, zone)
    rows = chunk.select(["headers", "body"]).append_column("due", due)
    common = options.delayed_address
    if common is not None:
        return [Route(next(iter(masks)), common, TableKind.DELAYED_OF_OPTION, chunk, rows)]
    return [
        Route(queue, delayed_of(queue), TableKind.DELAYED_OF_QUEUE, chunk, rows, mask)
        for queue, mask in masks.items()
    ]


def check_delayed_table(destinations: Destinations, table: QueueAddress) -> None:
    """Raise why the table of the option `delayedQueue` cannot be used; lock nothing."""
    for reason in destinations.find_refused([table], DELAYED_COLUMNS).values():
        raise why_not_delayed(destinations.connection, reason, table, None)


def why_not_delayed(
    connection: Connection, reason: SqlQueueError, table: QueueAddress, queue: QueueAddress | None
) -> SqlQueueError:
    """
    Return why messages cannot wait in a table, in the words of delayed messages.

    `queue` is the one that they are for. None: the table is that of the option `delayedQueue`.
    """
    if not isinstance(reason, QueueNotFound | NotAQueue):
        return reason
    return DelayedQueueNotFound(
        table=connection.printed(table),
        queue="the option delayedQueue" if queue is None else connection.printed(queue),
        server=connection.server,
    )


def _due_times(connection: Connection, chunk: pa.Table, zone: str) -> pa.ChunkedArray:
    """Return when each message is due; the database computes each distinct delay or time once."""
    columns = [name for name in CHUNK_DELAYS if name in chunk.column_names]
    coded = {name: chunk[name].combine_chunks().dictionary_encode() for name in columns}
    texts = {
        name: column.dictionary.cast(pa.string()).to_pylist() for name, column in coded.items()
    }
    moments = [text.replace(" ", "T") for text in texts.get("due", [])]
    dues = connection.rows(
        "dues",
        Dues,
        zone=zone,
        delays=json.dumps(texts.get("delay", [])),
        moments=json.dumps(moments),
    )[0]
    computed = {"delay": dues.delays, "due": dues.moments}
    return pc.coalesce(
        *(pa.array(computed[name], MOMENT).take(column.indices) for name, column in coded.items())
    )
