"""
Checks queues, the server, the state tables and the streams. Each finding proposes a fix.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` and the
maintenance job check everything. The checks only read. The rules for the server and the state
tables are in checks.sql of each dialect: each row of `check_server` and `check_state` is a finding.
The checks of one queue are in queue_checks.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.admin import queue_checks, queue_sizes, state_tables
from sqlq_spark.admin.formats import quantity
from sqlq_spark.admin.queue_checks import Finding
from sqlq_spark.database import find_same, transaction
from sqlq_spark.database.destinations import LOST, Destinations
from sqlq_spark.database.looks import SeqEnds
from sqlq_spark.database.migrations import STATE_VERSION, steps_from
from sqlq_spark.database.schema import (
    check_state,
    check_state_owners,
    find_version,
    state_parts,
    use_state,
)
from sqlq_spark.options.names import parse_table
from sqlq_spark.receive.heartbeat import find_sharers
from sqlq_spark.send.subscriptions import list_subscriptions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

# A transaction that is open for longer than this is a finding.
OLD_TRANSACTION = 600.0  # seconds
# A stream that holds receipts and was not seen for this time is a finding.
UNSEEN = 86_400.0  # seconds
# Names of findings. If a state schema has one of them, the checks read nothing more of it.
UNUSABLE = {"state", "state_owner", "state_right", "state_table"}
# What to do about state tables that cannot be used. {0} is their schema.
STATE_FIXES: dict[type[errors.DatabaseFailure], str] = {
    errors.StateNotInstalled: "sqlqueue install --state-schema {0}",
    errors.StateTooOld: (
        "stop the queries, see that receipt and staging are empty, and drop the schema"
    ),
    # The package is installed from a clone, and not from the public index, where somebody else may
    # have a package of this name.
    errors.StateTooNew: "in the folder of the clone: git pull && pip install '.[spark]'",
}


def run_all_checks(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    warn_if_shared: bool = True,
    unnamed: Collection[QueueAddress] = (),
    states: Collection[str] | None = None,
) -> list[Finding]:
    """
    Check queues, the server, the state tables and the streams. No transaction may be open.

    Args:
        connection: the session.
        queues: the queues to check.
        warn_if_shared: whether to warn if an endpoint seems to own a queue that a stream reads.
        unnamed: those of `queues` that the user did not name. They are read only if that is safe.
        states: the state schemas to check; by default the connection's.
    """
    if states is None:
        states = [connection.state]
    findings, read_by_streams = of_states(connection, states)
    findings += of_server(connection)
    locks = queue_checks.blockers(connection)
    for queue in queues:
        name = connection.printed(queue)
        locked = locks.get(name, [])
        findings += locked
        if "locked" not in {finding.name for finding in locked}:
            findings += of_any_queue(
                connection,
                queue,
                is_named=queue not in unnamed,
                is_shared=warn_if_shared and name in read_by_streams,
            )
    return findings


def of_any_queue(
    connection: Connection, queue: QueueAddress, *, is_named: bool = True, is_shared: bool = False
) -> list[Finding]:
    """
    Check a queue that may be missing, locked or not permitted. No transaction may be open.

    A queue that must not be used is not read. If the user did not name the queue, this login may
    not need it. Then a missing right is only a note, and the wait for a lock is short.

    Args:
        connection: the session.
        queue: the queue.
        is_named: whether the user named the queue.
        is_shared: whether a stream reads the queue. If so, look for an endpoint that owns it too.
    """
    printed = connection.printed(queue)
    try:
        with transaction(connection):
            if not is_named:
                connection.set_lock_timeout(queue_sizes.UNNAMED_LOCK_WAIT)
            findings = queue_checks.of_queue(connection, queue)
            (ends,) = connection.rows("top", SeqEnds, tables={"queue": queue})
            findings += queue_checks.of_head(connection, queue, ends.first, ends.last)[1]
            findings += queue_checks.of_owner(connection, queue) if is_shared else []
            findings += queue_checks.of_trust(connection, queue)
            findings += queue_checks.of_delayed(connection, queue)
    except errors.DatabaseFailure as error:
        if isinstance(error, LOST):
            raise
        findings = [queue_checks.unreadable(printed, error)]
        if isinstance(error, errors.RightMissing | errors.NotAQueue | errors.TableRefused):
            # The error names only the first thing that is missing. The catalogue shows all.
            with transaction(connection):
                shown = queue_checks.of_table(connection, queue)
                shown += queue_checks.of_delayed(connection, queue)
            if isinstance(error, errors.TableRefused):
                findings += shown
            else:
                findings = shown or findings
    if is_named:
        return findings
    return [
        replace(finding, severity="note") if finding.name.endswith("_right") else finding
        for finding in findings
    ]


# ---------------------------------------------------------------- a starting stream


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Check a starting stream's queues: log each problem, or raise it if the stream must not run.

    Raises:
        BadOption: two names in the options name the same queue.
        QueueNotFound, TableRefused: the error queue cannot be used, so poison could not be
            diverted.
        NotAQueue: a queue is not a plain table, or a column has another type than the transport's.
            The receipts of other tables would not be safe.
        MoveRefused: a trigger, a foreign key or a check of the queue's table keeps due messages
            out.
    """
    check_spellings(connection, options)
    findings = of_server(connection)
    with transaction(connection):
        for queue in options.addresses:
            if options.error_address is not None:
                Destinations(connection).check([options.error_address])
            findings += queue_checks.of_queue(connection, queue, peek_delay=options.peek_delay)
            if options.delayed_delivery:
                findings += queue_checks.of_delayed(connection, queue)
            if options.warn_if_shared:
                findings += queue_checks.of_owner(connection, queue)
    for finding in findings:
        if finding.name in queue_checks.MOVED_INTO and finding.severity == "error":
            raise errors.MoveRefused(queue=finding.where, reason=finding.found, fix=finding.fix)
        if finding.name in {"table_kind", "delayed_type"}:
            columns = connection.names.queue_columns
            raise errors.NotAQueue(queue=finding.where, reason=finding.found, columns=columns)
        if finding.is_problem:
            fix = " ".join(finding.fix_lines)
            log.warning("%s: %s. Fix: %s", finding.where, finding.found, fix)


def check_spellings(connection: Connection, options: SourceOptions) -> None:
    """
    Refuse options that name one queue twice. Only the server can compare spellings of a queue.

    The error queue must also not be one of the queues that are read: a poison message in it would
    be received again and again.
    """
    named = [*options.addresses, *filter(None, [options.error_address])]
    seen: dict[object, QueueAddress] = {}
    for queue, identity in zip(named, connection.identities(named), strict=True):
        first = seen.setdefault(identity, queue)
        if first is not queue:
            option = "errorQueue" if queue is options.error_address else "queues"
            expected = f"another queue than {connection.printed(first)}, which is the same table"
            raise errors.BadOption(
                option=option, found=connection.printed(queue), expected=expected
            )


# ---------------------------------------------------------------- the server


def of_server(connection: Connection, *, older: float = OLD_TRANSACTION) -> list[Finding]:
    """
    Check the server, and find transactions that are open for more than `older` seconds.

    No transaction of this connection may be open. If this login may not see the sessions of others,
    the finding is a note. In the small tiers of Azure, no right on a database allows a login to see
    them.
    """
    notes: list[Finding] = []
    limit = float(connection.timeout)
    try:
        with transaction(connection):
            findings = connection.rows("check_server", Finding, seconds=older, query_timeout=limit)
    except errors.RightMissing as error:
        notes = [note_of_right(connection, "sessions_right", error)]
        with transaction(connection):
            findings = connection.rows("check_server", Finding, seconds=None, query_timeout=limit)
    return [replace(finding, where=connection.server) for finding in [*findings, *notes]]


def note_of_right(connection: Connection, name: str, error: errors.RightMissing) -> Finding:
    """Return a note about something that this login may not see."""
    return Finding(
        where=connection.server, name=name, severity="note", found=str(error), fix=error.fix
    )


# ---------------------------------------------------------------- state tables and streams


def of_states(
    connection: Connection, states: Collection[str]
) -> tuple[list[Finding], dict[str, str]]:
    """
    Check state schemas and their streams. Only logins that receive may see the streams.

    Returns:
        The findings, and a dict: the name of each queue that streams read → the state schema of one
        of these streams.
    """
    found: list[Finding] = []
    names: dict[str, str] = {}
    for state in states:
        with use_state(connection, state):
            of_this_state = of_state(connection)
            found += of_this_state
            if not UNUSABLE.isdisjoint(finding.name for finding in of_this_state):
                continue
            try:
                with transaction(connection):
                    streams = state_tables.list_streams(connection)
                    found += of_streams(connection)
                    found += of_shared_queues(connection)
                names |= {name: state for each in streams for name in each.queues}
            except errors.RightMissing as error:
                found.append(note_of_right(connection, "streams_right", error))
    return found, names


def of_state(connection: Connection) -> list[Finding]:
    """Check the state tables: version, parts, indexes, settings. No transaction may be open."""
    found = missing_parts(connection)
    try:
        check_state(connection)
    except errors.StateOfOther as error:
        fix = "do what is said there, or leave the schema out"
        return [error_of_state(connection, "state_owner", error, fix)]
    except errors.RightMissing as error:
        found = [error_of_state(connection, "state_right", error, error.fix)]
    except tuple(STATE_FIXES) as error:
        fix = STATE_FIXES[type(error)].format(quote(connection.state))
        if isinstance(error, errors.StateTooOld) and steps_from(error.found):
            fix = f"sqlqueue install --state-schema {quote(connection.state)}"
        if isinstance(error, errors.StateNotInstalled):
            if any(each.severity == "error" for each in found):
                return found
            if "version" in connection.values("state_parts"):
                fix = state_parts(connection)["version"].splitlines()[-1]
        found = [error_of_state(connection, "state", error, fix)]
    settings = connection.rows("check_state", Finding, state_name=connection.state)
    return [*found, *(replace(finding, where=connection.server) for finding in settings)]


def describe_version(connection: Connection, state: str) -> str:
    """Say which version the state tables of a schema have, and what an install would do."""
    try:
        with use_state(connection, state):
            check_state_owners(connection)
            version = find_version(connection)
    except errors.DatabaseFailure:
        return f"state schema {state}: its version cannot be read"
    if version is None:
        return f"state schema {state}: no state tables"
    if version == STATE_VERSION:
        return f"state schema {state}: version {version}, as this release"
    steps = " ".join(f"{step.describe()}." for step in steps_from(version))
    found = f"state schema {state}: version {version}, this release has {STATE_VERSION}. {steps}"
    return found.strip()


def error_of_state(
    connection: Connection, name: str, error: errors.DatabaseFailure, fix: str
) -> Finding:
    """Return why the state tables cannot be used."""
    return Finding(where=connection.server, name=name, severity="error", found=str(error), fix=fix)


def missing_parts(connection: Connection) -> list[Finding]:
    """
    Find state tables and indexes that are missing although others are there.

    `sqlqueue install` creates the tables only where there are none, so it does not repair this.
    """
    there = {*connection.values("state_parts")}
    parts = state_parts(connection) if there else {}
    lost = {name: text for name, text in parts.items() if name not in there}
    tables = {name: text for name, text in lost.items() if text.startswith("CREATE TABLE")}
    found = []
    for name, text in lost.items():
        if name in tables:
            missing = Finding(
                where=connection.server,
                name="state_table",
                severity="error",
                found=f"state table {connection.state}.{name} is missing, though others are there",
                fix=f"{text}\n-- then run the script of `sqlqueue script` again, for the rights",
            )
            found.append(missing)
        elif not any(text in table for table in tables.values()):
            missing = Finding(
                where=connection.server,
                name="state_index",
                severity="warning",
                found=f"index {name} of the state tables is missing: a query reads whole tables",
                fix=text,
            )
            found.append(missing)
    return found


def of_streams(connection: Connection) -> list[Finding]:
    """
    Find streams that hold receipts and were not seen for UNSEEN seconds.

    The checkpoint of such a stream may be lost, or its query runs only once a week. Here these two
    cases look the same. It is not known either whether the query's sink already has the messages of
    the receipts. Only the query itself can find out.
    """
    found = []
    for stream in state_tables.unseen_streams(connection, UNSEEN):
        problem = (
            f"stream {stream.stream} was last seen {stream.seen:%Y-%m-%d %H:%M} and holds "
            f"{quantity(stream.held, 'message')} in {quantity(stream.receipts, 'receipt')}"
        )
        words = f"--stream {quote(stream.stream)} --state-schema {quote(connection.state)}"
        fix = (
            "start the query once with its checkpoint: it finishes the batch\n"
            "only if the checkpoint is lost, find out whether the sink has these messages\n"
            f"if it has none of them: sqlqueue receipts return {words}\n"
            f"if it has all of them: sqlqueue receipts drop {words}"
        )
        unseen = Finding(
            where=stream.queue, name="unseen_stream", severity="warning", found=problem, fix=fix
        )
        found.append(unseen)
    return found


def of_shared_queues(connection: Connection) -> list[Finding]:
    """Find queues from which several live streams receive, unless all of them allow it."""
    sharers = find_sharers(state_tables.list_heartbeats(connection))
    return [
        Finding(
            where=queue,
            name="several_streams",
            severity="warning",
            found=f"{len(streams)} streams receive from it, and each message goes to only one of "
            f"them: {'; '.join(each.describe() for each in streams)}",
            fix="stop all but one, or set sharedByStreams=true on each of them",
        )
        for queue, streams in sharers.items()
    ]


def queues_of_streams(
    connection: Connection, states: Collection[str]
) -> tuple[list[QueueAddress], list[Finding]]:
    """
    Return the queues that streams read, and a finding for each name that is no address.

    Any login that may write a stream's row can write such a name.
    """
    queues, found = [], []
    _, names = of_states(connection, states)
    for name in sorted(names):
        try:
            queues.append(parse_table("QUEUE", name, connection.names))
        except errors.BadOption as error:
            problem = f"a row of {names[name]}.stream names this queue, expected {error.expected}"
            fix = "find out which login wrote the row, and delete the row"
            bad = Finding(
                where=error.found, name="no_address", severity="warning", found=problem, fix=fix
            )
            found.append(bad)
    return queues, found


# ---------------------------------------------------------------- subscriptions


def subscriptions_of(
    connection: Connection, table: QueueAddress, queue: QueueAddress
) -> list[Subscription]:
    """Return a queue's subscriptions, in any spelling of its address, in the open transaction."""
    if not connection.columns(table):
        return []
    found = list_subscriptions(connection, table)
    same = find_same(connection, queue, {each.address for each in found})
    return [each for each in found if each.address in same]


def of_subscriptions(connection: Connection, table: QueueAddress) -> list[Finding]:
    """
    Find subscribers whose queue is gone. If there is one, publishers of NServiceBus fail.

    The table may be absent, or this login may not be allowed to read it. No transaction may be
    open.
    """
    where = connection.printed(table)
    try:
        with transaction(connection):
            topics = topics_by_subscriber(connection, table)
            addresses = dict.fromkeys(address for _, address in topics)
            reasons = find_lost_queues(connection, addresses)
    except errors.RightMissing as error:
        note = note_of_right(connection, "subscribers_right", error)
        return [replace(note, where=where)]
    except (errors.TableRefused, errors.TooManySubscriptions) as error:
        is_full = isinstance(error, errors.TooManySubscriptions)
        problem = Finding(
            where=where,
            name="subscribers_many" if is_full else "subscribers_refused",
            severity="error" if is_full else "warning",
            found=str(error),
            fix="do what is said there" if is_full else "drop it, or do what is said there",
        )
        return [problem]
    return [
        lost_subscriber(where, endpoint, address, subscribed, reasons[address])
        for (endpoint, address), subscribed in topics.items()
        if address in reasons
    ]


def topics_by_subscriber(
    connection: Connection, table: QueueAddress
) -> dict[tuple[str, str], list[str]]:
    """Return topics by endpoint and queue's address; {} if the subscription table is missing."""
    topics: dict[tuple[str, str], list[str]] = {}
    if connection.columns(table):
        for subscription in list_subscriptions(connection, table):
            subscriber = subscription.endpoint, subscription.address
            topics.setdefault(subscriber, []).append(subscription.topic)
    return topics


def find_lost_queues(
    connection: Connection, addresses: Collection[str]
) -> dict[str, errors.SqlQueueError]:
    """Return the addresses that name no queue, each with the reason."""
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, errors.SqlQueueError] = {}
    for address in addresses:
        try:
            parsed[address] = connection.names.parse_address(address)
        except errors.BadAddress as error:
            reasons[address] = error
    refused = Destinations(connection).find_refused(parsed.values())
    for address, queue in parsed.items():
        reason = refused.get(queue)
        if isinstance(reason, errors.QueueNotFound | errors.NotAQueue):
            reasons[address] = reason
    return reasons


def lost_subscriber(
    table: str, endpoint: str, address: str, topics: Sequence[str], reason: errors.SqlQueueError
) -> Finding:
    """Return the finding for a subscriber whose queue is gone. All texts are untrusted."""
    found = (
        f"endpoint {endpoint} is subscribed to {', '.join(topics)} with the queue {address}, "
        f"and every publisher of this fails: {reason}"
    )
    words = ["--endpoint", endpoint, "--subscription-table", table, "--", *topics]
    fix = f"sqlqueue unsubscribe {' '.join(map(quote, words))}"
    return Finding(where=table, name="subscriber", severity="error", found=found, fix=fix)
