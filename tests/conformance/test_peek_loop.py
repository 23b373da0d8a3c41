"""The driver of a stream, called as Spark calls it. Its tasks run as executors run them."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType
from servers import only

from sqlq_spark import errors
from sqlq_spark.database.looks import AboveSequence
from sqlq_spark.datasource import stream
from sqlq_spark.datasource.stream import StreamReader
from sqlq_spark.options import source
from sqlq_spark.receive import pace
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.receive.driver import StreamDriver, find_above

from .conftest import ON_DATABASE, Bench, Clock, PlannedKill, bodies, through_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.batch import Offset


def send(bench: Bench, messages: int, first: int = 0, **more: Any) -> list[bytes]:
    """Send numbered messages and return their bodies."""
    sent = [b"%d" % at for at in range(first, first + messages)]
    bench.dotnet.send_many(bench.queue, sent, **more)
    return sent


@ON_DATABASE
@given(
    messages=st.integers(1, 60),
    gone=st.sets(st.integers(0, 59)),
    most=st.integers(1, 70),
    tasks=st.integers(1, 9),
)
def test_ranges_cover_the_batch_and_do_not_overlap(
    bench: Bench, messages: int, gone: set[int], most: int, tasks: int
) -> None:
    """Each task finds at most its share, and together they get the lowest of the queue, once."""
    bench.dotnet.dba.empty(bench.queue)
    send(bench, messages)
    base = bench.waiting_seqs()[0]
    bench.dotnet.dba.do("delete", bench.queue, seqs=[base + at for at in gone])
    there = bench.waiting_seqs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "MESSAGES_PER_TASK", 1)  # so that a few messages are worth many tasks
        loop = bench.stream_driver(maxMessagesPerTrigger=str(most), maxConcurrency=str(tasks))
        planned = loop.tasks(loop.latest(INITIAL))

    got = [bench.receive(task)["seq"].to_pylist() for task in planned]

    assert len(planned) <= tasks
    assert all(one.stop == two.first for one, two in pairwise(planned))
    assert [seq for part in got for seq in part] == there[:most]
    assert all(0 < len(part) <= -(-min(most, len(there)) // len(planned)) for part in got)


def test_batches_grow_and_a_killed_one_keeps_its_size(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Batches of 3, 6 and 12 while more wait. A new process begins at 3 again.

    The driver is killed after it has planned a larger batch, before a task ran. The next process
    gets the same plan, so the same rows.
    """
    monkeypatch.setattr(source, "USUAL_BATCH", 3)
    monkeypatch.setattr(pace, "MESSAGES_PER_TASK", 1)
    options = replace(bench.source_options(clusterCores="2"), max_messages=3)
    sent = send(bench, 40)
    driver = bench.beating_driver(None, None, options)
    sizes, received = [], []

    def run(end: Offset) -> None:
        rows = [row for task in driver.tasks(end) for row in bodies(bench.receive(task))]
        sizes.append(len(rows))
        received.extend(rows)

    end = driver.latest(INITIAL)
    run(end)
    planned = driver.latest(end)  # the larger batch, in Spark's offset log
    driver.close()
    driver = bench.beating_driver(None, None, options)
    assert len(driver.tasks(planned)) == 3  # of the four that it may have
    while planned != end:
        end = planned
        run(end)
        planned = driver.latest(end)

    assert sizes == [3, 6, 3, 6, 12, 10]
    assert driver.memory.growth == 1
    assert received == sent


def test_an_empty_peek_leaves_the_database_alone_for_peek_delay(bench: Bench) -> None:
    """One statement asks all queues. Then none runs until peekDelay is over."""
    clock, queues = Clock(), f"{bench.queue_address}, {bench.address('error')}"
    bench.records_statements = True
    loop = bench.stream_driver(clock, peekDelay="5s", queues=queues)
    assert loop.latest(INITIAL) == INITIAL
    assert (bench.statements.count("waiting"), bench.statements.count("peek")) == (1, 0)
    bench.statements.clear()
    send(bench, 1)

    for _ in range(9):
        clock.now += 0.5
        assert loop.latest(INITIAL) == INITIAL
    assert bench.statements == []
    clock.now += 0.5

    assert loop.latest(INITIAL).batch == 1
    assert bench.statements.count("sample") == 1  # only the queue with a message is sampled


def test_each_stream_draws_a_share_of_peek_delay_once(bench: Bench) -> None:
    """Its pauses are longer by this share, a tenth at most. The checks see the given peekDelay."""
    clock = Clock()
    checked: list[float] = []

    def check(_: Connection, options: SourceOptions) -> None:
        checked.append(options.peek_delay)

    options = bench.source_options(peekDelay="5s")
    with closing(StreamDriver(options, clock, check, jitter=0.1)) as loop:
        assert loop.latest(INITIAL) == INITIAL
        send(bench, 1)
        clock.now += 5.4
        assert loop.latest(INITIAL) == INITIAL
        clock.now += 0.2
        assert loop.latest(INITIAL).batch == 1
    readers = [StreamReader(options, StructType([])) for _ in range(20)]
    delays = {reader.driver.options.peek_delay for reader in readers}

    assert checked == [5.0]
    assert len(delays) > 1
    assert all(5.0 <= delay <= 5.5 for delay in delays)


@pytest.mark.parametrize(("polled", "waits"), [(60.0, 2), (0.0, 0)])
def test_an_idle_query_is_answered_late(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, polled: float, waits: int
) -> None:
    """The first question is answered at once, and so is a query that another source keeps busy."""
    slept: list[float] = []
    monkeypatch.setattr(stream, "POLLED", polled)
    monkeypatch.setattr(time, "sleep", slept.append)
    reader = StreamReader(bench.source_options(), StructType([]))
    with closing(reader.driver):
        for _ in range(3):
            reader.latestOffset(reader.initialOffset())

    assert slept == [stream.IDLE] * waits


def test_a_late_seq_is_found_when_nothing_else_waits(bench: Bench) -> None:
    """An AvailableNow run receives it before it ends."""
    loop = bench.stream_driver()
    with bench.dotnet.apart(commit=True) as other:
        other.send(bench.queue, body=b"late")
        send(bench, 2)
        loop.freeze()
        start, _ = bench.run_batch(loop)

    assert bench.drain(loop, start) == [b"late"]


def test_a_checkpoint_of_transaction_mode_none_begins_receipts(bench: Bench) -> None:
    """The new stream counts its own batches from the first one, and loses nothing."""
    sent = send(bench, 9)
    end, _ = bench.run_batch(bench.stream_driver(transactionMode="none", maxMessagesPerTrigger="3"))

    loop = bench.stream_driver(maxMessagesPerTrigger="3")
    end, first = bench.run_batch(loop, through_spark(end))
    _, second = bench.run_batch(loop, through_spark(end))

    assert bodies(*first, *second) == sent[3:]
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 3)]


def test_purge_on_startup_leaves_what_was_received_before(bench: Bench) -> None:
    """Received messages are in a receipt, so an open batch is replayed whole."""
    sent = send(bench, 3)
    loop = bench.stream_driver()
    end = loop.latest(INITIAL)
    (task,) = loop.tasks(end)
    bench.receive(task)
    send(bench, 5, 100)

    again = bench.stream_driver(purgeOnStartup="true")
    (rows,) = [bench.receive(task) for task in again.tasks(end)]
    again.latest(end)

    assert rows["body"].to_pylist() == sent
    assert bench.waiting_seqs() == []


def test_a_queue_that_cannot_be_looked_at_keeps_no_receipts_of_another(bench: Bench) -> None:
    """What Spark has committed is acknowledged, even if the next batch cannot be planned."""
    send(bench, 1)
    clock, second = Clock(), bench.create_queue("second")
    listed = f"{bench.queue_in_options}, {bench.dotnet.in_list('second')}"
    loop = bench.stream_driver(clock, queues=listed)
    end, _ = bench.run_batch(loop)
    bench.dotnet.dba.drop(second)
    clock.now += 60

    for _ in range(2):
        with pytest.raises(errors.QueueNotFound, match="second"):
            loop.latest(end)

        assert (loop.memory.end, loop.memory.ramp.successes) == (end, 1)  # it counts once
        assert bench.dotnet.state_rows("receipt", "batch") == []
        assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 1)]
    bench.dotnet.create(second)
    assert loop.latest(end) == end
    send(bench, 1)
    end, _ = bench.run_batch(bench.stream_driver(), end)
    with pytest.raises(errors.DelayedQueueNotFound):  # the batch is acknowledged anyway
        bench.stream_driver(delayedDelivery="true").latest(end)
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(2, 2)]


def run_beside_senders(bench: Bench, loop: StreamDriver, messages: int = 3) -> list[bytes]:
    """Drain a queue as AvailableNow does. After each batch as many messages are sent as it had."""
    got = []
    for tables in bench.run_batches(loop):
        got += bodies(*tables)
        send(bench, messages, first=1000)
    return got


@pytest.mark.parametrize("mode", ["receiveOnly", "none"])
def test_a_row_far_above_the_sequence_does_not_make_a_run_endless(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run receives that row last. What is sent after its start waits for the next run."""
    sent = send(bench, 7)
    bench.dotnet.dba.do("put_at", bench.queue, seq=2**31 - 1)
    loop = bench.stream_driver(maxMessagesPerTrigger="3", transactionMode=mode)
    loop.freeze()

    got = run_beside_senders(bench, loop)

    assert got[:7] == sent
    assert len(got) == 8
    text = rf"is {2**31 - 1}, but the \w+ has given no more than 7:"
    assert re.search(text, caplog.text)


@pytest.mark.parametrize("mode", ["receiveOnly", "none"])
@only("postgresql", "a seq that a sender chooses")
def test_no_row_above_the_sequence_lets_others_in_without_end(bench: Bench, mode: str) -> None:
    """During the run the sequence passes the lowest of these rows. The run still ends."""
    sent = send(bench, 4)
    for seq in (10, 2**31 - 1):
        bench.dotnet.dba.do("put_at", bench.queue, seq=seq)
    loop = bench.stream_driver(maxMessagesPerTrigger="2", transactionMode=mode)
    loop.freeze()
    bench.dotnet.dba.do("set_next", bench.queue, seq=11)

    got = run_beside_senders(bench, loop, 2)

    assert got[:4] == sent
    assert len(got) == 4 + 2


@pytest.mark.parametrize("mode", ["receiveOnly", "none"])
def test_a_queue_whose_sequence_is_behind_is_drained_in_one_run(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of rows left seqs above the sequence. The run receives them, beside senders."""
    copied = send(bench, 20)
    bench.dotnet.dba.do("set_next", bench.queue, seq=1000)
    copied += send(bench, 10, first=20)
    bench.dotnet.dba.do("set_next", bench.queue, seq=500)
    copied += send(bench, 1, first=30)  # the last one that the sequence has given
    clock = Clock()
    loop = bench.stream_driver(clock, maxMessagesPerTrigger="3", transactionMode=mode)
    loop.freeze()

    got = []
    for tables in bench.run_batches(loop):
        got += bodies(*tables)
        send(bench, 3, first=1000)
        clock.now += 60.0  # a look from the very beginning is due

    assert sorted(got) == sorted(copied)
    assert re.search(r"is 1009, but the \w+ has given no more than 500:", caplog.text)


def test_what_others_took_above_the_sequence_lets_no_later_message_in(bench: Bench) -> None:
    """The run receives less than there was at its start, and takes no later message instead."""
    sent = send(bench, 4)
    for seq in (10, 11):
        bench.dotnet.dba.do("put_at", bench.queue, seq=seq)
    loop = bench.stream_driver(maxMessagesPerTrigger="4")
    loop.freeze()
    end, first = bench.run_batch(loop)
    assert bodies(*first) == sent
    bench.dotnet.receive(bench.queue)
    send(bench, 2)

    assert len(bench.drain(loop, end)) == 1

    assert bench.waiting_seqs() == [5, 6]


@only("postgresql", "a right on a sequence")
def test_a_login_that_may_not_see_the_sequence_gets_no_end_from_it(bench: Bench) -> None:
    """The run ends at the highest seq."""
    send(bench, 2)

    with bench.login_with_rights("SELECT") as (_, connection):
        found = find_above(connection, bench.queue, 2)

    assert found == AboveSequence(given=None, first=None, messages=0)
    assert find_above(bench.connection, bench.queue, 2) == AboveSequence(2, first=None, messages=0)
    assert find_above(bench.connection, bench.queue, None) is None


def test_a_sequence_that_was_never_used_ends_no_run(bench: Bench) -> None:
    """All rows are above the sequence, and all are received."""
    sent = send(bench, 9)
    bench.dotnet.dba.do("set_next", bench.queue, seq=1)
    loop = bench.stream_driver(maxMessagesPerTrigger="2")
    loop.freeze()

    assert bench.drain(loop) == sent


@pytest.mark.parametrize("frozen", [True, False])
def test_the_highest_seq_there_is_does_not_stop_a_stream(bench: Bench, *, frozen: bool) -> None:
    """A row that another client put there stays. The others are received."""
    dba = bench.dotnet.dba
    dba.on(bench.queue, dba.shapes.otherwise["another order"])  # a type that holds this number
    dba.do("put_at", bench.queue, seq=2**63 - 1)
    sent = send(bench, 3)
    loop = bench.stream_driver()
    if frozen:
        loop.freeze()

    assert bench.drain(loop) == sent

    assert bench.waiting_seqs() == [2**63 - 1]


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_the_driver_is_done_again(bench: Bench) -> None:
    """The batch has one plan, and every message of two queues comes once."""
    sessions = bench.use_unique_queue()  # a server may run other tests at the same time
    queues = f"{bench.queue_address}, {bench.address('error')}"
    for _ in bench.kill_at_each_statement(sessions):
        bench.dotnet.dba.forget("stream")
        sent = send(bench, 2)
        bench.dotnet.send(bench.error_queue, body=b"other")
        loop = bench.stream_driver(queues=queues)

        got = bench.drain(loop)

        loop.close()
        assert got == [*sent, b"other"]
        assert bench.dotnet.state_rows("receipt", "batch") == []
        # a lost answer to the first plan leaves a stream that nobody knows of, and nothing else
        assert sum(row[0] for row in bench.dotnet.state_rows("stream", "messages")) == 3

    wanted = "peek sample new_stream store_plan acknowledge delete_receipts commit"
    assert set(wanted.split()) <= set(bench.killed_statements)


@dataclass
class StrikeAtCommit(PlannedKill):
    """Kill a session at its next commit."""

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Count only commits."""
        return super().around(statement, call) if statement == "commit" else call()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("is_done", "counted"), [(False, 1), (True, 0)])
def test_a_lost_commit_may_lose_the_lesson_of_a_batch_and_never_counts_it_twice(
    bench: Bench, *, is_done: bool, counted: int
) -> None:
    """The memory is stored after the commit. What follows is planned and received once."""
    kill = partial(bench.dotnet.kill, bench.use_unique_queue())
    sent = send(bench, 4)
    bench.records_statements = True
    loop = bench.stream_driver(maxMessagesPerTrigger="2")
    end, first = bench.run_batch(loop)
    assert loop.memory.ramp.successes == 0

    bench.planned_kill = StrikeAtCommit(0, kill, after=is_done)
    end, second = bench.run_batch(loop, end)

    assert bench.planned_kill.killed_at == "commit"
    assert loop.memory.ramp.successes == counted
    assert (loop.memory.closed.batch, end.batch) == (1, 2)
    assert bodies(*first, *second) == sent
    assert loop.latest(end) == end
    assert loop.memory.ramp.successes == counted + 1
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(2, 4)]


# ----- several queues ---------------------------------------------------------------------------

TABLES = ("Shop, Billing", 'say "hi"')  # beside `orders`


class Several:
    """The bench's queue and two more, with separators and quotes in their names."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.queues = [bench.queue, *(bench.create_queue(table) for table in TABLES)]
        # `names` are spelled as in a plan, and `listed` as in the option queues
        self.names = [bench.connection.names.print_address(queue) for queue in self.queues]
        self.listed = [bench.dotnet.in_list(queue.table) for queue in self.queues]

    def send(self, queue: int, messages: int, *, size: int = 0) -> list[bytes]:
        """Send messages that say where they were sent to, and return their bodies."""
        sent = [b"%d/%d" % (queue, at) + b"x" * size for at in range(messages)]
        self.bench.dotnet.send_many(self.queues[queue], sent)
        return sent

    def stream_driver(self, *read: int, clock: Clock | None = None, **raw: str) -> StreamDriver:
        """Give a stream of some of the queues; of all by default."""
        names = [self.listed[at] for at in read or range(3)]
        return self.bench.stream_driver(clock, queues=", ".join(names), **raw)


@pytest.fixture
def several(bench: Bench) -> Several:
    """Give three empty queues."""
    return Several(bench)


def counts(tables: list[pa.Table]) -> dict[int, int]:
    """How many messages of each queue a batch got."""
    return dict(Counter(int(body.split(b"/")[0]) for body in bodies(*tables)))


def test_every_message_of_every_queue_comes_once(several: Several) -> None:
    """Each queue keeps its order. The stream's row names all queues, and a receipt one."""
    bench = several.bench
    sent = [body for at, messages in enumerate((25, 0, 13)) for body in several.send(at, messages)]
    loop = several.stream_driver(maxMessagesPerTrigger="10")

    end, tables = bench.run_batch(loop)
    receipts = bench.dotnet.state_rows("receipt", "task, queue")
    got = bodies(*tables) + bench.drain(loop, end)

    names = [several.names[0], several.names[2]]  # those with work
    assert [part.queue for part in end.plan] == names
    assert receipts == [*enumerate(names)]
    assert sorted(got, key=lambda body: body[:1]) == sent  # a stable sort keeps each queue's order
    assert bench.dotnet.state_rows("stream", "queue, messages") == [(", ".join(several.names), 38)]


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        ({"maxBytesPerTrigger": "1"}, 1),
        ({"maxBytesPerTrigger": "3000", "maxMessagesPerTrigger": "4"}, 3),
        ({"minMessagesPerTrigger": "7", "maxMessagesPerTrigger": "7", "maxTriggerDelay": "0s"}, 7),
    ],
)
def test_each_limit_bounds_each_batch(several: Several, raw: dict[str, Any], most: int) -> None:
    """A limit below one message counts too. Each message has 1,000 bytes with its headers."""
    sent = [body for at in range(3) for body in several.send(at, 3, size=995)]

    got = [bodies(*tables) for tables in several.bench.run_batches(several.stream_driver(**raw))]

    assert sorted(body for batch in got for body in batch) == sorted(sent)
    assert all(0 < len(batch) <= most for batch in got)


def test_too_few_in_all_queues_are_waited_for_but_not_too_long(several: Several) -> None:
    """All queues count together. The wait may end before the next peekDelay."""
    clock = Clock()
    raw = {"minMessagesPerTrigger": "10", "maxTriggerDelay": "60s", "peekDelay": "1s"}
    loop = several.stream_driver(clock=clock, **raw)
    several.send(0, 4)
    several.send(1, 5)
    assert loop.latest(INITIAL) == INITIAL
    several.send(2, 1)
    clock.now += 1.0
    end, tables = several.bench.run_batch(loop)
    assert counts(tables) == {0: 4, 1: 5, 2: 1}

    several.send(1, 3)
    for seconds in (0.0, 59.5):
        clock.now += seconds
        assert loop.latest(end) == end
    clock.now += 0.5

    assert counts(several.bench.run_batch(loop, end)[1]) == {1: 3}


def test_ranges_that_share_a_partition_keep_their_receipts(several: Several) -> None:
    """One task of Spark receives them all, and its retry hands out what it received."""
    sent = [several.send(at, 2) for at in range(3)]
    options = several.bench.source_options(queues=", ".join(several.listed), maxConcurrency="1")
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
