"""
Subscriptions: the table that says to which queues a published message is copied.

An endpoint subscribes to a topic with the address of its queue. A topic is the full name of a type.
The table belongs to the transport, and all endpoints of a system share it: they read the rows that
this package writes, and this package reads theirs. Only the subscriptions to the topics of a batch
are read. They are kept for five seconds, as in the transport.

The table is untrusted until database/trust.py has checked who owns it. Addresses in the table are
always untrusted: they are parsed and quoted before use.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark.database import attempt, find_same, transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.schema import create_subscriptions
from sqlq_spark.database.trust import DELETE, INSERT, READ, use, with_other_case
from sqlq_spark.errors import (
    BadOption,
    QueueNotFound,
    SubscriptionsNotFound,
    TimedOut,
    TooManySubscriptions,
)
from sqlq_spark.wire.headers import full_name, topic_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

FRESH = 5.0  # seconds for which subscriptions are kept, as the transport does
LAST_KNOWN = 60.0  # seconds after a read in which subscriptions serve if the table is locked
LOCKED_TABLE_WAIT = 1.0  # seconds to wait for a locked table if its subscriptions are known
MOST_ROWS = 10_000  # how many rows one statement may return
# how many topics one statement asks for, if a statement for all topics would return too many rows
TOPICS_AT_ONCE = 100
# If the cache has more topics of a table, it drops all but those of the current batch.
MOST_TOPICS = 10_000
LOCKED = (
    "%s is locked by another session. Its subscribers of %.0f s ago are used, for up to %g s: %s"
)
LONGEST_COLUMN = 200  # characters that each column of the table can hold
UNSENDABLE = re.compile("[\0\ud800-\udfff]")  # a database takes no such character


@dataclass(frozen=True, slots=True)
class Subscription:
    """A row of the table of subscriptions."""

    topic: str
    endpoint: str
    address: str  # canonical address of the endpoint's queue, as the transport writes it

    def check(self) -> None:
        """Raise BadOption if the table cannot hold a text, or if no publisher would find it."""
        columns = {"topic": self.topic, "endpoint": self.endpoint, "queue": self.address}
        for name, text in columns.items():
            if not _can_hold(text):
                expected = (
                    f"1 to {LONGEST_COLUMN} characters, no NUL and no half of a surrogate pair"
                )
                raise BadOption(option=name, found=text[:LONGEST_COLUMN], expected=expected)
        topic = full_name(self.topic)
        if topic != self.topic or topic_problem(topic):
            raise BadOption(
                option="topic", found=self.topic, expected=f"a type's full name, as {topic}"
            )


@dataclass(frozen=True, slots=True)
class NewSubscription(Subscription):
    """A row that was written."""

    # The address that the endpoint had for the topic before, as the table had it; None if it had no
    # other. The queue of that address gets no copies any more.
    replaced: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """The subscriptions to one topic, when they were read, and how long they are used."""

    read_at: float  # seconds of the cache's clock
    fresh_until: float  # seconds of the cache's clock
    subscriptions: list[Subscription]


class SubscriptionCache:
    """
    The subscriptions of each table by topic, for one process and at most FRESH seconds.

    If another session has locked the table, the subscriptions that were read last are used, for at
    most LAST_KNOWN seconds after they were read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  # returns seconds
        self._known: dict[object, dict[str, Known]] = {}
        self._locked: dict[object, float] = {}  # when a table was last found locked

    def find(
        self, connection: Connection, options: SinkOptions, topics: Sequence[str]
    ) -> dict[str, list[Subscription]]:
        """
        Return the subscriptions to each topic. Those that are too old are read again.

        The caller has a transaction open.

        Raises:
            SubscriptionsNotFound, TableRefused, TimedOut, TooManySubscriptions.
        """
        if not topics:
            return {}
        names = {topic: full_name(topic) for topic in topics}
        key = _key(options)
        now = self.clock()
        known = {
            name: known_topic
            for name, known_topic in self._known.get(key, {}).items()
            if now - known_topic.read_at < LAST_KNOWN
        }
        if len(known) > MOST_TOPICS:
            known = {name: known[name] for name in names.values() if name in known}
        self._known[key] = known
        wanted = dict.fromkeys(names.values())
        if any(name not in known or now >= known[name].fresh_until for name in wanted):
            known |= self._read(connection, options, [*wanted])
        return {topic: known[name].subscriptions for topic, name in names.items()}

    def _read(
        self, connection: Connection, options: SinkOptions, topics: Sequence[str]
    ) -> dict[str, Known]:
        """
        Read the subscriptions to topics.

        Return {} if the table is locked and all of them are cached.
        """
        key = _key(options)
        table = options.subscription_address
        now = self.clock()
        known = self._known[key]
        are_known = all(topic in known for topic in topics)
        if are_known and now - self._locked.get(key, -FRESH) < FRESH:
            return {}
        try:
            if are_known:
                with attempt(connection):
                    connection.set_lock_timeout(LOCKED_TABLE_WAIT)
                    rows = list_subscriptions(connection, table, topics)
                    connection.set_lock_timeout(None)
            else:
                rows = list_subscriptions(connection, table, topics)
        except TimedOut as error:
            if not are_known:
                raise
            connection.set_lock_timeout(None)
            self._locked[key] = now
            age = now - min(known[topic].read_at for topic in topics)
            log.warning(LOCKED, connection.printed(table), age, LAST_KNOWN, error.reason)
            return {}
        by_topic: dict[str, list[Subscription]] = {topic: [] for topic in topics}
        for subscription in rows:
            if subscription.topic in by_topic:  # if a collation ignores case, others come too
                by_topic[subscription.topic].append(subscription)
        return {topic: Known(now, now + FRESH, some) for topic, some in by_topic.items()}

    def expire(self, options: SinkOptions) -> None:
        """
        Let the next `find` read the table again.

        If the table is locked then, the old rows still serve.
        """
        known = self._known.get(_key(options), {})
        for topic, known_topic in known.items():
            known[topic] = replace(known_topic, fresh_until=known_topic.read_at)

    def drop(self, options: SinkOptions) -> None:
        """Forget all subscriptions of a table, so that the next `find` must read the table."""
        self._known.pop(_key(options), None)
        self._locked.pop(_key(options), None)


def _key(options: SinkOptions) -> object:
    return options.url, options.subscription_address


cache = SubscriptionCache()


def subscribe(
    connection: Connection,
    table: QueueAddress,
    *,
    topics: Sequence[str],
    endpoint: str,
    queue: QueueAddress,
) -> list[NewSubscription]:
    """
    Subscribe an endpoint with its queue to topics. Either all are subscribed, or none.

    The table is created if it is absent. A repeated call changes nothing. If the endpoint has
    subscribed with another queue before, the new queue replaces it. So two endpoints with the same
    name replace each other's queue, even if the queues are in different schemas.

    Raises:
        BadOption: the table cannot hold a text, or a topic is no full name.
        QueueNotFound: the queue does not exist. With its address in the table, publishers would
            fail. TableRefused.
    """
    address = connection.canonical(queue)
    new = [Subscription(topic, endpoint, address) for topic in dict.fromkeys(topics)]
    for subscription in new:
        subscription.check()
    if not connection.columns(queue):
        missing = QueueNotFound(queue=connection.printed(queue), server=connection.server)
        raise with_other_case(connection, missing)
    if not connection.columns(table):
        create_subscriptions(connection, table)
    with transaction(connection):
        use(connection, [table], INSERT, role="subscriptions")
        before = {
            subscription.topic: _replace(connection, table, subscription) for subscription in new
        }
        texts = {text for text in before.values() if text is not None}
        same = find_same(connection, queue, texts)
    return [
        NewSubscription(topic, endpoint, address, None if text in same else text)
        for topic, text in before.items()
    ]


def _replace(connection: Connection, table: QueueAddress, new: Subscription) -> str | None:
    """Write a row, in the open transaction. Return the address that the row had before."""
    tables = {"subscriptions": table}
    before: str | None = connection.value(
        "subscribed", tables=tables, topic=new.topic, endpoint=new.endpoint
    )
    connection.run(
        "subscribe",
        tables=tables,
        topic=new.topic,
        endpoint=new.endpoint,
        queue_address=new.address,
    )
    return before


def unsubscribe(connection: Connection, table: QueueAddress, topic: str, endpoint: str) -> bool:
    """End an endpoint's subscription to a topic. Return False if there was none."""
    tables = {"subscriptions": table}
    with transaction(connection), as_subscriptions():
        use(connection, [table], DELETE, role="subscriptions")
        ended = connection.value("unsubscribe", tables=tables, topic=topic, endpoint=endpoint)
        return ended is not None


def list_subscriptions(
    connection: Connection, table: QueueAddress, topics: Collection[str] | None = None
) -> list[Subscription]:
    """
    Return the subscriptions to some topics, or to all, in the order of topic and endpoint.

    Raises:
        SubscriptionsNotFound, TableRefused.
        TooManySubscriptions: one statement for TOPICS_AT_ONCE topics finds more than MOST_ROWS
            rows.
    """
    # a topic that the table cannot hold has no subscription
    some = None if topics is None else sorted(filter(_can_hold, topics))
    with as_subscriptions():
        use(connection, [table], READ, role="subscriptions")
        subscriptions = _read_rows(connection, table, some)
        if len(subscriptions) <= MOST_ROWS:
            return subscriptions
        if some is None or len(some) <= TOPICS_AT_ONCE:
            raise TooManySubscriptions(table=connection.printed(table), most=MOST_ROWS)
        subscriptions = []
        for first in range(0, len(some), TOPICS_AT_ONCE):
            rows = _read_rows(connection, table, some[first : first + TOPICS_AT_ONCE])
            if len(rows) > MOST_ROWS:
                raise TooManySubscriptions(table=connection.printed(table), most=MOST_ROWS)
            subscriptions += rows
    return subscriptions


def _read_rows(
    connection: Connection, table: QueueAddress, topics: Sequence[str] | None
) -> list[Subscription]:
    """Read the rows of some topics, or of all: at most MOST_ROWS + 1, which means too many."""
    return connection.rows(
        "subscribers",
        Subscription,
        tables={"subscriptions": table},
        topics=None if topics is None else json.dumps(topics),
        most=MOST_ROWS + 1,
    )


def _can_hold(text: str) -> bool:
    """Whether the table can hold a text."""
    return bool(text.strip()) and len(text) <= LONGEST_COLUMN and not UNSENDABLE.search(text)


def check_subscription_table(connection: Connection, table: QueueAddress) -> None:
    """Raise SubscriptionsNotFound or TableRefused if the table cannot be used. Lock nothing."""
    with as_subscriptions():
        Destinations(connection).check([table], ())


@contextmanager
def as_subscriptions() -> Iterator[None]:
    """Raise SubscriptionsNotFound if the table that the block uses does not exist."""
    try:
        yield
    except QueueNotFound as error:
        raise SubscriptionsNotFound(table=error.queue, server=error.server) from None
