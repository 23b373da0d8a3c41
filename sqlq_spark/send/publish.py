"""
Publish: a message is copied once into each queue that is subscribed to any of its topics.

The subscriptions are in subscriptions.py.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from sqlq_spark.database import unite
from sqlq_spark.errors import BadAddress, QueueNotFound, SubscriberLost, SubscriberUnreachable
from sqlq_spark.send import subscriptions
from sqlq_spark.send.chunk import count_unmatched, find_published, names_of_topics, topics_of
from sqlq_spark.send.routes import Route, TableKind

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.destinations import Destinations
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # how many lists of topics a warning names
LONGEST_LOGGED = 200  # characters of each list in a warning


@dataclass(frozen=True, slots=True, eq=False)
class LostCopies:
    """Copies for a subscriber to which nothing can be sent."""

    address: str  # the address of the subscriber, untrusted
    messages: pa.Table
    reason: SubscriberLost


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """Where the published messages of a chunk go, and which copies cannot be sent."""

    routes: list[Route] = field(default_factory=list)
    lost: list[LostCopies] = field(default_factory=list)
    # lists of topics without a subscriber, and how many messages had them
    without_subscriber: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Subscribers:
    """
    The subscribers of some topics: which of them can get messages, and which cannot.

    The keys of the fields are addresses of subscribers. They are canonical, so that two spellings
    of an address count as one subscriber. An address that cannot be read is kept as the table has
    it.
    """

    topics: dict[str, list[str]]  # the topics of each subscriber
    queues: dict[str, QueueAddress]  # the queue of each subscriber to which messages can be sent
    lost: dict[str, SubscriberLost]  # why nothing can be sent to each other subscriber


def published_routes(
    connection: Connection,
    options: SinkOptions,
    destinations: Destinations,
    chunk: pa.Table,
    rows: pa.Table,
) -> Published:
    """
    Return the routes of published messages into the queues of their subscribers.

    Raises:
        SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
    """
    topics = topics_of(chunk)
    if topics is None:
        return Published()
    names = names_of_topics(topics)
    subscribers = _find_subscribers(connection, options, destinations, names)
    if subscribers.lost:  # the table is read again before anything fails
        subscriptions.cache.expire(options)
        subscribers = _find_subscribers(connection, options, destinations, names)
    if subscribers.lost and options.undeliverable_address is None:
        first = next(iter(subscribers.lost.values()))
        raise SubscriberUnreachable(
            endpoint=first.endpoint, topic=first.topic, address=first.address, reason=first.reason
        )
    masks = find_published(topics, subscribers.topics)
    routes = [
        Route(queue, queue, TableKind.QUEUE, chunk, rows, masks[address])
        for address, queue in subscribers.queues.items()
    ]
    lost = [
        LostCopies(address, chunk.filter(masks[address]), reason)
        for address, reason in subscribers.lost.items()
    ]
    return Published(routes, lost, count_unmatched(topics, masks.values()))


def _find_subscribers(
    connection: Connection, options: SinkOptions, destinations: Destinations, names: list[str]
) -> Subscribers:
    """Find the subscribers of some topics, and which of them can get messages. Use the cache."""
    subscribed = subscriptions.cache.find(connection, options, names)
    parsed: dict[Subscription, QueueAddress] = {}
    reasons: dict[Subscription, str] = {}  # why nothing can be sent
    for subscription in dict.fromkeys(chain.from_iterable(subscribed.values())):
        try:
            parsed[subscription] = connection.names.parse_address(subscription.address)
        except BadAddress as error:
            reasons[subscription] = f"is no address ({error.reason})"
    first = unite(connection, parsed.values())
    refused = destinations.find_refused(destinations.undecided(first.values()))
    addresses = {subscription: subscription.address for subscription in reasons}
    queues: dict[str, QueueAddress] = {}
    for subscription, spelling in parsed.items():
        queue = first[spelling]
        address = connection.canonical(queue)
        addresses[subscription] = address
        if queue not in refused:
            queues[address] = queue
        elif isinstance(refused[queue], QueueNotFound):
            reasons[subscription] = f"was not found in {connection.server}"
        else:
            reasons[subscription] = f"cannot be sent to ({refused[queue]})"
    topics: dict[str, list[str]] = {}
    for topic, subscribers in subscribed.items():
        for subscription in subscribers:
            topics.setdefault(addresses[subscription], []).append(topic)
    lost: dict[str, SubscriberLost] = {}
    for subscription, reason in reasons.items():
        fault = SubscriberLost(
            endpoint=subscription.endpoint,
            topic=subscription.topic,
            address=subscription.address,
            reason=reason,
        )
        lost.setdefault(addresses[subscription], fault)
    return Subscribers(topics, queues, lost)


# ---------------------------------------------------------------- messages without a subscriber


def log_without_subscriber(where: str, topics: Counter[str]) -> None:
    """Warn of messages that had no subscriber. Call this after the commit."""
    if topics:
        log.warning("%s: %s", where, describe_without_subscriber(topics))


def describe_without_subscriber(topics: Counter[str]) -> str:
    """Return a text that says how many messages had no subscriber, and names their topics."""
    total = topics.total()
    message = "message" if total == 1 else "messages"
    count = f"{total} published {message} discarded: no endpoint subscribes to "
    lists = [f"{_printable(text)} ({times})" for text, times in topics.most_common(LOGGED_TOPICS)]
    more = len(topics) - len(lists)
    return count + ", ".join(lists) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """Return untrusted text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST_LOGGED else text[:LONGEST_LOGGED] + "…")
