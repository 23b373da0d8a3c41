"""Planning of the next batch: how much it takes, how a queue is looked at, and its tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.errors import BadAddress, BadOffset, BadPlan
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import offset as offsets
from sqlq_spark.receive import peek
from sqlq_spark.receive.offset import Offset, by_partition, share_out, tasks_of
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
)
from sqlq_spark.receive.peek import Found, PeekState, Query, cut
from sqlq_spark.receive.receipts import CEILING
from sqlq_spark.wire import LOWEST_SEQ
from sqlq_spark.wire.address import QueueAddress

MIB = 1 << 20


ORDERS: dict[str, Any] = {"url": "postgresql://host/shop", "queue": QueueAddress("orders")}
limits = partial(SourceOptions, **ORDERS, max_trigger_delay=900.0, max_concurrency=8)
LIMITS = st.builds(
    limits,
    max_messages=st.integers(1, 10**6),
    max_bytes=st.none() | st.integers(1, 10**10),
    min_messages=st.sampled_from([None, 1]),
    max_trigger_delay=st.floats(0, 1e6),
    max_concurrency=st.integers(1, 64),
)
BYTES, TASKS = st.floats(0.01, 1e9), st.none() | st.integers(1, 3)
QUEUES = st.lists(st.builds(Backlog, st.integers(0, 10**7), BYTES, TASKS), min_size=1, max_size=8)
RAMPS = st.builds(Ramp, st.integers(1, 64), st.integers(0, 20), st.integers(0, 20))

LEAST = limits(min_messages=100)
PLANS: list[tuple[list[Any], SourceOptions, float, list[tuple[int, int] | None]]] = [
    # one queue: a task for each thousand messages or MiB, and one at least
    ([(2000,)], limits(), 0, [(2000, 2)]),
    ([(1_000_000,)], limits(), 0, [(100_000, 8)]),
    ([(10, MIB)], limits(max_bytes=4 * MIB), 0, [(4, 4)]),
    ([(10, 1e300)], limits(max_bytes=10**9), 0, [(1, 1)]),
    # minMessagesPerTrigger, over all queues, with maxTriggerDelay
    ([(60,), (39,), (0,)], LEAST, 0, [None] * 3),
    ([(60,), (40,), (0,)], LEAST, 0, [(60, 1), (40, 1), None]),
    ([(99,)], LEAST, 899.9, [None]),
    ([(99,)], LEAST, 900.0, [(99, 1)]),
    # several queues: messages and bytes by water filling, tasks by weight
    ([(100_000,), (10,)], limits(), 0, [(99_990, 7), (10, 1)]),
    ([(9,)] * 3, limits(max_messages=2), 0, [(1, 1), (1, 1), None]),
    ([(50_000,), (50_000, 100, 1)], limits(), 0, [(50_000, 7), (50_000, 1)]),
    ([(50, MIB), (1000,)], limits(max_bytes=9 * MIB), 0, [(8, 7), (1000, 1)]),
]


def test_a_batch_takes_what_waits_within_its_limits() -> None:
    """The ramp lowers the tasks, but not the messages."""
    for waiting, allowed, waited, expected in PLANS:
        queues = [Backlog(*each, *(100, None)[len(each) - 1 :]) for each in waiting]
        for tasks in (allowed.concurrency, 1):
            found = plans(queues, allowed, Ramp(tasks), waited=waited, turn=0)
            most = [each and Plan(each[0], min(each[1], tasks)) for each in expected]
            assert found == most, waiting


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_no_plan_is_above_a_limit_no_task_without_work_and_no_queue_left_out(
    queues: list[Backlog], allowed: SourceOptions, ramp: Ramp, turn: int
) -> None:
    """Each queue is planned within as many batches as there are queues."""
    batches = [
        plans(queues, allowed, ramp, waited=allowed.max_trigger_delay, turn=turn + at)
        for at in range(len(queues))
    ]

    for planned, queue in zip(zip(*batches, strict=True), queues, strict=True):
        assert any(planned) == (queue.messages > 0)
    alone = len(queues) == 1
    for batch in batches:
        assert any(batch) == any(queue.messages for queue in queues)
        asked = [(plan, queue) for plan, queue in zip(batch, queues, strict=True) if plan]
        for plan, queue in asked:
            assert 1 <= plan.messages <= queue.messages
            assert 1 <= plan.tasks <= min(queue.most_tasks or 64, plan.messages)
        messages = sum(plan.messages for plan, _ in asked)
        assert messages <= allowed.max_messages
        most = min(ramp.tasks, allowed.concurrency)
        assert sum(plan.tasks for plan, _ in asked) <= max(len(asked), most)
        if allowed.max_bytes is not None and messages > 1:
            weight = sum(plan.messages * queue.bytes_each for plan, queue in asked)
            assert weight <= (allowed.max_bytes + (0 if alone else len(asked))) * (1 + 1e-9)
        if alone and asked and asked[0][0].tasks > 1:  # each is worth its start
            each = messages / asked[0][0].tasks
            enough = each * queues[0].bytes_each >= BYTES_PER_TASK * (1 - 1e-9)
            assert enough or each >= MESSAGES_PER_TASK


RAMPED = {
    (Ramp(2, successes=RAMP_UP), Outcome(1, 0, 10)): Ramp(3),
    (Ramp(2), Outcome(2 * (RAMP_UP + 1) + 1, 0, 10)): Ramp(4, successes=1),
    (Ramp(8, successes=RAMP_UP), Outcome(2, 0, 10)): Ramp(8, successes=RAMP_UP + 2),
    (Ramp(8), Outcome(RAMP_DOWN + 3, RAMP_DOWN + 3, 0)): Ramp(5, failures=RAMP_DOWN + 3),
    (Ramp(8), Outcome(8, 2, 10)): Ramp(8, failures=2),
    (Ramp(20), Outcome(0, 0, 0)): Ramp(8),
}


def test_the_ramp_counts_as_version_2_1_does() -> None:
    """A threshold of receives in a row adds a task or removes one. There are at most eight."""
    for (ramp, outcome), expected in RAMPED.items():
        assert ramp.after(outcome, limits(max_concurrency=8)) == expected
        assert ramp.after(outcome, limits(max_concurrency=9, min_concurrency=9)).tasks == 9


# ----- looks -----------------------------------------------------------------------------------


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=300), st.integers(1, 20))
def test_the_ranges_cover_the_batch_and_share_it(
    data: st.DataObject, gaps: list[int], grain: int
) -> None:
    """They follow one another from the lowest; each but the last holds exactly a share."""
    seqs = [*accumulate(gaps, initial=-7)][1:]
    found = Found(len(seqs), marks=tuple(seqs[::grain]), grain=grain, last=seqs[-1])
    plan = Plan(data.draw(st.integers(1, len(seqs))), data.draw(st.integers(1, 12)))

    share, bounds = cut(found, plan)
    held = [sum(first <= seq < stop for seq in seqs) for first, stop in pairwise(bounds)]

    assert bounds[0] == seqs[0]
    assert all(first < stop for first, stop in pairwise(bounds))
    assert plan.messages <= sum(held) < plan.messages + grain
    assert len(held) <= plan.tasks
    assert set(held[:-1]) <= {share}
    assert 0 < held[-1] <= share


START, ANCHOR = Query("start", LOWEST_SEQ), Query("anchor", 5)
BEHIND = Query("behind", 8, ends=True)
WAITING = Found(3, marks=(5, 6, 7), last=7)
SOME, NONE = Outcome(tasks=1, empty=0, got=3), Outcome(tasks=1, empty=1, got=0)


def look(
    state: PeekState, *answers: Found, receipts: bool = True, now: float = 0.0, took: float = 0.0
) -> tuple[PeekState, list[Query]]:
    """Run a look whose queries find `answers`, in order. All answers must be needed."""
    asked = []
    query: Query | None
    state, query = peek.start_look(state, now)
    for found in answers:
        assert query is not None
        asked.append(query)
        state, query = peek.answer_look(
            state, query, found, now=now, took=took, receipts=receipts, pause=1.0
        )
    assert query is None
    return state, asked


def received(state: PeekState, outcome: Outcome | None = None) -> PeekState:
    """Plan all that was found, and learn the outcome."""
    planned = peek.plan(state, Plan(state.found.messages, 1))[0]
    return planned if outcome is None else peek.learn(planned, outcome)


def test_a_look_starts_where_the_queue_started() -> None:
    """One look in 30 s begins at the lowest seq there can be. The others skip dead rows."""
    state, asked = look(PeekState(), WAITING)

    assert asked == [START]
    assert (state.found, state.anchor) == (WAITING, 5)
    assert look(state, WAITING, now=29.0)[1] == [ANCHOR]
    assert look(state, WAITING, now=30.0)[1] == [START]
    slow, _ = look(PeekState(), WAITING, took=2.0)  # seldom: fifty times what it took
    assert look(slow, WAITING, now=99.0)[1] == [ANCHOR]
    assert look(slow, WAITING, now=100.0)[1] == [START]
    # what was asked for was received, so only dead rows are before its end
    assert received(state, SOME).anchor == 8
    # a lower seq may have been committed late
    state, asked = look(state, Found(), Found(), now=1.0)
    assert asked == [ANCHOR, START]
    assert (state.is_awake(1.9), state.is_awake(2.0)) == (False, True)


def test_after_a_batch_that_received_nothing_a_look_passes_over_its_messages() -> None:
    """Others hold them. They are tried again after 30 s, or when nothing is behind them."""
    held = received(look(PeekState(), WAITING)[0], NONE)
    behind = Found(1, marks=(9,), last=9)

    state, first = look(held, behind, now=29.0)
    done = received(state, SOME)
    state, second = look(done, Found(), WAITING, now=29.0)

    assert first == [BEHIND]
    assert second == [Query("behind", 8), Query("anchor", 5, ends=True)]
    assert state.found == WAITING
    assert look(done, WAITING, now=30.0)[1] == [START]
    # one that finds nothing behind them rests, then tries all messages
    state, _ = look(held, Found())
    assert not state.is_awake(0.5)
    assert look(state, WAITING, now=1.0)[1] == [ANCHOR]
    # without receipts no outcome is known, but an unchanged queue shows it
    unknown = received(look(PeekState(), WAITING)[0])
    assert look(unknown, WAITING, Found(), receipts=False)[1] == [ANCHOR, BEHIND]
    assert look(unknown, WAITING)[1] == [ANCHOR]


# ----- tasks -----------------------------------------------------------------------------------


def options(**raw: str) -> SourceOptions:
    """Options of a stream of two queues."""
    return SourceOptions.parse({"url": "postgresql://host/shop", "queues": "a, b", **raw})


def offset(*parts: dict[str, Any]) -> Offset:
    """Parse an offset whose parts get defaults for what does not matter."""
    part = {"queue": '"public"."a"', "messages": 10, "share": 5, "bytes": 100, "bounds": [1, 6, 11]}
    plan: list[dict[str, Any]] = [part | each for each in parts]
    for each in plan:
        each.setdefault("partitions", [0] * (len(each["bounds"]) - 1))
    return Offset.parse({"v": 1, "stream": "r", "batch": 3, "plan": plan})


def test_tasks_are_numbered_over_all_queues() -> None:
    """Queues that the options do not name are numbered too, but not received from."""
    other, hostile = '"sales"."b, c"', 'a"; DROP TABLE b; --'
    end = offset({}, {"queue": other, "bounds": [7, 9]}, {"queue": hostile, "bounds": [4, 5]})

    found = tasks_of(end, options())

    assert [(each.key, each.queue, each.first, each.stop, each.receives) for each in found] == [
        (("r", 3, 0), QueueAddress("a"), 1, 6, True),
        (("r", 3, 1), QueueAddress("a"), 6, 11, True),
        (("r", 3, 2), QueueAddress("b, c", "sales"), 7, 9, False),
        (("r", 3, 3), QueueAddress(hostile), 4, 5, False),
    ]
    assert {(each.messages, each.bytes) for each in found} == {(5, CEILING)}


def test_bytes_and_partitions_are_shared_by_what_was_expected() -> None:
    """Small tasks share a partition. A batch that runs again has the same partitions."""
    end = offset({}, {"messages": 3, "bytes": 1000, "bounds": [1, 2]})
    for most, expected in (("8m", [MIB, MIB, 6 * MIB]), ("1", [1, 1, 1])):
        tasks = tasks_of(end, options(maxBytesPerTrigger=most))
        assert [each.bytes for each in tasks] == expected
    small = {"messages": 1, "share": 1, "bounds": [1, 2]}
    large = {"messages": 50_000, "share": 50_000, "bytes": 1000, "bounds": [1, 100_000]}
    end = offset(*[small] * 5, large, *[small] * 6)
    again = offset({"partitions": [1, 0]}, {"bounds": [3, 4], "partitions": [1]})
    for its, parts in (
        (replace(end, plan=share_out(end.plan, 3)), [[5], [0, 2, 4, 7, 9, 11], [1, 3, 6, 8, 10]]),
        (replace(end, plan=share_out(end.plan, 99)), [[5], *([at] for at in range(12) if at != 5)]),
        (again, [[1], [0, 2]]),
    ):
        for most in ("1", "9"):
            found = by_partition(its, tasks_of(its, options(maxConcurrency=most)))
            assert [[task.task for task in part] for part in found] == parts


BAD_PARTS: list[dict[str, Any]] = [
    *({"queue": name} for name in ('"a', '"a"."b"."c"', "", "x" * 56, None, "a\0", "\ud800")),
    # ranges rise, and are of the database's numbers; no plan has too many tasks
    *({"bounds": bounds} for bounds in ([2, 1], [1, 2**63], [*range(offsets.MOST_TASKS + 2)])),
    *({"share": 0}, {"messages": True}, {"partitions": [0]}, {"partitions": [0, None]}),
]


def test_a_plan_that_cannot_be_one_is_refused() -> None:
    """A checkpoint is untrusted text."""
    for part in BAD_PARTS:
        with pytest.raises((BadAddress, BadPlan)):
            tasks_of(offset(part), options())
    with pytest.raises(BadPlan, match="characters"):
        offsets.read_plan("[" + " " * offsets.LONGEST, "r", 2)


WRONG: dict[str, dict[str, Any]] = {
    "its version is 2, and this release reads version 1": {"v": 2},
    "its version is a number of 16610 bits": {"v": 10**5000},
    "its batch is '3': expected a whole number": {"batch": "3"},
    "its batch is 9223372036854775808: expected": {"batch": 2**63},
    "its batch is a number of 16610 bits: expected": {"batch": 10**5000},
    "its batch is -1: expected": {"batch": -1},
    r"its stream is 'a\\x00': expected": {"stream": "a\0"},
    r"its stream is '\\ud800': expected": {"stream": "\ud800"},
    "its stream is '': expected": {"stream": ""},
    "its stream is 'x{40}': expected": {"stream": "x" * 10**6},
    "its stream is a list: expected": {"stream": [10**5000]},
    "its keys are not v, stream, batch, plan": {"more": 1},
}


def test_an_offset_of_another_form_raises() -> None:
    """No statement gets what a database cannot store. The error says what was found."""
    for found, wrong in WRONG.items():
        with pytest.raises(BadOffset, match=f"{found}.* Run the query with the release"):
            Offset.parse(offset({}).to_json() | wrong)


def test_an_offset_keeps_its_text() -> None:
    """Spark compares the text of offsets, so the order of keys is constant."""
    end = offset({}, {"bounds": [3, 4]})

    assert Offset.parse(end.to_json()) == end
    assert json.dumps(end.to_json()).startswith(
        '{"v": 1, "stream": "r", "batch": 3, "plan": [{"queue": "\\"public\\".\\"a\\"", '
        '"messages": 10, "share": 5, "bytes": 100, "bounds": [1, 6, 11], "partitions": [0, 0]}, {'
    )
