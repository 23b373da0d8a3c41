"""
Our source and sink, and .NET endpoints, on the same queues: neither harms, misses or misreads.

The endpoints run the transport's own statements and read with a JSON of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sqlq_spark.database import schema
from sqlq_spark.receive.task import divert, fence, take
from sqlq_spark.send import dispatch, subscriptions
from sqlq_spark.send import sender as messages
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.insert import Inserts
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

from .conftest import TIMEOUT, Bench
from .endpoint import FAULTS, FORWARD, Endpoint, Incoming
from .transport import Busy, Database, of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .dotnet import DotNet

FIELDS = {
    "correlationId": pa.string(),
    "replyToAddress": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "corruptHeaders": pa.string(),
    "body": pa.binary(),
}
MAP = FIELDS["headers"]
PLACED, EVENT = "Shop.OrderPlaced", "Shop.IEvent"
HOSTILE = 'He said "x".v2; --'  # an endpoint's name, and so an address


@pytest.fixture
def database(dotnet: DotNet) -> Database:
    """Give the transport of the endpoint's database."""
    return of(dotnet.dialect, dotnet.url, dotnet.schema)


@pytest.fixture
def orders(bench: Bench, database: Database) -> Iterator[Endpoint]:
    """Give an endpoint whose queue is the one that we read and write."""
    with Endpoint(database, bench.queue.table) as endpoint:
        endpoint.install()
        yield endpoint


@pytest.fixture
def web(database: Database) -> Iterator[Endpoint]:
    """Give another endpoint, of a hostile name, that writes as older versions did."""
    with Endpoint(database, HOSTILE, older=True) as endpoint:
        endpoint.install()
        yield endpoint


def received(bench: Bench, stream: str, batch: int = 1, **limits: Any) -> list[dict[str, Any]]:
    """Receive as an executor does, and give the rows as Spark gets them."""
    table = bench.receive(bench.task(stream, batch=batch, **limits))
    chunks = [
        to_read_columns(chunk, pa.schema(FIELDS.items()), queue="q")
        for chunk in record_batches(table)
    ]
    rows = [row for chunk in chunks for row in chunk.to_pylist()]
    return [row | {"headers": row["headers"] and dict(row["headers"])} for row in rows]


def write(bench: Bench, frame: dict[str, Any], *, batch: int = 0, **raw: str) -> None:
    """Send a frame through the staging, as a stream's task and driver do."""
    options = bench.sink(**raw)
    if "queue" in frame:  # the option would override the column
        options = replace(options, address=None)
    rows = pa.RecordBatch.from_pydict(frame)
    chunks = messages.Sender(options=options, partition=0).chunks([rows])
    staged = dispatch.stage(bench.session(), chunks, sink="sink", batch=batch)
    dispatch.dispatch(bench.desk, [staged], options)


def handled(endpoint: Endpoint) -> list[Incoming]:
    """Let an endpoint handle all that waits."""
    found: list[Incoming] = []
    while endpoint.receive(found.append):
        pass
    return found


def test_a_request_of_an_endpoint_is_answered_by_our_sink(bench: Bench, web: Endpoint) -> None:
    """The reply goes to the address in the message, and finds the request that it belongs to."""
    request = web.send(bench.printed, b"question")
    (row,) = received(bench, bench.new_stream())

    related = {
        "NServiceBus.RelatedTo": row["headers"]["NServiceBus.MessageId"],
        "NServiceBus.ConversationId": row["headers"]["NServiceBus.ConversationId"],
    }
    frame = {
        "body": pa.array([b"answer"], pa.binary()),
        "headers": pa.array([list(related.items())], MAP),
        "correlationId": pa.array([row["correlationId"]]),
        "queue": pa.array([row["replyToAddress"]]),
    }
    write(bench, frame, intent="Reply")

    (answer,) = handled(web)
    headers = answer.headers
    assert (answer.body, headers["NServiceBus.MessageIntent"]) == (b"answer", "Reply")
    assert headers["NServiceBus.CorrelationId"] == request["NServiceBus.CorrelationId"]
    assert headers["NServiceBus.RelatedTo"] == request["NServiceBus.MessageId"]
    assert headers["NServiceBus.ConversationId"] == request["NServiceBus.ConversationId"]
    assert answer.message_id != request["NServiceBus.MessageId"]


def test_our_request_is_answered_by_an_endpoint(bench: Bench, web: Endpoint) -> None:
    """It replies to the address that our sink wrote, and we see to which request."""
    bodies = pa.array([b"1", b"2"], pa.binary())
    ids = pa.array(["request 1", "request 2"])

    write(bench, {"body": bodies, "id": ids}, queue=web.address, replyToAddress=bench.printed)
    while web.receive(lambda request: request.reply(b"answer to " + request.body)):
        pass

    rows = received(bench, bench.new_stream())
    assert [(row["correlationId"], row["body"]) for row in rows] == [
        ("request 1", b"answer to 1"),
        ("request 2", b"answer to 2"),
    ]
    assert [row["headers"]["NServiceBus.RelatedTo"] for row in rows] == ["request 1", "request 2"]
    assert {row["headers"]["NServiceBus.MessageIntent"] for row in rows} == {"Reply"}


def test_we_get_one_copy_of_what_an_endpoint_publishes(bench: Bench, web: Endpoint) -> None:
    """Our subscription stands in its table; when we end it, the events end."""
    table = QueueAddress("SubscriptionRouting", bench.dotnet.schema)
    leave = partial(subscriptions.unsubscribe, bench.desk, table)
    topics = (PLACED, EVENT)
    subscriptions.subscribe(
        bench.desk, table, topics=topics, endpoint="ours", queue=bench.queue, timeout=TIMEOUT
    )

    assert web.publish([PLACED, EVENT], b"event") == [bench.printed]

    (row,) = received(bench, bench.new_stream())
    assert row["body"] == b"event"
    assert row["headers"]["NServiceBus.MessageIntent"] == "Publish"
    assert row["headers"]["NServiceBus.EnclosedMessageTypes"] == f"{PLACED};{EVENT}"
    for topic in topics:
        assert leave(topic=topic, endpoint="ours", timeout=TIMEOUT)
    assert web.publish([PLACED, EVENT], b"unheard") == []


def test_what_either_side_delayed_reaches_its_queue_by_either_mover(
    bench: Bench, orders: Endpoint, web: Endpoint
) -> None:
    """When it is due and not before, from any table; the header that says where to is gone then."""
    orders.defer(orders.address, b"ours", 0)
    orders.defer(web.address, b"theirs", 0)
    orders.defer(web.address, b"tomorrow", 86_400_000)
    web.defer(bench.printed, b"from its table", 0)
    moved = Mover(bench.queue, bench.source()).move_all(bench.desk)
    web.move_due()
    assert handled(web) == []
    rows = received(bench, bench.new_stream(), error_address=bench.errors)
    forwarded = handled(web)
    frame = {"body": [b"sent", b"sent for tomorrow"], "delay": [0, 86_400_000]}
    write(bench, frame)
    write(bench, frame, batch=1, delayedQueue=web.delayed)
    left = orders.move_due()
    web.move_due()
    assert handled(web) == []
    sent = handled(orders)

    assert moved.messages == 2
    assert [row["body"] for row in rows] == [b"ours", b"from its table"]
    assert [each.body for each in forwarded] == [b"theirs"]
    assert [each.body for each in sent] == [b"sent", b"sent"]
    assert 86_000 < (left or 0) <= 86_400
    for headers in (row["headers"] for row in rows), (each.headers for each in forwarded + sent):
        assert not any(FORWARD in each for each in headers)
    assert bench.bodies(bench.errors) == []


def test_what_we_cannot_forward_is_returned_to_where_it_belongs(
    bench: Bench, orders: Endpoint, database: Database
) -> None:
    """Its queue was missing; from the error queue the tools bring it there, once it is made."""
    with Endpoint(database, "absent") as absent:
        orders.defer(absent.address, b"late", 0)
        Mover(bench.queue, bench.source()).move_all(bench.desk)
        assert received(bench, bench.new_stream(), error_address=bench.errors) == []

        absent.install()

        assert orders.return_to_source() == absent.address
        (incoming,) = handled(absent)
        assert incoming.body == b"late"
        assert not [name for name in incoming.headers if name.startswith(FAULTS)]


def test_a_queue_of_our_installer_is_the_one_the_endpoint_would_make(
    bench: Bench, database: Database
) -> None:
    """Column for column and index for index; its installer leaves it, and it works in it."""
    ours = QueueAddress(HOSTILE, bench.dotnet.schema)
    schema.create_queue(bench.desk, ours, timeout=TIMEOUT)

    with Endpoint(database, HOSTILE) as endpoint, Endpoint(database, "theirs") as other:
        endpoint.install()
        other.install()

        shapes = [database.shape(each.connection, each.address) for each in (endpoint, other)]
        assert shapes[0] == shapes[1]
        endpoint.send(endpoint.address, b"x", lives=0)
        endpoint.send(endpoint.address, b"y")
        assert endpoint.peek() == 2
        assert endpoint.purge_expired() == 1
        assert [incoming.body for incoming in handled(endpoint)] == [b"y"]


def test_no_statement_of_an_endpoint_waits_for_our_open_receive(
    bench: Bench, orders: Endpoint
) -> None:
    """It passes over what we hold; only the purge of everything waits, as for any consumer."""
    for at in range(10):
        orders.send(orders.address, b"%d" % at, lives=-1 if at in {2, 7} else None)
    orders.defer(orders.address, b"due", 0)
    stream, connection = bench.new_stream(), bench.open("ours")
    task = bench.task(stream, messages=6)

    with Endpoint(orders.database.impatient(0.3), orders.name) as hasty:
        connection.rows("begin")
        assert fence(connection, task)[0]
        kept = divert(connection, task, take(connection, task))
        assert (kept.rows.num_rows, kept.expired) == (5, 1)

        assert hasty.peek() == 4
        assert hasty.purge_expired() == 1
        assert hasty.move_due() is None
        hasty.send(hasty.address, b"sent")
        got = [incoming.body for incoming in handled(hasty)]
        with pytest.raises(Busy):
            hasty.purge()
        connection.rows("commit")

    assert got == [b"6", b"8", b"9", b"due", b"sent"]
    assert bench.seqs() == []


def test_no_statement_of_an_endpoint_waits_for_our_open_dispatch(
    bench: Bench, orders: Endpoint
) -> None:
    """What we are about to send is not there yet; what was there is served meanwhile."""
    orders.send(orders.address, b"before")
    chunks = messages.Sender(options=bench.sink(), partition=0).chunks(
        [pa.RecordBatch.from_pydict({"body": pa.array([b"ours"], pa.binary())})]
    )
    staged = dispatch.stage(bench.session(), chunks, sink="sink", batch=0)
    connection = bench.open("ours")

    with Endpoint(orders.database.impatient(0.3), orders.name) as hasty:
        connection.rows("begin")
        dispatch.lock_exclusive(connection, "sink")
        inserts = Inserts(connection, bench.sink())
        for chunk in dispatch.read_chunks(connection, [staged]):
            inserts.insert(chunk)
        hasty.send(hasty.address, b"after")
        assert hasty.peek() >= 2
        during = [incoming.body for incoming in handled(hasty)]
        hasty.purge_expired()
        assert hasty.purge() == 0
        connection.rows("commit")

        assert during == [b"before", b"after"]
        assert [incoming.body for incoming in handled(hasty)] == [b"ours"]
