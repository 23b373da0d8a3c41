"""
What waits and what is under way, for people: depths, readers, receipts, one message at a glance.

Reads only; locks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark import browse
from sqlq_spark.message import flat, opened, uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

SEQ_END = 2**31 - 1  # PostgreSQL's serial: the INSERT after it fails
SEQ_WARNING = 0.8


@dataclass(frozen=True, slots=True)
class Depth:
    """A queue's table."""

    queue: str
    messages: int  # expired ones among them
    expired: int
    bytes: int  # of the table and its indexes
    first: int | None  # lowest seq
    last: int | None

    @property
    def seq_used(self) -> float:
        """How much of the seqs is used up, 0 to 1."""
        return (self.last or 0) / SEQ_END


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader's row: one for each checkpoint."""

    reader: str
    queue: str
    batch: int  # the last that is acknowledged
    messages: int  # of all acknowledged batches
    expired: int
    diverted: int
    created: datetime
    seen: datetime
    receipts: int
    held: int  # messages in them


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task holds until its batch is acknowledged."""

    reader: str
    queue: str
    batch: int
    task: int
    messages: int
    bytes: int
    settled: bool
    created: datetime
    seen: datetime | None  # the reader, when it last spoke

    @property
    def name(self) -> str:
        """Reader, batch and task."""
        return f"{self.reader}/{self.batch}/{self.task}"


@dataclass(frozen=True, slots=True)
class Message:
    """A row of a queue."""

    id: str
    seq: int
    expires: datetime | None
    headers: dict[str, str | None] | None  # None where they are no JSON object: poison
    corrupt_headers: str | None
    body: bytes | None  # no writer should write null; some did


def depth(connection: Connection, queue: QueueAddress) -> Depth:
    """
    Measure a queue; counts its rows.

    Raises:
        QueueNotFound, RightMissing.
    """
    name = connection.printed(queue)
    row = connection.rows("stats", tables={"queue": queue}, table_name=name)[0]
    return Depth(name, *row)


def readers(connection: Connection, queue: str | None = None) -> list[Reader]:
    """The readers of one queue, by its canonical address, or all; the last seen first."""
    found = [Reader(*row) for row in connection.rows("readers")]
    return [each for each in found if queue in {None, each.queue}]


def receipts(
    connection: Connection,
    *,
    reader: str | None = None,
    batch: int | None = None,
    task: int | None = None,
    queue: str | None = None,
) -> list[Receipt]:
    """Receipts, the oldest first; None is any."""
    found = (Receipt(*row) for row in connection.rows("receipts", reader=reader, queue_name=queue))
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
            for row in page.slice(0, limit).to_pylist():
                yield shown(row)
            limit -= page.num_rows
            if limit <= 0:
                return


def shown(row: dict[str, Any]) -> Message:
    """One row of QUEUE_ROW."""
    headers = opened(row["headers"])
    if headers is not None and not flat(headers):
        headers = None
    return Message(
        id=uuid_text(row["id"]),
        seq=row["seq"],
        expires=row["expires"],
        headers=headers,
        corrupt_headers=None if headers is not None else row["headers"],
        body=row["body"],
    )
