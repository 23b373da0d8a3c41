"""
Checks one queue: its locks, its table, its lowest and delayed messages, and its owner.

The rules for tables are in checks.sql of each dialect: each row of `check_queue` and
`check_delayed` is a finding. The rules for messages are here. The checks only read, in the
transaction that the caller has open.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TC003 - the type of a row's field
from shlex import quote
from typing import TYPE_CHECKING, get_args

from sqlq_spark import errors
from sqlq_spark.admin import queue_sizes
from sqlq_spark.admin.formats import part
from sqlq_spark.database import StateSchema, check_types
from sqlq_spark.database.blockers import Blocker, Severity
from sqlq_spark.database.trust import DELETE, READ, look_at_tables, use
from sqlq_spark.errors import clean
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import QueueAddress, delayed_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.database import Connection


# A transaction that has held locks on messages for longer than this is a finding.
HELD = 60.0  # seconds
# A message whose headers are longer than this is a finding.
LONG_HEADERS = 1 << 20  # bytes
# The headers of this many messages are read, those with the lowest seqs.
LOWEST = 50
# The statement cuts a message's headers after this many characters.
CUT = 65_536  # characters
# A quoted name or literal of SQL, or a quoted word of a shell. If its end quote is missing, it
# reaches to the end of the text.
IN_QUOTES = re.compile(r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|\[(?:[^\]]|\]\])*+(?:\]|\Z)""")
FIX_POISON = (
    "set errorQueue on the stream, which diverts them to the error queue, as .NET endpoints do"
)
FIX_POISON_OF_FAILURES = (
    "no stream reads an error queue, and ServiceControl tries them for ever: put them back with "
    'correct headers, or delete them, by the statements of docs/operations.md, "Poison messages"'
)
# Findings of `check_delayed` about the queue into which delayed messages are moved.
MOVED_INTO = {"move_trigger", "move_foreign_key", "move_check"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or a note: a row of a check in checks.sql, and where it was found."""

    where: str = ""  # a queue's address, or the server; not a column of the check's row
    name: str
    severity: Severity
    found: str
    fix: str  # statements, one a line; or a command; or what to set

    @property
    def is_problem(self) -> bool:
        return self.severity != "note"

    @property
    def fix_lines(self) -> list[str]:
        """
        Return the lines of the fix, without control characters.

        A line break in quotes is part of a name, so it does not begin a new line of the fix.
        """
        return [clean(line) for line in IN_QUOTES.sub(_clean_part, self.fix).splitlines()]

    @property
    def rank(self) -> int:
        """Return the rank of the finding's severity, 0 for the worst."""
        return get_args(Severity).index(self.severity)


def _clean_part(part: re.Match[str]) -> str:
    return clean(part[0])


@dataclass(frozen=True, slots=True)
class Lowest:
    """
    One of the messages with the lowest seqs of a queue, if it expires.

    `last`, `seq` and `bytes` are facts about all of these messages, so they are the same in each
    row.
    """

    last: int | None  # the highest seq of the queue; None if the queue is empty
    expires: datetime | None  # None if no message expires: then this is the only row
    sent: str | None  # the header TimeSent
    lives: str | None  # the header TimeToBeReceived
    seq: int | None  # the seq of the message with the largest headers
    bytes: int | None  # the size of the largest headers


# ---------------------------------------------------------------- queues that are not read


def blockers(connection: Connection) -> dict[str, list[Finding]]:
    """
    Find transactions that have locked a whole table, or have locked messages for a long time.

    This reads only the catalogue, and waits for no lock. No transaction of this connection may be
    open.

    Returns:
        The findings about each queue, by the queue's address for people.
    """
    locks: dict[str, list[Finding]] = {}
    try:
        transactions = connection.rows("blockers", Blocker, seconds=HELD)
    except errors.RightMissing:  # in the small tiers of Azure; `check_server` reports the right
        return locks
    for blocker in transactions:
        queue = connection.printed(blocker.address)
        finding = Finding(
            where=queue,
            name=blocker.name,
            severity=blocker.severity,
            found=blocker.found,
            fix=blocker.fix,
        )
        locks.setdefault(queue, []).append(finding)
    return locks


def unreadable(where: str, error: errors.DatabaseFailure) -> Finding:
    """Return the finding that says why a queue cannot be read."""
    name = "unreadable"
    found = str(error)
    facts = vars(error)
    severity: Severity = "error"
    fix = facts.get("fix") or clean(facts.get("reason", ""))
    match error:
        case errors.QueueInOtherCase():
            name, fix = "absent", f"write the name {error.other}"
        case errors.QueueNotFound():
            name, fix = "absent", f"sqlqueue create {quote(where)}"
        case errors.TimedOut():
            name, found = "locked", f"it is not read: {error.reason}"
            fix = "end the session that locks it; or name the queue, and raise --query-timeout"
        case errors.TableRefused():
            name, fix = "not_read", "do what is said there, or leave it out"
            severity = "warning"
    return Finding(where=where, name=name, severity=severity, found=found, fix=fix)


# ---------------------------------------------------------------- tables


def of_queue(
    connection: Connection, queue: QueueAddress, *, peek_delay: float = 1.0
) -> list[Finding]:
    """
    Check a queue's table and its lowest messages.

    `peek_delay` is the number of seconds for which its stream pauses after an empty peek.

    Raises:
        QueueNotFound, RightMissing, NotAQueue: the queue cannot be read. `of_table` finds out why.
        TableRefused: the queue must not be read.
    """
    use(connection, [queue], READ)
    check_types(connection, queue)
    where = connection.printed(queue)
    lowest = connection.rows("check_rows", Lowest, tables={"queue": queue})
    facts = lowest[0]  # the facts about the queue are the same in each row
    expiring = [message for message in lowest if message.expires is not None]
    found = of_table(connection, queue, last=facts.last, expiring=bool(expiring))
    found += short_lifetimes(where, expiring, peek_delay)
    if facts.bytes is not None and facts.bytes > LONG_HEADERS:  # streams hold headers in memory
        finding = Finding(
            where=where,
            name="long_headers",
            severity="warning",
            found=f"the headers of the message with seq {facts.seq} have {facts.bytes} bytes",
            fix="change its sender to write the data into the body; a stream with errorQueue moves "
            "such messages there, by its option maxHeaderBytes",
        )
        found.append(finding)
    return found


def of_table(
    connection: Connection, queue: QueueAddress, *, last: int | None = None, expiring: bool = False
) -> list[Finding]:
    """
    Check a queue's table in the catalogue, which any login may read.

    `last` is the highest seq, or None if it is not known. `expiring` says whether messages expire.
    There are no findings if the table does not exist.
    """
    printed = connection.printed(queue)
    quoted = connection.names.quote_address(queue)
    findings = connection.rows(
        "check_queue",
        Finding,
        tables={"queue": queue},
        table_name=quoted,
        last=last,
        expiring=expiring,
    )
    located = [replace(finding, where=printed) for finding in findings]
    return _without_grants(connection, queue, located)


def of_delayed(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Check a queue's table of delayed messages, if there is one, in the catalogue."""
    printed = queue_sizes.delayed_name(connection, queue)
    if printed is None:
        return []
    tables = {"delayed": delayed_of(queue), "queue": queue}
    quoted = connection.names.quote_address(tables["delayed"])
    findings = connection.rows("check_delayed", Finding, tables=tables, table_name=quoted)
    into = connection.printed(queue)
    located = [
        replace(finding, where=into if finding.name in MOVED_INTO else printed)
        for finding in findings
    ]
    return _without_grants(connection, queue, located)


def _without_grants(
    connection: Connection, queue: QueueAddress, findings: list[Finding]
) -> list[Finding]:
    """
    Replace the fixes that grant a right on a table of a state schema.

    A state schema may belong to another team, and a GRANT would hand out all of its state.
    """
    if not any("GRANT " in finding.fix for finding in findings):
        return findings
    schema = connection.names.qualify(queue).schema
    state = connection.row("state_schemas", StateSchema, schema_name=schema)
    if state is None:
        return findings
    fix = errors.StateRightMissing.fix_of(state.schema, state.roles)
    return [
        replace(finding, fix=fix) if "GRANT " in finding.fix else finding for finding in findings
    ]


def of_trust(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """
    Report how a queue that may be read cannot be used: by a stream, or as a destination.

    A stream cannot receive from a table to which a foreign key refers. And the header of a message
    cannot send it to a queue that another login owns.
    """
    where = connection.printed(queue)
    trusted = connection.trusted
    for reason in look_at_tables(connection, [queue], DELETE)[1].values():
        finding = Finding(
            where=where,
            name="not_received",
            severity="error",
            found=str(reason),
            fix="do what is said there",
        )
        return [finding]
    connection.trusted = replace(trusted, named=())
    try:
        refused = look_at_tables(connection, [queue], READ)[1].get(queue)
    finally:
        connection.trusted = trusted
    if not isinstance(refused, errors.OwnerNotTrusted):
        return []
    finding = Finding(
        where=where,
        name="owner",
        severity="note",
        found=f"{refused.found}, who is trusted only where an option or an argument names the "
        "queue",
        fix=f"set trustedOwners={clean(refused.value)} to send replies and events there too",
    )
    return [finding]


# ---------------------------------------------------------------- messages


def short_lifetimes(where: str, lowest: Iterable[Lowest], peek_delay: float) -> list[Finding]:
    """
    Warn if messages may expire while a stream pauses.

    A message lives as long as its header TimeToBeReceived says. Without that header it lives from
    its header TimeSent to its expiry. Headers that cannot be read are ignored, and so are messages
    that had expired when they were sent.
    """
    lives = [peek_delay]
    for message in lowest:
        with suppress(wire.BadTimeSpan, wire.BadWireTime):
            if message.lives is not None:
                lives.append(wire.parse_span(message.lives) / 1000)
            elif message.sent is not None and message.expires is not None:
                lived = message.expires - wire.parse_wire_time(message.sent)
                lives.append(lived.total_seconds())
    shortest = min(seconds for seconds in lives if seconds > 0)
    if shortest >= peek_delay:
        return []
    finding = Finding(
        where=where,
        name="peek_delay",
        severity="warning",
        found=f"messages expire after {shortest:g} s, and a stream with peekDelay "
        f"{peek_delay:g} s may read them too late",
        fix=f"set the option peekDelay to less than {shortest:g} s (at least 100ms), "
        "or send with a longer timeToBeReceived",
    )
    return [finding]


def of_owner(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """
    Warn if a queue that Spark reads seems to belong to an endpoint.

    The sign is a message that only an endpoint can handle, for example a saga timeout. Instances of
    the endpoint can share a queue, because they run the same handlers. Spark does not run them, so
    it must not take the endpoint's messages.
    """
    messages = connection.value("check_owner", tables={"queue": queue})
    if not messages:
        return []
    finding = Finding(
        where=connection.printed(queue),
        name="shared_queue",
        severity="warning",
        found="an endpoint seems to own this queue (saga timeouts, messages for a saga or control "
        f"messages among the first messages: {messages}), and its handlers and sagas never see "
        "what Spark receives",
        fix="give Spark a queue of its own (`sqlqueue create`), and send or subscribe to that; "
        "if Spark is to receive these messages, set warnIfShared=false on the stream",
    )
    return [finding]


def of_head(
    connection: Connection, queue: QueueAddress, first: int | None, last: int | None
) -> tuple[str, list[Finding]]:
    """
    Read the beginning of the headers of a queue's lowest messages, between two seqs.

    Returns:
        The kind of the queue, and a finding if some headers cannot be read. The kind is `error
        queue` or `audit queue` if the lowest message or, failing that, the queue's name shows it.
        Otherwise it is `queue`.
    """
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import with_readable_texts  # noqa: PLC0415 - see cli

    name = queue.table.lower().rpartition(".")[2]
    kind = f"{name} queue" if name in {"error", "audit"} else "queue"
    if first is None or last is None:
        return kind, []
    page = connection.arrow(
        "browse_headers", tables={"queue": queue}, first=first, stop=last + 1, messages=LOWEST
    )
    texts: list[str | None] = with_readable_texts(page)["headers"].to_pylist()
    headers = [*map(parse_headers, texts)]
    lowest = next(iter(headers), None) or {}
    if wire.FAILED_Q in lowest:
        kind = "error queue"
    elif wire.PROCESSING_ENDED in lowest:
        kind = "audit queue"
    bad = [
        seq
        for seq, text, its in zip(page["seq"].to_pylist(), texts, headers, strict=True)
        if text is None
        or (its is None and len(text) < CUT)
        or (its or {}).get(wire.ENCLOSED_MESSAGE_TYPES) == wire.POISON_TYPE
    ]
    if not bad:
        return kind, []
    finding = Finding(
        where=connection.printed(queue),
        name="poison",
        severity="warning",
        found=f"{part(len(bad), len(texts), 'message')} at its head cannot be read (poison), "
        f"the first has seq {bad[0]}",
        fix=FIX_POISON_OF_FAILURES if kind == "error queue" else FIX_POISON,
    )
    return kind, [finding]
