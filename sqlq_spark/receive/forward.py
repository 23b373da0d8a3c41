"""
Forwarding: send on received messages that were delayed and belong to another queue.

An endpoint has one table of delayed messages for all destinations, and moves due messages into its
own queue. The header ForwardDestination names the queue to which such a message belongs. The task
that receives the message sends it on to that queue in the same transaction, without this header and
without expiry. If the message belongs to this queue, only the header is removed. A message that
cannot be sent on is diverted to the error queue, and can be returned from there. Without an error
queue, Spark gets the message with its header.

Headers longer than maxHeaderBytes are not parsed. Readers without this limit, such as error_triage,
deliver messages with headers of more than 1 MiB without looking for ForwardDestination.

The addresses in the headers are untrusted. They are parsed, and database/destinations.py decides
which of them may receive messages. If a statement for one destination fails, only the work for that
destination is undone.
"""

from __future__ import annotations

import logging
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.database import find_same, load_checked
from sqlq_spark.database.destinations import LOCK_PATIENCE, RETURNED_COLUMNS, Destinations
from sqlq_spark.options.fields import DEFAULT_HEADER_SIZE
from sqlq_spark.receive.batch import TaskResult
from sqlq_spark.receive.poison import store_in_error_queue
from sqlq_spark.send.divert import failure_headers, list_reasons, rows_to_store
from sqlq_spark.wire.header_columns import NAMED_IN_HEX, parse_headers
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.receive.batch import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

# One of these words occurs in any headers with ForwardDestination. The second word is for writers
# that escape the name in JSON.
# Measured with 33 MB of 50,000 headers without these words: RE2 takes 1 ms for each word if the
# headers are searched as one text, and 3 ms row by row. pyarrow's plain search takes 55 ms. One
# pattern with both words takes 100 ms.
FORWARD_WORDS = ("ForwardDestination", NAMED_IN_HEX)


def forward_delayed(
    connection: Connection, task: Task, rows: pa.Table, failed: Reasons
) -> TaskResult:
    """
    Send on the messages of the task that belong to other queues, in the transaction that is open.

    `failed` names the destinations whose failure ended this transaction in an earlier attempt: see
    `run_without_failed`.

    Returns:
        The messages that Spark gets, how many messages were forwarded, and how many could not be
        forwarded and were diverted.

    Raises:
        TableRefused: a table must not be used, and there is no error queue.
    """
    marked = find_marked(rows["headers"])
    if marked is None:
        return TaskResult(rows)
    if not task.options.limits_headers:  # parsing takes long, and the transaction is open
        size = pc.binary_length(rows["headers"])
        is_short = pc.fill_null(pc.less_equal(size, DEFAULT_HEADER_SIZE), fill_value=True)
        marked = pc.and_(marked, is_short)
    connection.set_lock_timeout(LOCK_PATIENCE)
    work = Forwarding(connection, task, rows.filter(marked), failed)
    reasons = work.send() if work.away else {}
    connection.set_lock_timeout(None)
    diverted = work.divert(reasons) if reasons else []
    sent = work.rows_for(work.away.keys() - reasons.keys())
    if sent:
        log.info("%s: %d delayed messages forwarded", connection.printed(task.queue), len(sent))
    delivered = deliver(rows, marked, work.texts, {*sent, *diverted})
    return TaskResult(delivered, forwarded=len(sent), diverted=len(diverted))


class Forwarding:
    """
    The messages of a task that may belong to other queues.

    In this class a `row` is the index of a message among them.
    """

    def __init__(
        self, connection: Connection, task: Task, marked: pa.Table, failed: Reasons
    ) -> None:
        self.connection = connection
        self.task = task
        self.bodies = marked["body"]
        # the header text of each row. For a row that stays here, ForwardDestination is removed
        self.texts: list[str | None] = marked["headers"].to_pylist()
        # row → the headers of a message that goes to another queue. The header ForwardDestination,
        # which names that queue, is removed already.
        self.headers: dict[int, dict[str, str | None]] = {}
        self.away: dict[str, list[int]] = {}  # the rows of each other destination
        self.destinations = Destinations(
            connection, source=task.queue, by_header=True, failed=failed
        )
        self._read()

    def _read(self) -> None:
        """Read where each row belongs, and remove the header that says it."""
        for row, text in enumerate(self.texts):
            headers = parse_headers(text)
            if headers is None or FORWARD_DESTINATION not in headers:
                continue  # poison, or the word is in another header
            destination = headers.pop(FORWARD_DESTINATION)
            if destination is None:
                self.texts[row] = dumps(headers)
            else:
                self.headers[row] = headers
                self.away.setdefault(destination, []).append(row)
        for destination in self._find_this_queue():
            for row in self.away.pop(destination):
                self.texts[row] = dumps(self.headers.pop(row))

    def _find_this_queue(self) -> set[str]:
        """
        Return which destinations are this queue, in whatever spelling.

        A destination that another session has locked is not this queue: this task has locked its
        own queue, so no other session can have such a lock on it.
        """
        same: set[str] = set()

        def look_at_some(texts: Collection[str]) -> None:
            same.update(find_same(self.connection, self.task.queue, texts))

        self.destinations.look_at(self.away, look_at_some)
        return same

    def rows_for(self, destinations: Collection[str]) -> list[int]:
        return sorted(row for name in destinations for row in self.away[name])

    def send(self) -> dict[str, errors.SqlQueueError]:
        """Send messages to the destinations. Return why some destinations got none."""
        addresses: dict[str, QueueAddress] = {}
        reasons: dict[str, errors.SqlQueueError] = {}
        for text in self.away:
            try:
                addresses[text] = self.connection.names.parse_address(text)
            except errors.BadAddress as error:
                reasons[text] = error
        failed = self.destinations.lock_each(addresses.values(), RETURNED_COLUMNS)
        for refusal in failed.values():  # a refused table stops a stream without an error queue
            is_refused = isinstance(refusal, errors.TableRefused)
            if is_refused and self.task.options.error_address is None:
                raise refusal
        for text, address in addresses.items():
            reason = failed.get(address)
            if reason is None:
                rows = self._to_send(self.away[text])
                load = partial(load_checked, self.connection, address, rows)
                reason = self.destinations.isolate(address, load)
            if reason is not None:
                reasons[text] = reason
        return reasons

    def divert(self, reasons: dict[str, errors.SqlQueueError]) -> list[int]:
        """
        Put the rows of some destinations into the error queue, all at once.

        Returns the rows that were moved. If there is no error queue, no row is moved.
        """
        rows = self.rows_for(reasons)
        error_queue = self.task.options.error_address
        log.warning(
            "%s: %d delayed messages cannot be forwarded and %s: %s",
            self.connection.printed(self.task.queue),
            len(rows),
            "are delivered here, as there is no errorQueue"
            if error_queue is None
            else "go to the error queue",
            list_reasons([*reasons.values()]),
        )
        if error_queue is None:
            return []
        for destination, reason in reasons.items():
            failure = failure_headers(self.connection, destination, reason)
            for row in self.away[destination]:
                self.headers[row] |= failure
        store_in_error_queue(
            self.connection,
            error_queue,
            # the rows get new ids each time
            lambda _: self.connection.load(error_queue, self._to_send(rows)),
            rows=len(rows),
        )
        return rows

    def _to_send(self, rows: list[int]) -> pa.Table:
        texts = [dumps(self.headers[row]) for row in rows]
        return rows_to_store(texts, self.bodies.take(pa.array(rows)))


# ---------------------------------------------------------------- marked rows, in columns


def find_marked(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Mark the rows whose headers have one of FORWARD_WORDS. Returns None if no row has one."""
    masks = [
        pc.match_substring_regex(texts, word) for word in FORWARD_WORDS if is_mentioned(word, texts)
    ]
    return pc.fill_null(reduce(pc.or_, masks), fill_value=False) if masks else None


def is_mentioned(word: str, texts: pa.ChunkedArray) -> bool:
    """Whether a word is in any of the texts. A chunk is searched as one text, which is faster."""
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk) and data is not None:
            ends = np.frombuffer(offsets, np.int32)[[chunk.offset, chunk.offset + len(chunk)]]
            whole = [None, pa.py_buffer(ends.astype(np.int64)), data]
            text = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, whole)
            if pc.match_substring_regex(text, word)[0].as_py():
                return True
    return False


def deliver(
    rows: pa.Table, marked: pa.ChunkedArray, texts: list[str | None], left: Collection[int]
) -> pa.Table:
    """
    Return the rows that stay in this queue, with the changed headers of the marked ones.

    `texts` has the headers of the marked rows. `left` has the marked rows that have left this
    queue, as indexes among the marked rows.
    """
    mask = marked.combine_chunks()
    headers = pc.replace_with_mask(
        rows["headers"].combine_chunks(), mask, pa.array(texts, pa.string())
    )
    place = rows.schema.get_field_index("headers")
    rows = rows.set_column(place, rows.schema.field(place), headers)
    if not left:
        return rows
    is_kept = pa.array([True] * rows.num_rows)
    is_marked_kept = pa.array([row not in left for row in range(len(texts))])
    return rows.filter(pc.replace_with_mask(is_kept, mask, is_marked_kept))
