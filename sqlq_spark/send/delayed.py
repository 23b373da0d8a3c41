"""
Store delayed messages in the table where they wait until they are due.

The header ForwardDestination of a stored message names its destination. The endpoint that owns the
table moves due messages into its own queue, and forwards them from there: see receive/due.py
and receive/forward.py.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import endpoint_zone
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.trust import DELAYED, Destinations
from sqlq_spark.errors import (
    DelayedQueueNotFound,
    NotAQueue,
    QueueNotFound,
)
from sqlq_spark.send.message.delays import CHUNK_DELAYS, MOMENT
from sqlq_spark.wire.header_columns import NAMED_IN_HEX, parse_headers
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps, escape

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.undeliverable import Undeliverable
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")


def waiting(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return which rows of a chunk are delayed, as booleans; None where none is."""
    marks = [chunk[name].is_valid() for name in CHUNK_DELAYS if name in chunk.column_names]
    if not marks:
        return None
    mask = marks[0] if len(marks) == 1 else pc.or_(*marks)
    return mask if pc.any(mask).as_py() else None


def store_delayed(
    connection: Connection,
    chunk: pa.Table,
    chosen: dict[QueueAddress, pa.ChunkedArray],
    options: SinkOptions,
    undeliverable: Undeliverable,
) -> None:
    """
    Insert delayed messages into the tables where they wait, Due by the database's clock.

    A time in the past is stored as it is, as the transport does. The next mover takes it.
    The insert is part of the transaction that sends the rest of the chunk.

    Args:
        connection: in a transaction.
        chunk: of CHUNK_ROW and CHUNK_DELAYS; each row is delayed.
        chosen: which rows are for which queue.
        options: the sink's.
        undeliverable: of this transaction. It locks and checks the tables, and takes the messages
            for a queue whose own table is missing. The table of the option `delayedQueue` must be
            there.

    Raises:
        DelayedQueueNotFound, DestinationRefused, BadOption, MissingOption.
    """
    rows = pa.table(
        {
            "headers": chunk["headers"],
            "body": chunk["body"],
            "due": due_times(
                connection, chunk, endpoint_zone(connection, options.endpoint_time_zone)
            ),
        }
    )
    for queue, own in chosen.items():
        mine = rows if len(chosen) == 1 else rows.filter(own)
        headers = set_forward_destination(mine["headers"], connection.canonical(queue))
        mine = mine.set_column(0, "headers", headers)
        if options.delayed_address is not None:
            lock_table(undeliverable.destinations, options.delayed_address, queue)
            connection.load(options.delayed_address, mine)
            continue
        reason = store_beside(undeliverable, queue, mine)
        if reason is not None:
            undeliverable.add(chunk.filter(own), queue, reason)


def store_beside(
    undeliverable: Undeliverable, queue: QueueAddress, rows: pa.Table
) -> SqlQueueError | None:
    """
    Insert messages into the delayed table of their destination; return why not, if it refuses.

    Raises:
        DelayedQueueNotFound, DestinationRefused: the transaction is not careful.
    """
    table, connection = delayed_of(queue), undeliverable.connection
    if undeliverable.careful:
        for reason in undeliverable.lock([table], DELAYED).values():
            missing = isinstance(reason, (QueueNotFound, NotAQueue))
            return table_not_found(connection, table, queue) if missing else reason
    else:
        lock_table(undeliverable.destinations, table, queue)
    return undeliverable.send(table, rows)


def lock_table(destinations: Destinations, table: QueueAddress, queue: QueueAddress) -> None:
    """
    Lock the table in which messages for a queue wait, and check it.

    Raises:
        DelayedQueueNotFound, DestinationRefused.
    """
    try:
        destinations.lock_and_check([table], DELAYED)
    except (QueueNotFound, NotAQueue):
        raise table_not_found(destinations.connection, table, queue) from None


def table_not_found(
    connection: Connection, table: QueueAddress, queue: QueueAddress
) -> DelayedQueueNotFound:
    """Return the error for a missing table of delayed messages."""
    return DelayedQueueNotFound(
        table=connection.printed(table), queue=connection.printed(queue), server=connection.server
    )


def check_table(destinations: Destinations, table: QueueAddress) -> None:
    """
    Check the table of the option `delayedQueue`, without a lock.

    Raises:
        DelayedQueueNotFound, DestinationRefused.
    """
    connection = destinations.connection
    for reason in destinations.find_refused([table], DELAYED).values():
        if isinstance(reason, QueueNotFound | NotAQueue):
            name = connection.printed(table)
            raise DelayedQueueNotFound(
                table=name, queue="the option delayedQueue", server=connection.server
            )
        raise reason


def due_times(connection: Connection, chunk: pa.Table, zone: str) -> pa.ChunkedArray:
    """Return when each row is due; the database computes each distinct delay or time once."""
    found = {
        name: chunk[name].combine_chunks().dictionary_encode()
        for name in CHUNK_DELAYS
        if name in chunk.column_names
    }
    texts = {name: coded.dictionary.cast(pa.string()).to_pylist() for name, coded in found.items()}
    delays, moments = connection.rows(
        "dues",
        zone=zone,
        delays=json.dumps(texts.get("delay", [])),
        moments=json.dumps([text.replace(" ", "T") for text in texts.get("due", [])]),
    )[0]
    known = {"delay": delays, "due": moments}
    return pc.coalesce(
        *(pa.array(known[name], MOMENT).take(coded.indices) for name, coded in found.items())
    )


def _without_forward_destination(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return header texts without the destination that a delivered message may still have."""
    named = pc.match_substring(headers, FORWARD_DESTINATION)
    marked = pc.or_(named, pc.match_substring_regex(headers, NAMED_IN_HEX))
    if not pc.any(marked).as_py():
        return headers
    found = [parse_headers(text) or {} for text in headers.filter(marked).to_pylist()]
    others = [
        {name: text for name, text in each.items() if name != FORWARD_DESTINATION} for each in found
    ]
    texts = pa.array([dumps(each) for each in others], pa.string())
    return pc.replace_with_mask(headers.combine_chunks(), marked.combine_chunks(), texts)


def set_forward_destination(headers: pa.ChunkedArray, destination: str) -> pa.ChunkedArray:
    """Return header texts with ForwardDestination at their end, and nowhere else."""
    headers = _without_forward_destination(headers)
    entry = f'"{FORWARD_DESTINATION}":"{escape(destination)}"}}'
    whole = pc.ascii_trim_whitespace(headers)
    open_ = pc.ascii_rtrim_whitespace(pc.utf8_slice_codeunits(whole, 0, -1))
    comma = pc.if_else(pc.equal(open_, "{"), "", ",")
    return pc.binary_join_element_wise(open_, comma, entry, "")
