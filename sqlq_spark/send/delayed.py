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
from sqlq_spark.database.destinations import DELAYED, Destinations
from sqlq_spark.errors import DelayedQueueNotFound, NotAQueue, QueueNotFound
from sqlq_spark.send.frame import MOMENT
from sqlq_spark.send.sender import CHUNK_DELAYS
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.send.insert import Inserts
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class Dues:
    """When messages are due, as the database computes it."""

    delays: tuple[datetime, ...]  # of messages with a delay
    moments: tuple[datetime, ...]  # of messages with a time


def find_waiting(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return which rows of a chunk are delayed, as booleans; None where none is."""
    marks = [chunk[name].is_valid() for name in CHUNK_DELAYS if name in chunk.column_names]
    if not marks:
        return None
    mask = marks[0] if len(marks) == 1 else pc.or_(*marks)
    return mask if pc.any(mask).as_py() else None


def store_delayed(
    inserts: Inserts, chunk: pa.Table, chosen: dict[QueueAddress, pa.ChunkedArray]
) -> None:
    """
    Insert delayed messages into the tables where they wait, Due by the database's clock.

    A time in the past is stored as the current time. The next mover takes it.

    A message for a queue whose own table is missing can be set aside. The table of the option
    `delayedQueue`, for all queues, must be there. `chosen` says which rows are for which queue.

    Raises:
        DelayedQueueNotFound, TableRefused, BadOption, MissingOption.
    """
    connection, options = inserts.connection, inserts.options
    zone = endpoint_zone(connection, options.endpoint_time_zone)
    rows = chunk.select(["headers", "body"])
    rows = rows.append_column("due", _due_times(connection, chunk, zone))
    common = options.delayed_address
    if common is not None:
        try:
            inserts.destinations.lock_and_check([common], DELAYED)
        except (QueueNotFound, NotAQueue) as error:
            raise _with_queue(connection, error, common, next(iter(chosen))) from None
        connection.load(common, rows)
        return
    for queue, mine in chosen.items():
        table = delayed_of(queue)
        try:
            reason = inserts.lock([table], DELAYED, source=queue).get(table)
        except (QueueNotFound, NotAQueue) as error:
            raise _with_queue(connection, error, table, queue) from None
        if reason is None:
            reason = inserts.copy_rows(table, rows.filter(mine))
        else:
            reason = _with_queue(connection, reason, table, queue)
        if reason is not None:
            inserts.set_aside(chunk.filter(mine), queue, reason)


def check_table(destinations: Destinations, table: QueueAddress) -> None:
    """Raise why the table of the option `delayedQueue` cannot be used; lock nothing."""
    for reason in destinations.find_refused([table], DELAYED).values():
        raise _with_queue(destinations.connection, reason, table, None)


def _with_queue(
    connection: Connection, reason: SqlQueueError, table: QueueAddress, queue: QueueAddress | None
) -> SqlQueueError:
    """Return why messages for a queue cannot wait in a table; None: in the option's table."""
    if not isinstance(reason, QueueNotFound | NotAQueue):
        return reason
    return DelayedQueueNotFound(
        table=connection.printed(table),
        queue="the option delayedQueue" if queue is None else connection.printed(queue),
        server=connection.server,
    )


def _due_times(connection: Connection, chunk: pa.Table, zone: str) -> pa.ChunkedArray:
    """Return when each row is due; the database computes each distinct delay or time once."""
    coded = {
        name: chunk[name].combine_chunks().dictionary_encode()
        for name in CHUNK_DELAYS
        if name in chunk.column_names
    }
    texts = {name: each.dictionary.cast(pa.string()).to_pylist() for name, each in coded.items()}
    dues = connection.rows(
        "dues",
        Dues,
        zone=zone,
        delays=json.dumps(texts.get("delay", [])),
        moments=json.dumps([text.replace(" ", "T") for text in texts.get("due", [])]),
    )[0]
    known = {"delay": dues.delays, "due": dues.moments}
    return pc.coalesce(
        *(pa.array(known[name], MOMENT).take(each.indices) for name, each in coded.items())
    )
