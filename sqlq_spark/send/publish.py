"""
Publish: into which subscribers' queues a message is copied, and the table that says so.

A message is copied once into each queue that is subscribed to any of its topics. An endpoint
subscribes to a topic, the full name of a type, with the address of its queue. The table is the
transport's own, shared by all endpoints of a system: they read our rows, and we read theirs. It is
read as a whole and kept for five seconds, as the transport does.

Addresses in the table are untrusted. They are parsed before use, and quoted. So is the table. It is
used only if a SELECT runs no code of an owner who is not trusted.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction, unite
from sqlq_spark.database.schema import create_subscriptions
from sqlq_spark.database.trust import find_code
from sqlq_spark.errors import (
    BadAddress,
    BadOption,
    QueueNotFound,
    SubscriberLost,
    SubscriberUnreachable,
    SubscriptionsNotFound,
    SubscriptionsRefused,
)
from sqlq_spark.send.sender import CHUNK_TOPICS
from sqlq_spark.wire.headers import SEPARATOR, full_name, topic_problem

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from sqlq_spark.database import Connection, Row
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.send.insert import Inserts
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

LOGGED_TOPICS = 5  # lists of topics that a warning names
LONGEST_LOGGED = 200  # characters of each
FRESH = 5.0  # seconds for which subscriptions are kept, as by the transport
LONGEST = 200  # characters of each column of the table
UNSENDABLE = re.compile("[\0\ud800-\udfff]")


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
        cache.drop(options.url, options.subscription_address)
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
    by_topic = cache.by_topic(connection, options.url, options.subscription_address)
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


# ---------------------------------------------------------------- subscriptions


@dataclass(frozen=True, slots=True)
class Subscription:
    """A row of the table."""

    topic: str
    endpoint: str
    address: str  # of the endpoint's queue; canonical, as the transport writes it

    def check(self) -> None:
        """
        Refuse what the table cannot hold, and a topic that no publisher would find.

        Raises:
            BadOption.
        """
        for name, text in (
            ("topic", self.topic),
            ("endpoint", self.endpoint),
            ("queue", self.address),
        ):
            if not text.strip() or len(text) > LONGEST or UNSENDABLE.search(text):
                expected = f"1 to {LONGEST} characters, no NUL and no half of a surrogate pair"
                raise BadOption(option=name, found=text[:LONGEST], expected=expected)
        topic = full_name(self.topic)
        if topic != self.topic or topic_problem(topic):
            raise BadOption(
                option="topic", found=self.topic, expected=f"a type's full name, as {topic}"
            )


class SubscriptionCache:
    """The subscriptions of each table, for one process and at most FRESH seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  # seconds
        self._read: dict[object, tuple[float, dict[str, list[Subscription]]]] = {}

    def by_topic(
        self, connection: Connection, url: str, table: QueueAddress
    ) -> dict[str, list[Subscription]]:
        """Return a table's subscriptions by topic; read the table where they are too old."""
        asked, key = self.clock(), (url, table)
        read, topics = self._read.get(key, (None, {}))
        if read is None or asked - read >= FRESH:
            topics = {}
            for each in list_subscriptions(connection, table):
                topics.setdefault(each.topic, []).append(each)
            self._read[key] = asked, topics
        return topics

    def drop(self, url: str, table: QueueAddress) -> None:
        """Drop a table's subscriptions, so that the next look reads the table."""
        self._read.pop((url, table), None)


cache = SubscriptionCache()


def subscribe(
    connection: Connection,
    table: QueueAddress,
    *,
    topics: Sequence[str],
    endpoint: str,
    queue: QueueAddress,
    timeout: float,
) -> list[Subscription]:
    """
    Subscribe an endpoint to topics with its queue, all or none; a later call replaces the queue.

    The table is created where it is absent. A repeated call changes nothing.

    Raises:
        BadOption: the table cannot hold it, or a topic is no full name.
        QueueNotFound: the queue is not there; with it in the table, each publisher would fail.
        SubscriptionsRefused.
    """
    address = connection.canonical(queue)
    made = [Subscription(topic, endpoint, address) for topic in dict.fromkeys(topics)]
    for each in made:
        each.check()
    if not connection.columns(queue):
        raise QueueNotFound(queue=address, server=connection.server)
    if not connection.columns(table):
        create_subscriptions(connection, table, timeout=timeout)
    with transaction(connection, timeout=timeout):
        refuse_code(connection, table)
        for each in made:
            connection.run(
                "subscribe",
                tables={"subscriptions": table},
                topic=each.topic,
                endpoint=endpoint,
                queue_address=address,
            )
    return made


def unsubscribe(
    connection: Connection, table: QueueAddress, topic: str, endpoint: str, *, timeout: float
) -> bool:
    """
    End an endpoint's subscription to a topic; a repeated call changes nothing.

    Returns:
        Whether the endpoint was subscribed.
    """
    with transaction(connection, timeout=timeout):
        return bool(_rows(connection, "unsubscribe", table, {"topic": topic, "endpoint": endpoint}))


def list_subscriptions(
    connection: Connection, table: QueueAddress, topic: str | None = None
) -> list[Subscription]:
    """
    Return the subscriptions to one topic, or to any, by topic and endpoint.

    Raises:
        SubscriptionsNotFound: there is no such table.
        SubscriptionsRefused: it could run code of an owner that is not trusted.
    """
    rows = _rows(connection, "subscribers", table, {"topic": topic})
    return [Subscription(*row) for row in rows]


def check_table(connection: Connection, table: QueueAddress) -> None:
    """
    Make sure that the table is there, and can be trusted.

    Raises:
        SubscriptionsNotFound, SubscriptionsRefused.
    """
    if not connection.columns(table):
        raise SubscriptionsNotFound(table=connection.printed(table), server=connection.server)
    refuse_code(connection, table)


def refuse_code(connection: Connection, table: QueueAddress) -> None:
    """
    Make sure that a SELECT of the table, which may be absent, runs no code of another owner.

    Only a superuser, and this login, may make a view of it or give it policies.

    Raises:
        SubscriptionsRefused.
    """
    if table.catalog is not None:
        return  # of SQL Server, whose catalogue shows only this database
    place = connection.names.qualify(table)
    rows = connection.rows("queue_tables", schema_name=place.schema, table_name=place.table)
    for _, _, identity, *_ in rows:
        for code in find_code(connection, {place: identity}, "select").values():
            raise SubscriptionsRefused(table=connection.printed(table), code=code)


def _rows(
    connection: Connection,
    statement: StatementName,
    table: QueueAddress,
    values: dict[str, str | None],
) -> list[Row]:
    refuse_code(connection, table)
    try:
        return connection.rows(statement, tables={"subscriptions": table}, **values)
    except QueueNotFound as error:
        raise SubscriptionsNotFound(table=error.queue, server=error.server) from None
