"""Removes a stream from the lists of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.admin import state_tables
from sqlq_spark.admin.formats import quantity
from sqlq_spark.errors import StreamKept
from sqlq_spark.receive.receipts import StreamRow

if TYPE_CHECKING:
    from sqlq_spark.admin.state_tables import Stream
    from sqlq_spark.database import Connection


def find_stream(connection: Connection, wanted: str) -> Stream:
    """
    Return the stream with an id, or the only one with a name, in the open transaction.

    Raises:
        StreamKept: there is none, or several streams have the name.
    """
    streams = [stream for stream in state_tables.list_streams(connection) if stream.stream]
    found = [stream for stream in streams if wanted in {stream.stream, stream.name}]
    if len(found) == 1:
        return found[0]
    if not found:
        reason = "no stream has this id or name; `sqlqueue streams list` lists all"
    else:
        ids = ", ".join(stream.stream for stream in found)
        reason = f"{len(found)} streams have this name; give the id of one: {ids}"
    raise StreamKept(stream=wanted, reason=reason)


def remove_stream(connection: Connection, stream: str) -> None:
    """
    Take a stream out of all lists, in the open transaction.

    Its row stays, because it has the highest batch that Spark's query has closed. Without this
    number, another stream of the query could receive for a batch that the query's sink has. The
    sink would drop those messages.

    Raises:
        StreamKept: the stream holds receipts, or it runs.
    """
    connection.row("lock_stream", StreamRow, stream=stream)  # waits for its tasks
    now = find_stream(connection, stream)
    if now.receipts:
        held = quantity(now.receipts, "receipt")
        reason = f"it holds {held}. Start its query once, or see `sqlqueue receipts`"
        raise StreamKept(stream=stream, reason=reason)
    if now.is_alive:
        reason = f"it runs on {now.host or 'a host'}: the last sign was {now.silent:.0f} s ago"
        raise StreamKept(stream=stream, reason=reason)
    connection.run("remove_stream", stream=stream)
