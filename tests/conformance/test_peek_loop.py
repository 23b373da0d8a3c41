"""The driver's side of a stream, driven as Spark drives it; its tasks run as executors run them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark import errors
from sqlq_spark.receive import pace
from sqlq_spark.receive.offset import INITIAL

from .conftest import ON_DATABASE, Bench, Clock, bodies, through_spark


def send(bench: Bench, messages: int, first: int = 0, **more: Any) -> list[bytes]:
    """Send numbered messages and return their bodies."""
    sent = [b"%d" % at for at in range(first, first + messages)]
    bench.dotnet.send_many(bench.queue, sent, **more)
    return sent


# ----- plans -----------------------------------------------------------------------------------


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
    base = bench.seqs()[0]
    bench.dotnet.dba.delete(bench.queue, [base + at for at in gone])
    there = bench.seqs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "MESSAGES_PER_TASK", 1)  # so that a few messages are worth many tasks
        loop = bench.loop(maxMessagesPerTrigger=str(most), maxConcurrency=str(tasks))
        end = loop.latest(INITIAL)

    planned = loop.tasks(end)
    got = [bench.receive(task)["seq"].to_pylist() for task in planned]

    assert len(planned) <= tasks
    assert all(one.stop == two.first for one, two in pairwise(planned))
    assert [seq for part in got for seq in part] == there[:most]
    assert all(got)
    if there:
        assert max(map(len, got)) <= -(-min(most, len(there)) // len(planned))
        assert (planned[0].first, planned[-1].stop) == (there[0], there[:most][-1] + 1)
    else:
        assert end == INITIAL


def test_a_plan_is_stored_word_for_word_and_given_out_again(bench: Bench) -> None:
    """offsets/N was lost, and with it who had received what: the next driver hands out the same."""
    send(bench, 30)
    first = bench.loop(maxMessagesPerTrigger="10")
    start, _ = bench.batch(first)
    lost = first.latest(start)
    (got,) = [bench.receive(task) for task in first.tasks(lost)]
    send(bench, 5)
    assert first.latest(start) == lost

    second = bench.loop(maxMessagesPerTrigger="3", maxConcurrency="8")
    again = second.latest(through_spark(start))

    assert json.dumps(again.to_json()) == json.dumps(lost.to_json())
    (replayed,) = [bench.receive(task) for task in second.tasks(again)]
    assert replayed.equals(got)
    assert len(bench.drain(second, through_spark(again))) == 15


# ----- limits ----------------------------------------------------------------------------------


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


def test_a_late_seq_is_found_when_nothing_else_waits(bench: Bench) -> None:
    """Also at the end of an AvailableNow run."""
    loop = bench.loop()
    with bench.dotnet.apart(commit=True) as other:
        other.send(bench.queue, body=b"late")
        send(bench, 2)
        loop.freeze()
        start, _ = bench.batch(loop)

    assert bench.drain(loop, start) == [b"late"]


# ----- AvailableNow ----------------------------------------------------------------------------


def test_available_now_passes_1000_dead_messages_at_the_head(bench: Bench) -> None:
    """A batch that delivers nothing, but expired messages and poison, is not the end."""
    send(bench, 600)
    bench.dotnet.dba.rewrite(bench.queue, "[]")
    send(bench, 400, lives=-1)
    sent = send(bench, 900)
    loop = bench.loop(maxMessagesPerTrigger="400", errorQueue=bench.address("error"))
    loop.freeze()

    assert bench.drain(loop) == sent
    assert len(bench.dotnet.rows(bench.errors)) == 600


# ----- transactionMode none --------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [True, False], ids=["AvailableNow", "continuous"])
def test_transaction_mode_none_needs_no_state_tables(bare: Bench, *, frozen: bool) -> None:
    """At most once: no stream, no receipt; it ends when the queues do, but for what others hold."""
    sent = send(bare, 25)
    bare.dotnet.send_many(bare.errors, [b"other"] * 8)
    queues = f"{bare.printed}, {bare.address('error')}"
    loop = bare.loop(queues=queues, transactionMode="none", maxMessagesPerTrigger="10")
    if frozen:
        loop.freeze()

    with bare.dotnet.hold(bare.queue, [24, 25]):
        got = bare.drain(loop)

    assert sorted(got) == sorted([*sent[:23], *[b"other"] * 8])
    assert bare.seqs() == [24, 25]


# ----- checkpoints -----------------------------------------------------------------------------


def test_a_checkpoint_of_transaction_mode_none_begins_receipts(bench: Bench) -> None:
    """The stream that it makes counts its own batches from the first, and loses nothing."""
    sent = send(bench, 9)
    end, _ = bench.batch(bench.loop(transactionMode="none", maxMessagesPerTrigger="3"))

    loop = bench.loop(maxMessagesPerTrigger="3")
    end, first = bench.batch(loop, through_spark(end))
    _, second = bench.batch(loop, through_spark(end))

    assert bodies(*first, *second) == sent[3:]
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 3)]


def test_two_drivers_on_one_checkpoint_the_first_ends(bench: Bench) -> None:
    """The later one goes on; never are there two plans of one batch."""
    sent = send(bench, 40)
    first = bench.loop(maxMessagesPerTrigger="10")
    start, tables = bench.batch(first)
    second = bench.loop(maxMessagesPerTrigger="7")
    plan = first.latest(start)
    other = second.latest(through_spark(start))

    assert other == plan
    with pytest.raises(errors.StreamTakenOver) as caught:
        first.latest(plan)
    assert str(caught.value).startswith(f"stream {start.stream} was taken over by another driver: ")
    got = bodies(*tables, *(bench.receive(task) for task in second.tasks(other)))
    assert got + bench.drain(second, other) == sent


@pytest.mark.parametrize("planned", [True, False], ids=["with a plan", "without"])
def test_fail_on_data_loss_false_goes_on_after_a_roll_back(bench: Bench, *, planned: bool) -> None:
    """With the batch after the last acknowledged one; its offset is an ordinary one."""
    sent = send(bench, 40)
    loop = bench.loop(maxMessagesPerTrigger="10")
    one, first = bench.batch(loop)
    two, second = bench.batch(loop, one)
    if planned:
        bench.batch(loop, two)
    else:
        loop.acknowledge(two)

    accepting = bench.loop(failOnDataLoss="false", maxMessagesPerTrigger="10")
    three, third = bench.batch(accepting, through_spark(one))
    rest = bench.drain(bench.loop(), through_spark(three))

    assert three.batch == 3
    assert bodies(*first, *second, *third) + rest == sent
    assert bench.dotnet.state_rows("receipt", "batch") == []


# ----- starting --------------------------------------------------------------------------------


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


def test_a_queue_that_cannot_be_looked_at_does_not_keep_the_receipts_of_another(
    bench: Bench,
) -> None:
    """What Spark has in its commit log is acknowledged, though the next batch cannot be planned."""
    second = replace(bench.queue, table="second")
    bench.dotnet.create(second)
    send(bench, 1)
    clock = Clock()
    queues = f"{bench.printed}, {bench.desk.printed(second)}"
    loop = bench.loop(clock, queues=queues)
    end, _ = bench.batch(loop)
    bench.dotnet.dba.drop(second)
    clock.now += 60

    for _ in range(2):
        with pytest.raises(errors.QueueNotFound, match="second"):
            loop.latest(end)

        assert bench.dotnet.state_rows("receipt", "batch") == []
        assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(1, 1)]
    bench.dotnet.create(second)
    assert loop.latest(end) == end
    send(bench, 1)
    end, _ = bench.batch(bench.loop(queues=queues), end)
    with pytest.raises(errors.DelayedQueueNotFound):  # so it is where nothing can be moved
        bench.loop(queues=queues, delayedDelivery="true").latest(end)
    assert bench.dotnet.state_rows("stream", "acked_batch, messages") == [(2, 2)]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_highest_seq_there_is_does_not_stop_a_stream(bench: Bench, *, frozen: bool) -> None:
    """What another client put at the end of all numbers stays there; the rest is received."""
    bench.dotnet.dba.put_at(bench.queue, 2**63 - 1)
    sent = send(bench, 3)
    loop = bench.loop()
    if frozen:
        loop.freeze()

    assert bench.drain(loop) == sent

    assert bench.seqs() == [2**63 - 1]


def test_an_idle_look_asks_all_queues_with_one_statement(bench: Bench) -> None:
    """And looks only into those in which something waits."""
    bench.watched = True
    loop = bench.loop(queues=f"{bench.printed}, {bench.address('error')}")
    assert loop.latest(INITIAL) == INITIAL
    assert (bench.said.count("waiting"), bench.said.count("peek")) == (1, 0)
    bench.dotnet.send(bench.errors, body=b"other")

    assert bench.drain(bench.loop(queues=f"{bench.printed}, {bench.address('error')}")) == [
        b"other"
    ]

    assert bench.said.count("sample") == 1


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_the_driver_is_answered_by_doing_it_again(
    bench: Bench,
) -> None:
    """Between ack, peeks and plan: one plan for the batch, every message of two queues once."""
    queues = f"{bench.printed}, {bench.address('error')}"
    for _ in bench.strikes("sqlqueue driver orders"):
        bench.dotnet.dba.forget("stream")
        sent = send(bench, 2)
        bench.dotnet.send(bench.errors, body=b"other")
        loop = bench.loop(queues=queues)

        got = bench.drain(loop)

        loop.close()
        assert got == [*sent, b"other"]
        assert bench.dotnet.state_rows("receipt", "batch") == []
        # a lost answer to the first plan leaves a stream that nobody knows of, and nothing else
        assert sum(row[0] for row in bench.dotnet.state_rows("stream", "messages")) == 3

    wanted = "peek sample new_stream store_plan acknowledge delete_receipts commit"
    assert set(wanted.split()) <= set(bench.struck)


# ----- progress --------------------------------------------------------------------------------
