"""The sink option `undeliverable`: a bad destination costs one message, and not the batch."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark.admin import failed_messages
from sqlq_spark.admin.failed_messages import Choice
from sqlq_spark.database import schema
from sqlq_spark.errors import (
    BadAddress,
    BadOption,
    DelayedQueueNotFound,
    QueueNotFound,
    RightMissing,
)
from sqlq_spark.send import dispatch, insert, subscriptions
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS, Sender
from sqlq_spark.send.subscriptions import SubscriptionCache
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    dumps,
    parse_wire_time,
)

from .conftest import TIMEOUT, Bench, Clock

if TYPE_CHECKING:
    from sqlq_spark.options import SinkOptions

TYPE, WHY = f"{EXCEPTION_INFO}ExceptionType", f"{EXCEPTION_INFO}Message"
PLACED, EVENT = "Shop.Placed", "Shop.IEvent"
DELIVERIES = ["exactlyOnce", "atLeastOnce"]
LIFE = 10**8  # milliseconds


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know no subscriptions yet."""
    monkeypatch.setattr(subscriptions, "cache", SubscriptionCache(Clock()))


@dataclass
class Post:
    """A sink whose rows name their queues, and its error queue."""

    bench: Bench

    def address(self, table: str) -> QueueAddress:
        """A table beside the queue."""
        return QueueAddress(table, self.bench.dotnet.schema)

    def queue(self, table: str) -> QueueAddress:
        """Make a queue."""
        self.bench.dotnet.create(self.address(table))
        return self.address(table)

    def name(self, table: str) -> str:
        """How a row names a queue."""
        return self.bench.address(table)

    @property
    def routes(self) -> QueueAddress:
        """The table of subscriptions."""
        return self.address("SubscriptionRouting")

    def sink(self, **raw: str) -> SinkOptions:
        """Options without a queue for rows that name none."""
        given = {
            "url": self.bench.dotnet.url,
            "stateSchema": self.bench.dotnet.state,
            "queryTimeout": f"{TIMEOUT:g}s",
            "undeliverable": self.name("error"),
            "subscriptionTable": self.bench.desk.printed(self.routes),
        }
        return self.bench.sink().parse({**given, **raw})

    def send(self, *chunks: pa.Table, batch: int = 0, **raw: str) -> None:
        """Send chunks by the way that the option `delivery` says."""
        options = self.sink(**raw)
        if options.delivery == "atLeastOnce":
            insert.send_now(self.bench.session("send"), chunks, options)
            return
        staged = dispatch.stage(self.bench.session("stage"), chunks, sink="sink", batch=batch)
        dispatch.dispatch(self.bench.desk, [staged], options)

    def bodies(self, table: str) -> list[bytes | None]:
        """The bodies that a queue holds."""
        return self.bench.bodies(self.address(table))

    def failures(self) -> dict[bytes | None, dict[str, str]]:
        """Headers of what the error queue holds, by body; each body is there once."""
        rows = self.bench.dotnet.rows(self.bench.errors)
        found = {row.body: json.loads(row.headers or "") for row in rows}
        assert len(found) == len(rows)
        assert {row.expires for row in rows} <= {None}
        return found


@pytest.fixture
def post(bench: Bench) -> Post:
    """Give a queue and an error queue."""
    return Post(bench)


def rows(*found: tuple[str | None, bytes], **more: Any) -> pa.Table:
    """Make a chunk of rows with a queue and a body; each has headers and a lifetime."""
    listed = [
        {
            "queue": queue,
            "headers": dumps({MESSAGE_ID: f"m-{body.decode()}", "a": "b"}),
            "body": body,
            "lifetime": LIFE,
        }
        | more
        for queue, body in found
    ]
    return pa.Table.from_pylist(listed, schema=CHUNK_ROW)


def events(body: bytes, *topics: str) -> pa.Table:
    """Make a chunk of one message that is published."""
    return rows((None, body)).append_column(CHUNK_TOPICS, pa.array([topics], CHUNK_TOPICS.type))


def delayed(*found: tuple[str | None, bytes]) -> pa.Table:
    """Make a chunk of rows that wait for an hour."""
    plain = rows(*found, lifetime=None)
    return plain.append_column(
        CHUNK_DELAYS["delay"], pa.array([3_600_000] * len(found), pa.int64())
    )


def check_failure(headers: dict[str, str], body: bytes, failed_q: str | None, why: str) -> None:
    """Make sure that a message in the error queue says where it was to go, and why not."""
    assert (headers[MESSAGE_ID], headers["a"]) == (f"m-{body.decode()}", "b")
    assert headers.get(FAILED_Q) == failed_q
    assert why in headers[WHY]
    assert headers[TYPE].startswith("sqlq_spark.errors.")
    assert "://" not in headers[WHY]
    parse_wire_time(headers[TIME_OF_FAILURE])


def failed_queue(post: Post, text: str | None) -> str | None:
    """FailedQ of a row: the canonical address, the text where it is none, or nothing."""
    if text is None:
        return None
    try:
        return post.bench.desk.canonical(post.bench.desk.names.parse_destination(text))
    except BadAddress:
        return text[:1000]


# ----- destinations of rows --------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_row_that_cannot_be_delivered_goes_to_the_error_queue_and_the_others_go_on(
    post: Post, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Null, unreadable, hostile, missing, no queue, refused by the table: each with its reason."""
    dba, name = post.bench.dotnet.dba, post.name
    dba.refuse(post.queue("refuses"))
    dba.no_queues(post.address("archive"), post.address("view"), post.address("orders"))
    reasons: dict[str | None, str] = {
        None: "ReplyToAddress",
        **dict.fromkeys(dba.shapes.no_address, ""),
        "x" * 10_000: "10000 characters",
        "a\"'b": "",
        dba.shapes.missing_schema: "was not found",
        name("absent"): "was not found",
        name("archive"): "is not a queue",
        name("view"): "",
        name("refuses"): "not today",
    }
    bad = [(queue, b"bad %d" % at) for at, queue in enumerate(reasons)]
    mixed = [(name("orders"), b"first"), *bad, (name("orders"), b"last")]

    post.send(rows(*mixed), rows((None, b"bad last"), (name("orders"), b"more")), delivery=delivery)

    assert post.bodies("orders") == [b"first", b"last", b"more"]
    found = post.failures()
    assert found.keys() == {b"bad last", *(body for _, body in bad)}
    for (queue, why), (_, body) in zip(reasons.items(), bad, strict=True):
        check_failure(found[body], body, failed_queue(post, queue), why)
    assert "undeliverable messages that went to the error queue: " in caplog.text
    assert "xxx" * 100 not in caplog.text


@only("postgresql", "constraints that are checked at the commit")
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_destination_that_refuses_at_the_commit_is_found(post: Post, delivery: str) -> None:
    """The transaction that failed at its commit has sent nothing."""
    post.bench.dotnet.dba.refuse_late(post.queue("late"))

    post.send(rows((post.name("late"), b"1"), (post.name("orders"), b"2")), delivery=delivery)

    assert post.bodies("orders") == [b"2"]
    check_failure(post.failures()[b"1"], b"1", post.name("late"), "not today")


def test_a_queue_that_is_dropped_between_two_batches_costs_its_messages_only(post: Post) -> None:
    """They are returned when it is there again, as they would have come."""
    instance = post.queue("instance")
    both = [(post.name("instance"), b"1"), (post.name("orders"), b"2")]
    post.send(rows(*both), batch=1)
    post.bench.dotnet.dba.drop(instance)

    post.send(rows((post.name("instance"), b"3"), (post.name("orders"), b"4")), batch=2)
    post.send(rows((post.name("instance"), b"twice")), batch=2)

    assert post.bodies("orders") == [b"2", b"4"]
    check_failure(post.failures()[b"3"], b"3", post.name("instance"), "was not found")
    post.queue("instance")
    planned = failed_messages.plan(
        post.bench.desk, post.bench.errors, Choice(), post.bench.source()
    )
    session = post.bench.session("retry")
    list(failed_messages.give_back(session, post.bench.errors, planned, batch=9))
    (row,) = post.bench.dotnet.rows(instance)
    assert (row.body, json.loads(row.headers or "")) == (b"3", {MESSAGE_ID: "m-3", "a": "b"})
    assert post.failures() == {}


def test_many_missing_queues_are_looked_up_at_once(post: Post) -> None:
    """A sender who invents addresses makes neither as many statements, nor as many transactions."""
    many = rows(*((post.name(f"absent {at}"), b"%d" % at) for at in range(200)))
    post.bench.watched = True
    connection = post.bench.open("watched")

    insert.send_in_transaction(connection, post.sink(), lambda inserts: inserts.insert(many))

    assert len(post.failures()) == 200
    assert len(post.bench.said) < 20


def test_a_login_without_the_right_to_insert_sets_aside_what_it_may_not_send(post: Post) -> None:
    """The other queues and the error queue are its own."""
    dba = post.bench.dotnet.dba
    post.queue("closed")
    login = dba.login()
    for queue in (post.bench.queue, post.bench.errors):
        dba.grant(login, "INSERT", queue)
    chunk = rows((post.name("closed"), b"1"), (post.name("orders"), b"2"))
    try:
        post.bench.dotnet.dba.admit(login, post.bench.dotnet.schema)
        options = post.sink(url=login.url, delivery="atLeastOnce")
        with post.bench.session("role", url=login.url) as session:
            insert.send_now(session, [chunk], options)
    finally:
        dba.drop_login(login)

    assert post.bodies("orders") == [b"2"]
    headers = post.failures()[b"1"]
    check_failure(headers, b"1", post.name("closed"), "GRANT INSERT")
    assert headers[TYPE].endswith(RightMissing.__name__)


def test_a_failure_that_a_message_had_is_replaced(post: Post) -> None:
    """A failed message whose error queue is missing fails again, for another reason."""
    text = dumps({MESSAGE_ID: "m-1", "a": "b", FAILED_Q: "elsewhere", WHY: "no such order"})
    known = rows((post.name("absent"), b"1"), (None, b"2"), headers=text)

    post.send(known)

    found = post.failures()
    check_failure(found[b"1"], b"1", post.name("absent"), "was not found")
    assert FAILED_Q not in found[b"2"]


# ----- what stays as it was --------------------------------------------------------------------


@pytest.mark.parametrize("undeliverable", [None, "fail", "FAIL"])
def test_fail_stops_the_batch_as_before(post: Post, undeliverable: str | None) -> None:
    """It is the default; the row is named before it leaves its task."""
    raw = {} if undeliverable is None else {"undeliverable": undeliverable}
    given = {"url": post.bench.dotnet.url, "stateSchema": post.bench.dotnet.state}
    options = post.bench.sink().parse({**given, **raw})
    assert options.undeliverable_address is None
    mixed = rows((post.name("orders"), b"1"), (post.name("absent"), b"2"))

    with pytest.raises(QueueNotFound, match="absent"):
        insert.send_now(post.bench.session("send"), [mixed], options)

    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "queue": pa.array([None], pa.string())})
    with pytest.raises(Exception, match="row 0 of partition 0 cannot be sent: queue is null"):
        Sender(options=options, partition=0).messages(batch, 0)
    assert post.bodies("orders") == []
    assert post.failures() == {}


def test_a_batch_without_such_a_message_runs_the_same_statements(post: Post) -> None:
    """So the option costs nothing: to several queues, to subscribers, and delayed."""
    subscribe(post, "web", PLACED)
    post.queue("web")
    post.queue("billing")
    post.bench.dotnet.create_delayed(schema.delayed_of(post.bench.queue))
    chunks = [
        rows((post.name("orders"), b"1"), (post.name("billing"), b"2")),
        events(b"3", PLACED),
        delayed((post.name("orders"), b"4")),
    ]
    said: list[list[str]] = []
    post.bench.watched = True
    for batch, undeliverable in enumerate((post.name("error"), "fail")):
        subscriptions.cache.drop(post.sink())
        connection = post.bench.open(f"watched {batch}")
        staged = dispatch.stage(post.bench.session("stage"), chunks, sink="sink", batch=batch)
        post.bench.said.clear()
        dispatch.dispatch(connection, [staged], post.sink(undeliverable=undeliverable))
        said.append(list(post.bench.said))

    assert said[0] == said[1]
    assert said[0].count("load") == 4
    assert "savepoint" not in said[0]


@pytest.mark.parametrize("bad", [None, "absent"])
def test_without_its_error_queue_nothing_is_sent(post: Post, bad: str | None) -> None:
    """Neither by a look ahead, which fails first, nor where it is dropped later."""
    post.bench.dotnet.dba.drop(post.bench.errors)
    queue = None if bad is None else post.name(bad)
    options = post.sink(queue=post.name("orders"))

    with pytest.raises(QueueNotFound, match="error"):
        insert.check_tables(post.bench.desk, options)
    with pytest.raises(QueueNotFound, match="error"):
        post.send(rows((post.name("orders"), b"1"), (queue, b"2")))

    assert post.bodies("orders") == []


def test_an_error_queue_that_cannot_be_a_queue_is_refused(post: Post) -> None:
    """When the options are read."""
    for text in ("x" * 300, ""):
        with pytest.raises(BadOption, match="undeliverable"):
            post.sink(undeliverable=text)


# ----- delayed, published ----------------------------------------------------------------------


def test_a_delayed_message_whose_queue_is_gone_is_set_aside(post: Post) -> None:
    """With its queue the table is gone where it would wait; so is one without a queue."""
    table = schema.delayed_of(post.bench.queue)
    post.bench.dotnet.create_delayed(table)
    bad = [(post.name("absent"), b"1"), (None, b"2"), ("", b"3")]

    post.send(delayed(*bad, (post.name("orders"), b"4")))

    assert [row.body for row in post.bench.dotnet.delayed_rows(table)] == [b"4"]
    found = post.failures()
    assert found.keys() == {b"1", b"2", b"3"}
    check_failure(found[b"1"], b"1", post.name("absent"), "sqlqueue create QUEUE --delayed")


def test_without_the_delayed_table_of_the_options_nothing_is_sent(post: Post) -> None:
    """It takes the rows of every destination, so it is no fault of one."""
    with pytest.raises(DelayedQueueNotFound):
        post.send(delayed((post.name("orders"), b"1")), delayedQueue=post.name("absent"))

    assert post.failures() == {}


def subscribe(post: Post, endpoint: str, topic: str, address: str | None = None) -> None:
    """Subscribe as an endpoint does, with its own queue or another address."""
    post.bench.dotnet.create_subscriptions(post.routes)
    where = post.name(endpoint) if address is None else address
    post.bench.dotnet.subscribe(post.routes, endpoint, topic, where)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_lost_subscriber_costs_its_copies_only(
    post: Post, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One row in the error queue for each lost copy; other subscribers get theirs."""
    web = post.queue("web")
    for endpoint in ("web", "gone"):
        subscribe(post, endpoint, PLACED)
    subscribe(post, "gone", EVENT)
    subscribe(post, "odd", EVENT, "x" * 150)
    chunks = [events(b"1", PLACED, EVENT), events(b"2", PLACED), events(b"3", EVENT)]

    with caplog.at_level(logging.INFO):
        post.send(*chunks, delivery=delivery)

    assert post.bench.bodies(web) == [b"1", b"2"]
    found = post.bench.dotnet.rows(post.bench.errors)
    lost = sorted((row.body, json.loads(row.headers or "")[FAILED_Q]) for row in found)
    gone, odd = post.name("gone"), "x" * 150
    assert lost == sorted([(b"1", gone), (b"1", odd), (b"2", gone), (b"3", gone), (b"3", odd)])
    for row in found:
        headers = json.loads(row.headers or "")
        assert headers[TYPE].endswith(".SubscriberLost")
        assert "sqlqueue unsubscribe" in headers[WHY]
        assert row.expires is None
    assert "no subscriber" not in caplog.text
    if delivery == "exactlyOnce":
        assert "sink: batch 0: 3 messages sent, 5 to the error queue" in caplog.text
