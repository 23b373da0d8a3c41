"""
Whose table is it? One rule for all tables that are read or written.

The owner of a table can add code to it at any moment, and that code runs with the rights of the
login that uses the table. So a table is used only if the statement `table_owners` finds no fault:
it is an ordinary table, as its descendants are. Its owner and its schema's owner are trusted.
Nobody else has added a trigger or, where rows are deleted, a foreign key.
A queue's table of delayed messages must also have the owner of its queue.

The order is lock, look, use, in one transaction. The lock keeps the table as the look found it. A
database without such a lock looks again before the commit.

`Connection.trusted` says whom the user trusts, and which tables are used whoever owns them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sqlq_spark import errors
from sqlq_spark.database import LOCKS, lock_table
from sqlq_spark.options.names import print_roles
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Connection, Use
    from sqlq_spark.wire.address import QueueAddress

SUPERUSER = (
    "This login has the rights of a superuser, so it trusts only superusers and the roles of that "
    "setting. Use an ordinary login with the operator's role. "
)
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
    missing: str | None  # the first column that it lacks
    may_insert: bool
    owner: str
    same_owner: bool  # whether its owner is that of the source


def use(
    connection: Connection,
    queues: Iterable[QueueAddress],
    how: Use,
    *,
    columns: Sequence[str] = (),
    source: QueueAddress | None = None,
    role: str = "queue",
) -> None:
    """
    Lock tables, and make sure that they may be used, in the transaction that uses them.

    They must have these columns, and the owner of the source.

    Raises:
        QueueNotFound, RightMissing, NotAQueue, TableRefused.
    """
    asked = list(dict.fromkeys(queues))
    for queue in asked:
        lock_table(connection, queue, how, role=role)
    tables = look(connection, asked, how, columns=columns, source=source)
    for queue in asked:
        reason = reason_of(connection, queue, tables.get(queue), source)
        if reason is not None:
            raise reason
    look_at_end(connection, tables, how)


def use_delayed(
    connection: Connection, queue: QueueAddress, how: Use, *, columns: Sequence[str] = ()
) -> QueueAddress:
    """Return a queue's table of delayed messages, as `use`. Nothing reaches it in another way."""
    table = delayed_of(queue)
    use(connection, [table], how, columns=columns, source=queue)
    return table


def look(
    connection: Connection,
    queues: Sequence[QueueAddress],
    how: Use,
    *,
    columns: Sequence[str] = (),
    source: QueueAddress | None = None,
) -> dict[QueueAddress, Table]:
    """Return what is known of the tables that are there. Locks nothing, runs no code of a table."""
    if not queues:
        return {}
    places = [
        connection.names.place_of(queue) | {"place": place, "columns": [*columns]}
        for place, queue in enumerate(queues)
    ]
    found = connection.records(
        "table_owners",
        Table,
        places=json.dumps(places),
        source_table=None if source is None else connection.names.quote_address(source),
        deletes=how == "delete",
        **whom(connection),
    )
    return {queues[table.place]: table for table in found}


def look_at_end(connection: Connection, before: dict[QueueAddress, Table], how: Use) -> None:
    """Look again before the commit, if no lock keeps the tables; raises DestinationChanged."""

    def look_again() -> None:
        after = look(connection, [*before], how)
        for queue, table in before.items():
            now = after.get(queue)
            if now is None or (now.identity, now.fault) != (table.identity, table.fault):
                raise errors.DestinationChanged(queue=connection.printed(queue))

    if LOCKS[how] in connection.lacks:
        connection.before_commit.append(look_again)


def reason_of(  # noqa: PLR0911 - each return is one kind of error
    connection: Connection, queue: QueueAddress, table: Table | None, source: QueueAddress | None
) -> errors.DatabaseFailure | None:
    """Return why a table must not be used, by what is known of it; None: it may be used."""
    name = connection.printed(queue)
    if table is None:
        return errors.QueueNotFound(queue=name, server=connection.server)
    if table.missing is not None:
        return errors.NotAQueue(queue=name, reason=f"it has no column {table.missing}")
    if connection.trusted.allows(table.catalog, table.schema, table.table, here=table.here):
        return None
    if table.role is not None:
        advice, value = advise(connection, [table])
        return errors.OwnerNotTrusted(
            table=name, found=table.fault, owner=table.role, advice=advice, value=value
        )
    if table.fault is not None:
        return errors.TableRefused(table=name, found=table.fault)
    if source is not None and not table.same_owner:
        found = connection.printed(source)
        return errors.TableOfOther(table=name, owner=table.owner, found=found)
    return None


def advise(connection: Connection, faults: Sequence[Fault]) -> tuple[str, str]:
    """Return what a superuser should do first, and the setting that trusts the roles of faults."""
    roles = [*connection.trusted.roles, *(each.role for each in faults if each.role is not None)]
    value = print_roles(dict.fromkeys(roles), connection.names)
    return SUPERUSER if faults[0].is_super else "", value


def whom(connection: Connection) -> dict[str, str]:
    """Return whom the user trusts, as the statements take it."""
    trusted = connection.trusted
    named: list[dict[str, object]] = [connection.names.place_of(queue) for queue in trusted.named]
    if trusted.state_schema is not None:
        named.append({"schema_name": trusted.state_schema})
    return {"owners": json.dumps(trusted.roles), "named": json.dumps(named)}
