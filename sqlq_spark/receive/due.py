"""
Due messages: move delayed messages that are due from their table into the queue.

An endpoint moves its due messages while it receives. In a stream, the driver moves them before it
looks at a queue. `sqlqueue move-due` and the job `maintenance` move them without a stream. If a due
message is for another queue, the task that receives it forwards it: see forward.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from sqlq_spark.database import endpoint_zone, transaction
from sqlq_spark.database.collisions import insert_past_taken
from sqlq_spark.database.destinations import DELAYED_COLUMNS
from sqlq_spark.database.trust import INSERT, Use, use, use_delayed
from sqlq_spark.errors import DelayedQueueNotFound, NotAQueue, QueueNotFound
from sqlq_spark.wire.address import delayed_of

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

DUE_BATCH = 100  # how many due messages one transaction moves, as in the transport
# the pauses of a mover that finds nothing, in seconds
SHORTEST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """How many messages one statement moved into their queue."""

    moved: int
    renamed: int  # how many of the moved messages got a new id in the queue
    unfit: int  # how many due messages stay: the queue's table cannot hold their headers


@dataclass(frozen=True, slots=True)
class Moved:
    """What a mover did, and when there will be more to do."""

    messages: int
    # seconds until the next message is due; 0 or less if one is due now; None if no message waits
    next_due: float | None

    def until_due(self, seconds: float) -> float:
        """
        Shorten a pause of `seconds` so that it ends when the next message is due.

        Messages that are due already do not shorten it.
        """
        if self.next_due is None or self.next_due <= 0:
            return seconds
        return min(seconds, self.next_due)


class Mover:
    """Moves due messages into their queue. It remembers the time zone of the queue's endpoints."""

    def __init__(self, queue: QueueAddress, options: DatabaseOptions) -> None:
        self.queue = queue
        self.options = options
        self.delayed = delayed_of(queue)
        self._zone: str | None = None
        self._unfit = 0  # how many messages the last warning counted

    def move(self, connection: Connection, most: int = DUE_BATCH) -> Moved:
        """
        Move up to `most` messages in one transaction, those first that have been due longest.

        If the server's answer is lost, the caller may call this again. At any time a message is in
        exactly one of the two tables, so no message is moved twice. Several movers share the work.

        If the queue already has a message with the same id, a due message gets a new id. This
        happens after a copy by hand or a restore. The message must be moved all the same: if it
        stayed, every later call would find it again, and if it were deleted, it could be lost. A
        receiver recognises a duplicate by its MessageId.

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
            raise DelayedQueueNotFound(
                table=connection.printed(self.delayed),
                queue=connection.printed(self.queue),
                server=connection.server,
            ) from None
        self._zone = zone
        self._warn(connection, counts)
        return Moved(counts.moved, next_due)

    def _warn(self, connection: Connection, counts: MoveCounts) -> None:
        """Warn of new ids. Warn of messages that stay if their number has changed."""
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
        """Move all due messages, or at most `most`. Each batch of DUE_BATCH is one transaction."""
        messages = 0
        while True:
            batch = DUE_BATCH if most is None else min(DUE_BATCH, most - messages)
            moved = self.move(connection, batch)
            messages += moved.messages
            if moved.messages < batch or messages == most:
                return Moved(messages, moved.next_due)


def pause(before: float, moved: Moved) -> float:
    """
    Return how many seconds a mover sleeps after a batch that was not full, as in the transport.

    The pause is 1 s if messages were moved. If not, it is twice as long as the pause `before`, from
    1 s to 60 s. It ends early when the next message is due. Messages that are due already do not
    shorten it, because another mover is moving them.
    """
    return moved.until_due(
        min(LONGEST_PAUSE, max(SHORTEST_PAUSE, 0.0 if moved.messages else 2 * before))
    )


class DueMessagePoller:
    """Moves due messages into a stream's queue, before the stream looks at it."""

    def __init__(self, queue: QueueAddress, options: SourceOptions) -> None:
        self.options = options
        self.mover = Mover(queue, options)
        self._next = -inf if options.delayed_delivery else inf  # monotonic seconds

    def poll(self, connection: Connection, now: float) -> bool:
        """
        Move due messages, at most as many as a micro-batch holds. Return whether any was moved.

        The table is read after each peekDelay, and earlier if a message is due or the last call
        left some.
        """
        if now < self._next:
            return False
        most, wait = self.options.max_messages, self.options.peek_delay
        moved = self._move(connection, most)
        if moved is None:
            self._next = now + max(LONGEST_PAUSE, wait)
            return False
        self._next = now if moved.messages == most else now + moved.until_due(wait)
        return moved.messages > 0

    def finish(self, connection: Connection) -> None:
        """Move all messages that are due now. A run of AvailableNow receives no later ones."""
        if self.options.delayed_delivery:
            self._move(connection, None)
            self._next = inf

    def _move(self, connection: Connection, most: int | None) -> Moved | None:
        """
        Move due messages. Return None if the queue has no table of delayed messages and needs none.

        The queue of an instance of an endpoint needs none, because all instances share the
        endpoint's table.
        """
        try:
            return self.mover.move_all(connection, most)
        except DelayedQueueNotFound:
            if self.mover.queue not in self.options.instances:
                raise
            return None
