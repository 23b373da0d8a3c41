"""
What is wrong with queues, and the statement that mends it; reads only.

The database's own laws stand in its dialect's file, as the statements `check_queue` and
`check_server`, whose rows are findings; what a message, a stream or an option tells is added here.
A stream looks once, when it starts, and logs what it finds; `sqlqueue doctor` looks at everything.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeAlias

from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.sessions import check_state
from sqlq_spark.errors import (
    BodyStringMissing,
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
FORGOTTEN = 86_400.0  # seconds since a stream that holds receipts was seen

Severity: TypeAlias = Literal["error", "warning", "note"]  # a note is nothing wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    where: str  # a queue's address, or the server
    name: str
    severity: Severity
    found: str
    fix: str  # statements, a line each; or a command, or what to set

    @property
    def wrong(self) -> bool:
        """Whether it should be mended."""
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
    Look at a queue's table and its lowest messages, in the transaction that is open.

    Args:
        connection: in a transaction.
        queue: where.
        peek_delay: seconds that its stream pauses.
        body_string: whether its stream asks for the column.

    Raises:
        QueueNotFound, RightMissing, NotAQueue: it cannot be read; `of_table` tells more.
    """
    rows = connection.rows("check_rows", tables={"queue": queue})
    lives = [lifetime(*row[1:4]) for row in rows if row[1] is not None]
    found = of_table(
        connection, queue, last=rows[0][0], expiring=bool(lives), body_string=body_string
    )
    where = connection.printed(queue)
    return [*found, *too_short(where, lives, peek_delay), *too_long(where, *rows[0][4:])]


def of_table(
    connection: Connection,
    queue: QueueAddress,
    *,
    last: int | None = None,
    expiring: bool = False,
    body_string: bool = False,
) -> list[Finding]:
    """
    Look at a queue's table in the catalogue, which any login may read; none where it is absent.

    Args:
        connection: in a transaction.
        queue: where.
        last: the highest seq, where that is known.
        expiring: whether its messages expire.
        body_string: whether the column is asked for.
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
    """Look at a queue's table of delayed messages in the catalogue; none where it is absent."""
    printed = inspect.delayed_name(connection, queue)
    if printed is None:
        return []
    tables = {"delayed": delayed_of(queue)}
    rows = connection.rows("check_delayed", tables=tables, table_name=printed)
    return [finding(printed, row) for row in rows]


def lifetime(expires: datetime, sent: str | None, lives: str | None) -> float | None:
    """
    Seconds that a message lives, by its headers; None where they do not tell.

    Args:
        expires: UTC without a zone, as the column has it.
        sent: the header TimeSent.
        lives: the header TimeToBeReceived, which goes first.
    """
    try:
        if lives is not None:
            return parse_span(lives) / 1000
        if sent is not None:
            return (expires.replace(tzinfo=UTC) - parse_wire_time(sent)).total_seconds()
    except (BadTimeSpan, BadWireTime):
        pass
    return None


def too_short(where: str, lives: Sequence[float | None], peek_delay: float) -> Iterator[Finding]:
    """Tell where messages may expire while a stream pauses; one sent expired is not meant."""
    shortest = min((each for each in lives if each is not None and each > 0), default=None)
    if shortest is not None and shortest < peek_delay:
        yield Finding(
            where=where,
            name="peek_delay",
            severity="warning",
            found=f"messages live {shortest:g} s, and a stream with peekDelay {peek_delay:g} s may "
            "come too late for them",
            fix=f"option peekDelay: less than {shortest:g} s (100ms is the least), "
            "or a longer time to be received",
        )


def too_long(where: str, seq: int | None, size: int | None) -> Iterator[Finding]:
    """Report headers that are larger than any endpoint writes; they cost every stream memory."""
    if seq is not None and size is not None and size > LONG_HEADERS:
        yield Finding(
            where=where,
            name="long_headers",
            severity="warning",
            found=f"the headers of the message with seq {seq} have {size} bytes",
            fix="find its sender, whose data belongs into the body; a stream with errorQueue and "
            f"a maxMessageBytes below {size} moves such messages there unread",
        )


def finding(where: str, row: Row) -> Finding:
    """One row of `check_queue` or `check_server`."""
    name, severity, found, fix = row
    return Finding(where=where, name=name, severity=severity, found=found, fix=fix)


# ---------------------------------------------------------------- the rest


def of_server(connection: Connection, *, older: float = OLD_TRANSACTION) -> list[Finding]:
    """Look at the server and its transactions of more than `older` seconds."""
    rows = connection.rows("check_server", seconds=older)
    return [finding(connection.server, row) for row in rows]


def of_state(connection: Connection) -> list[Finding]:
    """Look at the state tables' version; no transaction may be open."""
    try:
        check_state(connection, connection.state)
    except StateNotInstalled as error:
        fix = f"sqlqueue install --state-schema {quote(connection.state)}"
        return [told(connection.server, "state", error, fix)]
    except StateTooNew as error:
        return [told(connection.server, "state", error, "pip install --upgrade sqlq-spark")]
    except RightMissing as error:
        return [told(connection.server, "state_right", error, str(error.args[2]))]
    return []


def of_streams(connection: Connection, *, after: float = FORGOTTEN) -> list[Finding]:
    """Look for streams that hold receipts and have not been seen for `after` seconds."""
    now = connection.rows("clock")[0][0].replace(tzinfo=UTC)
    return [
        Finding(
            where=each.queue,
            name="unseen_stream",
            severity="warning",
            found=f"stream {each.stream} was last seen {each.seen:%Y-%m-%d %H:%M} and holds "
            f"{each.held} messages in {each.receipts} receipts: is its checkpoint gone?",
            fix=f"sqlqueue receipts return --stream {quote(each.stream)} "
            f"--state-schema {quote(connection.state)}",
        )
        for each in inspect.streams(connection)
        if each.receipts and (now - each.seen).total_seconds() > after
    ]


def told(where: str, name: str, error: Exception, fix: str) -> Finding:
    """Make a finding of an error."""
    return Finding(where=where, name=name, severity="error", found=str(error), fix=fix)


# ---------------------------------------------------------------- who looks


def everything(
    connection: Connection,
    queues: Sequence[QueueAddress],
    *,
    timeout: float,
    body_string: bool = False,
) -> list[Finding]:
    """Look at queues, the server, the state tables and the streams; no transaction is open."""
    found = of_state(connection)
    if not found:
        found += of_any_streams(connection, timeout=timeout)
    with transaction(connection, timeout=timeout):
        found += of_server(connection)
    for each in queues:
        found += of_any_queue(connection, each, timeout=timeout, body_string=body_string)
    return found


def of_any_streams(connection: Connection, *, timeout: float) -> list[Finding]:
    """Look at streams, which only those who receive may see; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            return of_streams(connection)
    except RightMissing as error:
        found = told(connection.server, "streams_right", error, str(error.args[2]))
        return [replace(found, severity="note")]


def of_any_queue(
    connection: Connection, queue: QueueAddress, *, timeout: float, body_string: bool = False
) -> list[Finding]:
    """Look at a queue that may be absent, locked or closed to us; no transaction is open."""
    printed = connection.printed(queue)
    try:
        with transaction(connection, timeout=timeout):
            found = of_queue(connection, queue, body_string=body_string)
            return found + of_delayed(connection, queue)
    except QueueNotFound as error:
        return [told(printed, "absent", error, f"sqlqueue create {quote(printed)}")]
    except TimedOut as error:
        return [told(printed, "locked", error, "end what locks it, or wait longer for it")]
    except (RightMissing, NotAQueue) as error:
        # the catalogue tells all that is missing, the error only the first
        with transaction(connection, timeout=timeout):
            found = of_table(connection, queue, body_string=body_string)
            found += of_delayed(connection, queue) if found else []
        return found or [told(printed, "unreadable", error, str(error.args[-1]))]


def at_start(connection: Connection, options: SourceOptions) -> None:
    """
    Log what is wrong with the queues of a stream that begins; no transaction is open.

    Raises:
        BodyStringMissing: the tasks would fail.
        NotAQueue: it is no plain table, and a receipt not all that holds its rows.
    """
    with transaction(connection, timeout=options.query_timeout):
        found = of_server(connection)
        for each in options.addresses:
            found += of_queue(
                connection,
                each,
                peek_delay=options.peek_delay,
                body_string=options.include_body_string,
            )
            found += of_delayed(connection, each) if options.delayed_delivery else []
    for one in found:
        if one.name == "body_string":
            raise BodyStringMissing(one.where, one.fix)
        if one.name == "table_kind":
            raise NotAQueue(one.where, one.found)
        if one.wrong:
            log.warning("%s: %s. Fix: %s", one.where, one.found, one.fix)
