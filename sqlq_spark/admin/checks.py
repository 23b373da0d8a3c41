"""
All checks: of queues, the server, the state tables and the streams. Each proposes its fix.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` and the
maintenance job check everything. All reads only. The rules for the server and the state tables are
in each dialect's checks.sql: each row of `check_server` and `check_state` is a finding.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect, queue_tables
from sqlq_spark.admin.formats import quantity
from sqlq_spark.admin.problems import (
    MOVED_INTO,
    Finding,
    finding,
    no_address,
    of_delayed,
    of_error,
    of_head,
    of_owner,
    of_queue,
    of_table,
    warning,
)
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import check_state, state_parts, use_state
from sqlq_spark.database.trust import Destinations
from sqlq_spark.errors import (
    BadOption,
    ConnectionLost,
    DatabaseFailure,
    MoveRefused,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    StateNotInstalled,
    StateTooNew,
    StateTooOld,
    TimedOut,
)
from sqlq_spark.options.names import parse_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

OLD_TRANSACTION = 600.0  # seconds
UNSEEN = 86_400.0  # seconds without a sign of a stream that holds receipts


def run_all_checks(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    timeout: float,
    warn_if_shared: bool = True,
    unnamed: Collection[QueueAddress] = (),
    states: Collection[str] | None = None,
) -> list[Finding]:
    """
    Check queues, the server, the state tables and the streams.

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
    if not warn_if_shared:
        return found
    names = names_of_streams(connection, states, timeout=timeout)
    for each in queues:
        safe = each not in unnamed or queue_tables.danger(connection, each) is None
        if safe and connection.printed(each) in names:
            found += of_any_owner(connection, each, timeout=timeout)
    return found


# ---------------------------------------------------------------- a starting stream


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Log the problems of the queues of a starting stream; no transaction is open.

    Raises:
        BadOption: two queues of the options are one.
        QueueNotFound, DestinationRefused: the error queue would take no poison message.
        NotAQueue: it is not a plain table, so that rows could exist outside of receipts.
        MoveRefused: delayed messages that are due could not be moved into it.
    """
    check_spellings(connection, options)
    check_error_queue(connection, options)
    found = of_any_server(connection, timeout=options.query_timeout)
    with transaction(connection, timeout=options.query_timeout):
        for each in options.addresses:
            found += of_queue(connection, each, peek_delay=options.peek_delay)
            found += of_delayed(connection, each) if options.delayed_delivery else []
            found += of_owner(connection, each) if options.warn_if_shared else []
    for one in found:
        if one.name in MOVED_INTO and one.severity == "error":
            raise MoveRefused(queue=one.where, reason=one.found, fix=one.fix)
        if one.name == "table_kind":
            raise NotAQueue(queue=one.where, reason=one.found)
        if one.is_problem:
            log.warning("%s: %s. Fix: %s", one.where, one.found, one.fix)


def check_error_queue(connection: Connection, options: SourceOptions) -> None:
    """
    Make sure that each queue's poison messages can go to the error queue; no transaction is open.

    Raises:
        QueueNotFound, NotAQueue, DestinationRefused.
    """
    if options.error_address is None:
        return
    with transaction(connection, timeout=options.query_timeout):
        for queue in options.addresses:
            known = Destinations(connection, options.allowed, source=queue)
            known.check([options.error_address])


def check_spellings(connection: Connection, options: SourceOptions) -> None:
    """
    Refuse two spellings of one queue in the options, which only the server can compare.

    A poison message in an error queue that is also read would circulate.

    Raises:
        BadOption.
    """
    errors = () if options.error_address is None else (options.error_address,)
    named = [*options.addresses, *errors]
    seen: dict[object, QueueAddress] = {}
    for queue, identity in zip(named, connection.identities(named), strict=True):
        first = seen.setdefault(identity, queue)
        if first is not queue:
            option = "errorQueue" if queue is options.error_address else "queues"
            expected = f"another queue than {connection.printed(first)}, which is the same table"
            raise BadOption(option=option, found=connection.printed(queue), expected=expected)


# ---------------------------------------------------------------- queues; no transaction is open


def of_any_queue(connection: Connection, queue: QueueAddress, *, timeout: float) -> list[Finding]:
    """Check a queue that may be missing, locked or not permitted."""
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
    Check a queue that nobody named.

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


def of_any_owner(connection: Connection, queue: QueueAddress, *, timeout: float) -> list[Finding]:
    """Look for the owner of a queue that a stream reads; other checks report one not readable."""
    with (
        suppress(NotAQueue, QueueNotFound, RightMissing, TimedOut),
        transaction(connection, timeout=timeout),
    ):
        return of_owner(connection, queue)
    return []


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


# ---------------------------------------------------------------- the server


def of_server(connection: Connection, *, older: float | None = OLD_TRANSACTION) -> list[Finding]:
    """Check the server and its transactions of more than `older` seconds; None: of no age."""
    rows = connection.rows("check_server", seconds=older)
    return [finding(connection.server, row) for row in rows]


def of_any_server(connection: Connection, *, timeout: float) -> list[Finding]:
    """
    Check the server, in a transaction of its own; no transaction is open.

    A login that may not see the sessions gets a note: in Azure's small tiers a right of the
    database is not enough for that.
    """
    try:
        with transaction(connection, timeout=timeout):
            return of_server(connection)
    except RightMissing as error:
        note = of_error(connection.server, "sessions_right", error, error.fix, "note")
    with transaction(connection, timeout=timeout):
        return [*of_server(connection, older=None), note]


# ---------------------------------------------------------------- state tables and streams


def of_state(connection: Connection) -> list[Finding]:
    """Check the state tables' version, and that all are there; no transaction may be open."""
    missing = [each for each in missing_parts(connection) if each.severity == "error"]
    name = "state"
    try:
        check_state(connection)
    except (StateNotInstalled, StateTooOld, StateTooNew, RightMissing) as error:
        match error:
            case StateNotInstalled():
                if missing:
                    return missing
                fix = f"sqlqueue install --state-schema {quote(connection.state)}"
                if ("version",) in connection.rows("state_parts"):
                    fix = state_parts(connection)["version"].splitlines()[-1]
            case StateTooOld():
                fix = (
                    "stop the queries, see that receipt and staging are empty, and drop the schema"
                )
            case StateTooNew():
                # the name of the package on the public index may be another's
                fix = "in the folder of the clone: git pull && pip install '.[spark]'"
            case _:
                name, fix = "state_right", error.fix
        return [of_error(connection.server, name, error, fix)]
    return missing


def of_state_tables(connection: Connection) -> list[Finding]:
    """Check indexes and settings of the state tables in the catalogue, which anyone may read."""
    rows = connection.rows("check_state", state_name=connection.state)
    missing = [each for each in missing_parts(connection) if each.severity != "error"]
    return [*missing, *(finding(connection.server, row) for row in rows)]


def missing_parts(connection: Connection) -> list[Finding]:
    """Find state tables and indexes that are missing beside others. No install creates these."""
    there = {name for (name,) in connection.rows("state_parts")}
    parts = state_parts(connection) if there else {}
    tables = {name: text for name, text in parts.items() if text.startswith("CREATE TABLE")}
    lost = {name: text for name, text in tables.items() if name not in there}
    found = [
        Finding(
            where=connection.server,
            name="state_table",
            severity="error",
            found=f"state table {connection.state}.{name} is missing, though others are there",
            fix=f"{text}\n-- then run the script of `sqlqueue script` again, for the rights",
        )
        for name, text in lost.items()
    ]
    return found + [
        warning(
            connection.server,
            "state_index",
            f"index {name} of the state tables is missing: a query reads whole tables",
            text,
        )
        for name, text in parts.items()
        if name not in {*tables, *there} and not any(text in table for table in lost.values())
    ]


def of_any_streams(connection: Connection, *, timeout: float) -> list[Finding]:
    """Check streams, which only logins that receive may see; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            return of_streams(connection)
    except RightMissing as error:
        return [of_error(connection.server, "streams_right", error, error.fix, "note")]


def of_streams(connection: Connection) -> list[Finding]:
    """Find streams that hold receipts and gave no sign for UNSEEN seconds."""
    return [
        warning(
            each.queue,
            "unseen_stream",
            f"stream {each.stream} was last seen {each.seen:%Y-%m-%d %H:%M} and holds "
            f"{quantity(each.held, 'message')} in {quantity(each.receipts, 'receipt')}",
            fix_unseen(each.stream, connection.state),
        )
        for each in inspect.unseen_streams(connection, UNSEEN)
    ]


def fix_unseen(stream: str, state: str) -> str:
    """
    Say what to do with the receipts of a stream that was not seen for long.

    A query that runs once a week looks like one whose checkpoint is lost. Its sink may hold the
    messages already: only the query itself can find that out.
    """
    words = f"--stream {quote(stream)} --state-schema {quote(state)}"
    return (
        "start the query once with its checkpoint: it finishes the batch\n"
        "only if the checkpoint is lost, find out whether the sink has these messages\n"
        f"if it has none of them: sqlqueue receipts return {words}\n"
        f"if it has all of them: sqlqueue receipts drop {words}"
    )


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


def queues_of_streams(
    connection: Connection, states: Collection[str], options: DatabaseOptions
) -> tuple[list[QueueAddress], list[Finding]]:
    """Return the queues that streams read, and a finding for each that is no address."""
    queues, unfit = [], []
    names = names_of_streams(connection, states, timeout=options.query_timeout)
    for name in sorted(names):
        try:
            queues.append(parse_table("QUEUE", name, options.naming))
        except BadOption as error:
            unfit.append(no_address(error, names[name]))
    return queues, unfit
