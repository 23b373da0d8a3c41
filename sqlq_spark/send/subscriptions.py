"""
Publish and subscribe: who hears of a topic, from the table that all endpoints of a system share.

An endpoint subscribes to a topic, a type's full name, with the address of its queue; a message that
is published is copied into the queue of each distinct address that is subscribed to any of its
topics. The table is the transport's own: rows of its endpoints are ours, and the other way round.
It is small and read as a whole, at most every five seconds, as the peers do.

Its addresses are untrusted, as every address: parsed, and quoted.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.errors import (
    BadAddress,
    BadOption,
    QueueNotFound,
    StatementFailed,
    SubscriberUnreachable,
    SubscriptionsNotFound,
)
from sqlq_spark.send.topics import joined
from sqlq_spark.wire.message_types import full_name, split_types, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlq_spark import database
    from sqlq_spark.database import Connection
    from sqlq_spark.database.destinations import Destinations
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

FRESH = 5.0  # seconds for which subscriptions are remembered, as by the peers
LONGEST = 200  # characters of each column of the table
MADE = {"42P07", "42710", "23505", "2714"}  # a table that another creator has made at the same time
UNSENDABLE = re.compile("[\0\ud800-\udfff]")
TOLD = 5  # lists of topics that a warning names


@dataclass(frozen=True, slots=True)
class Subscription:
    """A row of the table."""

    topic: str
    endpoint: str
    address: str  # of the endpoint's queue; as the peers write it, canonical


# ---------------------------------------------------------------- the table


def create(connection: Connection, table: QueueAddress, *, timeout: float) -> None:
    """Create the table where it is absent, as the transport makes it; also beside its installer."""
    try:
        with transaction(connection, timeout=timeout):
            connection.rows("install_lock", state_name=table.table)
            connection.run("create_subscriptions", tables={"subscriptions": table})
    except StatementFailed as error:
        if error.args[1] not in MADE:
            raise


def subscribe(
    connection: Connection,
    table: QueueAddress,
    *,
    topic: str,
    endpoint: str,
    queue: QueueAddress,
    timeout: float,
) -> Subscription:
    """
    Let an endpoint hear of a topic in a queue; of each topic in one queue, the last one given.

    The table is made where it is absent. May be done twice: the second time changes nothing.

    Raises:
        BadOption: what the table cannot hold, or a topic that is no full name.
        QueueNotFound: with it in the table, every publisher of the topic would fail.
    """
    subscription = Subscription(topic, endpoint, connection.printed(queue))
    _check(subscription)
    if not connection.columns(queue):
        raise QueueNotFound(subscription.address, connection.server)
    if not connection.columns(table):
        create(connection, table, timeout=timeout)
    with transaction(connection, timeout=timeout):
        connection.run(
            "subscribe",
            tables={"subscriptions": table},
            topic=topic,
            endpoint=endpoint,
            queue_address=subscription.address,
        )
    return subscription


def _check(subscription: Subscription) -> None:
    """Refuse what the table cannot hold, and what no publisher would ever find."""
    for name, text in (
        ("topic", subscription.topic),
        ("endpoint", subscription.endpoint),
        ("queue", subscription.address),
    ):
        if not text.strip() or len(text) > LONGEST or UNSENDABLE.search(text):
            expected = f"1 to {LONGEST} characters, no NUL and no half of a surrogate pair"
            raise BadOption(name, text[:LONGEST], expected)
    topic = full_name(subscription.topic)
    if topic != subscription.topic or unfit(topic):
        raise BadOption("topic", subscription.topic, f"a type's full name, as {topic}")


def unsubscribe(
    connection: Connection, table: QueueAddress, topic: str, endpoint: str, *, timeout: float
) -> bool:
    """Let an endpoint hear of a topic no more; returns whether it did. May be done twice."""
    with transaction(connection, timeout=timeout):
        return bool(_rows(connection, "unsubscribe", table, {"topic": topic, "endpoint": endpoint}))


def subscribers(
    connection: Connection, table: QueueAddress, topic: str | None = None
) -> list[Subscription]:
    """
    Who is subscribed, to one topic or to any, by topic and endpoint.

    Raises:
        SubscriptionsNotFound: there is no such table.
    """
    rows = _rows(connection, "subscribers", table, {"topic": topic})
    return [Subscription(*row) for row in rows]


def look_for(connection: Connection, table: QueueAddress) -> None:
    """
    Make sure that the table is there.

    Raises:
        SubscriptionsNotFound.
    """
    if not connection.columns(table):
        raise SubscriptionsNotFound(connection.printed(table), connection.server)


def _rows(
    connection: Connection, statement: str, table: QueueAddress, values: dict[str, str | None]
) -> list[database.Row]:
    try:
        return connection.rows(statement, tables={"subscriptions": table}, **values)
    except QueueNotFound as error:
        raise SubscriptionsNotFound(*error.args) from None


# ---------------------------------------------------------------- what is remembered


class Remembered:
    """The subscriptions of each table as they stood not long ago, for one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._read: dict[object, tuple[float, dict[str, list[Subscription]]]] = {}

    def of(
        self, connection: Connection, url: str, table: QueueAddress
    ) -> dict[str, list[Subscription]]:
        """Subscriptions by topic, at most FRESH seconds old; read where none are remembered."""
        asked, key = self.clock(), (url, table)
        read, found = self._read.get(key, (None, {}))
        if read is None or asked - read >= FRESH:
            found = {}
            for each in subscribers(connection, table):
                found.setdefault(each.topic, []).append(each)
            self._read[key] = asked, found
        return found

    def forget(self, url: str, table: QueueAddress) -> None:
        """Read anew the next time."""
        self._read.pop((url, table), None)


remembered = Remembered()


# ---------------------------------------------------------------- fan out


def fan_out(
    connection: Connection, topics: pa.ChunkedArray, options: SinkOptions, known: Destinations
) -> tuple[dict[QueueAddress, pa.ChunkedArray], Counter[str]]:
    """
    Which rows of a chunk are copied into which queue.

    Args:
        connection: in the transaction that sends; reads the table unless it is remembered.
        topics: a list of each row; null where it is not published.
        options: the sink's.
        known: tables sent to in this transaction; grows.

    Returns:
        For each queue which rows, as booleans, and the lists of topics that no one is subscribed
        to, as their headers write them, with how many messages they had.

    Raises:
        SubscriberUnreachable, SubscriptionsNotFound: nothing must be sent.
    """
    texts = joined(topics)
    lists = pc.unique(texts.drop_null()).to_pylist()
    if not lists:
        return {}, Counter()
    audience = _audience(connection, lists, options, known)
    heard = {text for those in audience.values() for text in those}
    counts = pc.value_counts(texts).to_pylist()
    unheard = {
        each["values"]: each["counts"]
        for each in counts
        if each["values"] is not None and each["values"] not in heard
    }
    masks = {
        queue: pc.is_in(texts, value_set=pa.array(those, pa.string()))
        for queue, those in audience.items()
    }
    return masks, Counter(unheard)


def _audience(
    connection: Connection, lists: list[str], options: SinkOptions, known: Destinations
) -> dict[QueueAddress, list[str]]:
    """Which lists of topics each queue gets; what is remembered is read anew before it fails."""
    url, table = options.url, options.subscription_address
    reach = partial(_queues, known, parse=options.naming.parse_address)
    try:
        found = _reached(remembered.of(connection, url, table), lists, reach)
    except SubscriberUnreachable:
        remembered.forget(url, table)
        found = _reached(remembered.of(connection, url, table), lists, reach)
    known.look_for(found)
    return found


def _reached(
    found: dict[str, list[Subscription]],
    lists: list[str],
    reach: Callable[[Iterable[Subscription]], dict[Subscription, QueueAddress]],
) -> dict[QueueAddress, list[str]]:
    """Each list once in each queue, however many of its topics lead there."""
    heard = {
        text: [each for topic in map(full_name, split_types(text)) for each in found.get(topic, ())]
        for text in lists
    }
    queues = reach(dict.fromkeys(each for those in heard.values() for each in those))
    audience: dict[QueueAddress, dict[str, None]] = {}
    for text, those in heard.items():
        for each in those:
            audience.setdefault(queues[each], {})[text] = None
    return {queue: list(texts) for queue, texts in audience.items()}


def _queues(
    known: Destinations,
    subscriptions: Iterable[Subscription],
    *,
    parse: Callable[[str], QueueAddress],
) -> dict[Subscription, QueueAddress]:
    """
    The subscribers' queues, the schema always said, so that two spellings of one are one.

    Raises:
        SubscriberUnreachable: an address that cannot be read, a queue that is not there, or a table
            that is not trusted.
    """
    connection = known.connection
    queues: dict[Subscription, QueueAddress] = {}
    for each in subscriptions:
        try:
            queues[each] = parse(connection.printed(parse(each.address)))
        except BadAddress as error:
            raise unreachable(each, f"is no address ({error.args[1]})") from None
    reasons = known.look(known.new(queues.values()))
    for each, queue in queues.items():
        if isinstance(reasons.get(queue), QueueNotFound):
            raise unreachable(each, f"was not found in {connection.server}")
        if queue in reasons:
            raise unreachable(each, f"cannot be sent to ({reasons[queue]})")
    return queues


def unreachable(subscription: Subscription, reason: str) -> SubscriberUnreachable:
    """The error for a subscriber."""
    named = subscription.endpoint, subscription.topic, subscription.address
    return SubscriberUnreachable(*named, reason)


def told(unheard: Counter[str]) -> str:
    """What a warning says of messages that no one is subscribed to."""
    count = f"{unheard.total()} published messages had no subscriber and went nowhere: topics "
    named = [f"{shown(text)} ({times})" for text, times in unheard.most_common(TOLD)]
    more = len(unheard) - len(named)
    return count + ", ".join(named) + (f" and {more} more" if more else "")


def shown(text: str) -> str:
    """A stranger's text for a line of a log: short, and without a line break."""
    return ascii(text if len(text) <= LONGEST else text[:LONGEST] + "…")


def topics_of(chunk: pa.Table) -> pa.ChunkedArray | None:
    """The topics of a chunk's rows; None where none is published."""
    return chunk["topics"] if "topics" in chunk.column_names else None
