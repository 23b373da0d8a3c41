"""
The inserts of one transaction that sends: chunks into queues, Expires by the database's clock.

A message that is published becomes a row in the queue of each subscriber: see publish.py. A delayed
message goes to the table where it waits: see delayed.py.

The option `undeliverable` names an error queue for messages that cannot be sent where they belong.
A message without a destination, or with one that cannot be read, is found without the database. Any
other fault of a destination makes a statement fail, and with it the transaction. So the same
transaction is run again, and isolates failures: each destination is checked first, then locked and
loaded after a savepoint. A failure that ends the transaction all the same runs it once more,
without that destination. Batches without such a message run the same statements as without the
option.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.database import load_checked, transaction, unite
from sqlq_spark.database.destinations import (
    PASSING,
    SENT,
    Destinations,
    run_without_failed,
)
from sqlq_spark.options.names import parse_destination
from sqlq_spark.send import delayed, publish, subscriptions
from sqlq_spark.send.sender import CHUNK_FAULT, CHUNK_ID, CHUNK_LEGACY
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import LONGEST_ADDRESS
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.rows import rising_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

MOST_NAMED = 5  # destinations in a warning
LONGEST_REASON = 16_384  # as the transport cuts ExceptionInfo.Message
NOWHERE = "the row has no queue, and the sink has no option queue; a reply needs a ReplyToAddress"


def send_in_transaction(
    connection: Connection, options: SinkOptions, work: Callable[[Inserts], None]
) -> Inserts:
    """
    Run a transaction that sends; if a destination refuses, run it again and isolate that failure.

    Without an error queue in the options the failure is raised. `work` is all that is done between
    begin and commit.
    """

    def send(failed: Reasons, *, isolate: bool) -> Inserts:
        destinations = Destinations(connection, failed=failed)
        inserts = Inserts(connection, options, destinations, isolate_failures=isolate)
        with transaction(connection):
            work(inserts)
        return inserts

    try:
        return send({}, isolate=False)
    except errors.DatabaseFailure as error:
        if options.undeliverable_address is None or isinstance(error, PASSING):
            raise
    return run_without_failed(partial(send, isolate=True))


def send_now(session: Session, chunks: Iterable[pa.Table], options: SinkOptions) -> None:
    """
    Insert chunks as they come, a transaction for each: delivery at least once.

    A task that Spark tries again sends again, with the same message ids.
    """
    without_subscriber = Counter[str]()
    for chunk in chunks:
        work = partial(Inserts.insert, chunk=chunk)
        inserts = session.run_with_retries(partial(send_in_transaction, options=options, work=work))
        inserts.log_set_aside(session.application)
        without_subscriber += inserts.without_subscriber
    publish.log_without_subscriber(session.application, without_subscriber)


class Inserts:
    """Inserts chunks into their queues, in the transaction that is open."""

    def __init__(
        self,
        connection: Connection,
        options: SinkOptions,
        destinations: Destinations | None = None,
        *,
        isolate_failures: bool = False,
    ) -> None:
        self.connection = connection  # in a transaction
        self.options = options
        # which tables may be sent to
        self.destinations = destinations or Destinations(connection)
        # whether the messages for a destination that refuses are set aside, and the others sent
        self.isolate_failures = isolate_failures
        # lists of topics without a subscriber, and how many messages had them
        self.without_subscriber: Counter[str] = Counter()
        self.messages_aside = 0  # in the error queue
        self.reasons: dict[str, SqlQueueError] = {}  # why, by destination or fault
        self._texts: list[str] = []  # headers of what goes to the error queue with this chunk
        self._bodies: list[pa.Array] = []

    def insert(self, chunk: pa.Table) -> None:
        """Insert a chunk's messages; it has the columns CHUNK_ROW, and others of CHUNK_OPTIONAL."""
        options = self.options
        if options.undeliverable_address is not None:
            chunk = self._set_faulty_aside(chunk)
            chunk = self._set_unreadable_aside(chunk)
        waiting = delayed.find_waiting(chunk)
        if waiting is not None:
            rows = chunk.filter(waiting)
            delayed.store_delayed(self, rows, rows_by_queue(rows, options))
            chunk = chunk.filter(pc.invert(waiting))
        rows = add_expires(self.connection, chunk)
        chosen = rows_by_queue(chunk, options, self.connection)
        topics = publish.topics_of(chunk)
        whole = topics is None and len(chosen) == 1
        for queue, reason in self.lock(chosen).items():
            self.set_aside(chunk.filter(chosen.pop(queue)), queue, reason)
        if topics is not None:
            copies, reasons = publish.find_copies(self, topics)
            for place, mine in copies.items():
                if isinstance(place, str) or place in reasons:
                    self.set_aside(chunk.filter(mine), place, reasons[place])
                else:
                    chosen[place] = pc.or_(chosen[place], mine) if place in chosen else mine
        for queue, mine in chosen.items():
            copied = add_ids(rows if whole else rows.filter(mine))
            if refused := self.copy_rows(queue, copied):
                self.set_aside(chunk.filter(mine), queue, refused)
        self._load_set_aside()

    # ------------------------------------------------------------ destinations

    def lock(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT,
        source: QueueAddress | None = None,
    ) -> Reasons:
        """
        Lock destinations; return or, if failures are not isolated, raise why one is refused.

        They must have the owner of the source, if there is one.
        """
        if not self.isolate_failures:
            self.destinations.lock_and_check(queues, columns, source)
            return {}
        return self.destinations.lock_each(queues, columns, source)

    def copy_rows(self, queue: QueueAddress, rows: pa.Table) -> SqlQueueError | None:
        """Insert rows; return or, if failures are not isolated, raise why they are refused."""
        if self.isolate_failures:
            load = partial(load_checked, self.connection, queue, rows)
            return self.destinations.isolate(queue, load)
        self.connection.load(queue, rows)
        return None

    # ------------------------------------------------------------ messages that are set aside

    def _set_faulty_aside(self, chunk: pa.Table) -> pa.Table:
        """
        Return the rows without a fault; the others go to the error queue.

        Their texts were changed, so that nobody can send them on without a look: no FailedQ.
        """
        if CHUNK_FAULT.name not in chunk.column_names:
            return chunk
        faults = chunk[CHUNK_FAULT.name]
        reasons = [_read_fault(text) for text in faults.drop_null().to_pylist()]
        for reason in reasons:
            self.reasons.setdefault(reason.reason, reason)
        rows = chunk.filter(pc.is_valid(faults))
        self._set_aside(rows, [failure_headers(self.connection, None, each) for each in reasons])
        return chunk.filter(pc.is_null(faults))

    def _set_unreadable_aside(self, chunk: pa.Table) -> pa.Table:
        """Return the rows whose destination can be read; the others go to the error queue."""
        failures: dict[str | None, dict[str, str]] = {}
        for name in names_of_queues(chunk):
            try:
                destination_of(name, self.options)
            except errors.BadInput as error:
                reason = errors.BadAddress(text="", reason=NOWHERE) if name is None else error
                failures[name] = self._describe(name, reason)
        if not failures:
            return chunk
        bad = _find_named(chunk, failures)
        rows = chunk.filter(bad)
        self._set_aside(rows, [failures[name] for name in rows["queue"].to_pylist()])
        return chunk.filter(pc.invert(bad))

    def set_aside(self, rows: pa.Table, place: QueueAddress | str, reason: SqlQueueError) -> None:
        """Keep rows of a chunk for the error queue; a place that is a text is untrusted."""
        address = place if isinstance(place, str) else self.connection.canonical(place)
        self._set_aside(rows, [self._describe(address, reason)] * rows.num_rows)

    def _describe(self, address: str | None, reason: SqlQueueError) -> dict[str, str]:
        self.reasons.setdefault(address or "", reason)
        return failure_headers(self.connection, address, reason)

    def _set_aside(self, rows: pa.Table, failures: list[dict[str, str]]) -> None:
        """Add the headers that say why; they replace FailedQ, and the destination of a delay."""
        waiting = delayed.find_waiting(rows)
        delays = [False] * rows.num_rows if waiting is None else waiting.to_pylist()
        texts = rows["headers"].to_pylist()
        for text, failure, is_delayed in zip(texts, failures, delays, strict=True):
            headers = parse_headers(text) or {}
            headers.pop(wire.FAILED_Q, None)
            if is_delayed:
                headers.pop(wire.FORWARD_DESTINATION, None)
            self._texts.append(wire.dumps(headers | failure))
        self._bodies += rows["body"].chunks

    def _load_set_aside(self) -> None:
        """Load what was set aside into the error queue, all at once and without expiry, or fail."""
        queue = self.options.undeliverable_address
        if queue is None or not self._texts:
            return
        self.destinations.lock_and_check([queue])
        bodies = pa.chunked_array(self._bodies, pa.binary())
        self.connection.load(queue, rows_to_store(self._texts, bodies))
        self.messages_aside += len(self._texts)
        self._texts, self._bodies = [], []

    def log_set_aside(self, where: str) -> None:
        """Warn, after the commit, of messages that went to the error queue."""
        if self.messages_aside:
            log.warning(
                "%s: undeliverable messages that went to the error queue: %d (%s)",
                where,
                self.messages_aside,
                list_reasons([*self.reasons.values()]),
            )


def _read_fault(text: str) -> errors.BadMessage:
    """Read why a row cannot be sent, as CHUNK_FAULT has it."""
    facts = json.loads(text)
    return errors.BadMessage(partition=facts["partition"], row=facts["row"], reason=facts["reason"])


# ---------------------------------------------------------------- which rows go where


def rows_by_queue(
    chunk: pa.Table, options: SinkOptions, connection: Connection | None = None
) -> dict[QueueAddress, pa.ChunkedArray]:
    """
    Return which rows are sent to each queue, as booleans.

    With a connection all spellings of a queue are one, so that its rows keep their order.
    """
    names = {name: destination_of(name, options) for name in names_of_queues(chunk)}
    spellings: dict[QueueAddress, list[str | None]] = {}
    several = len(set(names.values())) > 1
    first = unite(connection, names.values()) if connection and several else {}
    for name, queue in names.items():
        spellings.setdefault(first.get(queue, queue), []).append(name)
    return {queue: _find_named(chunk, texts) for queue, texts in spellings.items()}


def names_of_queues(chunk: pa.Table) -> list[str | None]:
    """Return the distinct queues of the rows that are not published; None stands for the sink's."""
    own, topics = chunk["queue"], publish.topics_of(chunk)
    if topics is not None:
        own = own.filter(pc.is_null(topics))
    names: list[str | None] = pc.unique(own).to_pylist()
    return names


def _find_named(chunk: pa.Table, names: Iterable[str | None]) -> pa.ChunkedArray:
    """Return which rows, of those that are not published, name one of some queues."""
    mask = pc.is_in(chunk["queue"], value_set=pa.array([*names], pa.string()))
    topics = publish.topics_of(chunk)
    return mask if topics is None else pc.and_(mask, pc.is_null(topics))


def destination_of(name: str | None, options: SinkOptions) -> QueueAddress:
    """Return where a row goes; `name` is its own queue, untrusted, or None for the sink's."""
    if name is None:
        if options.address is None:
            raise errors.MissingOption(
                option="queue", example="a queue's name, or a column queue without nulls"
            )
        return options.address
    return parse_destination("queue (column)", name, options.naming)


def check_tables(connection: Connection, options: SinkOptions) -> None:
    """
    Raise why a table that the options name cannot be used; no transaction is open.

    Raises:
        QueueNotFound, NotAQueue, TableRefused, DelayedQueueNotFound, SubscriptionsNotFound.
    """
    named = filter(None, (options.address, options.undeliverable_address))
    with transaction(connection):
        destinations = Destinations(connection)
        destinations.check(named)
        if options.delayed_address is not None:
            delayed.check_table(destinations, options.delayed_address)
        if options.names_subscriptions:
            subscriptions.check_table(connection, options.subscription_address)


# ---------------------------------------------------------------- columns


def add_expires(connection: Connection, chunk: pa.Table) -> pa.Table:
    """Return a queue's columns; `expires` is the database's time plus the lifetime."""
    optional = [CHUNK_ID, *CHUNK_LEGACY]
    others = [field.name for field in optional if field.name in chunk.column_names]
    rows, lifetime = chunk.select(["headers", "body", *others]), chunk["lifetime"]
    if lifetime.null_count == len(lifetime):
        return rows
    now = connection.value("clock")
    later = pc.multiply(lifetime, 1000).cast(pa.duration("us"))
    return rows.append_column("expires", pc.add(pa.scalar(now, pa.timestamp("us")), later))


def add_ids(rows: pa.Table) -> pa.Table:
    """
    Return the rows with new, rising ids, where they have none.

    Each copy of a message is a row of its own.
    """
    ids = rising_ids(rows.num_rows)
    if CHUNK_ID.name in rows.column_names:
        kept = rows[CHUNK_ID.name]
        ids = pc.if_else(kept.is_valid(), kept, pa.chunked_array([ids]))
        rows = rows.drop_columns(CHUNK_ID.name)
    return rows.append_column(CHUNK_ID.name, ids)


# ---------------------------------------------------------------- messages for an error queue
# Also the delayed messages whose destination refuses them: see receive/forward.py.


def failure_headers(
    connection: Connection, destination: str | None, reason: SqlQueueError
) -> dict[str, str]:
    """
    Return the headers that a failure adds; `retry` returns the message to where it was to go.

    The destination is untrusted. Without one there is no header FailedQ.
    """
    # headers that contain the url may leave this database
    text = str(reason).replace(connection.server, "this database")
    headers = {
        f"{wire.EXCEPTION_INFO}ExceptionType": f"sqlq_spark.errors.{type(reason).__name__}",
        f"{wire.EXCEPTION_INFO}Message": text[:LONGEST_REASON],
        wire.TIME_OF_FAILURE: wire.wire_time(datetime.now(UTC)),
    }
    if destination is not None:
        headers[wire.FAILED_Q] = destination[:LONGEST_ADDRESS]
    return headers


def rows_to_store(texts: Sequence[str], bodies: pa.ChunkedArray) -> pa.Table:
    """Return rows of a queue, under new ids and without expiry; a null body becomes empty."""
    rows = {"headers": pa.array(texts, pa.string()), "body": pc.fill_null(bodies, b"")}
    return add_ids(pa.table(rows))


def list_reasons(reasons: Sequence[SqlQueueError]) -> str:
    """Give the first few of many reasons, which quote untrusted text, for a line of a log."""
    first = "; ".join(ascii(str(each)[:300]) for each in reasons[:MOST_NAMED])
    more = len(reasons) - MOST_NAMED
    return first + (f"; and {more} more destinations" if more > 0 else "")
