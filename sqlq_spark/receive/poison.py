"""
What a task cannot deliver: messages that cannot be read, and messages that are too large.

Poison is a message whose headers are not a JSON object of texts, or are not UTF-8, or have a name
that is too long for Spark. (A database with the encoding SQL_ASCII holds any bytes.) All poison of
a task is diverted to the error queue at once. There it gets headers that can be read, and one of
them holds the old text. These headers are for ServiceControl: it would try a row that it cannot
read for ever, and all other failures would wait. Poison that an operator returns is diverted again.
Without the option errorQueue poison is delivered, with its text in the column corruptHeaders.

A message is too large if it has more than maxMessageBytes, or its headers have more than
maxHeaderBytes. The server moves it to the error queue without sending it to the task. It gets no
new header, because parsing its headers would take long while the transaction is open. Only the log
says why it was moved.
"""

from __future__ import annotations

import json
import logging
import socket
from base64 import b64encode
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import TransactionUndone
from sqlq_spark.database.collisions import insert_past_taken
from sqlq_spark.database.destinations import SENT_COLUMNS
from sqlq_spark.database.looks import SAMPLED
from sqlq_spark.database.trust import Use, use
from sqlq_spark.errors import MessageTooLarge, StatementFailed, StatementRefused
from sqlq_spark.options.fields import DEFAULT_HEADER_SIZE
from sqlq_spark.send.own_headers import escape_all
from sqlq_spark.wire.header_columns import Headers, parse_headers
from sqlq_spark.wire.headers import (
    CORRUPT_HEADERS,
    CORRUPT_HEADERS_BASE64,
    ENCLOSED_MESSAGE_TYPES,
    EXCEPTION_INFO,
    FAILED_Q,
    FL_RETRIES,
    MESSAGE_ID,
    POISON_TYPE,
    PROCESSING_ENDPOINT,
    RETRIES,
    TIME_OF_FAILURE,
    dumps,
    format_wire_time,
    host_headers,
)
from sqlq_spark.wire.rows import (
    find_undecodable,
    id_texts,
    record_batches,
    rising_ids,
    with_readable_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.batch import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

T = TypeVar("T")

UNREADABLE = (
    "The headers of this message cannot be read: they are not a JSON object of texts, or not "
    f"UTF-8. Their text is in the header {CORRUPT_HEADERS}, or {CORRUPT_HEADERS_BASE64}. Do not "
    'retry it: put it back with correct headers, as the runbook "Poison messages" says.'
)
# One task diverts at most MOST_LARGE large messages, with about MOST_BYTES bytes together. Other
# large messages wait for the next batch.
MOST_LARGE = 1000
MOST_BYTES = 1 << 30


# ---------------------------------------------------------------- what cannot be read


def warn_of_poison(rows: pa.RecordBatch, queue: str) -> None:
    """Log how many poison messages are delivered. `rows` has the columns that a reader returns."""
    poison = rows.column("headers").null_count if "headers" in rows.schema.names else 0
    if poison:
        log.warning(
            "%s: %d messages have corrupt headers. They are delivered with headers null and their "
            "text in corruptHeaders. The option errorQueue diverts them to the error queue",
            queue,
            poison,
        )


@dataclass(frozen=True, kw_only=True)
class Readable:
    """The rows of a task without its poison."""

    # U+FFFD replaces each byte of their texts that is not UTF-8
    rows: pa.Table
    # the headers of each of `record_batches(rows)`, if they were parsed to look for poison
    headers: list[Headers] | None = None


def divert_poison(connection: Connection, task: Task, live: pa.Table) -> Readable:
    """
    Divert poison to the error queue. If there is no error queue, poison is delivered.

    The headers are parsed in the batches in which Spark gets the rows. Then the same parse serves
    the columns of a read.

    Raises the errors of `store_in_error_queue`.
    """
    error_queue = task.options.error_address
    unread = find_undecodable(live["headers"])
    rows = with_readable_texts(live, unread)
    if error_queue is None:
        return Readable(rows=rows)
    parsed = [Headers(batch.column("headers")) for batch in record_batches(rows)]
    corrupt = pc.or_(pa.chunked_array([each.poison() for each in parsed], pa.bool_()), unread)
    types = pa.chunked_array([each.text(ENCLOSED_MESSAGE_TYPES) for each in parsed], pa.string())
    # an operator may have returned poison that was diverted before
    returned = pc.fill_null(pc.equal(types, POISON_TYPE), fill_value=False)
    poison = pc.or_(corrupt, returned)
    if not pc.any(poison).as_py():
        return Readable(rows=rows, headers=parsed)
    bad = PoisonRows(
        ids=combine(live["id"].filter(poison)),
        stored=combine(live["headers"].filter(poison)),
        texts=combine(rows["headers"].filter(poison)),
        unread=combine(unread.filter(poison)),
        returned=combine(pc.invert(corrupt).filter(poison)),
    )
    headers = fit_headers(connection, task, bad)
    # the column of the expiry stays out, because Python may not be able to hold its values
    bodies = live["body"].filter(poison)

    def store(renamed: bool) -> None:  # noqa: FBT001
        ids = rising_ids(len(headers)) if renamed else bad.ids
        stored = pa.table({"id": ids, "headers": headers, "body": bodies})
        connection.load(error_queue, stored)

    store_in_error_queue(connection, error_queue, store, rows=len(headers))
    queue = connection.printed(task.queue)
    log.warning("%s: %d poison messages moved to the error queue", queue, len(headers))
    return Readable(rows=rows.filter(pc.invert(poison)))


@dataclass(frozen=True, kw_only=True)
class PoisonRows:
    """Columns of the poison in one task."""

    ids: pa.Array  # the ids of the rows, each 16 bytes
    stored: pa.Array  # the headers as they were received
    texts: pa.Array  # the headers in valid UTF-8
    unread: pa.Array  # whether the headers are not UTF-8
    returned: pa.Array  # whether this is diverted poison that an operator returned: it can be read

    def filter(self, mask: pa.Array) -> PoisonRows:
        return PoisonRows(
            **{each.name: getattr(self, each.name).filter(mask) for each in fields(self)}
        )


def combine(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def fit_headers(connection: Connection, task: Task, bad: PoisonRows) -> pa.Array:
    """
    Return readable headers for poison, or its old headers if the new ones would be too large.

    The old text becomes up to six times as long by escapes. Old headers that are too large are not
    parsed.
    """
    most = min(task.options.max_header_bytes, DEFAULT_HEADER_SIZE)
    short = pc.less_equal(connection.stored_bytes(bad.texts), most)
    headers = write_poison_headers(bad.filter(short), failure_of_poison(connection, task.queue))
    fits = pc.less_equal(connection.stored_bytes(headers), most)
    unfit = len(short) - (pc.sum(fits).as_py() or 0)
    if unfit:
        log.warning(
            "%s: %d poison messages keep their headers: readable ones would have more than %d "
            "bytes. ServiceControl cannot take such a message from its error queue",
            connection.printed(task.queue),
            unfit,
            most,
        )
    kept = pc.if_else(fits, headers, bad.stored.filter(short))
    return pc.replace_with_mask(bad.stored, short, kept)


def failure_of_poison(connection: Connection, queue: QueueAddress) -> dict[str, str]:
    """Return the headers that `fail` would write. They hold no text of a message."""
    return {
        ENCLOSED_MESSAGE_TYPES: POISON_TYPE,
        PROCESSING_ENDPOINT: queue.table,
        **host_headers(socket.gethostname()),
        FAILED_Q: connection.canonical(queue),
        f"{EXCEPTION_INFO}ExceptionType": POISON_TYPE,
        f"{EXCEPTION_INFO}Message": UNREADABLE,
        TIME_OF_FAILURE: format_wire_time(datetime.now(UTC)),
    }


def write_poison_headers(bad: PoisonRows, failure: dict[str, str]) -> pa.Array:
    """Write headers for each row: MessageId, the failure, and a header that holds the old text."""
    members = dumps(failure)[1:-1]
    head = pc.binary_join_element_wise(
        f'{{"{MESSAGE_ID}":"', id_texts(bad.ids), f'",{members},"', ""
    )
    old = escape_all(pc.if_else(pc.or_(bad.unread, bad.returned), None, bad.texts))
    headers = pc.binary_join_element_wise(head, f'{CORRUPT_HEADERS}":"', old, '"}', "")
    if pc.any(bad.unread).as_py():
        octets = bad.stored.filter(bad.unread).cast(pa.binary()).to_pylist()
        coded = pa.array([b64encode(each).decode("ascii") for each in octets], pa.string())
        others = pc.binary_join_element_wise(
            head.filter(bad.unread), f'{CORRUPT_HEADERS_BASE64}":"', coded, '"}', ""
        )
        headers = pc.replace_with_mask(headers, bad.unread, others)
    if pc.any(bad.returned).as_py():
        ids = id_texts(bad.ids.filter(bad.returned)).to_pylist()
        texts = bad.texts.filter(bad.returned).to_pylist()
        again = [fail_again(*each, failure) for each in zip(texts, ids, strict=True)]
        headers = pc.replace_with_mask(headers, bad.returned, pa.array(again, pa.string()))
    return headers


def fail_again(text: str, row: str, failure: dict[str, str]) -> str:
    """
    Write the headers of poison that was returned to its queue and is poison again.

    The new failure replaces the old one, and all other headers stay. Usually the header FailedQ is
    gone, because a return to source removes it. If it is still there, the stream reads an error
    queue, and nothing is replaced.
    """
    headers = parse_headers(text) or {}
    if headers.get(FAILED_Q):
        return text
    replaced = (RETRIES, FL_RETRIES, *failure)
    kept = {
        name: value
        for name, value in headers.items()
        if name not in replaced and not name.startswith(EXCEPTION_INFO)
    }
    message_id = headers.get(MESSAGE_ID) or row
    return dumps({**kept, MESSAGE_ID: message_id, **failure})


def store_in_error_queue(
    connection: Connection, error_queue: QueueAddress, store: Callable[[bool], T], *, rows: int
) -> T:
    """
    Store messages in the error queue. If one of their ids is taken, all get new ids.

    `store` inserts all messages. It is called with True if they are to get new ids. `rows` is how
    many messages there are.

    Raises:
        RowsHeld: other sessions hold ids or seqs of the messages. Nothing was received.
        StatementFailed: the error queue refuses the messages under any id. Nothing was received.
        TableRefused.
    """
    use(connection, [error_queue], Use("insert", SENT_COLUMNS))
    try:
        try:
            return insert_past_taken(connection, error_queue, store, rows=rows)
        except TransactionUndone as undone:
            raise undone.failure from None
    except StatementRefused as error:
        fix = "fix that table, or name another errorQueue"
        reason = f"{error.reason}: {connection.printed(error_queue)} takes no poison: {fix}"
        raise StatementFailed(statement=error.statement, code=error.code, reason=reason) from None


# ---------------------------------------------------------------- what is too large


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """A message that is too large to be fetched: a row of `find_large`."""

    seq: int
    bytes: int  # bytes of headers and body
    headers: int  # bytes of the headers
    place: str  # where the row is in the table: two messages may have the same seq


@dataclass(frozen=True, slots=True)
class LargeDiverted:
    """What became of large messages: the row of `divert_large`."""

    diverted: int  # how many went to the error queue
    expired: int  # how many had expired and were dropped


def divert_large(connection: Connection, task: Task, *, is_short: bool) -> LargeDiverted:
    """
    Move messages that are too large to the error queue, without fetching them.

    A message is too large if it has too many bytes, or if its headers have. This looks for such
    messages only if `is_short`: the task got fewer messages than were planned for it, and fewer
    bytes than it may take.

    Raises MessageTooLarge if there is no error queue.
    """
    options = task.options
    if not is_short or not may_be_large(task):
        return LargeDiverted(diverted=0, expired=0)
    large = connection.rows(
        "find_large",
        LargeMessage,
        tables={"queue": task.queue},
        first=task.first,
        stop=task.stop,
        messages=MOST_LARGE,
        largest=options.max_message_bytes,
        largest_headers=options.max_header_bytes,
    )
    if not large:
        return LargeDiverted(diverted=0, expired=0)
    queue = connection.printed(task.queue)
    if options.error_address is None:
        raise describe_large(options, queue, large[0])
    diverted = 0
    expired = 0
    for group in cut_groups(large, connection.most_moved):
        moved = divert_group(connection, task, options.error_address, group)
        diverted += moved.diverted
        expired += moved.expired
        heaviest = max(group, key=lambda message: (message.bytes, message.seq))
        log.warning(
            "%s: %d messages are larger than maxMessageBytes (%d), or their headers than "
            "maxHeaderBytes (%d). They leave the queue unread, for the error queue unless they "
            "have expired; the largest has %d bytes and seq %d",
            queue,
            len(group),
            options.max_message_bytes,
            options.max_header_bytes,
            heaviest.bytes,
            heaviest.seq,
        )
    return LargeDiverted(diverted=diverted, expired=expired)


def may_be_large(task: Task) -> bool:
    """
    Whether the task's queue may have a message that is too large, by the sample in the task's plan.

    `receive` leaves large messages in the queue. So after some time they have the lowest seqs of
    the queue, and are in the sample. None of them is larger than the mean of the sample times
    SAMPLED. The mean counts each character of headers as one byte, although the table may use two
    bytes for it.
    """
    limit = min(task.options.max_message_bytes, task.options.max_header_bytes // 2)
    return task.bytes_each * SAMPLED >= limit


def describe_large(options: SourceOptions, queue: str, message: LargeMessage) -> MessageTooLarge:
    """Return the error of a stream without an error queue. It says which limit is exceeded."""
    limits = (
        ("maxMessageBytes", options.max_message_bytes, "headers and body", message.bytes),
        ("maxHeaderBytes", options.max_header_bytes, "headers", message.headers),
    )
    exceeded = [
        (option, largest, counted, size)
        for option, largest, counted, size in limits
        if size > largest
    ]
    option, largest, counted, size = exceeded[0]
    return MessageTooLarge(
        queue=queue, seq=message.seq, size=size, counted=counted, option=option, largest=largest
    )


def cut_groups(large: list[LargeMessage], most: int) -> Iterator[list[LargeMessage]]:
    """
    Cut large messages into groups. One statement moves one group.

    A group has at most `most` bytes, or only one message. Once all groups together have MOST_BYTES,
    no more messages are put into groups.
    """
    total = 0
    size = 0
    group: list[LargeMessage] = []
    for message in large:
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


def divert_group(
    connection: Connection, task: Task, error_queue: QueueAddress, group: list[LargeMessage]
) -> LargeDiverted:
    """Move a group of large messages to the error queue by one statement, on the server."""

    def store(renamed: bool) -> LargeDiverted:  # noqa: FBT001
        tables = {"queue": task.queue, "errors": error_queue}
        chosen = json.dumps([(message.seq, message.place) for message in group])
        diverted = connection.row(
            "divert_large", LargeDiverted, tables=tables, chosen=chosen, renamed=renamed
        )
        assert diverted is not None, "it counts, so it has a row"  # noqa: S101
        return diverted

    return store_in_error_queue(connection, error_queue, store, rows=len(group))
