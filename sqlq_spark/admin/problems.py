"""
The problems of one queue: its table, its lowest messages, its delayed messages, its owner.

The rules for tables are in each dialect's checks.sql: each row of `check_queue` and `check_delayed`
is a finding. The rules for messages are here. All reads only, in the open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import part
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.errors import StateRightMissing
from sqlq_spark.wire.headers import (
    FAILED_Q,
    PROCESSING_ENDED,
    BadTimeSpan,
    BadWireTime,
    parse_span,
    parse_wire_time,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlq_spark.admin.inspect import Depth
    from sqlq_spark.database import Connection, Row
    from sqlq_spark.errors import BadOption
    from sqlq_spark.wire.address import QueueAddress

Severity: TypeAlias = Literal["error", "warning", "note"]  # worst first; a note needs no fix

LONG_HEADERS = 1 << 20  # bytes
LOWEST = 50  # messages whose headers are read
CUT = 65_536  # characters of headers that the statement reads
# findings of `check_delayed` that concern the queue into which messages are moved
MOVED_INTO = {"move_trigger", "move_foreign_key", "move_check"}


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

    @property
    def rank(self) -> int:
        """Its place among severities, 0 for the worst."""
        return get_args(Severity).index(self.severity)


def finding(where: str, row: Row) -> Finding:
    """The finding in a row of `check_queue`, `check_delayed`, `check_state` or `check_server`."""
    name, severity, found, fix = row
    return Finding(where=where, name=name, severity=severity, found=found, fix=fix)


def of_error(
    where: str, name: str, error: Exception, fix: str, severity: Severity = "error"
) -> Finding:
    """The finding of an error."""
    return Finding(where=where, name=name, severity=severity, found=str(error), fix=fix)


def warning(where: str, name: str, found: str, fix: str) -> Finding:
    """A finding that is a warning."""
    return Finding(where=where, name=name, severity="warning", found=found, fix=fix)


def state_unread(where: str, schema: str, reason: str) -> Finding:
    """The note for a state schema that was not looked into."""
    found = f"state schema {schema} was not looked into: {reason}"
    return Finding(where=where, name="state_unread", severity="note", found=found, fix="")


def absent(where: str) -> Finding:
    """The finding for a queue of a stream that is not there."""
    return Finding(
        where=where,
        name="absent",
        severity="error",
        found="a stream reads it, and this login sees no such table",
        fix=f"sqlqueue create {quote(where)}",
    )


def no_address(error: BadOption, state: str) -> Finding:
    """The finding for a stream whose queue is no address; a tenant can write such a row."""
    return warning(
        error.found,
        "no_address",
        f"a row of {state}.stream names this queue, expected {error.expected}",
        "find out which login wrote the row, and delete the row",
    )


def delayed_alone(where: str) -> Finding:
    """The finding for a table of delayed messages whose queue is not there."""
    return warning(
        where,
        "delayed_alone",
        "this login sees no queue to which these delayed messages belong",
        "create the queue (`sqlqueue create`), or drop the table if it is not used any more",
    )


# ---------------------------------------------------------------- tables


def of_queue(
    connection: Connection, queue: QueueAddress, *, peek_delay: float = 1.0
) -> list[Finding]:
    """
    Check a queue's table and its lowest messages.

    Args:
        connection: in a transaction.
        queue: the queue.
        peek_delay: seconds that its stream pauses after an empty peek.

    Raises:
        QueueNotFound, RightMissing, NotAQueue: it cannot be read; `of_table` says why.
    """
    rows = connection.rows("check_rows", tables={"queue": queue})
    lives = [lifetime(*row[1:4]) for row in rows if row[1] is not None]
    found = of_table(connection, queue, last=rows[0][0], expiring=bool(lives))
    where = connection.printed(queue)
    found += short_lifetimes(where, lives, peek_delay)
    seq, size = rows[0][4:]
    if seq is not None and size is not None and size > LONG_HEADERS:  # streams hold them in memory
        problem = f"the headers of the message with seq {seq} have {size} bytes"
        fix = (
            "change its sender to write the data into the body; to move such messages, set "
            f"errorQueue and a maxMessageBytes below {size}"
        )
        found.append(warning(where, "long_headers", problem, fix))
    return found


def of_table(
    connection: Connection,
    queue: QueueAddress,
    *,
    last: int | None = None,
    expiring: bool = False,
) -> list[Finding]:
    """
    Check a queue's table in the catalogue, which any login may read.

    Args:
        connection: in a transaction.
        queue: the queue.
        last: the highest seq, if it is known.
        expiring: whether its messages expire.

    Returns:
        Findings; none if the table does not exist.
    """
    printed = connection.printed(queue)
    rows = connection.rows(
        "check_queue", tables={"queue": queue}, table_name=printed, last=last, expiring=expiring
    )
    return _without_grants(connection, queue, [finding(printed, row) for row in rows])


def of_delayed(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Check a queue's table of delayed messages in the catalogue; no findings if it is missing."""
    printed = inspect.delayed_name(connection, queue)
    if printed is None:
        return []
    tables = {"delayed": delayed_of(queue), "queue": queue}
    rows = connection.rows("check_delayed", tables=tables, table_name=printed)
    into = connection.printed(queue)
    found = [finding(into if row[0] in MOVED_INTO else printed, row) for row in rows]
    return _without_grants(connection, queue, found)


def _without_grants(
    connection: Connection, queue: QueueAddress, found: list[Finding]
) -> list[Finding]:
    """Replace each GRANT on a table that is in a state schema, which may be another team's."""
    if not any(each.fix.startswith("GRANT ") for each in found):
        return found
    schema = connection.names.qualify(queue).schema
    for state, _, roles in connection.rows("state_schemas", schema_name=schema):
        fix = StateRightMissing.fix_of(state, roles)
        found = [replace(each, fix=fix) if "GRANT " in each.fix else each for each in found]
    return found


# ---------------------------------------------------------------- messages


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


def short_lifetimes(where: str, lives: Sequence[float | None], peek_delay: float) -> list[Finding]:
    """Warn if messages may expire while a stream pauses; ignores those that were sent expired."""
    shortest = min((each for each in lives if each is not None and each > 0), default=None)
    if shortest is None or shortest >= peek_delay:
        return []
    problem = (
        f"messages expire after {shortest:g} s, and a stream with peekDelay "
        f"{peek_delay:g} s may read them too late"
    )
    fix = (
        f"set the option peekDelay to less than {shortest:g} s (at least 100ms), "
        "or send with a longer timeToBeReceived"
    )
    return [warning(where, "peek_delay", problem, fix)]


def of_owner(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """
    Warn if a queue that Spark reads seems to belong to an endpoint.

    The sign is a message that only its endpoint can handle. Two instances of an endpoint run the
    same handlers and can share a queue, but Spark does not run them.
    """
    counts = connection.rows("check_owner", tables={"queue": queue})[0]
    kinds = ("saga timeouts", "messages for a saga", "control messages")
    signs = [
        f"{kind} among the first messages: {count}"
        for kind, count in zip(kinds, counts, strict=True)
        if count
    ]
    if not signs:
        return []
    problem = (
        f"an endpoint seems to own this queue ({'; '.join(signs)}), and its handlers and "
        "sagas never see what Spark receives"
    )
    fix = (
        "give Spark a queue of its own (`sqlqueue create`), and send or subscribe to that; "
        "if Spark is to receive these messages, set warnIfShared=false on the stream"
    )
    return [warning(connection.printed(queue), "shared_queue", problem, fix)]


def of_head(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Find messages at the head of a queue that cannot be read."""
    first, last = connection.rows("top", tables={"queue": queue})[0]
    headers, seqs = _lowest_headers(connection, queue, first, last)
    return _poison(connection.printed(queue), headers, seqs)


def of_look(connection: Connection, queue: QueueAddress, depth: Depth) -> tuple[str, list[Finding]]:
    """
    Return what a look shows of a queue beside its figures: its kind, and its problems.

    Rights are left out, because who looks at a queue need not receive from it.
    """
    found = of_table(connection, queue, last=depth.last)
    found = [each for each in found if each.is_problem and not each.name.endswith("_right")]
    headers, seqs = _lowest_headers(connection, queue, depth.first, depth.last)
    return _kind_of(queue, headers), [*found, *_poison(depth.queue, headers, seqs)]


def _lowest_headers(
    connection: Connection, queue: QueueAddress, first: int | None, last: int | None
) -> tuple[list[str | None], list[int]]:
    """The beginning of the headers of the lowest messages, and their seqs; None: not UTF-8."""
    from sqlq_spark.wire.rows import with_readable_texts  # noqa: PLC0415 - see cli

    if first is None or last is None:
        return [], []
    page = connection.arrow(
        "browse_headers", tables={"queue": queue}, first=first, stop=last + 1, messages=LOWEST
    )
    texts = with_readable_texts(page)
    return texts["headers"].to_pylist(), page["seq"].to_pylist()


def _poison(where: str, headers: Sequence[str | None], seqs: Sequence[int]) -> list[Finding]:
    """Warn of messages whose headers cannot be read."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli

    bad = [
        seq
        for text, seq in zip(headers, seqs, strict=True)
        if text is None or (len(text) < CUT and parse_headers(text) is None)
    ]
    if not bad:
        return []
    problem = (
        f"{part(len(bad), len(headers), 'message')} at its head cannot be read (poison), "
        f"the first has seq {bad[0]}"
    )
    fix = "set errorQueue on the stream, which moves them aside; .NET endpoints do it alone"
    return [warning(where, "poison", problem, fix)]


def _kind_of(queue: QueueAddress, headers: Sequence[str | None]) -> str:
    """`error queue` or `audit queue` by the lowest message, or else by the name; or `queue`."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli

    first = parse_headers(headers[0]) if headers and len(headers[0] or "") < CUT else None
    if first is not None and FAILED_Q in first:
        return "error queue"
    if first is not None and PROCESSING_ENDED in first:
        return "audit queue"
    name = queue.table.lower().rpartition(".")[2]
    return {"error": "error queue", "audit": "audit queue"}.get(name, "queue")
