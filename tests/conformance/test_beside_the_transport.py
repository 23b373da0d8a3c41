"""
Our source and sink, and .NET endpoints, on the same queues: neither harms, misses or misreads.

The endpoints run the transport's own statements and read with a JSON of their own.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sqlq_spark.database import schema
from sqlq_spark.receive import browse
from sqlq_spark.receive.due import Mover
from sqlq_spark.receive.task import divert, fence, take
from sqlq_spark.send import dispatch, dispatch_log, messages, staging, subscriptions
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

from . import netjson
from .conftest import TIMEOUT, Bench
from .endpoint import FAULTS, FORWARD, Endpoint, HandlerFailed, Incoming, Mode
from .transport import Busy, Database, of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from sqlq_spark.database import Connection

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
    rows = pa.RecordBatch.from_pydict(frame)
    chunks = messages.Sender(options=options, partition=0).chunks([rows])
    staged = staging.stage(bench.session(), chunks, sink="sink", batch=batch)
    dispatch.dispatch(bench.desk, [staged], options)


def handled(endpoint: Endpoint, mode: Mode = Mode.RECEIVE_ONLY) -> list[Incoming]:
    """Let an endpoint handle all that waits."""
    found: list[Incoming] = []
    while endpoint.receive(found.append, mode):
        pass
    return found


# ----- what we send is read there --------------------------------------------------------------


def test_an_endpoint_reads_what_our_sink_sent(bench: Bench, orders: Endpoint) -> None:
    """In order, headers and body as they were given; every byte as its own writer has it."""
    given: list[dict[str, str | None]] = [
        {"Shop.Note": 'a "quoted" \\ line\r\n', "Shop.Path": "a/b", "🚀": "\U0001d4b3"},
        {"NServiceBus.MessageId": "mine/1", "Shop.Nothing": None, "": "no name"},
        {"Shop.Control": "\0\x1f\x7f\u2028\u00a0\ufeff"},
        {},
    ]
    bodies = [b"1", b"\xef\xbb\xbf{}", b"\0\xff", b""]

    maps = pa.array([list(each.items()) for each in given], MAP)
    write(bench, {"body": pa.array(bodies, pa.binary()), "headers": maps})

    texts = [row.headers or "" for row in bench.dotnet.rows(bench.queue)]
    got = handled(orders)
    assert [incoming.body for incoming in got] == bodies
    for each, text, incoming in zip(given, texts, got, strict=True):
        assert each.items() <= incoming.headers.items()
        assert netjson.dumps(incoming.headers) == text
        assert incoming.headers["NServiceBus.MessageIntent"] == "Send"
        assert incoming.headers["NServiceBus.CorrelationId"] == incoming.message_id
    assert bench.dotnet.rows(bench.errors) == []


def test_an_endpoint_drops_what_expired_and_handles_what_did_not(
    bench: Bench, orders: Endpoint
) -> None:
    """By the column that our sink wrote; zero is expired at once."""
    lives = pa.array(["00:00:00", None, "1.00:00:00"])
    bodies = pa.array([b"at once", b"never", b"tomorrow"], pa.binary())

    write(bench, {"body": bodies, "timeToBeReceived": lives})

    assert [incoming.body for incoming in handled(orders)] == [b"never", b"tomorrow"]
    assert bench.seqs() == []


# ----- what is sent there we read --------------------------------------------------------------


@pytest.mark.parametrize("older", [False, True], ids=["9.1", "8.x"])
def test_we_read_what_an_endpoint_sent(bench: Bench, orders: Endpoint, *, older: bool) -> None:
    """Every header, whichever version wrote it."""
    orders.older = older
    mine = {"Shop.Note": 'é "q" </b>\r\n\0', "🚀/slash": "\U0001d4b3", "Shop.Nothing": None}

    sent = [orders.send(orders.address, b"%d" % at, dict(mine)) for at in range(3)]

    rows = received(bench, bench.new_stream())
    assert rows == [
        {
            "correlationId": headers["NServiceBus.MessageId"],
            "replyToAddress": orders.address,
            "headers": headers,
            "corruptHeaders": None,
            "body": b"%d" % at,
        }
        for at, headers in enumerate(sent)
    ]


def test_we_drop_what_expired_and_hand_out_what_did_not(bench: Bench, orders: Endpoint) -> None:
    """By the column that the endpoint wrote."""
    for lives in (0, None, 86_400_000):
        orders.send(orders.address, str(lives).encode(), lives=lives)

    rows = received(bench, bench.new_stream())

    assert [row["body"] for row in rows] == [b"None", b"86400000"]


# ----- request and reply -----------------------------------------------------------------------


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
    assert answer.body == b"answer"
    assert answer.headers["NServiceBus.MessageIntent"] == "Reply"
    assert answer.headers["NServiceBus.CorrelationId"] == request["NServiceBus.CorrelationId"]
    assert answer.headers["NServiceBus.RelatedTo"] == request["NServiceBus.MessageId"]
    assert answer.headers["NServiceBus.ConversationId"] == request["NServiceBus.ConversationId"]
    assert answer.message_id != request["NServiceBus.MessageId"]


@pytest.mark.parametrize("mode", Mode)
def test_our_request_is_answered_by_an_endpoint(bench: Bench, web: Endpoint, mode: Mode) -> None:
    """It replies to the address that our sink wrote, and we see to which request."""
    bodies = pa.array([b"1", b"2"], pa.binary())
    ids = pa.array(["request 1", "request 2"])

    write(bench, {"body": bodies, "id": ids}, queue=web.address, replyToAddress=bench.printed)
    while web.receive(lambda request: request.reply(b"answer to " + request.body), mode):
        pass

    rows = received(bench, bench.new_stream())
    assert [(row["correlationId"], row["body"]) for row in rows] == [
        ("request 1", b"answer to 1"),
        ("request 2", b"answer to 2"),
    ]
    assert [row["headers"]["NServiceBus.RelatedTo"] for row in rows] == ["request 1", "request 2"]
    assert {row["headers"]["NServiceBus.MessageIntent"] for row in rows} == {"Reply"}


# ----- the error queue -------------------------------------------------------------------------


def test_poison_lies_in_the_error_queue_as_the_endpoint_itself_leaves_it(
    bench: Bench, orders: Endpoint
) -> None:
    """Row for row the same: id, no expiry, the text and the bytes as they were."""
    texts = ["[]", '{"a":1}', '{"a":"b",}', "garbage", '{"a":"\\ud800"}']
    rows = [(text, uuid.uuid4()) for text in texts]
    for text, row in rows:
        bench.dotnet.send(bench.queue, text, b"\0body", lives=60_000, row=row)
    assert handled(orders) == []
    left_by_it = [row[:4] for row in bench.dotnet.rows(bench.errors)]
    bench.dotnet.dba.empty(bench.errors)
    for text, row in rows:
        bench.dotnet.send(bench.queue, text, b"\0body", lives=60_000, row=row)

    assert received(bench, bench.new_stream(), errors=bench.errors) == []

    assert [row[:4] for row in bench.dotnet.rows(bench.errors)] == left_by_it
    assert len(left_by_it) == len(texts)


def test_poison_that_someone_mended_is_returned_to_us_by_the_tools(
    bench: Bench, orders: Endpoint
) -> None:
    """As it lies there no tool can read it; with headers it goes where they say."""
    bench.dotnet.send(bench.queue, '{"NServiceBus.MessageId":"m",}', b"body")
    stream = bench.new_stream()
    received(bench, stream, errors=bench.errors)
    with pytest.raises(netjson.Poison):
        orders.return_to_source()

    fixed = netjson.dumps({"NServiceBus.MessageId": "m", "NServiceBus.FailedQ": bench.printed})
    bench.dotnet.dba.rewrite(bench.errors, fixed)

    assert orders.return_to_source() == bench.printed
    (row,) = received(bench, stream, batch=2)
    assert (row["headers"], row["body"]) == ({"NServiceBus.MessageId": "m"}, b"body")


def test_what_failed_at_an_endpoint_and_is_returned_is_whole_again(
    bench: Bench, orders: Endpoint
) -> None:
    """Our sink's message fails there, is moved, shown by us, returned, and received by us."""
    write(bench, {"body": pa.array([b"order"], pa.binary()), "id": pa.array(["m"])})
    (before,) = [netjson.loads(row.headers) for row in bench.dotnet.rows(bench.queue)]

    def fail(_: Incoming) -> None:
        raise HandlerFailed

    while orders.receive(fail):
        pass

    (shown,) = bench.dotnet.rows(bench.errors)
    failed = netjson.loads(shown.headers)
    assert before.items() <= failed.items()
    assert failed["NServiceBus.FailedQ"] == bench.printed
    assert orders.return_to_source() == bench.printed
    (row,) = received(bench, bench.new_stream())
    assert (row["headers"], row["body"]) == (before, b"order")
    assert orders.return_to_source() is None


# ----- events ----------------------------------------------------------------------------------


def test_endpoints_hear_once_of_what_our_sink_publishes(
    bench: Bench, orders: Endpoint, web: Endpoint, database: Database
) -> None:
    """Who subscribed to two of its types gets one copy, who left none; all are one event."""
    topics = pa.array([[PLACED, EVENT], [EVENT]])
    frame = {"body": pa.array([b"1", b"2"], pa.binary()), "topics": topics}
    with Endpoint(database, "billing") as billing, Endpoint(database, "deaf") as deaf:
        everyone = {orders: [PLACED], web: [PLACED, EVENT], billing: [EVENT], deaf: [PLACED]}
        for endpoint, wanted in everyone.items():
            endpoint.install()
            for topic in wanted:
                endpoint.subscribe(topic)
        deaf.unsubscribe(PLACED)

        write(bench, frame, subscriptionTable=orders.routing)

        heard = {each.name: handled(each) for each in everyone}

    assert {name: [each.body for each in got] for name, got in heard.items()} == {
        orders.name: [b"1"],
        web.name: [b"1", b"2"],
        billing.name: [b"1", b"2"],
        deaf.name: [],
    }
    copies = [each for got in heard.values() for each in got if each.body == b"1"]
    assert len({each.message_id for each in copies}) == 1
    assert len({each.id for each in copies}) == len(copies)
    assert {each.headers["NServiceBus.MessageIntent"] for each in copies} == {"Publish"}
    types = {each.headers["NServiceBus.EnclosedMessageTypes"] for each in copies}
    assert types == {f"{PLACED};{EVENT}"}


def test_we_hear_once_of_what_an_endpoint_publishes(bench: Bench, web: Endpoint) -> None:
    """Our subscription stands in its table; when we end it, the events end."""
    table = QueueAddress("SubscriptionRouting", bench.dotnet.schema)
    join = partial(subscriptions.subscribe, bench.desk, table, queue=bench.queue)
    leave = partial(subscriptions.unsubscribe, bench.desk, table)
    for topic in (PLACED, EVENT):
        join(topic=topic, endpoint="ours", timeout=TIMEOUT)

    assert web.publish([PLACED, EVENT], b"event") == [bench.printed]

    (row,) = received(bench, bench.new_stream())
    assert row["body"] == b"event"
    assert row["headers"]["NServiceBus.MessageIntent"] == "Publish"
    assert row["headers"]["NServiceBus.EnclosedMessageTypes"] == f"{PLACED};{EVENT}"
    for topic in (PLACED, EVENT):
        assert leave(topic=topic, endpoint="ours", timeout=TIMEOUT)
    assert web.publish([PLACED, EVENT], b"unheard") == []


# ----- delayed delivery ------------------------------------------------------------------------


def mover(bench: Bench, zone: str | None = None) -> Mover:
    """What moves due messages into our queue, as the source does with delayedDelivery."""
    return Mover(bench.queue, zone=zone, timeout=TIMEOUT)


def test_an_endpoint_moves_and_handles_what_our_sink_delayed(
    bench: Bench, orders: Endpoint
) -> None:
    """When it is due and not before; the header that says where to is gone then."""
    bodies = pa.array([b"due", b"tomorrow"], pa.binary())
    delays = pa.array([0, 86_400_000], pa.int64())

    write(bench, {"body": bodies, "delay": delays})
    before = handled(orders)
    left = orders.move_due()

    assert before == []
    assert left is not None
    assert 86_000 < left <= 86_400
    (incoming,) = handled(orders)
    assert incoming.body == b"due"
    assert FORWARD not in incoming.headers


def test_an_endpoint_forwards_what_our_sink_delayed_in_its_table(
    bench: Bench, orders: Endpoint, web: Endpoint
) -> None:
    """The table of a sender who is not the receiver; both addresses are hostile or ours."""
    frame = {"body": pa.array([b"late"], pa.binary()), "delay": pa.array([0], pa.int64())}

    write(bench, frame, delayedQueue=web.delayed)
    web.move_due()
    here = handled(web)

    assert here == []
    (incoming,) = handled(orders)
    assert incoming.body == b"late"
    assert FORWARD not in incoming.headers


def test_we_receive_what_an_endpoint_delayed_for_us(bench: Bench, web: Endpoint) -> None:
    """In its own table, moved and forwarded by itself."""
    web.defer(bench.printed, b"late", 0, {"Shop.Note": "a/b"})
    web.move_due()
    assert handled(web) == []

    (row,) = received(bench, bench.new_stream())

    assert row["body"] == b"late"
    assert row["headers"]["Shop.Note"] == "a/b"
    assert FORWARD not in row["headers"]


def test_we_move_and_forward_what_waits_in_our_table(
    bench: Bench, orders: Endpoint, web: Endpoint
) -> None:
    """Ours is handed out, the other endpoint's goes to it; neither keeps the header."""
    orders.defer(orders.address, b"ours", 0)
    orders.defer(web.address, b"theirs", 0)
    orders.defer(web.address, b"tomorrow", 86_400_000)

    moved = mover(bench).move_all(bench.desk)

    rows = received(bench, bench.new_stream(), errors=bench.errors)
    assert moved.messages == 2
    assert [row["body"] for row in rows] == [b"ours"]
    assert FORWARD not in rows[0]["headers"]
    (incoming,) = handled(web)
    assert incoming.body == b"theirs"
    assert incoming.headers["NServiceBus.OriginatingEndpoint"] == orders.name
    assert FORWARD not in incoming.headers
    assert bench.dotnet.rows(bench.errors) == []


def test_what_we_cannot_forward_is_returned_to_where_it_belongs(
    bench: Bench, orders: Endpoint, database: Database
) -> None:
    """Its queue was missing; from the error queue the tools bring it there, once it is made."""
    with Endpoint(database, "absent") as absent:
        orders.defer(absent.address, b"late", 0)
        mover(bench).move_all(bench.desk)
        assert received(bench, bench.new_stream(), errors=bench.errors) == []

        absent.install()

        assert orders.return_to_source() == absent.address
        (incoming,) = handled(absent)
        assert incoming.body == b"late"
        assert not [name for name in incoming.headers if name.startswith(FAULTS)]


def test_movers_of_both_kinds_move_every_message_once(bench: Bench, orders: Endpoint) -> None:
    """They work on one table at once; the endpoints' wait for one another, ours passes over."""
    bodies = [b"%d" % at for at in range(350)]
    for body in bodies:
        orders.defer(orders.address, body, 0)
    instances = [orders.instance(), orders.instance()]
    ours = [bench.open("mover 1"), bench.open("mover 2")]

    works: list[Callable[[], Any]] = [
        *(partial(emptied, endpoint) for endpoint in instances),
        *(partial(mover(bench).move_all, connection) for connection in ours),
    ]
    for done in [bench.thread(work) for work in works]:
        done.result(timeout=TIMEOUT)

    assert Counter(bench.bodies()) == Counter(bodies)
    assert orders.move_due() is None


def emptied(endpoint: Endpoint) -> None:
    """Move batch after batch, as an endpoint does, until nothing waits."""
    with endpoint:
        while endpoint.move_due() is not None:
            pass


# ----- tables ----------------------------------------------------------------------------------


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


def test_a_queue_of_the_endpoint_is_left_as_it_is_by_our_installer(
    bench: Bench, web: Endpoint
) -> None:
    """And what waits in it."""
    web.send(web.address, b"waits")
    before = web.database.shape(web.connection, web.address)
    queue = QueueAddress(web.name, bench.dotnet.schema)

    schema.create_queue(bench.desk, queue, timeout=TIMEOUT)

    assert web.database.shape(web.connection, web.address) == before
    assert [incoming.body for incoming in handled(web)] == [b"waits"]


def test_both_installers_may_make_a_queue_at_once(bench: Bench, database: Database) -> None:
    """Ours waits for the other's, and finds its table."""
    queue = QueueAddress("contested", bench.dotnet.schema)
    connection = bench.open("installer")

    with Endpoint(database, queue.table) as endpoint:
        with endpoint.connection.transaction():
            database.create(endpoint.connection, endpoint.address)
            ours = bench.thread(
                partial(schema.create_queue, connection, queue, timeout=TIMEOUT),
            )
            bench.blocked("installer")
        ours.result(timeout=TIMEOUT)

        endpoint.send(endpoint.address)
        assert len(handled(endpoint)) == 1


# ----- at once ---------------------------------------------------------------------------------


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
        connection.run("begin")
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
        connection.run("commit")

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
    staged = staging.stage(bench.session(), chunks, sink="sink", batch=0)
    connection = bench.open("ours")

    with Endpoint(orders.database.impatient(0.3), orders.name) as hasty:
        connection.run("begin")
        login, _ = dispatch_log.lock(connection, "sink")
        dispatch.Dispatch(connection, [staged], bench.sink(), login).copy_chunks()
        hasty.send(hasty.address, b"after")
        assert hasty.peek() >= 2
        during = [incoming.body for incoming in handled(hasty)]
        hasty.purge_expired()
        assert hasty.purge() == 0
        connection.run("commit")

        assert during == [b"before", b"after"]
        assert [incoming.body for incoming in handled(hasty)] == [b"ours"]


def test_nothing_of_ours_waits_for_a_message_in_an_endpoints_hands(
    bench: Bench, orders: Endpoint
) -> None:
    """We receive and browse around it; when its handler fails, the message comes to us."""
    for at in range(3):
        orders.send(orders.address, b"%d" % at)
    stream = bench.new_stream()
    shown: list[bytes] = []
    got: list[bytes] = []

    def slow(_: Incoming) -> None:
        (page,) = browse.pages(bench.desk, bench.queue, 1, 99, narrow=False, timeout=TIMEOUT)
        shown.extend(page["body"].to_pylist())
        got.extend(row["body"] for row in received(bench, stream))
        raise HandlerFailed

    orders.receive(slow)

    assert shown == [b"0", b"1", b"2"]
    assert got == [b"1", b"2"]
    assert [row["body"] for row in received(bench, stream, batch=2)] == [b"0"]


class Contest:
    """
    Who got what, from many threads; it ends when all was got.

    Half of everything is sent before any thread receives, and none receives a second time before
    each has got something.
    """

    def __init__(self, bench: Bench, expected: int, *, failing: set[bytes]) -> None:
        self.bench = bench
        self.expected = expected
        self.failing = failing  # bodies that fail where they are first handled
        self.got: list[tuple[str, bytes]] = []
        self.until = time.monotonic() + 2 * TIMEOUT
        self.start = threading.Barrier(1)
        self.fed = threading.Barrier(1)

    @property
    def open(self) -> bool:
        """Whether something is still to come."""
        return len(self.got) < self.expected and time.monotonic() < self.until

    def serve(self, endpoint: Endpoint, mode: Mode) -> None:
        """Handle messages as an endpoint does, peeking before."""
        mine: list[tuple[str, bytes]] = []

        def handle(incoming: Incoming) -> None:
            if mode is not Mode.NONE and incoming.body in self.failing:
                self.failing.discard(incoming.body)
                raise HandlerFailed
            mine.append((mode.name, incoming.body))

        with endpoint:
            self.start.wait(TIMEOUT)
            fed = False
            while self.open:
                if not endpoint.peek() or not endpoint.receive(handle, mode):
                    time.sleep(0.002)
                self.got += mine  # after the commit
                fed = fed or self._first(mine)
                mine.clear()

    def stream(self, name: str, stream: str, connection: Connection) -> None:
        """Receive batch after batch, as a stream's task and driver do."""
        batch, fed = 0, False
        self.start.wait(TIMEOUT)
        while self.open:
            batch += 1
            task = self.bench.task(stream, batch=batch, messages=15)
            rows = self.bench.receive(task, connection)
            self.bench.ack(stream, batch, connection)
            self.got += [(name, body) for body in rows["body"].to_pylist()]
            fed = fed or self._first(rows)

    def _first(self, got: Sized) -> bool:
        """Wait for the others with what is the first that one got, if it is something."""
        if len(got):
            self.fed.wait(TIMEOUT)
        return len(got) > 0

    def send(self, endpoint: Endpoint, bodies: list[bytes]) -> None:
        """Send one by one, as an endpoint does."""
        with endpoint:
            for at, body in enumerate(bodies):
                if at == len(bodies) // 2:
                    self.start.wait(TIMEOUT)
                endpoint.send(self.bench.printed, body)

    def sink(self, bodies: list[bytes]) -> None:
        """Send in six batches, as our sink does."""
        step = len(bodies) // 6
        for batch in range(6):
            if batch == 3:
                self.start.wait(TIMEOUT)
            mine = bodies[batch * step : (batch + 1) * step]
            write(self.bench, {"body": pa.array(mine, pa.binary())}, batch=batch)


def test_every_message_comes_to_exactly_one_of_endpoints_and_streams(
    bench: Bench, database: Database
) -> None:
    """Three endpoints and two streams compete while two endpoints and our sink send."""
    bodies = [b"%d" % at for at in range(240)]
    contest = Contest(bench, len(bodies), failing=set(bodies[::9]))
    streams = ["stream 1", "stream 2"]
    modes = [(Endpoint(database, bench.queue.table, attempts=99), mode) for mode in Mode]
    web, shop = Endpoint(database, "web", older=True), Endpoint(database, "shop")

    works: list[Callable[[], None]] = [
        *(partial(contest.serve, endpoint, mode) for endpoint, mode in modes),
        *(partial(contest.stream, name, bench.new_stream(), bench.open(name)) for name in streams),
        partial(contest.send, web, bodies[:60]),
        partial(contest.send, shop, bodies[60:120]),
        partial(contest.sink, bodies[120:]),
    ]
    contest.start = threading.Barrier(len(works))
    contest.fed = threading.Barrier(len(modes) + len(streams))
    for done in [bench.thread(work) for work in works]:
        done.result(timeout=3 * TIMEOUT)

    assert Counter(body for _, body in contest.got) == Counter(bodies)
    assert {name for name, _ in contest.got} == {*streams, *(mode.name for mode in Mode)}
    assert bench.seqs() == []
    assert bench.dotnet.rows(bench.errors) == []
