"""
Due messages: move them from the table where they wait into their queue.

An endpoint does this beside its receiver, and so does a stream: the driver moves what is due before
it looks at a queue. `sqlqueue move-due` and the job `maintenance` move it without a stream.
Messages for other queues are forwarded when they are received: see forward.py.
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

DUE_BATCH = 100  # due messages that one transaction moves, as in the transport
# seconds: the pauses of a mover that finds nothing
SHORTEST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """How many messages one statement moved into their queue."""

    moved: int
    renamed: int  # how many of the moved ones got a new id in the queue
    unfit: int  # due messages that stay, because the queue's table cannot hold their headers


@dataclass(frozen=True, slots=True)
class Moved:
    """What a mover did, and when there will be more to do."""

    messages: int
    # seconds until the next message is due; at most 0 if more is due now, None if nothing waits
    next_due: float | None

    def until_due(self, seconds: float) -> float:
        """Cut a pause at the next due time. What is due now does not shorten it."""
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
        Move up to `most` messages in one transaction. Those that have been due longest go first.

        The caller may run it again after a lost answer. A message is in exactly one of the tables
        at any time, so the second run moves others. Several movers share the work.

        A copy by hand or a restored table can leave an id that is in the queue already. Such a
        message gets a new id there. If the mover passed it over, it would find it again for ever.
        If it dropped it, a message could be lost. A receiver sees a copy by its MessageId.

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
        """Move all that is due, or at most `most` messages. Each batch is one transaction."""
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

    The first pause is 1 s. Each one after it is twice as long as the one `before`, up to 60 s. None
    ends after the next due time. What is due and was not moved does not shorten the pause, because
    another mover moves it.
    """
    return moved.until_due(
        min(LONGEST_PAUSE, max(SHORTEST_PAUSE, 0.0 if moved.messages else 2 * before))
    )


class DueMessagePoller:
    """Moves what is due before a stream looks at its queue, as an endpoint does."""

    def __init__(self, queue: QueueAddress, options: SourceOptions) -> None:
        self.options = options
        self.mover = Mover(queue, options)
        self._next = -inf if options.delayed_delivery else inf  # monotonic seconds

    def poll(self, connection: Connection, now: float) -> bool:
        """
        Move as much as a micro-batch holds, every peekDelay and at each due time.

        Returns whether any message was moved.
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
        """Move all that is due now, and nothing after that: AvailableNow receives only this."""
        if self.options.delayed_delivery:
            self._move(connection, None)
            self._next = inf

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
