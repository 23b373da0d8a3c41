"""
The dispatch log: the last batch that each sink has sent.

A task that stages for a sink locks the sink's row shared. A driver that dispatches or discards
locks it exclusively. The row belongs to the login that made it, and so do the sink's chunks. The
members of a role share both. A login that cannot see a row cannot lock it either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlq_spark.errors import DispatchLogAhead, DispatchLogOfOther

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName

AHEAD = 1  # batches that the log may be ahead of a replay: the one after it was sent by then


class Sent(NamedTuple):
    """The last dispatch of a sink."""

    batch: int
    messages: int
    seconds: float  # since it began, by the database's clock


def share(connection: Connection, sink: str) -> str:
    """
    Keep a sink's drivers waiting until the commit, in the transaction that is open.

    Returns:
        The login that the sink belongs to.

    Raises:
        DispatchLogOfOther.
    """
    login: str = _row(connection, "sink_open", sink)[0]
    return login


def lock(connection: Connection, sink: str) -> tuple[str, int | None]:
    """
    Wait for a sink's tasks and drivers, and keep others waiting until the commit.

    Returns:
        The login that the sink belongs to, and the last batch that was sent; None: none was.

    Raises:
        DispatchLogOfOther.
    """
    login, batch = _row(connection, "sink_close", sink)
    return login, batch


def read(connection: Connection, sink: str) -> int | None:
    """
    Return the last batch of a sink, or None; wait for a driver that dispatches, change nothing.

    Raises:
        DispatchLogOfOther.
    """
    found = connection.rows("sink_open", sink=sink)
    if not found:
        _refuse_other(connection, sink)
        return None
    batch: int | None = found[0][1]
    return batch


def last_sent(connection: Connection, sink: str) -> Sent | None:
    """Return the last dispatch of a sink, or None; wait for a driver that dispatches."""
    found = connection.rows("sink_open", sink=sink)
    return Sent(*found[0][1:]) if found and found[0][1] is not None else None


def enter(connection: Connection, sink: str, batch: int) -> bool:
    """
    Lock a sink and enter a batch; returns what `advance` returns.

    Raises:
        DispatchLogOfOther.
    """
    login, _ = lock(connection, sink)
    return advance(connection, sink, login, batch)


def advance(connection: Connection, sink: str, login: str, batch: int, messages: int = 0) -> bool:
    """Enter a batch of a locked sink; False where it, or a later one, is there."""
    values: dict[str, Any] = {"sink": sink, "login": login, "batch": batch, "messages": messages}
    return bool(connection.rows("advance", **values))


def check(connection: Connection, sink: str, batch: int, last: int | None) -> None:
    """
    Refuse a log that is too far ahead for a replay: it would drop new messages as sent.

    Raises:
        DispatchLogAhead.
    """
    if last is not None and last > batch + AHEAD:
        raise DispatchLogAhead(sink, batch, last, connection.state, connection.server)


def _row(connection: Connection, statement: StatementName, sink: str) -> tuple[Any, ...]:
    """Return the sink's row, locked; insert it for a new sink."""
    found = connection.rows(statement, sink=sink)
    if not found:
        connection.run("sinks_lock")
        _refuse_other(connection, sink)
        connection.run("new_sink", sink=sink)
        found = connection.rows(statement, sink=sink)
    return found[0]


def _refuse_other(connection: Connection, sink: str) -> None:
    for (login,) in connection.rows("sink_elsewhere", sink=sink):
        raise DispatchLogOfOther(sink, login, connection.state, connection.server)
