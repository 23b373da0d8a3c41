"""
Publish: a message is copied once into each queue that is subscribed to any of its topics.

The subscriptions are in subscriptions.py.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import unite
from sqlq_spark.errors import BadAddress, QueueNotFound, SubscriberLost, SubscriberUnreachable
from sqlq_spark.send import subscriptions
from sqlq_spark.send.sender import CHUNK_TOPICS
from sqlq_spark.wire.headers import SEPARATOR

if TYPE_CHECKING:
    from collections import Counter

    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.send.insert import Inserts
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

    Place: TypeAlias = QueueAddress | str  # of a subscriber; a text cannot be read
    Failures: TypeAlias = dict[Place, SqlQueueError]
    Topics: TypeAlias = dict[Place, list[str]]  # of each queue

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # lists of topics that a warning names
LONGEST_LOGGED = 200  # characters of each


def topics_of(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return the topics of a chunk's rows; None where no row is published."""
    return chunk[CHUNK_TOPICS.name] if CHUNK_TOPICS.name in chunk.column_names else None


def find_copies(
    inserts: Inserts, topics: pa.ChunkedArray
) -> tuple[dict[Place, pa.Array], Failures]:
    """
    Find the queues of each row's subscribers, and lock them; count rows that no queue gets.

    Returns:
        Which rows are copied into which queue, as booleans; and which of these queues cannot be
        sent to, and why. A text is an address that cannot be read.

    Raises:
        SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
    """
    items = pc.list_flatten(topics)
    rows = np.repeat(np.arange(len(topics)), pc.fill_null(pc.list_value_length(topics), 0))
    places, reasons = _find_subscribers(inserts, pc.unique(items).to_pylist())
    copies: dict[Place, pa.Array] = {}
    alone = pc.is_valid(topics).to_numpy()
    for place, wanted in places.items():
        mask = np.zeros(len(topics), bool)
        mask[rows[pc.is_in(items, value_set=pa.array(wanted, pa.string())).to_numpy()]] = True
        copies[place], alone = pa.array(mask), alone & ~mask
    texts = pc.binary_join(topics.filter(pa.array(alone)), SEPARATOR)
    for each in pc.value_counts(texts).to_pylist():
        inserts.without_subscriber[each["values"]] += each["counts"]
    return copies, reasons


def _find_subscribers(inserts: Inserts, names: list[str]) -> tuple[Topics, Failures]:
    """Return which of some topics each queue gets, and why some queues cannot be sent to."""
    places, lost = _look_up(inserts, names)
    if lost:  # read the table again before anything fails
        subscriptions.cache.expire(inserts.options)
        places, lost = _look_up(inserts, names)
    if lost and inserts.options.undeliverable_address is None:
        first = next(iter(lost.values()))
        raise SubscriberUnreachable(
            endpoint=first.endpoint, topic=first.topic, address=first.address, reason=first.reason
        )
    queues = [place for place in places if not isinstance(place, str) and place not in lost]
    reasons: Failures = {**lost}
    reasons.update(inserts.lock(queues).items())
    return places, reasons


def _look_up(inserts: Inserts, names: list[str]) -> tuple[Topics, dict[Place, SubscriberLost]]:
    """Do `_find_subscribers` by what is known now, without locks; two spellings are one queue."""
    connection, destinations = inserts.connection, inserts.destinations
    subscribed = subscriptions.cache.find(connection, inserts.options, names)
    parsed: dict[Subscription, QueueAddress] = {}
    places: dict[Subscription, Place] = {}
    lost: dict[Subscription, str] = {}  # why
    for subscription in dict.fromkeys(chain.from_iterable(subscribed.values())):
        try:
            parsed[subscription] = connection.names.parse_address(subscription.address)
        except BadAddress as error:
            places[subscription] = subscription.address
            lost[subscription] = f"is no address ({error.reason})"
    first = unite(connection, parsed.values())
    refused = destinations.find_refused(destinations.undecided(first.values()))
    for subscription, address in parsed.items():
        queue = places[subscription] = first[address]
        if isinstance(refused.get(queue), QueueNotFound):
            lost[subscription] = f"was not found in {connection.server}"
        elif queue in refused:
            lost[subscription] = f"cannot be sent to ({refused[queue]})"
    reasons: dict[Place, SubscriberLost] = {}
    for subscription, reason in lost.items():
        fault = SubscriberLost(
            endpoint=subscription.endpoint,
            topic=subscription.topic,
            address=subscription.address,
            reason=reason,
        )
        reasons.setdefault(places[subscription], fault)
    topics: Topics = {}
    for topic, subscribers in subscribed.items():
        for subscription in subscribers:
            topics.setdefault(places[subscription], []).append(topic)
    return topics, reasons


# ---------------------------------------------------------------- messages without a subscriber


def log_without_subscriber(where: str, topics: Counter[str]) -> None:
    """Warn, after the commit, of messages that had no subscriber."""
    if topics:
        log.warning("%s: %s", where, describe_without_subscriber(topics))


def describe_without_subscriber(topics: Counter[str]) -> str:
    """Say how many messages had no subscriber, and name their topics."""
    total = topics.total()
    message = "message" if total == 1 else "messages"
    count = f"{total} published {message} discarded: no endpoint subscribes to "
    lists = [f"{_printable(text)} ({times})" for text, times in topics.most_common(LOGGED_TOPICS)]
    more = len(topics) - len(lists)
    return count + ", ".join(lists) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """Return untrusted text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST_LOGGED else text[:LONGEST_LOGGED] + "…")
