"""
Subscriptions: the table that says into which queues a message is copied.

An endpoint subscribes to a topic, the full name of a type, with the address of its queue. The table
is the transport's own, shared by all endpoints of a system: they read our rows, and we read theirs.
It is read as a whole and kept for five seconds, as the transport does.

Addresses in the table are untrusted. They are parsed before use, and quoted. So is the table, until
database/trust.py has said whose it is.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.database import find_same, transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.schema import create_subscriptions
from sqlq_spark.database.trust import DELETE, INSERT, READ, use
from sqlq_spark.errors import BadOption, QueueNotFound, SubscriptionsNotFound
from sqlq_spark.wire.headers import full_name, topic_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

FRESH = 5.0  # seconds for which subscriptions are kept, as by the transport
LONGEST = 200  # characters of each column of the table
UNSENDABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Subscription:
    """A row of the table."""

    topic: str
    endpoint: str
    address: str  # of the endpoint's queue; canonical, as the transport writes it

    def check(self) -> None:
        """Raise BadOption for what the table cannot hold or no publisher would find."""
        columns = {"topic": self.topic, "endpoint": self.endpoint, "queue": self.address}
        for name, text in columns.items():
            if not text.strip() or len(text) > LONGEST or UNSENDABLE.search(text):
                expected = f"1 to {LONGEST} characters, no NUL and no half of a surrogate pair"
                raise BadOption(option=name, found=text[:LONGEST], expected=expected)
        topic = full_name(self.topic)
        if topic != self.topic or topic_problem(topic):
            raise BadOption(
                option="topic", found=self.topic, expected=f"a type's full name, as {topic}"
            )


@dataclass(frozen=True, slots=True)
class NewSubscription(Subscription):
    """A row that was written."""

    # the address of another queue that the endpoint had for the topic, as the table had it; that
    # queue gets no copy any more
    replaced: str | None = None


class SubscriptionCache:
    """The subscriptions of each table, for one process and at most FRESH seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  # seconds
        self._read: dict[object, tuple[float, dict[str, list[Subscription]]]] = {}

    def find(
        self, connection: Connection, options: SinkOptions, topics: Sequence[str]
    ) -> dict[str, list[Subscription]]:
        """Return the subscriptions to each topic; read the table where they are too old."""
        if not topics:
            return {}
        asked, key = self.clock(), (options.url, options.subscription_address)
        read, by_topic = self._read.get(key, (None, {}))
        if read is None or asked - read >= FRESH:
            by_topic = {}
            for subscription in list_subscriptions(connection, options.subscription_address):
                by_topic.setdefault(subscription.topic, []).append(subscription)
            self._read[key] = asked, by_topic
        return {topic: by_topic.get(full_name(topic), []) for topic in topics}

    def drop(self, options: SinkOptions) -> None:
        """Drop a table's subscriptions, so that the next look reads the table."""
        self._read.pop((options.url, options.subscription_address), None)


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
    Subscribe an endpoint to topics with its queue, all or none; a later call replaces the queue.

    The table is created where it is absent. A repeated call changes nothing. Endpoints of one name
    replace each other's queue, also those of different schemas.

    Raises:
        BadOption: the table cannot hold it, or a topic is no full name.
        QueueNotFound: the queue is not there; with it in the table, each publisher would fail.
        TableRefused.
    """
    address = connection.canonical(queue)
    new = [Subscription(topic, endpoint, address) for topic in dict.fromkeys(topics)]
    for subscription in new:
        subscription.check()
    if not connection.columns(queue):
        raise QueueNotFound(queue=address, server=connection.server)
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
    """Write a row, in the open transaction; return the address that it had before."""
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
    """End an endpoint's subscription to a topic, if there is one; return whether there was."""
    tables = {"subscriptions": table}
    with transaction(connection), as_subscriptions():
        use(connection, [table], DELETE, role="subscriptions")
        ended = connection.value("unsubscribe", tables=tables, topic=topic, endpoint=endpoint)
        return ended is not None


def list_subscriptions(
    connection: Connection, table: QueueAddress, topic: str | None = None
) -> list[Subscription]:
    """
    Return the subscriptions to one topic, or to any, by topic and endpoint.

    Raises:
        SubscriptionsNotFound, TableRefused.
    """
    tables = {"subscriptions": table}
    with as_subscriptions():
        use(connection, [table], READ, role="subscriptions")
        return connection.rows("subscribers", Subscription, tables=tables, topic=topic)


def check_table(connection: Connection, table: QueueAddress) -> None:
    """Raise SubscriptionsNotFound or TableRefused if the table cannot be used; lock nothing."""
    with as_subscriptions():
        Destinations(connection).check([table], ())


@contextmanager
def as_subscriptions() -> Iterator[None]:
    """Raise SubscriptionsNotFound where the table that the block uses is absent."""
    try:
        yield
    except QueueNotFound as error:
        raise SubscriptionsNotFound(table=error.queue, server=error.server) from None
