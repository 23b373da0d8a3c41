"""Publish and subscribe with the endpoints' table: each subscriber gets a message, or none does."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sqlq_spark import errors
from sqlq_spark.admin import doctor
from sqlq_spark.database import schema, transaction
from sqlq_spark.send import dispatch, subscriptions
from sqlq_spark.send.chunk import CHUNK_TOPICS
from sqlq_spark.send.subscriptions import Subscription, SubscriptionCache

from .conftest import Bench, Clock
from .test_send import chunk, stage, staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.dispatch import Staged
    from sqlq_spark.wire.address import QueueAddress


PLACED, EVENT = "Shop.Placed", "Shop.IEvent"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock by which this process caches. Its cache is empty."""
    stopped = Clock()
    monkeypatch.setattr(subscriptions, "cache", SubscriptionCache(stopped))
    return stopped


@pytest.fixture
def table(bare: Bench) -> QueueAddress:
    """Give the address of a table of subscriptions that is not there yet."""
    return bare.table_beside("SubscriptionRouting")


@dataclass
class Shop:
    """Three queues of subscribers, and their table. Two subscribe to PLACED, and two to EVENT."""

    bench: Bench
    table: QueueAddress
    queues: dict[str, QueueAddress]

    def subscribe(self, endpoint: str, topic: str, address: str | None = None) -> None:
        """Subscribe as an endpoint does, with its own queue or another address."""
        address = self.bench.address(endpoint) if address is None else address
        self.bench.dotnet.subscribe(self.table, endpoint, topic, address)

    def sink(self, **raw: str) -> SinkOptions:
        """Options of a sink that publishes."""
        table = self.bench.connection.printed(self.table)
        return self.bench.sink_options(**({"queue": None, "subscriptionTable": table} | raw))

    def publish(self, *chunks: pa.Table, batch: int = 0, **raw: str) -> int:
        """Stage and dispatch a batch."""
        return self.dispatch(stage(self.bench, *chunks, batch=batch), **raw)

    def dispatch(self, *staged: Staged, **raw: str) -> int:
        """Run the driver's commit."""
        return dispatch.dispatch(self.bench.connection, staged, self.sink(**raw))

    def got(self) -> dict[str, list[bytes | None]]:
        """What waits in the queues of subscribers."""
        return {name: self.bench.waiting_bodies(queue) for name, queue in self.queues.items()}


@pytest.fixture
def shop(bench: Bench, table: QueueAddress) -> Shop:
    """Give a table with subscribers."""
    queues = {name: bench.create_queue(name) for name in ("web", "mail", "stock")}
    bench.dotnet.create_subscriptions(table)
    shop = Shop(bench, table, queues)
    for endpoint, topic in (("web", PLACED), ("mail", PLACED), ("web", EVENT), ("stock", EVENT)):
        shop.subscribe(endpoint, topic)
    return shop


def events(*bodies: bytes, topics: Sequence[str] | None = (PLACED,)) -> pa.Table:
    """Make a chunk of messages that are published."""
    lists = pa.array([topics] * len(bodies), CHUNK_TOPICS.type)
    return chunk(*bodies, lives=10**7).append_column(CHUNK_TOPICS, lists)


def subscribe(bench: Bench, table: QueueAddress, **parts: Any) -> Subscription:
    """Subscribe by our own statements."""
    whole = {"topics": [PLACED], "endpoint": "web", "queue": bench.queue, **parts}
    (made,) = subscriptions.subscribe(bench.connection, table, **whole)
    return Subscription(made.topic, made.endpoint, made.address)


def test_both_sides_subscribe_and_unsubscribe_in_a_table(bare: Bench, table: QueueAddress) -> None:
    """The first subscription creates the table. The last address of an endpoint counts."""
    listed = partial(subscriptions.list_subscriptions, bare.connection, table)
    take_back = partial(subscriptions.unsubscribe, bare.connection, table)
    theirs, mail = bare.table_beside("theirs"), '"x"."mail"'
    bare.dotnet.create_subscriptions(theirs)

    ours = subscribe(bare, table)
    schema.create_subscriptions(bare.connection, table)
    for topic in (PLACED, EVENT):
        bare.dotnet.subscribe(table, "mail", topic, mail)

    assert bare.dotnet.catalog(table) == bare.dotnet.catalog(theirs) != []
    assert set(bare.dotnet.subscribers(table, PLACED, EVENT)) == {bare.queue_address, mail}
    assert listed([PLACED]) == [Subscription(PLACED, "mail", mail), ours]
    assert [each.topic for each in listed()] == [EVENT, PLACED, PLACED]
    for _ in range(2):  # the same one again changes nothing
        subscribe(bare, table, endpoint="mail", queue=bare.error_queue)
    bare.dotnet.subscribe(table, "web", PLACED, mail)
    error = bare.address("error")
    assert set(bare.dotnet.subscribers(table, PLACED)) == {error, mail}
    assert [take_back(PLACED, "web"), take_back(PLACED, "web"), take_back(EVENT, "web")] == [
        *(True, False, False)
    ]
    bare.dotnet.unsubscribe(table, "mail", EVENT)
    assert listed() == [Subscription(PLACED, "mail", error)]


@pytest.mark.parametrize(
    ("topics", "hear"),
    [
        ([EVENT], ["web", "stock"]),
        ([EVENT, PLACED], ["web", "mail", "stock"]),
        ([f"{PLACED}, Shop, Version=1.0.0.0", PLACED, "Shop.Unknown"], ["web", "mail"]),
        (["shop.placed"], []),
    ],
)
def test_a_subscriber_to_any_of_the_topics_gets_one_copy(
    bench: Bench, shop: Shop, topics: list[str], hear: list[str]
) -> None:
    """A queue that two endpoints share gets one too, however it is spelled."""
    plain, _ = bench.dotnet.spellings("web")
    for topic in (PLACED, EVENT):
        shop.subscribe("another", topic, plain)
    # a bad address does no harm while its topic is not published
    shop.subscribe("late", "Shop.Other", "")

    shop.publish(events(b"x", topics=topics))

    assert shop.got() == {name: [b"x"] * (name in hear) for name in shop.queues}


def test_events_without_subscribers_are_logged_once_a_batch(
    bench: Bench, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the topics, which may hold anything, and how many messages were discarded."""
    odd = "Shop.Odd\nNothing"
    chunks = [events(b"1", b"2", topics=["Shop.Gone"]), events(b"3"), events(b"4", topics=[odd])]

    with caplog.at_level(logging.WARNING, "sqlq_spark"):
        shop.publish(*chunks, events(b"5", topics=["Shop.Gone"]))

    (record,) = caplog.records
    assert record.getMessage() == (
        "sink: batch 0: 4 published messages discarded: no endpoint subscribes to "
        "'Shop.Gone' (3), 'Shop.Odd\\nNothing' (1)"
    )
    assert shop.got()["web"] == [b"3"]
    assert staging(bench) == []


def test_subscribers_are_read_again_after_5_seconds(bench: Bench, shop: Shop, clock: Clock) -> None:
    """A new subscriber gets nothing until then. Another table is read at once."""
    shop.publish(events(b"1"), batch=1)
    shop.subscribe("stock", PLACED)
    bench.dotnet.unsubscribe(shop.table, "mail", PLACED)
    clock.now += 4.9
    with bench.dotnet.locked(shop.table):
        shop.publish(events(b"2"), batch=2)
    clock.now += 0.1
    shop.publish(events(b"3"), batch=3)
    other = replace(shop, table=bench.table_beside("other"))
    bench.dotnet.create_subscriptions(other.table)
    other.subscribe("stock", PLACED)
    other.publish(events(b"4"), batch=4)

    web, mail, stock = shop.got().values()
    assert (web, mail, stock) == ([b"1", b"2", b"3"], [b"1", b"2"], [b"3", b"4"])


def test_a_locked_table_stops_no_publisher_for_a_minute(
    bench: Bench,
    shop: Shop,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A publisher uses the topics that it has read, and warns. Then it fails, as a new one does."""
    caplog.set_level(logging.WARNING, "sqlq_spark")
    shop.publish(events(b"1"), batch=1)
    monkeypatch.setattr(bench.connection, "timeout", 2.0)

    with bench.dotnet.locked(shop.table):
        for batch, age in enumerate((6.0, 1.0, 52.0), 2):  # 6 s, 7 s and 59 s after the read
            clock.now += age
            shop.publish(events(b"%d" % batch), batch=batch)
        with pytest.raises(errors.TimedOut):
            shop.publish(events(b"other", topics=[EVENT]), batch=5)
        clock.now += 1.0
        with pytest.raises(errors.TimedOut):
            shop.publish(events(b"late"), batch=5)

    assert shop.got()["web"] == [b"1", b"2", b"3", b"4"]
    ages = [record.getMessage().split(" of ")[1] for record in caplog.records]
    assert [age.split(" s ago")[0] for age in ages] == ["6", "59"]
    shop.publish(events(b"5"), batch=5)
    assert shop.got()["web"][-1] == b"5"


def test_rows_of_other_topics_are_not_read(
    bench: Bench, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cost a publisher nothing. Too many rows of its own topics are an error."""
    monkeypatch.setattr(subscriptions, "MOST_ROWS", 3)
    monkeypatch.setattr(subscriptions, "TOPICS_AT_ONCE", 3)
    for each in range(9):
        shop.subscribe(f"other {each}", f"Shop.Other{each}", "x")
    topics = [*(f"Shop.T{each}" for each in range(250)), "x" * 300, "a\0", "\ud800"]
    read = partial(subscriptions.list_subscriptions, bench.connection, shop.table)

    with transaction(bench.connection):
        found, own = read(topics), read([*topics, PLACED])

        others = read([*topics, *(f"Shop.Other{each}" for each in range(9))])

    assert (found, len(own), len(others)) == ([], 2, 9)
    shop.publish(events(b"1"), batch=1)
    for each in range(2):
        shop.subscribe(f"flood {each}", PLACED, "x")
    with pytest.raises(errors.TooManySubscriptions, match="has more than 3 rows"):
        read([PLACED])
    (finding,) = doctor.of_subscriptions(bench.connection, shop.table)
    assert (finding.name, finding.severity) == ("subscribers_many", "error")


def test_what_is_known_of_topics_is_bounded(
    bench: Bench, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Authors choose topics, so a process drops those that were not asked for."""
    monkeypatch.setattr(subscriptions, "MOST_TOPICS", 5)
    cache, options = subscriptions.cache, shop.sink()

    for each in range(30):
        with transaction(bench.connection):
            found = cache.find(bench.connection, options, [PLACED, f"Shop.T{each}"])
        assert [len(its) for its in found.values()] == [2, 0]
        known = cache._known[subscriptions._key(options)]  # noqa: SLF001
        assert len(known) <= 7


@pytest.mark.parametrize(
    ("address", "why"), [(None, "was not found in "), ("", "is no address (the table is empty)")]
)
def test_a_subscriber_that_cannot_be_reached_stops_the_whole_batch(
    bench: Bench, shop: Shop, address: str | None, why: str
) -> None:
    """It alone would miss the message. Without its subscription the batch goes through."""
    address = bench.address("gone") if address is None else address
    shop.subscribe("late", EVENT, address)
    staged = stage(bench, events(b"1"), events(b"2", topics=[EVENT]))

    with pytest.raises(errors.SubscriberUnreachable) as caught:
        shop.dispatch(staged)

    said = f"endpoint 'late' is subscribed to topic '{EVENT}' with the queue {address!r}, which "
    assert str(caught.value).startswith(said + why)
    assert shop.got() == {"web": [], "mail": [], "stock": []}
    assert bench.dotnet.state_rows("dispatch_log", "sink_batch") == [(None,)]
    bench.dotnet.unsubscribe(shop.table, "late", EVENT)
    assert shop.dispatch(staged) == 2


def test_a_subscriber_that_is_gone_since_stops_nothing(bench: Bench, shop: Shop) -> None:
    """Its subscription and its queue are gone. The table is read again before a write fails."""
    shop.publish(events(b"1"), batch=1)
    bench.dotnet.unsubscribe(shop.table, "mail", PLACED)
    bench.dotnet.dba.drop(shop.queues.pop("mail"))

    shop.publish(events(b"2"), batch=2)

    assert shop.got() == {"web": [b"1", b"2"], "stock": []}
