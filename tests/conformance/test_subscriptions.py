"""Publish and subscribe: one table with the endpoints; each subscriber gets it once, or none."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from strict_headers import loads

from sqlq_spark import errors
from sqlq_spark.database import schema
from sqlq_spark.send import dispatch, insert, subscriptions
from sqlq_spark.send.sender import CHUNK_TOPICS, Sender
from sqlq_spark.send.subscriptions import Subscription, SubscriptionCache
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import MESSAGE_ID

from .conftest import TIMEOUT, Bench, Clock
from .test_send import chunk, stage, staging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.dispatch import Staged


PLACED, EVENT = "Shop.Placed", "Shop.IEvent"
UNCLOSED = "a quote that is not closed"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock by which this process, that remembers nothing yet, remembers."""
    stopped = Clock()
    monkeypatch.setattr(subscriptions, "cache", SubscriptionCache(stopped))
    return stopped


@pytest.fixture
def table(bare: Bench) -> QueueAddress:
    """Give the address of a table of subscriptions that is not there yet."""
    return bare.beside("SubscriptionRouting")


@dataclass
class Shop:
    """Three queues of subscribers, and a table with two of PLACED, one of them and one of EVENT."""

    bench: Bench
    table: QueueAddress
    queues: dict[str, QueueAddress]

    def subscribe(self, endpoint: str, topic: str, address: str | None = None) -> None:
        """Subscribe as an endpoint does, with its own queue or another address."""
        address = self.bench.address(endpoint) if address is None else address
        self.bench.dotnet.subscribe(self.table, endpoint, topic, address)

    def unsubscribe(self, endpoint: str, topic: str) -> None:
        """Take a subscription back as an endpoint does."""
        self.bench.dotnet.unsubscribe(self.table, endpoint, topic)

    def sink(self, **raw: str) -> SinkOptions:
        """Options of a sink that publishes."""
        table = self.bench.desk.printed(self.table)
        return self.bench.sink(**({"queue": None, "subscriptionTable": table} | raw))

    def publish(self, *chunks: pa.Table, batch: int = 0, **raw: str) -> int:
        """Stage and dispatch a batch."""
        return self.dispatch(stage(self.bench, *chunks, batch=batch), **raw)

    def dispatch(self, *staged: Staged, **raw: str) -> int:
        """Run the driver's commit."""
        return dispatch.dispatch(self.bench.desk, staged, self.sink(**raw))

    def got(self) -> dict[str, list[bytes | None]]:
        """What waits in the queues of subscribers."""
        return {name: self.bench.bodies(queue) for name, queue in self.queues.items()}


@pytest.fixture
def shop(bench: Bench, table: QueueAddress) -> Shop:
    """Give a table with subscribers."""
    queues = {name: replace(table, table=name) for name in ("web", "mail", "stock")}
    for queue in queues.values():
        bench.dotnet.create(queue)
    bench.dotnet.create_subscriptions(table)
    shop = Shop(bench, table, queues)
    for endpoint, topic in (("web", PLACED), ("mail", PLACED), ("web", EVENT), ("stock", EVENT)):
        shop.subscribe(endpoint, topic)
    return shop


def events(*bodies: bytes, topics: Sequence[str] | None = (PLACED,)) -> pa.Table:
    """Make a chunk of messages that are published."""
    lists = pa.array([topics] * len(bodies), CHUNK_TOPICS.type)
    return chunk(*bodies, lives=10**7).append_column(CHUNK_TOPICS, lists)


def subscribe(
    bench: Bench, table: QueueAddress, *, topic: str = PLACED, **parts: Any
) -> Subscription:
    """Subscribe by our own statements."""
    whole = {"endpoint": "web", "queue": bench.queue, **parts}
    (made,) = subscriptions.subscribe(bench.desk, table, topics=[topic], **whole)
    return made


# ----- the table -------------------------------------------------------------------------------


def test_both_sides_subscribe_and_unsubscribe_in_one_table(
    bare: Bench, table: QueueAddress
) -> None:
    """The first makes the table as an endpoint does; one address counts for a topic, the last."""
    listed = partial(subscriptions.list_subscriptions, bare.desk, table)
    take_back = partial(subscriptions.unsubscribe, bare.desk, table)
    theirs, mail = replace(table, table="theirs"), '"x"."mail"'
    bare.dotnet.create_subscriptions(theirs)

    ours = subscribe(bare, table)
    schema.create_subscriptions(bare.desk, table)
    bare.dotnet.subscribe(table, "mail", PLACED, mail)
    bare.dotnet.subscribe(table, "mail", EVENT, mail)

    assert bare.dotnet.catalog(table) == bare.dotnet.catalog(theirs) != []
    assert set(bare.dotnet.subscribers(table, PLACED, EVENT)) == {bare.printed, mail}
    assert listed(PLACED) == [Subscription(PLACED, "mail", mail), ours]
    assert [each.topic for each in listed()] == [EVENT, PLACED, PLACED]
    for queue in (bare.errors, bare.errors):  # the same one again changes nothing
        subscribe(bare, table, endpoint="mail", queue=queue)
    bare.dotnet.subscribe(table, "web", PLACED, mail)
    error = bare.address("error")
    assert set(bare.dotnet.subscribers(table, PLACED)) == {error, mail}
    assert [take_back(*one) for one in ((PLACED, "web"), (PLACED, "web"), (EVENT, "web"))] == [
        *(True, False, False)
    ]
    bare.dotnet.unsubscribe(table, "mail", EVENT)
    assert listed() == [Subscription(PLACED, "mail", error)]


def test_the_table_may_be_made_by_two_at_once(bare: Bench, table: QueueAddress) -> None:
    """An endpoint's installer takes no lock of ours: we wait for its commit, and take its table."""
    first = bare.open("first")
    with bare.dotnet.apart(commit=True) as other:
        other.create_subscriptions(table)
        made = bare.thread(partial(schema.create_subscriptions, first, table))
        bare.blocked("first")

    made.result(timeout=TIMEOUT)

    subscribe(bare, table)
    assert bare.dotnet.subscribers(table, PLACED) == [bare.printed]


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"topic": "Shop.Placed, Shop"}, "expected a type's full name, as Shop.Placed"),
        ({"topic": "a;b"}, "expected a type's full name"),
        ({"topic": " "}, "option topic is ' ': expected 1 to 200 characters"),
        ({"topic": "x" * 201}, "expected 1 to 200 characters"),
        ({"endpoint": ""}, "option endpoint is '': expected 1 to 200 characters"),
        ({"endpoint": "a\0"}, "no NUL"),
        ({"queue": QueueAddress('"' * 55, "s" * 63)}, None),
        ({"queue": QueueAddress('"' * 63, '"' * 63)}, "option queue is"),
    ],
)
def test_a_subscription_that_nobody_could_find_is_refused(
    bare: Bench, table: QueueAddress, parts: dict[str, Any], error: str | None
) -> None:
    """Before anything is made; a queue that is not there would fail every publisher."""
    with pytest.raises(errors.BadOption if error else errors.QueueNotFound, match=error):
        subscribe(bare, table, **parts)

    assert bare.desk.columns(table) == {}


# ----- who hears -------------------------------------------------------------------------------


def test_each_subscriber_gets_a_copy_with_an_id_of_its_own(bench: Bench, shop: Shop) -> None:
    """The message, its id and its lifetime are the same for all."""
    batch = pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})
    raw: dict[str, Any] = {"topics": f"{PLACED},{EVENT}", "timeToBeReceived": "00:10:00"}

    assert shop.publish(*Sender(options=shop.sink(**raw), partition=0).chunks([batch]), **raw) == 2

    rows = [row for queue in shop.queues.values() for row in bench.dotnet.rows(queue)]
    assert [row.body for row in rows] == [b"1", b"2"] * 3
    assert len({row.id for row in rows}) == 6
    assert len({loads(row.headers)[MESSAGE_ID] for row in rows}) == 2
    assert len({row.expires for row in rows}) == 1
    assert all('"NServiceBus.MessageIntent":"Publish"' in (row.headers or "") for row in rows)


@pytest.mark.parametrize(
    ("topics", "hear"),
    [
        ([PLACED], ["web", "mail"]),
        ([EVENT], ["web", "stock"]),
        ([EVENT, PLACED], ["web", "mail", "stock"]),
        ([PLACED, PLACED, "Shop.Unknown"], ["web", "mail"]),
        ([f"{PLACED}, Shop, Version=1.0.0.0"], ["web", "mail"]),
        (["shop.placed"], []),
    ],
)
def test_a_subscriber_to_any_of_the_topics_gets_one_copy(
    shop: Shop, topics: list[str], hear: list[str]
) -> None:
    """Also an endpoint that is subscribed to several of them; a topic is a full name."""
    shop.subscribe("late", "Shop.Other", "")  # no one looks at it

    shop.publish(events(b"x", topics=topics))

    assert shop.got() == {name: [b"x"] * (name in hear) for name in shop.queues}


def test_one_queue_gets_one_copy_however_it_is_spelled(bench: Bench, shop: Shop) -> None:
    """Two endpoints may share a queue, and old rows may leave the quotes out."""
    schema = bench.dotnet.schema
    plain = {"postgresql": f"{schema}.web", "sqlserver": f"web@{schema}"}
    shop.subscribe("another", PLACED, plain[bench.dotnet.dialect])

    shop.publish(events(b"x"))

    assert shop.got() == {"web": [b"x"], "mail": [b"x"], "stock": []}


def test_rows_that_are_sent_and_rows_that_are_published_keep_their_order(
    bench: Bench, shop: Shop
) -> None:
    """In a queue that gets both, and each row goes only where it should."""
    web = chunk(b"2", queue=bench.address("web"))
    mixed = [
        events(b"1"),
        web.append_column(CHUNK_TOPICS, pa.nulls(1, CHUNK_TOPICS.type)),
        events(b"3", topics=[EVENT]),
        events(b"4"),
        events(b"5", topics=None),
    ]

    shop.publish(pa.concat_tables(mixed), queue=bench.printed)

    assert shop.got() == {
        "web": [b"1", b"2", b"3", b"4"],
        "mail": [b"1", b"4"],
        "stock": [b"3"],
    }
    assert bench.bodies() == [b"5"]


def test_events_without_subscribers_are_logged_once_a_batch(
    bench: Bench, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """With the topics, which may hold anything, and how many messages went nowhere."""
    odd = "Shop.Odd\nNothing"
    chunks = [events(b"1", b"2", topics=["Shop.Gone"]), events(b"3"), events(b"4", topics=[odd])]

    with caplog.at_level(logging.WARNING, "sqlq_spark"):
        shop.publish(*chunks, events(b"5", topics=["Shop.Gone"]))

    (record,) = caplog.records
    assert record.getMessage() == (
        "sink: batch 0: 4 published messages had no subscriber and went nowhere: topics "
        "'Shop.Gone' (3), 'Shop.Odd\\nNothing' (1)"
    )
    assert shop.got()["web"] == [b"3"]
    assert staging(bench) == []


# ----- what is remembered ----------------------------------------------------------------------


def test_subscribers_are_read_again_after_five_seconds(
    bench: Bench, shop: Shop, clock: Clock
) -> None:
    """Until then a new subscriber gets nothing; another table is read at once."""
    shop.publish(events(b"1"), batch=1)
    shop.subscribe("stock", PLACED)
    shop.unsubscribe("mail", PLACED)
    clock.now += 4.9
    with bench.dotnet.locked(shop.table):
        shop.publish(events(b"2"), batch=2)
    clock.now += 0.1
    shop.publish(events(b"3"), batch=3)
    other = replace(shop, table=replace(shop.table, table="other"))
    bench.dotnet.create_subscriptions(other.table)
    other.subscribe("stock", PLACED)
    other.publish(events(b"4"), batch=4)

    assert shop.got() == {
        "web": [b"1", b"2", b"3"],
        "mail": [b"1", b"2"],
        "stock": [b"3", b"4"],
    }


# ----- what cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("gone", "was not found in "),
        (UNCLOSED, "is no address (the "),
        ("", "is no address (the table is empty)"),
        ("x" * 129, "is no address (the table has 129 "),
    ],
)
def test_a_subscriber_that_cannot_be_reached_stops_the_whole_batch(
    bench: Bench, shop: Shop, address: str, why: str
) -> None:
    """Or it alone would miss the message; taken out, the batch goes through at once."""
    unclosed = {"postgresql": '"unclosed', "sqlserver": "[unclosed"}[bench.dotnet.dialect]
    address = {"gone": bench.address("gone"), UNCLOSED: unclosed}.get(address, address)
    shop.subscribe("late", EVENT, address)
    staged = stage(bench, events(b"1"), events(b"2", topics=[EVENT]))

    with pytest.raises(errors.SubscriberUnreachable) as caught:
        shop.dispatch(staged)

    said = f"endpoint 'late' is subscribed to topic '{EVENT}' with the queue {address!r}, which "
    assert str(caught.value).startswith(said + why)
    assert shop.got() == {"web": [], "mail": [], "stock": []}
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    shop.unsubscribe("late", EVENT)
    assert shop.dispatch(staged) == 2


def test_a_subscriber_that_is_gone_since_stops_nothing(bench: Bench, shop: Shop) -> None:
    """It took back its subscription, then its queue: the table is read before anything fails."""
    shop.publish(events(b"1"), batch=1)
    shop.unsubscribe("mail", PLACED)
    bench.dotnet.dba.drop(shop.queues.pop("mail"))

    shop.publish(events(b"2"), batch=2)

    assert shop.got() == {"web": [b"1", b"2"], "stock": []}


def test_without_the_table_nothing_is_published(bench: Bench, table: QueueAddress) -> None:
    """An event must not vanish because an option names the wrong table."""
    staged, shop = stage(bench, events(b"x")), Shop(bench, table, {})

    with pytest.raises(errors.SubscriptionsNotFound) as caught:
        shop.dispatch(staged)

    said = f"the subscription table {bench.desk.printed(table)} was not found in "
    assert str(caught.value).startswith(said)
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    subscribe(bench, table)
    assert shop.dispatch(staged) == 1
    assert bench.bodies() == [b"x"]


# ----- once ------------------------------------------------------------------------------------


def chunks_of_tasks() -> Iterator[pa.Table]:
    """Two chunks, the second published to one more queue."""
    yield events(b"1")
    yield events(b"2", topics=[PLACED, EVENT])


def test_at_least_once_sends_chunk_by_chunk(bench: Bench, shop: Shop) -> None:
    """In each task's own transactions, without state tables; what a chunk sent stays sent."""
    bench.dotnet.dba.drop_schema(bench.dotnet.state)

    def chunks() -> Iterator[pa.Table]:
        yield chunk(b"0")
        yield from chunks_of_tasks()
        message = "the task fails"
        raise RuntimeError(message)

    options = shop.sink(queue=bench.printed, delivery="atLeastOnce")
    with pytest.raises(RuntimeError):
        insert.send_now(bench.session(), chunks(), options)

    assert bench.bodies() == [b"0"]
    assert shop.got() == {"web": [b"1", b"2"], "mail": [b"1", b"2"], "stock": [b"2"]}
