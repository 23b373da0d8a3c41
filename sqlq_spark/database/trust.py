"""
Whose table is it? One rule for all tables that are read or written.

The owner of a table can add code to it at any moment, which runs with the rights of the login that
uses the table. So a table is used only if the statement `table_owners` finds no fault: it is an
ordinary table, as its descendants are; its owner and its schema's owner are trusted; nobody else
has added a trigger or, where rows are deleted, a foreign key.

The order is lock, look, use, in one transaction. The lock keeps the table as the look found it. A
database without such a lock looks again before the commit. `Connection.trusted` says whom the user
trusts, and which tables are used whoever owns them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sqlq_spark import errors
from sqlq_spark.database import LOCKS, lock_table
from sqlq_spark.options.names import print_roles
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Access, Connection
    from sqlq_spark.wire.address import QueueAddress

Reasons: TypeAlias = "dict[QueueAddress, errors.SqlQueueError]"  # why tables are not used


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a table or the state schema must not be used: a row of `state_faults`."""

    fault: str | None
    role: str | None  # who is not trusted, if that is the fault
    is_super: bool  # whether this session can become a superuser


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Fault):
    """What the database knows of a table: a row of `table_owners`."""

    place: int  # in the list that was asked for
    identity: int  # while it exists
    catalog: str | None
    here: bool  # whether it is in the database of the connection
    schema: str
    table: str
    missing: str | None  # what is wrong with its first column that no queue has so
    may_insert: bool
    owner: str


@dataclass(frozen=True, slots=True)
class Use:
    """What tables are used for, and what is asked of them beside whose they are."""

    how: Access
    columns: Sequence[str] = ()  # that they must have
    source: QueueAddress | None = None  # whose owner they must have
    by_header: bool = False  # whether only a header names them


READ, INSERT, DELETE = Use("read"), Use("insert"), Use("delete")


def use(
    connection: Connection, queues: Iterable[QueueAddress], wanted: Use, role: str = "queue"
) -> None:
    """
    Lock tables, and make sure that they may be used, in the transaction that uses them.

    Raises:
        QueueNotFound, RightMissing, NotAQueue, TableRefused.
    """
    asked = list(dict.fromkeys(queues))
    for queue in asked:
        lock_table(connection, queue, wanted.how, role=role)
    for reason in check_locked(connection, asked, wanted).values():
        raise reason


def use_delayed(connection: Connection, queue: QueueAddress, wanted: Use) -> QueueAddress:
    """Return a queue's table of delayed messages, as `use`. Nothing reaches it in another way."""
    table = delayed_of(queue)
    use(connection, [table], replace(wanted, source=queue))
    return table


def check_locked(connection: Connection, queues: Sequence[QueueAddress], wanted: Use) -> Reasons:
    """Return which of the locked tables must not be used, and why."""
    before, reasons = look(connection, queues, wanted)

    def look_again() -> None:
        after, refused = look(connection, queues, wanted)
        for queue in before.keys() - reasons.keys():
            if queue in refused or after[queue].identity != before[queue].identity:
                raise errors.DestinationChanged(queue=connection.printed(queue))

    if LOCKS[wanted.how] in connection.lacks:
        connection.before_commit.append(look_again)
    return reasons


def look(
    connection: Connection, queues: Sequence[QueueAddress], wanted: Use
) -> tuple[dict[QueueAddress, Table], Reasons]:
    """Return what is known of the tables that are there, and why some must not be used."""
    if not queues:
        return {}, {}
    names, more = connection.names, {"columns": [*wanted.columns]}
    asked = list(dict.fromkeys([*queues, *filter(None, [wanted.source])]))
    places = [names.place_of(queue) | more | {"place": at} for at, queue in enumerate(asked)]
    found = connection.rows(
        "table_owners",
        Table,
        tables=None,
        places=json.dumps(places),
        deletes=wanted.how == "delete",
        **connection.trusted.values(names),
    )
    tables = {asked[table.place]: table for table in found}
    reasons = {queue: reason_of(connection, queue, tables, wanted) for queue in queues}
    return tables, {queue: reason for queue, reason in reasons.items() if reason is not None}


def reason_of(  # noqa: PLR0911 - each return is one kind of error
    connection: Connection, queue: QueueAddress, tables: dict[QueueAddress, Table], wanted: Use
) -> errors.SqlQueueError | None:
    name, table = connection.printed(queue), tables.get(queue)
    if wanted.by_header and (table is None or table.missing is not None or not table.may_insert):
        return errors.QueueNotWritable(queue=name, server=connection.server)
    if table is None:
        return errors.QueueNotFound(queue=name, server=connection.server)
    its = (table.catalog, table.schema, table.table)
    is_allowed = connection.trusted.allows(*its, here=table.here)
    # before the columns: the type of a column may be the owner's own
    if table.role is not None and not is_allowed:
        advice, value = advise(connection, [table])
        return errors.OwnerNotTrusted(
            table=name, found=table.fault or "", owner=table.role, advice=advice, value=value
        )
    if table.fault is not None and not is_allowed:
        return errors.TableRefused(table=name, found=table.fault)
    if table.missing is not None:
        return errors.NotAQueue(
            queue=name, reason=table.missing, columns=connection.names.queue_columns
        )
    if is_allowed:
        return None
    source = tables.get(wanted.source) if wanted.source else table
    if source is None or source.owner != table.owner:
        found = connection.printed(wanted.source or queue)
        return errors.TableOfOther(table=name, owner=table.owner, found=found)
    return None


def advise(connection: Connection, faults: Sequence[Fault]) -> tuple[str, str]:
    """Return what a superuser should do first, and the setting that trusts the roles of faults."""
    roles = [*connection.trusted.roles, *(each.role for each in faults if each.role is not None)]
    value = print_roles(dict.fromkeys(roles), connection.names)
    return errors.USE_AN_ORDINARY_LOGIN if faults[0].is_super else "", value
