"""Delayed delivery: stored by the sink, moved when due, beside endpoints and in any zone."""

from __future__ import annotations

import json
import secrets
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark.database import schema
from sqlq_spark.errors import DelayedQueueNotFound, QueueNotFound
from sqlq_spark.receive import due
from sqlq_spark.receive.due import Moved, Mover, pause
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import at_least_once, staging
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.delays import CHUNK_DELAYS
from sqlq_spark.send.messages import CHUNK_ROW
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

from . import satellites
from .conftest import TIMEOUT, Bench, Clock
from .test_install import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .satellites import Delayed, Satellite

HOUR = 3_600_000  # milliseconds
PAST, FUTURE = datetime(2020, 2, 29, 12, 30, 15, 123456), datetime(2345, 6, 7, 8, 9, 10, 111213)  # noqa: DTZ001 - UTC


@dataclass
class Desk:
    """A queue with its table of delayed messages, made by the endpoint."""

    bench: Bench
    satellite: Satellite
    stack: ExitStack

    @property
    def table(self) -> QueueAddress:
        """Where messages wait."""
        return self.of(self.bench.queue)

    @staticmethod
    def of(queue: QueueAddress) -> QueueAddress:
        """The table of a queue."""
        return QueueAddress(f"{queue.table}.Delayed", queue.schema)

    def mover(self, **raw: str) -> Mover:
        """Give a mover with the options of a source."""
        options = self.bench.source(**raw)
        return Mover(options.address, zone=options.endpoint_time_zone, timeout=TIMEOUT)

    def move(self, most: int = 100, **raw: str) -> Moved:
        """Move what is due, once."""
        return self.mover(**raw).move(self.bench.desk, most)

    def waiting(self) -> list[Delayed]:
        """What waits."""
        return self.satellite.rows(self.table)

    def bodies(self) -> list[bytes | None]:
        """The bodies of what waits."""
        return [row.body for row in self.waiting()]

    def in_zone(self, zone: str) -> Satellite:
        """Give an endpoint whose client asks for a zone."""
        return self.stack.enter_context(satellites.at(self.bench.dotnet, zone))


@pytest.fixture
def desk(bench: Bench) -> Iterator[Desk]:
    """Give a queue that can be delayed for."""
    with ExitStack() as stack:
        made = Desk(bench, stack.enter_context(satellites.at(bench.dotnet)), stack)
        made.satellite.create(made.table)
        yield made


def chunk(*rows: dict[str, Any]) -> pa.Table:
    """Make a chunk; each row has what it says, and a body."""
    fields = [*CHUNK_ROW, *CHUNK_DELAYS.values()]
    full = [{"headers": "{}", "body": b"%d" % at} | row for at, row in enumerate(rows)]
    used = [at for at in fields if at.name in CHUNK_ROW.names or any(at.name in r for r in full)]
    return pa.Table.from_pylist(full, schema=pa.schema(used))


def dispatch(desk: Desk, *chunks: pa.Table, **raw: str) -> int:
    """Stage and send, exactly once."""
    staged = staging.stage(desk.bench.session("stage"), chunks, sink=secrets.token_hex(4), batch=0)
    return send.dispatch(desk.bench.desk, [staged], desk.bench.sink(**raw))


def send_now(desk: Desk, *chunks: pa.Table, **raw: str) -> int:
    """Send at once, at least once."""
    return at_least_once.send_now(desk.bench.session("send"), chunks, desk.bench.sink(**raw))


# ----- stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [dispatch, send_now])
def test_a_delayed_row_waits_and_the_others_are_sent(desk: Desk, way: Callable[..., int]) -> None:
    """Due by the database's clock, addressed to its destination; the queue sees nothing of it."""
    before = desk.bench.dotnet.clock()

    way(desk, chunk({"delay": HOUR, "headers": '{"a":"b"}'}, {}, {"delay": 0}, {"due": FUTURE}))

    after = desk.bench.dotnet.clock()
    assert desk.bench.bodies() == [b"1"]
    due_now, due_later, due_then = desk.waiting()
    assert [due_now.body, due_later.body, due_then.body] == [b"2", b"0", b"3"]
    assert before <= utc(due_now) <= after
    assert before <= utc(due_later) - timedelta(hours=1) <= after
    assert utc(due_then) == desk.satellite.kept(FUTURE)
    address = desk.bench.printed
    assert json.loads(due_later.headers) == {"a": "b", FORWARD_DESTINATION: address}
    assert due_then.headers == dumps({FORWARD_DESTINATION: address})
    assert len({row.id for row in desk.waiting()}) == (3 if desk.satellite.keeps_ids else 1)


def utc(row: Delayed) -> datetime:
    """A due time by a server whose sessions are in UTC."""
    return row.due.astimezone(UTC).replace(tzinfo=None)


def test_a_chunk_without_delays_touches_no_delayed_table(desk: Desk) -> None:
    """Also one whose rows have none in their columns."""
    desk.bench.dotnet.dba.drop(desk.table)

    dispatch(desk, chunk({}), chunk({"delay": None, "due": None}))

    assert desk.bench.bodies() == [b"0", b"0"]


def test_a_moment_in_the_past_is_stored_and_due_at_once(desk: Desk) -> None:
    """As the transport does: the next mover takes it."""
    dispatch(desk, chunk({"due": PAST}, {"due": FUTURE}))
    assert desk.bench.bodies() == []
    assert utc(desk.waiting()[0]) == desk.satellite.kept(PAST)

    assert desk.move().messages == 1

    assert desk.bench.bodies() == [b"0"]
    assert desk.bodies() == [b"1"]


def test_each_destination_has_its_own_table(desk: Desk) -> None:
    """Named after it, in its schema, however its name is spelled."""
    other = QueueAddress("the other", desk.bench.dotnet.schema)
    desk.bench.dotnet.create(other)
    desk.satellite.create(desk.of(other))
    printed = desk.bench.desk.printed(other)

    dispatch(desk, chunk({"delay": 5}, {"delay": 5, "queue": printed}, {"queue": printed}))

    assert desk.bodies() == [b"0"]
    (row,) = desk.satellite.rows(desk.of(other))
    assert (row.body, json.loads(row.headers)) == (b"1", {FORWARD_DESTINATION: printed})
    assert [row.body for row in desk.bench.dotnet.rows(other)] == [b"2"]


def test_one_table_can_take_all(desk: Desk) -> None:
    """The option delayedQueue, as a sender with a queue of its own has it; of any length."""
    table = QueueAddress("x" * 55 + ".Delayed", desk.bench.dotnet.schema)
    desk.satellite.create(table)
    error = desk.bench.desk.printed(desk.bench.errors)

    dispatch(
        desk,
        chunk({"delay": 1}, {"delay": 2, "queue": error}),
        delayedQueue=desk.bench.desk.printed(table),
    )

    assert desk.bodies() == []
    destinations = [json.loads(row.headers) for row in desk.satellite.rows(table)]
    assert destinations == [
        {FORWARD_DESTINATION: address} for address in (desk.bench.printed, error)
    ]


@pytest.mark.parametrize("ordinary", [False, True])
def test_without_the_table_nothing_of_the_batch_is_sent(desk: Desk, *, ordinary: bool) -> None:
    """It is told with the command that makes it; an ordinary queue is no such table."""
    raw = {}
    if ordinary:
        raw = {"delayedQueue": desk.bench.desk.printed(desk.bench.errors)}
        name = "error"
    else:
        desk.bench.dotnet.dba.drop(desk.table)
        name = "orders.Delayed"

    with pytest.raises(DelayedQueueNotFound) as caught:
        dispatch(desk, chunk({}, {"delay": 1}), **raw)

    address = desk.bench.address(name)
    assert str(caught.value) == (
        f"the table {address} for delayed messages of {desk.bench.printed} was not found in "
        f"{desk.bench.desk.server}. Create it with `sqlqueue create QUEUE --delayed`, "
        "or grant this login the rights that `sqlqueue script QUEUE --delayed` prints. To send, "
        "you can also name another table in the option delayedQueue."
    )
    assert desk.bench.bodies() == []
    assert desk.bench.dotnet.rows(desk.bench.errors) == []
    assert desk.bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]


def test_a_hostile_name_waits_and_is_moved(desk: Desk) -> None:
    """Its tables are made by us, and an endpoint finds nothing to do."""
    connection = desk.bench.desk
    for name in HOSTILE:
        queue = QueueAddress(name, desk.bench.dotnet.schema)
        schema.create_queue(connection, queue, timeout=TIMEOUT)
        schema.create_delayed(connection, queue, timeout=TIMEOUT)
        desk.satellite.create(desk.of(queue))
        printed = connection.printed(queue)

        send_now(desk, chunk({"due": PAST, "queue": printed}))
        moved = Mover(queue, zone=None, timeout=TIMEOUT).move(connection)

        assert moved == Moved(1, None)
        (row,) = desk.bench.dotnet.rows(queue)
        assert json.loads(row.headers or "") == {FORWARD_DESTINATION: printed}


def test_our_table_is_the_endpoints_table(desk: Desk) -> None:
    """Column for column, with the index on due; also where its name has no room for the suffix."""
    dotnet, dba = desk.bench.dotnet, desk.bench.dotnet.dba
    found = {}
    for table in ("ours", "x" * 55):
        queue = QueueAddress(table, dotnet.schema)
        for _ in range(2):
            schema.create_delayed(desk.bench.desk, queue, timeout=TIMEOUT)
        ours = desk.of(queue)
        found[table] = dotnet.catalog(ours)
        assert [column for _, column in dba.indexes(ours)].count("due") == 1

    theirs = dotnet.catalog(desk.table)
    assert theirs
    assert found == {"ours": theirs, "x" * 55: theirs}
    name = dba.shapes.due_index.format(table="ours.Delayed")
    assert (name, "due") in dba.indexes(QueueAddress("ours.Delayed", dotnet.schema))


# ----- moved -----------------------------------------------------------------------------------


def test_what_is_due_is_moved_in_the_order_of_due_times(desk: Desk) -> None:
    """Under its id, without expiry; the rest waits, and it is told for how long."""
    ids = {at: uuid.uuid4() for at in (1, 2, 3)}
    for at in (2, 3, 1):
        desk.satellite.store(desk.table, f'{{"n":"{at}"}}', b"%d" % at, delay=at - 9, row=ids[at])
    desk.satellite.store(desk.table, body=b"later", delay=1000)
    desk.satellite.store(desk.table, body=b"much later", delay=2000)

    moved = desk.move()

    assert moved.messages == 3
    assert moved.next_due is not None
    assert 900 < moved.next_due <= 1000
    rows = desk.bench.dotnet.rows(desk.bench.queue)
    assert [row.body for row in rows] == [b"1", b"2", b"3"]
    kept = [row.id for row in rows] == [ids[1], ids[2], ids[3]]
    assert kept == desk.satellite.keeps_ids
    assert [row.headers for row in rows] == [f'{{"n":"{at}"}}' for at in (1, 2, 3)]
    assert [row.expires for row in rows] == [None] * 3
    assert desk.bodies() == [b"later", b"much later"]


def test_a_batch_is_bounded_and_all_is_moved_in_several(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each; a bound on all of them is kept."""
    for at in range(7):
        desk.satellite.store(desk.table, body=b"%d" % at, delay=at - 20)

    first = desk.move(2)
    assert first.messages == 2
    assert (first.next_due or 0) < 0
    monkeypatch.setattr(due, "BATCH", 2)
    desk.bench.watched = True
    bounded = desk.mover().move_all(desk.bench.open("bounded"), 3)
    rest = desk.mover().move_all(desk.bench.open("rest"))

    assert (bounded.messages, rest) == (3, Moved(2, None))
    assert desk.bench.said.count("commit") == 2 + 2
    assert desk.bench.bodies() == [b"%d" % at for at in range(7)]


def test_a_null_body_is_moved_as_empty(desk: Desk) -> None:
    """An endpoint would fail for ever on a null one."""
    desk.satellite.store(desk.table, body=None, delay=-1)

    desk.move()

    assert desk.bench.bodies() == [b""]


@only("postgresql", "times beyond the year 9999")
@pytest.mark.parametrize(("due", "moved"), [("infinity", 0), ("-infinity", 1)])
def test_what_is_due_at_infinity_stops_no_mover(desk: Desk, due: str, moved: int) -> None:
    """It waits for ever, or not at all; no pause is reckoned by it."""
    desk.satellite.store(desk.table, delay=0)
    desk.bench.dotnet.dba.on(desk.table, f"UPDATE {{queue}} SET Due = '{due}'")

    assert desk.move() == Moved(moved, None)


def test_rows_that_another_mover_holds_are_passed_over(desk: Desk) -> None:
    """Without waiting; they come when it has given them up."""
    for body in (b"held", b"free"):
        desk.satellite.store(desk.table, body=body, delay=-1)
    other = desk.in_zone("UTC")

    with other.holding(desk.table, [b"held"]):
        moved = desk.move()
        assert moved.messages == 1
        if desk.bench.dotnet.dialect == "postgresql":
            assert (moved.next_due or 0) < 0
        else:  # READPAST
            assert moved.next_due is None
        assert desk.bench.bodies() == [b"free"]

    assert desk.move().messages == 1
    assert desk.bench.bodies() == [b"free", b"held"]


def test_movers_of_both_kinds_at_once_lose_and_double_nothing(desk: Desk) -> None:
    """Two of ours and an endpoint's, in small batches."""
    bodies = [b"%d" % at for at in range(200)]
    for body in bodies:
        desk.satellite.store(desk.table, body=body, delay=-1)
    dotnet = desk.in_zone("UTC")

    def ours() -> int:
        connection, mover, moved = desk.bench.open("mover"), desk.mover(), 0
        while (step := mover.move(connection, 3)).messages or step.next_due is not None:
            moved += step.messages
        return moved

    def theirs() -> int:
        moved = 0
        while dotnet.rows(desk.table):
            moved += dotnet.move(desk.table, desk.bench.queue, 3)
        return moved

    threads = [desk.bench.thread(work) for work in (ours, ours, theirs)]
    moved = [thread.result(timeout=TIMEOUT) for thread in threads]

    assert sum(moved) == 200
    assert sorted(row or b"" for row in desk.bench.bodies()) == sorted(bodies)
    assert desk.bodies() == []


@only("postgresql", "an id that must be unique")
def test_an_id_that_is_in_the_queue_does_not_stop_the_mover(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message gets a new one, and those behind it come as well."""
    taken = desk.bench.dotnet.send(desk.bench.queue, body=b"there")
    desk.satellite.store(desk.table, body=b"copy", delay=-2, row=taken)
    desk.satellite.store(desk.table, body=b"behind", delay=-1)

    assert desk.move() == Moved(2, None)

    rows = desk.bench.dotnet.rows(desk.bench.queue)
    assert {row.body for row in rows} == {b"there", b"copy", b"behind"}
    assert len({row.id for row in rows}) == 3
    assert "1 delayed messages were moved under new ids" in caplog.text


def test_absent_tables_are_told_apart(desk: Desk) -> None:
    """The delayed one by the command that makes it, the queue by its own."""
    desk.bench.dotnet.dba.drop(desk.bench.queue)
    with pytest.raises(QueueNotFound) as caught:
        desk.move()
    assert caught.value.args[0] == desk.bench.printed

    desk.bench.dotnet.dba.drop(desk.table)
    for another in (True, False):
        with pytest.raises(DelayedQueueNotFound, match="`sqlqueue create QUEUE --delayed`"):
            desk.move()
        if another:
            desk.bench.dotnet.dba.make_another(desk.table)


def test_pauses_double_up_to_a_minute_but_not_beyond_the_next_due_time() -> None:
    """And begin anew after something was moved; what others hold is no reason for haste."""
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


def test_a_stream_moves_nothing_unless_asked_to(desk: Desk) -> None:
    """A satellite of the queue's endpoint may be at work."""
    desk.satellite.store(desk.table, delay=-1)

    assert desk.bench.drain(desk.bench.loop()) == []


def test_a_stream_moves_what_is_due_before_it_peeks(desk: Desk) -> None:
    """What becomes due later comes at its time, though the queue was left alone until then."""
    clock = Clock()
    desk.satellite.store(desk.table, body=b"due", delay=-1)
    desk.satellite.store(desk.table, body=b"soon", delay=500)
    desk.bench.watched = True
    loop = desk.bench.loop(clock, delayedDelivery="true", peekDelay="1000s")

    end, tables = desk.bench.batch(loop)
    assert [table["body"].to_pylist() for table in tables] == [[b"due"]]
    turns = desk.bench.said.count("move_due")
    assert loop.latest(end) == end
    clock.now += 400
    assert loop.latest(end) == end
    assert desk.bench.said.count("move_due") == turns == 1

    desk.bench.dotnet.dba.make_due(desk.table, 500)
    clock.now += 100
    end, tables = desk.bench.batch(loop, end)
    assert [table["body"].to_pylist() for table in tables] == [[b"soon"]]


def test_a_turn_is_bounded_by_the_micro_batch(desk: Desk) -> None:
    """And the next one follows at once while more is due."""
    for at in range(5):
        desk.satellite.store(desk.table, body=b"%d" % at, delay=at - 10)
    loop = desk.bench.loop(delayedDelivery="true", maxMessagesPerTrigger="2")

    end = loop.latest(INITIAL)
    assert len(desk.bodies()) == 3
    (task,) = loop.tasks(end)
    assert desk.bench.receive(task)["body"].to_pylist() == [b"0", b"1"]
    assert desk.bench.drain(loop, end) == [b"2", b"3", b"4"]


def test_an_available_now_run_receives_all_that_is_due_when_it_starts(desk: Desk) -> None:
    """And moves nothing after that, which it would not receive."""
    for at in range(5):
        desk.satellite.store(desk.table, body=b"%d" % at, delay=at - 10)
    clock = Clock()
    loop = desk.bench.loop(clock, delayedDelivery="true", maxMessagesPerTrigger="2")

    loop.freeze()
    desk.satellite.store(desk.table, body=b"too late", delay=-1)
    clock.now += 100

    assert desk.bench.drain(loop) == [b"0", b"1", b"2", b"3", b"4"]
    assert desk.bodies() == [b"too late"]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_queue_of_an_instance_needs_no_delayed_table(desk: Desk, *, frozen: bool) -> None:
    """The transport makes one for the endpoint; a table that is there is moved all the same."""
    bench, queue = desk.bench, desk.bench.queue
    instances = [replace(queue, table=f"orders.{name}") for name in ("web1", "web2")]
    for each in instances:
        bench.dotnet.create(each)
    desk.satellite.create(desk.of(instances[1]))
    desk.satellite.store(desk.of(queue), body=b"endpoint", delay=-1)
    desk.satellite.store(desk.of(instances[1]), body=b"web2", delay=-1)
    names = ", ".join(bench.desk.printed(each) for each in (queue, *instances))
    loop = bench.loop(queues=names, delayedDelivery="true")
    if frozen:
        loop.freeze()

    assert sorted(bench.drain(loop)) == [b"endpoint", b"web2"]


def test_a_stream_tells_that_there_is_no_delayed_table(desk: Desk) -> None:
    """It was asked to move."""
    desk.bench.dotnet.dba.drop(desk.table)

    with pytest.raises(DelayedQueueNotFound):
        desk.bench.loop(delayedDelivery="true").latest(INITIAL)
