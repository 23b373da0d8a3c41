"""
Delayed delivery: messages are stored in a table of their own, and moved into the queue when due.

A stored message names its destination in the header ForwardDestination. Whoever owns the table
moves what is due into its own queue, and forwards it from there: see forward.py.

On PostgreSQL a due time is a timestamptz that the peers make of the server's UTC clock in their
sessions' time zone, and compare with the same. So it is right only in that zone, which we name in
every statement: it is the option peerTimeZone, or what a plain session of the server gets.
On SQL Server it is a datetime in UTC, and no zone has a part in it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import DELAYED, Destinations
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.errors import (
    BadOption,
    DelayedQueueNotFound,
    MissingOption,
    NotAQueue,
    QueueNotFound,
    TimeZoneNotFound,
)
from sqlq_spark.options import ZONE
from sqlq_spark.send.delays import MOMENT, PARCEL_DELAYS
from sqlq_spark.wire.headers import FORWARD_DESTINATION, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions, SourceOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

BATCH = 100  # messages that are moved in one transaction, as the peers do
SHORTEST, LONGEST = 1.0, 60.0  # seconds, the pauses of a mover that finds nothing


def peer_zone(connection: Connection, told: str | None) -> str:
    """
    The time zone in which the peers' sessions work.

    Args:
        connection: any.
        told: the option peerTimeZone.

    Raises:
        BadOption: the server knows no such zone.
        MissingOption: this session's own zone hides the server's.
    """
    try:
        zone: str | None = connection.rows("peer_zone", zone=told)[0][0]
    except TimeZoneNotFound:
        if told is None:
            raise
        raise BadOption("peerTimeZone", told, ZONE) from None
    if zone is None:
        raise MissingOption(
            "peerTimeZone",
            f"{ZONE}; the server's cannot be seen from this session, which was given a zone of its "
            "own by PGTZ or by options of the url",
        )
    return zone


# ---------------------------------------------------------------- store


def waiting(parcel: pa.Table) -> pa.ChunkedArray | None:
    """Which rows of a parcel are delayed, as booleans; None where none is."""
    marks = [parcel[name].is_valid() for name in PARCEL_DELAYS if name in parcel.column_names]
    if not marks:
        return None
    mask = marks[0] if len(marks) == 1 else pc.or_(*marks)
    return mask if pc.any(mask).as_py() else None


def store_delayed(
    connection: Connection,
    parcel: pa.Table,
    chosen: dict[QueueAddress, pa.ChunkedArray],
    options: SinkOptions,
    known: Destinations,
) -> None:
    """
    Insert delayed messages into the tables where they wait, Due by the database's clock.

    A time in the past is stored with that Due, as the transport does: the next mover takes it.
    Nothing here can happen twice: it is in the transaction that sends the rest of the parcel.

    Args:
        connection: in a transaction.
        parcel: of PARCEL_ROW and PARCEL_DELAYS; each row is delayed.
        chosen: which rows are for which queue.
        options: the sink's.
        known: tables sent to in this transaction; grows.

    Raises:
        DelayedQueueNotFound, DestinationRefused, BadOption, MissingOption.
    """
    rows = pa.table(
        {
            "headers": parcel["headers"],
            "body": parcel["body"],
            "due": dues(connection, parcel, peer_zone(connection, options.peer_time_zone)),
        }
    )
    for queue, own in chosen.items():
        table = options.delayed_address or delayed_of(queue)
        look_for(known, table, queue)
        mine = rows if len(chosen) == 1 else rows.filter(own)
        headers = addressed(mine["headers"], connection.printed(queue))
        connection.load(table, mine.set_column(0, "headers", headers))


def look_for(known: Destinations, table: QueueAddress, queue: QueueAddress) -> None:
    """Make sure that messages can wait in a table."""
    try:
        known.look_for([table], DELAYED)
    except (QueueNotFound, NotAQueue):
        connection = known.connection
        names = connection.printed(table), connection.printed(queue)
        raise DelayedQueueNotFound(*names, connection.server) from None


def dues(connection: Connection, parcel: pa.Table, zone: str) -> pa.ChunkedArray:
    """When each row is due; each distinct delay or moment is worked out once, by the database."""
    found = {
        name: parcel[name].combine_chunks().dictionary_encode()
        for name in PARCEL_DELAYS
        if name in parcel.column_names
    }
    texts = {name: coded.dictionary.cast(pa.string()).to_pylist() for name, coded in found.items()}
    delays, moments = connection.rows(
        "dues",
        zone=zone,
        delays=json.dumps(texts.get("delay", [])),
        moments=json.dumps([text.replace(" ", "T") for text in texts.get("due", [])]),
    )[0]
    known = {"delay": delays, "due": moments}
    return pc.coalesce(
        *(pa.array(known[name], MOMENT).take(coded.indices) for name, coded in found.items())
    )


def addressed(headers: pa.ChunkedArray, destination: str) -> pa.ChunkedArray:
    """Header texts with ForwardDestination at their end."""
    entry = f'"{FORWARD_DESTINATION}":"{escape(destination)}"}}'
    open_ = pc.utf8_slice_codeunits(headers, 0, -1)
    comma = pc.if_else(pc.equal(open_, "{"), "", ",")
    return pc.binary_join_element_wise(open_, comma, entry, "")


# ---------------------------------------------------------------- move


@dataclass(frozen=True, slots=True)
class Moved:
    """What a mover did, and when there will be more to do."""

    messages: int
    next_due: float | None  # seconds; at most 0 where more is due, None where nothing waits


class Mover:
    """Moves what is due for a queue's owner into that queue; remembers the zone of its peers."""

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
            zone: the option peerTimeZone.
            timeout: seconds for each statement and wait.
            allowed: the option allowedDestinations.
        """
        self.queue = queue
        self.allowed = allowed
        self.delayed = delayed_of(queue)
        self.timeout = timeout
        self._told = zone
        self._zone: str | None = None

    def move(self, connection: Connection, most: int = BATCH) -> Moved:
        """
        Move up to `most` messages, those that have been due for longest, in one transaction.

        May be done again after a lost answer: a message is in one of the tables at any time, so it
        is moved once; what the second time moves are others. Several movers share the work.

        An id that is in the queue already, which a copy by hand or a restored table can leave, gets
        a new one there. To pass it over would hold up the mover for ever, to drop it could lose a
        message; should it be a copy indeed, its MessageId still tells a receiver.

        Raises:
            DelayedQueueNotFound, QueueNotFound, DestinationRefused, BadOption, MissingOption.
        """
        tables = {"delayed": self.delayed, "queue": self.queue}
        try:
            with transaction(connection, timeout=self.timeout):
                self._check(connection)
                zone = self._zone or peer_zone(connection, self._told)
                moved, renamed = connection.rows(
                    "move_due", tables=tables, zone=zone, messages=most
                )[0]
                next_due = connection.rows("next_due", tables=tables, zone=zone)[0][0]
        except (QueueNotFound, NotAQueue) as error:
            names = connection.printed(self.delayed), connection.printed(self.queue)
            if error.args[0] != names[0]:
                raise
            raise DelayedQueueNotFound(*names, connection.server) from None
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
        for reason in known.look([self.delayed], DELAYED).values():
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
    How long a mover sleeps, as the peers' does.

    Args:
        before: seconds that it slept last, 0 if it has moved something since.
        moved: what it found now, after no full batch.

    Returns:
        Seconds: 1, then twice as many each time up to 60, but not beyond the next due time. What is
        due and was not moved is in another mover's hands, and no reason for haste.
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
            zone=options.peer_time_zone,
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
        moved = self._moved(connection, options.max_messages)
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
            self._moved(connection, None)
            self._next = 1e18

    def _moved(self, connection: Connection, most: int | None) -> Moved | None:
        """
        Move.

        Returns:
            None where there is no table, which the queue of an instance need not have: its endpoint
            has one for all.
        """
        try:
            return self.mover.move_all(connection, most)
        except DelayedQueueNotFound:
            if not self.options.is_instance(self.mover.queue):
                raise
            return None
