"""
What a task cannot deliver: messages that cannot be read, and messages that are too large.

Poison is a row whose headers are not a JSON object of texts, or are not UTF-8 (a database of
SQL_ASCII holds any bytes). It goes to the error queue byte for byte, all of a task at once. Without
the option errorQueue it is delivered, with its text in the column corruptHeaders. The server moves
a message that is larger than maxMessageBytes, or whose headers are larger than maxHeaderBytes,
without sending it to the task: to parse headers takes long, and the transaction is open. No header
is added to either: the headers may be what is too large, or what cannot be read. The log says why.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import TransactionUndone, attempt
from sqlq_spark.database.destinations import SENT
from sqlq_spark.database.trust import Use, use
from sqlq_spark.errors import MessageTooLarge, StatementFailed, StatementRefused
from sqlq_spark.wire.header_columns import Headers
from sqlq_spark.wire.rows import find_undecodable, rising_ids, with_readable_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.task import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

T = TypeVar("T")

SAMPLED = 50  # messages whose mean weight a plan knows: at most, see the statement `sample`
MOST_LARGE = 1000  # of them in a task, and
MOST_BYTES = 1 << 30  # bytes; one message at least. The others wait for the next batch


# ---------------------------------------------------------------- what cannot be read


def warn_of_poison(rows: pa.RecordBatch, queue: str) -> None:
    """Log that poison messages are delivered; `rows` are columns of a read."""
    poison = rows.column("headers").null_count if "headers" in rows.schema.names else 0
    if poison:
        log.warning(
            "%s: %d messages have corrupt headers. They are delivered with headers null and their "
            "text in corruptHeaders. The option errorQueue moves such messages aside",
            queue,
            poison,
        )


def divert_poison(connection: Connection, task: Task, live: pa.Table) -> pa.Table:
    """
    Put poison into the error queue. Without one it is delivered, its invalid UTF-8 as U+FFFD.

    Returns the other rows, all texts valid. Raises as `store_in_error_queue`.
    """
    errors = task.options.error_address
    unread = find_undecodable(live["headers"])
    rows = with_readable_texts(live, unread)
    if errors is None:
        return rows
    unfit = [Headers(chunk).poison() for chunk in rows["headers"].chunks]
    poison = pc.or_(pa.chunked_array(unfit, pa.bool_()), unread)
    if not pc.any(poison).as_py():
        return rows
    bad = live.filter(poison).select(["id", "headers", "body"])  # an expiry may be beyond Python

    def store(renamed: bool) -> None:  # noqa: FBT001
        ids = rising_ids(bad.num_rows) if renamed else bad["id"]
        connection.load(errors, bad.set_column(0, "id", ids))

    store_in_error_queue(connection, errors, store)
    log.warning(
        "%s: %d poison messages moved to the error queue",
        connection.printed(task.queue),
        bad.num_rows,
    )
    return rows.filter(pc.invert(poison))


def store_in_error_queue(
    connection: Connection, errors: QueueAddress, store: Callable[[bool], T]
) -> T:
    """
    Store messages in the error queue under their ids, or, if one is there already, new ones.

    `store` stores all of them; True: under new ids.

    Raises:
        StatementFailed: the error queue takes them under no id; nothing was received.
        TableRefused.
    """
    use(connection, [errors], Use("insert", SENT))
    try:
        try:
            with attempt(connection):
                return store(False)  # noqa: FBT003
        except StatementRefused:
            return store(True)  # noqa: FBT003
        except TransactionUndone as undone:
            raise undone.failure from None
    except StatementRefused as error:
        fix = "fix that table, or name another errorQueue"
        reason = f"{error.reason}: {connection.printed(errors)} takes no poison: {fix}"
        kind = StatementFailed(statement=error.statement, code=error.code, reason=reason)
        raise kind from None


# ---------------------------------------------------------------- what is too large


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """A message that is too large to be fetched: a row of `find_large`."""

    seq: int
    bytes: int
    headers: int  # bytes of them
    place: str  # what names the row, of messages with one seq


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of large messages: the row of `divert_large`."""

    moved: int
    expired: int


def divert_large(connection: Connection, task: Task, *, short: bool) -> tuple[int, int]:
    """
    Move messages to the error queue that are too large or have too large headers, on the server.

    `short`: the task got less than it was planned for and may hold. Raises MessageTooLarge if there
    is no error queue.

    Returns:
        How many were moved, and how many had expired and are gone.
    """
    errors = task.options.error_address
    largest, largest_headers = task.options.max_message_bytes, task.options.max_header_bytes
    # `receive` passes over large messages, at no cost, so they become the lowest of the queue. Then
    # they are in the plan's sample: SAMPLED times its mean is no less than each of them. A mean
    # counts a character of headers as one byte, where the table may store it in two
    if not short or task.bytes_each * SAMPLED < min(largest, largest_headers // 2):
        return 0, 0
    found = connection.rows(
        "find_large",
        LargeMessage,
        tables={"queue": task.queue},
        first=task.first,
        stop=task.stop,
        messages=MOST_LARGE,
        largest=largest,
        largest_headers=largest_headers,
    )
    if not found:
        return 0, 0
    name = connection.printed(task.queue)
    if errors is None:
        raise describe_large(task.options, name, found[0])
    moved = expired = 0
    for group in cut_groups(found, connection.most_moved):
        done = move(connection, task, errors, group)
        moved += done.moved
        expired += done.expired
        heaviest = max(group, key=lambda message: (message.bytes, message.seq))
        log.warning(
            "%s: %d messages are larger than maxMessageBytes (%d), or their headers than "
            "maxHeaderBytes (%d). They leave the queue unread, for the error queue unless they "
            "have expired; the largest has %d bytes and seq %d",
            name,
            len(group),
            largest,
            largest_headers,
            heaviest.bytes,
            heaviest.seq,
        )
    return moved, expired


def describe_large(options: SourceOptions, queue: str, message: LargeMessage) -> MessageTooLarge:
    """Say which limit a message exceeds; the error for a stream without an error queue."""
    if message.bytes > options.max_message_bytes:
        return MessageTooLarge(
            queue=queue,
            seq=message.seq,
            size=message.bytes,
            counted="headers and body",
            option="maxMessageBytes",
            largest=options.max_message_bytes,
        )
    return MessageTooLarge(
        queue=queue,
        seq=message.seq,
        size=message.headers,
        counted="headers",
        option="maxHeaderBytes",
        largest=options.max_header_bytes,
    )


def cut_groups(found: list[LargeMessage], most: int) -> Iterator[list[LargeMessage]]:
    """
    Cut messages by seq and bytes into what one statement moves, up to what one task may.

    `most` is how many bytes one statement moves, but one message at least.
    """
    total = size = 0
    group: list[LargeMessage] = []
    for message in found:
        if total >= MOST_BYTES:
            break
        if group and size + message.bytes > most:
            yield group
            group = []
            size = 0
        group.append(message)
        size += message.bytes
        total += message.bytes
    if group:
        yield group


def move(
    connection: Connection, task: Task, errors: QueueAddress, chosen: list[LargeMessage]
) -> Moved:
    """Move messages to the error queue, on the server."""

    def divert(renamed: bool) -> Moved:  # noqa: FBT001
        tables = {"queue": task.queue, "errors": errors}
        listed = json.dumps([(message.seq, message.place) for message in chosen])
        moved = connection.row("divert_large", Moved, tables=tables, chosen=listed, renamed=renamed)
        assert moved is not None, "it counts, so it has a row"  # noqa: S101
        return moved

    return store_in_error_queue(connection, errors, divert)
