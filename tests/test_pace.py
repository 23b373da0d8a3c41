"""Pace: never above a limit, never a task without work, always progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.receive.pace import (
    BYTES_PER_TASK,
    MESSAGES_PER_TASK,
    RAMP_DOWN,
    RAMP_UP,
    Backlog,
    Limits,
    Outcome,
    Plan,
    Ramp,
    apportion,
    plans,
    share_fairly,
)

MIB = 1024 * 1024

BACKLOGS = st.builds(
    Backlog,
    messages=st.integers(0, 10**7),
    bytes_each=st.floats(0.01, 1e9),
    most_tasks=st.none() | st.integers(1, 3),
)
LIMITS = st.builds(
    Limits,
    messages=st.integers(1, 10**6),
    bytes=st.none() | st.integers(1, 10**10),
    min_messages=st.none() | st.integers(1, 10**6),
    max_delay=st.floats(0, 1e6),
    concurrency=st.integers(1, 64),
)
RAMPS = st.builds(Ramp, st.integers(1, 64), st.integers(0, 20), st.integers(0, 20))


def outcomes(tasks: int = 64) -> st.SearchStrategy[Outcome]:
    """What batches of up to so many tasks may come to."""
    return st.integers(0, tasks).flatmap(
        lambda ran: st.builds(Outcome, st.just(ran), st.integers(0, ran), st.integers(0, 1_000_000))
    )


def limits(
    messages: int = 100_000,
    size: int | None = None,
    *,
    least: int | None = None,
    delay: float = 900.0,
    concurrency: int = 8,
) -> Limits:
    """Limits as the options default to."""
    return Limits(messages, size, least, delay, concurrency)


def backlog(messages: int, bytes_each: float = 100.0, most: int | None = None) -> Backlog:
    """A backlog of small messages."""
    return Backlog(messages, bytes_each, most)


def plan(found: Backlog, allowed: Limits, ramp: Ramp, waited: float = 0.0) -> Plan | None:
    """Plan for a stream of one queue, in any batch."""
    (only,) = plans([found], allowed, ramp, waited=waited, turn=7)
    return only


# ----- plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "allowed", "expected"),
    [
        (backlog(0), limits(), None),
        (backlog(1), limits(), Plan(1, 1)),
        (backlog(1999), limits(), Plan(1999, 1)),
        (backlog(2000), limits(), Plan(2000, 2)),
        (backlog(1_000_000), limits(), Plan(100_000, 8)),
        (backlog(1_000_000), limits(concurrency=2), Plan(100_000, 2)),
        (backlog(10, MIB), limits(), Plan(10, 8)),
        (backlog(3, 100 * MIB), limits(), Plan(3, 3)),
        (backlog(10, MIB), limits(size=4 * MIB), Plan(4, 4)),
        (backlog(10, MIB), limits(size=1), Plan(1, 1)),
        (backlog(10, 1e300), limits(size=10**9), Plan(1, 1)),
        (backlog(10, 1e-300), limits(size=10**9), Plan(10, 1)),
    ],
)
def test_a_batch_takes_what_waits_within_its_limits(
    found: Backlog, allowed: Limits, expected: Plan | None
) -> None:
    """A task for each thousand messages or MiB, and one at least."""
    assert plan(found, allowed, Ramp(allowed.concurrency)) == expected


@pytest.mark.parametrize(
    ("messages", "waited", "allowed", "expected"),
    [
        (99, 0.0, limits(least=100), None),
        (100, 0.0, limits(least=100), Plan(100, 1)),
        (99, 899.9, limits(least=100), None),
        (99, 900.0, limits(least=100), Plan(99, 1)),
        (0, 900.0, limits(least=100), None),
        (50, 0.0, limits(50, least=100), Plan(50, 1)),  # more than the limit is never counted
    ],
)
def test_a_small_backlog_waits_but_not_longer_than_the_delay(
    messages: int, waited: float, allowed: Limits, expected: Plan | None
) -> None:
    """`minMessagesPerTrigger` with `maxTriggerDelay`."""
    assert plan(backlog(messages), allowed, Ramp(8), waited) == expected


def test_the_ramp_lowers_the_tasks_but_not_the_messages() -> None:
    """A queue that others share is read by fewer tasks."""
    assert plan(backlog(50_000), limits(), Ramp(3)) == Plan(50_000, 3)


@given(BACKLOGS, LIMITS, RAMPS)
def test_no_plan_is_above_a_limit(found: Backlog, allowed: Limits, ramp: Ramp) -> None:
    """Messages, bytes (but for one message) and tasks."""
    planned = plan(found, allowed, ramp)

    if planned is not None:
        assert planned.messages <= min(found.messages, allowed.messages)
        assert planned.tasks <= min(allowed.concurrency, ramp.tasks)
        if allowed.bytes is not None and planned.messages > 1:
            assert planned.messages * found.bytes_each <= allowed.bytes * (1 + 1e-9)


@given(BACKLOGS, LIMITS, RAMPS)
def test_no_task_is_without_work(found: Backlog, allowed: Limits, ramp: Ramp) -> None:
    """Each has a message, and each of several enough to be worth its start."""
    planned = plan(found, allowed, ramp)

    if planned is not None:
        assert planned.messages >= planned.tasks
    if planned is not None and planned.tasks > 1:
        each = planned.messages / planned.tasks
        enough = each * found.bytes_each >= BYTES_PER_TASK * (1 - 1e-9)
        assert enough or each >= MESSAGES_PER_TASK


@given(BACKLOGS, LIMITS, RAMPS)
def test_there_is_progress_once_the_wait_is_over(
    found: Backlog, allowed: Limits, ramp: Ramp
) -> None:
    """Whatever the limits: messages that wait are asked for, and nothing else is."""
    planned = plan(found, allowed, ramp, allowed.max_delay)

    if found.messages:
        assert planned is not None
        assert planned.messages >= 1
        assert planned.tasks >= 1
    else:
        assert planned is None


# ----- ramp ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ramp", "outcome", "expected"),
    [
        (Ramp(2), Outcome(1, 0, 10), Ramp(2, successes=1)),
        (Ramp(2), Outcome(RAMP_UP, 0, 10), Ramp(2, successes=RAMP_UP)),
        (Ramp(2, successes=RAMP_UP), Outcome(1, 0, 10), Ramp(3)),
        (Ramp(2), Outcome(2 * (RAMP_UP + 1) + 1, 0, 10), Ramp(4, successes=1)),
        (Ramp(8, successes=RAMP_UP), Outcome(2, 0, 10), Ramp(8, successes=RAMP_UP + 2)),
        (Ramp(2, failures=3), Outcome(1, 0, 10), Ramp(2, successes=1)),
        (Ramp(8, successes=3), Outcome(1, 1, 0), Ramp(8, failures=1)),
        (Ramp(8), Outcome(RAMP_DOWN, RAMP_DOWN, 0), Ramp(8, failures=RAMP_DOWN)),
        (Ramp(8, failures=RAMP_DOWN), Outcome(1, 1, 0), Ramp(7, failures=RAMP_DOWN + 1)),
        (Ramp(8), Outcome(RAMP_DOWN + 3, RAMP_DOWN + 3, 0), Ramp(5, failures=RAMP_DOWN + 3)),
        (Ramp(1, failures=50), Outcome(1, 1, 0), Ramp(1, failures=51)),
        (Ramp(8), Outcome(8, 2, 10), Ramp(8, failures=2)),
        (Ramp(20), Outcome(0, 0, 0), Ramp(8)),
    ],
)
def test_the_ramp_counts_as_version_2_1_does(ramp: Ramp, outcome: Outcome, expected: Ramp) -> None:
    """Over a threshold of receives in a row: one task more, or less, with eight at the most."""
    assert ramp.after(outcome, concurrency=8) == expected


@given(st.integers(1, 64), st.lists(outcomes(), max_size=30))
def test_the_ramp_stays_between_one_and_the_concurrency(
    concurrency: int, batches: list[Outcome]
) -> None:
    """Whatever the batches come to."""
    ramp = Ramp(concurrency)
    for outcome in batches:
        ramp = ramp.after(outcome, concurrency)

        assert 1 <= ramp.tasks <= concurrency


@given(RAMPS, outcomes(), st.integers(1, 64))
def test_an_empty_task_ends_the_climb_and_a_full_batch_the_descent(
    ramp: Ramp, outcome: Outcome, concurrency: int
) -> None:
    """One of the two counters is always at zero after a batch that ran."""
    after = ramp.after(outcome, concurrency)

    if outcome.empty:
        assert after.successes == 0
    elif outcome.tasks:
        assert after.failures == 0
        assert after.tasks >= min(ramp.tasks, concurrency)


def test_an_idle_queue_comes_down_to_one_task_and_a_full_one_climbs_back() -> None:
    """Sixteen tasks, first against competitors that take all, then alone."""
    ramp = Ramp(16)
    for _ in range(4):
        ramp = ramp.after(Outcome(ramp.tasks, ramp.tasks, 0), concurrency=16)
    low = ramp.tasks
    for _ in range(40):
        ramp = ramp.after(Outcome(ramp.tasks, 0, 1000 * ramp.tasks), concurrency=16)

    assert low == 1
    assert ramp.tasks == 16


@given(st.integers(1, 64), st.integers(0, 63), st.lists(outcomes(), max_size=30))
def test_the_ramp_never_goes_below_the_least(least: int, more: int, batches: list[Outcome]) -> None:
    """`minConcurrency`; where it is the maximum too, nothing moves."""
    ramp = Ramp(least + more)
    for outcome in batches:
        ramp = ramp.after(outcome, least + more, least=least)

        assert least <= ramp.tasks <= least + more


# ----- several queues --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "limit", "turn", "expected"),
    [
        ([1_000_000, 10], 100, 0, [90, 10]),
        ([1_000_000, 1_000_000], 100, 0, [50, 50]),
        ([1_000_000, 30, 1_000_000, 5], 100, 0, [33, 30, 32, 5]),
        ([1_000_000, 30, 1_000_000, 5], 100, 1, [32, 30, 33, 5]),
        ([3, 4], 100, 0, [3, 4]),
        ([9, 9, 9], 2, 0, [1, 1, 0]),
        ([9, 9, 9], 2, 1, [0, 1, 1]),
        ([9, 0, 9], 1, 4, [0, 0, 1]),
        ([9], 4, 3, [4]),
        ([5, 5], 0, 0, [0, 0]),
        ([], 5, 3, []),
    ],
)
def test_what_is_left_over_by_small_queues_goes_to_large_ones(
    wants: list[int], limit: int, turn: int, expected: list[int]
) -> None:
    """The last pieces go around, by the turn."""
    assert share_fairly(wants, limit, turn=turn) == expected


WANTS = st.lists(st.integers(0, 1_000_000), max_size=12)


@given(WANTS, st.integers(0, 2_000_000), st.integers(0, 100))
def test_a_fair_share_is_all_that_is_wanted_or_as_much_as_anyone_has(
    wants: list[int], limit: int, turn: int
) -> None:
    """Nothing is left while someone wants more."""
    shares = share_fairly(wants, limit, turn=turn)

    assert sum(shares) == min(sum(wants), limit)
    assert all(0 <= got <= want for got, want in zip(shares, wants, strict=True))
    for got, want in zip(shares, wants, strict=True):
        assert got == want or got >= max(shares) - 1


@given(WANTS.filter(any), st.integers(1, 50), st.integers(0, 100))
def test_everyone_has_a_turn(wants: list[int], limit: int, turn: int) -> None:
    """Within as many batches as there are queues, however little there is."""
    batches = [share_fairly(wants, limit, turn=turn + at) for at in range(len(wants))]

    for had, want in zip(zip(*batches, strict=True), wants, strict=True):
        assert any(had) == (want > 0)


@pytest.mark.parametrize(
    ("weights", "most", "tasks", "expected"),
    [
        ([9.0, 1.0], [9, 9], 4, [3, 1]),
        ([5.0, 5.0], [9, 9], 4, [2, 2]),
        ([9.0, 0.01], [9, 1], 2, [1, 1]),
        ([9.0, 9.0, 9.0], [9, 9, 9], 2, [1, 1, 1]),
        ([9.0, 0.0, 1.0], [9, 0, 9], 5, [4, 0, 1]),
        ([90.0, 3.0], [1, 3], 8, [1, 3]),
        ([90.0], [64], 8, [8]),
        ([], [], 8, []),
    ],
)
def test_tasks_go_by_weight_and_everyone_with_work_has_one(
    weights: list[float], most: list[int], tasks: int, expected: list[int]
) -> None:
    """Also if these are more than there are to share."""
    assert apportion(weights, most, tasks=tasks) == expected


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 40)), max_size=9), st.integers(0, 99))
def test_shared_tasks_add_up_and_a_heavier_queue_has_no_fewer(
    queues: list[tuple[float, int]], tasks: int
) -> None:
    """Unless it is not worth more."""
    weights, most = [weight for weight, _ in queues], [each for _, each in queues]

    shares = apportion(weights, most, tasks=tasks)

    assert sum(shares) == max(sum(each > 0 for each in most), min(tasks, sum(most)))
    assert all(min(each, 1) <= got <= each for got, each in zip(shares, most, strict=True))
    for heavy, got, each in zip(weights, shares, most, strict=True):
        lighter = [had for had, weight in zip(shares, weights, strict=True) if weight < heavy]
        assert got == each or got >= max(lighter, default=0)


@pytest.mark.parametrize(
    ("queues", "allowed", "expected"),
    [
        ([backlog(100_000), backlog(10)], limits(), [Plan(99_990, 7), Plan(10, 1)]),
        ([backlog(100_000), backlog(100_000)], limits(), [Plan(50_000, 4), Plan(50_000, 4)]),
        ([backlog(100_000), backlog(0)], limits(), [Plan(100_000, 8), None]),
        ([backlog(0), backlog(0)], limits(), [None, None]),
        ([backlog(1999), backlog(1999)], limits(), [Plan(1999, 1), Plan(1999, 1)]),
        ([backlog(9)] * 3, limits(concurrency=2), [Plan(9, 1)] * 3),
        ([backlog(9)] * 3, limits(2), [Plan(1, 1), Plan(1, 1), None]),
        ([backlog(50_000), backlog(50_000, most=1)], limits(), [Plan(50_000, 7), Plan(50_000, 1)]),
        ([backlog(50_000, most=1)] * 2, limits(), [Plan(50_000, 1)] * 2),
        # by bytes: the heavy ones get half of them, the light ones all they want
        ([backlog(50, MIB), backlog(1000)], limits(size=9 * MIB), [Plan(8, 7), Plan(1000, 1)]),
        ([backlog(9, MIB), backlog(9, MIB)], limits(size=MIB), [Plan(1, 1), None]),
        ([backlog(9, MIB), backlog(9)], limits(size=1000), [Plan(1, 1), None]),
        ([backlog(9), backlog(9, MIB)], limits(size=1000), [Plan(9, 1), None]),
    ],
)
def test_a_batch_is_shared_among_the_queues(
    queues: list[Backlog], allowed: Limits, expected: list[Plan | None]
) -> None:
    """Messages and bytes by water filling, tasks by weight."""
    assert plans(queues, allowed, Ramp(allowed.concurrency)) == expected


def test_few_messages_are_waited_for_in_all_queues_together() -> None:
    """`minMessagesPerTrigger` counts over all of them."""
    queues = [backlog(60), backlog(39), backlog(0)]

    assert plans(queues, limits(least=100), Ramp(8)) == [None] * 3
    assert plans([*queues, backlog(1)], limits(least=100), Ramp(8)) == [
        Plan(60, 1),
        Plan(39, 1),
        None,
        Plan(1, 1),
    ]
    assert plans(queues, limits(least=100), Ramp(8), waited=900.0) == [
        Plan(60, 1),
        Plan(39, 1),
        None,
    ]


QUEUES = st.lists(BACKLOGS, min_size=1, max_size=8)


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_no_plan_of_several_queues_is_above_a_limit(
    queues: list[Backlog], allowed: Limits, ramp: Ramp, turn: int
) -> None:
    """Together; a task for each queue, and one message in all, there is always room for."""
    found = plans(queues, allowed, ramp, turn=turn)
    asked = [(plan, queue) for plan, queue in zip(found, queues, strict=True) if plan]

    for planned, queue in asked:
        assert 1 <= planned.messages <= queue.messages
        assert 1 <= planned.tasks <= min(queue.most_tasks or 64, planned.messages)
    assert sum(plan.messages for plan, _ in asked) <= allowed.messages
    assert sum(plan.tasks for plan, _ in asked) <= max(
        len(asked), min(ramp.tasks, allowed.concurrency)
    )
    if allowed.bytes is not None and sum(plan.messages for plan, _ in asked) > 1:
        weight = sum(plan.messages * queue.bytes_each for plan, queue in asked)
        assert weight <= (allowed.bytes + len(asked)) * (1 + 1e-9)


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_every_queue_with_messages_is_asked_before_long(
    queues: list[Backlog], allowed: Limits, ramp: Ramp, turn: int
) -> None:
    """Within as many batches as there are queues, whatever the limits and the others hold."""
    batches = [
        plans(queues, allowed, ramp, waited=allowed.max_delay, turn=turn + at)
        for at in range(len(queues))
    ]

    assert all(any(batch) == any(queue.messages for queue in queues) for batch in batches)
    for planned, queue in zip(zip(*batches, strict=True), queues, strict=True):
        assert any(planned) == (queue.messages > 0)
