"""
All checks: of queues, the server, the state tables and the streams. Each proposes its fix.

A stream checks its queues once, when it starts, and logs the findings. `sqlqueue doctor` and the
maintenance job check everything. All reads only. The rules for the server and the state tables are
in each dialect's checks.sql: each row of `check_server` and `check_state` is a finding.
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
from sqlq_spark.database.schema import check_state, state_parts, use_state
from sqlq_spark.options.names import parse_table
from sqlq_spark.send.subscriptions import list_subscriptions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

OLD_TRANSACTION = 600.0  # seconds
UNSEEN = 86_400.0  # seconds without a sign of a stream that holds receipts
UNUSABLE = {
    "state",
    "state_owner",
    "state_right",
    "state_table",
}  # findings: nothing more is read there
# what to do about state tables that cannot be used; {0} is their schema
STATE_FIXES: dict[type[errors.DatabaseFailure], str] = {
    errors.StateNotInstalled: "sqlqueue install --state-schema {0}",
    errors.StateTooOld: (
        "stop the queries, see that receipt and staging are empty, and drop the schema"
    ),
    # the name of the package on the public index may be another's
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
    Check queues, the server, the state tables and the streams; no transaction is open.

    Of the queues those in `unnamed` are read only if that is safe. With `warn_if_shared` the owners
    of queues that streams read are looked for. `states` is by default the connection's schema.
    """
    found, shared = of_states(connection, [connection.state] if states is None else states)
    found += of_server(connection)
    locks = queue_checks.blockers(connection)
    for each in queues:
        name = connection.printed(each)
        found += (locked := locks.get(name, []))
        if "locked" not in {one.name for one in locked}:
            found += of_any_queue(
                connection,
                each,
                is_named=each not in unnamed,
                is_shared=warn_if_shared and name in shared,
            )
    return found


def of_any_queue(
    connection: Connection, queue: QueueAddress, *, is_named: bool = True, is_shared: bool = False
) -> list[Finding]:
    """
    Check a queue that may be missing, locked or not permitted; no transaction is open.

    One that must not be used is not read. If nobody named it, missing rights are only a note,
    because the login may have nothing to do with it, and others that lock it are not waited for
    for long. `is_shared` also looks for its owner, because a stream reads it.
    """
    printed = connection.printed(queue)
    try:
        with transaction(connection):
            if not is_named:
                connection.set_lock_timeout(queue_sizes.UNNAMED_LOCK_WAIT)
            found = queue_checks.of_queue(connection, queue)
            (ends,) = connection.rows("top", SeqEnds, tables={"queue": queue})
            found += queue_checks.of_head(connection, queue, ends.first, ends.last)[1]
            found += queue_checks.of_owner(connection, queue) if is_shared else []
            found += queue_checks.of_trust(connection, queue)
            found += queue_checks.of_delayed(connection, queue)
    except errors.DatabaseFailure as error:
        if isinstance(error, LOST):
            raise
        found = [queue_checks.unreadable(printed, error)]
        if isinstance(error, errors.RightMissing | errors.NotAQueue | errors.TableRefused):
            # the catalogue shows everything that is missing, the error only the first
            with transaction(connection):
                all_found = queue_checks.of_table(connection, queue)
                all_found += queue_checks.of_delayed(connection, queue)
            refused = isinstance(error, errors.TableRefused)
            found = [*found, *all_found] if refused else all_found or found
    if is_named:
        return found
    return [
        replace(each, severity="note") if each.name.endswith("_right") else each for each in found
    ]


# ---------------------------------------------------------------- a starting stream


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Log the problems of the queues of a starting stream; no transaction is open.

    Raises:
        BadOption: two queues of the options are one.
        QueueNotFound, TableRefused: the error queue would take no poison message.
        NotAQueue: it is not a plain table, so that rows could exist outside of receipts. Or a
            column has another type than the transport's.
        MoveRefused: delayed messages that are due could not be moved into it.
    """
    check_spellings(connection, options)
    found = of_server(connection)
    with transaction(connection):
        for each in options.addresses:
            if options.error_address is not None:
                Destinations(connection).check([options.error_address])
            found += queue_checks.of_queue(connection, each, peek_delay=options.peek_delay)
            found += queue_checks.of_delayed(connection, each) if options.delayed_delivery else []
            found += queue_checks.of_owner(connection, each) if options.warn_if_shared else []
    for one in found:
        if one.name in queue_checks.MOVED_INTO and one.severity == "error":
            raise errors.MoveRefused(queue=one.where, reason=one.found, fix=one.fix)
        if one.name in {"table_kind", "delayed_type"}:
            columns = connection.names.queue_columns
            raise errors.NotAQueue(queue=one.where, reason=one.found, columns=columns)
        if one.is_problem:
            log.warning("%s: %s. Fix: %s", one.where, one.found, " ".join(one.fix_lines))


def check_spellings(connection: Connection, options: SourceOptions) -> None:
    """
    Refuse two spellings of one queue in the options, which only the server can compare.

    A poison message in an error queue that is also read would circulate.
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
    Check the server and its transactions of more than `older` seconds; no transaction is open.

    A login that may not see the sessions gets a note: in Azure's small tiers a right of the
    database is not enough for that.
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
    """Return a note of what this login may not see."""
    return Finding(
        where=connection.server, name=name, severity="note", found=str(error), fix=error.fix
    )


# ---------------------------------------------------------------- state tables and streams


def of_states(
    connection: Connection, states: Collection[str]
) -> tuple[list[Finding], dict[str, str]]:
    """
    Check state schemas and their streams, which only logins that receive may see.

    Returns:
        What was found; and the queues that streams read, with a state schema of each.
    """
    found: list[Finding] = []
    names: dict[str, str] = {}
    for state in states:
        with use_state(connection, state):
            found += (its := of_state(connection))
            if not UNUSABLE.isdisjoint(each.name for each in its):
                continue
            try:
                with transaction(connection):
                    streams = state_tables.list_streams(connection)
                    found += of_streams(connection)
                names |= {name: state for each in streams for name in each.queues}
            except errors.RightMissing as error:
                found.append(note_of_right(connection, "streams_right", error))
    return found, names


def of_state(connection: Connection) -> list[Finding]:
    """Check the state tables: version, parts, indexes, settings; no transaction may be open."""
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
        if isinstance(error, errors.StateNotInstalled):
            if any(each.severity == "error" for each in found):
                return found
            if "version" in connection.values("state_parts"):
                fix = state_parts(connection)["version"].splitlines()[-1]
        found = [error_of_state(connection, "state", error, fix)]
    settings = connection.rows("check_state", Finding, state_name=connection.state)
    return [*found, *(replace(finding, where=connection.server) for finding in settings)]


def error_of_state(
    connection: Connection, name: str, error: errors.DatabaseFailure, fix: str
) -> Finding:
    """Return why the state tables cannot be used."""
    return Finding(where=connection.server, name=name, severity="error", found=str(error), fix=fix)


def missing_parts(connection: Connection) -> list[Finding]:
    """Find state tables and indexes that are missing beside others. No install creates these."""
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
    Find streams that hold receipts and gave no sign for UNSEEN seconds.

    A query that runs once a week looks like one whose checkpoint is lost. Its sink may hold the
    messages already: only the query itself can find that out.
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


def queues_of_streams(
    connection: Connection, states: Collection[str]
) -> tuple[list[QueueAddress], list[Finding]]:
    """
    Return the queues that streams read, and a finding for each that is no address.

    A tenant can write such a row.
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
    """Return the subscriptions of a queue, in any spelling; in the open transaction."""
    if not connection.columns(table):
        return []
    found = list_subscriptions(connection, table)
    same = find_same(connection, queue, {each.address for each in found})
    return [each for each in found if each.address in same]


def of_subscriptions(connection: Connection, table: QueueAddress) -> list[Finding]:
    """
    Find subscribers whose queue is gone. A publisher of NServiceBus fails if there is any.

    The table may be absent, and not every login may read it; no transaction is open.
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
    """Return the topics of each endpoint and queue's address; {} if the table is missing."""
    topics: dict[tuple[str, str], list[str]] = {}
    if connection.columns(table):
        for subscription in list_subscriptions(connection, table):
            subscriber = subscription.endpoint, subscription.address
            topics.setdefault(subscriber, []).append(subscription.topic)
    return topics


def find_lost_queues(
    connection: Connection, addresses: Collection[str]
) -> dict[str, errors.SqlQueueError]:
    """Find the addresses that name no queue, and why."""
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
    """Return the finding for a subscriber whose queue is gone; what the table has is untrusted."""
    found = (
        f"endpoint {endpoint} is subscribed to {', '.join(topics)} with the queue {address}, "
        f"and every publisher of this fails: {reason}"
    )
    words = ["--endpoint", endpoint, "--subscription-table", table, "--", *topics]
    fix = f"sqlqueue unsubscribe {' '.join(map(quote, words))}"
    return Finding(where=table, name="subscriber", severity="error", found=found, fix=fix)
