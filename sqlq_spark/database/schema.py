"""
Create and upgrade the state tables, record operators' actions, and create queues.

Queues are created as the transport creates them. Each function can run again without harm, and two
installers can call it at the same time. `sqlqueue script` prints the same statements for a DBA,
without connecting to a database.

The actions that are recorded in the table `trail` are purge, return, drop and retire. An entry says
who acted, on which queue, and on how many messages. It is written in the transaction of the action.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sqlq_spark import errors
from sqlq_spark.database import StateSchema, dialect_named, transaction
from sqlq_spark.database.blockers import Blocker
from sqlq_spark.database.migrations import STATE_VERSION, Step, steps_back_to, steps_from
from sqlq_spark.database.trust import INSERT, Fault, advise, look_at_tables
from sqlq_spark.wire.address import QueueAddress, delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.database.statements import StatementName

# seconds that an install waits for a lock; `script_begin` contains the same number
LOCK_WAIT = 3.0
RUN_INSTALL = (
    "Run `sqlqueue install`, or the script of `sqlqueue script`: it keeps what is in flight. "
    "Streams and writes of the older release end at their next statement"
)
DROP_AND_INSTALL = (
    "Stop the queries that use them, and see that the tables receipt and staging are empty. Then "
    "drop the schema and run `sqlqueue install`, or the script of `sqlqueue script`. If receipt or "
    "staging is not empty, its messages would be lost"
)
NO_TRAIL = (
    "no entry in the audit trail: schema {0} of {1} has no table `trail` that this login may use, "
    "or has an owner who is not trusted. "
    "`sqlqueue install` creates it"
)


@dataclass(frozen=True, slots=True)
class Installed:
    """What an install did."""

    before: int | None  # the version of the state tables before; None if there were no tables
    after: int  # the version of the state tables now


def install(connection: Connection) -> Installed:
    """
    Create the connection's state tables. If there are tables of an earlier version, update them.

    Tables of this release's version are neither changed nor locked. All steps are one transaction.

    Raises:
        RightMissing: the login may not create schemas or tables, or does not own the tables.
        StateOfOther: an untrusted login owns the existing tables, and could run code as this login.
        StateTooOld, StateTooNew: no step leads from the tables to this release.
        InstallBlocked: other sessions are using or creating the tables.
    """
    with change_state(connection):
        connection.run("install_schema")
        check_state_owners(connection)
        before = find_version(connection)
        if before is None:
            connection.run("install_state")
        else:
            for step in steps_from(before):
                connection.run(step.forward)
        check_state(connection)
    return Installed(before, STATE_VERSION)


def step_back(connection: Connection, version: int) -> Installed:
    """
    Turn the state tables back into an earlier version, for an older release.

    Raises:
        StateNotInstalled, StateTooOld, StateTooNew: there are no tables of this release's version.
        StatementFailed: a row has a value that the older version does not know. Nothing was
            changed.
        StateOfOther, RightMissing, InstallBlocked: as in `install`.
    """
    with change_state(connection):
        check_state(connection)
        for step in steps_back_to(version):
            connection.run(step.back)
    return Installed(STATE_VERSION, version)


@contextmanager
def change_state(connection: Connection) -> Iterator[None]:
    """Change the state tables in one transaction. It waits up to LOCK_WAIT seconds for a lock."""
    wait = min(LOCK_WAIT, connection.timeout)
    try:
        with transaction(connection):
            connection.run("install_lock", state_name=connection.state)
            connection.set_lock_timeout(wait)
            yield
    except errors.TimedOut as error:
        raise errors.InstallBlocked(
            schema=connection.state,
            server=connection.server,
            seconds=wait,
            reason=error.reason,
            sessions=name_sessions(connection),
        ) from None


def find_version(connection: Connection) -> int | None:
    """Return the version of the state tables. Return None if this login sees no state tables."""
    if not connection.columns(QueueAddress("version", connection.state)):
        return None
    version: int | None = connection.value("version")
    return version


def pending_steps(connection: Connection) -> tuple[Step, ...]:
    """Return the steps that `install` would run. Raises StateOfOther."""
    check_state_owners(connection)
    version = find_version(connection)
    return () if version is None else steps_from(version)


def name_sessions(connection: Connection) -> str:
    """Return names of the sessions that hold state tables, as far as this login sees them."""
    try:
        with transaction(connection):
            blockers = connection.rows("blockers", Blocker, seconds=0.0)
    except errors.RightMissing:
        blockers = []
    sessions = dict.fromkeys(
        f"{blocker.table_name}: {blocker.found}"
        for blocker in blockers
        if blocker.schema_name == connection.state
    )
    return "; ".join(sessions) or "This login sees no session that uses them"


def check_state(connection: Connection) -> None:
    """
    Check that the state tables may be used, and that they have the version of this release.

    The owners of the tables are checked before any row of the tables is read.

    Raises:
        StateOfOther, StateNotInstalled, StateTooOld, StateTooNew.
    """
    check_state_owners(connection)
    version = connection.value("version")
    if version is None:
        raise errors.StateNotInstalled(schema=connection.state, server=connection.server)
    if version != STATE_VERSION:
        raise other_version(connection.state, version)


def other_version(state: str, found: int) -> errors.StateTooOld | errors.StateTooNew:
    """Return the error for state tables of a version that this release cannot use."""
    if found > STATE_VERSION:
        return errors.StateTooNew(schema=state, found=found, known=STATE_VERSION)
    fix = RUN_INSTALL if steps_from(found) else DROP_AND_INSTALL
    return errors.StateTooOld(schema=state, found=found, known=STATE_VERSION, fix=fix)


def check_state_owners(connection: Connection) -> None:
    """
    Raise StateOfOther if the owner of the state schema, or of a table in it, is not trusted.

    Only the catalogue is read, because such an owner could run code when a table is read.
    """
    trusted = connection.trusted.values(connection.names)
    faults = connection.rows("state_faults", Fault, tables=None, **trusted)
    if faults:
        found = "; ".join(str(fault.fault) for fault in faults)
        advice, value = advise(connection, faults)
        raise errors.StateOfOther(
            schema=connection.state,
            server=connection.server,
            found=found,
            advice=advice,
            value=value,
        )


def state_parts(connection: Connection) -> dict[str, str]:
    """Return, for the name of each state table or index, the statements that create it."""
    dialect = dialect_named(connection.names.dialect)
    text = re.sub("^    ", "", dialect.STATEMENTS["install_state"], flags=re.MULTILINE)
    parts: dict[str, str] = {}
    for statement in re.findall("^(?:CREATE|ALTER|EXEC|INSERT) [^;]+;", text, flags=re.MULTILINE):
        tables = re.findall(r"\{\w+\}\.(\w+)", statement)
        indexes = re.findall(r"INDEX (\w+)", statement)
        parts |= dict.fromkeys(indexes, statement)
        parts |= {table: f"{parts.get(table, '')}{statement}\n" for table in tables}
    return {
        name: dialect.fill_names(part.strip(), connection.state, {}) for name, part in parts.items()
    }


def find_states(connection: Connection) -> tuple[list[str], dict[str, str]]:
    """Return the state schemas that this login may use, and why it may not use the others."""
    states = []
    unread = {}
    for known in connection.rows("state_schemas", StateSchema, schema_name=None):
        state = known.schema
        if not known.may_enter:
            roles = f" (roles {known.roles})" if known.roles else ""
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
    usual_state = connection.state
    connection.state = state
    try:
        yield
    finally:
        connection.state = usual_state


def has_trail(connection: Connection) -> bool:
    """
    Whether operators' actions are recorded.

    Actions are recorded if this login may use the state schema and the schema has the table
    `trail`. If the login may not insert into that table, `record_action` fails later.
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
    Write an entry into the trail, in the open transaction. `receipt` is (stream, batch, task).

    Raises:
        RightMissing: the login may not insert the entry. The transaction is undone, and so is the
            action.
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


def create_queue(connection: Connection, queue: QueueAddress, *, body_string: bool = False) -> bool:
    """
    Create a queue's table, if it is absent. If two sessions create it, one waits for the other.

    If `body_string`, the column BodyString is added, even if the table exists already.

    Returns:
        Whether the table was absent.
    """
    return _create(connection, "create_queue", queue, body_string=body_string)


def create_delayed(connection: Connection, queue: QueueAddress) -> bool:
    """Create the table for a queue's delayed messages; return whether it was absent."""
    return _create(connection, "create_delayed", delayed_of(queue))


def create_subscriptions(connection: Connection, table: QueueAddress) -> None:
    """Create the table of subscriptions, if it is absent."""
    _create(connection, "create_subscriptions", table)


def check_owner(connection: Connection, table: QueueAddress) -> None:
    """Raise TableRefused if a table existed before and its owner is not trusted."""
    for reason in look_at_tables(connection, [table], INSERT)[1].values():
        raise reason


def _create(
    connection: Connection,
    statement: StatementName,
    table: QueueAddress,
    *,
    body_string: bool = False,
) -> bool:
    """
    Create a table; return whether it was absent.

    Tries again if another installer has created it at the same time.

    Installers of this package wait for each other, by a lock. On PostgreSQL an endpoint's installer
    does not take that lock. If it is creating the same table, the database makes our statement
    wait, and then reports that the table exists. The second attempt finds the table.
    """
    name = statement.removeprefix("create_")  # the table's name in the statement's braces

    def create() -> bool:
        with transaction(connection):
            connection.run("create_lock", tables={"table": table})
            is_absent = not connection.columns(table)
            connection.run(statement, tables={name: table})
            check_owner(connection, table)
            if body_string:
                connection.run("add_body_string", tables={"queue": table})
        return is_absent

    try:
        return create()
    except errors.StatementFailed:
        if not connection.columns(table):
            raise
        return create()
