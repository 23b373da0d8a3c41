"""
The look at the backlog of destinations for `pauseAboveBacklog`.

A look is a short transaction that counts with the statement `peek`, and locks no message. Rows name
queues that are untrusted, so a table is checked as before an INSERT: a SELECT from a view would run
its owner's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.database.trust import RETURNED, Destinations, find_destinations
from sqlq_spark.errors import (
    BadOption,
    DestinationRefused,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    StateNotInstalled,
)
from sqlq_spark.wire.rows import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.pace.named import Named
    from sqlq_spark.wire.address import QueueAddress

COUNTED = 100_000  # messages that a log line counts at least; they take 12 ms


@dataclass(frozen=True)
class Above:
    """A queue with a backlog above the limit."""

    queue: QueueAddress
    printed: str
    messages: int  # counted up to `most`
    most: int
    limit: int

    def __str__(self) -> str:
        counted = f"{self.messages}{' or more' if self.messages >= self.most else ''}"
        return f"{counted} messages wait in {self.printed} (pauseAboveBacklog={self.limit})"


def check_source(connection: Connection, named: Named, options: SinkOptions, query: str) -> None:
    """
    Refuse to wait for a queue that the query itself receives from: it would wait for itself.

    A login that may not read receipts, as that of a sender, is not checked.

    Args:
        connection: no transaction open.
        named: the destinations.
        options: the sink's.
        query: Spark's id of it.

    Raises:
        BadOption.
    """
    try:
        with transaction(connection, timeout=options.query_timeout):
            rows = connection.rows("query_queues", query_id=query)
            queues = named.find_queues(connection, options) if rows else []
    except (RightMissing, StateNotInstalled):
        return
    own = set(connection.identities([connection.names.parse_address(queue) for (queue,) in rows]))
    for queue, identity in zip(queues, connection.identities(queues), strict=True):
        if identity in own:
            raise BadOption(
                option="pauseAboveBacklog",
                found=str(options.pause_above),
                expected="no limit, because this query receives from "
                f"{connection.printed(queue)} and would wait for itself",
            )


def find_above(
    connection: Connection,
    named: Named,
    options: SinkOptions,
    limit: int,
    *,
    first: QueueAddress | None = None,
    exact: bool = False,
) -> Above | None:
    """
    Return the first destination whose backlog is above the limit, or None.

    Args:
        connection: no transaction open.
        named: the destinations.
        options: the sink's.
        limit: messages.
        first: the destination to look at first.
        exact: whether to count on for a log line; otherwise a count ends above the limit.

    Raises:
        RightMissing: this login may not read a destination.
    """
    with transaction(connection, timeout=options.query_timeout):
        queues = named.find_queues(connection, options)
    most = max(limit + 1, COUNTED if exact else 0)
    for queue in sorted(queues, key=lambda each: each != first):
        messages = count_waiting(connection, queue, options, most)
        if messages > limit:
            return Above(queue, connection.printed(queue), messages, most, limit)
    return None


def count_waiting(
    connection: Connection, queue: QueueAddress, options: SinkOptions, most: int
) -> int:
    """
    Count what waits in a queue, up to `most`; 0 for one that cannot be sent to.

    Raises:
        RightMissing: this login may not read it.
    """
    try:
        with transaction(connection, timeout=options.query_timeout):
            Destinations(connection, options.allowed).lock_and_check([queue], RETURNED)
            return _peek(connection, queue, most)
    except (QueueNotFound, NotAQueue, DestinationRefused):
        return 0  # the dispatch reports it
    except RightMissing:
        if _may_insert(connection, queue, options):
            raise
        return 0


def _may_insert(connection: Connection, queue: QueueAddress, options: SinkOptions) -> bool:
    """Whether this login may send to a queue, so that only the right to read it is missing."""
    with transaction(connection, timeout=options.query_timeout):
        found = find_destinations(connection, [queue], RETURNED).get(queue)
    return found is not None and found.may_insert


def _peek(connection: Connection, queue: QueueAddress, most: int) -> int:
    (row,) = connection.rows(
        "peek",
        tables={"queue": queue},
        first=LOWEST_SEQ,
        last=HIGHEST_SEQ,
        messages=most,
        grain=most,
    )
    return row[0] or 0
