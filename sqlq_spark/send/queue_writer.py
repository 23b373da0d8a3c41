"""
The inserts of one transaction that sends: chunks into queues, Expires by the database's clock.

A message that is published becomes a row in the queue of each subscriber. A delayed message goes to
the table where it waits: see delayed.py.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction, unite
from sqlq_spark.database.trust import Destinations
from sqlq_spark.errors import BadInput, MissingOption
from sqlq_spark.options.names import parse_destination
from sqlq_spark.send import delayed, subscriptions
from sqlq_spark.send.fan_out import FanOut, count_unheard, log_unheard
from sqlq_spark.send.topics import topics_of
from sqlq_spark.send.undeliverable import Undeliverable
from sqlq_spark.wire.header_columns import with_legacy_columns
from sqlq_spark.wire.rows import rising_ids

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress


class QueueWriter:
    """Inserts chunks into their queues, in the transaction that is open."""

    def __init__(
        self,
        connection: Connection,
        options: SinkOptions,
        destinations: Destinations | None = None,
        *,
        careful: bool = False,
    ) -> None:
        """
        Prepare; nothing is sent to the database yet.

        Args:
            connection: in a transaction.
            options: the sink's.
            destinations: which tables may be sent to; None: by the options alone.
            careful: whether the transaction goes on if a destination refuses; see undeliverable.py.
        """
        self.connection = connection
        self.options = options
        self.destinations = destinations or Destinations(connection, options.allowed)
        self.undeliverable = Undeliverable(connection, options, self.destinations, careful=careful)
        # lists of topics without a subscriber, and how many messages had them
        self.unheard: Counter[str] = Counter()

    def insert(self, chunk: pa.Table) -> None:
        """
        Insert a chunk's messages.

        Args:
            chunk: of CHUNK_ROW, with `topics` where some rows are published, and CHUNK_DELAYS where
                some are delayed.
        """
        if self.undeliverable.allowed:
            chunk = self._set_unreadable_aside(chunk)
        waiting = delayed.waiting(chunk)
        if waiting is not None:
            self._store_delayed(chunk.filter(waiting))
            chunk = chunk.filter(pc.invert(waiting))
        rows = add_expires(self.connection, chunk)
        if self.options.fills_legacy_columns:
            rows = with_legacy_columns(rows)
        chosen = unite_spellings(self.connection, rows_by_queue(chunk, self.options))
        whole = topics_of(chunk) is None and len(chosen) == 1
        for queue, reason in self.undeliverable.lock(chosen).items():
            self.undeliverable.add(chunk.filter(chosen.pop(queue)), queue, reason)
        if topics_of(chunk) is not None:
            self._add_copies(chosen, chunk)
        for queue, own in chosen.items():
            mine = rows if whole else rows.filter(own)
            refused = self.undeliverable.send(queue, add_ids(mine))
            if refused is not None:
                self.undeliverable.add(chunk.filter(own), queue, refused)
        self.undeliverable.send_aside()

    def _set_unreadable_aside(self, chunk: pa.Table) -> pa.Table:
        """Return the rows whose destination can be read; the others go to the error queue."""
        reasons = find_unreadable(chunk, self.options)
        if not reasons:
            return chunk
        bad = pc.is_in(chunk["queue"], value_set=pa.array(list(reasons), pa.string()))
        topics = topics_of(chunk)
        if topics is not None:
            bad = pc.and_(bad, pc.is_null(topics))
        self.undeliverable.add_unreadable(chunk.filter(bad), reasons)
        return chunk.filter(pc.invert(bad))

    def _store_delayed(self, rows: pa.Table) -> None:
        chosen = rows_by_queue(rows, self.options)
        delayed.store_delayed(self.connection, rows, chosen, self.options, self.undeliverable)

    def _add_copies(self, chosen: dict[QueueAddress, pa.ChunkedArray], chunk: pa.Table) -> None:
        """Add the rows that are published to those that each queue gets."""
        topics = topics_of(chunk)
        copies = FanOut(self.connection, self.options, self.undeliverable).find_copies(topics)
        self.unheard += count_unheard(topics, copies.all())
        for queue, rows in copies.queues.items():
            chosen[queue] = pc.or_(chosen[queue], rows) if queue in chosen else rows
        for address, rows in copies.lost.items():
            reason = copies.reasons[address]
            self.undeliverable.add_copies(chunk.filter(rows), address, reason)

    def confirm(self) -> None:
        """
        Make sure, after the last insert, that the tables are still those that were decided on.

        Raises:
            DestinationChanged: the transaction must be undone.
        """
        self.destinations.confirm()

    def log_unheard(self, where: str) -> None:
        """Warn, after the commit, of messages that had no subscriber."""
        log_unheard(where, self.unheard)


# ---------------------------------------------------------------- which rows go where


def find_unreadable(chunk: pa.Table, options: SinkOptions) -> dict[str | None, SqlQueueError]:
    """Return the queues of a chunk's rows that are no destination, and why; None: a null."""
    reasons: dict[str | None, SqlQueueError] = {}
    for name in names_of_queues(chunk):
        try:
            destination_of(name, options)
        except BadInput as error:
            reasons[name] = error
    return reasons


def names_of_queues(chunk: pa.Table) -> list[str | None]:
    """Return the distinct queues of the rows that are not published; None stands for the sink's."""
    own, topics = chunk["queue"], topics_of(chunk)
    found = pc.unique(own if topics is None else own.filter(pc.is_null(topics)))
    names: list[str | None] = found.to_pylist()
    return names


def rows_by_queue(chunk: pa.Table, options: SinkOptions) -> dict[QueueAddress, pa.ChunkedArray]:
    """Which rows are sent to one queue, as booleans, for each queue."""
    own, topics = chunk["queue"], topics_of(chunk)
    sent = None if topics is None else pc.is_null(topics)
    names: dict[QueueAddress, list[str | None]] = {}
    for name in names_of_queues(chunk):
        names.setdefault(destination_of(name, options), []).append(name)
    chosen = {
        queue: pc.is_in(own, value_set=pa.array(spellings, pa.string()))
        for queue, spellings in names.items()
    }
    return chosen if sent is None else {at: pc.and_(own, sent) for at, own in chosen.items()}


def unite_spellings(
    connection: Connection, chosen: dict[QueueAddress, pa.ChunkedArray]
) -> dict[QueueAddress, pa.ChunkedArray]:
    """Put the rows of all spellings of a queue together, so that they keep their order."""
    if len(chosen) <= 1:
        return chosen
    first = unite(connection, chosen)
    united: dict[QueueAddress, pa.ChunkedArray] = {}
    for queue, rows in chosen.items():
        one = first[queue]
        united[one] = pc.or_(united[one], rows) if one in united else rows
    return united


def destination_of(name: str | None, options: SinkOptions) -> QueueAddress:
    """Return where a row goes; `name` is its own queue, untrusted, or None for the sink's."""
    if name is None:
        if options.address is None:
            raise MissingOption(
                option="queue", example="a queue's name, or a column queue without nulls"
            )
        return options.address
    return parse_destination("queue (column)", name, options.naming)


def check_destinations(connection: Connection, options: SinkOptions) -> None:
    """
    Make sure that the tables that the options name are there.

    Args:
        connection: no transaction open.
        options: the sink's.

    Raises:
        QueueNotFound, NotAQueue, DestinationRefused, DelayedQueueNotFound, SubscriptionsNotFound.
    """
    named = (options.address, options.undeliverable_address)
    queues = [each for each in named if each is not None]
    with transaction(connection, timeout=options.query_timeout):
        known = Destinations(connection, options.allowed)
        for reason in known.find_refused(queues).values():
            raise reason
        if options.delayed_address is not None:
            delayed.check_table(known, options.delayed_address)
        if options.names_subscriptions:
            subscriptions.check_table(connection, options.subscription_address)


# ---------------------------------------------------------------- columns


def add_expires(connection: Connection, chunk: pa.Table) -> pa.Table:
    """Return a queue's columns but for ids; `expires` is the database's time plus the lifetime."""
    columns = {"headers": chunk["headers"], "body": chunk["body"]}
    lifetime = chunk["lifetime"]
    if lifetime.null_count < len(lifetime):
        now = connection.rows("clock")[0][0]
        later = pc.multiply(lifetime, 1000).cast(pa.duration("us"))
        columns["expires"] = pc.add(pa.scalar(now, pa.timestamp("us")), later)
    return pa.table(columns)


def add_ids(rows: pa.Table) -> pa.Table:
    """Return the rows with new, rising ids: each copy of a message is a row of its own."""
    ids = pa.py_buffer(rising_ids(rows.num_rows, time.time()))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows.num_rows, [None, ids])
    return rows.append_column("id", column)


def own_address(session: Session, address: QueueAddress) -> str:
    """
    Return a reply address as it must stand in a message.

    An endpoint on SQL Server with another default database would answer into that one, so the
    address names ours.
    """
    return session.open().canonical(address)
