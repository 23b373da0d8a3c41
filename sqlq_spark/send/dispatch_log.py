"""
The dispatch log: the last batch that each sink has sent.

Who stages for a sink locks its row shared, who dispatches or discards locks it alone. The row
belongs to the login that made it, and so does what is staged for its sink; the members of a role
share both. A row that no one else may see cannot be locked by anyone else either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlq_spark.errors import DispatchLogAhead, DispatchLogOfOther

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName

AHEAD = 1  # batches that the log may be ahead of a replay: the one after it was sent by then


def share(connection: Connection, sink: str) -> str:
    """
    Keep a sink's drivers waiting until the commit, in the transaction that is open.

    Returns:
        The login that the sink belongs to.

    Raises:
        DispatchLogOfOther.
    """
    login: str = _found(connection, "sink_open", sink)[0]
    return login


def lock(connection: Connection, sink: str) -> tuple[str, int | None]:
    """
    Wait for a sink's tasks and drivers, and keep others waiting until the commit.

    Returns:
        The login that the sink belongs to, and the last batch that was sent; None: none was.

    Raises:
        DispatchLogOfOther.
    """
    login, batch = _found(connection, "sink_close", sink)
    return login, batch


def enter(connection: Connection, sink: str, batch: int, messages: int = 0) -> bool:
    """
    Enter a batch, in the transaction that is open; False where it, or a later one, is there.

    Raises:
        DispatchLogOfOther.
    """
    login, _ = lock(connection, sink)
    values: dict[str, Any] = {"sink": sink, "login": login, "batch": batch, "messages": messages}
    return bool(connection.rows("advance", **values))


def check(connection: Connection, sink: str, batch: int, last: int | None) -> None:
    """
    Refuse a log that a replay of this batch cannot explain: what is new would be taken for sent.

    Raises:
        DispatchLogAhead.
    """
    if last is not None and last > batch + AHEAD:
        raise DispatchLogAhead(sink, batch, last, connection.state, connection.server)


def _found(connection: Connection, statement: StatementName, sink: str) -> tuple[Any, ...]:
    """The sink's row, locked; made where the sink is new."""
    found = connection.rows(statement, sink=sink)
    if not found:
        connection.run("sinks_lock")
        for (login,) in connection.rows("sink_elsewhere", sink=sink):
            raise DispatchLogOfOther(sink, login, connection.state, connection.server)
        connection.run("new_sink", sink=sink)
        found = connection.rows(statement, sink=sink)
    return found[0]
