"""
Create the tables: the state tables, and queues as the transport creates them.

Each function can be run again without harm, and by two installers at once. `sqlqueue script` prints
the same statements for a DBA and connects to no database.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.errors import (
    InstallBlocked,
    StatementFailed,
    StateOfOther,
    TimedOut,
)
from sqlq_spark.wire.address import DELAYED, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName

VERSION = 1  # of the state tables

TABLES: tuple[StatementName, ...] = (
    "install_schema",
    "install_version",
    "install_stream",
    "install_stream_query",
    "install_task",
    "install_receipt",
    "install_receipt_query",
    "install_receipt_storage",
    "install_receipt_page",
    "install_receipt_page_storage",
    "install_staging",
    "install_staging_storage",
    "install_staging_page",
    "install_staging_page_storage",
    "install_dispatch_log",
    "install_trail",
)
# statements that would lock a table that is there, and which table
LOCKING: dict[StatementName, str] = {
    "install_stream_query": "stream",
    "install_receipt_query": "receipt",
    "install_receipt_storage": "receipt",
    "install_receipt_page_storage": "receipt_page",
    "install_staging_storage": "staging",
    "install_staging_page_storage": "staging_page",
}
# rows, written once the owner of the tables is checked
VERSIONS: tuple[StatementName, ...] = ("install_version_row", "install_version_only")
# seconds that an install waits for a table: streams that come after it wait as long
LOCK_WAIT = 3.0


def install(connection: Connection, *, timeout: float) -> None:
    """
    Create the connection's state tables where they are absent.

    What is in place already is neither changed nor locked.

    Raises:
        RightMissing: the login may not create schemas or tables.
        StateOfOther: another login owns what is there, and could run code as this login.
        InstallBlocked: another session holds a lock on a state table.
    """
    with transaction(connection, timeout=timeout):
        connection.rows("install_lock", state_name=connection.state)
        connection.patience(min(LOCK_WAIT, timeout))
        try:
            _install(connection)
        except TimedOut as error:
            where = connection.state, connection.server
            raise InstallBlocked(*where, min(LOCK_WAIT, timeout), str(error.args[-1])) from None


def _install(connection: Connection) -> None:
    """Run what is not in place yet, in the open transaction."""
    check_ours(connection)
    found = connection.rows("install_done", state_name=connection.state)
    done = {(part, table) for part, table, _ in found}
    for statement in TABLES:
        if (statement, LOCKING.get(statement)) not in done:
            connection.run(statement)
    check_ours(connection)  # another login may have created a table in the schema meanwhile
    for statement in VERSIONS:
        connection.run(statement, version=VERSION)


def check_ours(connection: Connection) -> None:
    """
    Make sure that this login owns the state tables that are there, and that they run no code.

    Raises:
        StateOfOther.
    """
    if found := find_faults(connection, connection.state):
        raise StateOfOther(connection.state, connection.server, found)


def find_faults(connection: Connection, state: str) -> str:
    """Return why state tables are not trusted; empty where they are."""
    rows = connection.rows("state_faults", state_name=state, owner=None)
    return "; ".join(text for (text,) in rows)


def find_states(connection: Connection) -> tuple[list[str], dict[str, str]]:
    """Return the state schemas that this login may enter and trust; and why not the others."""
    states, unread = [], {}
    for state, may_enter, roles in connection.rows("state_schemas", schema_name=None):
        if not may_enter:
            unread[state] = f"this login may not enter it{f' (roles {roles})' if roles else ''}"
        elif faults := find_faults(connection, state):
            unread[state] = f"{faults}. Name it in --state-schema, if you trust its owner"
        else:
            states.append(state)
    return states, unread


@contextmanager
def use_state(connection: Connection, state: str) -> Iterator[None]:
    """Let the block's statements use another state schema."""
    before, connection.state = connection.state, state
    try:
        yield
    finally:
        connection.state = before


def delayed_of(queue: QueueAddress) -> QueueAddress:
    """Return the table in which a queue's delayed messages wait."""
    return replace(queue, table=queue.table + DELAYED)


def create_delayed(connection: Connection, queue: QueueAddress, *, timeout: float) -> None:
    """Create the table for a queue's delayed messages where it is absent, as `create_queue`."""
    delayed = delayed_of(queue)

    def create() -> None:
        with transaction(connection, timeout=timeout):
            connection.rows("install_lock", state_name=delayed.table)
            for statement in ("create_delayed", "create_delayed_index"):
                connection.run(statement, tables={"delayed": delayed})

    _create_beside_others(connection, delayed, create)


def create_queue(
    connection: Connection, queue: QueueAddress, *, timeout: float, body_string: bool = False
) -> None:
    """
    Create a queue's table where it is absent; the second of two creators waits for the first.

    An endpoint's installer does not take our lock. Then the database makes us wait for it and
    reports that the table exists. A second attempt finds the table.

    Args:
        connection: no transaction open.
        queue: the table.
        timeout: seconds for each statement and wait.
        body_string: also add the column BodyString, also to a table that is already there.
    """
    work = partial(_create_queue, connection, queue, timeout, body_string=body_string)
    _create_beside_others(connection, queue, work)


def create_subscriptions(connection: Connection, table: QueueAddress, *, timeout: float) -> None:
    """Create the table of subscriptions where it is absent, as `create_queue`."""

    def create() -> None:
        with transaction(connection, timeout=timeout):
            connection.rows("install_lock", state_name=table.table)
            connection.run("create_subscriptions", tables={"subscriptions": table})

    _create_beside_others(connection, table, create)


def _create_beside_others(
    connection: Connection, table: QueueAddress, create: Callable[[], None]
) -> None:
    """Create a table, and once more where another installer has created it meanwhile."""
    try:
        create()
    except StatementFailed:
        if not connection.columns(table):
            raise
        create()


def _create_queue(
    connection: Connection, queue: QueueAddress, timeout: float, *, body_string: bool
) -> None:
    with transaction(connection, timeout=timeout):
        connection.rows("install_lock", state_name=queue.table)
        connection.run("create_queue", tables={"queue": queue})
        if body_string and "bodystring" not in connection.columns(queue):
            connection.run("add_body_string", tables={"queue": queue})
