"""
The queues of a database, and how much waits in each. Locks nothing.

A name in the catalogue is untrusted, and so is a table. `database/trust.py` decides which tables
are read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark.database import attempt, check_types, endpoint_zone, transaction
from sqlq_spark.database.trust import READ, look_at_tables, use, use_delayed
from sqlq_spark.errors import BadAddress, MissingOption, RightMissing, TableRefused
from sqlq_spark.wire.address import QueueAddress, delayed_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection

# How long to wait for a lock on a queue that the user did not name.
UNNAMED_LOCK_WAIT = 2.0  # seconds
# The rows of a table up to this size are counted. Counting took 13.8 s for a table of 3.5 GB.
LARGEST_COUNTED_TABLE = 256 << 20  # bytes
# How many tables one statement looks at. It takes 20 ms, and 0.1 ms more for each table.
LOOKED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class QueueTable:
    """A table with the columns of a queue."""

    schema_name: str
    table_name: str
    messages: int  # an estimate
    bytes: int  # the size of the table and its indexes

    @property
    def address(self) -> QueueAddress:
        return QueueAddress(self.table_name, self.schema_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The size of a queue."""

    queue: str = ""  # its address for people; not a column of the statement
    messages: int  # how many, including expired ones
    expired: int | None  # how many; None if `messages` is an estimate
    bytes: int  # the size of the table and its indexes
    first: int | None  # the lowest seq; None if no message waits
    last: int | None  # the highest seq
    estimated: bool = False  # whether `messages` is an estimate of the server's statistics


@dataclass(frozen=True, slots=True)
class Delayed:
    """The size of a queue's table of delayed messages."""

    messages: int
    due: int | None  # how many messages should be moved now; None if the time zone is not known
    bytes: int  # the size of the table and its indexes
    estimated: bool = False  # whether `messages` is an estimate of the server's statistics


def list_tables(connection: Connection) -> list[QueueTable]:
    """
    List the tables of queues that this login may read, by schema and name, whoever owns them.

    Reads the catalogue only. On SQL Server it waits for a session that changes a table.
    """
    return connection.rows("queue_tables", QueueTable)


def find_refused(
    connection: Connection, queues: Sequence[QueueAddress]
) -> dict[QueueAddress, TableRefused]:
    """
    Find which of many tables must not be read, and why, before any of them is locked.

    Anyone may make tables, so there may be many. A table that is refused here needs no transaction
    of its own later.
    """
    refused: dict[QueueAddress, TableRefused] = {}
    with transaction(connection):
        for first in range(0, len(queues), LOOKED_AT_ONCE):
            reasons = look_at_tables(connection, queues[first : first + LOOKED_AT_ONCE], READ)[1]
            refused |= {
                queue: reason
                for queue, reason in reasons.items()
                if isinstance(reason, TableRefused)
            }
    return refused


def measure_queue(
    connection: Connection, queue: QueueAddress, *, largest: int | None = None
) -> Depth:
    """
    Measure a queue, in the open transaction.

    The rows are counted. If the table has more than `largest` bytes, their number is estimated.
    If `largest` is None, the rows of any table are counted.

    Raises:
        QueueNotFound, RightMissing, NotAQueue, TableRefused.
    """
    use(connection, [queue], READ)
    check_types(connection, queue)
    quoted = connection.names.quote_address(queue)
    (measured,) = connection.rows(
        "stats", Depth, tables={"queue": queue}, table_name=quoted, largest=largest
    )
    return replace(measured, queue=connection.printed(queue))


def measure_delayed(
    connection: Connection, queue: QueueAddress, zone: str | None
) -> Delayed | None:
    """
    Measure a queue's table of delayed messages. `zone` is the option endpointTimeZone.

    Returns:
        None if the queue has no such table, or if this login may not read it.

    Raises:
        TableRefused: the table has another owner than its queue, or runs code of other logins.
    """
    if "due" not in connection.columns(delayed_of(queue)):
        return None
    with suppress(MissingOption):  # this session cannot see the server's zone
        zone = endpoint_zone(connection, zone)
    refused: TableRefused | None = None
    with suppress(RightMissing), attempt(connection):
        try:
            table = use_delayed(connection, queue, READ)
        except TableRefused as error:
            # `attempt` would undo its savepoint because of this error, although no statement has
            # failed. So the error is caught inside of the block.
            refused = error
        else:
            return connection.row(
                "stats_delayed",
                Delayed,
                tables={"queue": table},
                table_name=connection.names.quote_address(table),
                zone=zone,
                largest=LARGEST_COUNTED_TABLE,
            )
    if refused is not None:
        raise refused
    return None


def delayed_name(connection: Connection, queue: QueueAddress) -> str | None:
    """Return the address of a queue's table of delayed messages; None if it would be too long."""
    try:
        return connection.printed(delayed_of(queue))
    except BadAddress:
        return None
