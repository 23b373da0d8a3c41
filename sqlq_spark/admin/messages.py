"""Reads the messages of a queue, for people and for a return to source. Locks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a queue, read from a row of QUEUE_ROW."""

    id: str
    headers: dict[str, str | None] | None  # None if they cannot be read: the message is poison
    corrupt_headers: str | None  # the text of headers that cannot be read
    body: bytes | None  # some old writers wrote null
    seq: int
    expires: datetime | None  # with its zone, UTC


def list_messages(
    connection: Connection, queue: QueueAddress, *, limit: int
) -> Iterator[StoredMessage]:
    """Read at most `limit` messages of a queue, lowest seq first, each page in a transaction."""
    for page in read_all_pages(connection, queue):
        for row in page.slice(0, limit).to_pylist():
            yield to_message(row)
        limit -= page.num_rows
        if limit <= 0:
            return


def read_all_pages(connection: Connection, queue: QueueAddress) -> Iterator[pa.Table]:
    """Read a queue in the order of seq, as pages of QUEUE_ROW, each in a transaction."""
    from sqlq_spark.receive import browse  # noqa: PLC0415 - see cli

    for _, first, stop in browse.split_queues(connection, [queue], count=1):
        yield from browse.read_pages(connection, queue, first, stop, narrow=False)


def to_message(row: dict[str, Any]) -> StoredMessage:
    """Return the message of a row of QUEUE_ROW."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import uuid_text  # noqa: PLC0415 - see cli

    headers = parse_headers(row["headers"])
    corrupt = row["headers"] if headers is None else None
    expires = None if row["expires"] is None else row["expires"].replace(tzinfo=UTC)
    return StoredMessage(uuid_text(row["id"]), headers, corrupt, row["body"], row["seq"], expires)
