"""
What waits and what is under way, for people: depths, streams, receipts, one message at a glance.

Reads only; locks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import attempt, transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.zone import endpoint_zone
from sqlq_spark.errors import BadAddress, DelayedQueueNotFound, MissingOption, RightMissing
from sqlq_spark.receive import browse
from sqlq_spark.wire.address import split_canonical
from sqlq_spark.wire.rows import dated, flat, opened, uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class Depth:
    """A queue's table."""

    queue: str
    messages: int  # expired ones among them
    expired: int
    bytes: int  # of the table and its indexes
    first: int | None  # lowest seq
    last: int | None


@dataclass(frozen=True, slots=True)
class Delayed:
    """The table in which a queue's messages wait until they are due."""

    messages: int
    due: int | None  # of them, those that a mover should take; None where the zone is not known
    bytes: int  # of the table and its indexes


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's row: one for each checkpoint."""

    stream: str
    queue: str  # of several all, joined by ", "
    batch: int  # the last that is acknowledged
    messages: int  # of all acknowledged batches
    expired: int
    diverted: int  # to an error queue
    forwarded: int
    created: datetime
    seen: datetime
    receipts: int
    held: int  # messages in them

    @property
    def queues(self) -> list[str]:
        """The canonical address of each queue that it reads."""
        return split_canonical(self.queue)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task holds until its batch is acknowledged."""

    stream: str
    queue: str
    batch: int
    task: int
    messages: int
    bytes: int
    settled: bool
    created: datetime
    seen: datetime | None  # the stream, when it last spoke
    login: str  # who made the stream

    @property
    def key(self) -> tuple[str, int, int]:
        """Stream, batch and task."""
        return self.stream, self.batch, self.task

    @property
    def name(self) -> str:
        """The same as a text."""
        return f"{self.stream}/{self.batch}/{self.task}"


@dataclass(frozen=True, slots=True)
class Message:
    """A row of a queue."""

    id: str
    seq: int
    expires: datetime | None
    headers: dict[str, str | None] | None  # None where they are no JSON object: poison
    corrupt_headers: str | None
    body: bytes | None  # no writer should write null; some did


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A row of a table of delayed messages."""

    id: str | None  # SQL Server's table has none
    due: datetime  # UTC
    headers: dict[str, str | None] | None
    corrupt_headers: str | None
    body: bytes | None


def depth(connection: Connection, queue: QueueAddress) -> Depth:
    """
    Measure a queue; counts its rows.

    Raises:
        QueueNotFound, RightMissing.
    """
    name = connection.printed(queue)
    row = connection.rows("stats", tables={"queue": queue}, table_name=name)[0]
    return Depth(name, *row)


def delayed(connection: Connection, queue: QueueAddress, zone: str | None) -> Delayed | None:
    """
    Measure a queue's table of delayed messages, in the transaction that is open; counts its rows.

    Args:
        connection: in a transaction.
        queue: whose.
        zone: the option endpointTimeZone.

    Returns:
        None where there is no such table, or this login may not read it.
    """
    table = delayed_of(queue)
    name = delayed_name(connection, queue)
    if name is None or "due" not in connection.columns(table):
        return None
    values = {"table_name": name, "zone": zone_or_none(connection, zone)}
    try:
        with attempt(connection):
            row = connection.rows("stats_delayed", tables={"delayed": table}, **values)[0]
    except RightMissing:
        return None
    return Delayed(*row)


def delayed_name(connection: Connection, queue: QueueAddress) -> str | None:
    """The canonical address of the table of delayed messages; None where it can have none."""
    try:
        return connection.printed(delayed_of(queue))
    except BadAddress:  # the queue's own name is too long for its peers
        return None


def zone_or_none(connection: Connection, told: str | None) -> str | None:
    """The peers' time zone; None where this session cannot see it."""
    try:
        return endpoint_zone(connection, told)
    except MissingOption:
        return None


def streams(connection: Connection, queue: str | None = None) -> list[Stream]:
    """The streams of one queue, by its canonical address, or all; the last seen first."""
    found = [Stream(*row) for row in connection.rows("streams")]
    return [each for each in found if queue is None or queue in each.queues]


def receipts(
    connection: Connection,
    *,
    stream: str | None = None,
    batch: int | None = None,
    task: int | None = None,
    queue: str | None = None,
) -> list[Receipt]:
    """Receipts, the oldest first; None is any."""
    found = (Receipt(*row) for row in connection.rows("receipts", stream=stream, queue_name=queue))
    return [each for each in found if batch in {None, each.batch} and task in {None, each.task}]


def messages(
    connection: Connection, queue: QueueAddress, *, limit: int, timeout: float
) -> Iterator[Message]:
    """
    Show the lowest messages of a queue, in the order of seq.

    Args:
        connection: no transaction open.
        queue: where.
        limit: how many at most.
        timeout: seconds for each page.
    """
    ends = browse.ranges(connection, queue, parts=1, timeout=timeout)
    for first, stop in ends if limit else ():
        for page in browse.pages(connection, queue, first, stop, narrow=False, timeout=timeout):
            for row in dated(page.slice(0, limit)).to_pylist():
                yield shown(row)
            limit -= page.num_rows
            if limit <= 0:
                return


def delayed_messages(
    connection: Connection, queue: QueueAddress, *, limit: int, zone: str | None, timeout: float
) -> list[DelayedMessage]:
    """
    Show the delayed messages of a queue that are due first; they are in memory together.

    Args:
        connection: no transaction open.
        queue: whose.
        limit: how many at most.
        zone: the option endpointTimeZone.
        timeout: seconds for each statement.

    Raises:
        DelayedQueueNotFound, MissingOption.
    """
    table = delayed_of(queue)
    with transaction(connection, timeout=timeout):
        if "due" not in connection.columns(table):
            names = connection.printed(table), connection.printed(queue)
            raise DelayedQueueNotFound(*names, connection.server)
        rows = connection.rows(
            "browse_delayed",
            tables={"delayed": table},
            zone=endpoint_zone(connection, zone),
            messages=limit,
        )
    return [
        DelayedMessage(name, due, *headers_of(headers), body) for name, due, headers, body in rows
    ]


def shown(row: dict[str, Any]) -> Message:
    """One row of QUEUE_ROW."""
    headers, corrupt = headers_of(row["headers"])
    return Message(
        id=uuid_text(row["id"]),
        seq=row["seq"],
        expires=row["expires"],
        headers=headers,
        corrupt_headers=corrupt,
        body=row["body"],
    )


def headers_of(text: str | None) -> tuple[dict[str, str | None] | None, str | None]:
    """A header text as an object, or, where it is none, the text as it is."""
    headers = opened(text)
    if headers is None or not flat(headers):
        return None, text
    return headers, None
