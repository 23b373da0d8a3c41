"""
Delayed messages: store them in the table where they wait, and move those that are due.

The header ForwardDestination of a stored message names its destination. The endpoint that owns the
table moves due messages into its own queue, and forwards them from there: see receive/forward.py.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - read at run time, as the type of a column
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import endpoint_zone, transaction
from sqlq_spark.database.collisions import insert_past_taken
from sqlq_spark.database.destinations import DELAYED_COLUMNS, Destinations
from sqlq_spark.database.trust import INSERT, Use, use, use_delayed
from sqlq_spark.errors import DelayedQueueNotFound, NotAQueue, QueueNotFound
from sqlq_spark.send import DUE_BATCH
from sqlq_spark.send.chunk import CHUNK_DELAYS
from sqlq_spark.send.frame import MOMENT
from sqlq_spark.send.routes import Route, TableKind, rows_by_queue
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions, SourceOptions
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

SHORTEST, LONGEST = 1.0, 60.0  # seconds, the pauses of a mover that finds nothing


@dataclass(frozen=True, slots=True)
class Dues:
    """When messages are due, as the database computes it from each distinct delay and time."""

    delays: tuple[datetime, ...]  # for delays, in the order in which they were asked for
    moments: tuple[datetime, ...]  # for times, in the same way


def delayed_routes(connection: Connection, options: SinkOptions, chunk: pa.Table) -> list[Route]:
    """
    Return the routes of delayed messages into the tables where they wait.

    Due is computed here, by the database's clock. A time in the past is stored as the current time,
    and the next mover takes it.

    Raises:
        BadOption, MissingOption.
    """
    if not chunk.num_rows:
        return []
    masks = rows_by_queue(chunk, options)
    zone = endpoint_zone(connection, options.endpoint_time_zone)
    due = _due_times(connection, chunk, zone)
    rows = chunk.select(["headers", "body"]).append_column("due", due)
    common = options.delayed_address
    if common is not None:
        return [Route(next(iter(masks)), common, TableKind.DELAYED_OF_OPTION, chunk, rows)]
    return [
        Route(queue, delayed_of(queue), TableKind.DELAYED_OF_QUEUE, chunk, rows, mask)
        for queue, mask in masks.items()
    ]


def check_delayed_table(destinations: Destinations, table: QueueAddress) -> None:
    """Raise why the table of the option `delayedQueue` cannot be used; lock nothing."""
    for reason in destinations.find_refused([table], DELAYED_COLUMNS).values():
        raise why_not_delayed(destinations.connection, reason, table, None)


def why_not_delayed(
    connection: Connection, reason: SqlQueueError, table: QueueAddress, queue: QueueAddress | None
) -> SqlQueueError:
    """
    Return why messages cannot wait in a table, in the words of delayed messages.

    `queue` is the one that they are for. None: the table is that of the option `delayedQueue`.
    """
    if not isinstance(reason, QueueNotFound | NotAQueue):
        return reason
    return DelayedQueueNotFound(
        table=connection.printed(table),
        queue="the option delayedQueue" if queue is None else connection.printed(queue),
        server=connection.server,
    )


def _due_times(connection: Connection, chunk: pa.Table, zone: str) -> pa.ChunkedArray:
    """Return when each message is due; the database computes each distinct delay or time once."""
    columns = [name for name in CHUNK_DELAYS if name in chunk.column_names]
    coded = {name: chunk[name].combine_chunks().dictionary_encode() for name in columns}
    texts = {
        name: column.dictionary.cast(pa.string()).to_pylist() for name, column in coded.items()
    }
    moments = [text.replace(" ", "T") for text in texts.get("due", [])]
    dues = connection.rows(
        "dues",
        Dues,
        zone=zone,
        delays=json.dumps(texts.get("delay", [])),
        moments=json.dumps(moments),
    )[0]
    computed = {"delay": dues.delays, "due": dues.moments}
    return pc.coalesce(
        *(pa.array(computed[name], MOMENT).take(column.indices) for name, column in coded.items())
    )


# ---------------------------------------------------------------- move what is due


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """How many messages one statement moved into their queue."""

    moved: int
    renamed: int  # of them: they got a new id there
    unfit: int  # that are due and stay: the queue's table cannot hold their headers


@dataclass(frozen=True, slots=True)
class Moved:
    """What a mover did, and when there will be more to do."""

    messages: int
    next_due: float | None  # seconds; at most 0 where more is due, None where nothing waits

    def until_due(self, seconds: float) -> float:
        """Cut a pause at the next due time; what is due now does not shorten it."""
        next_due = self.next_due or 0.0
        return min(seconds, next_due) if next_due > 0 else seconds


class Mover:
    """Moves due messages into their queue; remembers the time zone of its endpoints."""

    def __init__(self, queue: QueueAddress, options: DatabaseOptions) -> None:
        self.queue = queue
        self.options = options
        self.delayed = delayed_of(queue)
        self._zone: str | None = None
        self._unfit = 0  # messages, of the last warning

    def move(self, connection: Connection, most: int = DUE_BATCH) -> Moved:
        """
        Move up to `most` messages, those that have been due for longest, in one transaction.

        The caller may run it again after a lost answer: a message is in one of the tables at any
        time, and the second run moves others. Several movers share the work.

        A copy by hand or a restored table can leave an id that is in the queue already. Such a
        message gets a new id there. To pass it over would stop the mover for ever, and to drop it
        could lose a message. If it is a copy, a receiver sees that by its MessageId.

        Raises:
            DelayedQueueNotFound, QueueNotFound, TableRefused, BadOption, MissingOption, RowsHeld.
        """
        tables = {"delayed": self.delayed, "queue": self.queue}
        try:
            with transaction(connection):
                use_delayed(connection, self.queue, Use("delete", DELAYED_COLUMNS))
                use(connection, [self.queue], INSERT)
                zone = self._zone or endpoint_zone(connection, self.options.endpoint_time_zone)
                counts = insert_past_taken(
                    connection,
                    self.queue,
                    partial(self._move_due, connection, zone, most),
                    rows=most,
                )
                next_due: float | None = connection.value("next_due", tables=tables, zone=zone)
        except (QueueNotFound, NotAQueue) as error:
            if error.queue != connection.printed(self.delayed):
                raise
            raise why_not_delayed(connection, error, self.delayed, self.queue) from None
        self._zone = zone
        self._warn(connection, counts)
        return Moved(counts.moved, next_due)

    def _warn(self, connection: Connection, counts: MoveCounts) -> None:
        """Warn of new ids, and of messages that stay, whenever their number has changed."""
        queue = connection.printed(self.queue)
        if counts.renamed:
            log.warning(
                "%s: %d delayed messages were moved under new ids: theirs were there already",
                queue,
                counts.renamed,
            )
        if counts.unfit not in {0, self._unfit}:
            log.warning(
                "%s: %d due messages stay in %s, because their headers have characters that the "
                "queue's column cannot hold. `sqlqueue doctor` prints the statement that fixes it",
                queue,
                counts.unfit,
                connection.printed(self.delayed),
            )
        self._unfit = counts.unfit

    def _move_due(
        self,
        connection: Connection,
        zone: str,
        most: int,
        renamed: bool,  # noqa: FBT001
    ) -> MoveCounts:
        tables = {"delayed": self.delayed, "queue": self.queue}
        return connection.rows(
            "move_due", MoveCounts, tables=tables, zone=zone, messages=most, renamed=renamed
        )[0]

    def move_all(self, connection: Connection, most: int | None = None) -> Moved:
        """Move all that is due, or at most so many messages, a batch in a transaction."""
        messages = 0
        while True:
            batch = DUE_BATCH if most is None else min(DUE_BATCH, most - messages)
            moved = self.move(connection, batch)
            messages += moved.messages
            if moved.messages < batch or messages == most:
                return Moved(messages, moved.next_due)


def pause(before: float, moved: Moved) -> float:
    """
    Return how many seconds a mover sleeps after no full batch, as the transport's does.

    It is 1 s, then twice what it slept `before`, up to 60 s, but not beyond the next due time. What
    is due and was not moved does not shorten the pause, because another mover moves it.
    """
    return moved.until_due(min(LONGEST, max(SHORTEST, 0.0 if moved.messages else 2 * before)))


class DueMessagePoller:
    """Moves what is due before a stream's peeks, as an endpoint does beside its receiver."""

    def __init__(self, queue: QueueAddress, options: SourceOptions) -> None:
        self.options = options
        self.mover = Mover(queue, options)
        self._next = -1e9 if options.delayed_delivery else 1e18  # monotonic seconds

    def poll(self, connection: Connection, now: float) -> bool:
        """Move up to a micro-batch at a due time and every peekDelay; return whether it has any."""
        if now < self._next:
            return False
        most, wait = self.options.max_messages, self.options.peek_delay
        moved = self._move(connection, most)
        if moved is None:
            self._next = now + max(LONGEST, wait)
            return False
        self._next = now if moved.messages == most else now + moved.until_due(wait)
        return moved.messages > 0

    def finish(self, connection: Connection) -> None:
        """Move all that is due now, and nothing after it: what AvailableNow is to receive."""
        if self.options.delayed_delivery:
            self._move(connection, None)
            self._next = 1e18

    def _move(self, connection: Connection, most: int | None) -> Moved | None:
        """
        Move due messages, or return None where there is no table.

        The queue of an instance need not have one, because its endpoint has one for all.
        """
        try:
            return self.mover.move_all(connection, most)
        except DelayedQueueNotFound:
            if self.mover.queue not in self.options.instances:
                raise
            return None
