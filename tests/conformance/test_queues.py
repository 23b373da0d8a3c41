"""Several queues in one stream: each message once, a fair share for each, and lists that change."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from sqlq_spark import errors
from sqlq_spark.datasource.stream import StreamReader
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.wire.address import QueueAddress

from .conftest import Bench, Clock, bodies, through_spark

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlq_spark.receive.driver import StreamDriver

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

    def left(self) -> list[int]:
        """How many wait in each queue."""
        return [len(self.bench.dotnet.rows(queue)) for queue in self.queues]

    def loop(self, *read: int, clock: Clock | None = None, **raw: str) -> StreamDriver:
        """Give a stream of some of the queues; of all by default."""
        names = [self.names[at] for at in read or range(len(self.queues))]
        return self.bench.loop(clock, queues=", ".join(names), **raw)


@pytest.fixture
def several(bench: Bench) -> Several:
    """Give three empty queues."""
    return Several(bench)


def counts(tables: list[pa.Table]) -> dict[int, int]:
    """How many messages of each queue a batch got."""
    return dict(Counter(int(body.split(b"/")[0]) for body in bodies(*tables)))


# ----- a batch ---------------------------------------------------------------------------------


def test_every_message_of_every_queue_comes_once(several: Several) -> None:
    """In the order of each queue; one row of the stream names them all, a receipt its one queue."""
    bench = several.bench
    sent = [body for at, messages in enumerate((25, 0, 13)) for body in several.send(at, messages)]
    loop = several.loop(maxMessagesPerTrigger="10")

    end, tables = bench.batch(loop)
    receipts = bench.dotnet.state_rows("receipt", "task, queue")
    got = bodies(*tables) + bench.drain(loop, end)

    names = [several.names[0], several.names[2]]  # those with work
    assert [part.queue for part in end.plan] == names
    assert [task.queue for task in loop.tasks(end)] == [several.queues[0], several.queues[2]]
    assert receipts == [*enumerate(names)]
    assert Counter(got) == Counter(sent)
    for at in b"02":
        assert [body for body in got if body[0] == at] == [body for body in sent if body[0] == at]
    assert several.left() == [0, 0, 0]
    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.dotnet.state_rows("stream", "queue, messages") == [(", ".join(several.names), 38)]


# ----- limits and triggers, with one queue and with several -------------------------------------


LIMITS: list[tuple[dict[str, str], int]] = [
    ({}, 60),
    ({"maxMessagesPerTrigger": "7"}, 7),
    ({"maxMessagesPerTrigger": "1"}, 1),
    ({"maxBytesPerTrigger": "5000"}, 5),
    ({"maxBytesPerTrigger": "1"}, 1),
    ({"maxBytesPerTrigger": "3000", "maxMessagesPerTrigger": "2"}, 2),
    ({"minMessagesPerTrigger": "10", "maxTriggerDelay": "5s"}, 60),
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
        for _ in range(40):
            start = loop._acknowledged  # noqa: SLF001 - what Spark's commit log would say
            got += [bodies(*tables) for tables in several.bench.batches(loop, start)]
            if frozen or len(sent) == sum(map(len, got)):
                break
            clock.now += 5.0
        loop.close()

        assert sorted(body for batch in got for body in batch) == sorted(sent), raw
        assert all(0 < len(batch) <= most for batch in got), raw


def test_too_few_in_all_queues_are_waited_for_but_not_too_long(several: Several) -> None:
    """They count together; the end of the wait may come before the next peekDelay."""
    clock = Clock()
    raw = {"minMessagesPerTrigger": "10", "maxTriggerDelay": "60s", "peekDelay": "1s"}
    loop = several.loop(clock=clock, **raw)
    several.send(0, 4)
    several.send(1, 5)
    assert loop.latest(INITIAL) == INITIAL
    several.send(2, 1)
    clock.now += 1.0
    end, tables = several.bench.batch(loop)
    assert counts(tables) == {0: 4, 1: 5, 2: 1}

    several.send(1, 3)
    for seconds in (0.0, 59.5):
        clock.now += seconds
        assert loop.latest(end) == end
    clock.now += 0.5

    assert counts(several.bench.batch(loop, end)[1]) == {1: 3}


# ----- looking ---------------------------------------------------------------------------------


def test_ranges_that_share_a_partition_keep_their_receipts(several: Several) -> None:
    """One task of Spark receives them all, and its retry hands out what it received."""
    sent = [several.send(at, 2) for at in range(3)]
    options = several.bench.source(queues=", ".join(several.names), maxConcurrency="1")
    reader = StreamReader(options, StructType([StructField("body", BinaryType())]))
    with closing(reader.driver):
        end = reader.latestOffset(reader.initialOffset())
        (partition,) = reader.partitions(reader.initialOffset(), end)
    begun = reader.read(partition)
    first = next(begun)
    del begun

    rows = [batch["body"].to_pylist() for batch in reader.read(partition)]

    assert first["body"].to_pylist() == sent[0]
    assert rows == sent
    receipts = several.bench.dotnet.state_rows("receipt", "task, queue")
    assert receipts == [*enumerate(several.names)]


# ----- checkpoints -----------------------------------------------------------------------------


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
    """The stream's row names all of them."""
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
        with pytest.raises(errors.StreamOfOtherQueue) as caught:
            work(end)
        found, asked = f"{several.names[0]}, {several.names[1]}", several.names[2]
        assert (caught.value.found, caught.value.asked) == (found, asked)
    assert bench.dotnet.state_rows("stream", "queue, acked_batch") == [
        (f"{several.names[0]}, {several.names[1]}", 0)
    ]


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
    assert "Start those queries once" in caplog.text
    assert "2 messages lie" not in caplog.text


def test_the_report_is_of_each_queue_and_of_all(several: Several) -> None:
    """Backlogs, the oldest message, outcomes, and how the tasks adapt."""
    bench = several.bench
    old = '{"NServiceBus.TimeSent":"2026-01-01 00:00:00:000000 Z"}'
    bench.dotnet.send(several.queues[1], old, b"1/old")
    several.send(0, 30)
    bench.dotnet.send(several.queues[1], lives=-1)
    loop = several.loop(maxMessagesPerTrigger="10", maxConcurrency="4")
    end, _ = bench.batch(loop)

    said = loop.report()
    loop.latest(end)
    after = loop.report()

    names = "queue backlog backlogIsEstimate oldestWaited tasks ramp queues"
    assert list(said) == names.split()
    assert said["queue"] == ", ".join(several.names)
    assert (said["backlog"], said["backlogIsEstimate"]) == (32, True)
    assert said["oldestWaited"] == said["queues"][1]["oldestWaited"] > 86400
    each = [(one["queue"], one["backlog"], one["backlogIsEstimate"]) for one in said["queues"]]
    assert each == [*zip(several.names, (30, 2, 0), (True, False, False), strict=True)]
    assert (after["tasks"], after["ramp"]) == (4, {"successes": 2, "failures": 0})
    last = {"batch": 1, "emptyTasks": 0, "diverted": 0, "forwarded": 0}
    assert after["lastBatch"] == last | {"tasks": 2, "messages": 9, "expired": 1}
    assert [one.get("lastBatch") for one in after["queues"]] == [
        last | {"tasks": 1, "messages": 8, "expired": 0},
        last | {"tasks": 1, "messages": 1, "expired": 1},
        None,
    ]
    json.dumps(after)
