"""
Checks queues and the server, and proposes the statement that fixes each problem. Reads only.

The rules for tables and servers are in each dialect's checks.sql: each row of the statements
`check_queue`, `check_delayed` and `check_server` is a finding. The rules for messages, streams and
options are here. A stream checks its queues once, when it starts, and logs the findings.
`sqlqueue doctor` checks everything.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeAlias

from sqlq_spark.admin import inspect, owner
from sqlq_spark.admin.formats import quantity
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.sessions import check_state
from sqlq_spark.errors import (
    BadOption,
    BodyStringMissing,
    MoveRefused,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    StateNotInstalled,
    StateTooNew,
    TimedOut,
)
from sqlq_spark.wire.headers import BadTimeSpan, BadWireTime, parse_span, parse_wire_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection, Row
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

OLD_TRANSACTION = 600.0  # seconds
LONG_HEADERS = 1 << 20  # bytes
# findings of `check_delayed` that concern the queue into which messages are moved
MOVED_INTO = {"move_trigger", "move_foreign_key", "move_check"}
UNSEEN = 86_400.0  # seconds without a sign of a stream that holds receipts

Severity: TypeAlias = Literal["error", "warning", "note"]  # a note needs no fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem, or a note."""

    where: str  # a queue's address, or the server
    name: str
    severity: Severity
    found: str
    fix: str  # statements, one per line; or a command, or what to set

    @property
    def is_problem(self) -> bool:
        """Whether it should be fixed."""
        return self.severity != "note"


# ---------------------------------------------------------------- one queue


def of_queue(
    connection: Connection,
    queue: QueueAddress,
    *,
    peek_delay: float = 1.0,
    body_string: bool = False,
) -> list[Finding]:
    """
    Check a queue's table and its lowest messages, in the open transaction.

    Args:
        connection: in a transaction.
        queue: the queue.
        peek_delay: seconds that its stream pauses after an empty peek.
        body_string: whether its stream reads the column BodyString.

    Raises:
        QueueNotFound, RightMissing, NotAQueue: it cannot be read; `of_table` says why.
    """
    rows = connection.rows("check_rows", tables={"queue": queue})
    lives = [lifetime(*row[1:4]) for row in rows if row[1] is not None]
    found = of_table(
        connection, queue, last=rows[0][0], expiring=bool(lives), body_string=body_string
    )
    where = connection.printed(queue)
    found += short_lifetimes(where, lives, peek_delay)
    return [*found, *long_headers(where, *rows[0][4:])]


def of_table(
    connection: Connection,
    queue: QueueAddress,
    *,
    last: int | None = None,
    expiring: bool = False,
    body_string: bool = False,
) -> list[Finding]:
    """
    Check a queue's table in the catalogue, which any login may read.

    Args:
        connection: in a transaction.
        queue: the queue.
        last: the highest seq, if it is known.
        expiring: whether its messages expire.
        body_string: whether the column BodyString is needed.

    Returns:
        Findings; none if the table does not exist.
    """
    printed = connection.printed(queue)
    rows = connection.rows(
        "check_queue",
        tables={"queue": queue},
        table_name=printed,
        last=last,
        expiring=expiring,
        body_string=body_string,
    )
    return [finding(printed, row) for row in rows]


def of_delayed(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Check a queue's table of delayed messages in the catalogue; no findings if it is missing."""
    printed = inspect.delayed_name(connection, queue)
    if printed is None:
        return []
    tables = {"delayed": delayed_of(queue), "queue": queue}
    rows = connection.rows("check_delayed", tables=tables, table_name=printed)
    into = connection.printed(queue)
    return [finding(into if row[0] in MOVED_INTO else printed, row) for row in rows]


def of_owner(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Warn if a queue that Spark reads seems to belong to an endpoint, in the open transaction."""
    signs = owner.find_signs(connection, queue)
    if not signs:
        return []
    return [
        Finding(
            where=connection.printed(queue),
            name="shared_queue",
            severity="warning",
            found=f"an endpoint seems to own this queue ({'; '.join(signs)}), and its handlers and "
            "sagas never see what Spark receives",
            fix="give Spark a queue of its own (`sqlqueue create`), and send or subscribe to that; "
            "if Spark is to receive these messages, set warnIfShared=false on the stream",
        )
    ]


def lifetime(expires: datetime, sent: str | None, lives: str | None) -> float | None:
    """
    Seconds that a message lives, by its headers; None if they do not say.

    Args:
        expires: UTC without a zone, as in the column.
        sent: the header TimeSent.
        lives: the header TimeToBeReceived, which takes precedence.
    """
    try:
        if lives is not None:
            return parse_span(lives) / 1000
        if sent is not None:
            return (expires.replace(tzinfo=UTC) - parse_wire_time(sent)).total_seconds()
    except (BadTimeSpan, BadWireTime):
        pass
    return None


def short_lifetimes(
    where: str, lives: Sequence[float | None], peek_delay: float
) -> Iterator[Finding]:
    """Warn if messages may expire while a stream pauses; ignores those that were sent expired."""
    shortest = min((each for each in lives if each is not None and each > 0), default=None)
    if shortest is not None and shortest < peek_delay:
        yield Finding(
            where=where,
            name="peek_delay",
            severity="warning",
            found=f"messages expire after {shortest:g} s, and a stream with peekDelay "
            f"{peek_delay:g} s may read them too late",
            fix=f"set the option peekDelay to less than {shortest:g} s (at least 100ms), "
            "or send with a longer timeToBeReceived",
        )


def long_headers(where: str, seq: int | None, size: int | None) -> Iterator[Finding]:
    """Warn about headers that are larger than any endpoint writes; streams hold them in memory."""
    if seq is not None and size is not None and size > LONG_HEADERS:
        yield Finding(
            where=where,
            name="long_headers",
            severity="warning",
            found=f"the headers of the message with seq {seq} have {size} bytes",
            fix="change its sender to write the data into the body; to move such messages, set "
            f"errorQueue and a maxMessageBytes below {size}",
        )


def finding(where: str, row: Row) -> Finding:
    """The finding in a row of `check_queue`, `check_delayed` or `check_server`."""
    name, severity, found, fix = row
    return Finding(where=where, name=name, severity=severity, found=found, fix=fix)


# ---------------------------------------------------------------- server, state, streams


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
        note = of_error(connection.server, "sessions_right", error, str(error.args[2]))
    with transaction(connection, timeout=timeout):
        found = of_server(connection, older=None)
    return [*found, replace(note, severity="note")]


def of_state(connection: Connection) -> list[Finding]:
    """Check the state tables' version; no transaction may be open."""
    try:
        check_state(connection, connection.state)
    except StateNotInstalled as error:
        fix = f"sqlqueue install --state-schema {quote(connection.state)}"
        return [of_error(connection.server, "state", error, fix)]
    except StateTooNew as error:
        return [of_error(connection.server, "state", error, "pip install --upgrade sqlq-spark")]
    except RightMissing as error:
        return [of_error(connection.server, "state_right", error, str(error.args[2]))]
    return []


def of_streams(connection: Connection, *, after: float = UNSEEN) -> list[Finding]:
    """Find streams that hold receipts and gave no sign for `after` seconds."""
    now = connection.rows("clock")[0][0].replace(tzinfo=UTC)
    return [
        Finding(
            where=each.queue,
            name="unseen_stream",
            severity="warning",
            found=f"stream {each.stream} was last seen {each.seen:%Y-%m-%d %H:%M} and holds "
            f"{quantity(each.held, 'message')} in {quantity(each.receipts, 'receipt')}",
            fix=fix_unseen(each.stream, connection.state),
        )
        for each in inspect.streams(connection)
        if each.receipts and (now - each.seen).total_seconds() > after
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


def of_error(where: str, name: str, error: Exception, fix: str) -> Finding:
    """Make a finding of an error."""
    return Finding(where=where, name=name, severity="error", found=str(error), fix=fix)


# ---------------------------------------------------------------- all checks


def everything(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    timeout: float,
    body_string: bool = False,
    warn_if_shared: bool = True,
) -> list[Finding]:
    """
    Check queues, the server, the state tables and the streams; no transaction is open.

    Args:
        connection: no transaction open.
        queues: the queues.
        timeout: seconds for each statement and wait.
        body_string: whether the column BodyString is needed.
        warn_if_shared: whether to look for the owners of queues that streams read.
    """
    found = of_state(connection)
    if not found:
        found += of_any_streams(connection, timeout=timeout)
    found += of_any_server(connection, timeout=timeout)
    for each in queues:
        found += of_any_queue(connection, each, timeout=timeout, body_string=body_string)
    return found + (of_owners(connection, queues, timeout=timeout) if warn_if_shared else [])


def of_owners(
    connection: Connection, queues: Sequence[QueueAddress], *, timeout: float
) -> list[Finding]:
    """Look for the owners of the queues that streams read; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            names = {name for each in inspect.streams(connection) for name in each.queues}
            read = [each for each in queues if connection.printed(each) in names]
            return [found for each in read for found in of_owner(connection, each)]
    except (RightMissing, StateNotInstalled):
        return []  # reported by the other checks


def of_any_streams(connection: Connection, *, timeout: float) -> list[Finding]:
    """Check streams, which only logins that receive may see; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            return of_streams(connection)
    except RightMissing as error:
        found = of_error(connection.server, "streams_right", error, str(error.args[2]))
        return [replace(found, severity="note")]


def of_any_queue(
    connection: Connection, queue: QueueAddress, *, timeout: float, body_string: bool = False
) -> list[Finding]:
    """Check a queue that may be missing, locked or not permitted; no transaction is open."""
    printed = connection.printed(queue)
    try:
        with transaction(connection, timeout=timeout):
            found = of_queue(connection, queue, body_string=body_string)
            return found + of_delayed(connection, queue)
    except QueueNotFound as error:
        return [of_error(printed, "absent", error, f"sqlqueue create {quote(printed)}")]
    except TimedOut as error:
        return [
            of_error(
                printed, "locked", error, "end the session that locks it, or raise --query-timeout"
            )
        ]
    except (RightMissing, NotAQueue) as error:
        # the catalogue shows everything that is missing, the error only the first
        with transaction(connection, timeout=timeout):
            found = of_table(connection, queue, body_string=body_string)
            found += of_delayed(connection, queue) if found else []
        return found or [of_error(printed, "unreadable", error, str(error.args[-1]))]


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Log the problems of the queues of a starting stream; no transaction is open.

    Raises:
        BadOption: two queues of the options are one.
        QueueNotFound, DestinationRefused: the error queue would take no poison message.
        BodyStringMissing: the tasks would fail.
        NotAQueue: it is not a plain table, so that rows could exist outside of receipts.
        MoveRefused: delayed messages that are due could not be moved into it.
    """
    check_spellings(connection, options)
    check_error_queue(connection, options)
    found = of_any_server(connection, timeout=options.query_timeout)
    with transaction(connection, timeout=options.query_timeout):
        for each in options.addresses:
            found += of_queue(
                connection,
                each,
                peek_delay=options.peek_delay,
                body_string=options.include_body_string,
            )
            found += of_delayed(connection, each) if options.delayed_delivery else []
            found += of_owner(connection, each) if options.warn_if_shared else []
    for one in found:
        if one.name == "body_string":
            raise BodyStringMissing(one.where, one.fix)
        if one.name in MOVED_INTO and one.severity == "error":
            raise MoveRefused(one.where, one.found, one.fix)
        if one.name == "table_kind":
            raise NotAQueue(one.where, one.found)
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
            for reason in known.find_refused([options.error_address]).values():
                raise reason


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
            raise BadOption(option, connection.printed(queue), expected)
