"""
Finds the queues of a database; reads what waits and what streams hold. Locks nothing.

A name in the catalogue is untrusted, and so is a table: database/trust.py says whose is read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import attempt, check_types, endpoint_zone, read_clock, transaction
from sqlq_spark.database.state_rows import HeldReceipt
from sqlq_spark.database.trust import READ, look_at_tables, use, use_delayed
from sqlq_spark.errors import BadAddress, MissingOption, RightMissing, TableRefused
from sqlq_spark.wire.address import QueueAddress, delayed_of
from sqlq_spark.wire.dialects import split_canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection

LOCK_WAIT = 2.0  # seconds that a queue that nobody named is waited for
# bytes of a table whose rows a look counts; it took 13.8 s for a table of 3.5 GB
LARGEST_COUNTED_TABLE = 256 << 20
LOOKED_AT_ONCE = 1000  # tables; a statement takes 20 ms, and 0.1 ms more for each table


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns of a queue."""

    schema_name: str
    table_name: str
    messages: int  # an estimate
    bytes: int

    @property
    def address(self) -> QueueAddress:
        return QueueAddress(self.table_name, self.schema_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The size of a queue."""

    queue: str = ""  # its address for people; no column
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
    # messages that wait in its queues, and those held; of a look, and no column
    lag: int | None = None

    @property
    def queues(self) -> list[str]:
        """The canonical addresses of the queues that it reads."""
        return split_canonical(self.queue)


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """Who purged, returned, dropped or retired what, and how many messages."""

    at: datetime
    login: str
    session_login: str  # the one that connected
    action: str
    messages: int
    stream: str | None  # of a receipt
    batch: int | None
    task: int | None
    queue: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a queue, read from a row of QUEUE_ROW."""

    id: str
    headers: dict[str, str | None] | None  # None if they are not a JSON object: poison
    corrupt_headers: str | None
    body: bytes | None  # some old writers wrote null
    seq: int
    expires: datetime | None  # with its zone, UTC


# ---------------------------------------------------------------- queues


def tables(connection: Connection) -> list[Table]:
    """
    The tables of queues that this login may read, by schema and name, whoever owns them.

    Reads the catalogue only. On SQL Server it waits for a session that changes a table.
    """
    return connection.rows("queue_tables", Table)


def find_refused(
    connection: Connection, queues: Sequence[QueueAddress]
) -> dict[QueueAddress, TableRefused]:
    """
    Find which of many tables must not be read, and why, before any of them is locked.

    Anyone may make tables. One that is refused here costs no transaction of its own.
    """
    refused: dict[QueueAddress, TableRefused] = {}
    with transaction(connection):
        for at in range(0, len(queues), LOOKED_AT_ONCE):
            reasons = look_at_tables(connection, queues[at : at + LOOKED_AT_ONCE], READ)[1]
            refused |= {
                queue: reason
                for queue, reason in reasons.items()
                if isinstance(reason, TableRefused)
            }
    return refused


def depth(connection: Connection, queue: QueueAddress, *, largest: int | None = None) -> Depth:
    """
    Measure a queue, in the open transaction; counts its rows.

    Those of a table of more than `largest` bytes are estimated.

    Raises:
        QueueNotFound, RightMissing, NotAQueue, TableRefused.
    """
    use(connection, [queue], READ)
    check_types(connection, queue)
    quoted = connection.names.quote_address(queue)
    (measured,) = connection.rows(
        "stats", Depth, tables={"queue": queue}, table_name=quoted, largest=largest
    )
    return replace(measured, queue=connection.printed(queue))


def delayed(connection: Connection, queue: QueueAddress, zone: str | None) -> Delayed | None:
    """
    Measure a queue's table of delayed messages; `zone` is endpointTimeZone.

    Returns:
        None if there is none, or if this login may not read it.

    Raises:
        TableRefused: it has another owner than its queue, or other code.
    """
    if "due" not in connection.columns(delayed_of(queue)):
        return None
    with suppress(MissingOption):  # this session cannot see it
        zone = endpoint_zone(connection, zone)
    refused: TableRefused | None = None
    with suppress(RightMissing), attempt(connection):
        try:
            table = use_delayed(connection, queue, READ)
        except TableRefused as error:  # no statement failed, so nothing is undone
            refused = error
        else:
            return connection.row(
                "stats_delayed",
                Delayed,
                tables={"queue": table},
                table_name=connection.names.quote_address(table),
                zone=zone,
                largest=LARGEST_COUNTED_TABLE,
            )
    if refused is not None:
        raise refused
    return None


def delayed_name(connection: Connection, queue: QueueAddress) -> str | None:
    """The canonical address of the table of delayed messages; None if its name is too long."""
    try:
        return connection.printed(delayed_of(queue))
    except BadAddress:
        return None


def streams(connection: Connection) -> list[Stream]:
    """All streams, the last seen first."""
    return [
        replace(stream, queue=queue_names(connection, stream.queue))
        for stream in connection.rows("streams", Stream)
    ]


def unseen_streams(connection: Connection, older: float) -> list[Stream]:
    """Streams that hold receipts and gave no sign for more than `older` seconds."""
    now = read_clock(connection)
    return [
        stream
        for stream in streams(connection)
        if stream.receipts and (now - stream.seen).total_seconds() > older
    ]


def receipts(
    connection: Connection,
    *,
    stream: str | None = None,
    batch: int | None = None,
    task: int | None = None,
    queue: QueueAddress | None = None,
) -> list[HeldReceipt]:
    """Receipts, the oldest first; None matches any."""
    name = None if queue is None else connection.names.print_address(queue)
    return [
        replace(receipt, queue=queue_names(connection, receipt.queue))
        for receipt in connection.rows("receipts", HeldReceipt, stream=stream, queue_name=name)
        if batch in {None, receipt.batch} and task in {None, receipt.task}
    ]


def trail(
    connection: Connection, *, entries: int, queue: QueueAddress | None = None
) -> list[TrailEntry]:
    """Return the last entries of the audit trail, the latest first; None: of all queues."""
    name = None if queue is None else connection.printed(queue)
    return connection.rows("trail", TrailEntry, entries=entries, queue_name=name)


def queue_names(connection: Connection, text: str) -> str:
    """
    The queues of a state row as all commands print them; text that is no address stays.

    State rows leave out the database that they are in, so that a copy of it does not name this one.
    """
    try:
        found = map(connection.names.parse_queue, split_canonical(text))
        return ", ".join(map(connection.printed, found))
    except BadAddress:
        return text


def messages(connection: Connection, queue: QueueAddress, *, limit: int) -> Iterator[Message]:
    """Read the lowest messages of a queue, in the order of seq, each page in a transaction."""
    for page in pages(connection, queue):
        for row in page.slice(0, limit).to_pylist():
            yield message(row)
        limit -= page.num_rows
        if limit <= 0:
            return


def pages(connection: Connection, queue: QueueAddress) -> Iterator[pa.Table]:
    """Read a queue, in the order of seq: pages of QUEUE_ROW, each in a transaction."""
    from sqlq_spark.receive import browse  # noqa: PLC0415 - see cli

    for _, first, stop in browse.split_queues(connection, [queue], count=1):
        yield from browse.read_pages(connection, queue, first, stop, narrow=False)


def message(row: dict[str, Any]) -> Message:
    """The message in a row of QUEUE_ROW."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import uuid_text  # noqa: PLC0415 - see cli

    headers = parse_headers(row["headers"])
    corrupt = row["headers"] if headers is None else None
    expires = None if row["expires"] is None else row["expires"].replace(tzinfo=UTC)
    return Message(uuid_text(row["id"]), headers, corrupt, row["body"], row["seq"], expires)
