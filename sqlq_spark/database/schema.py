"""
Making the tables: the queues as the transport makes them, and our state tables.

Everything here can be run again without harm, and by two installers at once.
`script` prints the same statements for a DBA and connects to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.errors import StatementFailed, StateOfOther
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

VERSION = 3  # of the state tables

TABLES = (
    "install_schema",
    "install_version",
    "install_stream",
    "install_task",
    "install_receipt",
    "install_receipt_storage",
    "install_receipt_page",
    "install_receipt_page_storage",
    "install_staging",
    "install_staging_storage",
    "install_staging_page",
    "install_staging_page_storage",
    "install_dispatch_log",
)
# each of them keeps its rows apart, by the login that made them
KEPT_APART = (
    "stream",
    "task",
    "receipt",
    "receipt_page",
    "staging",
    "staging_page",
    "dispatch_log",
)
ROW_SECURITY = tuple(
    (statement, table)
    for table, policy in [("version", "install_version_policy")]
    + [(table, "install_policy") for table in KEPT_APART]
    for statement in ("install_row_security", "install_no_policy", policy)
)
VERSIONS = ("install_version_row", "install_version_only")  # rows: not before the tables are ours


def install(connection: Connection, *, timeout: float) -> None:
    """
    Create the connection's state tables where they are absent.

    Raises:
        RightMissing: the login may not create schemas or tables.
        StateOfOther: what is there belongs to another, who could run code as this login.
    """
    with transaction(connection, timeout=timeout):
        connection.rows("install_lock", state_name=connection.state)
        check_ours(connection)
        for statement in TABLES:
            connection.run(statement)
        check_ours(connection)  # who may create in the schema may have been faster
        for statement, table in ROW_SECURITY:
            connection.run(statement, tables={"table": QueueAddress(table, connection.state)})
        for statement in VERSIONS:
            connection.run(statement, version=VERSION)


def check_ours(connection: Connection) -> None:
    """
    Make sure that what is there of the state tables is this login's, and runs no code.

    Raises:
        StateOfOther.
    """
    state = connection.state
    found = [text for (text,) in connection.rows("state_faults", state_name=state, owner=None)]
    if found:
        raise StateOfOther(state, connection.server, "; ".join(found))


def delayed_of(queue: QueueAddress) -> QueueAddress:
    """The table in which messages wait that a queue's owner has delayed."""
    return replace(queue, table=f"{queue.table}.Delayed")


def create_delayed(connection: Connection, queue: QueueAddress, *, timeout: float) -> None:
    """Create the table for a queue's delayed messages where it is absent, as `create_queue`."""
    delayed = delayed_of(queue)

    def create() -> None:
        with transaction(connection, timeout=timeout):
            connection.rows("install_lock", state_name=delayed.table)
            for statement in ("create_delayed", "create_delayed_index"):
                connection.run(statement, tables={"delayed": delayed})

    _beside_others(connection, delayed, create)


def create_queue(
    connection: Connection, queue: QueueAddress, *, timeout: float, body_string: bool = False
) -> None:
    """
    Create a queue's table where it is absent; of two creators at once the second waits.

    An endpoint's installer knows nothing of our lock: the database makes us wait for it, and then
    refuses, because the table is there. So it is done again, and finds the table.

    Args:
        connection: no transaction open.
        queue: where.
        timeout: seconds for each statement and wait.
        body_string: also add the column BodyString, to a table that is there as well.
    """
    work = partial(_create_queue, connection, queue, timeout, body_string=body_string)
    _beside_others(connection, queue, work)


def _beside_others(connection: Connection, table: QueueAddress, create: Callable[[], None]) -> None:
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
