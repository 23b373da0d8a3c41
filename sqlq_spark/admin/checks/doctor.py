"""All checks, for `sqlqueue doctor` and the maintenance job."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect, owner, queue_tables, subscribers
from sqlq_spark.admin.checks.queue import of_delayed, of_owner, of_queue, of_table
from sqlq_spark.admin.checks.server import (
    of_any_server,
    of_any_streams,
    of_state,
    of_state_tables,
)
from sqlq_spark.admin.checks.sight import of_head
from sqlq_spark.admin.finding import of_error
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import use_state
from sqlq_spark.errors import (
    ConnectionLost,
    DatabaseFailure,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    TimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlq_spark.admin.finding import Finding
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def everything(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    timeout: float,
    warn_if_shared: bool = True,
    unnamed: Collection[QueueAddress] = (),
    states: Collection[str] | None = None,
) -> list[Finding]:
    """
    Check queues, the server, the state tables and the streams; no transaction is open.

    Args:
        connection: no transaction open.
        queues: the queues.
        timeout: seconds for each statement and wait.
        warn_if_shared: whether to look for the owners of queues that streams read.
        unnamed: those of the queues that nobody named; they are read only if that is safe.
        states: the state schemas to check; None: that of the connection.
    """
    states = [connection.state] if states is None else states
    found = []
    for state in states:
        with use_state(connection, state):
            unusable = of_state(connection)
            found += unusable or [
                *of_any_streams(connection, timeout=timeout),
                *of_state_tables(connection),
            ]
    found += of_any_server(connection, timeout=timeout)
    locks = queue_tables.blockers(connection)
    for each in queues:
        own = [one for one in locks if one.where == connection.printed(each)]
        found += own
        if any(one.name == "locked" for one in own):
            continue
        if each in unnamed:
            found += of_unnamed_queue(connection, each, timeout=timeout)
        else:
            found += of_any_queue(connection, each, timeout=timeout)
    queues = [each for each in queues if each not in unnamed or is_safe(connection, each)]
    if not warn_if_shared:
        return found
    names = names_of_streams(connection, states, timeout=timeout)
    return found + of_owners(connection, queues, names, timeout=timeout)


def names_of_streams(
    connection: Connection, states: Collection[str], *, timeout: float
) -> dict[str, str]:
    """Return the queues that streams read, and a state schema of each; no transaction is open."""
    names: dict[str, str] = {}
    for state in states:
        with use_state(connection, state):
            if of_state(connection):
                continue
            with suppress(RightMissing), transaction(connection, timeout=timeout):
                found = inspect.streams(connection)
                names |= {name: state for each in found for name in each.queues}
    return names


def of_owners(
    connection: Connection,
    queues: Sequence[QueueAddress],
    names: Collection[str],
    *,
    timeout: float,
) -> list[Finding]:
    """Look for the owners of the queues that streams read, by `names`; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            read = [each for each in queues if connection.printed(each) in names]
            found = [one for each in read for one in of_owner(connection, each)]
            tables = {
                connection.printed(table): table
                for each in read
                for table in owner.subscription_tables(connection, each)
            }
            return found + subscribers.of_refused(connection, tables.values())
    except RightMissing:
        return []  # reported by the other checks


def of_any_queue(connection: Connection, queue: QueueAddress, *, timeout: float) -> list[Finding]:
    """Check a queue that may be missing, locked or not permitted; no transaction is open."""
    printed = connection.printed(queue)
    try:
        with transaction(connection, timeout=timeout):
            found = of_queue(connection, queue)
            found += of_head(connection, queue)
            return found + of_delayed(connection, queue)
    except (QueueNotFound, TimedOut) as error:
        return [unreadable(printed, error)]
    except (RightMissing, NotAQueue) as error:
        # the catalogue shows everything that is missing, the error only the first
        with transaction(connection, timeout=timeout):
            found = of_table(connection, queue)
            found += of_delayed(connection, queue) if found else []
        return found or [unreadable(printed, error)]


def of_unnamed_queue(
    connection: Connection, queue: QueueAddress, *, timeout: float
) -> list[Finding]:
    """
    Check a queue that nobody named; no transaction is open.

    Its messages are read only if that runs no code of its owner. That a login lacks rights on it is
    only a note, because it may have nothing to do with it. Others that lock it are not waited for.
    """
    printed = connection.printed(queue)
    try:
        with transaction(connection, timeout=timeout):
            connection.set_lock_timeout(queue_tables.LOCK_WAIT)
            danger = queue_tables.danger(connection, queue)
            if danger is None:
                found = [*of_queue(connection, queue), *of_head(connection, queue)]
            else:
                found = [*of_table(connection, queue), queue_tables.refusal(printed, danger)]
            found += of_delayed(connection, queue)
    except ConnectionLost:
        raise
    except DatabaseFailure as error:
        return [not_waited(printed, error)]
    return [
        replace(each, severity="note") if each.name.endswith("_right") else each for each in found
    ]


def is_safe(connection: Connection, queue: QueueAddress) -> bool:
    """Whether a queue can be read without running code of its owner."""
    return queue_tables.danger(connection, queue) is None


def not_waited(where: str, error: DatabaseFailure) -> Finding:
    """As `unreadable`, for a queue that nobody named, which is not waited for as long."""
    if isinstance(error, TimedOut):
        fix = "name the queue in the command to wait for it"
        return replace(unreadable(where, error), found=f"it is not read: {error.reason}", fix=fix)
    return unreadable(where, error)


def unreadable(where: str, error: DatabaseFailure) -> Finding:
    """Make a finding of the reason why a queue cannot be read."""
    match error:
        case QueueNotFound():
            return of_error(where, "absent", error, f"sqlqueue create {quote(where)}")
        case TimedOut():
            fix = "end the session that locks it, or raise --query-timeout"
            return of_error(where, "locked", error, fix)
    facts = vars(error)
    return of_error(where, "unreadable", error, facts.get("fix") or facts.get("reason", ""))
