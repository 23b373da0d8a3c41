"""
Forwarding: a delayed message that was moved into this queue may be for another one.

The header ForwardDestination says where it belongs. The task that receives the message sends it on,
in the same transaction, without the header and without expiry. If it belongs here, only the header
is removed. A message that cannot be sent on goes to the error queue, from where it can be returned.
Without an error queue it is delivered here as it is.

The addresses are untrusted. They are parsed, looked up all at once, and receive messages only if
database/trust.py allows it. Any other failure of one destination is undone alone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import attempt, find_same, load_checked
from sqlq_spark.database.trust import PATIENCE, RETURNED, Destinations
from sqlq_spark.errors import (
    BadAddress,
    Cancelled,
    ConnectionLost,
    DatabaseFailure,
    DestinationLocked,
    DestinationRefused,
    SqlQueueError,
    TimedOut,
)
from sqlq_spark.send.insert import failure_headers, list_reasons, rows_to_store
from sqlq_spark.wire.header_columns import NAMED_IN_HEX, parse_headers
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.task import Task
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

Headers: TypeAlias = dict[str, str | None]

# A word that no other header has, and how another writer may spell it.
# Measured, 33 MB of 50,000 headers without them: 1 ms each as one text, 3 ms row by row, both by
# RE2; 55 ms by pyarrow's plain search, 100 ms by both in one pattern.
MARKS = ("ForwardDestination", NAMED_IN_HEX)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What is delivered here, and how many messages are not."""

    rows: pa.Table
    forwarded: int = 0
    failed: int = 0  # went to the error queue


def forward(connection: Connection, task: Task, rows: pa.Table) -> Forwarded:
    """
    Send on the messages of the task that belong to other queues, in the transaction that is open.

    Raises:
        DestinationRefused: a table is not trusted, and there is no error queue.
    """
    marked = find_marked(rows["headers"])
    if marked is None:
        return Forwarded(rows)
    mine = rows.filter(marked)
    routes = find_routes(mine["headers"].to_pylist(), partial(find_same, connection, task.queue))
    work = Forwarding(connection, task, mine["body"], routes)
    reasons = work.send()
    failed = work.give_up(reasons) if reasons else 0
    sent = routes.rows_of(routes.away.keys() - reasons.keys())
    if sent:
        log.info("%s: %d delayed messages forwarded", connection.printed(task.queue), len(sent))
    gone = {*sent, *(routes.rows_of(reasons) if failed else ())}
    return Forwarded(deliver(rows, marked, routes.texts, gone), len(sent), failed)


class Forwarding:
    """One task's messages that belong elsewhere, on their way to their destinations."""

    def __init__(
        self, connection: Connection, task: Task, bodies: pa.ChunkedArray, routes: Routes
    ) -> None:
        self.connection = connection
        self.task = task
        self.bodies = bodies
        self.routes = routes
        self.destinations = Destinations(
            connection, task.options.allowed, source=task.queue, by_header=True
        )
        self.patience = PATIENCE  # seconds that are left to wait for locked destinations

    def send(self) -> dict[str, SqlQueueError]:
        """Send on what can be sent; why the other destinations got nothing."""
        there, reasons = self._look_up()
        if there:
            self.connection.set_lock_timeout(self.patience)
            reasons |= self._lock(there)
            for destination, address in there.items():
                if destination not in reasons:
                    table = self._to_send(self.routes.away[destination])
                    work = partial(load_checked, self.connection, address, table)
                    if reason := self._attempt(work):
                        reasons[destination] = reason
            self.destinations.confirm()
            self.connection.set_lock_timeout(None)
        return reasons

    def give_up(self, reasons: dict[str, SqlQueueError]) -> int:
        """Put messages into the error queue all at once, or leave them here; how many are gone."""
        rows, errors = self.routes.rows_of(reasons), self.task.options.error_address
        log.warning(
            "%s: %d delayed messages cannot be forwarded and %s: %s",
            self.connection.printed(self.task.queue),
            len(rows),
            "are delivered here, as there is no errorQueue"
            if errors is None
            else "go to the error queue",
            list_reasons([*reasons.values()]),
        )
        if errors is None:
            return 0
        known = Destinations(self.connection, self.task.options.allowed, source=self.task.queue)
        known.lock_and_check([errors])
        for destination, reason in reasons.items():
            more = failure_headers(self.connection, destination, reason)
            for row in self.routes.away[destination]:
                self.routes.headers[row] |= more
        self.connection.load(errors, self._to_send(rows))
        known.confirm()
        return len(rows)

    def _look_up(self) -> tuple[dict[str, QueueAddress], dict[str, SqlQueueError]]:
        """Find the destinations that may be sent to, all at once, and why the others may not."""
        found: dict[str, QueueAddress] = {}
        reasons: dict[str, SqlQueueError] = {}
        for text in self.routes.away:
            try:
                found[text] = self.connection.names.parse_address(text)
            except BadAddress as error:
                reasons[text] = error
        refused = self.destinations.find_refused(found.values(), RETURNED)
        there = {text: address for text, address in found.items() if address not in refused}
        reasons |= {text: refused[at] for text, at in found.items() if at in refused}
        self._check_trust(reasons)
        return there, reasons

    def _lock(self, there: dict[str, QueueAddress]) -> dict[str, SqlQueueError]:
        """Lock destinations and decide about them; why some cannot be sent to."""
        failed: dict[QueueAddress, SqlQueueError] = {}
        for address in dict.fromkeys(there.values()):
            reason = self._attempt(partial(self.destinations.lock, address))
            if isinstance(reason, TimedOut):
                reason = DestinationLocked(queue=self.connection.printed(address), seconds=PATIENCE)
            if reason is not None:
                failed[address] = reason
        locked = [address for address in there.values() if address not in failed]
        failed |= self.destinations.check_locked(locked, RETURNED)
        reasons = {text: failed[at] for text, at in there.items() if at in failed}
        self._check_trust(reasons)
        return reasons

    def _check_trust(self, reasons: dict[str, SqlQueueError]) -> None:
        """Fail if a table is not trusted and there is no error queue."""
        for reason in reasons.values():
            refused = isinstance(reason, DestinationRefused)
            if refused and self.task.options.error_address is None:
                raise reason

    def _attempt(self, work: Callable[[], None]) -> SqlQueueError | None:
        """
        Do something to a destination, or undo that alone; why it failed.

        All destinations that are locked are waited for no longer than PATIENCE together.
        """
        started = time.monotonic()
        try:
            with attempt(self.connection):
                work()
        except (ConnectionLost, Cancelled):
            raise
        except DatabaseFailure as error:
            if isinstance(error, TimedOut):
                self.patience = max(0.0, self.patience - (time.monotonic() - started))
                self.connection.set_lock_timeout(self.patience)
            return error
        return None

    def _to_send(self, rows: list[int]) -> pa.Table:
        texts = [dumps(self.routes.headers[row]) for row in rows]
        return rows_to_store(texts, self.bodies.take(pa.array(rows)))


# ---------------------------------------------------------------- the header, without IO


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the marked rows of a task belong; a row is its place among them."""

    texts: list[str | None]  # headers of each row, if it is delivered here
    headers: dict[int, Headers]  # of the rows that belong elsewhere, without ForwardDestination
    away: dict[str, list[int]]  # destination → its rows

    def rows_of(self, destinations: Collection[str]) -> list[int]:
        return sorted(row for name in destinations for row in self.away[name])


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


def find_routes(
    texts: list[str | None], find_own: Callable[[Collection[str]], Collection[str]]
) -> Routes:
    """Read where rows belong, and take the header off; `find_own`: who names the queue read."""
    routes = Routes(list(texts), {}, {})
    for row, text in enumerate(texts):
        headers = parse_headers(text)
        if headers is None or FORWARD_DESTINATION not in headers:
            continue  # poison, or the mark is in another header
        destination = headers.pop(FORWARD_DESTINATION)
        if destination is None:
            routes.texts[row] = dumps(headers)
        else:
            routes.headers[row] = headers
            routes.away.setdefault(destination, []).append(row)
    for destination in find_own(routes.away.keys()):
        for row in routes.away.pop(destination):
            routes.texts[row] = dumps(routes.headers.pop(row))
    return routes


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
