"""The sink option `undeliverable`: a bad destination costs one message, and not the batch."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin import failed_messages
from sqlq_spark.admin.failed_messages import Choice
from sqlq_spark.database import schema
from sqlq_spark.send import dispatch, insert, subscriptions
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS, Sender
from sqlq_spark.send.subscriptions import SubscriptionCache
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    dumps,
    parse_wire_time,
)

from .conftest import Bench, Clock
from .test_send import stage

if TYPE_CHECKING:
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

TYPE, WHY = f"{EXCEPTION_INFO}ExceptionType", f"{EXCEPTION_INFO}Message"
PLACED, EVENT = "Shop.Placed", "Shop.IEvent"
DELIVERIES = ["exactlyOnce", "atLeastOnce"]
LIFE = 10**8  # milliseconds


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know no subscriptions yet."""
    monkeypatch.setattr(subscriptions, "cache", SubscriptionCache(Clock()))


def routes(bench: Bench) -> QueueAddress:
    """The table of subscriptions."""
    return bench.beside("SubscriptionRouting")


def sink(bench: Bench, **raw: str) -> SinkOptions:
    """Options without a queue for rows that name none."""
    given: dict[str, Any] = {
        "queue": None,
        "undeliverable": bench.address("error"),
        "subscriptionTable": bench.desk.printed(routes(bench)),
    }
    return bench.sink(**{**given, **raw})


def send(bench: Bench, *chunks: pa.Table, batch: int = 0, **raw: str) -> None:
    """Send chunks by the way that the option `delivery` says."""
    options = sink(bench, **raw)
    if options.delivery == "atLeastOnce":
        insert.send_now(bench.session("send"), chunks, options)
        return
    dispatch.dispatch(bench.desk, [stage(bench, *chunks, batch=batch)], options)


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


def failed_queue(bench: Bench, text: str | None) -> str | None:
    """FailedQ of a row: the canonical address, the text where it is none, or nothing."""
    if text is None:
        return None
    try:
        return bench.desk.canonical(bench.desk.names.parse_destination(text))
    except errors.BadAddress:
        return text[:1000]


# ----- destinations of rows --------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_row_that_cannot_be_delivered_goes_to_the_error_queue_and_the_others_go_on(
    bench: Bench, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Null, unreadable, hostile, missing, no queue, refused by the table: each with its reason."""
    dba, name = bench.dotnet.dba, bench.address
    dba.refuse(bench.another("refuses"))
    dba.no_queues(bench.beside("archive"), bench.beside("view"), bench.beside("orders"))
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

    send(
        bench, rows(*mixed), rows((None, b"bad last"), (name("orders"), b"more")), delivery=delivery
    )

    assert bench.bodies("orders") == [b"first", b"last", b"more"]
    found = bench.failures()
    assert found.keys() == {b"bad last", *(body for _, body in bad)}
    for (queue, why), (_, body) in zip(reasons.items(), bad, strict=True):
        check_failure(found[body], body, failed_queue(bench, queue), why)
    assert "undeliverable messages that went to the error queue: " in caplog.text
    assert "xxx" * 100 not in caplog.text


@only("postgresql", "constraints that are checked at the commit")
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_destination_that_refuses_at_the_commit_is_found(bench: Bench, delivery: str) -> None:
    """The transaction that failed at its commit has sent nothing."""
    bench.dotnet.dba.refuse_late(bench.another("late"))

    send(
        bench,
        rows((bench.address("late"), b"1"), (bench.address("orders"), b"2")),
        delivery=delivery,
    )

    assert bench.bodies("orders") == [b"2"]
    check_failure(bench.failures()[b"1"], b"1", bench.address("late"), "not today")


def test_a_queue_that_is_dropped_between_two_batches_costs_its_messages_only(bench: Bench) -> None:
    """They are returned when it is there again, as they would have come."""
    instance = bench.another("instance")
    both = [(bench.address("instance"), b"1"), (bench.address("orders"), b"2")]
    send(bench, rows(*both), batch=1)
    bench.dotnet.dba.drop(instance)

    send(bench, rows((bench.address("instance"), b"3"), (bench.address("orders"), b"4")), batch=2)
    send(bench, rows((bench.address("instance"), b"twice")), batch=2)

    assert bench.bodies("orders") == [b"2", b"4"]
    check_failure(bench.failures()[b"3"], b"3", bench.address("instance"), "was not found")
    bench.another("instance")
    planned = failed_messages.plan(bench.desk, bench.errors, Choice(), bench.source())
    session = bench.session("retry")
    list(failed_messages.give_back(session, bench.errors, planned, batch=9))
    (row,) = bench.dotnet.rows(instance)
    assert (row.body, json.loads(row.headers or "")) == (b"3", {MESSAGE_ID: "m-3", "a": "b"})
    assert bench.failures() == {}


def test_a_login_without_the_right_to_insert_sets_aside_what_it_may_not_send(bench: Bench) -> None:
    """The other queues and the error queue are its own."""
    dba = bench.dotnet.dba
    bench.another("closed")
    chunk = rows((bench.address("closed"), b"1"), (bench.address("orders"), b"2"))
    with bench.login("INSERT") as (login, _):
        dba.grant(login, "INSERT", bench.errors)
        options = sink(bench, url=login.url, delivery="atLeastOnce")
        insert.send_now(bench.session("role", url=login.url), [chunk], options)

    assert bench.bodies("orders") == [b"2"]
    headers = bench.failures()[b"1"]
    check_failure(headers, b"1", bench.address("closed"), "GRANT INSERT")
    assert headers[TYPE].endswith(errors.RightMissing.__name__)


def test_a_failure_that_a_message_had_is_replaced(bench: Bench) -> None:
    """A failed message whose error queue is missing fails again, for another reason."""
    text = dumps({MESSAGE_ID: "m-1", "a": "b", FAILED_Q: "elsewhere", WHY: "no such order"})
    known = rows((bench.address("absent"), b"1"), (None, b"2"), headers=text)

    send(bench, known)

    found = bench.failures()
    check_failure(found[b"1"], b"1", bench.address("absent"), "was not found")
    assert FAILED_Q not in found[b"2"]


# ----- what stays as it was --------------------------------------------------------------------


@pytest.mark.parametrize("undeliverable", [None, "fail", "FAIL"])
def test_fail_stops_the_batch_as_before(bench: Bench, undeliverable: str | None) -> None:
    """It is the default; the row is named before it leaves its task."""
    options = bench.sink(queue=None, undeliverable=undeliverable)
    assert options.undeliverable_address is None
    mixed = rows((bench.address("orders"), b"1"), (bench.address("absent"), b"2"))

    with pytest.raises(errors.QueueNotFound, match="absent"):
        insert.send_now(bench.session("send"), [mixed], options)

    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "queue": pa.array([None], pa.string())})
    with pytest.raises(Exception, match="row 0 of partition 0 cannot be sent: queue is null"):
        Sender(options=options, partition=0).messages(batch, 0)
    assert bench.bodies("orders") == []
    assert bench.failures() == {}


@pytest.mark.parametrize("bad", [None, "absent"])
def test_without_its_error_queue_nothing_is_sent(bench: Bench, bad: str | None) -> None:
    """Neither by a look ahead, which fails first, nor where it is dropped later."""
    bench.dotnet.dba.drop(bench.errors)
    queue = None if bad is None else bench.address(bad)
    options = sink(bench, queue=bench.address("orders"))

    with pytest.raises(errors.QueueNotFound, match="error"):
        insert.check_tables(bench.desk, options)
    with pytest.raises(errors.QueueNotFound, match="error"):
        send(bench, rows((bench.address("orders"), b"1"), (queue, b"2")))

    assert bench.bodies("orders") == []


def test_an_error_queue_that_cannot_be_a_queue_is_refused(bench: Bench) -> None:
    """When the options are read."""
    for text in ("x" * 300, ""):
        with pytest.raises(errors.BadOption, match="undeliverable"):
            sink(bench, undeliverable=text)


# ----- delayed, published ----------------------------------------------------------------------


def test_a_delayed_message_whose_queue_is_gone_is_set_aside(bench: Bench) -> None:
    """With its queue the table is gone where it would wait; so is one without a queue."""
    table = schema.delayed_of(bench.queue)
    bench.dotnet.create_delayed(table)
    bad = [(bench.address("absent"), b"1"), (None, b"2"), ("", b"3")]

    send(bench, delayed(*bad, (bench.address("orders"), b"4")))

    assert [row.body for row in bench.dotnet.delayed_rows(table)] == [b"4"]
    found = bench.failures()
    assert found.keys() == {b"1", b"2", b"3"}
    check_failure(found[b"1"], b"1", bench.address("absent"), "sqlqueue create QUEUE --delayed")


def test_without_the_delayed_table_of_the_options_nothing_is_sent(bench: Bench) -> None:
    """It takes the rows of every destination, so it is no fault of one."""
    with pytest.raises(errors.DelayedQueueNotFound):
        send(bench, delayed((bench.address("orders"), b"1")), delayedQueue=bench.address("absent"))

    assert bench.failures() == {}


def subscribe(bench: Bench, endpoint: str, topic: str, address: str | None = None) -> None:
    """Subscribe as an endpoint does, with its own queue or another address."""
    bench.dotnet.create_subscriptions(routes(bench))
    where = bench.address(endpoint) if address is None else address
    bench.dotnet.subscribe(routes(bench), endpoint, topic, where)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_lost_subscriber_costs_its_copies_only(
    bench: Bench, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One row in the error queue for each lost copy; other subscribers get theirs."""
    web = bench.another("web")
    for endpoint in ("web", "gone"):
        subscribe(bench, endpoint, PLACED)
    subscribe(bench, "gone", EVENT)
    subscribe(bench, "odd", EVENT, "x" * 150)
    chunks = [events(b"1", PLACED, EVENT), events(b"2", PLACED), events(b"3", EVENT)]

    with caplog.at_level(logging.INFO):
        send(bench, *chunks, delivery=delivery)

    assert bench.bodies(web) == [b"1", b"2"]
    found = bench.dotnet.rows(bench.errors)
    lost = sorted((row.body, json.loads(row.headers or "")[FAILED_Q]) for row in found)
    gone, odd = bench.address("gone"), "x" * 150
    assert lost == sorted([(b"1", gone), (b"1", odd), (b"2", gone), (b"3", gone), (b"3", odd)])
    for row in found:
        headers = json.loads(row.headers or "")
        assert headers[TYPE].endswith(".SubscriberLost")
        assert "sqlqueue unsubscribe" in headers[WHY]
        assert row.expires is None
    assert "no subscriber" not in caplog.text
    if delivery == "exactlyOnce":
        assert "sink: batch 0: 3 messages sent, 5 to the error queue" in caplog.text
