"""Pace: never above a limit, never a task without work, always progress."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.pace import (
    BYTES_PER_TASK,
    MESSAGES_PER_TASK,
    RAMP_DOWN,
    RAMP_UP,
    Backlog,
    Outcome,
    Plan,
    Ramp,
    plans,
    share_fairly,
)
from sqlq_spark.wire.address import QueueAddress

MIB = 1024 * 1024

BACKLOGS = st.builds(
    Backlog,
    messages=st.integers(0, 10**7),
    bytes_each=st.floats(0.01, 1e9),
    most_tasks=st.none() | st.integers(1, 3),
)
RAMPS = st.builds(Ramp, st.integers(1, 64), st.integers(0, 20), st.integers(0, 20))


OUTCOMES = st.integers(0, 64).flatmap(  # what batches may come to
    lambda ran: st.builds(Outcome, st.just(ran), st.integers(0, ran), st.integers(0, 1_000_000))
)


def limits(
    messages: int = 100_000, size: int | None = None, *, least: int | None = None, **more: Any
) -> SourceOptions:
    """Options with these limits."""
    return SourceOptions(
        url="postgresql://host/shop",
        queue=QueueAddress("orders"),
        max_messages=messages,
        max_bytes=size,
        min_messages=least if least is None else min(least, messages),
        **({"max_trigger_delay": 900.0, "max_concurrency": 8} | more),
    )


LIMITS = st.builds(
    limits,
    messages=st.integers(1, 10**6),
    size=st.none() | st.integers(1, 10**10),
    least=st.none() | st.integers(1, 10**6),
    max_trigger_delay=st.floats(0, 1e6),
    max_concurrency=st.integers(1, 64),
)


def backlog(messages: int, bytes_each: float = 100.0, most: int | None = None) -> Backlog:
    """A backlog of small messages."""
    return Backlog(messages, bytes_each, most)


# ----- plans -----------------------------------------------------------------------------------

FEW = [backlog(60), backlog(39), backlog(0)]
PLANNED = [Plan(60, 1), Plan(39, 1), None]


@pytest.mark.parametrize(
    ("queues", "allowed", "more", "expected"),
    [
        # one queue: a task for each thousand messages or MiB, and one at least
        ([backlog(0)], limits(), {}, [None]),
        ([backlog(1999)], limits(), {}, [Plan(1999, 1)]),
        ([backlog(2000)], limits(), {}, [Plan(2000, 2)]),
        ([backlog(1_000_000)], limits(), {}, [Plan(100_000, 8)]),
        ([backlog(1_000_000)], limits(max_concurrency=2), {}, [Plan(100_000, 2)]),
        ([backlog(10, MIB)], limits(), {}, [Plan(10, 8)]),
        ([backlog(3, 100 * MIB)], limits(), {}, [Plan(3, 3)]),
        ([backlog(10, MIB)], limits(size=4 * MIB), {}, [Plan(4, 4)]),
        ([backlog(10, 1e300)], limits(size=10**9), {}, [Plan(1, 1)]),
        ([backlog(10, 1e-300)], limits(size=10**9), {}, [Plan(10, 1)]),
        ([backlog(50_000)], limits(), {"ramp": Ramp(3)}, [Plan(50_000, 3)]),
        # minMessagesPerTrigger, over all queues, with maxTriggerDelay
        ([backlog(99)], limits(least=100), {}, [None]),
        ([backlog(100)], limits(least=100), {}, [Plan(100, 1)]),
        ([backlog(99)], limits(least=100), {"waited": 899.9}, [None]),
        ([backlog(99)], limits(least=100), {"waited": 900.0}, [Plan(99, 1)]),
        ([backlog(0)], limits(least=100), {"waited": 900.0}, [None]),
        (FEW, limits(least=100), {}, [None] * 3),
        ([*FEW, backlog(1)], limits(least=100), {}, [*PLANNED, Plan(1, 1)]),
        (FEW, limits(least=100), {"waited": 900.0}, PLANNED),
        # several queues: messages and bytes by water filling, tasks by weight
        ([backlog(100_000), backlog(10)], limits(), {}, [Plan(99_990, 7), Plan(10, 1)]),
        ([backlog(100_000), backlog(0)], limits(), {}, [Plan(100_000, 8), None]),
        ([backlog(1999), backlog(1999)], limits(), {}, [Plan(1999, 1), Plan(1999, 1)]),
        ([backlog(9)] * 3, limits(max_concurrency=2), {}, [Plan(9, 1)] * 3),
        ([backlog(9)] * 3, limits(2), {}, [Plan(1, 1), Plan(1, 1), None]),
        (
            [backlog(50_000), backlog(50_000, most=1)],
            limits(),
            {},
            [Plan(50_000, 7), Plan(50_000, 1)],
        ),
        ([backlog(50_000, most=1)] * 2, limits(), {}, [Plan(50_000, 1)] * 2),
        # by bytes: the heavy ones get half of them, the light ones all they want
        ([backlog(50, MIB), backlog(1000)], limits(size=9 * MIB), {}, [Plan(8, 7), Plan(1000, 1)]),
        ([backlog(9, MIB), backlog(9)], limits(size=1000), {}, [Plan(1, 1), None]),
        ([backlog(9), backlog(9, MIB)], limits(size=1000), {}, [Plan(9, 1), None]),
    ],
)
def test_a_batch_takes_what_waits_within_its_limits(
    queues: list[Backlog], allowed: SourceOptions, more: dict[str, Any], expected: list[Plan | None]
) -> None:
    """The ramp lowers the tasks, but not the messages."""
    ramp = more.get("ramp", Ramp(allowed.concurrency))

    assert plans(queues, allowed, ramp, waited=more.get("waited", 0.0)) == expected


QUEUES = st.lists(BACKLOGS, min_size=1, max_size=8)


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_no_plan_is_above_a_limit_and_no_task_without_work(
    queues: list[Backlog], allowed: SourceOptions, ramp: Ramp, turn: int
) -> None:
    """Together; a task for each queue, and one message in all, there is always room for."""
    found = plans(queues, allowed, ramp, turn=turn)

    asked = [(plan, queue) for plan, queue in zip(found, queues, strict=True) if plan]
    for planned, queue in asked:
        assert 1 <= planned.messages <= queue.messages
        assert 1 <= planned.tasks <= min(queue.most_tasks or 64, planned.messages)
    messages = sum(plan.messages for plan, _ in asked)
    assert messages <= allowed.max_messages
    assert sum(plan.tasks for plan, _ in asked) <= max(
        len(asked), min(ramp.tasks, allowed.concurrency)
    )
    alone = len(queues) == 1
    if allowed.max_bytes is not None and messages > 1:
        weight = sum(plan.messages * queue.bytes_each for plan, queue in asked)
        assert weight <= (allowed.max_bytes + (0 if alone else len(asked))) * (1 + 1e-9)
    if alone and asked and asked[0][0].tasks > 1:  # each is worth its start
        each = messages / asked[0][0].tasks
        enough = each * queues[0].bytes_each >= BYTES_PER_TASK * (1 - 1e-9)
        assert enough or each >= MESSAGES_PER_TASK


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_every_queue_with_messages_is_asked_before_long(
    queues: list[Backlog], allowed: SourceOptions, ramp: Ramp, turn: int
) -> None:
    """Within as many batches as there are queues, whatever the limits and the others hold."""
    batches = [
        plans(queues, allowed, ramp, waited=allowed.max_trigger_delay, turn=turn + at)
        for at in range(len(queues))
    ]

    assert all(any(batch) == any(queue.messages for queue in queues) for batch in batches)
    for planned, queue in zip(zip(*batches, strict=True), queues, strict=True):
        assert any(planned) == (queue.messages > 0)


# ----- ramp ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ramp", "outcome", "expected"),
    [
        (Ramp(2), Outcome(1, 0, 10), Ramp(2, successes=1)),
        (Ramp(2, successes=RAMP_UP), Outcome(1, 0, 10), Ramp(3)),
        (Ramp(2), Outcome(2 * (RAMP_UP + 1) + 1, 0, 10), Ramp(4, successes=1)),
        (Ramp(8, successes=RAMP_UP), Outcome(2, 0, 10), Ramp(8, successes=RAMP_UP + 2)),
        (Ramp(2, failures=3), Outcome(1, 0, 10), Ramp(2, successes=1)),
        (Ramp(8, successes=3), Outcome(1, 1, 0), Ramp(8, failures=1)),
        (Ramp(8, failures=RAMP_DOWN), Outcome(1, 1, 0), Ramp(7, failures=RAMP_DOWN + 1)),
        (Ramp(8), Outcome(RAMP_DOWN + 3, RAMP_DOWN + 3, 0), Ramp(5, failures=RAMP_DOWN + 3)),
        (Ramp(1, failures=50), Outcome(1, 1, 0), Ramp(1, failures=51)),
        (Ramp(8), Outcome(8, 2, 10), Ramp(8, failures=2)),
        (Ramp(20), Outcome(0, 0, 0), Ramp(8)),
    ],
)
def test_the_ramp_counts_as_version_2_1_does(ramp: Ramp, outcome: Outcome, expected: Ramp) -> None:
    """Over a threshold of receives in a row: one task more, or less, with eight at the most."""
    assert ramp.after(outcome, limits(max_concurrency=8)) == expected


@given(
    RAMPS,
    st.lists(OUTCOMES, min_size=1, max_size=30),
    st.integers(1, 64),
    st.integers(0, 63),
)
def test_the_ramp_stays_between_its_bounds(
    ramp: Ramp, batches: list[Outcome], least: int, more: int
) -> None:
    """From `minConcurrency` to the maximum; an empty task ends the climb, a full batch the fall."""
    most = least + more
    options = limits(max_concurrency=most, min_concurrency=least)
    for outcome in batches:
        before, ramp = ramp, ramp.after(outcome, options)

        assert least <= ramp.tasks <= most
        if outcome.empty:
            assert ramp.successes == 0
        elif outcome.tasks:
            assert ramp.failures == 0
            assert ramp.tasks >= min(before.tasks, most)


# ----- shares ----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 1_000_000), max_size=12), st.integers(0, 2_000_000), st.integers(0, 100)
)
def test_a_fair_share_is_all_that_is_wanted_or_as_much_as_anyone_has(
    wants: list[int], limit: int, turn: int
) -> None:
    """Nothing is left while someone wants more, and everyone has a turn."""
    shares = share_fairly(wants, limit, turn=turn)

    assert sum(shares) == min(sum(wants), limit)
    for got, want in zip(shares, wants, strict=True):
        assert 0 <= got <= want
        assert got == want or got >= max(shares) - 1
    if limit and any(wants):
        batches = [share_fairly(wants, min(limit, 50), turn=turn + at) for at in range(len(wants))]
        for had, want in zip(zip(*batches, strict=True), wants, strict=True):
            assert any(had) == (want > 0)
