"""Pace: never above a limit, never a task without work, always progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.pace import (
    BYTES_PER_TASK,
    MESSAGES_PER_TASK,
    RAMP_DOWN,
    RAMP_UP,
    Backlog,
    Limits,
    Outcome,
    Plan,
    Ramp,
    plan,
    share,
)

MIB = 1024 * 1024

BACKLOGS = st.builds(
    Backlog,
    messages=st.integers(0, 10**7),
    bytes_each=st.floats(0.01, 1e9),
    waited=st.floats(0, 1e6),
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


def backlog(messages: int, bytes_each: float = 100.0, waited: float = 0.0) -> Backlog:
    """A backlog of small messages just seen."""
    return Backlog(messages, bytes_each, waited)


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
    assert plan(backlog(messages, waited=waited), allowed, Ramp(8)) == expected


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
        assert min(share(planned.messages, tasks=planned.tasks)) >= 1
    if planned is not None and planned.tasks > 1:
        each = planned.messages / planned.tasks
        enough = each * found.bytes_each >= BYTES_PER_TASK * (1 - 1e-9)
        assert enough or each >= MESSAGES_PER_TASK


@given(BACKLOGS, LIMITS, RAMPS)
def test_there_is_progress_once_the_wait_is_over(
    found: Backlog, allowed: Limits, ramp: Ramp
) -> None:
    """Whatever the limits: messages that wait are asked for, and nothing else is."""
    planned = plan(Backlog(found.messages, found.bytes_each, allowed.max_delay), allowed, ramp)

    if found.messages:
        assert planned is not None
        assert planned.messages >= 1
        assert planned.tasks >= 1
    else:
        assert planned is None


# ----- share -----------------------------------------------------------------------------------


def test_the_larger_shares_come_first() -> None:
    """Ten among four."""
    assert share(10, tasks=4) == [3, 3, 2, 2]


@given(st.integers(0, 10**9), st.integers(1, 1000))
def test_shares_add_up_and_differ_by_at_most_one(messages: int, tasks: int) -> None:
    """Every message is in one share."""
    shares = share(messages, tasks=tasks)

    assert sum(shares) == messages
    assert len(shares) == tasks
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


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
