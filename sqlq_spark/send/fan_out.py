"""
Fan-out: into which subscribers' queues a published message is copied.

A message is copied once into each queue that is subscribed to any of its topics. Subscriptions are
read as a whole and kept for five seconds, as the transport does.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database.spellings import unite
from sqlq_spark.errors import BadAddress, QueueNotFound, SubscriberUnreachable
from sqlq_spark.send.subscriptions import list_subscriptions
from sqlq_spark.send.topics import join_topics
from sqlq_spark.wire.message_types import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlq_spark.database import Connection
    from sqlq_spark.database.destinations import Destinations
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

FRESH = 5.0  # seconds for which subscriptions are kept, as by the transport


class SubscriptionCache:
    """The subscriptions of each table, for one process and at most FRESH seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start empty; `clock` returns seconds."""
        self.clock = clock
        self._read: dict[object, tuple[float, dict[str, list[Subscription]]]] = {}

    def by_topic(
        self, connection: Connection, url: str, table: QueueAddress
    ) -> dict[str, list[Subscription]]:
        """Return a table's subscriptions by topic; read the table where they are too old."""
        asked, key = self.clock(), (url, table)
        read, found = self._read.get(key, (None, {}))
        if read is None or asked - read >= FRESH:
            found = {}
            for each in list_subscriptions(connection, table):
                found.setdefault(each.topic, []).append(each)
            self._read[key] = asked, found
        return found

    def drop(self, url: str, table: QueueAddress) -> None:
        """Drop a table's subscriptions, so that the next look reads the table."""
        self._read.pop((url, table), None)


cache = SubscriptionCache()


class FanOut:
    """Finds the queues of subscribers, in the transaction that sends."""

    def __init__(
        self, connection: Connection, options: SinkOptions, destinations: Destinations
    ) -> None:
        """
        Prepare; nothing is read yet.

        Args:
            connection: in the transaction that sends.
            options: the sink's.
            destinations: of that transaction; the subscribers' queues are checked and locked by it.
        """
        self.connection = connection
        self.options = options
        self.destinations = destinations

    def rows_by_queue(self, topics: pa.ChunkedArray) -> dict[QueueAddress, pa.Array]:
        """
        Which rows are copied into one queue, as booleans, for each queue.

        Args:
            topics: a list of each row; null where it is not published.

        Raises:
            SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
        """
        items = pc.list_flatten(topics)
        names = pc.unique(items).to_pylist()
        if not names:
            return {}
        rows = np.repeat(np.arange(len(topics)), pc.fill_null(pc.list_value_length(topics), 0))
        chosen: dict[QueueAddress, pa.Array] = {}
        for queue, wanted in self._topics_by_queue(names).items():
            mask = np.zeros(len(topics), bool)
            mask[rows[pc.is_in(items, value_set=pa.array(wanted, pa.string())).to_numpy()]] = True
            chosen[queue] = pa.array(mask)
        return chosen

    def _topics_by_queue(self, names: list[str]) -> dict[QueueAddress, list[str]]:
        """Return which of some topics each queue gets; read the table again before it fails."""
        url, table = self.options.url, self.options.subscription_address
        try:
            found = self._reach(cache.by_topic(self.connection, url, table), names)
        except SubscriberUnreachable:
            cache.drop(url, table)
            found = self._reach(cache.by_topic(self.connection, url, table), names)
        self.destinations.lock_and_check(found)
        return found

    def _reach(
        self, by_topic: dict[str, list[Subscription]], names: list[str]
    ) -> dict[QueueAddress, list[str]]:
        subscribed = {name: by_topic.get(full_name(name), []) for name in names}
        queues = self._queues(dict.fromkeys(each for them in subscribed.values() for each in them))
        topics: dict[QueueAddress, list[str]] = {}
        for name, them in subscribed.items():
            for each in them:
                topics.setdefault(queues[each], []).append(name)
        return topics

    def _queues(self, subscriptions: Iterable[Subscription]) -> dict[Subscription, QueueAddress]:
        """
        Return the subscribers' queues with their schemas, so that two spellings of one are one.

        Raises:
            SubscriberUnreachable: an address cannot be read, its queue is not there, or its table
                is not trusted.
        """
        connection = self.connection
        parsed: dict[Subscription, QueueAddress] = {}
        for each in subscriptions:
            try:
                parsed[each] = connection.parsed(each.address)
            except BadAddress as error:
                raise unreachable(each, f"is no address ({error.args[1]})") from None
        first = unite(connection, parsed.values())
        queues = {each: first[queue] for each, queue in parsed.items()}
        reasons = self.destinations.find_refused(self.destinations.undecided(queues.values()))
        for each, queue in queues.items():
            if isinstance(reasons.get(queue), QueueNotFound):
                raise unreachable(each, f"was not found in {connection.server}")
            if queue in reasons:
                raise unreachable(each, f"cannot be sent to ({reasons[queue]})")
        return queues


def unreachable(subscription: Subscription, reason: str) -> SubscriberUnreachable:
    """Return the error for a subscriber."""
    return SubscriberUnreachable(
        subscription.endpoint, subscription.topic, subscription.address, reason
    )


def count_unheard(topics: pa.ChunkedArray, copies: Iterable[pa.Array]) -> Counter[str]:
    """
    Count the published rows that no queue gets, by their lists of topics as headers write them.

    Args:
        topics: a list of each row; null where it is not published.
        copies: for each queue, which rows it gets.
    """
    unheard = pc.is_valid(topics)
    for rows in copies:
        unheard = pc.and_(unheard, pc.invert(rows))
    counts = pc.value_counts(join_topics(topics.filter(unheard))).to_pylist()
    return Counter({each["values"]: each["counts"] for each in counts})
