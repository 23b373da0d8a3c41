"""
Publish: a message is copied once into each queue that is subscribed to any of its topics.

The subscriptions are in subscriptions.py.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import unite
from sqlq_spark.errors import (
    BadAddress,
    QueueNotFound,
    SubscriberLost,
    SubscriberUnreachable,
)
from sqlq_spark.send import subscriptions
from sqlq_spark.send.sender import CHUNK_TOPICS
from sqlq_spark.wire.headers import SEPARATOR, full_name

if TYPE_CHECKING:
    from collections import Counter

    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.send.insert import Inserts
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # lists of topics that a warning names
LONGEST_LOGGED = 200  # characters of each


# ---------------------------------------------------------------- copies


def topics_of(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return the topics of a chunk's rows; None where no row is published."""
    return chunk[CHUNK_TOPICS.name] if CHUNK_TOPICS.name in chunk.column_names else None


def find_copies(
    inserts: Inserts, topics: pa.ChunkedArray
) -> tuple[dict[QueueAddress | str, pa.Array], dict[str, SqlQueueError]]:
    """
    Find the queues of each row's subscribers, and lock them; count rows that no queue gets.

    Args:
        inserts: of the transaction that sends.
        topics: a list of each row; null where it is not published.

    Returns:
        Which rows are copied into which queue, as booleans; and for each text among the queues, an
        address that cannot be sent to, why not.

    Raises:
        SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
    """
    items = pc.list_flatten(topics)
    rows = np.repeat(np.arange(len(topics)), pc.fill_null(pc.list_value_length(topics), 0))
    places, reasons = _topics_by_place(inserts, pc.unique(items).to_pylist())
    copies: dict[QueueAddress | str, pa.Array] = {}
    alone = pc.is_valid(topics).to_numpy()
    for place, wanted in places.items():
        mask = np.zeros(len(topics), bool)
        mask[rows[pc.is_in(items, value_set=pa.array(wanted, pa.string())).to_numpy()]] = True
        copies[place], alone = pa.array(mask), alone & ~mask
    texts = pc.binary_join(topics.filter(pa.array(alone)), SEPARATOR)
    for each in pc.value_counts(texts).to_pylist():
        inserts.without_subscriber[each["values"]] += each["counts"]
    return copies, reasons


def _topics_by_place(
    inserts: Inserts, names: list[str]
) -> tuple[dict[QueueAddress | str, list[str]], dict[str, SqlQueueError]]:
    """
    Return which of some topics each queue gets; a text is a queue that cannot be sent to.

    The table is read again before anything fails.

    Returns:
        The topics, and why the queues cannot be sent to.
    """
    connection, options = inserts.connection, inserts.options
    if not names:
        return {}, {}
    places, reasons = _look_up(inserts, names)
    if reasons:
        subscriptions.cache.drop(options.url, options.subscription_address)
        places, reasons = _look_up(inserts, names)
    if reasons and options.undeliverable_address is None:
        first = next(iter(reasons.values()))
        raise SubscriberUnreachable(
            endpoint=first.endpoint,
            topic=first.topic,
            address=first.address,
            reason=first.reason,
        )
    queues = [place for place in places if not isinstance(place, str)]
    for queue, reason in inserts.lock(queues).items():
        address = connection.canonical(queue)
        reasons[address] = reason
        places[address] = places.pop(queue)
    return places, reasons


def _look_up(
    inserts: Inserts, names: list[str]
) -> tuple[dict[QueueAddress | str, list[str]], dict[str, SqlQueueError]]:
    """
    Return the same as `_topics_by_place`, by what is known now, and lock nothing.

    The queues have their schemas, so that two spellings of one are one. A queue that cannot be sent
    to is given by its address: the address cannot be read, the queue is not there, or its table is
    not trusted.
    """
    connection, options, destinations = inserts.connection, inserts.options, inserts.destinations
    by_topic = subscriptions.cache.by_topic(connection, options.url, options.subscription_address)
    subscribed = {name: by_topic.get(full_name(name), []) for name in names}
    parsed: dict[Subscription, QueueAddress] = {}
    places: dict[Subscription, QueueAddress | str] = {}
    reasons: dict[str, SqlQueueError] = {}

    def lose(each: Subscription, address: str, reason: str) -> None:
        places[each] = address
        error = SubscriberLost(
            endpoint=each.endpoint, topic=each.topic, address=each.address, reason=reason
        )
        reasons.setdefault(address, error)

    for each in dict.fromkeys(each for found in subscribed.values() for each in found):
        try:
            parsed[each] = connection.names.parse_address(each.address)
        except BadAddress as error:
            lose(each, each.address, f"is no address ({error.reason})")
    first = unite(connection, parsed.values())
    refused = destinations.find_refused(destinations.undecided(first.values()))
    for each, address in parsed.items():
        queue = places[each] = first[address]
        if queue in refused:
            reason = f"cannot be sent to ({refused[queue]})"
            if isinstance(refused[queue], QueueNotFound):
                reason = f"was not found in {connection.server}"
            lose(each, connection.canonical(queue), reason)
    topics: dict[QueueAddress | str, list[str]] = {}
    for name, found in subscribed.items():
        for each in found:
            topics.setdefault(places[each], []).append(name)
    return topics, reasons


def log_without_subscriber(where: str, topics: Counter[str]) -> None:
    """Warn, after the commit, of messages that had no subscriber."""
    if topics:
        log.warning("%s: %s", where, describe_without_subscriber(topics))


def describe_without_subscriber(topics: Counter[str]) -> str:
    """Say how many messages had no subscriber, and name their topics."""
    total = topics.total()
    message = "message" if total == 1 else "messages"
    count = f"{total} published {message} had no subscriber and went nowhere: topics "
    lists = [f"{_printable(text)} ({times})" for text, times in topics.most_common(LOGGED_TOPICS)]
    more = len(topics) - len(lists)
    return count + ", ".join(lists) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """Return untrusted text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST_LOGGED else text[:LONGEST_LOGGED] + "…")
