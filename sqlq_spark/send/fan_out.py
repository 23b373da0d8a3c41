"""
Fan-out: into which subscribers' queues a published message is copied.

A message is copied once into each queue that is subscribed to any of its topics. Subscriptions are
read as a whole and kept for five seconds, as the transport does.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import unite
from sqlq_spark.errors import BadAddress, QueueNotFound, SubscriberLost, SubscriberUnreachable
from sqlq_spark.send.subscriptions import list_subscriptions
from sqlq_spark.send.topics import join_topics
from sqlq_spark.wire.headers import full_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.send.undeliverable import Undeliverable
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # lists of topics that a warning names
LONGEST_LOGGED = 200  # characters of each
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


@dataclass(frozen=True, slots=True)
class Copies:
    """Which rows are copied into which queue, as booleans."""

    queues: dict[QueueAddress, pa.Array]
    lost: dict[str, pa.Array]  # the same for queues that cannot be sent to, by their addresses
    reasons: dict[str, SqlQueueError]  # why they cannot

    def all(self) -> list[pa.Array]:
        """Return the rows of each queue."""
        return [*self.queues.values(), *self.lost.values()]


class FanOut:
    """Finds the queues of subscribers, in the transaction that sends."""

    def __init__(
        self, connection: Connection, options: SinkOptions, undeliverable: Undeliverable
    ) -> None:
        """
        Prepare; nothing is read yet.

        Args:
            connection: in the transaction that sends.
            options: the sink's.
            undeliverable: of that transaction; it checks and locks the subscribers' queues.
        """
        self.connection = connection
        self.options = options
        self.undeliverable = undeliverable
        self._reasons: dict[str, SqlQueueError] = {}  # why an address cannot be sent to

    def find_copies(self, topics: pa.ChunkedArray) -> Copies:
        """
        Find the queues of each row's subscribers.

        Args:
            topics: a list of each row; null where it is not published.

        Raises:
            SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
        """
        items = pc.list_flatten(topics)
        names = pc.unique(items).to_pylist()
        copies = Copies({}, {}, self._reasons)
        if not names:
            return copies
        rows = np.repeat(np.arange(len(topics)), pc.fill_null(pc.list_value_length(topics), 0))
        for place, wanted in self._topics_by_place(names).items():
            mask = np.zeros(len(topics), bool)
            mask[rows[pc.is_in(items, value_set=pa.array(wanted, pa.string())).to_numpy()]] = True
            if isinstance(place, str):
                copies.lost[place] = pa.array(mask)
            else:
                copies.queues[place] = pa.array(mask)
        return copies

    def _topics_by_place(self, names: list[str]) -> dict[QueueAddress | str, list[str]]:
        """
        Return which of some topics each queue gets; a text is a queue that cannot be sent to.

        The table is read again before anything fails.
        """
        url, table = self.options.url, self.options.subscription_address
        found = self._reach(cache.by_topic(self.connection, url, table), names)
        if self._reasons:
            self._reasons.clear()
            cache.drop(url, table)
            found = self._reach(cache.by_topic(self.connection, url, table), names)
        if self._reasons and not self.undeliverable.allowed:
            first = next(iter(self._reasons.values()))
            raise SubscriberUnreachable(
                endpoint=first.endpoint,
                topic=first.topic,
                address=first.address,
                reason=first.reason,
            )
        queues = [place for place in found if not isinstance(place, str)]
        for queue, reason in self.undeliverable.lock(queues).items():
            address = self.connection.canonical(queue)
            self._reasons[address] = reason
            found[address] = found.pop(queue)
        return found

    def _reach(
        self, by_topic: dict[str, list[Subscription]], names: list[str]
    ) -> dict[QueueAddress | str, list[str]]:
        subscribed = {name: by_topic.get(full_name(name), []) for name in names}
        places = self._places(dict.fromkeys(each for them in subscribed.values() for each in them))
        topics: dict[QueueAddress | str, list[str]] = {}
        for name, them in subscribed.items():
            for each in them:
                topics.setdefault(places[each], []).append(name)
        return topics

    def _places(
        self, subscriptions: Iterable[Subscription]
    ) -> dict[Subscription, QueueAddress | str]:
        """
        Return the subscribers' queues with their schemas, so that two spellings of one are one.

        A queue that cannot be sent to is given by its address, and `_reasons` says why: the address
        cannot be read, the queue is not there, or its table is not trusted.
        """
        connection = self.connection
        parsed: dict[Subscription, QueueAddress] = {}
        places: dict[Subscription, QueueAddress | str] = {}
        for each in subscriptions:
            try:
                parsed[each] = connection.names.parse_address(each.address)
            except BadAddress as error:
                places[each] = self._lose(each, each.address, f"is no address ({error.reason})")
        first = unite(connection, parsed.values())
        undecided = self.undeliverable.destinations.undecided(first.values())
        refused = self.undeliverable.destinations.find_refused(undecided)
        for each, address in parsed.items():
            queue = places[each] = first[address]
            if queue in refused:
                name = connection.canonical(queue)
                places[each] = self._lose(each, name, self._describe(refused[queue]))
        return places

    def _describe(self, reason: SqlQueueError) -> str:
        """Say why a queue cannot be sent to, as the end of a sentence."""
        if isinstance(reason, QueueNotFound):
            return f"was not found in {self.connection.server}"
        return f"cannot be sent to ({reason})"

    def _lose(self, subscription: Subscription, address: str, reason: str) -> str:
        """Record why a subscriber gets no copies; return the address of its queue."""
        error = SubscriberLost(
            endpoint=subscription.endpoint,
            topic=subscription.topic,
            address=subscription.address,
            reason=reason,
        )
        self._reasons.setdefault(address, error)
        return address


# ---------------------------------------------------------------- messages without a subscriber


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


def log_unheard(where: str, unheard: Counter[str]) -> None:
    """Warn, after the commit, of messages that had no subscriber."""
    if unheard:
        log.warning("%s: %s", where, describe_unheard(unheard))


def describe_unheard(unheard: Counter[str]) -> str:
    """Say how many messages had no subscriber, and name their topics."""
    total = unheard.total()
    message = "message" if total == 1 else "messages"
    count = f"{total} published {message} had no subscriber and went nowhere: topics "
    lists = [f"{_printable(text)} ({times})" for text, times in unheard.most_common(LOGGED_TOPICS)]
    more = len(unheard) - len(lists)
    return count + ", ".join(lists) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """Return untrusted text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST_LOGGED else text[:LONGEST_LOGGED] + "…")
