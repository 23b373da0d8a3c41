"""
Forwarding: a delayed message that was moved into this queue may be for another one.

The header ForwardDestination says where it belongs. The task that receives the message sends it on,
in the same transaction, without the header and without expiry. If it belongs here, only the header
is removed. A message that cannot be sent on goes to the error queue, from where it can be returned.
Without an error queue it is delivered here as it is.

Headers are parsed only up to maxHeaderBytes. Where that is no limit, as in error_triage, those of
more than 1 MiB are delivered unsearched.

The addresses are untrusted. They are parsed, looked up all at once, and receive messages only if
database/destinations.py allows it. Any other failure of one destination is undone alone.
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
from sqlq_spark.receive.poison import store_in_error_queue
from sqlq_spark.send.divert import failure_headers, list_reasons, rows_to_store
from sqlq_spark.wire.header_columns import NAMED_IN_HEX, parse_headers
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.receive.task import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

# A word that no other header has, and how another writer may spell it.
# Measured, 33 MB of 50,000 headers without them: 1 ms each as one text, 3 ms row by row, both by
# RE2; 55 ms by pyarrow's plain search, 100 ms by both in one pattern.
MARKS = ("ForwardDestination", NAMED_IN_HEX)


def forward(
    connection: Connection, task: Task, rows: pa.Table, failed: Reasons
) -> tuple[pa.Table, int, int]:
    """
    Send on the messages of the task that belong to other queues, in the transaction that is open.

    `failed` are destinations that ended this transaction before, see `run_without_failed`.

    Returns:
        What is delivered here, how many messages were forwarded, and how many could not be and
        went to the error queue.

    Raises:
        TableRefused: a table must not be used, and there is no error queue.
    """
    marked = find_marked(rows["headers"])
    if marked is None:
        return rows, 0, 0
    if not task.options.limits_headers:  # to parse them takes long, and the transaction is open
        size = pc.binary_length(rows["headers"])
        is_short = pc.fill_null(pc.less_equal(size, DEFAULT_HEADER_SIZE), fill_value=True)
        marked = pc.and_(marked, is_short)
    connection.set_lock_timeout(LOCK_PATIENCE)
    work = Forwarding(connection, task, rows.filter(marked), failed)
    reasons = work.send() if work.away else {}
    connection.set_lock_timeout(None)
    given_up = work.give_up(reasons) if reasons else []
    sent = work.rows_for(work.away.keys() - reasons.keys())
    if sent:
        log.info("%s: %d delayed messages forwarded", connection.printed(task.queue), len(sent))
    return deliver(rows, marked, work.texts, {*sent, *given_up}), len(sent), len(given_up)


class Forwarding:
    """The marked rows of a task on their way; a row is its place among them."""

    def __init__(
        self, connection: Connection, task: Task, marked: pa.Table, failed: Reasons
    ) -> None:
        self.connection = connection
        self.task = task
        self.bodies = marked["body"]
        self.texts: list[str | None] = marked["headers"].to_pylist()  # of rows delivered here
        # of the rows that belong elsewhere, without ForwardDestination
        self.headers: dict[int, dict[str, str | None]] = {}
        self.away: dict[str, list[int]] = {}  # destination → its rows
        self.destinations = Destinations(
            connection, source=task.queue, by_header=True, failed=failed
        )
        self._read()

    def _read(self) -> None:
        """Read where rows belong, and take the header off."""
        for row, text in enumerate(self.texts):
            headers = parse_headers(text)
            if headers is None or FORWARD_DESTINATION not in headers:
                continue  # poison, or the mark is in another header
            destination = headers.pop(FORWARD_DESTINATION)
            if destination is None:
                self.texts[row] = dumps(headers)
            else:
                self.headers[row] = headers
                self.away.setdefault(destination, []).append(row)
        for destination in self._find_own():
            for row in self.away.pop(destination):
                self.texts[row] = dumps(self.headers.pop(row))

    def _find_own(self) -> set[str]:
        """Return which destinations are this queue. Nobody alters it now, so no locked one is."""
        own: set[str] = set()

        def look_at_some(texts: Collection[str]) -> None:
            own.update(find_same(self.connection, self.task.queue, texts))

        self.destinations.look_at(self.away, look_at_some)
        return own

    def rows_for(self, destinations: Collection[str]) -> list[int]:
        return sorted(row for name in destinations for row in self.away[name])

    def send(self) -> dict[str, errors.SqlQueueError]:
        """Send on what can be sent; why the other destinations got nothing."""
        addresses: dict[str, QueueAddress] = {}
        reasons: dict[str, errors.SqlQueueError] = {}
        for text in self.away:
            try:
                addresses[text] = self.connection.names.parse_address(text)
            except errors.BadAddress as error:
                reasons[text] = error
        failed = self.destinations.lock_each(addresses.values(), RETURNED_COLUMNS)
        for refusal in failed.values():  # a trap stops a stream that has no error queue
            refused = isinstance(refusal, errors.TableRefused)
            if refused and self.task.options.error_address is None:
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

    def give_up(self, reasons: dict[str, errors.SqlQueueError]) -> list[int]:
        """Put rows into the error queue all at once, or leave them here; which are gone."""
        rows = self.rows_for(reasons)
        place = self.task.options.error_address
        log.warning(
            "%s: %d delayed messages cannot be forwarded and %s: %s",
            self.connection.printed(self.task.queue),
            len(rows),
            "are delivered here, as there is no errorQueue"
            if place is None
            else "go to the error queue",
            list_reasons([*reasons.values()]),
        )
        if place is None:
            return []
        for destination, reason in reasons.items():
            more = failure_headers(self.connection, destination, reason)
            for row in self.away[destination]:
                self.headers[row] |= more
        store_in_error_queue(
            self.connection,
            place,
            lambda _: self.connection.load(place, self._to_send(rows)),  # under new ids each time
            rows=len(rows),
        )
        return rows

    def _to_send(self, rows: list[int]) -> pa.Table:
        texts = [dumps(self.headers[row]) for row in rows]
        return rows_to_store(texts, self.bodies.take(pa.array(rows)))


# ---------------------------------------------------------------- rows with a mark, in columns


def find_marked(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Find the rows whose headers have a mark, as booleans; None: there are none."""
    found = [pc.match_substring_regex(texts, mark) for mark in MARKS if is_mentioned(mark, texts)]
    return pc.fill_null(reduce(pc.or_, found), fill_value=False) if found else None


def is_mentioned(mark: str, texts: pa.ChunkedArray) -> bool:
    """Whether a mark is in any text; each chunk is searched as one text, for speed."""
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk) and data is not None:
            ends = np.frombuffer(offsets, np.int32)[[chunk.offset, chunk.offset + len(chunk)]]
            whole = [None, pa.py_buffer(ends.astype(np.int64)), data]
            text = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, whole)
            if pc.match_substring_regex(text, mark)[0].as_py():
                return True
    return False


def deliver(
    rows: pa.Table, marked: pa.ChunkedArray, texts: list[str | None], left: Collection[int]
) -> pa.Table:
    """Give all rows of the task, the marked ones with these headers, but those that left."""
    mask = marked.combine_chunks()
    new = pa.array(texts, pa.string())
    headers = pc.replace_with_mask(rows["headers"].combine_chunks(), mask, new)
    place = rows.schema.get_field_index("headers")
    rows = rows.set_column(place, rows.schema.field(place), headers)
    if not left:
        return rows
    every = pa.array([True] * rows.num_rows)
    kept = pa.array([row not in left for row in range(len(texts))])
    return rows.filter(pc.replace_with_mask(every, mask, kept))
