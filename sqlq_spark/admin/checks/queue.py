"""
Checks of one queue: its table, its lowest messages, its delayed messages, its owner.

The rules for tables are in each dialect's checks.sql: each row of `check_queue` and
`check_delayed` is a finding. The rules for messages are here.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect, owner
from sqlq_spark.admin.finding import Finding, finding
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.errors import StateRightMissing
from sqlq_spark.wire.headers import BadTimeSpan, BadWireTime, parse_span, parse_wire_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

LONG_HEADERS = 1 << 20  # bytes
# findings of `check_delayed` that concern the queue into which messages are moved
MOVED_INTO = {"move_trigger", "move_foreign_key", "move_check"}


def of_queue(
    connection: Connection,
    queue: QueueAddress,
    *,
    peek_delay: float = 1.0,
) -> list[Finding]:
    """
    Check a queue's table and its lowest messages, in the open transaction.

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
    return [*found, *long_headers(where, *rows[0][4:])]


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
        "check_queue",
        tables={"queue": queue},
        table_name=printed,
        last=last,
        expiring=expiring,
    )
    return without_grants(connection, queue, [finding(printed, row) for row in rows])


def of_delayed(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Check a queue's table of delayed messages in the catalogue; no findings if it is missing."""
    printed = inspect.delayed_name(connection, queue)
    if printed is None:
        return []
    tables = {"delayed": delayed_of(queue), "queue": queue}
    rows = connection.rows("check_delayed", tables=tables, table_name=printed)
    into = connection.printed(queue)
    found = [finding(into if row[0] in MOVED_INTO else printed, row) for row in rows]
    return without_grants(connection, queue, found)


def without_grants(
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
