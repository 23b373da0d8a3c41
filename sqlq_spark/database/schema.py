"""
Create the tables: the state tables, and queues as the transport creates them.

Each function can be run again without harm, and by two installers at once. `sqlqueue script` prints
the same statements for a DBA and connects to no database.

The table `trail` records who purged, returned, dropped or retired what, and how many messages, in
the transaction that does it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from sqlq_spark import errors
from sqlq_spark.database import StateSchema, dialect_named, transaction
from sqlq_spark.database.trust import INSERT, Fault, advise, look_at_tables
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

VERSION = 4  # of the state tables; both dialects' `install_state` and `script_check` name it
# seconds that an install waits for a lock; `script_begin` names it
LOCK_WAIT = 3.0
NO_TRAIL = (
    "no entry in the audit trail: schema {0} of {1} has no table `trail` that this login may use, "
    "or has an owner who is not trusted. "
    "`sqlqueue install` creates it"
)


def install(connection: Connection) -> None:
    """
    Create the connection's state tables, unless they are there.

    What is there is neither changed nor locked.

    Raises:
        RightMissing: the login may not create schemas or tables.
        StateOfOther: an untrusted login owns what is there, and could run code as this one.
        StateTooOld, StateTooNew: another release created the tables.
        InstallBlocked: another session is creating or changing them.
    """
    wait = min(LOCK_WAIT, connection.timeout)
    with transaction(connection):
        connection.run("install_lock", state_name=connection.state)
        connection.set_lock_timeout(wait)
        try:
            connection.run("install_schema")
            check_state_owners(connection)
            connection.run("install_state")
            check_state(connection)
        except errors.TimedOut as error:
            raise errors.InstallBlocked(
                schema=connection.state,
                server=connection.server,
                seconds=wait,
                reason=error.reason,
            ) from None


def check_state(connection: Connection) -> None:
    """
    Make sure that the state tables may be used, and are of this version.

    Whose they are is asked before anything is read.

    Raises:
        StateOfOther, StateNotInstalled, StateTooOld, StateTooNew.
    """
    check_state_owners(connection)
    found = connection.value("version")
    if found is None:
        raise errors.StateNotInstalled(schema=connection.state, server=connection.server)
    if found != VERSION:
        kind = errors.StateTooOld if found < VERSION else errors.StateTooNew
        raise kind(schema=connection.state, found=found, known=VERSION)


def check_state_owners(connection: Connection) -> None:
    """Raise StateOfOther for a state schema that must not be used; reads only the catalogue."""
    trusted = connection.trusted.values(connection.names)
    faults = connection.rows("state_faults", Fault, tables=None, **trusted)
    if faults:
        found = "; ".join(str(each.fault) for each in faults)
        advice, value = advise(connection, faults)
        raise errors.StateOfOther(
            schema=connection.state,
            server=connection.server,
            found=found,
            advice=advice,
            value=value,
        )


def state_parts(connection: Connection) -> dict[str, str]:
    """Return each state table and index, with the statements that create it."""
    dialect = dialect_named(connection.names.dialect)
    text = re.sub("^    ", "", dialect.STATEMENTS["install_state"], flags=re.MULTILINE)
    parts: dict[str, str] = {}
    for each in re.findall("^(?:CREATE|ALTER|EXEC|INSERT) [^;]+;", text, flags=re.MULTILINE):
        table, index = re.findall(r"\{\w+\}\.(\w+)", each), re.findall(r"INDEX (\w+)", each)
        parts |= dict.fromkeys(index, each)
        parts |= {name: f"{parts.get(name, '')}{each}\n" for name in table}
    return {
        name: dialect.fill_names(part.strip(), connection.state, {}) for name, part in parts.items()
    }


def find_states(connection: Connection) -> tuple[list[str], dict[str, str]]:
    """Return the state schemas that this login may enter and trust; and why not the others."""
    states, unread = [], {}
    for found in connection.rows("state_schemas", StateSchema, schema_name=None):
        state = found.schema
        if not found.may_enter:
            roles = f" (roles {found.roles})" if found.roles else ""
            unread[state] = f"this login may not enter it{roles}"
            continue
        try:
            with use_state(connection, state):
                check_state_owners(connection)
        except errors.StateOfOther as error:
            unread[state] = str(error)
        else:
            states.append(state)
    return states, unread


@contextmanager
def use_state(connection: Connection, state: str) -> Iterator[None]:
    before, connection.state = connection.state, state
    try:
        yield
    finally:
        connection.state = before


def has_trail(connection: Connection) -> bool:
    """
    Whether actions are recorded: there is a trail, in a schema that this login may and does use.

    A login that may use the schema and may not insert there fails when it records an action.
    """
    try:
        check_state_owners(connection)
    except errors.StateOfOther:
        return False
    return connection.value("trail_kept", state_name=connection.state) is not None


def record_action(
    connection: Connection,
    action: Literal["purge", "return", "drop", "retire"],
    queue: str,
    messages: int,
    receipt: tuple[str, int, int] | None = None,
) -> None:
    """
    Write an entry into the trail, in the open transaction; `receipt` is stream, batch and task.

    Raises:
        RightMissing: the login may not insert. The action is undone with the transaction.
    """
    stream, batch, task = receipt or (None, None, None)
    connection.run(
        "record_action",
        action=action,
        queue_name=queue,
        messages=messages,
        stream=stream,
        batch=batch,
        task=task,
    )


def create_queue(connection: Connection, queue: QueueAddress, *, body_string: bool = False) -> None:
    """
    Create a queue's table where it is absent; the second of two creators waits for the first.

    `body_string` adds the column BodyString, also to a table that is already there.
    """
    _create(connection, "create_queue", queue, body_string=body_string)


def create_delayed(connection: Connection, queue: QueueAddress) -> None:
    """Create the table for a queue's delayed messages where it is absent."""
    _create(connection, "create_delayed", delayed_of(queue))


def create_subscriptions(connection: Connection, table: QueueAddress) -> None:
    """Create the table of subscriptions where it is absent."""
    _create(connection, "create_subscriptions", table)


def check_owner(connection: Connection, table: QueueAddress) -> None:
    """Raise TableRefused for a table that was there, and whose owner is not trusted."""
    for reason in look_at_tables(connection, [table], INSERT)[1].values():
        raise reason


def _create(
    connection: Connection,
    statement: StatementName,
    table: QueueAddress,
    *,
    body_string: bool = False,
) -> None:
    """
    Create a table, and once more where another installer has created it meanwhile.

    On PostgreSQL an endpoint's installer does not take our lock. Then the database makes us wait
    for it and reports that the table exists. A second attempt finds the table.
    """
    name = statement.removeprefix("create_")  # of the table in the statement

    def create() -> None:
        with transaction(connection):
            connection.run("create_lock", tables={"table": table})
            connection.run(statement, tables={name: table})
            check_owner(connection, table)
            if body_string:
                connection.run("add_body_string", tables={"queue": table})

    try:
        create()
    except errors.StatementFailed:
        if not connection.columns(table):
            raise
        create()
