"""Move delayed messages that are due into their queue; send/delayed.py stores them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.database import endpoint_zone, transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.trust import DELAYED, Destinations
from sqlq_spark.errors import (
    DelayedQueueNotFound,
    NotAQueue,
    QueueNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")


BATCH = 100  # messages that are moved in one transaction, as the transport does
SHORTEST, LONGEST = 1.0, 60.0  # seconds, the pauses of a mover that finds nothing


@dataclass(frozen=True, slots=True)
class Moved:
    """What a mover did, and when there will be more to do."""

    messages: int
    next_due: float | None  # seconds; at most 0 where more is due, None where nothing waits


class Mover:
    """Moves due messages into their queue; remembers the time zone of its endpoints."""

    def __init__(
        self,
        queue: QueueAddress,
        *,
        zone: str | None,
        timeout: float,
        allowed: Sequence[QueueAddress] = (),
    ) -> None:
        """
        Begin.

        Args:
            queue: whose table of delayed messages it is.
            zone: the option endpointTimeZone.
            timeout: seconds for each statement and wait.
            allowed: the option allowedDestinations.
        """
        self.queue = queue
        self.allowed = allowed
        self.delayed = delayed_of(queue)
        self.timeout = timeout
        self._given_zone = zone
        self._zone: str | None = None

    def move(self, connection: Connection, most: int = BATCH) -> Moved:
        """
        Move up to `most` messages, those that have been due for longest, in one transaction.

        The caller may run it again after a lost answer. A message is in one of the tables at any
        time, so it is moved once; the second run moves other messages. Several movers share the
        work.

        A copy by hand or a restored table can leave an id that is in the queue already. Such a
        message gets a new id there. To pass it over would stop the mover for ever, and to drop it
        could lose a message. If it is a copy, a receiver sees that by its MessageId.

        Raises:
            DelayedQueueNotFound, QueueNotFound, DestinationRefused, BadOption, MissingOption.
        """
        tables = {"delayed": self.delayed, "queue": self.queue}
        try:
            with transaction(connection, timeout=self.timeout):
                self._check(connection)
                zone = self._zone or endpoint_zone(connection, self._given_zone)
                moved, renamed = connection.rows(
                    "move_due", tables=tables, zone=zone, messages=most
                )[0]
                next_due = connection.rows("next_due", tables=tables, zone=zone)[0][0]
        except (QueueNotFound, NotAQueue) as error:
            table, queue = connection.printed(self.delayed), connection.printed(self.queue)
            if error.queue != table:
                raise
            raise DelayedQueueNotFound(table=table, queue=queue, server=connection.server) from None
        self._zone = zone
        if renamed:
            log.warning(
                "%s: %d delayed messages were moved under new ids: theirs were there already",
                connection.printed(self.queue),
                renamed,
            )
        return Moved(moved, next_due)

    def _check(self, connection: Connection) -> None:
        """Make sure that what leaves the delayed table runs no code of an untrusted owner."""
        known = Destinations(connection, self.allowed, source=self.queue)
        for reason in known.find_refused([self.delayed], DELAYED).values():
            raise reason

    def move_all(self, connection: Connection, most: int | None = None) -> Moved:
        """Move all that is due, or at most so many messages, a batch in a transaction."""
        messages = 0
        while True:
            batch = BATCH if most is None else min(BATCH, most - messages)
            moved = self.move(connection, batch)
            messages += moved.messages
            if moved.messages < batch or messages == most:
                return Moved(messages, moved.next_due)


def pause(before: float, moved: Moved) -> float:
    """
    Count how long a mover sleeps, as the transport's does.

    Args:
        before: seconds that it slept last, 0 if it has moved something since.
        moved: what it found now, after no full batch.

    Returns:
        Seconds: 1, then twice as many each time up to 60, but not beyond the next due time. Another
        mover moves what is due and was not moved, so it does not shorten the pause.
    """
    seconds = min(LONGEST, max(SHORTEST, 0.0 if moved.messages else 2 * before))
    return seconds if (moved.next_due or 0.0) <= 0 else min(seconds, moved.next_due or 0.0)


class Satellite:
    """Moves what is due before a stream's peeks, as an endpoint does beside its receiver."""

    def __init__(self, options: SourceOptions, queue: QueueAddress) -> None:
        """Begin; nothing is done without the option delayedDelivery."""
        self.options = options
        self.mover = Mover(
            queue,
            zone=options.endpoint_time_zone,
            timeout=options.query_timeout,
            allowed=options.allowed,
        )
        self._next = -1e9 if options.delayed_delivery else 1e18

    def turn(self, connection: Connection, now: float) -> bool:
        """
        Move up to a micro-batch, if it is time: at a due time, and every peekDelay.

        Args:
            connection: no transaction open.
            now: monotonic seconds.

        Returns:
            Whether there is something new in the queue.
        """
        if now < self._next:
            return False
        options = self.options
        moved = self._move(connection, options.max_messages)
        if moved is None:
            self._next = now + max(LONGEST, options.peek_delay)
            return False
        wait = options.peek_delay
        if moved.next_due is not None and moved.next_due > 0:
            wait = min(wait, moved.next_due)
        self._next = now if moved.messages == options.max_messages else now + wait
        return moved.messages > 0

    def finish(self, connection: Connection) -> None:
        """Move all that is due now, and nothing after it: what AvailableNow is to receive."""
        if self.options.delayed_delivery:
            self._move(connection, None)
            self._next = 1e18

    def _move(self, connection: Connection, most: int | None) -> Moved | None:
        """
        Move due messages.

        Returns:
            None: there is no table. The queue of an instance need not have one, because its
            endpoint has one for all.
        """
        try:
            return self.mover.move_all(connection, most)
        except DelayedQueueNotFound:
            if self.mover.queue not in self.options.instances:
                raise
            return None
