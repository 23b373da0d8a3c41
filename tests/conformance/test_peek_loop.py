"""The driver's side of a stream, driven as Spark drives it; its tasks run as executors run them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlq_spark.admin import checks
from sqlq_spark.errors import (
    CheckpointRolledBack,
    DelayedQueueNotFound,
    QueueNotFound,
    StaleTask,
    StateNotInstalled,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
    TimedOut,
)
from sqlq_spark.receive import pace
from sqlq_spark.receive.driver import PeekLoop
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench, Clock, Strike, strikes

DATABASE = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def send(bench: Bench, messages: int, first: int = 0, **more: Any) -> list[bytes]:
    """Send numbered messages and return their bodies."""
    bodies = [b"%d" % at for at in range(first, first + messages)]
    bench.dotnet.send_many(bench.queue, bodies, **{"lives": None, **more})
    return bodies


def through_spark(offset: Offset) -> Offset:
    """Return an offset as it comes back from a checkpoint."""
    return Offset.parse(json.loads(json.dumps(offset.to_json())))


# ----- plans -----------------------------------------------------------------------------------


@DATABASE
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
    base = bench.seqs()[0]
    bench.dotnet.dba.delete(bench.queue, [base + at for at in gone])
    there = bench.seqs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "MESSAGES_PER_TASK", 1)  # so that a few messages are worth many tasks
        loop = bench.loop(maxMessagesPerTrigger=str(most), maxConcurrency=str(tasks))
        end = loop.latest(INITIAL)

    got = [bench.receive(task)["seq"].to_pylist() for task in loop.tasks(end)]

    planned = loop.tasks(end)
    assert len(planned) <= tasks
    assert all(one.stop == two.first for one, two in pairwise(planned))
    assert [seq for part in got for seq in part] == there[:most]
    assert all(got)
    if there:
        share = -(-min(most, len(there)) // len(planned))
        assert max(map(len, got)) <= share
        assert (planned[0].first, planned[-1].stop) == (there[0], there[:most][-1] + 1)
    else:
        assert end == INITIAL


def test_an_empty_queue_gives_the_offset_that_was(bench: Bench) -> None:
    """No batch, no stream's row."""
    loop = bench.loop()

    assert loop.latest(INITIAL) == INITIAL
    assert bench.dotnet.state_rows("stream", "stream") == []


def test_batches_follow_one_another_until_the_queue_is_empty(bench: Bench) -> None:
    """Every message once and in order; each `latest` acknowledges the batch before."""
    sent = send(bench, 25)
    loop = bench.loop(maxMessagesPerTrigger="10")

    got = bench.drain(loop)

    assert got == sent
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.dotnet.state_rows("stream", "queue, acked_batch, messages") == [
        (bench.stated, 3, 25)
    ]


def test_an_offset_is_one_text_whoever_makes_it(bench: Bench) -> None:
    """Spark compares texts: the keys have one order, also after the checkpoint."""
    send(bench, 3)
    loop = bench.loop()

    end = loop.latest(INITIAL)

    assert list(end.to_json()) == list(INITIAL.to_json()) == ["v", "stream", "batch", "plan"]
    again = bench.loop().latest(replace(INITIAL, stream=end.stream))
    assert json.dumps(again.to_json()) == json.dumps(end.to_json())


def test_a_plan_is_stored_word_for_word_and_given_out_again(bench: Bench) -> None:
    """offsets/N was lost, and with it who had received what: the next driver hands out the same."""
    send(bench, 30)
    first = bench.loop(maxMessagesPerTrigger="10")
    start, _ = bench.batch(first)
    lost = first.latest(start)
    (got,) = [bench.receive(task) for task in first.tasks(lost)]
    send(bench, 5)

    second = bench.loop(maxMessagesPerTrigger="3", maxConcurrency="8")
    again = second.latest(through_spark(start))

    assert json.dumps(again.to_json()) == json.dumps(lost.to_json())
    (replayed,) = [bench.receive(task) for task in second.tasks(again)]
    assert replayed.equals(got)
    assert len(bench.drain(second, through_spark(again))) == 15


def test_the_same_driver_asked_again_gives_the_same_plan(bench: Bench) -> None:
    """A batch has one plan, ever, though messages came in between."""
    send(bench, 3)
    loop = bench.loop()
    start, _ = bench.batch(loop)
    send(bench, 3)
    end = loop.latest(start)
    send(bench, 3)

    assert loop.latest(start) == end


def test_commit_and_the_next_plan_acknowledge_alike(bench: Bench) -> None:
    """Spark calls either, or both."""
    send(bench, 3)
    loop = bench.loop()
    end, _ = bench.batch(loop)

    loop.acknowledge(end)

    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert loop.latest(end) == end
    loop.acknowledge(end)
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 3)]


# ----- limits ----------------------------------------------------------------------------------


def test_max_bytes_bounds_a_batch_but_for_one_message_of_each_task(bench: Bench) -> None:
    """By what the lowest messages weigh; one message comes at least."""
    bench.dotnet.send_many(bench.queue, [b"x" * 998] * 100, lives=None)  # 1,000 with headers
    loop = bench.loop(maxBytesPerTrigger="20000", maxConcurrency="1")

    _, tables = bench.batch(loop)

    assert sum(table.num_rows for table in tables) == 20
    tiny = bench.loop(maxBytesPerTrigger="1")
    _, tables = bench.batch(tiny)
    assert [table.num_rows for table in tables] == [1]


def test_a_heavy_message_among_light_ones_ends_the_batch(bench: Bench) -> None:
    """The average misleads; the database cuts at the exact weight."""
    bench.dotnet.send_many(bench.queue, [b"x"] * 60 + [b"y" * 100_000] + [b"z"] * 9, lives=None)
    loop = bench.loop(maxBytesPerTrigger="50000", maxConcurrency="1")

    _, (rows,) = bench.batch(loop)

    assert rows.num_rows == 61
    assert len(bench.seqs()) == 9


def test_too_few_messages_are_waited_for_but_not_too_long(bench: Bench) -> None:
    """`minMessagesPerTrigger` and `maxTriggerDelay`, by the clock that is passed in."""
    clock = Clock()
    loop = bench.loop(clock, minMessagesPerTrigger="10", maxTriggerDelay="60s", peekDelay="1s")
    send(bench, 9)
    assert loop.latest(INITIAL) == INITIAL
    clock.now += 59.5
    assert loop.latest(INITIAL) == INITIAL

    clock.now += 0.5  # less than a peekDelay after the last peek: the end of the wait counts
    end, tables = bench.batch(loop)

    assert sum(table.num_rows for table in tables) == 9
    send(bench, 9)
    assert loop.latest(end) == end
    clock.now += 1.0
    send(bench, 1)
    _, tables = bench.batch(loop, end)
    assert sum(table.num_rows for table in tables) == 10


def test_an_empty_peek_leaves_the_database_alone_for_peek_delay(bench: Bench) -> None:
    """Not one statement before it is over, however often Spark asks."""
    clock = Clock()
    bench.watched = True
    loop = bench.loop(clock, peekDelay="5s")
    loop.latest(INITIAL)
    bench.said.clear()
    send(bench, 1)

    for _ in range(9):
        clock.now += 0.5
        assert loop.latest(INITIAL) == INITIAL
    assert bench.said == []
    clock.now += 0.5

    assert loop.latest(INITIAL).batch == 1
    assert "peek" in bench.said


def test_a_batch_that_got_nothing_is_followed_by_a_pause(bench: Bench) -> None:
    """Others hold the messages: no busy loop of empty batches."""
    clock = Clock()
    send(bench, 5)
    loop = bench.loop(clock, peekDelay="5s")
    with bench.dotnet.hold(bench.queue, [1, 2, 3, 4, 5]):
        end, tables = bench.batch(loop)
        assert sum(table.num_rows for table in tables) == 0

        assert loop.latest(end) == end
        clock.now += 4.9
        assert loop.latest(end) == end
    clock.now += 0.2

    assert len(bench.drain(loop, end)) == 5


@pytest.mark.parametrize("frozen", [True, False], ids=["AvailableNow", "continuous"])
def test_a_held_head_longer_than_a_batch_does_not_stop_the_rest(
    bench: Bench, *, frozen: bool
) -> None:
    """A competing consumer may hold its messages for hours: what lies behind can be received."""
    clock = Clock()
    sent = send(bench, 30)
    loop = bench.loop(clock, maxMessagesPerTrigger="10")
    if frozen:
        loop.freeze()

    got: list[bytes] = []
    with bench.dotnet.hold(bench.queue, list(range(1, 13))):
        start = INITIAL
        for _ in range(1 if frozen else 8):
            got += bench.drain(loop, start)
            start = loop._acknowledged  # noqa: SLF001 - what Spark's commit log would say
            clock.now += 60.0

    assert got == sent[12:]


def test_a_lower_seq_that_commits_late_is_still_found(bench: Bench) -> None:
    """Behind the place where the peek begins: at once when nothing else waits, else before long."""
    clock = Clock()
    loop = bench.loop(clock, maxMessagesPerTrigger="10")
    with bench.dotnet.holding(bench.queue, 2):
        send(bench, 20)
        start, _ = bench.batch(loop)
    got: list[bytes] = []
    for at in range(60):
        send(bench, 10, 100 * at)  # it never finds nothing
        clock.now += 1.0
        start, tables = bench.batch(loop, start)
        got += [body for table in tables for body in table["body"].to_pylist()]
        if b"late" in got:
            break

    assert got.count(b"late") == 2


def test_a_late_seq_is_found_when_nothing_else_waits(bench: Bench) -> None:
    """Also at the end of an AvailableNow run."""
    loop = bench.loop()
    with bench.dotnet.holding(bench.queue, 1):
        send(bench, 2)
        loop.freeze()
        start, _ = bench.batch(loop)

    assert bench.drain(loop, start) == [b"late"]


# ----- AvailableNow ----------------------------------------------------------------------------


def test_available_now_ends_at_what_was_there_at_its_start(bench: Bench) -> None:
    """However fast others send."""
    sent = send(bench, 25)
    loop = bench.loop(maxMessagesPerTrigger="10")
    loop.freeze()
    send(bench, 10, 100)

    got: list[bytes] = []
    start: Offset = INITIAL
    for _ in range(10):
        end, tables = bench.batch(loop, start)
        if end == start:
            break
        send(bench, 3, 200)
        start = end
        got += [body for table in tables for body in table["body"].to_pylist()]

    assert got == sent
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_available_now_on_an_empty_queue_is_over_at_once(bench: Bench) -> None:
    """What is sent after its start is for the next run."""
    loop = bench.loop()
    loop.freeze()
    send(bench, 3)

    assert loop.latest(INITIAL) == INITIAL


def test_available_now_ends_though_others_hold_rows(bench: Bench) -> None:
    """It takes all that is free, and does not wait for the rest."""
    sent = send(bench, 25)
    loop = bench.loop(maxMessagesPerTrigger="10")
    loop.freeze()

    with bench.dotnet.hold(bench.queue, [1, 7, 25]):
        got = bench.drain(loop)

    assert got == [body for body in sent if body not in {b"0", b"6", b"24"}]


@pytest.mark.parametrize("kind", ["expired", "poison"])
def test_available_now_passes_1000_dead_messages_at_the_head(bench: Bench, kind: str) -> None:
    """A batch that delivers nothing is not the end."""
    send(bench, 1000, lives=-1 if kind == "expired" else None)
    if kind == "poison":
        bench.dotnet.dba.rewrite(bench.queue, "[]")
    sent = send(bench, 900)
    loop = bench.loop(maxMessagesPerTrigger="400", errorQueue=bench.address("error"))
    loop.freeze()

    assert bench.drain(loop) == sent
    assert len(bench.dotnet.rows(bench.errors)) == (1000 if kind == "poison" else 0)


def test_min_messages_does_not_hold_available_now(bench: Bench) -> None:
    """There is nothing to wait for."""
    sent = send(bench, 3)
    loop = bench.loop(minMessagesPerTrigger="100")
    loop.freeze()

    assert bench.drain(loop) == sent


# ----- transactionMode none --------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [True, False], ids=["AvailableNow", "continuous"])
def test_transaction_mode_none_needs_no_state_tables(bare: Bench, *, frozen: bool) -> None:
    """At most once: no stream, no receipt; batches end when the queue does."""
    sent = send(bare, 25)
    loop = bare.loop(transactionMode="none", maxMessagesPerTrigger="10")
    if frozen:
        loop.freeze()

    assert bare.drain(loop) == sent
    assert bare.seqs() == []


def test_transaction_mode_none_ends_though_others_hold_rows(bare: Bench) -> None:
    """Without receipts it sees by the queue alone that nothing moves."""
    sent = send(bare, 5)
    loop = bare.loop(transactionMode="none")
    loop.freeze()

    with bare.dotnet.hold(bare.queue, [1, 2]):
        got = bare.drain(loop)

    assert got == sent[2:]


# ----- checkpoints -----------------------------------------------------------------------------


def test_two_drivers_on_one_checkpoint_the_first_is_told(bench: Bench) -> None:
    """The later one goes on; never are there two plans of one batch."""
    sent = send(bench, 40)
    first = bench.loop(maxMessagesPerTrigger="10")
    start, tables = bench.batch(first)
    second = bench.loop(maxMessagesPerTrigger="7")
    plan = first.latest(start)
    other = second.latest(through_spark(start))

    assert other == plan
    with pytest.raises(StreamTakenOver) as caught:
        first.latest(plan)
    assert str(caught.value).startswith(f"stream {start.stream} was taken over by another driver: ")
    got = [body for table in tables for body in table["body"].to_pylist()]
    got += [
        body for task in second.tasks(other) for body in bench.receive(task)["body"].to_pylist()
    ]
    assert got + bench.drain(second, other) == sent


def test_a_driver_taken_over_between_its_ack_and_its_plan_plans_nothing(bench: Bench) -> None:
    """It would be the second plan of the batch."""
    clock = Clock()
    send(bench, 3)
    first = bench.loop(clock)
    start, _ = bench.batch(first)
    assert first.latest(start) == start
    second = bench.loop()
    assert second.latest(through_spark(start)) == start
    send(bench, 3)
    clock.now += 2.0

    with pytest.raises(StreamTakenOver):
        first.latest(start)
    assert bench.dotnet.state_rows("stream", "acked_batch, plan_batch") == [(1, None)]


def test_two_first_drivers_at_once_are_two_streams(bench: Bench) -> None:
    """No checkpoint yet to share; each message goes to one of them."""
    sent = send(bench, 10)
    first, second = bench.loop(), bench.loop()
    one, two = first.latest(INITIAL), second.latest(INITIAL)

    got = [
        bench.receive(task)["body"].to_pylist()
        for loop, end in ((first, one), (second, two))
        for task in loop.tasks(end)
    ]

    assert one.stream != two.stream
    assert sorted(chain(*got)) == sorted(sent)


@pytest.mark.parametrize("batches", [1, 2])
def test_a_checkpoint_rolled_back_is_refused(bench: Bench, batches: int) -> None:
    """By one batch or by several: the messages between are gone from the queue."""
    send(bench, 40)
    loop = bench.loop(maxMessagesPerTrigger="10")
    offsets: list[Offset] = [INITIAL]
    for _ in range(3):
        offsets.append(bench.batch(loop, offsets[-1])[0])
    loop.acknowledge(offsets[3])
    old = through_spark(offsets[3 - batches])

    with pytest.raises(CheckpointRolledBack):
        bench.loop().latest(old)
    zombie = bench.loop().tasks(offsets[3 - batches])[0]
    with pytest.raises(StaleTask):
        bench.receive(zombie)
    assert len(bench.seqs()) == 10


@pytest.mark.parametrize("planned", [True, False], ids=["with a plan", "without"])
def test_fail_on_data_loss_false_goes_on_after_a_roll_back(bench: Bench, *, planned: bool) -> None:
    """With the batch after the last acknowledged one; each message comes once."""
    sent = send(bench, 40)
    loop = bench.loop(maxMessagesPerTrigger="10")
    one, first = bench.batch(loop)
    two, second = bench.batch(loop, one)
    if planned:
        bench.batch(loop, two)
    else:
        loop.acknowledge(two)

    got = bench.drain(bench.loop(failOnDataLoss="false"), through_spark(one))

    before = [body for table in [*first, *second] for body in table["body"].to_pylist()]
    assert before + got == sent
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_a_rolled_back_checkpoint_goes_on_over_several_starts(bench: Bench) -> None:
    """The offset that was planned after the gap is an ordinary one."""
    sent = send(bench, 30)
    loop = bench.loop(maxMessagesPerTrigger="10")
    one, _ = bench.batch(loop)
    two, _ = bench.batch(loop, one)
    loop.acknowledge(two)
    again, tables = bench.batch(bench.loop(failOnDataLoss="false"), through_spark(one))

    assert again.batch == 3
    assert tables[0]["body"].to_pylist() == sent[20:]
    assert bench.drain(bench.loop(), through_spark(again)) == []
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(3,)]


def test_a_checkpoint_of_another_queue_is_refused(bench: Bench) -> None:
    """By the plan and by the acknowledgement, before anything is touched."""
    send(bench, 3)
    end, _ = bench.batch(bench.loop())
    other = bench.loop(queue=bench.address("error"))

    for work in (other.tasks, other.latest, other.acknowledge):
        with pytest.raises(StreamOfOtherQueue) as caught:
            work(end)
        assert str(caught.value) == (
            f"this checkpoint belongs to a stream of queue {bench.stated}, "
            f"not of {bench.address('error')}. "
            "Set a checkpointLocation of its own for this stream."
        )
    assert len(bench.dotnet.state_rows("receipt", "batch")) == 1


def test_a_checkpoint_of_another_database_is_refused(bench: Bench) -> None:
    """Or of state tables that were made anew."""
    send(bench, 3)
    end, _ = bench.batch(bench.loop())
    bench.dotnet.dba.forget("stream")

    with pytest.raises(StreamNotFound, match=bench.dotnet.state):
        bench.loop().latest(end)


def test_a_checkpoint_whose_receipts_were_returned_does_not_receive_twice(bench: Bench) -> None:
    """An operator returned them; then the lost checkpoint came back."""
    sent = send(bench, 3)
    loop = bench.loop()
    end = loop.latest(INITIAL)
    (task,) = loop.tasks(end)
    bench.receive(task)
    from .test_receipts import return_  # noqa: PLC0415 - an operator is needed here only

    assert return_(bench, str(end.stream)) == 3

    with pytest.raises(StaleTask):
        bench.receive(task)
    assert bench.drain(bench.loop()) == sent


# ----- starting --------------------------------------------------------------------------------


def test_absent_state_tables_are_told_before_anything_is_received(bare: Bench) -> None:
    """With the command that makes them."""
    send(bare, 3)

    with pytest.raises(StateNotInstalled, match="sqlqueue install"):
        bare.loop().latest(INITIAL)
    assert len(bare.seqs()) == 3


def test_purge_on_startup_empties_the_queue_once(bench: Bench) -> None:
    """What comes after the start of the process is received."""
    clock = Clock()
    send(bench, 5)
    loop = bench.loop(clock, purgeOnStartup="true")
    assert loop.latest(INITIAL) == INITIAL
    sent = send(bench, 3, 100)
    clock.now += 2.0

    assert bench.drain(loop) == sent


def test_purge_on_startup_leaves_what_was_received_before(bench: Bench) -> None:
    """A receipt is no longer in the queue: the batch that was interrupted is replayed whole."""
    sent = send(bench, 3)
    loop = bench.loop()
    end = loop.latest(INITIAL)
    (task,) = loop.tasks(end)
    bench.receive(task)
    send(bench, 5, 100)

    again = bench.loop(purgeOnStartup="true")
    (rows,) = [bench.receive(task) for task in again.tasks(end)]
    again.latest(end)

    assert rows["body"].to_pylist() == sent
    assert bench.seqs() == []


def test_receipts_of_other_streams_are_warned_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start of a new stream: its messages may be missed elsewhere."""
    send(bench, 3)
    bench.batch(bench.loop())
    send(bench, 1)
    caplog.clear()

    bench.batch(bench.loop())

    assert "3 messages lie in receipts of other streams" in caplog.text
    assert "sqlqueue receipts list" in caplog.text


def test_a_locked_table_does_not_hang_the_driver(bench: Bench) -> None:
    """The peek waits for queryTimeout, no longer, and says so."""
    send(bench, 1)
    loop = bench.loop(queryTimeout="1s")
    with bench.dotnet.locked(bench.queue):
        peek = bench.thread(lambda: loop.latest(INITIAL))
        with pytest.raises(TimedOut, match="Raise the option queryTimeout"):
            peek.result(timeout=TIMEOUT)


def test_a_queue_that_cannot_be_looked_at_does_not_keep_the_receipts_of_another(
    bench: Bench,
) -> None:
    """What Spark has in its commit log is acknowledged, though the next batch cannot be planned."""
    second = replace(bench.queue, table="second")
    bench.dotnet.create(second)
    send(bench, 1)
    clock = Clock()
    loop = bench.loop(clock, queues=f"{bench.printed}, {bench.desk.printed(second)}")
    end, _ = bench.batch(loop)
    bench.dotnet.dba.drop(second)
    clock.now += 60

    with pytest.raises(QueueNotFound, match="second"):
        loop.latest(end)

    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 1)]
    with pytest.raises(QueueNotFound, match="second"):
        loop.latest(end)
    bench.dotnet.create(second)
    assert loop.latest(end) == end


def test_a_delayed_table_that_is_missing_does_not_keep_receipts(bench: Bench) -> None:
    """What is done is acknowledged, though nothing can be moved before the next batch."""
    send(bench, 1)
    end, _ = bench.batch(bench.loop())

    with pytest.raises(DelayedQueueNotFound):
        bench.loop(delayedDelivery="true").latest(end)

    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 1)]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_highest_seq_there_is_does_not_stop_a_stream(bench: Bench, *, frozen: bool) -> None:
    """What a stranger put at the end of all numbers stays there; the rest is received."""
    bench.dotnet.dba.put_at(bench.queue, 2**63 - 1)
    sent = send(bench, 3)
    loop = bench.loop()
    if frozen:
        loop.freeze()

    assert bench.drain(loop) == sent

    assert bench.seqs() == [2**63 - 1]


@pytest.mark.usefixtures("impatient")
def test_a_batch_that_must_be_closed_again_is_learned_from_once(bench: Bench) -> None:
    """A session lost between ack and plan does not make the ramp climb twice."""
    send(bench, 2)
    bench.watched = True
    bench.strike = Strike(10**9, lambda: bench.dotnet.kill("sqlqueue driver orders"))
    loop = bench.loop(maxMessagesPerTrigger="1")
    end, _ = bench.batch(loop)
    bench.strike.at = bench.strike.seen + 7

    loop.latest(end)

    assert bench.strike.fell == "peek"
    assert loop.planner.ramp.successes == 1


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_the_driver_is_answered_by_doing_it_again(
    bench: Bench,
) -> None:
    """Between ack, peek and plan: one plan for the batch, every message once."""
    struck: list[str] = []
    for at, after in strikes(struck):
        bench.dotnet.dba.empty(bench.queue)
        bench.dotnet.dba.forget("stream")
        sent = send(bench, 2)
        bench.watched = True
        bench.strike = Strike(at, lambda: bench.dotnet.kill("sqlqueue driver orders"), after)
        loop = bench.loop()

        got = bench.drain(loop)

        loop.close()
        bench.watched = False
        assert got == sent
        assert [row[0] for row in bench.dotnet.state_rows("receipt", "batch")] == []
        # a lost answer to the first plan leaves a stream that nobody knows of, and nothing else
        assert sum(row[0] for row in bench.dotnet.state_rows("stream", "messages")) == 2
        if bench.strike.fell is not None and not after:
            struck.append(bench.strike.fell)

    wanted = "peek sample new_stream store_plan acknowledge delete_receipts commit"
    assert set(wanted.split()) <= set(struck)


# ----- progress --------------------------------------------------------------------------------


def test_the_report_says_what_waits_and_what_was_got(bench: Bench) -> None:
    """Backlog, age of the lowest, outcome of the last batch."""
    bench.dotnet.send(
        bench.queue, '{"NServiceBus.TimeSent":"2026-01-01 00:00:00:000000 Z"}', b"old"
    )
    bench.dotnet.send(bench.queue, lives=-1)
    bench.dotnet.send(bench.queue, "[]")
    loop = bench.loop(errorQueue=bench.address("error"))
    end, _ = bench.batch(loop)

    said = loop.report()
    loop.latest(end)
    after = loop.report()

    assert said["queue"] == bench.stated
    assert said["backlog"] == 3
    assert said["backlogIsEstimate"] is False
    assert said["oldestWaited"] > 86400
    assert "lastBatch" not in said
    assert after["backlog"] == 0
    assert after["lastBatch"] == {
        "batch": 1,
        "tasks": 1,
        "emptyTasks": 0,
        "messages": 1,
        "expired": 1,
        "diverted": 1,
        "forwarded": 0,
    }


def test_a_backlog_beyond_the_limit_is_estimated(bench: Bench) -> None:
    """By the span of the seqs: a count of all would cost too much."""
    send(bench, 50)
    loop = bench.loop(maxMessagesPerTrigger="10")
    loop.latest(INITIAL)

    said = loop.report()

    assert (said["backlog"], said["backlogIsEstimate"]) == (50, True)


def test_a_stream_of_a_queue_in_the_default_schema_names_it(bench: Bench) -> None:
    """One queue is one address, however the user spelled it."""
    source = bench.source(queue="Shop.Orders")

    loop = PeekLoop(source, Clock(), checks.at_start)

    default = {"postgresql": '"public"."Shop.Orders"', "sqlserver": "Shop.Orders@[dbo]"}
    assert loop.who.queue == default[bench.dotnet.dialect]
    assert source.address == QueueAddress("Shop.Orders")
