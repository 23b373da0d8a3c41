"""Delayed delivery: stored by the sink, moved when due, beside endpoints and in any zone."""

from __future__ import annotations

import json
import secrets
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark.database import schema
from sqlq_spark.errors import DelayedQueueNotFound
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import delayed as due
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import insert
from sqlq_spark.send.delayed import Moved, Mover, pause
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, Sender
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

from .conftest import TIMEOUT, Bench, Clock, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from .transport import Delayed, DotNet

HOUR = 3_600_000  # milliseconds
PAST, FUTURE = datetime(2020, 2, 29, 12, 30, 15, 123456), datetime(2345, 6, 7, 8, 9, 10, 111213)  # noqa: DTZ001 - UTC


@dataclass
class Desk:
    """A queue with its table of delayed messages, made by the endpoint."""

    bench: Bench

    @property
    def dotnet(self) -> DotNet:
        """The endpoint."""
        return self.bench.dotnet

    @property
    def table(self) -> QueueAddress:
        """Where messages wait."""
        return schema.delayed_of(self.bench.queue)

    def mover(self, **raw: str) -> Mover:
        """Give a mover with the options of a source."""
        options = self.bench.source(**raw)
        return Mover(options.address, options)

    def move(self, most: int = 100, **raw: str) -> Moved:
        """Move what is due, once."""
        return self.mover(**raw).move(self.bench.desk, most)

    def store(self, headers: str = "{}", body: bytes | None = b"{}", **more: Any) -> None:
        """Let the endpoint delay a message."""
        self.dotnet.store(self.table, headers, body, **more)

    def store_due(self, messages: int) -> list[bytes]:
        """Let the endpoint delay messages that are due by now, in their order."""
        sent = [b"%d" % at for at in range(messages)]
        for at, body in enumerate(sent):
            self.store(body=body, delay=at - messages - 1)
        return sent

    def waiting(self) -> list[Delayed]:
        """What waits."""
        return self.dotnet.delayed_rows(self.table)

    def bodies(self) -> list[bytes | None]:
        """The bodies of what waits."""
        return [row.body for row in self.waiting()]


@pytest.fixture
def desk(bench: Bench) -> Desk:
    """Give a queue that can be delayed for."""
    bench.dotnet.create_delayed(schema.delayed_of(bench.queue))
    return Desk(bench)


def forward(address: str, **headers: str) -> str:
    """Return the headers of a delayed row, as a task writes them."""
    return dumps({**headers, FORWARD_DESTINATION: address})


def chunk(*rows: dict[str, Any]) -> pa.Table:
    """Make a chunk; each row has what it says, and a body."""
    fields = [*CHUNK_ROW, *CHUNK_DELAYS.values()]
    full = [{"headers": "{}", "body": b"%d" % at} | row for at, row in enumerate(rows)]
    used = [at for at in fields if at.name in CHUNK_ROW.names or any(at.name in r for r in full)]
    return pa.Table.from_pylist(full, schema=pa.schema(used))


def dispatch(desk: Desk, *chunks: pa.Table, **raw: str) -> int:
    """Stage and send, exactly once."""
    staged = send.stage(desk.bench.session("stage"), chunks, sink=secrets.token_hex(4), batch=0)
    return send.dispatch(desk.bench.desk, [staged], desk.bench.sink(**raw))


def send_now(desk: Desk, *chunks: pa.Table, **raw: str) -> None:
    """Send at once, at least once."""
    insert.send_now(desk.bench.session("send"), chunks, desk.bench.sink(**raw))


# ----- stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [dispatch, send_now])
def test_a_delayed_row_waits_and_the_others_are_sent(desk: Desk, way: Callable[..., int]) -> None:
    """Due by the database's clock, addressed to its destination; the queue sees nothing of it."""
    before, address = desk.dotnet.clock(), desk.bench.printed
    rows: tuple[dict[str, Any], ...] = (
        {"delay": HOUR, "headers": forward(address, a="b")},
        {},
        {"delay": 0},
        {"due": FUTURE},
    )

    way(desk, chunk(*rows, {"due": PAST}))

    after = desk.dotnet.clock()
    assert desk.bench.bodies() == [b"1"]
    assert desk.bodies() == [b"4", b"2", b"0", b"3"]
    due_past, due_now, due_later, due_then = desk.waiting()
    assert utc(due_past) == kept(desk, PAST)
    assert before <= utc(due_now) <= after
    assert before <= utc(due_later) - timedelta(hours=1) <= after
    assert utc(due_then) == kept(desk, FUTURE)
    assert due_later.headers == forward(address, a="b")
    assert len({row.id for row in desk.waiting()}) == (4 if keeps_ids(desk) else 1)


def keeps_ids(desk: Desk) -> bool:
    """Whether a moved message has the id that it was stored under."""
    return desk.dotnet.dialect == "postgresql"


def kept(desk: Desk, due: datetime) -> datetime:
    """A time in UTC as the column holds it; SQL Server's 1/300 s show as milliseconds."""
    if desk.dotnet.dialect == "postgresql":
        return due
    epoch = datetime(1900, 1, 1)  # noqa: DTZ001 - of the type datetime, in no zone
    seconds, rest = divmod(round((due - epoch) / timedelta(seconds=1) * 300), 300)
    return epoch + timedelta(seconds=seconds, milliseconds=round(rest * 10 / 3))


def utc(row: Delayed) -> datetime:
    """A due time by a server whose sessions are in UTC."""
    return row.due.astimezone(UTC).replace(tzinfo=None)


def test_each_destination_has_its_own_table(desk: Desk) -> None:
    """Named after it, in its schema; the option delayedQueue names one table for all."""
    other = QueueAddress("the other", desk.dotnet.schema)
    common = QueueAddress("x" * 55 + ".Delayed", desk.dotnet.schema)
    desk.dotnet.create(other)
    for table in (schema.delayed_of(other), common):
        desk.dotnet.create_delayed(table)
    printed = desk.bench.desk.printed(other)

    batch = pa.record_batch(
        {
            "body": [b"0", b"1", b"2"],
            "queue": [None, printed, printed],
            "delay": pa.array([5, 6, None], pa.int64()),
        }
    )
    options, address = desk.bench.sink(), desk.bench.desk.canonical
    sender = Sender(options=options, partition=0, own_address=address, rows_choose=True)
    rows = sender.messages(batch, 0)
    dispatch(desk, rows)
    dispatch(desk, rows, delayedQueue=desk.bench.desk.printed(common))

    assert desk.bodies() == [b"0"]
    (row,) = desk.dotnet.delayed_rows(schema.delayed_of(other))
    assert (row.body, json.loads(row.headers)[FORWARD_DESTINATION]) == (b"1", printed)
    assert desk.bench.bodies(other) == [b"2", b"2"]
    both = [json.loads(row.headers) for row in desk.dotnet.delayed_rows(common)]
    assert [each[FORWARD_DESTINATION] for each in both] == [desk.bench.printed, printed]


@pytest.mark.parametrize("ordinary", [False, True])
def test_without_the_table_nothing_of_the_batch_is_sent(desk: Desk, *, ordinary: bool) -> None:
    """The error has the command that makes it; an ordinary queue is no such table."""
    address = desk.bench.address("error" if ordinary else "orders.Delayed")
    if not ordinary:
        desk.dotnet.dba.drop(desk.table)

    with pytest.raises(DelayedQueueNotFound) as caught:
        dispatch(desk, chunk({}, {"delay": 1}), **({"delayedQueue": address} if ordinary else {}))

    assert str(caught.value) == (
        f"the table {address} for delayed messages of {desk.bench.printed} was not found in "
        f"{desk.bench.desk.server}. Create it with `sqlqueue create QUEUE --delayed`, "
        "or grant this login the rights that `sqlqueue script QUEUE --delayed` prints. To send, "
        "you can also name another table in the option delayedQueue."
    )
    assert desk.bench.bodies() == desk.bench.bodies(desk.bench.errors) == []
    assert desk.dotnet.state_rows("dispatch_log", "batch") == [(None,)]


def test_our_table_is_the_endpoints_table(desk: Desk) -> None:
    """Column for column, with the index on due; also where its name has no room for the suffix."""
    dotnet, dba = desk.dotnet, desk.dotnet.dba
    theirs = dotnet.catalog(desk.table)
    assert theirs
    for table in ("ours", "x" * 55):
        queue = QueueAddress(table, dotnet.schema)
        for _ in range(2):
            schema.create_delayed(desk.bench.desk, queue, timeout=TIMEOUT)
        ours = schema.delayed_of(queue)

        assert dotnet.catalog(ours) == theirs
        assert [column for _, column in dba.indexes(ours)].count("due") == 1

    name = dba.shapes.due_index.format(table="ours.Delayed")
    assert (name, "due") in dba.indexes(QueueAddress("ours.Delayed", dotnet.schema))


# ----- moved -----------------------------------------------------------------------------------


def test_what_is_due_is_moved_in_the_order_of_due_times(desk: Desk) -> None:
    """Under its id, without expiry; the rest waits, and the result says for how long."""
    ids = {at: uuid.uuid4() for at in (1, 2, 3)}
    for at in (2, 3, 1):
        desk.store(f'{{"n":"{at}"}}', b"%d" % at, delay=at - 9, row=ids[at])
    desk.store(body=b"later", delay=1000)
    desk.store(body=b"much later", delay=2000)

    moved = desk.move()

    assert moved.messages == 3
    assert moved.next_due is not None
    assert 900 < moved.next_due <= 1000
    rows = desk.dotnet.rows(desk.bench.queue)
    assert [row.body for row in rows] == [b"1", b"2", b"3"]
    kept = [row.id for row in rows] == [ids[1], ids[2], ids[3]]
    assert kept == keeps_ids(desk)
    assert [row.headers for row in rows] == [f'{{"n":"{at}"}}' for at in (1, 2, 3)]
    assert [row.expires for row in rows] == [None] * 3
    assert desk.bodies() == [b"later", b"much later"]


def test_a_batch_is_bounded_and_all_is_moved_in_several(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction for each; a bound on all of them is kept."""
    sent = desk.store_due(7)

    first = desk.move(2)
    assert first.messages == 2
    assert (first.next_due or 0) < 0
    monkeypatch.setattr(due, "DUE_BATCH", 2)
    desk.bench.watched = True
    bounded = desk.mover().move_all(desk.bench.open("bounded"), 3)
    rest = desk.mover().move_all(desk.bench.open("rest"))

    assert (bounded.messages, rest) == (3, Moved(2, None))
    assert desk.bench.said.count("commit") == 2 + 2
    assert desk.bench.bodies() == sent


def test_a_null_body_is_moved_as_empty(desk: Desk) -> None:
    """An endpoint would fail for ever on a null one."""
    desk.store(body=None, delay=-1)

    desk.move()

    assert desk.bench.bodies() == [b""]


@only("postgresql", "times beyond the year 9999")
@pytest.mark.parametrize(("due", "moved"), [("infinity", 0), ("-infinity", 1)])
def test_what_is_due_at_infinity_stops_no_mover(desk: Desk, due: str, moved: int) -> None:
    """It waits for ever, or not at all; no pause is reckoned by it."""
    desk.store(delay=0)
    desk.dotnet.dba.on(desk.table, f"UPDATE {{queue}} SET Due = '{due}'")

    assert desk.move() == Moved(moved, None)


def test_rows_that_another_mover_holds_are_passed_over(desk: Desk) -> None:
    """Without waiting; they come when it has given them up."""
    for body in (b"held", b"free"):
        desk.store(body=body, delay=-1)

    with desk.dotnet.holding("hold_delayed", desk.table, bodies=[b"held"]):
        moved = desk.move()
        assert moved.messages == 1
        if desk.dotnet.dialect == "postgresql":
            assert (moved.next_due or 0) < 0
        else:  # READPAST
            assert moved.next_due is None
        assert desk.bench.bodies() == [b"free"]

    assert desk.move().messages == 1
    assert desk.bench.bodies() == [b"free", b"held"]


def test_movers_of_both_kinds_at_once_lose_and_double_nothing(desk: Desk) -> None:
    """Two of ours and an endpoint's, in small batches."""
    sent = desk.store_due(200)

    def ours() -> int:
        connection, mover, moved = desk.bench.open("mover"), desk.mover(), 0
        while (step := mover.move(connection, 3)).messages or step.next_due is not None:
            moved += step.messages
        return moved

    def theirs() -> int:
        dotnet, moved = desk.dotnet.consumer(), 0
        while dotnet.delayed_rows(desk.table):
            moved += dotnet.move(desk.table, desk.bench.queue, 3)
        return moved

    threads = [desk.bench.thread(work) for work in (ours, ours, theirs)]
    moved = [thread.result(timeout=TIMEOUT) for thread in threads]

    assert sum(moved) == 200
    assert sorted(row or b"" for row in desk.bench.bodies()) == sorted(sent)
    assert desk.bodies() == []


@only("postgresql", "an id that must be unique")
def test_an_id_that_is_in_the_queue_does_not_stop_the_mover(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message gets a new one, and those behind it come as well."""
    taken = desk.dotnet.send(desk.bench.queue, body=b"there")
    desk.store(body=b"copy", delay=-2, row=taken)
    desk.store(body=b"behind", delay=-1)

    assert desk.move() == Moved(2, None)

    rows = desk.dotnet.rows(desk.bench.queue)
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


def test_a_stream_moves_what_is_due_before_it_peeks(desk: Desk) -> None:
    """Where it is asked to; what becomes due later comes at its time."""
    clock = Clock()
    desk.store(body=b"due", delay=-1)
    desk.store(body=b"soon", delay=500)
    assert desk.bench.drain(desk.bench.loop()) == []
    desk.bench.watched = True
    loop = desk.bench.loop(clock, delayedDelivery="true", peekDelay="1000s")

    end, tables = desk.bench.batch(loop)
    assert bodies(*tables) == [b"due"]
    turns = desk.bench.said.count("move_due")
    assert loop.latest(end) == end
    clock.now += 400
    assert loop.latest(end) == end
    assert desk.bench.said.count("move_due") == turns == 1

    desk.dotnet.dba.make_due(desk.table, 500)
    clock.now += 100  # less than peekDelay
    end, tables = desk.bench.batch(loop, end)
    assert bodies(*tables) == [b"soon"]


def test_a_turn_is_bounded_by_the_micro_batch(desk: Desk) -> None:
    """And the next one follows at once while more is due."""
    desk.store_due(5)
    loop = desk.bench.loop(delayedDelivery="true", maxMessagesPerTrigger="2")

    end = loop.latest(INITIAL)
    assert len(desk.bodies()) == 3
    (task,) = loop.tasks(end)
    assert bodies(desk.bench.receive(task)) == [b"0", b"1"]
    assert desk.bench.drain(loop, end) == [b"2", b"3", b"4"]


def test_an_available_now_run_receives_all_that_is_due_when_it_starts(desk: Desk) -> None:
    """And moves nothing after that, which it would not receive."""
    sent, clock = desk.store_due(5), Clock()
    loop = desk.bench.loop(clock, delayedDelivery="true", maxMessagesPerTrigger="2")

    loop.freeze()
    desk.store(body=b"too late", delay=-1)
    clock.now += 100

    assert desk.bench.drain(loop) == sent
    assert desk.bodies() == [b"too late"]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_queue_of_an_instance_needs_no_delayed_table(desk: Desk, *, frozen: bool) -> None:
    """The transport makes one for the endpoint; a table that is there is moved all the same."""
    bench, queue = desk.bench, desk.bench.queue
    instances = [replace(queue, table=f"orders.{name}") for name in ("web1", "web2")]
    for each in instances:
        bench.dotnet.create(each)
    bench.dotnet.create_delayed(schema.delayed_of(instances[1]))
    desk.store(body=b"endpoint", delay=-1)
    bench.dotnet.store(schema.delayed_of(instances[1]), body=b"web2", delay=-1)
    names = ", ".join(bench.desk.printed(each) for each in (queue, *instances))
    loop = bench.loop(queues=names, delayedDelivery="true")
    if frozen:
        loop.freeze()

    assert sorted(bench.drain(loop)) == [b"endpoint", b"web2"]
