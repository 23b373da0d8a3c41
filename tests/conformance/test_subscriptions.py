"""Publish and subscribe: one table with the endpoints; each subscriber gets it once, or none."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from strict_headers import loads

from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import (
    BadOption,
    QueueNotFound,
    RightMissing,
    SubscriberUnreachable,
    SubscriptionsNotFound,
)
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import at_least_once, dispatch, fan_out, subscriptions
from sqlq_spark.send.fan_out import SubscriptionCache
from sqlq_spark.send.messages import CHUNK_ROW, Sender
from sqlq_spark.send.subscriptions import Subscription
from sqlq_spark.send.topics import CHUNK_TOPICS
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import MESSAGE_ID

from .conftest import TIMEOUT, Bench, Clock, Strike
from .test_install import HOSTILE
from .test_send import chunk, stage, staging

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


PLACED, EVENT = "Shop.Placed", "Shop.IEvent"
UNCLOSED = "a quote that is not closed"


# what a publication runs between its begin and its commit, apart from the state tables
SENDING = {"subscribers", "destinations", "lock_destination", "load"}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give the clock by which this process, that remembers nothing yet, remembers."""
    stopped = Clock()
    monkeypatch.setattr(fan_out, "cache", SubscriptionCache(stopped))
    return stopped


@pytest.fixture
def table(bare: Bench) -> QueueAddress:
    """Give the address of a table of subscriptions that is not there yet."""
    return QueueAddress("SubscriptionRouting", bare.dotnet.schema)


@pytest.fixture
def queues(bare: Bench) -> dict[str, QueueAddress]:
    """Give three queues of subscribers, by name."""
    made = {name: QueueAddress(name, bare.dotnet.schema) for name in ("web", "mail", "stock")}
    for queue in made.values():
        bare.dotnet.create(queue)
    return made


@pytest.fixture
def shop(bare: Bench, table: QueueAddress, queues: dict[str, QueueAddress]) -> QueueAddress:
    """Give the table with two subscribers of PLACED, one of them and a third of EVENT."""
    bare.dotnet.create_subscriptions(table)
    for endpoint, topic in (("web", PLACED), ("mail", PLACED), ("web", EVENT), ("stock", EVENT)):
        bare.dotnet.subscribe(table, endpoint, topic, bare.desk.printed(queues[endpoint]))
    return table


def events(*bodies: bytes, topics: Sequence[str] | None = (PLACED,)) -> pa.Table:
    """Make a chunk of messages that are published."""
    lists = pa.array([topics] * len(bodies), CHUNK_TOPICS.type)
    return chunk(*bodies, lives=10**7).append_column(CHUNK_TOPICS, lists)


def sink(bench: Bench, table: QueueAddress, **raw: str) -> SinkOptions:
    """Give the options of a sink without a queue of its own."""
    given = {
        "url": bench.dotnet.url,
        "stateSchema": bench.dotnet.state,
        "subscriptionTable": bench.desk.printed(table),
        "queryTimeout": f"{TIMEOUT:g}s",
    }
    return SinkOptions.parse({**given, **raw})


def publish(bench: Bench, table: QueueAddress, *chunks: pa.Table, batch: int = 0) -> int:
    """Stage and dispatch a batch."""
    staged = stage(bench, *chunks, batch=batch)
    return dispatch.dispatch(bench.desk, [staged], sink(bench, table))


def subscribe(bench: Bench, table: QueueAddress, **parts: Any) -> Subscription:
    """Subscribe by our own statements."""
    whole = {"topic": PLACED, "endpoint": "web", "queue": bench.queue, **parts}
    return subscriptions.subscribe(bench.desk, table, timeout=TIMEOUT, **whole)


def got(bench: Bench, queues: dict[str, QueueAddress]) -> dict[str, list[bytes | None]]:
    """What waits in the queues of subscribers."""
    return {name: [row.body for row in bench.dotnet.rows(at)] for name, at in queues.items()}


# ----- the table -------------------------------------------------------------------------------


def test_the_table_is_made_as_the_endpoint_makes_it(bare: Bench, table: QueueAddress) -> None:
    """By the first that subscribes; by whom cannot be told."""
    theirs = QueueAddress("theirs", bare.dotnet.schema)
    bare.dotnet.create_subscriptions(theirs)

    subscribe(bare, table)
    schema.create_subscriptions(bare.desk, table, timeout=TIMEOUT)

    assert bare.dotnet.catalog(table) == bare.dotnet.catalog(theirs) != []
    assert bare.dotnet.subscribers(table, PLACED) == [bare.printed]


def test_the_table_may_be_made_by_two_at_once(bare: Bench, table: QueueAddress) -> None:
    """An endpoint's installer takes no lock of ours: we wait for its commit, and take its table."""
    first = bare.open("first")
    with bare.dotnet.creating_subscriptions(table):
        made = bare.thread(partial(schema.create_subscriptions, first, table, timeout=TIMEOUT))
        bare.blocked("first")

    made.result(timeout=TIMEOUT)

    subscribe(bare, table)
    assert bare.dotnet.subscribers(table, PLACED) == [bare.printed]


def test_an_endpoint_finds_who_we_subscribed_and_we_whom_it_did(
    bare: Bench, table: QueueAddress
) -> None:
    """By the same statements as the transport's, both ways."""
    ours = subscribe(bare, table)
    bare.dotnet.subscribe(table, "mail", PLACED, '"x"."mail"')
    bare.dotnet.subscribe(table, "mail", EVENT, '"x"."mail"')

    assert set(bare.dotnet.subscribers(table, PLACED, EVENT)) == {bare.printed, '"x"."mail"'}
    mail = Subscription(PLACED, "mail", '"x"."mail"')
    assert subscriptions.list_subscriptions(bare.desk, table, PLACED) == [mail, ours]
    assert [each.topic for each in subscriptions.list_subscriptions(bare.desk, table)] == [
        *(EVENT, PLACED, PLACED)
    ]


def test_an_endpoint_has_one_address_for_a_topic(
    bare: Bench, table: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """The last one, whoever gave it; the same one again changes nothing."""
    subscribe(bare, table)
    subscribe(bare, table, queue=queues["web"])
    subscribe(bare, table, queue=queues["web"])
    assert bare.dotnet.subscribers(table, PLACED) == [bare.desk.printed(queues["web"])]

    bare.dotnet.subscribe(table, "web", PLACED, bare.printed)

    (only,) = subscriptions.list_subscriptions(bare.desk, table)
    assert only == Subscription(PLACED, "web", bare.printed)


def test_a_subscription_is_taken_back_by_either_side(bare: Bench, table: QueueAddress) -> None:
    """Twice is as good as once, and another endpoint's stays."""
    take = partial(subscriptions.unsubscribe, bare.desk, table, timeout=TIMEOUT)
    for endpoint in ("web", "mail", "stock"):
        subscribe(bare, table, endpoint=endpoint)

    assert take(PLACED, "web")
    assert not take(PLACED, "web")
    assert not take(EVENT, "mail")
    bare.dotnet.unsubscribe(table, "mail", PLACED)

    assert [each.endpoint for each in subscriptions.list_subscriptions(bare.desk, table)] == [
        "stock"
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(bare: Bench, name: str) -> None:
    """Of the table, the endpoint, the topic and the queue."""
    table = QueueAddress((name + "s")[1:], bare.dotnet.schema)
    queue = QueueAddress(name, bare.dotnet.schema)
    bare.dotnet.create(queue)
    topic = name.replace(";", "").replace(",", "").strip()
    subscribe(bare, table, endpoint=name, topic=topic, queue=queue)

    options = sink(bare, table, delivery="atLeastOnce")
    at_least_once.send_now(bare.session(), [events(b"x", topics=[topic])], options)

    assert bare.dotnet.subscribers(table, topic) == [bare.desk.printed(queue)]
    assert [row.body for row in bare.dotnet.rows(queue)] == [b"x"]


@pytest.mark.parametrize(
    ("parts", "told"),
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
    bare: Bench, table: QueueAddress, parts: dict[str, Any], told: str | None
) -> None:
    """Before anything is made; a queue that is not there would fail every publisher."""
    with pytest.raises(BadOption if told else QueueNotFound, match=told):
        subscribe(bare, table, **parts)

    assert bare.desk.columns(table) == {}


# ----- who hears -------------------------------------------------------------------------------


def test_each_subscriber_gets_a_copy_with_an_id_of_its_own(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """The message, its id and its lifetime are the same for all."""
    batch = pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})
    options = sink(bench, shop, topics=f"{PLACED},{EVENT}", timeToBeReceived="00:10:00")
    staged = stage(bench, *Sender(options=options, partition=0).chunks([batch]))

    assert dispatch.dispatch(bench.desk, [staged], options) == 2

    rows = [row for queue in queues.values() for row in bench.dotnet.rows(queue)]
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
def test_who_is_subscribed_to_any_of_the_topics_hears_once(
    bench: Bench,
    shop: QueueAddress,
    queues: dict[str, QueueAddress],
    topics: list[str],
    hear: list[str],
) -> None:
    """Also an endpoint that is subscribed to several of them; a topic is a full name."""
    publish(bench, shop, events(b"x", topics=topics))

    assert got(bench, queues) == {name: [b"x"] * (name in hear) for name in queues}


def test_one_queue_gets_one_copy_however_it_is_spelled(
    bench: Bench, table: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """Two endpoints may share a queue, and old rows may leave the quotes out."""
    bench.dotnet.create_subscriptions(table)
    plain = {
        "postgresql": f"{bench.dotnet.schema}.web",
        "sqlserver": f"web@{bench.dotnet.schema}",
    }
    for at, spelled in enumerate((bench.address("web"), plain[bench.dotnet.dialect])):
        bench.dotnet.subscribe(table, f"web {at}", PLACED, spelled)

    publish(bench, table, events(b"x"))

    assert got(bench, queues) == {"web": [b"x"], "mail": [], "stock": []}


def test_rows_that_are_sent_and_rows_that_are_published_keep_their_order(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """In a queue that gets both, and each row goes only where it should."""
    web = chunk(b"2", queue=bench.address("web"))
    mixed = pa.concat_tables(
        [
            events(b"1"),
            web.append_column(CHUNK_TOPICS, pa.nulls(1, CHUNK_TOPICS.type)),
            events(b"3", topics=[EVENT]),
            events(b"4"),
            events(b"5", topics=None),
        ]
    )
    staged = stage(bench, mixed)

    options = sink(bench, shop, queue=bench.printed)
    dispatch.dispatch(bench.desk, [staged], options)

    assert got(bench, queues) == {
        "web": [b"1", b"2", b"3", b"4"],
        "mail": [b"1", b"4"],
        "stock": [b"3"],
    }
    assert bench.bodies() == [b"5"]


def test_old_chunks_are_still_sent(bench: Bench, shop: QueueAddress) -> None:
    """Those staged without the column, beside others that have it."""
    staged = [stage(bench, chunk(b"old")), stage(bench, events(b"new"))]
    assert staged[0].messages == 1

    dispatch.dispatch(bench.desk, staged, sink(bench, shop, queue=bench.printed))

    assert bench.bodies() == [b"old"]
    assert chunk(b"old").schema.equals(CHUNK_ROW)


def test_what_no_one_is_subscribed_to_is_told_once_a_batch(
    bench: Bench,
    shop: QueueAddress,
    queues: dict[str, QueueAddress],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the topics, which may hold anything, and how many messages went nowhere."""
    odd = "Shop.Odd\nNothing"
    chunks = [events(b"1", b"2", topics=["Shop.Gone"]), events(b"3"), events(b"4", topics=[odd])]

    with caplog.at_level(logging.WARNING, "sqlq_spark"):
        publish(bench, shop, *chunks, events(b"5", topics=["Shop.Gone"]))

    (record,) = caplog.records
    assert record.getMessage() == (
        "sink: batch 0: 4 published messages had no subscriber and went nowhere: topics "
        "'Shop.Gone' (3), 'Shop.Odd\\nNothing' (1)"
    )
    assert got(bench, queues)["web"] == [b"3"]
    assert staging(bench) == []


def test_many_messages_are_copied_in_sets(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """One look at the table, two at new queues, a lock of each; an insert for each and chunk."""
    staged = stage(bench, events(*[b"x"] * 500), events(*[b"y"] * 500, topics=[EVENT]))
    bench.watched = True

    with Session(sink(bench, shop), "dispatch") as session:
        session.do(partial(dispatch.dispatch, staged=[staged], options=sink(bench, shop)))

    bench.watched = False
    said = Counter(name for name in bench.said if name in SENDING)
    assert said == {"subscribers": 1, "destinations": 4, "lock_destination": 3, "load": 4}
    assert {name: len(each) for name, each in got(bench, queues).items()} == {
        "web": 1000,
        "mail": 500,
        "stock": 500,
    }


# ----- what is remembered ----------------------------------------------------------------------


def test_a_new_subscriber_is_heard_after_five_seconds_at_the_latest(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress], clock: Clock
) -> None:
    """Within them the table is not read again; one that leaves is known as late."""
    publish(bench, shop, events(b"1"), batch=1)
    bench.dotnet.subscribe(shop, "stock", PLACED, bench.desk.printed(queues["stock"]))
    bench.dotnet.unsubscribe(shop, "mail", PLACED)
    clock.now += 4.9
    with bench.dotnet.locked(shop):
        publish(bench, shop, events(b"2"), batch=2)
    clock.now += 0.1
    publish(bench, shop, events(b"3"), batch=3)

    assert got(bench, queues) == {
        "web": [b"1", b"2", b"3"],
        "mail": [b"1", b"2"],
        "stock": [b"3"],
    }


def test_each_table_is_remembered_for_itself(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """Two systems in one database do not hear each other."""
    other = QueueAddress("other", bench.dotnet.schema)
    bench.dotnet.create_subscriptions(other)
    bench.dotnet.subscribe(other, "stock", PLACED, bench.desk.printed(queues["stock"]))

    publish(bench, shop, events(b"shop"), batch=1)
    publish(bench, other, events(b"other"), batch=2)

    assert got(bench, queues) == {"web": [b"shop"], "mail": [b"shop"], "stock": [b"other"]}


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
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress], address: str, why: str
) -> None:
    """Or it alone would miss the message; taken out, the batch goes through at once."""
    address = {
        "gone": bench.address("gone"),
        UNCLOSED: {"postgresql": '"unclosed', "sqlserver": "[unclosed"}[bench.dotnet.dialect],
    }.get(address, address)
    bench.dotnet.subscribe(shop, "late", EVENT, address)
    staged = stage(bench, events(b"1"), events(b"2", topics=[EVENT]))

    with pytest.raises(SubscriberUnreachable) as caught:
        dispatch.dispatch(bench.desk, [staged], sink(bench, shop))

    said = f"endpoint 'late' is subscribed to topic '{EVENT}' with the queue {address!r}, which "
    assert str(caught.value).startswith(said + why)
    assert got(bench, queues) == {"web": [], "mail": [], "stock": []}
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    bench.dotnet.unsubscribe(shop, "late", EVENT)
    assert dispatch.dispatch(bench.desk, [staged], sink(bench, shop)) == 2


def test_a_subscriber_that_is_gone_since_stops_nothing(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """It took back its subscription, then its queue: the table is read before anything fails."""
    publish(bench, shop, events(b"1"), batch=1)
    bench.dotnet.unsubscribe(shop, "mail", PLACED)
    bench.dotnet.dba.drop(queues["mail"])

    publish(bench, shop, events(b"2"), batch=2)

    assert [row.body for row in bench.dotnet.rows(queues["web"])] == [b"1", b"2"]


def test_a_broken_subscription_to_another_topic_stops_nothing(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """Only who would hear is looked at."""
    bench.dotnet.subscribe(shop, "late", "Shop.Other", "")

    publish(bench, shop, events(b"x"))

    assert got(bench, queues)["web"] == [b"x"]


def test_without_the_table_nothing_is_published(bench: Bench, table: QueueAddress) -> None:
    """An event must not vanish because an option names the wrong table."""
    staged = stage(bench, events(b"x"))

    with pytest.raises(SubscriptionsNotFound) as caught:
        dispatch.dispatch(bench.desk, [staged], sink(bench, table))

    said = f"the subscription table {bench.desk.printed(table)} was not found in "
    assert str(caught.value).startswith(said)
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    subscribe(bench, table)
    assert dispatch.dispatch(bench.desk, [staged], sink(bench, table)) == 1
    assert bench.bodies() == [b"x"]


def test_a_publisher_that_may_not_read_the_table_is_told_the_grant(
    bench: Bench, shop: QueueAddress
) -> None:
    """SELECT is what it needs."""
    dba = bench.dotnet.dba
    login = dba.login()
    dba.grant(login, "DELETE", shop)
    options = sink(bench, shop, url=login.url, delivery="atLeastOnce")
    try:
        with Session(options, "role", state=False) as session, pytest.raises(RightMissing) as no:
            at_least_once.send_now(session, [events(b"x")], options)

        assert str(no.value).endswith(f"GRANT SELECT ON {dba.quoted(shop)} TO the_user")
    finally:
        dba.drop_login(login)


# ----- once ------------------------------------------------------------------------------------


def test_a_replayed_batch_is_not_published_again(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """The ledger knows it, also where others are subscribed by now."""
    publish(bench, shop, events(b"once"), batch=3)
    bench.dotnet.subscribe(shop, "stock", PLACED, bench.desk.printed(queues["stock"]))

    assert publish(bench, shop, events(b"once"), batch=3) == 0

    assert got(bench, queues) == {"web": [b"once"], "mail": [b"once"], "stock": []}
    assert staging(bench) == []


def chunks_of_tasks() -> Iterator[pa.Table]:
    """Two chunks, the second published to one more queue."""
    yield events(b"1")
    yield events(b"2", topics=[PLACED, EVENT])


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_in_a_publication_is_answered_by_doing_it_again(
    bench: Bench, shop: QueueAddress, queues: dict[str, QueueAddress], clock: Clock
) -> None:
    """Each subscriber has each message once, whether the statement or only its answer was lost."""
    whole, fell = pa.concat_tables(chunks_of_tasks()), []
    said = list(dispatched(bench, shop, whole, None, batch=0))
    at = [at for at, name in enumerate(said) if name in SENDING]
    last = said.index("commit")
    for batch, (place, after) in enumerate([*((each, False) for each in at), (last, True)], 1):
        for queue in queues.values():
            bench.dotnet.dba.empty(queue)
        clock.now += 10
        kill = partial(bench.dotnet.kill, f"{bench.name} struck {batch}")
        strike = Strike(place, kill, after)

        dispatched(bench, shop, whole, strike, batch=batch)

        assert got(bench, queues) == {"web": [b"1", b"2"], "mail": [b"1", b"2"], "stock": [b"2"]}
        assert staging(bench) == []
        fell.append(strike.fell)

    assert Counter(fell) == {
        "subscribers": 1,
        "destinations": 2,
        "lock_destination": 3,
        "load": 3,
        "commit": 1,
    }


def dispatched(
    bench: Bench, table: QueueAddress, whole: pa.Table, strike: Strike | None, *, batch: int
) -> list[str]:
    """Publish a chunk by a session that may be struck; returns what it said."""
    staged = stage(bench, whole, batch=batch)
    bench.said.clear()
    bench.watched, bench.strike = True, strike
    session = bench.session(f"struck {batch}")
    session.do(partial(dispatch.dispatch, staged=[staged], options=sink(bench, table)))
    bench.watched, bench.strike = False, None
    return bench.said


def test_at_least_once_publishes_chunk_by_chunk_and_needs_no_state_tables(
    bare: Bench, shop: QueueAddress, queues: dict[str, QueueAddress]
) -> None:
    """In each task's own transactions."""
    options = sink(bare, shop, delivery="atLeastOnce")

    assert at_least_once.send_now(bare.session(), chunks_of_tasks(), options) == 2

    assert got(bare, queues) == {"web": [b"1", b"2"], "mail": [b"1", b"2"], "stock": [b"2"]}
