"""
The inserts of one transaction that sends: chunks into queues, Expires by the database's clock.

A message that is published becomes a row in the queue of each subscriber. A delayed message goes to
the table where it waits: see delayed.py.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.spellings import unite
from sqlq_spark.errors import MissingOption
from sqlq_spark.options.addresses import parse_destination
from sqlq_spark.send import delayed, subscriptions
from sqlq_spark.send.fan_out import FanOut, count_unheard
from sqlq_spark.send.topics import topics_of
from sqlq_spark.wire.header_columns import with_legacy_columns
from sqlq_spark.wire.ids import rising_ids

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # lists of topics that a warning names
LONGEST_LOGGED = 200  # characters of each


class QueueWriter:
    """Inserts chunks into their queues, in the transaction that is open."""

    def __init__(self, connection: Connection, options: SinkOptions) -> None:
        """
        Prepare; nothing is sent to the database yet.

        Args:
            connection: in a transaction.
            options: the sink's.
        """
        self.connection = connection
        self.options = options
        self.destinations = Destinations(connection, options.allowed)
        # lists of topics without a subscriber, and how many messages had them
        self.unheard: Counter[str] = Counter()

    def insert(self, chunk: pa.Table) -> None:
        """
        Insert a chunk's messages.

        Args:
            chunk: of CHUNK_ROW, with `topics` where some rows are published, and CHUNK_DELAYS where
                some are delayed.
        """
        waiting = delayed.waiting(chunk)
        if waiting is not None:
            self._store_delayed(chunk.filter(waiting))
            chunk = chunk.filter(pc.invert(waiting))
        rows = add_expires(self.connection, chunk)
        if self.options.fills_legacy_columns:
            rows = with_legacy_columns(rows)
        chosen = unite_spellings(self.connection, rows_by_queue(chunk, self.options))
        self.destinations.lock_and_check(chosen)
        topics = topics_of(chunk)
        if topics is not None:
            self._add_copies(chosen, topics)
        whole = topics is None and len(chosen) == 1
        for queue, own in chosen.items():
            self.connection.load(queue, add_ids(rows if whole else rows.filter(own)))

    def _store_delayed(self, rows: pa.Table) -> None:
        chosen = rows_by_queue(rows, self.options)
        delayed.store_delayed(self.connection, rows, chosen, self.options, self.destinations)

    def _add_copies(
        self, chosen: dict[QueueAddress, pa.ChunkedArray], topics: pa.ChunkedArray
    ) -> None:
        """Add the rows that are published to those that each queue gets."""
        copies = FanOut(self.connection, self.options, self.destinations).rows_by_queue(topics)
        self.unheard += count_unheard(topics, copies.values())
        for queue, rows in copies.items():
            chosen[queue] = pc.or_(chosen[queue], rows) if queue in chosen else rows

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


def rows_by_queue(chunk: pa.Table, options: SinkOptions) -> dict[QueueAddress, pa.ChunkedArray]:
    """Which rows are sent to one queue, as booleans, for each queue."""
    own, topics = chunk["queue"], topics_of(chunk)
    sent = None if topics is None else pc.is_null(topics)
    names: dict[QueueAddress, list[str | None]] = {}
    for name in pc.unique(own if sent is None else own.filter(sent)).to_pylist():
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
    if len(chosen) == 1:
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
            raise MissingOption("queue", "a queue's name, or a column queue without nulls")
        return options.address
    return parse_destination("queue (column)", name, options.naming)


def check_destination(connection: Connection, options: SinkOptions) -> None:
    """
    Make sure that the tables that the options name are there.

    Args:
        connection: no transaction open.
        options: the sink's.

    Raises:
        QueueNotFound, NotAQueue, DestinationRefused, DelayedQueueNotFound, SubscriptionsNotFound.
    """
    queues = [] if options.address is None else [options.address]
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


def database_clock(session: Session) -> datetime:
    """Return the database's time, which decides when messages expire."""
    found: datetime = session.do(lambda connection: connection.rows("clock")[0][0])
    return found.replace(tzinfo=UTC)


def own_address(session: Session, address: QueueAddress) -> str:
    """
    Return a reply address as it must stand in a message.

    An endpoint on SQL Server with another default database would answer into that one, so the
    address names ours.
    """
    return session.open().canonical(address)


# ---------------------------------------------------------------- messages without a subscriber


def log_unheard(where: str, unheard: Counter[str]) -> None:
    """Warn, after the commit, of messages that had no subscriber."""
    if unheard:
        log.warning("%s: %s", where, describe_unheard(unheard))


def describe_unheard(unheard: Counter[str]) -> str:
    """Say how many messages had no subscriber, and name their topics."""
    count = f"{unheard.total()} published messages had no subscriber and went nowhere: topics "
    lists = [f"{_printable(text)} ({times})" for text, times in unheard.most_common(LOGGED_TOPICS)]
    more = len(unheard) - len(lists)
    return count + ", ".join(lists) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """Return untrusted text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST_LOGGED else text[:LONGEST_LOGGED] + "…")
