"""Several queues in one stream: each message once, a fair share for each, and lists that change."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import only

from sqlq_spark.admin import inspect
from sqlq_spark.errors import (
    QueueNotFound,
    StaleTask,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
)
from sqlq_spark.receive import browse, pace
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench, Clock, Strike

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from sqlq_spark.receive.driver import PeekLoop

ONE = "begin timeouts lock_stream outcome acknowledge delete_receipts"
STORED = "lock_stream store_plan commit"
TABLES = ("Shop, Billing", 'say "hi"')  # beside `orders`


class Several:
    """The bench's queue and two more, whose names hold what separates and quotes names."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        schema = bench.dotnet.schema
        self.queues = [bench.queue, *(QueueAddress(table, schema) for table in TABLES)]
        self.names = [bench.desk.printed(queue) for queue in self.queues]
        for queue in self.queues[1:]:
            bench.dotnet.create(queue)

    def send(self, queue: int, messages: int, *, size: int = 0) -> list[bytes]:
        """Send messages that say where they were sent to, and return their bodies."""
        first = len(self.bench.dotnet.rows(self.queues[queue]))
        bodies = [b"%d/%d" % (queue, at) + b"x" * size for at in range(first, first + messages)]
        self.bench.dotnet.send_many(self.queues[queue], bodies)
        return bodies

    def clear(self) -> None:
        """Empty the queues."""
        for queue in self.queues:
            self.bench.dotnet.dba.empty(queue)

    def left(self) -> list[int]:
        """How many wait in each queue."""
        return [len(self.bench.dotnet.rows(queue)) for queue in self.queues]

    def loop(self, *read: int, clock: Clock | None = None, **raw: str) -> PeekLoop:
        """Give a stream of some of the queues; of all by default."""
        names = [self.names[at] for at in read or range(len(self.queues))]
        return self.bench.loop(clock, queues=", ".join(names), **raw)


@pytest.fixture
def several(bench: Bench) -> Several:
    """Give three empty queues."""
    return Several(bench)


def bodies(tables: list[pa.Table]) -> list[bytes]:
    """What a batch got."""
    return [body for table in tables for body in table["body"].to_pylist()]


def counts(tables: list[pa.Table]) -> dict[int, int]:
    """How many messages of each queue a batch got."""
    return dict(Counter(int(body.split(b"/")[0]) for body in bodies(tables)))


def through_spark(offset: Offset) -> Offset:
    """Return an offset as it comes back from a checkpoint."""
    return Offset.parse(json.loads(json.dumps(offset.to_json())))


def batches(several: Several, loop: PeekLoop, most: int = 50) -> Iterator[list[pa.Table]]:
    """Run micro-batches as AvailableNow does, until the offset stays."""
    start = INITIAL
    for _ in range(most):
        end, tables = several.bench.batch(loop, start)
        if end == start:
            return
        start = end
        yield tables
    message = f"there was no end after {most} batches"
    raise AssertionError(message)


# ----- a batch ---------------------------------------------------------------------------------


def test_every_message_of_every_queue_comes_once(several: Several) -> None:
    """In the order of each queue; one row of the stream names them all."""
    bench = several.bench
    sent = [body for at, messages in enumerate((25, 7, 13)) for body in several.send(at, messages)]
    loop = several.loop(maxMessagesPerTrigger="10")

    got = bench.drain(loop)

    assert Counter(got) == Counter(sent)
    for at in b"012":
        assert [body for body in got if body[0] == at] == [body for body in sent if body[0] == at]
    assert several.left() == [0, 0, 0]
    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.dotnet.state_rows("stream", "queue, messages") == [(", ".join(several.names), 45)]


def test_a_plan_has_a_part_for_each_queue_with_work(several: Several) -> None:
    """Its tasks are numbered over all parts; each receipt names its one queue."""
    several.send(0, 3)
    several.send(2, 2)
    loop = several.loop()

    end, tables = several.bench.batch(loop)

    assert [part.queue for part in end.plan] == [several.names[0], several.names[2]]
    assert [(task.task, task.queue) for task in loop.tasks(end)] == [
        (0, several.queues[0]),
        (1, several.queues[2]),
    ]
    assert counts(tables) == {0: 3, 2: 2}
    assert several.bench.dotnet.state_rows("receipt", "task, queue, messages") == [
        (0, several.names[0], 3),
        (1, several.names[2], 2),
    ]


def test_one_of_ten_is_not_starved_by_one_of_many(several: Several) -> None:
    """It gets all that it has; what it leaves goes to the other."""
    several.send(0, 1000)
    several.send(1, 10)

    _, tables = several.bench.batch(several.loop(maxMessagesPerTrigger="50"))

    assert counts(tables) == {0: 40, 1: 10}


def test_queues_take_turns_where_a_batch_is_too_small_for_all(several: Several) -> None:
    """One message a batch, three queues: each has its turn within three batches."""
    for queue, messages in enumerate((6, 3, 3)):
        several.send(queue, messages)
    loop = several.loop(maxMessagesPerTrigger="1")

    got = [counts(tables) for tables in batches(several, loop)]

    assert len(got) == 12
    assert all(len(batch) == 1 for batch in got)
    assert all({0: 1} in got[at : at + 3] for at in range(10))
    assert all({1: 1} in got[at : at + 3] for at in range(7))


def test_tasks_go_by_weight_and_a_callback_queue_has_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user says how many there may be."""
    monkeypatch.setattr(pace, "MESSAGES_PER_TASK", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    instance = QueueAddress("orders.east1", bench.dotnet.schema)
    bench.dotnet.create(instance)
    for queue in (bench.queue, instance):
        bench.dotnet.send_many(queue, [b"x"] * 20)
    names = f"{bench.printed}, {bench.desk.printed(instance)}"

    def planned(**raw: str) -> list[int]:
        loop = bench.loop(None, queues=names, maxMessagesPerTrigger="50", **raw)
        end = loop.latest(INITIAL)
        found = Counter(task.queue for task in loop.tasks(end))
        return [found[bench.queue], found[instance]]

    assert planned() == [7, 1]
    assert planned(maxConcurrency="6") == [3, 3]
    assert planned(maxConcurrency="1") == [1, 1]


def test_a_competing_endpoint_and_a_held_queue_cost_nothing(several: Several) -> None:
    """What an endpoint takes it has alone; what it holds is left, and does not stop the others."""
    bench = several.bench
    sent = [body for at in range(3) for body in several.send(at, 12)]
    loop = several.loop(maxMessagesPerTrigger="6")
    taken = []

    with bench.dotnet.hold(several.queues[2], range(1, 13)):
        got: list[bytes] = []
        for tables in batches(several, loop):
            got += bodies(tables)
            for queue in several.queues[:2]:
                row = bench.dotnet.receive(queue)
                taken += [] if row is None else [row.body or b""]

    assert sorted(got + taken) == sorted(body for body in sent if not body.startswith(b"2/"))
    assert taken
    assert several.left() == [0, 0, 12]


@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    waiting=st.tuples(*[st.integers(0, 12)] * 3),
    limit=st.integers(2, 20),
    tasks=st.integers(1, 5),
    size=st.none() | st.integers(1, 2000),
)
def test_whatever_the_limits_each_message_comes_once(
    several: Several, waiting: tuple[int, ...], limit: int, tasks: int, size: int | None
) -> None:
    """And no batch is above its limit of messages."""
    several.clear()
    sent = [body for at, messages in enumerate(waiting) for body in several.send(at, messages)]
    raw = {"maxMessagesPerTrigger": str(limit), "maxConcurrency": str(tasks)}
    raw |= {} if size is None else {"maxBytesPerTrigger": str(size)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "MESSAGES_PER_TASK", 1)
        loop = several.loop(clock=None, **raw)
        loop.freeze()
        got = [bodies(tables) for tables in batches(several, loop)]
        loop.close()

    assert sorted(body for batch in got for body in batch) == sorted(sent)
    assert all(len(batch) <= limit for batch in got)


# ----- limits and triggers, with one queue and with several -------------------------------------


LIMITS: list[tuple[dict[str, str], int]] = [
    ({}, 60),
    ({"maxMessagesPerTrigger": "7"}, 7),
    ({"maxMessagesPerTrigger": "1"}, 1),
    ({"maxBytesPerTrigger": "5000"}, 5),
    ({"maxBytesPerTrigger": "1"}, 1),
    ({"maxBytesPerTrigger": "3000", "maxMessagesPerTrigger": "2"}, 2),
    ({"minMessagesPerTrigger": "4", "maxTriggerDelay": "5s"}, 60),
    ({"minMessagesPerTrigger": "7", "maxMessagesPerTrigger": "7", "maxTriggerDelay": "0s"}, 7),
]


@pytest.mark.parametrize("frozen", [True, False], ids=["AvailableNow", "continuous"])
@pytest.mark.parametrize("read", [(0,), (0, 1, 2)], ids=["one", "several"])
def test_each_limit_bounds_each_batch_and_none_stops_the_stream(
    several: Several, read: tuple[int, ...], *, frozen: bool
) -> None:
    """Also one that is smaller than a message; each weighs 1,000 bytes with its headers."""
    for raw, most in LIMITS:
        sent = [body for at in read for body in several.send(at, 9 // len(read), size=995)]
        clock = Clock()
        loop = several.loop(*read, clock=clock, **raw)
        if frozen:
            loop.freeze()

        got: list[list[bytes]] = []
        start = INITIAL
        for _ in range(40):
            end, tables = several.bench.batch(loop, start)
            if end != start:
                got.append(bodies(tables))
            elif frozen or len(sent) == sum(map(len, got)):
                break
            else:
                clock.now += 5.0
            start = end
        loop.close()

        assert sorted(body for batch in got for body in batch) == sorted(sent), raw
        assert all(0 < len(batch) <= most for batch in got), raw


def test_too_few_in_all_queues_are_waited_for_but_not_too_long(several: Several) -> None:
    """They count together; a queue that had too few is looked at again with the others."""
    clock = Clock()
    raw = {"minMessagesPerTrigger": "10", "maxTriggerDelay": "60s", "peekDelay": "1s"}
    loop = several.loop(clock=clock, **raw)
    several.send(0, 4)
    several.send(1, 5)
    assert loop.latest(INITIAL) == INITIAL
    several.send(2, 1)
    assert loop.latest(INITIAL) == INITIAL
    clock.now += 1.0

    end, tables = several.bench.batch(loop)

    assert counts(tables) == {0: 4, 1: 5, 2: 1}
    several.send(1, 3)
    assert loop.latest(end) == end
    clock.now += 59.5
    assert loop.latest(end) == end
    clock.now += 0.5
    _, tables = several.bench.batch(loop, end)
    assert counts(tables) == {1: 3}


def test_a_queue_that_had_too_few_still_counts_while_it_is_left_alone(several: Several) -> None:
    """An empty queue and one with too few rest by themselves, and are planned together."""
    clock = Clock()
    raw = {"minMessagesPerTrigger": "5", "maxTriggerDelay": "60s", "peekDelay": "2s"}
    loop = several.loop(0, 1, clock=clock, **raw)
    several.send(0, 5)
    end, _ = several.bench.batch(loop)  # the second is empty: it is left alone until 2 s
    clock.now += 1.0
    several.send(0, 3)
    assert loop.latest(end) == end  # too few: the first is left alone until 3 s
    several.send(1, 2)
    clock.now += 1.0

    _, tables = several.bench.batch(loop, end)

    assert counts(tables) == {0: 3, 1: 2}


def test_available_now_freezes_the_end_of_each_queue(several: Several) -> None:
    """However fast others send, and into whichever queue."""
    sent = several.send(0, 8) + several.send(1, 3)
    loop = several.loop(maxMessagesPerTrigger="4")
    loop.freeze()
    several.send(1, 2)
    several.send(2, 5)

    got: list[bytes] = []
    for tables in batches(several, loop):
        got += bodies(tables)
        several.send(0, 2)

    assert sorted(got) == sorted(sent)
    assert several.left()[1:] == [2, 5]


# ----- looking ---------------------------------------------------------------------------------


def test_one_queue_costs_as_many_statements_as_ever(bench: Bench) -> None:
    """A batch is one transaction of the driver, with one look."""
    bench.dotnet.send_many(bench.queue, [b"x"] * 9)
    bench.watched = True
    loop = bench.loop(maxMessagesPerTrigger="3")
    start, _ = bench.batch(loop)
    bench.watched = False
    bench.said.clear()

    end = loop.latest(start)

    assert end.batch == 2
    assert bench.said == f"{ONE} peek sample {STORED}".split()


def test_an_empty_queue_is_left_alone_by_itself(several: Several) -> None:
    """The others are looked at for every batch, that one after peekDelay."""
    clock, bench = Clock(), several.bench
    several.send(0, 10)
    bench.watched = True
    loop = several.loop(0, 1, clock=clock, peekDelay="5s", maxMessagesPerTrigger="2")
    start = loop.latest(INITIAL)
    several.send(1, 1)
    said = []
    for _ in range(2):
        bench.said.clear()
        end = loop.latest(start)
        said.append(bench.said[:])
        assert [part.queue for part in end.plan] == several.names[: 1 + len(said) // 2]
        start = end
        clock.now += 5.0

    assert said == [
        f"{ONE} peek sample {STORED}".split(),
        f"{ONE} peek sample peek sample {STORED}".split(),
    ]


def test_when_all_queues_are_empty_the_database_is_left_alone(several: Several) -> None:
    """Not one statement before peekDelay is over."""
    clock, bench = Clock(), several.bench
    bench.watched = True
    loop = several.loop(clock=clock, peekDelay="5s")
    loop.latest(INITIAL)
    bench.said.clear()
    several.send(2, 1)

    clock.now += 4.9
    assert loop.latest(INITIAL) == INITIAL
    assert bench.said == []
    clock.now += 0.1
    assert loop.latest(INITIAL).batch == 1


@pytest.mark.parametrize("missing", [0, 2])
def test_a_queue_that_is_missing_is_named(several: Several, missing: int) -> None:
    """Nothing of the others is received."""
    several.send(1, 3)
    several.bench.dotnet.dba.drop(several.queues[missing])
    for loop in (several.loop(), several.loop()):
        if missing:
            with pytest.raises(QueueNotFound) as caught:
                loop.freeze()
            assert caught.value.args[0] == several.names[missing]
        with pytest.raises(QueueNotFound) as caught:
            loop.latest(INITIAL)
        assert caught.value.args[0] == several.names[missing]

    assert several.bench.dotnet.state_rows("stream", "stream") == []
    assert len(several.bench.dotnet.rows(several.queues[1])) == 3


def test_purge_on_startup_empties_all_of_them(several: Several) -> None:
    """Once."""
    for queue in range(3):
        several.send(queue, 4)

    assert several.loop(0, 2, purgeOnStartup="true").latest(INITIAL) == INITIAL
    assert several.left() == [0, 4, 0]


# ----- checkpoints -----------------------------------------------------------------------------


def test_a_batch_over_several_queues_is_replayed_word_for_word(several: Several) -> None:
    """By a new process, from the offset or, where that was lost, from the stored plan."""
    bench = several.bench
    for queue in range(3):
        several.send(queue, 8)
    first = several.loop(maxMessagesPerTrigger="6")
    start, _ = bench.batch(first)
    lost = first.latest(start)
    got = [bench.receive(task) for task in first.tasks(lost)]
    several.send(0, 5)

    second = several.loop(2, 1, 0, maxMessagesPerTrigger="3")
    again = second.latest(through_spark(start))
    replayed = [bench.receive(task) for task in several.loop().tasks(through_spark(lost))]

    assert json.dumps(again.to_json()) == json.dumps(lost.to_json())
    assert all(one.equals(other) for one, other in zip(got, replayed, strict=True))
    assert counts(got) == {0: 2, 1: 2, 2: 2}
    assert len(bench.drain(second, again)) == 24 + 5 - 12


@pytest.mark.parametrize("logged", [True, False], ids=["offset logged", "offset lost"])
@pytest.mark.parametrize("received", [True, False], ids=["received", "not yet received"])
@pytest.mark.parametrize("removed", [(1,), (0, 1)], ids=["in part", "all of the batch"])
def test_of_a_queue_that_was_removed_only_what_was_received_is_handed_out(
    several: Several, removed: tuple[int, ...], *, received: bool, logged: bool
) -> None:
    """Each message once; what was planned and not received stays in its queue."""
    bench = several.bench
    several.send(0, 3)
    several.send(1, 3)
    first = several.loop()
    pending = first.latest(INITIAL)
    planned = first.tasks(pending)
    if received:
        for task in planned:
            bench.receive(task)
    kept = [at for at in range(3) if at not in removed]
    got = {at: 3 for at in (0, 1) if received or at in kept}
    stays = [0 if at in got else 3 for at in (0, 1)]

    again = several.loop(*kept)
    start = pending if logged else again.latest(replace(INITIAL, stream=pending.stream))
    tables = [bench.receive(task) for task in again.tasks(through_spark(start))]
    end = again.latest(start)

    assert start == pending
    assert counts(tables) == got
    assert end == start
    several.send(2, 2)
    several.send(1, 2)
    later = several.loop(*kept)
    assert counts(bench.batch(later, end)[1]) == {2: 2}
    names = ", ".join(several.names[at] for at in kept)
    assert bench.dotnet.state_rows("stream", "queue, messages") == [(names, sum(got.values()))]
    assert several.left() == [stays[0], stays[1] + 2, 0]


def test_a_queue_that_was_added_is_read_from_the_next_batch_on(several: Several) -> None:
    """The stream's row tells all of them."""
    bench = several.bench
    several.send(0, 3)
    start, _ = bench.batch(several.loop(0))
    several.send(2, 4)

    second = several.loop(2, 0)
    _, tables = bench.batch(second, through_spark(start))

    assert counts(tables) == {2: 4}
    assert bench.dotnet.state_rows("stream", "queue") == [
        (f"{several.names[2]}, {several.names[0]}",),
    ]


def test_a_checkpoint_that_shares_no_queue_is_refused(several: Several) -> None:
    """By the plan and by the acknowledgement; nothing is touched, and the row stays."""
    bench = several.bench
    several.send(0, 3)
    end, _ = bench.batch(several.loop(0, 1))
    other = several.loop(2)

    for work in (other.tasks, other.latest, other.acknowledge):
        with pytest.raises(StreamOfOtherQueue) as caught:
            work(end)
        assert caught.value.args == (f"{several.names[0]}, {several.names[1]}", several.names[2])
    assert bench.dotnet.state_rows("stream", "queue, acked_batch") == [
        (f"{several.names[0]}, {several.names[1]}", 0)
    ]


def test_a_pending_batch_of_unknown_origin_is_refused(several: Several) -> None:
    """Without a stream, or with one that is in no state table, nobody says that it is ours."""
    several.send(0, 3)
    end = several.loop(0).latest(INITIAL)

    with pytest.raises(StreamOfOtherQueue):
        several.loop(1, 2).tasks(replace(end, stream=None))
    with pytest.raises(StreamNotFound):
        several.loop(1, 2).tasks(replace(end, stream="nobody"))


def test_a_driver_with_the_old_list_is_told_that_it_was_taken_over(several: Several) -> None:
    """And its late tasks find the batch closed."""
    bench = several.bench
    several.send(0, 3)
    several.send(1, 3)
    first = several.loop(0, 1)
    start = first.latest(INITIAL)
    zombies = first.tasks(start)
    for task in zombies:
        bench.receive(task)
    several.loop(0).latest(through_spark(start))

    with pytest.raises(StreamTakenOver):
        first.latest(start)
    with pytest.raises(StaleTask):
        bench.receive(zombies[1])
    assert bench.dotnet.state_rows("stream", "queue") == [(several.names[0],)]


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_while_it_looks_or_commits_costs_no_message_of_any_queue(
    several: Several,
) -> None:
    """What the queues before had shown is looked at again; one plan for a batch over both."""
    bench = several.bench

    def drained(strike: Strike | None) -> list[str]:
        several.clear()
        bench.dotnet.dba.forget("stream")
        sent = several.send(0, 2) + several.send(1, 1)
        bench.said.clear()
        bench.watched, bench.strike = True, strike
        loop = several.loop(0, 1)

        got = bench.drain(loop)

        loop.close()
        bench.watched = False
        assert sorted(got) == sorted(sent)
        assert sum(row[0] for row in bench.dotnet.state_rows("stream", "messages")) == 3
        return [statement for statement in bench.said if statement != "version"]

    looks = [at for at, name in enumerate(drained(None)) if name in {"peek", "commit"}]
    for at in looks:
        strike = Strike(at + 1, lambda: bench.dotnet.kill("sqlqueue driver orders"))
        drained(strike)
        assert strike.fell is not None
    assert len(looks) >= 6


@pytest.mark.parametrize("frozen", [True, False], ids=["AvailableNow", "continuous"])
def test_transaction_mode_none_reads_several_queues_too(several: Several, *, frozen: bool) -> None:
    """At most once: no stream, no receipt."""
    sent = [body for at in range(3) for body in several.send(at, 8)]
    loop = several.loop(transactionMode="none", maxMessagesPerTrigger="5")
    if frozen:
        loop.freeze()

    assert sorted(several.bench.drain(loop)) == sorted(sent)
    assert several.bench.dotnet.state_rows("stream", "stream") == []


# ----- what people see -------------------------------------------------------------------------


def test_receipts_of_other_streams_are_warned_of_for_each_queue(
    several: Several, caplog: pytest.LogCaptureFixture
) -> None:
    """A receipt names one queue, whatever list its stream had."""
    several.send(1, 3)
    several.send(2, 2)
    several.bench.batch(several.loop(1, 2))
    several.send(0, 1)
    caplog.clear()

    several.loop(0, 1).latest(INITIAL)

    assert f"{several.names[1]}: 3 messages lie in receipts of other streams" in caplog.text
    assert "2 messages lie" not in caplog.text


def test_the_report_tells_of_each_queue_and_of_all(several: Several) -> None:
    """Backlogs, the oldest message, outcomes, and how the tasks adapt."""
    bench = several.bench
    bench.dotnet.send(
        several.queues[1], '{"NServiceBus.TimeSent":"2026-01-01 00:00:00:000000 Z"}', b"1/old"
    )
    several.send(0, 30)
    bench.dotnet.send(several.queues[1], lives=-1)
    loop = several.loop(maxMessagesPerTrigger="10", maxConcurrency="4")
    end, _ = bench.batch(loop)

    said = loop.report()
    loop.latest(end)
    after = loop.report()

    assert list(said) == [
        *("queue", "backlog", "backlogIsEstimate", "oldestWaited", "tasks", "ramp", "queues")
    ]
    assert said["queue"] == ", ".join(several.names)
    assert (said["backlog"], said["backlogIsEstimate"]) == (32, True)
    assert said["oldestWaited"] == said["queues"][1]["oldestWaited"] > 86400
    assert [each["queue"] for each in said["queues"]] == several.names
    assert [each["backlog"] for each in said["queues"]] == [30, 2, 0]
    assert [each["backlogIsEstimate"] for each in said["queues"]] == [True, False, False]
    assert (after["tasks"], after["ramp"]) == (4, {"successes": 2, "failures": 0})
    last = {"batch": 1, "emptyTasks": 0, "diverted": 0, "forwarded": 0}
    assert after["lastBatch"] == last | {"tasks": 2, "messages": 9, "expired": 1}
    assert [each.get("lastBatch") for each in after["queues"]] == [
        last | {"tasks": 1, "messages": 8, "expired": 0},
        last | {"tasks": 1, "messages": 1, "expired": 1},
        None,
    ]
    json.dumps(after)


@only("postgresql", "streams that see what others hold")
def test_min_concurrency_holds_the_tasks_against_competitors(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fixed as it is said to be."""
    monkeypatch.setattr(pace, "RAMP_DOWN", 1)
    bench.dotnet.send_many(bench.queue, [b"x"] * 10)

    def after_empty_batches(**raw: str) -> int:
        clock = Clock()
        loop, start = bench.loop(clock, maxConcurrency="4", **raw), INITIAL
        with bench.dotnet.hold(bench.queue, [row.seq for row in bench.dotnet.rows(bench.queue)]):
            for _ in range(10):
                start, _ = bench.batch(loop, start)
                clock.now += 2.0
        found: int = loop.report()["tasks"]
        return found

    assert after_empty_batches() == 1
    assert after_empty_batches(minConcurrency="3") == 3
    assert after_empty_batches(minConcurrency="4") == 4


def test_streams_are_found_by_any_of_their_queues(several: Several) -> None:
    """By the canonical address, whatever it holds."""
    for queue in range(3):
        several.send(queue, 1)
    several.loop(0, 1).latest(INITIAL)
    several.loop(1, 2).latest(INITIAL)

    found = [inspect.streams(several.bench.desk, name) for name in several.names]

    assert [len(each) for each in found] == [1, 2, 1]
    assert found[0][0].queues == several.names[:2]
    assert len(inspect.streams(several.bench.desk)) == 2


def test_a_browse_shares_its_ranges_among_the_queues(several: Several) -> None:
    """By how far each reaches; an empty one has none, and every message is in one."""
    sent = [several.send(0, 60), several.send(2, 2)]

    found = browse.parts(several.bench.desk, several.queues, parts=4, timeout=TIMEOUT)
    got: dict[QueueAddress, list[bytes]] = {}
    for queue, first, stop in found:
        pages = browse.pages(several.bench.desk, queue, first, stop, narrow=False, timeout=TIMEOUT)
        got.setdefault(queue, []).extend(bodies(list(pages)))

    assert [several.queues.index(queue) for queue, _, _ in found] == [0, 0, 0, 2]
    assert got == {several.queues[0]: sent[0], several.queues[2]: sent[1]}
    several.clear()
    assert browse.parts(several.bench.desk, several.queues, parts=4, timeout=TIMEOUT) == []


def test_a_queues_row_text_of_strangers_is_refused_not_misread(several: Several) -> None:
    """What a row says is compared with names, never put into SQL."""
    several.send(0, 1)
    end, _ = several.bench.batch(several.loop(0, 1))
    several.bench.dotnet.dba.change("stream", queue="x, y; DROP TABLE z")

    with pytest.raises(StreamOfOtherQueue, match=r"of queue x, y; DROP TABLE z, not of"):
        several.loop(0, 1).latest(through_spark(end))
