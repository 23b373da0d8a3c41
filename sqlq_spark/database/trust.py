"""
The rule that decides whether a table may be used, for all tables that are read or written.

The owner of a table can add code to it at any moment. That code runs with the rights of the login
that uses the table. So a table is used only if the statement `table_owners` finds that all this is
true:

- The table and its descendants are ordinary tables.
- The owners of the table and of its schema are trusted.
- Nobody else has added a trigger, and no trigger has a condition or arguments, whoever added it.
- If rows are deleted, nobody else has added a foreign key.

If a queue that an option or an argument names is absent, the error names a queue whose name differs
only in case. The error for a name from a row or a header does not. Otherwise the author of a
message could find out which tables there are.

A transaction first locks the table, then checks these points, then uses the table. While it holds
the lock, nobody can change the definition of the table. In a database without such a lock the
transaction checks again before its commit. `Connection.trusted` says which owners the user trusts,
and which tables are used whoever owns them.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from sqlq_spark import errors
from sqlq_spark.database import LOCKS, Work, lock_table, transaction
from sqlq_spark.options.names import print_roles
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Access, Connection
    from sqlq_spark.wire.address import QueueAddress

Reasons: TypeAlias = "dict[QueueAddress, errors.SqlQueueError]"  # table → why it is not used


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A row of `state_faults`: why a table or the state schema must not be used."""

    fault: str | None
    role: str | None  # the role that is not trusted; None if the fault is not about a role
    is_super: bool  # whether this session can become a superuser


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts(Fault):
    """What the database knows of a table: a row of `table_owners`."""

    place: int  # the place of the table in the list that the statement got
    identity: int  # the same number as long as the table exists
    catalog: str | None
    here: bool  # whether the table is in the database of the connection
    schema: str
    table: str
    missing: str | None  # what is wrong with the first missing or wrong column; None if all fit
    may_insert: bool
    owner: str


@dataclass(frozen=True, slots=True)
class SimilarQueue:
    """A row of `find_other_case`: a queue whose name differs only in case."""

    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Use:
    """What tables are used for, and what they must have beside a trusted owner."""

    how: Access
    columns: Sequence[str] = ()  # columns that the tables must have
    source: QueueAddress | None = None  # a queue: its owner must also own the tables
    by_header: bool = False  # whether only a header names the tables


READ, INSERT, DELETE = Use("read"), Use("insert"), Use("delete")


def use(
    connection: Connection, queues: Iterable[QueueAddress], wanted: Use, role: str = "queue"
) -> None:
    """
    Lock tables that options or arguments name, in the open transaction, and check them.

    Raises:
        QueueNotFound, RightMissing, NotAQueue, TableRefused.
    """
    try:
        lock_and_check(connection, queues, wanted, role)
    except errors.QueueNotFound as error:
        raise with_other_case(connection, error) from None


def lock_and_check(
    connection: Connection, queues: Iterable[QueueAddress], wanted: Use, role: str = "queue"
) -> None:
    """Lock and check tables as `use` does. Rows or headers may name them."""
    asked = list(dict.fromkeys(queues))
    for queue in asked:
        lock_table(connection, queue, wanted.how, role=role)
    for reason in check_locked(connection, asked, wanted).values():
        raise reason


def use_delayed(connection: Connection, queue: QueueAddress, wanted: Use) -> QueueAddress:
    """
    Lock and check a queue's table of delayed messages as `use` does. Return its address.

    The owner of the table must be the owner of the queue.
    """
    table = delayed_of(queue)
    use(connection, [table], replace(wanted, source=queue))
    return table


def check_locked(connection: Connection, queues: Sequence[QueueAddress], wanted: Use) -> Reasons:
    """
    Return which of the locked tables must not be used, and why.

    If the database has no lock for a table's definition, `transaction` checks the accepted tables
    again before its commit.
    """
    before, reasons = look_at_tables(connection, queues, wanted)

    def look_again() -> None:
        after, refused = look_at_tables(connection, queues, wanted)
        for queue in before.keys() - reasons.keys():
            if queue in refused or after[queue].identity != before[queue].identity:
                raise errors.DestinationChanged(queue=connection.printed(queue))

    if LOCKS[wanted.how] in connection.lacks:
        connection.before_commit.append(look_again)
    return reasons


def look_at_tables(
    connection: Connection, queues: Sequence[QueueAddress], wanted: Use
) -> tuple[dict[QueueAddress, TableFacts], Reasons]:
    """Return the facts of the tables that exist, and why some tables must not be used."""
    if not queues:
        return {}, {}
    names = connection.names
    asked = list(dict.fromkeys([*queues, *filter(None, [wanted.source])]))
    places = [
        names.place_of(queue) | {"columns": [*wanted.columns], "place": place}
        for place, queue in enumerate(asked)
    ]
    facts = connection.rows(
        "table_owners",
        TableFacts,
        tables=None,
        places=json.dumps(places),
        deletes=wanted.how == "delete",
        **connection.trusted.values(names),
    )
    tables = {asked[table.place]: table for table in facts}
    reasons = {queue: reason_of(connection, queue, tables, wanted) for queue in queues}
    return tables, {queue: reason for queue, reason in reasons.items() if reason is not None}


def reason_of(  # noqa: PLR0911 - each return is one kind of error
    connection: Connection, queue: QueueAddress, tables: dict[QueueAddress, TableFacts], wanted: Use
) -> errors.SqlQueueError | None:
    """Return why a table must not be used. Return None if it may be used."""
    name = connection.printed(queue)
    table = tables.get(queue)
    if wanted.by_header and (table is None or table.missing is not None or not table.may_insert):
        return errors.QueueNotWritable(queue=name, server=connection.server)
    if table is None:
        return errors.QueueNotFound(queue=name, server=connection.server)
    is_allowed = connection.trusted.allows(
        table.catalog, table.schema, table.table, here=table.here
    )
    # the owner is checked before the columns, because a column may have a type of this owner
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


def with_other_case(connection: Connection, missing: errors.QueueNotFound) -> errors.QueueNotFound:
    """
    Return the error for an absent queue, with the name of a queue that differs only in case.

    Only the error for a name from an option or an argument is passed here. A lock that failed has
    ended the open transaction, so the question may need one of its own. If the question fails too,
    the error is returned as it is.
    """
    queue = connection.whole(connection.names.parse_table(missing.queue))
    is_open = connection.work is not Work.NONE
    try:
        with nullcontext() if is_open else transaction(connection):
            similar = connection.row(
                "find_other_case",
                SimilarQueue,
                tables={"queue": queue},
                schema_name=queue.schema,
                table_name=queue.table,
            )
    except errors.DatabaseFailure:
        return missing
    if similar is None:
        return missing
    other = connection.printed(replace(queue, schema=similar.schema, table=similar.table))
    return errors.QueueInOtherCase(queue=missing.queue, server=missing.server, other=other)


def advise(connection: Connection, faults: Sequence[Fault]) -> tuple[str, str]:
    """Return the advice for an error, and the value of the setting that trusts all these roles."""
    untrusted = [fault.role for fault in faults if fault.role is not None]
    roles = dict.fromkeys([*connection.trusted.roles, *untrusted])
    advice = errors.USE_AN_ORDINARY_LOGIN if faults[0].is_super else ""
    return advice, print_roles(roles, connection.names)
