"""
Reads what waits and what streams hold: depths, delayed messages, streams, receipts, messages.

Locks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import attempt, endpoint_zone, read_clock, transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.errors import BadAddress, DelayedQueueNotFound, MissingOption, RightMissing
from sqlq_spark.wire.address import split_canonical

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlq_spark.database import Connection, Value
    from sqlq_spark.wire.address import QueueAddress


# bytes of a table whose rows a look counts; it took 13.8 s for a table of 3.5 GB
LARGEST_COUNTED_TABLE = 256 << 20


@dataclass(frozen=True, slots=True)
class Depth:
    """The size of a queue."""

    queue: str
    messages: int  # including expired ones
    expired: int | None  # None if the messages are estimated
    bytes: int  # of the table and its indexes
    first: int | None  # lowest seq
    last: int | None
    estimated: bool = False  # the messages, by the server's statistics


@dataclass(frozen=True, slots=True)
class Delayed:
    """The size of a queue's table of delayed messages."""

    messages: int
    due: int | None  # messages that should be moved; None if the time zone is not known
    bytes: int  # of the table and its indexes
    estimated: bool = False  # the messages, by the server's statistics


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's row: one for each checkpoint."""

    stream: str
    queue: str  # several are joined by ", "
    batch: int  # the last acknowledged batch
    messages: int  # of all acknowledged batches
    expired: int
    diverted: int  # to an error queue
    forwarded: int
    created: datetime
    seen: datetime
    receipts: int
    held: int  # messages in them
    lag: int | None = None  # messages that wait in its queues, and those held; of a look
    pace: float | None = None  # messages per second since the look before

    @property
    def queues(self) -> list[str]:
        """The canonical addresses of the queues that it reads."""
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
    seen: datetime | None  # when the stream last wrote to its row
    login: str  # that wrote it
    entitled: bool  # whether that login may receive from the queue

    @property
    def key(self) -> tuple[str, int, int]:
        return self.stream, self.batch, self.task

    @property
    def name(self) -> str:
        """Stream, batch and task as text."""
        return f"{self.stream}/{self.batch}/{self.task}"


@dataclass(frozen=True, slots=True)
class Message:
    """A row of a queue."""

    id: str
    seq: int
    expires: datetime | None
    headers: dict[str, str | None] | None  # None if they are not a JSON object: poison
    corrupt_headers: str | None
    body: bytes | None  # some old writers wrote null


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A row of a table of delayed messages."""

    id: str | None  # SQL Server's table has no such column
    due: datetime  # UTC
    headers: dict[str, str | None] | None
    corrupt_headers: str | None
    body: bytes | None


def depth(connection: Connection, queue: QueueAddress, *, largest: int | None = None) -> Depth:
    """
    Measure a queue, in the open transaction; counts its rows.

    Those of a table of more than `largest` bytes are estimated.

    Raises:
        QueueNotFound, RightMissing.
    """
    name = connection.printed(queue)
    row = connection.rows("stats", tables={"queue": queue}, table_name=name, largest=largest)[0]
    return Depth(name, *row)


def delayed(
    connection: Connection, queue: QueueAddress, zone: str | None, *, largest: int | None = None
) -> Delayed | None:
    """
    Measure a queue's table of delayed messages as `depth` does; `zone` is endpointTimeZone.

    Returns:
        None if there is no such table, or if this login may not read it.
    """
    table = delayed_of(queue)
    name = delayed_name(connection, queue)
    if name is None or "due" not in connection.columns(table):
        return None
    try:
        zone = endpoint_zone(connection, zone)
    except MissingOption:
        zone = None  # this session cannot see it
    values: dict[str, Value] = {"table_name": name, "zone": zone, "largest": largest}
    try:
        with attempt(connection):
            row = connection.rows("stats_delayed", tables={"queue": table}, **values)[0]
    except RightMissing:
        return None
    return Delayed(*row)


def delayed_name(connection: Connection, queue: QueueAddress) -> str | None:
    """The canonical address of the table of delayed messages; None if its name is too long."""
    try:
        return connection.printed(delayed_of(queue))
    except BadAddress:
        return None


def streams(connection: Connection, queue: str | None = None) -> list[Stream]:
    """All streams, or those of one queue by its canonical address; the last seen first."""
    found = [
        replace(each, queue=queue_names(connection, each.queue))
        for each in (Stream(*row) for row in connection.rows("streams"))
    ]
    return [each for each in found if queue is None or queue in each.queues]


def unseen_streams(connection: Connection, older: float) -> list[Stream]:
    """Streams that hold receipts and gave no sign for more than `older` seconds."""
    now = read_clock(connection)
    return [
        each
        for each in streams(connection)
        if each.receipts and (now - each.seen).total_seconds() > older
    ]


def receipts(
    connection: Connection,
    *,
    stream: str | None = None,
    batch: int | None = None,
    task: int | None = None,
    queue: QueueAddress | None = None,
) -> list[Receipt]:
    """Receipts, the oldest first; None matches any."""
    name = None if queue is None else connection.names.print_address(queue)
    found = (Receipt(*row) for row in connection.rows("receipts", stream=stream, queue_name=name))
    return [
        replace(each, queue=queue_names(connection, each.queue))
        for each in found
        if batch in {None, each.batch} and task in {None, each.task}
    ]


def queue_names(connection: Connection, text: str) -> str:
    """
    The queues of a state row as all commands print them; text that is no address stays.

    State rows leave out the database that they are in, so that a copy of it does not name this one.
    """
    if not connection.names.has_catalogs:
        return text
    try:
        found = map(connection.names.parse_queue, split_canonical(text))
        return ", ".join(map(connection.printed, found))
    except BadAddress:
        return text


def messages(
    connection: Connection, queue: QueueAddress, *, limit: int, timeout: float
) -> Iterator[Message]:
    """Read the lowest messages of a queue, in the order of seq, each page in a transaction."""
    from sqlq_spark.receive import browse  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import without_odd_expiries  # noqa: PLC0415 - see cli

    ends = browse.parts(connection, [queue], parts=1, timeout=timeout)
    for _, first, stop in ends if limit else ():
        for page in browse.pages(connection, queue, first, stop, narrow=False, timeout=timeout):
            for row in without_odd_expiries(page.slice(0, limit)).to_pylist():
                yield message(row)
            limit -= page.num_rows
            if limit <= 0:
                return


def delayed_messages(
    connection: Connection, queue: QueueAddress, *, limit: int, zone: str | None, timeout: float
) -> list[DelayedMessage]:
    """
    Read the delayed messages of a queue that are due first; holds them in memory.

    Raises:
        DelayedQueueNotFound, MissingOption.
    """
    table = delayed_of(queue)
    with transaction(connection, timeout=timeout):
        if "due" not in connection.columns(table):
            raise DelayedQueueNotFound(
                table=connection.printed(table),
                queue=connection.printed(queue),
                server=connection.server,
            )
        rows = connection.rows(
            "browse_delayed",
            tables={"delayed": table},
            zone=endpoint_zone(connection, zone),
            messages=limit,
        )
    return [
        DelayedMessage(name, due, *headers_of(headers), body) for name, due, headers, body in rows
    ]


def message(row: dict[str, Any]) -> Message:
    """The message in a row of QUEUE_ROW."""
    from sqlq_spark.wire.rows import uuid_text  # noqa: PLC0415 - see cli

    headers = headers_of(row["headers"])
    return Message(uuid_text(row["id"]), row["seq"], row["expires"], *headers, row["body"])


def headers_of(text: str | None) -> tuple[dict[str, str | None] | None, str | None]:
    """Parse a header text: the object and None, or None and the corrupt text."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli

    headers = parse_headers(text)
    return headers, text if headers is None else None
