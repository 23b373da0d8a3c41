"""
The inserts of one transaction that sends: each chunk goes into the tables of its destinations.

A chunk is inserted in five steps: divert what cannot be read, find the routes, lock and check their
tables, insert, divert what was refused. The routes come from routes.py, publish.py and delayed.py.

The option `undeliverable` names an error queue for messages that cannot be sent. If a message has
no destination, or one that cannot be read, this is found without the database. Any other fault of a
destination makes a statement fail, and with it the transaction. Then the transaction runs again in
a way that isolates failures:

- Each destination is checked first. Then it is locked and loaded after a savepoint, so that a
  failure undoes only this work.
- If the failure of a destination still ends the transaction, it runs once more without that
  destination.

If all messages of a batch can be sent, the statements are the same as without the option.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlq_spark import errors
from sqlq_spark.database import load_checked, transaction
from sqlq_spark.database.destinations import (
    DELAYED_COLUMNS,
    PASSING_FAILURES,
    SENT_COLUMNS,
    Destinations,
    run_without_failed,
)
from sqlq_spark.database.trust import with_other_case
from sqlq_spark.send import subscriptions
from sqlq_spark.send.chunk import split_delayed
from sqlq_spark.send.delayed import check_delayed_table, delayed_routes, why_not_delayed
from sqlq_spark.send.divert import (
    divert_faulty,
    divert_refused,
    divert_unreadable,
    diverted_rows,
    list_reasons,
)
from sqlq_spark.send.publish import log_without_subscriber, published_routes
from sqlq_spark.send.routes import TableKind, merge_routes, own_routes, read_queue_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.divert import Diverted
    from sqlq_spark.send.publish import LostCopies, Published
    from sqlq_spark.send.routes import Route
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")


def send_in_transaction(
    connection: Connection, options: SinkOptions, work: Callable[[Inserts], T]
) -> T:
    """
    Run a transaction that sends, and return the result of `work`.

    `work` does all that is done between begin and commit. If it fails and the options name an error
    queue, it runs again in a new transaction that isolates the failures of destinations. Otherwise
    the failure is raised.
    """

    def send(failed: Reasons, *, isolate: bool) -> T:
        destinations = Destinations(connection, failed=failed)
        inserts = Inserts(connection, options, destinations, isolate_failures=isolate)
        with transaction(connection):
            return work(inserts)

    try:
        return send({}, isolate=False)
    except errors.DatabaseFailure as error:
        if options.undeliverable_address is None or isinstance(error, PASSING_FAILURES):
            if isinstance(error, errors.QueueNotFound) and is_of_options(
                connection, options, error
            ):
                raise with_other_case(connection, error) from None
            raise
    return run_without_failed(partial(send, isolate=True))


def is_of_options(
    connection: Connection, options: SinkOptions, error: errors.QueueNotFound
) -> bool:
    """Whether the absent queue is that of the options, and not one that a row names."""
    return options.address is not None and error.queue == connection.printed(options.address)


def send_now(session: Session, chunks: Iterable[pa.Table], options: SinkOptions) -> None:
    """
    Insert each chunk as it comes, in a transaction of its own. Each message is sent at least once.

    If Spark runs a task again, the task sends its messages again, with the same message ids.
    """
    without_subscriber = Counter[str]()
    for chunk in chunks:
        work = partial(Inserts.insert, chunk=chunk)
        inserted = session.run_with_retries(
            partial(send_in_transaction, options=options, work=work)
        )
        inserted.log_diverted(session.application)
        without_subscriber += inserted.without_subscriber
    log_without_subscriber(session.application, without_subscriber)


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of messages that did not reach all their queues, in one or several chunks."""

    diverted: int = 0  # how many messages went to the error queue
    reasons: dict[str, SqlQueueError] = field(default_factory=dict)  # destination or fault → why
    # lists of topics without a subscriber, and how many messages had them
    without_subscriber: Counter[str] = field(default_factory=Counter)

    def __add__(self, later: Inserted) -> Inserted:
        """Add the result of later messages. Of two reasons for a destination the first is kept."""
        new = {key: reason for key, reason in later.reasons.items() if key not in self.reasons}
        return Inserted(
            self.diverted + later.diverted,
            self.reasons | new,
            self.without_subscriber + later.without_subscriber,
        )

    def log_diverted(self, where: str) -> None:
        """Warn of messages that went to the error queue. Call this after the commit."""
        if self.diverted:
            log.warning(
                "%s: undeliverable messages that went to the error queue: %d (%s)",
                where,
                self.diverted,
                list_reasons([*self.reasons.values()]),
            )


class Inserts:
    """Inserts chunks in the transaction that is open, and locks and checks each table once."""

    def __init__(
        self,
        connection: Connection,
        options: SinkOptions,
        destinations: Destinations | None = None,
        *,
        isolate_failures: bool = False,
    ) -> None:
        self.connection = connection  # has a transaction open
        self.options = options
        self.destinations = destinations or Destinations(connection)
        # whether a message that its destination refuses is diverted, instead of failing the
        # transaction
        self.isolate_failures = isolate_failures

    def insert(self, chunk: pa.Table) -> Inserted:
        """Insert a chunk. Return what became of messages that did not reach all their queues."""
        diverted: list[Diverted] = []
        if self.options.undeliverable_address is not None:
            chunk, faulty = divert_faulty(self.connection, chunk)
            chunk, unreadable = divert_unreadable(self.connection, self.options, chunk)
            diverted = faulty + unreadable
        routes, published = self._find_routes(chunk)
        diverted += [self._divert_lost(lost) for lost in published.lost]
        refused = self._lock(routes)
        for route in routes:
            reason = refused[route] if route in refused else self._copy(route)
            if reason is not None:
                diverted.append(self._divert_refused(route, reason))
        self._store(diverted)
        inserted = Inserted(without_subscriber=published.without_subscriber)
        for some in diverted:
            inserted += Inserted(len(some.texts), some.reasons)
        return inserted

    def _find_routes(self, chunk: pa.Table) -> tuple[list[Route], Published]:
        """
        Return all routes of a chunk, and what is published. Nothing is locked here.

        Routes of delayed messages come first. If rows name a queue that is also the queue of a
        subscriber, both become one route.
        """
        connection = self.connection
        options = self.options
        waiting, others = split_delayed(chunk)
        delayed = delayed_routes(connection, options, waiting)
        rows = read_queue_rows(connection, others)
        own = own_routes(connection, options, others, rows)
        published = published_routes(connection, options, self.destinations, others, rows)
        return [*delayed, *merge_routes([*own, *published.routes])], published

    # ------------------------------------------------------------ lock and check

    def _lock(self, routes: Sequence[Route]) -> dict[Route, SqlQueueError]:
        """
        Lock and check the table of each route.

        If failures are isolated, return why some tables are refused. Otherwise raise it.
        """
        refused: dict[Route, SqlQueueError] = {}
        for route in routes:
            if route.kind is not TableKind.QUEUE:
                reason = self._lock_delayed(route)
                if reason is not None:
                    refused[route] = reason
        queues = {route.table: route for route in routes if route.kind is TableKind.QUEUE}
        reasons = self._lock_tables(queues, SENT_COLUMNS)
        return refused | {queues[queue]: reason for queue, reason in reasons.items()}

    def _lock_delayed(self, route: Route) -> SqlQueueError | None:
        """
        Lock and check a table where delayed messages wait.

        If failures are isolated, return why the table is refused. Otherwise raise it. The fault of
        the table that the option `delayedQueue` names is always raised: all delayed messages need
        that table, so none is diverted because of it.
        """
        try:
            if route.kind is TableKind.DELAYED_OF_OPTION:
                self.destinations.lock_and_check([route.table], DELAYED_COLUMNS)
                return None
            reasons = self._lock_tables([route.table], DELAYED_COLUMNS, source=route.place)
        except (errors.QueueNotFound, errors.NotAQueue) as error:
            raise why_not_delayed(self.connection, error, route.table, route.place) from None
        if route.table not in reasons:
            return None
        return why_not_delayed(self.connection, reasons[route.table], route.table, route.place)

    def _lock_tables(
        self,
        tables: Iterable[QueueAddress],
        columns: Sequence[str],
        source: QueueAddress | None = None,
    ) -> Reasons:
        """
        Lock and check tables. If there is a `source`, the tables must have the same owner as it.

        If failures are isolated, return why some tables are refused. Otherwise raise it.
        """
        if self.isolate_failures:
            return self.destinations.lock_each(tables, columns, source)
        self.destinations.lock_and_check(tables, columns, source)
        return {}

    # ------------------------------------------------------------ insert, and divert

    def _copy(self, route: Route) -> SqlQueueError | None:
        """
        Insert the rows of a route. If failures are isolated, return the failure.

        Otherwise raise it.
        """
        rows = route.chosen_rows()
        if self.isolate_failures and route.kind is not TableKind.DELAYED_OF_OPTION:
            load = partial(load_checked, self.connection, route.table, rows)
            return self.destinations.isolate(route.table, load)
        self.connection.load(route.table, rows)
        return None

    def _divert_refused(self, route: Route, reason: SqlQueueError) -> Diverted:
        address = self.connection.canonical(route.place)
        return divert_refused(self.connection, route.chosen_messages(), address, reason)

    def _divert_lost(self, lost: LostCopies) -> Diverted:
        return divert_refused(self.connection, lost.messages, lost.address, lost.reason)

    def _store(self, diverted: Sequence[Diverted]) -> None:
        """Insert all diverted messages into the error queue, without expiry. Raise if it fails."""
        queue = self.options.undeliverable_address
        if queue is None or not diverted:
            return
        self.destinations.lock_and_check([queue])
        self.connection.load(queue, diverted_rows(diverted))


def check_tables(connection: Connection, options: SinkOptions) -> None:
    """
    Raise an error if a table that the options name cannot be used. Call this outside a transaction.

    Raises:
        QueueNotFound, NotAQueue, TableRefused, DelayedQueueNotFound, SubscriptionsNotFound.
    """
    named = filter(None, (options.address, options.undeliverable_address))
    with transaction(connection):
        destinations = Destinations(connection)
        destinations.check(named)
        if options.delayed_address is not None:
            check_delayed_table(destinations, options.delayed_address)
        if options.names_subscriptions:
            subscriptions.check_subscription_table(connection, options.subscription_address)
