"""Bad destinations of messages and rows: each costs its message, and not the batch."""

from __future__ import annotations

import json
import logging
import re
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from recorded_connection import HarshConnection, WaitingConnection

from sqlq_spark import errors
from sqlq_spark.database import destinations
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.send import dispatch, insert, subscriptions
from sqlq_spark.send.chunk import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.insert import Inserts
from sqlq_spark.send.sender import Sender
from sqlq_spark.send.subscriptions import SubscriptionCache
from sqlq_spark.wire.address import delayed_of
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FORWARD_DESTINATION,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    dumps,
    parse_wire_time,
)

from .conftest import Bench, Clock, WatchedConnection, bodies
from .test_send import stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress


def forward(
    bench: Bench, address: str | None, body: bytes | None = b"x", *, lives: int | None = None
) -> None:
    """Send a message with a destination into our queue."""
    text = dumps({"a": "b", FORWARD_DESTINATION: address})
    bench.dotnet.send(bench.queue, text, body, lives=lives)


def receive(bench: Bench, *, errors: bool = True) -> pa.Table:
    """Receive all of the queue as one task."""
    where = bench.error_queue if errors else None
    return bench.receive(bench.task(bench.new_stream(), error_address=where))


def receipt(bench: Bench) -> list[tuple[Any, ...]]:
    """What the receipts say."""
    return bench.dotnet.state_rows("receipt", "messages, expired, diverted, forwarded")


@pytest.mark.parametrize("receipts", [True, False])
def test_a_message_for_another_queue_is_forwarded_once(bench: Bench, *, receipts: bool) -> None:
    """It has a new id, and neither the header nor an expiry. The others are delivered."""
    bench.create_queue("billing")
    bench.dotnet.send(bench.queue, '{"n":"1"}', b"first")
    forward(bench, bench.address("billing"), b"forward")
    forward(bench, bench.address("billing"), None)
    forward(bench, bench.address("billing"), b"expired", lives=-1)
    bench.dotnet.send(bench.queue, '{"n":"2"}', b"last")
    before = {row.id for row in bench.dotnet.rows(bench.queue)}
    task = bench.task(bench.new_stream() if receipts else None, error_address=bench.error_queue)

    rows, again = bench.receive(task), bench.receive(task)

    assert bodies(rows) == [b"first", b"last"]
    assert rows["headers"].to_pylist() == ['{"n":"1"}', '{"n":"2"}']
    assert again.equals(rows) if receipts else again.num_rows == 0
    found = bench.dotnet.rows(bench.table_beside("billing"))
    assert [row.body for row in found] == [b"forward", b""]
    assert [(row.headers, row.expires) for row in found] == [('{"a":"b"}', None)] * 2
    assert before.isdisjoint(row.id for row in found)
    assert bench.dotnet.rows(bench.queue) == bench.dotnet.rows(bench.error_queue) == []
    assert receipt(bench) == ([(2, 1, 0, 2)] if receipts else [])


def test_a_message_that_belongs_here_only_loses_the_header(bench: Bench) -> None:
    """Any spelling of this queue's address counts, and null stands for no address."""
    own = [bench.queue_address, *bench.dotnet.spellings("orders"), None]
    for at, address in enumerate(own):
        forward(bench, address, b"%d" % at)

    rows = receive(bench)

    assert bodies(rows) == [b"0", b"1", b"2", b"3"]
    assert rows["headers"].to_pylist() == ['{"a":"b"}'] * 4
    assert receipt(bench) == [(4, 0, 0, 0)]


@pytest.mark.parametrize("limit", ["3m", "2500k"])
def test_headers_above_1_mib_are_searched_only_under_a_limit_of_their_own(
    bench: Bench, limit: str
) -> None:
    """
    A maxHeaderBytes as high as maxMessageBytes has no effect. Large headers are then not searched.

    SQL Server stores these headers in more than 2 MiB, which is what the limit counts.
    """
    text = dumps({FORWARD_DESTINATION: bench.address("error"), "a": "b" * (1 << 20)})
    bench.dotnet.send(bench.queue, text, b"1")
    loop = bench.stream_driver(maxMessageBytes="3m", maxHeaderBytes=limit)

    got = bench.drain(loop)

    assert got == ([b"1"] if limit == "3m" else [])
    assert bench.waiting_bodies(bench.error_queue) == ([] if limit == "3m" else [b"1"])


def test_a_destination_under_a_name_in_hex_is_one(bench: Bench) -> None:
    """Another writer may escape any character. Names that only look similar do not count."""
    bench.create_queue("billing")
    names = [
        "NServiceBus.SqlServer.\\u0046orwardDestination",
        "NServiceBus.SqlServer.ForwardDestinatio\\u006e",
        "".join(f"\\u{ord(letter):04x}" for letter in FORWARD_DESTINATION),
    ]
    other = '{"a":"caf\\u0065, List\\u00601"}'
    bench.dotnet.send(bench.queue, other, b"here")
    for name in names:
        text = dumps({"n": bench.address("billing")}).replace('"n"', f'"{name}"')
        bench.dotnet.send(bench.queue, text, b"forward")
    forward(bench, bench.address("billing"), b"plain")

    rows = receive(bench)

    assert rows["headers"].to_pylist() == [other]
    found = [(row.body, row.headers) for row in bench.dotnet.rows(bench.table_beside("billing"))]
    assert found == [(b"forward", "{}")] * 3 + [(b"plain", '{"a":"b"}')]


def failing(bench: Bench) -> dict[str, str]:
    """
    Make destinations that cannot be sent to.

    Return the addresses with the words of their errors.
    """
    shapes, address = bench.dotnet.dba.shapes, bench.address
    bench.create_bad_destinations()
    missing = (address("absent"), address("archive"), address("view"), shapes.missing_schema)
    reasons = dict.fromkeys(missing, "this login cannot insert into a queue")
    if "refuse_late" in bench.dotnet.texts:
        bench.dotnet.dba.do("refuse_late", bench.create_queue("late"))  # at the commit
        reasons[address("late")] = "not today"
    return {**reasons, address("refuses"): "not today", **shapes.no_address}


def test_what_cannot_be_forwarded_goes_to_the_error_queue(bench: Bench) -> None:
    """Its headers say where it should have gone, and why it did not. The others go on."""
    bench.create_queue("billing")
    reasons = failing(bench)
    for address in reasons:
        forward(bench, address, address.encode())
    forward(bench, bench.address("billing"), b"good")
    forward(bench, bench.address("orders"), b"here")

    rows = receive(bench)

    assert bodies(rows) == [b"here"]
    assert bench.waiting_bodies("billing") == [b"good"]
    assert bench.dotnet.rows(bench.queue) == []
    found = bench.error_queue_headers()
    assert found.keys() == {address.encode() for address in reasons}
    for address, reason in reasons.items():
        headers = found[address.encode()]
        assert (headers[FAILED_Q], headers["a"]) == (address, "b")
        assert FORWARD_DESTINATION not in headers
        assert reason in headers[f"{EXCEPTION_INFO}Message"]
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].startswith("sqlq_spark.errors.")
        parse_wire_time(headers[TIME_OF_FAILURE])
    assert receipt(bench) == [(1, 0, len(reasons), 1)]


def test_it_comes_here_without_error_queue(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The message is delivered with its header, and a warning says why it was not forwarded."""
    reasons = failing(bench)
    for address in reasons:
        forward(bench, address, address.encode())
    sent = [row.headers for row in bench.dotnet.rows(bench.queue)]

    rows = receive(bench, errors=False)

    assert bodies(rows) == [address.encode() for address in reasons]
    assert rows["headers"].to_pylist() == sent
    assert caplog.text.count("delivered here, as there is no errorQueue") == 1
    assert f"{len(reasons)} delayed messages cannot be forwarded" in caplog.text


@pytest.mark.parametrize("errors", [True, False])
def test_many_false_addresses_are_looked_up_at_once(bench: Bench, *, errors: bool) -> None:
    """Many addresses of an attacker do not make many statements, to look or to divert."""
    for at in range(200):
        forward(bench, bench.address(f"absent {at}"))
    bench.records_statements = True
    task = bench.task(bench.new_stream(), error_address=bench.error_queue if errors else None)

    rows = bench.receive(task, bench.open_connection("watched"))

    assert (rows.num_rows, len(bench.waiting_bodies(bench.error_queue))) == (
        (0, 200) if errors else (200, 0)
    )
    assert len(bench.statements) < 30


def test_a_locked_target_costs_a_moment_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages go to the error queue. A task waits once for all locked targets."""
    monkeypatch.setattr("sqlq_spark.receive.forward.LOCK_PATIENCE", 0.2)
    locked = [bench.create_queue(f"locked {at}") for at in range(3)]
    bench.create_queue("billing")
    for queue in locked:
        forward(bench, bench.address(queue.table), queue.table.encode())
    forward(bench, bench.address("billing"), b"good")
    forward(bench, bench.address("orders"), b"here")

    with ExitStack() as stack:
        for queue in locked:
            stack.enter_context(bench.dotnet.locked(queue))
        rows = receive(bench)

    assert bodies(rows) == [b"here"]
    assert bench.waiting_bodies("billing") == [b"good"]
    for headers in bench.error_queue_headers().values():
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].endswith(".DestinationLocked")
        assert "locked" in headers[FAILED_Q]
    assert receipt(bench) == [(1, 0, 3, 1)]


@pytest.mark.parametrize("step", ["table_owners", "identities", "load"])
def test_a_target_that_is_altered_costs_its_own_messages_only(bench: Bench, step: str) -> None:
    """
    Each statement that waits for the lock is tried.

    The reason says that the table is locked, and for how long a task waits.
    """
    bench.create_queue("billing")
    bench.create_queue("altered")
    for table in ("altered", "billing", "orders"):
        forward(bench, bench.address(table), table.encode())
    task = bench.task(bench.new_stream(), error_address=bench.error_queue)

    rows = bench.receive(task, WaitingConnection(bench.open_connection("waits"), "altered", step))

    assert bodies(rows) == [b"orders"]
    assert bench.waiting_bodies("billing") == [b"billing"]
    if step == "identities":  # found to be another queue, whose lock is gone by now
        assert bench.waiting_bodies("altered") == [b"altered"]
        return
    headers = bench.error_queue_headers()[b"altered"]
    assert headers[TYPE].endswith(".DestinationLocked")
    assert "waits at most 2 s" in headers[WHY]


# ----- a failure that ends the whole transaction ----------------------------------------------


def test_a_task_runs_again_without_what_ends_its_transaction(bench: Bench) -> None:
    """It runs once more for each such destination. Their messages go to the error queue."""
    bench.create_queue("billing")
    names = ["refuses", "refuses too"]
    for name in names:
        bench.dotnet.dba.do("refuse", bench.create_queue(name))
    for name in [*names, "billing", "orders"]:
        forward(bench, bench.address(name), name.encode())
    bench.records_statements = True
    task = bench.task(bench.new_stream(), error_address=bench.error_queue)

    rows = bench.receive(task, HarshConnection(bench.open_connection("harsh")))

    assert bench.statements.count("begin_receipt") == 3
    assert bodies(rows) == [b"orders"]
    assert bench.waiting_bodies("billing") == [b"billing"]
    found = bench.error_queue_headers()
    assert found.keys() == {name.encode() for name in names}
    for headers in found.values():
        assert "not today" in headers[WHY]
    assert receipt(bench) == [(1, 0, 2, 1)]


def test_beyond_ten_destinations_a_task_fails_and_takes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the last destination."""
    monkeypatch.setattr(destinations, "MOST_FAILED", 1)
    for name in ("refuses", "refuses too"):
        bench.dotnet.dba.do("refuse", bench.create_queue(name))
        forward(bench, bench.address(name), name.encode())
    task = bench.task(bench.new_stream(), error_address=bench.error_queue)

    with pytest.raises(errors.StatementRefused, match="not today"):
        bench.receive(task, HarshConnection(bench.open_connection("harsh")))

    assert bench.waiting_bodies() == [b"refuses", b"refuses too"]
    assert receipt(bench) == []


def test_an_error_queue_that_ends_the_transaction_is_named(bench: Bench) -> None:
    """No second attempt is made outside of a transaction."""
    bench.dotnet.dba.do("refuse", bench.error_queue)
    bench.dotnet.send(bench.queue, "poison", b"poison")
    task = bench.task(bench.new_stream(), error_address=bench.error_queue)

    with pytest.raises(errors.StatementFailed, match="takes no poison"):
        bench.receive(task, HarshConnection(bench.open_connection("harsh")))

    assert (bench.waiting_bodies(), bench.waiting_bodies(bench.error_queue)) == ([b"poison"], [])


# ----- the sink option undeliverable ----------------------------------------------------------


TYPE, WHY = f"{EXCEPTION_INFO}ExceptionType", f"{EXCEPTION_INFO}Message"
PLACED, EVENT = "Shop.Placed", "Shop.IEvent"
DELIVERIES = ["exactlyOnce", "atLeastOnce"]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process forget the subscriptions that it knows."""
    monkeypatch.setattr(subscriptions, "cache", SubscriptionCache(Clock()))


def routes(bench: Bench) -> QueueAddress:
    """The table of subscriptions."""
    return bench.table_beside("SubscriptionRouting")


def sink(bench: Bench, **raw: str) -> SinkOptions:
    """Options without a queue for rows that name none."""
    given: dict[str, Any] = {
        "queue": None,
        "undeliverable": bench.address("error"),
        "subscriptionTable": bench.connection.printed(routes(bench)),
    }
    return bench.sink_options(**{**given, **raw})


def send(bench: Bench, *chunks: pa.Table, **raw: str) -> None:
    """Send chunks by the way that the option `delivery` says."""
    options = sink(bench, **raw)
    if options.delivery == "atLeastOnce":
        insert.send_now(bench.new_session("send"), chunks, options)
        return
    dispatch.dispatch(bench.connection, [stage(bench, *chunks)], options)


def rows(*found: tuple[str | None, bytes], **more: Any) -> pa.Table:
    """Make a chunk of rows with a queue and a body; each has headers and a lifetime."""
    listed = [
        {
            "queue": queue,
            "headers": dumps({MESSAGE_ID: f"m-{body.decode()}", "a": "b"}),
            "body": body,
            "lifetime": 10**8,
        }
        | more
        for queue, body in found
    ]
    return pa.Table.from_pylist(listed, schema=CHUNK_ROW)


def delayed(*found: tuple[str | None, bytes]) -> pa.Table:
    """Make a chunk of rows that wait for an hour."""
    hours = pa.array([3_600_000] * len(found), pa.int64())
    return rows(*found, lifetime=None).append_column(CHUNK_DELAYS["delay"], hours)


def check_failure(headers: dict[str, str], body: bytes, failed_q: str | None, why: str) -> None:
    """Make sure that a message in the error queue says where it was to go, and why not."""
    assert (headers[MESSAGE_ID], headers["a"]) == (f"m-{body.decode()}", "b")
    assert headers.get(FAILED_Q) == failed_q
    assert why in headers[WHY]
    assert headers[TYPE].startswith("sqlq_spark.errors.")
    assert "://" not in headers[WHY]
    parse_wire_time(headers[TIME_OF_FAILURE])


def failed_queue(bench: Bench, text: str | None) -> str | None:
    """The FailedQ of a row: its canonical address, its text if it is no address, or nothing."""
    if text is None:
        return None
    try:
        return bench.connection.canonical(bench.connection.names.parse_destination(text))
    except errors.BadAddress:
        return text[:1000]


def test_all_tables_are_locked_and_checked_before_a_row_is_inserted(bench: Bench) -> None:
    """A queue that rows name and that is subscribed is one route: its rows keep their order."""
    queue, mail = bench.create_queue("orders"), bench.create_queue("mail")
    waits = delayed_of(queue)
    bench.dotnet.create_delayed(waits)
    bench.dotnet.create_subscriptions(routes(bench))
    for endpoint, subscriber in (("orders", queue), ("mail", mail)):
        bench.dotnet.subscribe(
            routes(bench), endpoint, PLACED, bench.connection.printed(subscriber)
        )
    chunk = rows(*[(bench.address("orders"), b"%d" % number) for number in range(4)], lifetime=None)
    delays = [None, 3_600_000, None, None]
    topics = [None, None, [PLACED], None]
    chunk = chunk.append_column(CHUNK_DELAYS["delay"], pa.array(delays, pa.int64()))
    chunk = chunk.append_column(CHUNK_TOPICS, pa.array(topics, CHUNK_TOPICS.type))
    connection = WatchedConnection(bench.open_connection("spied"), bench)
    bench.statements.clear()

    insert.send_in_transaction(connection, sink(bench), partial(Inserts.insert, chunk=chunk))

    assert bench.waiting_bodies("orders") == [b"0", b"2", b"3"]
    assert bench.waiting_bodies("mail") == [b"2"]
    assert [row.body for row in bench.dotnet.delayed_rows(waits)] == [b"1"]
    said = bench.statements[: bench.statements.index("commit")]
    inserted = said[said.index("load") :]
    assert inserted[:3] == ["load", "load", "load"]
    # a table that a sender cannot lock is looked at once more before the commit
    looks = {"table_owners"} if "lock_insert" in bench.connection.lacks else set()
    assert {*inserted[3:]} == looks


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_messages_for_what_ends_the_transaction_go_to_the_error_queue(
    bench: Bench, delivery: str
) -> None:
    """The transaction runs again without plain and delayed rows for such destinations."""
    bench.dotnet.dba.do("refuse", bench.create_queue("refuses"))
    bench.create_queue("late")
    late = delayed_of(bench.table_beside("late"))
    bench.dotnet.create_delayed(late)
    bench.dotnet.dba.do("refuse", late)
    place, fine = bench.address("refuses"), bench.address("orders")
    chunks = [
        rows((fine, b"first"), (place, b"bad"), (fine, b"last")),
        delayed((bench.address("late"), b"bad late")),
    ]
    options, connection = (
        sink(bench, delivery=delivery),
        HarshConnection(bench.open_connection("harsh")),
    )

    if delivery == "exactlyOnce":
        dispatch.dispatch(connection, [stage(bench, *chunks)], options)
    else:
        for each in chunks:
            insert.send_in_transaction(connection, options, partial(Inserts.insert, chunk=each))

    assert bench.waiting_bodies("orders") == [b"first", b"last"]
    found = bench.error_queue_headers()
    assert found.keys() == {b"bad", b"bad late"}
    check_failure(found[b"bad"], b"bad", place, "not today")
    check_failure(found[b"bad late"], b"bad late", bench.address("late"), "not today")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_row_that_cannot_be_delivered_goes_to_the_error_queue_and_the_others_go_on(
    bench: Bench, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The address is null, unreadable or missing, or its table is no queue or refuses the row.

    Each row has its reason.
    """
    dba, name = bench.dotnet.dba, bench.address
    bench.create_bad_destinations()
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
    if "refuse_late" in bench.dotnet.texts:
        dba.do("refuse_late", bench.create_queue("late"))
        reasons[name("late")] = "not today"
    bad = [(queue, b"bad %d" % at) for at, queue in enumerate(reasons)]
    mixed = [(name("orders"), b"first"), *bad, (name("orders"), b"last")]

    send(
        bench, rows(*mixed), rows((None, b"bad last"), (name("orders"), b"more")), delivery=delivery
    )

    assert bench.waiting_bodies("orders") == [b"first", b"last", b"more"]
    found = bench.error_queue_headers()
    assert found.keys() == {b"bad last", *(body for _, body in bad)}
    for (queue, why), (_, body) in zip(reasons.items(), bad, strict=True):
        check_failure(found[body], body, failed_queue(bench, queue), why)
    assert "undeliverable messages that went to the error queue: " in caplog.text
    assert "xxx" * 100 not in caplog.text


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_row_whose_text_is_not_utf_8_goes_to_the_error_queue(
    bench: Bench, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The bad row is the last of ten, in the second batch of a chunk. The others are sent."""
    names = [bench.address("orders").encode()] * 9 + [b"A\xffB"]
    octets = pa.array(names, pa.binary())
    queues = pa.Array.from_buffers(pa.string(), 10, octets.buffers())  # as Spark casts bytes
    bodies = pa.array([b"%d" % number for number in range(10)], pa.binary())
    ids = pa.array([f"m-{number}" for number in range(10)])
    maps = pa.array([[("a", "b")]] * 10, pa.map_(pa.string(), pa.string()))
    columns = {"queue": queues, "body": bodies, "id": ids, "headers": maps}
    batch = pa.RecordBatch.from_pydict(columns)
    sender = Sender(options=sink(bench), partition=0)

    chunks = sender.chunks([batch.slice(0, 4), batch.slice(4), batch.slice(0, 1)])
    send(bench, *chunks, delivery=delivery)

    expected = [b"%d" % number for number in range(9)]
    assert bench.waiting_bodies("orders") == [*expected, b"0"]
    failures = bench.error_queue_headers()
    assert [*failures] == [b"9"]
    headers = failures[b"9"]
    check_failure(headers, b"9", None, "row 9 of partition 0 cannot be sent: queue is not UTF-8")
    assert headers[TYPE] == "sqlq_spark.errors.BadMessage"
    assert "error queue: 1 ('row 9 of partition 0 cannot be sent: queue is" in caplog.text


@pytest.mark.parametrize("undeliverable", [None, "FAIL"])
def test_fail_stops_the_batch_as_before(bench: Bench, undeliverable: str | None) -> None:
    """This is the default. The bad row is named before it leaves its task."""
    options = bench.sink_options(queue=None, undeliverable=undeliverable)
    assert options.undeliverable_address is None
    mixed = rows((bench.address("orders"), b"1"), (bench.address("absent"), b"2"))

    with pytest.raises(errors.QueueNotFound, match="absent"):
        insert.send_now(bench.new_session("send"), [mixed], options)

    batch = pa.RecordBatch.from_pydict({"body": [b"x"], "queue": pa.array([None], pa.string())})
    with pytest.raises(Exception, match="row 0 of partition 0 cannot be sent: queue is null"):
        Sender(options=options, partition=0).messages(batch, 0)
    assert bench.waiting_bodies() == []
    assert bench.error_queue_headers() == {}


def test_an_error_names_a_queue_that_differs_only_in_case(bench: Bench) -> None:
    """It does so for the name of an option. If case does not matter, the queue is found."""
    near = bench.table_beside("ORDERS")
    address = bench.connection.printed(near)
    is_found = bool(bench.connection.columns(near))
    text = re.escape(f"There is {bench.queue_address}, which differs only in upper and lower case")

    def named() -> Any:
        return nullcontext() if is_found else pytest.raises(errors.QueueInOtherCase, match=text)

    with named():
        bench.stream_driver(queue=address).latest(INITIAL)
    with named():
        bench.stream_driver(errorQueue=address, queue=bench.address("error")).latest(INITIAL)
    with named():
        insert.check_tables(bench.connection, bench.sink_options(queue=address))
    with named():
        send(bench, rows((None, b"1")), queue=address, undeliverable="FAIL", delivery=DELIVERIES[1])
    assert bench.waiting_bodies() == ([b"1"] if is_found else [])


def test_only_who_may_use_a_queue_learns_its_name_in_another_case(bench: Bench) -> None:
    """The author of a row or of a message does not. Nor does a login without rights on it."""
    address = bench.address("ORDERS")
    is_found = bool(bench.connection.columns(bench.table_beside("ORDERS")))
    options = bench.sink_options(queue=address)
    dba = bench.dotnet.dba

    def error_of(work: Callable[[], object]) -> str:
        try:
            work()
        except errors.QueueNotFound as error:
            return type(error).__name__
        return ""

    row = partial(send, bench, rows((address, b"1")), undeliverable="FAIL")
    assert error_of(row) == ("" if is_found else "QueueNotFound")
    with bench.login_with_rights() as (login, connection):
        dba.admit(login, str(bench.queue.schema))
        assert error_of(partial(insert.check_tables, connection, options)) == "QueueNotFound"
        dba.grant(login, "INSERT", bench.queue)
        found = error_of(partial(insert.check_tables, connection, options))
        assert found == ("" if is_found else "QueueInOtherCase")
    forward(bench, address, b"2")
    receive(bench)
    texts = [*map(str, bench.error_queue_headers().values())]
    assert len(texts) == (0 if is_found else 1)
    assert not any("differs only" in text for text in texts)


def test_without_its_error_queue_nothing_is_sent(bench: Bench) -> None:
    """The check before the write fails. So does a send, if the queue is dropped later."""
    bench.dotnet.dba.drop(bench.error_queue)

    with pytest.raises(errors.QueueNotFound, match="error"):
        insert.check_tables(bench.connection, sink(bench, queue=bench.queue_address))
    for queue in (None, bench.address("absent")):
        with pytest.raises(errors.QueueNotFound, match="error"):
            send(bench, rows((bench.queue_address, b"1"), (queue, b"2")))

    assert bench.waiting_bodies() == []


def test_a_delayed_message_whose_queue_is_gone_is_diverted(bench: Bench) -> None:
    """Only its own rows are diverted. If the table of `delayedQueue` is absent, the batch fails."""
    bench.dotnet.create_delayed(bench.delayed_table)
    bad = [(bench.address("absent"), b"1"), (None, b"2"), ("", b"3")]

    with pytest.raises(errors.DelayedQueueNotFound):
        send(bench, delayed((bench.queue_address, b"5")), delayedQueue=bench.address("absent"))
    send(bench, delayed(*bad, (bench.queue_address, b"4")))

    assert [row.body for row in bench.dotnet.delayed_rows(bench.delayed_table)] == [b"4"]
    found = bench.error_queue_headers()
    assert found.keys() == {b"1", b"2", b"3"}
    check_failure(found[b"1"], b"1", bench.address("absent"), "sqlqueue create QUEUE --delayed")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_lost_subscriber_costs_its_copies_only(
    bench: Bench, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error queue gets one row for each lost copy. The other subscribers get their copies."""
    web, gone, odd = bench.create_queue("web"), bench.address("gone"), "x" * 150
    bench.dotnet.create_subscriptions(routes(bench))
    for endpoint, topic, address in (
        ("web", PLACED, bench.connection.printed(web)),
        *(("gone", topic, gone) for topic in (PLACED, EVENT)),
        ("odd", EVENT, odd),
    ):
        bench.dotnet.subscribe(routes(bench), endpoint, topic, address)
    chunks = [
        rows((None, body)).append_column(CHUNK_TOPICS, pa.array([topics], CHUNK_TOPICS.type))
        for body, topics in ((b"1", [PLACED, EVENT]), (b"2", [PLACED]), (b"3", [EVENT]))
    ]

    with caplog.at_level(logging.INFO):
        send(bench, *chunks, delivery=delivery)

    assert bench.waiting_bodies(web) == [b"1", b"2"]
    found = [(row, json.loads(row.headers or "")) for row in bench.dotnet.rows(bench.error_queue)]
    lost = sorted((row.body, headers[FAILED_Q]) for row, headers in found)
    assert lost == sorted([(b"1", gone), (b"1", odd), (b"2", gone), (b"3", gone), (b"3", odd)])
    for row, headers in found:
        assert headers[TYPE].endswith(".SubscriberLost")
        assert "sqlqueue unsubscribe" in headers[WHY]
        assert row.expires is None
    assert "no subscriber" not in caplog.text
    if delivery == "exactlyOnce":
        assert "sink: batch 0: 3 messages sent, 5 to the error queue" in caplog.text
