"""
Making the tables: the queues as the transport makes them, and our state tables.

Everything here can be run again without harm, and by two installers at once.
`script` prints the same statements for a DBA and connects to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.dialects import transaction

if TYPE_CHECKING:
    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

VERSION = 1  # of the state tables

STATE = (
    "install_schema",
    "install_version",
    "install_version_row",
    "install_reader",
    "install_receipt",
    "install_receipt_storage",
    "install_outbox",
    "install_outbox_storage",
    "install_dispatched",
)


def install(connection: Connection, *, state: str, timeout: float) -> None:
    """
    Create the state tables where they are absent.

    Raises:
        RightMissing: the login may not create schemas or tables.
    """
    with transaction(connection, timeout=timeout):
        connection.rows("install_lock", state_name=state)
        for statement in STATE:
            connection.run(statement, version=VERSION)  # most have no use for it


def create_queue(connection: Connection, queue: QueueAddress, *, timeout: float) -> None:
    """Create a queue's table where it is absent; of two creators at once the second waits."""
    with transaction(connection, timeout=timeout):
        connection.rows("install_lock", state_name=queue.table)
        connection.run("create_queue", tables={"queue": queue})
