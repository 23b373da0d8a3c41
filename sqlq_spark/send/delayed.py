"""
Delayed messages: store them in the table where they wait until they are due.

The header ForwardDestination of a stored message names its destination. When the message is due,
the endpoint that owns the table moves it into its own queue, and forwards it from there to the
destination. A stream does the same: see receive/due.py and receive/forward.py.
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
    """The row of `dues`: when messages are due. The database computes it."""

    delays: tuple[datetime, ...]  # for each distinct delay, in the order of the argument `delays`
    moments: tuple[datetime, ...]  # for each distinct due time, in the order of `moments`


def delayed_routes(connection: Connection, options: SinkOptions, chunk: pa.Table) -> list[Route]:
    """
    Return the routes of delayed messages into the tables where they wait.

    The database's clock decides when a message is due. A due time in the past becomes the current
    time, so the next mover moves the message.

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
    """Raise an error if the table of the option `delayedQueue` cannot be used. Lock nothing."""
    for reason in destinations.find_refused([table], DELAYED_COLUMNS).values():
        raise why_not_delayed(destinations.connection, reason, table, None)


def why_not_delayed(
    connection: Connection, reason: SqlQueueError, table: QueueAddress, queue: QueueAddress | None
) -> SqlQueueError:
    """
    Return the error for a table in which delayed messages cannot wait.

    `queue` is the queue that the messages are for. It is None if the option `delayedQueue` names
    the table.
    """
    if not isinstance(reason, QueueNotFound | NotAQueue):
        return reason
    return DelayedQueueNotFound(
        table=connection.printed(table),
        queue="the option delayedQueue" if queue is None else connection.printed(queue),
        server=connection.server,
    )


def _due_times(connection: Connection, chunk: pa.Table, zone: str) -> pa.ChunkedArray:
    """Return when each message is due. The database computes each distinct delay or time once."""
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
