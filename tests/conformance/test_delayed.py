"""Delayed delivery: stored by the sink, moved when due, beside endpoints and in any zone."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from conftest import Place
from psycopg import sql
from servers import only

from sqlq_spark.database import schema
from sqlq_spark.errors import BadOption, DelayedQueueNotFound, MissingOption
from sqlq_spark.send import delayed as due
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import insert
from sqlq_spark.send.delayed import Moved, Mover, pause
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, Sender
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

from .conftest import TIMEOUT, Bench, Clock, bodies
from .transport import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .transport import Delayed

HOUR = 3_600_000  # milliseconds
PAST, FUTURE = datetime(2020, 2, 29, 12, 30, 15, 123456), datetime(2345, 6, 7, 8, 9, 10, 111213)  # noqa: DTZ001 - UTC


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Give a queue with its table of delayed messages, made by the endpoint."""
    bench.dotnet.create_delayed(bench.delayed)
    return bench


def mover(bench: Bench, **raw: str) -> Mover:
    options = bench.source(**raw)
    return Mover(options.address, options)


def move(bench: Bench, most: int = 100, **raw: str) -> Moved:
    """Move what is due, once."""
    return mover(bench, **raw).move(bench.desk, most)


def store_due(bench: Bench, messages: int) -> list[bytes]:
    """Let the endpoint delay messages that are due by now, in their order."""
    sent = [b"%d" % at for at in range(messages)]
    for at, body in enumerate(sent):
        bench.dotnet.store(bench.delayed, body=body, delay=at - messages - 1)
    return sent


def waiting(bench: Bench) -> list[bytes | None]:
    """The bodies of what waits to be due."""
    return [row.body for row in bench.dotnet.delayed_rows(bench.delayed)]


def forward(address: str, **headers: str) -> str:
    """Return the headers of a delayed row, as a task writes them."""
    return dumps({**headers, FORWARD_DESTINATION: address})


def chunk(*rows: dict[str, Any]) -> pa.Table:
    """Make a chunk; each row has what it says, and a body."""
    fields = [*CHUNK_ROW, *CHUNK_DELAYS.values()]
    full = [{"headers": "{}", "body": b"%d" % at} | row for at, row in enumerate(rows)]
    used = [at for at in fields if at.name in CHUNK_ROW.names or any(at.name in r for r in full)]
    return pa.Table.from_pylist(full, schema=pa.schema(used))


def dispatch(bench: Bench, *chunks: pa.Table, **raw: str) -> int:
    """Stage and send, exactly once."""
    staged = send.stage(bench.session("stage"), chunks, sink=secrets.token_hex(4), batch=0)
    return send.dispatch(bench.desk, [staged], bench.sink(**raw))


def send_now(bench: Bench, *chunks: pa.Table, **raw: str) -> None:
    """Send at once, at least once."""
    insert.send_now(bench.session("send"), chunks, bench.sink(**raw))


# ----- stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [dispatch, send_now])
def test_a_delayed_row_waits_and_the_others_are_sent(bench: Bench, way: Callable[..., int]) -> None:
    """Due by the database's clock, addressed to its destination; the queue sees nothing of it."""
    before, address = bench.dotnet.clock(), bench.printed
    rows: tuple[dict[str, Any], ...] = (
        {"delay": HOUR, "headers": forward(address, a="b")},
        {},
        {"delay": 0},
        {"due": FUTURE},
    )

    way(bench, chunk(*rows, {"due": PAST}))

    after = bench.dotnet.clock()
    assert bench.bodies() == [b"1"]
    assert waiting(bench) == [b"4", b"2", b"0", b"3"]
    due_past, due_now, due_later, due_then = bench.dotnet.delayed_rows(bench.delayed)
    assert utc(due_past) == kept(bench, PAST)
    assert before <= utc(due_now) <= after
    assert before <= utc(due_later) - timedelta(hours=1) <= after
    assert utc(due_then) == kept(bench, FUTURE)
    assert due_later.headers == forward(address, a="b")
    assert len({row.id for row in bench.dotnet.delayed_rows(bench.delayed)}) == (
        4 if keeps_ids(bench) else 1
    )


def keeps_ids(bench: Bench) -> bool:
    """Whether a moved message has the id that it was stored under."""
    return bench.dotnet.dialect == "postgresql"


def kept(bench: Bench, due: datetime) -> datetime:
    """A time in UTC as the column holds it; SQL Server's 1/300 s show as milliseconds."""
    if bench.dotnet.dialect == "postgresql":
        return due
    epoch = datetime(1900, 1, 1)  # noqa: DTZ001 - of the type datetime, in no zone
    seconds, rest = divmod(round((due - epoch) / timedelta(seconds=1) * 300), 300)
    return epoch + timedelta(seconds=seconds, milliseconds=round(rest * 10 / 3))


def utc(row: Delayed) -> datetime:
    """A due time by a server whose sessions are in UTC."""
    return row.due.astimezone(UTC).replace(tzinfo=None)


def test_each_destination_has_its_own_table(bench: Bench) -> None:
    """Named after it, in its schema; the option delayedQueue names one table for all."""
    other = QueueAddress("the other", bench.dotnet.schema)
    common = QueueAddress("x" * 55 + ".Delayed", bench.dotnet.schema)
    bench.dotnet.create(other)
    for table in (schema.delayed_of(other), common):
        bench.dotnet.create_delayed(table)
    printed = bench.desk.printed(other)

    batch = pa.record_batch(
        {
            "body": [b"0", b"1", b"2"],
            "queue": [None, printed, printed],
            "delay": pa.array([5, 6, None], pa.int64()),
        }
    )
    options, address = bench.sink(), bench.desk.canonical
    sender = Sender(options=options, partition=0, own_address=address, rows_choose=True)
    rows = sender.messages(batch, 0)
    dispatch(bench, rows)
    dispatch(bench, rows, delayedQueue=bench.desk.printed(common))

    assert waiting(bench) == [b"0"]
    (row,) = bench.dotnet.delayed_rows(schema.delayed_of(other))
    assert (row.body, json.loads(row.headers)[FORWARD_DESTINATION]) == (b"1", printed)
    assert bench.bodies(other) == [b"2", b"2"]
    both = [json.loads(row.headers) for row in bench.dotnet.delayed_rows(common)]
    assert [each[FORWARD_DESTINATION] for each in both] == [bench.printed, printed]


@pytest.mark.parametrize("ordinary", [False, True])
def test_without_the_table_nothing_of_the_batch_is_sent(bench: Bench, *, ordinary: bool) -> None:
    """The error has the command that makes it; an ordinary queue is no such table."""
    address = bench.address("error" if ordinary else "orders.Delayed")
    if not ordinary:
        bench.dotnet.dba.drop(bench.delayed)

    with pytest.raises(DelayedQueueNotFound) as caught:
        dispatch(bench, chunk({}, {"delay": 1}), **({"delayedQueue": address} if ordinary else {}))

    assert str(caught.value) == (
        f"the table {address} for delayed messages of {bench.printed} was not found in "
        f"{bench.desk.server}. Create it with `sqlqueue create QUEUE --delayed`, "
        "or grant this login the rights that `sqlqueue script QUEUE --delayed` prints. To send, "
        "you can also name another table in the option delayedQueue."
    )
    assert bench.bodies() == bench.bodies(bench.errors) == []
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]


def test_our_table_is_the_endpoints_table(bench: Bench) -> None:
    """Column for column, with the index on due; also where its name has no room for the suffix."""
    dotnet, dba = bench.dotnet, bench.dotnet.dba
    theirs = dotnet.catalog(bench.delayed)
    assert theirs
    for table in ("ours", "x" * 55):
        queue = QueueAddress(table, dotnet.schema)
        for _ in range(2):
            schema.create_delayed(bench.desk, queue)
        ours = schema.delayed_of(queue)

        assert dotnet.catalog(ours) == theirs
        assert [column for _, column in dba.indexes(ours)].count("due") == 1

    name = dba.shapes.due_index.format(table="ours.Delayed")
    assert (name, "due") in dba.indexes(QueueAddress("ours.Delayed", dotnet.schema))


# ----- moved -----------------------------------------------------------------------------------


def test_what_is_due_is_moved_in_the_order_of_due_times(bench: Bench) -> None:
    """Under its id, without expiry; the rest waits, and the result says for how long."""
    ids = {at: uuid.uuid4() for at in (1, 2, 3)}
    for at in (2, 3, 1):
        bench.dotnet.store(bench.delayed, f'{{"n":"{at}"}}', b"%d" % at, delay=at - 9, row=ids[at])
    bench.dotnet.store(bench.delayed, body=b"later", delay=1000)
    bench.dotnet.store(bench.delayed, body=b"much later", delay=2000)

    moved = move(bench)

    assert moved.messages == 3
    assert moved.next_due is not None
    assert 900 < moved.next_due <= 1000
    rows = bench.dotnet.rows(bench.queue)
    assert [row.body for row in rows] == [b"1", b"2", b"3"]
    kept = [row.id for row in rows] == [ids[1], ids[2], ids[3]]
    assert kept == keeps_ids(bench)
    assert [row.headers for row in rows] == [f'{{"n":"{at}"}}' for at in (1, 2, 3)]
    assert [row.expires for row in rows] == [None] * 3
    assert waiting(bench) == [b"later", b"much later"]


def test_a_batch_is_bounded_and_all_is_moved_in_several(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each; a bound on all of them is kept."""
    sent = store_due(bench, 7)

    first = move(bench, 2)
    assert first.messages == 2
    assert (first.next_due or 0) < 0
    monkeypatch.setattr(due, "DUE_BATCH", 2)
    bench.watched = True
    bounded = mover(bench).move_all(bench.open("bounded"), 3)
    rest = mover(bench).move_all(bench.open("rest"))

    assert (bounded.messages, rest) == (3, Moved(2, None))
    assert bench.said.count("commit") == 2 + 2
    assert bench.bodies() == sent


def test_a_null_body_is_moved_as_empty(bench: Bench) -> None:
    """An endpoint would fail for ever on a null one."""
    bench.dotnet.store(bench.delayed, body=None, delay=-1)

    move(bench)

    assert bench.bodies() == [b""]


@only("postgresql", "times beyond the year 9999")
@pytest.mark.parametrize(("due", "moved"), [("infinity", 0), ("-infinity", 1)])
def test_what_is_due_at_infinity_stops_no_mover(bench: Bench, due: str, moved: int) -> None:
    """It waits for ever, or not at all; no pause is reckoned by it."""
    bench.dotnet.store(bench.delayed, delay=0)
    bench.dotnet.dba.on(bench.delayed, f"UPDATE {{queue}} SET Due = '{due}'")

    assert move(bench) == Moved(moved, None)


def test_movers_of_both_kinds_at_once_lose_and_double_nothing(bench: Bench) -> None:
    """Two of ours and an endpoint's, in small batches."""
    sent = store_due(bench, 200)

    def ours() -> int:
        connection, own, moved = bench.open("mover"), mover(bench), 0
        while (step := own.move(connection, 3)).messages or step.next_due is not None:
            moved += step.messages
        return moved

    def theirs() -> int:
        dotnet, moved = bench.dotnet.consumer(), 0
        while dotnet.delayed_rows(bench.delayed):
            moved += dotnet.move(bench.delayed, bench.queue, 3)
        return moved

    threads = [bench.thread(work) for work in (ours, ours, theirs)]
    moved = [thread.result(timeout=TIMEOUT) for thread in threads]

    assert sum(moved) == 200
    assert sorted(row or b"" for row in bench.bodies()) == sorted(sent)
    assert waiting(bench) == []


@only("postgresql", "an id that must be unique")
def test_an_id_that_is_in_the_queue_does_not_stop_the_mover(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message gets a new one, and those behind it come as well."""
    taken = bench.dotnet.send(bench.queue, body=b"there")
    bench.dotnet.store(bench.delayed, body=b"copy", delay=-2, row=taken)
    bench.dotnet.store(bench.delayed, body=b"behind", delay=-1)

    assert move(bench) == Moved(2, None)

    rows = bench.dotnet.rows(bench.queue)
    assert {row.body for row in rows} == {b"there", b"copy", b"behind"}
    assert len({row.id for row in rows}) == 3
    assert "1 delayed messages were moved under new ids" in caplog.text


def test_pauses_double_up_to_a_minute_but_not_beyond_the_next_due_time() -> None:
    """And begin again after something was moved; what others hold is no reason for haste."""
    slept, pauses = 0.0, []
    for _ in range(8):
        slept = pause(slept, Moved(0, None))
        pauses.append(slept)

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pause(60, Moved(3, None)) == 1
    assert pause(8, Moved(0, 2.5)) == 2.5
    assert pause(8, Moved(0, 100)) == 16
    assert pause(8, Moved(0, -5)) == 16


# ----- beside a stream -------------------------------------------------------------------------


def test_a_stream_moves_what_is_due_before_it_peeks(bench: Bench) -> None:
    """Where it is asked to; what becomes due later comes at its time."""
    clock = Clock()
    bench.dotnet.store(bench.delayed, body=b"due", delay=-1)
    bench.dotnet.store(bench.delayed, body=b"soon", delay=500)
    assert bench.drain(bench.loop()) == []
    bench.watched = True
    loop = bench.loop(clock, delayedDelivery="true", peekDelay="1000s")

    end, tables = bench.batch(loop)
    assert bodies(*tables) == [b"due"]
    turns = bench.said.count("move_due")
    assert loop.latest(end) == end
    clock.now += 400
    assert loop.latest(end) == end
    assert bench.said.count("move_due") == turns == 1

    bench.dotnet.dba.make_due(bench.delayed, 500)
    clock.now += 100  # less than peekDelay
    end, tables = bench.batch(loop, end)
    assert bodies(*tables) == [b"soon"]


def test_an_available_now_run_receives_all_that_is_due_when_it_starts(bench: Bench) -> None:
    """And moves nothing after that, which it would not receive."""
    sent, clock = store_due(bench, 5), Clock()
    loop = bench.loop(clock, delayedDelivery="true", maxMessagesPerTrigger="2")

    loop.freeze()
    bench.dotnet.store(bench.delayed, body=b"too late", delay=-1)
    clock.now += 100

    assert bench.drain(loop) == sent
    assert waiting(bench) == [b"too late"]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_queue_of_an_instance_needs_no_delayed_table(bench: Bench, *, frozen: bool) -> None:
    """The transport makes one for the endpoint; a table that is there is moved all the same."""
    queue = bench.queue
    instances = [replace(queue, table=f"orders.{name}") for name in ("web1", "web2")]
    for each in instances:
        bench.dotnet.create(each)
    bench.dotnet.create_delayed(schema.delayed_of(instances[1]))
    bench.dotnet.store(bench.delayed, body=b"endpoint", delay=-1)
    bench.dotnet.store(schema.delayed_of(instances[1]), body=b"web2", delay=-1)
    names = ", ".join(bench.desk.printed(each) for each in (queue, *instances))
    loop = bench.loop(queues=names, delayedDelivery="true")
    if frozen:
        loop.freeze()

    assert sorted(bench.drain(loop)) == [b"endpoint", b"web2"]


# ----- zones: on PostgreSQL a due time is the server's UTC clock, taken for the session's zone ----

ZONES = ["Asia/Kolkata", "America/Phoenix"]  # without summer time


@pytest.fixture(scope="module")
def zoned(server: str) -> Iterator[str]:
    """Give a database whose zone can be changed."""
    name = f"zone_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield server.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=ZONES)
def abroad(request: pytest.FixtureRequest, zoned: str) -> Iterator[Bench]:
    """Give a bench on a server in a zone; the endpoint is a plain session of it."""
    with psycopg.connect(zoned, autocommit=True) as connection:
        text = sql.SQL("ALTER DATABASE {} SET timezone TO {}")
        name = sql.Identifier(zoned.rpartition("/")[2])
        connection.execute(text.format(name, sql.Literal(request.param)))
    with psycopg.connect(zoned, autocommit=True) as connection:
        place = Place(url=zoned, schema="public", state="sqlqueue", connection=connection)
        queue = QueueAddress(f"orders {secrets.token_hex(4)}", "public")
        errors = replace(queue, table="error")
        bench = Bench(PostgreSQL.at(place), queue, errors, name=secrets.token_hex(4))
        bench.dotnet.create(queue)
        bench.dotnet.create_delayed(bench.delayed)
        yield bench
        bench.close()


CLIENTS = ["UTC", "Asia/Tokyo"]


def ask_for(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Let our own sessions ask for a zone from now on."""
    monkeypatch.setitem(os.environ, "PGTZ", zone)


@pytest.mark.parametrize("client", CLIENTS)
def test_what_the_endpoint_stores_we_move_at_the_right_time(
    abroad: Bench, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever zone our client is in: not an hour too early, nor too late."""
    ask_for(monkeypatch, client)
    abroad.dotnet.store(abroad.delayed, body=b"due", delay=-1)
    abroad.dotnet.store(abroad.delayed, body=b"waits", delay=600)

    moved = move(abroad)

    assert moved.messages == 1
    assert 500 < (moved.next_due or 0) <= 600
    assert abroad.bodies() == [b"due"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_we_store_the_endpoint_moves_at_the_right_time(
    abroad: Bench, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By delays and by moments."""
    ask_for(monkeypatch, client)
    now = abroad.dotnet.clock()
    near = timedelta(minutes=10)

    send_now(
        abroad,
        chunk({"delay": 0}, {"delay": 600_000}, {"due": now - near}, {"due": now + near}),
    )

    assert abroad.dotnet.move(abroad.delayed, abroad.queue) == 2
    assert {*abroad.bodies()} == {b"0", b"2"}
    assert 500 < (move(abroad).next_due or 0) <= 600


def test_endpoints_in_a_zone_of_their_own_are_followed_by_the_option(abroad: Bench) -> None:
    """The option endpointTimeZone, of the sink and of the source."""
    zone = "Asia/Tokyo"
    dotnet = abroad.dotnet.consumer(zone)
    dotnet.store(abroad.delayed, body=b"due", delay=-1)
    dotnet.store(abroad.delayed, body=b"waits", delay=600)

    assert move(abroad, endpointTimeZone=zone).messages == 1
    send_now(abroad, chunk({"delay": 0}, {"delay": 700_000}), endpointTimeZone=zone)

    assert dotnet.move(abroad.delayed, abroad.queue) == 1
    assert abroad.bodies() == [b"due", b"0"]
    assert 500 < (move(abroad, endpointTimeZone=zone).next_due or 0) <= 600


@only("postgresql", "due times of a session's zone")
def test_a_zone_that_cannot_be_seen_is_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own, where this session has one of its client; nothing is moved or sent."""
    bench.dotnet.store(bench.delayed, delay=-1)
    ask_for(monkeypatch, "Asia/Tokyo")
    connection = bench.open("tokyo")

    with pytest.raises(MissingOption) as caught:
        mover(bench).move(connection)
    with pytest.raises(MissingOption, match="option endpointTimeZone is missing"):
        send_now(bench, chunk({"delay": 1}, {}))

    assert str(caught.value) == (
        "option endpointTimeZone is missing: give the time zone in which the .NET endpoints' "
        "sessions work, as Europe/Berlin; this session cannot read the server's own zone, because "
        "PGTZ or the options of the url set another one"
    )
    assert bench.bodies() == []
    assert mover(bench, endpointTimeZone="UTC").move(connection).messages == 1


@only("postgresql", "due times of a session's zone")
@pytest.mark.parametrize("zone", ["Mars/Olympus", "x'; DROP TABLE orders; --", "{state}", "%s"])
def test_a_zone_that_the_server_does_not_know_is_refused(bench: Bench, zone: str) -> None:
    """Before anything is moved."""
    with pytest.raises(BadOption) as caught:
        move(bench, endpointTimeZone=zone)

    assert (caught.value.option, caught.value.found) == ("endpointTimeZone", zone)
    with pytest.raises(BadOption):
        send_now(bench, chunk({"delay": 1}), endpointTimeZone=zone)
