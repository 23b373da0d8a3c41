"""Delayed delivery: the sink stores messages, and movers move what is due, in any time zone."""

from __future__ import annotations

import os
import secrets
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from cli.database import own_database
from recorded_connection import RecordedConnection
from servers import only

from sqlq_spark.errors import BadOption, DelayedQueueNotFound, MissingOption
from sqlq_spark.receive.due import Moved, Mover
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import insert
from sqlq_spark.send.chunk import CHUNK_DELAYS, CHUNK_ROW
from sqlq_spark.wire.address import delayed_of
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

from .conftest import TIMEOUT, Bench, Clock, bodies, create_bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection

HOUR = 3_600_000  # milliseconds
PAST, FUTURE = datetime(1, 1, 1), datetime(2345, 6, 7, 8, 9, 10, 111213)  # noqa: DTZ001 - UTC


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """Give a queue with its table of delayed messages, made by the endpoint."""
    bench.dotnet.create_delayed(bench.delayed_table)
    return bench


def mover(bench: Bench, **raw: str) -> Mover:
    options = bench.source_options(**raw)
    return Mover(options.address, options)


def move(bench: Bench, most: int = 100, **raw: str) -> Moved:
    """Move what is due, once."""
    return mover(bench, **raw).move(bench.connection, most)


def store_due(bench: Bench, messages: int) -> list[bytes]:
    """Let the endpoint delay messages that are due by now, in their order."""
    sent = [b"%d" % at for at in range(messages)]
    for at, body in enumerate(sent):
        bench.dotnet.store(bench.delayed_table, body=body, delay=at - messages - 1)
    return sent


def waiting(bench: Bench) -> list[bytes | None]:
    """The bodies of the delayed messages."""
    return [row.body for row in bench.dotnet.delayed_rows(bench.delayed_table)]


def chunk(*rows: dict[str, Any]) -> pa.Table:
    """Make a chunk. Each row has the given columns, and a body."""
    fields = [*CHUNK_ROW, *CHUNK_DELAYS.values()]
    full = [{"headers": "{}", "body": b"%d" % at} | row for at, row in enumerate(rows)]
    used = [at for at in fields if at.name in CHUNK_ROW.names or any(at.name in r for r in full)]
    return pa.Table.from_pylist(full, schema=pa.schema(used))


def dispatch(bench: Bench, *chunks: pa.Table, **raw: str) -> int:
    """Stage and send, exactly once."""
    staged = send.stage(bench.new_session("stage"), chunks, sink=secrets.token_hex(4), sink_batch=0)
    return send.dispatch(bench.connection, [staged], bench.sink_options(**raw))


def send_now(bench: Bench, *chunks: pa.Table, **raw: str) -> None:
    """Send at once, at least once."""
    insert.send_now(bench.new_session("send"), chunks, bench.sink_options(**raw))


@pytest.mark.parametrize("way", [dispatch, send_now])
def test_a_delayed_row_waits_and_the_others_are_sent(bench: Bench, way: Callable[..., int]) -> None:
    """
    Due times are by the database's clock, and a delayed row is in no queue.

    A time in the past is due now, also one that a datetime cannot hold.
    """
    before, headers = (
        bench.dotnet.clock(),
        dumps({"a": "b", FORWARD_DESTINATION: bench.queue_address}),
    )
    rows: list[dict[str, Any]] = [{"delay": HOUR, "headers": headers}, {}, {"delay": 0}]

    way(bench, chunk(*rows, {"due": FUTURE}, {"due": PAST}))

    after = bench.dotnet.clock()
    assert bench.waiting_bodies() == [b"1"]
    stored = {row.body: row for row in bench.dotnet.delayed_rows(bench.delayed_table)}
    assert stored.keys() == {b"0", b"2", b"3", b"4"}
    due = {body: row.due.astimezone(UTC).replace(tzinfo=None) for body, row in stored.items()}
    rounded = timedelta(milliseconds=4)  # SQL Server's 1/300 s
    assert abs(due[b"3"] - FUTURE) < rounded
    for now in (due[b"2"], due[b"4"], due[b"0"] - timedelta(hours=1)):
        assert before - rounded <= now <= after + rounded
    assert stored[b"0"].headers == headers


def test_each_destination_has_its_own_table(bench: Bench) -> None:
    """It is named after the destination. The option delayedQueue names one table for all."""
    other, common = bench.create_queue("the other"), bench.table_beside("x" * 55 + ".Delayed")
    for table in (delayed_of(other), common):
        bench.dotnet.create_delayed(table)
    printed = bench.connection.printed(other)
    rows = chunk({"delay": 5}, {"delay": 6, "queue": printed}, {"queue": printed})

    dispatch(bench, rows)
    dispatch(bench, rows, delayedQueue=bench.connection.printed(common))

    tables = (bench.delayed_table, delayed_of(other), common)
    stored = [[row.body for row in bench.dotnet.delayed_rows(each)] for each in tables]
    assert stored == [[b"0"], [b"1"], [b"0", b"1"]]
    assert bench.waiting_bodies(other) == [b"2", b"2"]


@pytest.mark.parametrize("ordinary", [False, True])
def test_without_the_table_nothing_of_the_batch_is_sent(bench: Bench, *, ordinary: bool) -> None:
    """The error has the command that makes the table. An ordinary queue does not replace it."""
    address = bench.address("error" if ordinary else "orders.Delayed")
    if not ordinary:
        bench.dotnet.dba.drop(bench.delayed_table)

    with pytest.raises(DelayedQueueNotFound) as caught:
        dispatch(bench, chunk({}, {"delay": 1}), **({"delayedQueue": address} if ordinary else {}))

    said = f"the table {address} for delayed messages of {bench.queue_address} was not found in "
    assert str(caught.value).startswith(said)
    assert "`sqlqueue create QUEUE --delayed`" in str(caught.value)
    assert bench.waiting_bodies() == bench.waiting_bodies(bench.error_queue) == []
    assert bench.dotnet.state_rows("dispatch_log", "sink_batch") == [(None,)]


def test_what_is_due_is_moved_in_the_order_of_due_times(bench: Bench) -> None:
    """A message keeps its id, and NULL becomes an empty body. The rest waits a known time."""
    ids = {at: uuid.uuid4() for at in (1, 2, 3)}
    for at in (2, 3, 1):
        body = None if at == 3 else b"%d" % at
        bench.dotnet.store(bench.delayed_table, f'{{"n":"{at}"}}', body, delay=at - 9, row=ids[at])
    bench.dotnet.store(bench.delayed_table, body=b"later", delay=1000)
    bench.dotnet.store(bench.delayed_table, body=b"much later", delay=2000)

    moved = move(bench)

    assert moved.messages == 3
    assert 900 < (moved.next_due or 0) <= 1000
    rows = bench.dotnet.rows(bench.queue)
    assert [(row.headers, row.body, row.expires) for row in rows] == [
        *(('{"n":"1"}', b"1", None), ('{"n":"2"}', b"2", None), ('{"n":"3"}', b"", None)),
    ]
    if bench.dotnet.keeps_ids:
        assert [row.id for row in rows] == [ids[1], ids[2], ids[3]]
    assert waiting(bench) == [b"later", b"much later"]


@only("postgresql", "times beyond the year 9999")
def test_what_is_due_at_infinity_stops_no_mover(bench: Bench) -> None:
    """The message waits for ever, or is moved at once. No pause is computed from its time."""
    for moment, moved in (("infinity", 0), ("-infinity", 1)):
        bench.dotnet.store(bench.delayed_table, delay=0)
        bench.dotnet.dba.on(bench.delayed_table, f"UPDATE {{queue}} SET Due = '{moment}'")
        assert move(bench) == Moved(moved, None)
        bench.dotnet.dba.empty(bench.delayed_table)


def test_movers_of_both_kinds_at_once_lose_and_double_nothing(bench: Bench) -> None:
    """Two movers of ours and one of an endpoint move small batches at the same time."""
    sent = store_due(bench, 200)

    def ours() -> None:
        connection, own = bench.open_connection("mover"), mover(bench)
        while (step := own.move(connection, 3)).messages or step.next_due is not None:
            pass

    def theirs() -> None:
        dotnet = bench.dotnet.consumer()
        while dotnet.delayed_rows(bench.delayed_table):
            dotnet.move(bench.delayed_table, bench.queue, 3)

    for thread in [bench.run_in_thread(work) for work in (ours, ours, theirs)]:
        thread.result(timeout=TIMEOUT)

    assert sorted(row or b"" for row in bench.waiting_bodies()) == sorted(sent)
    assert waiting(bench) == []


@only("postgresql", "an id that must be unique")
def test_a_known_id_does_not_stop_a_mover(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A message whose id is in the queue already gets a new one, and the others are moved too."""
    taken = bench.dotnet.send(bench.queue, body=b"there")
    bench.dotnet.store(bench.delayed_table, body=b"copy", delay=-2, row=taken)
    bench.dotnet.store(bench.delayed_table, body=b"behind", delay=-1)

    assert move(bench) == Moved(2, None)

    rows = bench.dotnet.rows(bench.queue)
    assert {row.body for row in rows} == {b"there", b"copy", b"behind"}
    assert len({row.id for row in rows}) == 3
    assert "1 delayed messages were moved under new ids" in caplog.text


@only("sqlserver", "a column that holds one code page")
def test_what_the_queue_cannot_hold_stays_and_the_others_move(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A varchar would store question marks. When the column is wide, the rest is moved."""
    dba = bench.dotnet.dba
    dba.on(bench.queue, dba.shapes.wrong["headers_type"].make)
    for at, name in enumerate(("Zoë", "日本", "b")):
        bench.dotnet.store(bench.delayed_table, f'{{"n":"{name}"}}', b"%d" % at, delay=at - 9)

    assert move(bench).messages == 2
    assert bench.waiting_bodies() == [b"0", b"2"]
    assert waiting(bench) == [b"1"]
    assert "1 due messages stay in " in caplog.text

    dba.on(bench.queue, "ALTER TABLE {queue} ALTER COLUMN Headers nvarchar(max) NOT NULL")
    assert move(bench) == Moved(1, None)
    assert bench.dotnet.rows(bench.queue)[-1].headers == '{"n":"日本"}'


class Narrow(RecordedConnection):
    """A connection whose queue cannot hold some of the due messages."""

    def __init__(self, inner: Connection, unfit: int) -> None:
        super().__init__(inner)
        self.__dict__["unfit"] = unfit

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run the statement, and report after a move that some messages did not fit."""
        found = call()
        return [replace(found[0], unfit=self.unfit)] if statement == "move_due" else found


def test_messages_that_stay_are_warned_of_when_their_number_changes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream moves every second, so a warning each time would fill its log."""
    own = mover(bench)
    for unfit in (3, 3, 4, 0, 4):
        own.move(Narrow(bench.connection, unfit))

    said = [text.partition(" due messages stay in ")[0] for text in caplog.messages]
    assert said == [f"{bench.queue_address}: {unfit}" for unfit in (3, 4, 4)]
    assert "`sqlqueue doctor` prints the statement that fixes it" in caplog.messages[0]


def test_a_stream_moves_what_is_due_before_it_peeks(bench: Bench) -> None:
    """With delayedDelivery it moves each message at its time, also before the next peekDelay."""
    clock = Clock()
    bench.dotnet.store(bench.delayed_table, body=b"due", delay=-1)
    bench.dotnet.store(bench.delayed_table, body=b"soon", delay=500)
    assert bench.drain(bench.stream_driver()) == []
    bench.records_statements = True
    loop = bench.stream_driver(clock, delayedDelivery="true", peekDelay="1000s")

    end, tables = bench.run_batch(loop)
    assert bodies(*tables) == [b"due"]
    for _ in range(2):
        assert loop.latest(end) == end
        clock.now += 400
    assert bench.statements.count("move_due") == 1

    bench.dotnet.dba.do("make_due", bench.delayed_table, seconds=500)
    clock.now += 100  # less than peekDelay
    end, tables = bench.run_batch(loop, end)
    assert bodies(*tables) == [b"soon"]


def test_an_available_now_run_receives_all_that_is_due_when_it_starts(bench: Bench) -> None:
    """The run moves nothing that becomes due later, because it would not receive it."""
    sent, clock = store_due(bench, 5), Clock()
    loop = bench.stream_driver(clock, delayedDelivery="true", maxMessagesPerTrigger="2")

    loop.freeze()
    bench.dotnet.store(bench.delayed_table, body=b"too late", delay=-1)
    clock.now += 100

    assert bench.drain(loop) == sent
    assert waiting(bench) == [b"too late"]


def test_the_queue_of_an_instance_needs_no_delayed_table(bench: Bench) -> None:
    """The transport makes one for the endpoint only. If a table is there, it is emptied."""
    names = [bench.queue_address]
    for name in ("orders.web1", "orders.web2"):
        bench.create_queue(name)
        names.append(bench.address(name))
    web2 = delayed_of(bench.table_beside("orders.web2"))
    bench.dotnet.create_delayed(web2)
    bench.dotnet.store(bench.delayed_table, body=b"endpoint", delay=-1)
    bench.dotnet.store(web2, body=b"web2", delay=-1)
    loop = bench.stream_driver(queues=", ".join(names), delayedDelivery="true")

    assert sorted(bench.drain(loop)) == [b"endpoint", b"web2"]


@pytest.fixture
def abroad(server: str) -> Iterator[Bench]:
    """Give a bench on a server in a zone without summer time."""
    with own_database(server) as place:
        name = place.connection.info.dbname
        place.sql(f"ALTER DATABASE {name} SET timezone TO 'Asia/Kolkata'")
        bench = create_bench(place.dotnet.consumer())  # a session that began after that
        bench.dotnet.create_delayed(bench.delayed_table)
        yield bench
        bench.close()


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_what_endpoints_store_we_move_at_the_right_time(
    abroad: Bench, zone: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Endpoints also move at the right time what we store, by delay or by moment.

    The option endpointTimeZone names their zone.
    """
    dotnet = abroad.dotnet if zone is None else abroad.dotnet.consumer(zone)
    monkeypatch.setitem(os.environ, "PGTZ", "America/Phoenix")  # the zone of our own sessions
    raw: dict[str, Any] = {} if zone is None else {"endpointTimeZone": zone}
    now, near = dotnet.clock(), timedelta(minutes=10)
    dotnet.store(abroad.delayed_table, body=b"due", delay=-1)
    dotnet.store(abroad.delayed_table, body=b"waits", delay=600)

    moved = move(abroad, **raw)
    rows: list[dict[str, Any]] = [{"delay": 0}, {"delay": 700_000}]
    send_now(abroad, chunk(*rows, {"due": now - near}, {"due": now + 2 * near}), **raw)

    assert moved.messages == 1
    assert 500 < (moved.next_due or 0) <= 600
    assert dotnet.move(abroad.delayed_table, abroad.queue) == 2
    assert {*abroad.waiting_bodies()} == {b"due", b"0", b"2"}
    assert 500 < (move(abroad, **raw).next_due or 0) <= 600


@only("postgresql", "due times of a session's zone")
def test_an_unseen_zone_is_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An error asks for endpointTimeZone where the client sets the session's zone.

    It also refuses a zone that the server does not know.
    """
    bench.dotnet.store(bench.delayed_table, delay=-1)
    monkeypatch.setitem(os.environ, "PGTZ", "Asia/Tokyo")
    connection = bench.open_connection("tokyo")

    with pytest.raises(MissingOption, match=r"time zone .* this session cannot read the server's"):
        mover(bench).move(connection)
    with pytest.raises(MissingOption, match="option endpointTimeZone is missing"):
        send_now(bench, chunk({"delay": 1}, {}))
    for zone in ("Mars/Olympus", "x'; DROP TABLE orders; -- {state} %s"):
        with pytest.raises(BadOption, match="endpointTimeZone"):
            move(bench, endpointTimeZone=zone)
        with pytest.raises(BadOption, match="endpointTimeZone"):
            send_now(bench, chunk({"delay": 1}), endpointTimeZone=zone)

    assert bench.waiting_bodies() == []
    assert mover(bench, endpointTimeZone="UTC").move(connection).messages == 1
