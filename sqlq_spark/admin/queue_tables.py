"""
Finds the queues of a database by the columns of its tables, and what has them locked.

A name in the catalogue is untrusted, and so is a table: its owner decides what code a SELECT runs.
A table that was found, and that nobody named, is read only if it is a plain one without such code.
Both statements read the catalogue only and wait for no lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.admin.problems import Finding, finding, warning
from sqlq_spark.database.trust import find_code
from sqlq_spark.wire.address import DELAYED, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection

HELD = 60.0  # seconds for which a transaction may have messages locked
LOCK_WAIT = 2.0  # seconds that a queue that nobody named is waited for
ABSENT = "it is a view, or a table that this login may not read"


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns of a queue, or of delayed messages."""

    address: QueueAddress
    is_delayed: bool
    danger: str | None  # the first code of another owner that a SELECT could run
    messages: int  # an estimate
    bytes: int


def tables(connection: Connection, only: QueueAddress | None = None) -> list[Table]:
    """The tables of queues and of delayed messages that this login may read, by schema and name."""
    schema = None if only is None else connection.names.qualify(only).schema
    table = None if only is None else only.table
    rows = connection.rows("queue_tables", schema_name=schema, table_name=table)
    addresses = {QueueAddress(name, place): identity for place, name, identity, *_ in rows}
    code = find_code(connection, addresses, "select")
    return [
        Table(
            QueueAddress(name, place), bool(delayed), code.get(identity), int(messages), int(size)
        )
        for place, name, identity, delayed, messages, size in rows
    ]


def queues(found: Sequence[Table]) -> list[Table]:
    """The queues among tables."""
    return [each for each in found if not each.is_delayed]


def without_queue(found: Sequence[Table]) -> list[Table]:
    """The tables of delayed messages that have no queue."""
    names = {(each.address.schema, f"{each.address.table}{DELAYED}") for each in queues(found)}
    return [
        each
        for each in found
        if each.is_delayed
        and each.address.table.endswith(DELAYED)
        and (each.address.schema, each.address.table) not in names
    ]


def danger(connection: Connection, queue: QueueAddress) -> str | None:
    """
    The code of another owner that reading a queue could run; None if there is none.

    To be called in the transaction that reads it.
    """
    found = queues(tables(connection, queue))
    return found[0].danger if found else ABSENT


def delayed(connection: Connection, table: QueueAddress) -> Table | None:
    """A table of delayed messages; None if there is none that this login may read."""
    return next(iter(tables(connection, table)), None)


def refusal(where: str, danger: str, *, name: str = "not_read") -> Finding:
    """The finding for a table that is not read, because nobody named its queue."""
    problem = f"it is not read, because it could run code of its owner: {danger}"
    return warning(where, name, problem, "name the queue in the command, if you trust its owner")


def blockers(connection: Connection) -> list[Finding]:
    """Find transactions that have locked tables of this database, or messages for long."""
    return [
        finding(connection.printed(QueueAddress(table, schema)), (name, severity, found, fix))
        for schema, table, name, severity, found, fix in connection.rows("blockers", seconds=HELD)
    ]
