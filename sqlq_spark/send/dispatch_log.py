"""
The dispatch log: the last batch that each sink has sent.

A task that stages for a sink locks the sink's row shared. A driver that dispatches or discards
locks it exclusively.

A job also enters how far a request has come. Each state is a batch of the request's sink, and only
increases:

    OPEN       entered before the job decides what to send. A dispatch log without it belongs to
               another database or stateSchema, and does not show what was sent.
    SENT       entered by the transaction of the write
    GIVEN_UP   entered for an operator; a write that is still running can no longer send the request
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlq_spark.database import transaction
from sqlq_spark.errors import DispatchLogAhead

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

AHEAD = 1  # batches that the log may be ahead of a replay: the one after it was sent by then
UNKNOWN, OPEN, SENT, GIVEN_UP = -2, -1, 0, 1  # batches; SENT is the txnVersion of the write


# ---------------------------------------------------------------- in the transaction that is open


class Sent(NamedTuple):
    """The last dispatch of a sink."""

    batch: int
    messages: int
    seconds: float  # since it began, by the database's clock


def share(connection: Connection, sink: str) -> bool:
    """Keep a sink's drivers waiting until the commit; False where the sink is new, see `begin`."""
    return bool(connection.rows("sink_open", sink=sink))


def lock(connection: Connection, sink: str) -> tuple[str, int | None]:
    """
    Wait for a sink's tasks and drivers, and keep others waiting until the commit.

    Returns:
        The login that began the sink, and the last batch that was sent; None: none was.
    """
    found = connection.rows("sink_close", sink=sink)
    if not found:
        connection.run("new_sink", sink=sink)
        found = connection.rows("sink_close", sink=sink)
    login, batch = found[0]
    return login, batch


def last_sent(connection: Connection, sink: str) -> Sent | None:
    """Return the last dispatch, or None; wait for a driver that dispatches, change nothing."""
    found = connection.rows("sink_open", sink=sink)
    return Sent(*found[0]) if found and found[0][0] is not None else None


def advance(connection: Connection, sink: str, batch: int, messages: int = 0) -> bool:
    """Enter a batch of a locked sink; False where it, or a later one, is there."""
    return bool(connection.rows("advance", sink=sink, batch=batch, messages=messages))


def check(connection: Connection, sink: str, batch: int, last: int | None) -> None:
    """
    Refuse a log that is too far ahead for a replay: it would drop new messages as sent.

    Raises:
        DispatchLogAhead.
    """
    if last is not None and last > batch + AHEAD:
        raise DispatchLogAhead(
            sink=sink, batch=batch, found=last, schema=connection.state, server=connection.server
        )


# ---------------------------------------------------------------- in a transaction of its own


def begin(sink: str, timeout: float, connection: Connection) -> None:
    """Make a new sink's row; no task waits for the first chunk of another, which may hang."""
    with transaction(connection, timeout=timeout):
        connection.run("new_sink", sink=sink)


def enter(sink: str, timeout: float, batch: int, connection: Connection) -> int:
    """Enter a batch, unless the dispatch log has it or a later one."""
    with transaction(connection, timeout=timeout):
        lock(connection, sink)
        advance(connection, sink, batch)
    return batch


def last(sink: str, timeout: float, connection: Connection) -> int:
    """Read the last batch of a sink; changes nothing."""
    with transaction(connection, timeout=timeout):
        sent = last_sent(connection, sink)
    return UNKNOWN if sent is None else sent.batch


def close(sink: str, timeout: float, connection: Connection) -> int:
    """Give up a request, if it is open, and delete what it staged."""
    with transaction(connection, timeout=timeout):
        _, batch = lock(connection, sink)
        if batch is None or batch < SENT:
            advance(connection, sink, GIVEN_UP)
            connection.run("discard", sink=sink, batch=GIVEN_UP)
    return GIVEN_UP
