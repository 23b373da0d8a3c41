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

from sqlq_spark.database.looks import AboveSequence
from sqlq_spark.errors import BadAddress, BadOffset, BadPlan
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import peek
from sqlq_spark.receive.batch import (
    CEILING,
    LONGEST_PLAN,
    MOST_TASKS,
    Offset,
    QueuePlan,
    deal_to_partitions,
    group_by_partition,
    read_plan,
    tasks_of,
    write_plan,
)
from sqlq_spark.receive.pace import (
    BYTES_PER_TASK,
    MESSAGES_PER_TASK,
    RAMP_DOWN,
    RAMP_UP,
    Backlog,
    Quota,
    Ramp,
    next_growth,
    quotas,
)
from sqlq_spark.receive.peek import Found, PeekState, Question, cut_ranges
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
            found = quotas(queues, allowed, Ramp(tasks), waited=waited, turn=0)
            most = [each and Quota(each[0], min(each[1], tasks)) for each in expected]
            assert found == most, waiting


def test_a_batch_grows_while_more_waits_than_it_holds() -> None:
    """It doubles, up to four times the usual one. It is as usual again when less waits."""
    usual = SourceOptions(**ORDERS)
    for growth, planned, expected in (
        (1, 100_000, 2),
        (1, 99_999, 1),
        (2, 200_000, 4),
        (2, 199_999, 1),
        (4, 400_000, 4),
        (4, 399_999, 1),
    ):
        assert next_growth(usual.grown(growth), planned=planned) == expected, (growth, planned)
    large = usual.grown(4)
    assert (large.max_messages, large.concurrency) == (400_000, 4 * usual.concurrency)


@pytest.mark.parametrize(
    "limit",
    [{"maxMessagesPerTrigger": "100000"}, {"maxBytesPerTrigger": "1g"}, {"maxConcurrency": "2"}],
)
def test_a_batch_with_a_limit_does_not_grow(limit: dict[str, str]) -> None:
    """A batch keeps its size even if the limit is the default."""
    options = SourceOptions.parse({"url": ORDERS["url"], "queue": "orders", **limit})

    assert next_growth(options, planned=options.max_messages) == 1


@given(QUEUES, LIMITS, RAMPS, st.integers(0, 100))
def test_no_plan_is_above_a_limit_no_task_without_work_and_no_queue_left_out(
    queues: list[Backlog], allowed: SourceOptions, ramp: Ramp, turn: int
) -> None:
    """Each queue is planned within as many batches as there are queues."""
    batches = [
        quotas(queues, allowed, ramp, waited=allowed.max_trigger_delay, turn=turn + at)
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
        if alone and asked and asked[0][0].tasks > 1:  # each task is worth its start
            each = messages / asked[0][0].tasks
            enough = each * queues[0].bytes_each >= BYTES_PER_TASK * (1 - 1e-9)
            assert enough or each >= MESSAGES_PER_TASK


# a ramp, the tasks of a batch, how many of them were empty, and the ramp after it
RAMPED = [
    (Ramp(2, successes=RAMP_UP), 1, 0, Ramp(3)),
    (Ramp(2), 2 * (RAMP_UP + 1) + 1, 0, Ramp(4, successes=1)),
    (Ramp(8, successes=RAMP_UP), 2, 0, Ramp(8, successes=RAMP_UP + 2)),
    (Ramp(8), RAMP_DOWN + 3, RAMP_DOWN + 3, Ramp(5, failures=RAMP_DOWN + 3)),
    (Ramp(8), 8, 2, Ramp(8, failures=2)),
    (Ramp(20), 0, 0, Ramp(8)),
]


def test_the_ramp_counts_as_version_2_1_does() -> None:
    """A threshold of receives in a row adds a task or removes one. There are at most eight."""
    eight = limits(max_concurrency=8)
    nine = limits(max_concurrency=9, min_concurrency=9)
    for ramp, tasks, empty, expected in RAMPED:
        assert ramp.after(tasks=tasks, empty=empty, options=eight) == expected
        assert ramp.after(tasks=tasks, empty=empty, options=nine).tasks == 9


# ----- looks -----------------------------------------------------------------------------------


@given(st.data(), st.lists(st.integers(1, 9), min_size=1, max_size=300), st.integers(1, 20))
def test_the_ranges_cover_the_batch_and_share_it(
    data: st.DataObject, gaps: list[int], grain: int
) -> None:
    """They follow one another from the lowest; each but the last holds exactly a share."""
    seqs = [*accumulate(gaps, initial=-7)][1:]
    found = Found(len(seqs), cuts=tuple(seqs[::grain]), grain=grain, last=seqs[-1])
    quota = Quota(data.draw(st.integers(1, len(seqs))), data.draw(st.integers(1, 12)))

    share, bounds = cut_ranges(found, quota)
    held = [sum(first <= seq < stop for seq in seqs) for first, stop in pairwise(bounds)]

    assert bounds[0] == seqs[0]
    assert all(first < stop for first, stop in pairwise(bounds))
    assert quota.messages <= sum(held) < quota.messages + grain
    assert len(held) <= quota.tasks
    assert set(held[:-1]) <= {share}
    assert 0 < held[-1] <= share


WAITING = Found(3, cuts=(5, 6, 7), last=7)
SOME, NONE = 3, 0  # messages that a batch has taken


def look(
    state: PeekState,
    *answers: Found,
    mode: str = "receiveOnly",
    now: float = 0.0,
    took: float = 0.0,
) -> tuple[PeekState, list[int]]:
    """Run a look whose queries find `answers`, in order. All answers must be needed."""
    looking = peek.look(state, now, limits(transaction_mode=mode, peek_delay=1.0))
    asked = [next(looking).first]
    asked += [looking.send((found, took)).first for found in answers[:-1]]
    with pytest.raises(StopIteration) as end:
        looking.send((answers[-1], took))
    return end.value.value, asked


def received(state: PeekState, taken: int | None = None) -> PeekState:
    """Plan all that was found, and learn the outcome."""
    planned, _, _ = peek.plan_ranges(state, Quota(state.found.messages, 1))
    return planned if taken is None else peek.learn(planned, taken)


def test_a_look_starts_where_the_queue_started() -> None:
    """One look in 30 s begins at the lowest seq there can be. The others skip dead rows."""
    state, asked = look(PeekState(), WAITING)

    assert asked == [LOWEST_SEQ]
    assert (state.found, state.anchor) == (WAITING, 5)
    assert look(state, WAITING, now=29.0)[1] == [5]
    assert look(state, WAITING, now=30.0)[1] == [LOWEST_SEQ]
    slow, _ = look(PeekState(), WAITING, took=2.0)  # the pause is 50 times as long as the look
    assert look(slow, WAITING, now=99.0)[1] == [5]
    assert look(slow, WAITING, now=100.0)[1] == [LOWEST_SEQ]
    # what was asked for was received, so only dead rows are before its end
    assert received(state, SOME).anchor == 8
    # a lower seq may have been committed late
    state, asked = look(state, Found(), Found(), now=1.0)
    assert asked == [5, LOWEST_SEQ]
    assert (state.is_awake(1.9), state.is_awake(2.0)) == (False, True)


def test_after_a_batch_that_received_nothing_a_look_skips_its_messages() -> None:
    """Others hold them. When nothing comes after them, or 30 s are over, they are tried again."""
    held = received(look(PeekState(), WAITING)[0], NONE)
    after = Found(1, cuts=(9,), last=9)

    state, first = look(held, after, now=29.0)
    done = received(state, SOME)
    state, second = look(done, Found(), WAITING, now=29.0)

    assert first == [8]
    assert second == [8, 5]
    assert state.found == WAITING
    assert look(done, WAITING, now=30.0)[1] == [LOWEST_SEQ]
    # a look that finds nothing after them rests, then tries all messages
    state, _ = look(held, Found())
    assert not state.is_awake(0.5)
    assert look(state, WAITING, now=1.0)[1] == [5]
    # without receipts no outcome is known, but an unchanged queue shows it
    unknown = received(look(PeekState(), WAITING)[0])
    assert look(unknown, WAITING, Found(), mode="none")[1] == [5, 8]
    assert look(unknown, WAITING)[1] == [5]


def test_a_run_looks_above_its_end_at_last_and_only_as_far_as_it_may() -> None:
    """Messages above the sequence come after all others, upwards, and no more than there were."""
    sequence = AboveSequence(given=7, first=100, messages=2)
    frozen = peek.freeze(PeekState(), 200, sequence)
    above = Found(1, cuts=(100,), last=100)

    state, asked = look(frozen, Found(), above)
    done = received(state, 1)
    spent = received(look(done, Found(1, cuts=(150,), last=150))[0], 1)

    assert asked == [LOWEST_SEQ, 100]
    assert (state.end, state.left, done.left, spent.left) == (200, 2, 1, 0)
    looking = peek.look(done, 60.0, limits())
    assert next(looking) == Question(101, 200, 1)
    with pytest.raises(StopIteration) as end:
        next(peek.look(spent, 60.0, limits()))  # it asks nothing more
    assert end.value.value.found == Found()


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
    on_three = replace(end, plan=deal_to_partitions(end.plan, 3))
    on_many = replace(end, plan=deal_to_partitions(end.plan, 99))
    for dealt, parts in (
        (on_three, [[5], [0, 2, 4, 7, 9, 11], [1, 3, 6, 8, 10]]),
        (on_many, [[5], *([task] for task in range(12) if task != 5)]),
        (again, [[1], [0, 2]]),
    ):
        for most in ("1", "9"):
            tasks = tasks_of(dealt, options(maxConcurrency=most))
            groups = group_by_partition(dealt, tasks)
            assert [[task.task for task in group] for group in groups] == parts


BAD_PARTS: list[dict[str, Any]] = [
    *({"queue": name} for name in ('"a', '"a"."b"."c"', "", "x" * 56, None, "a\0", "\ud800")),
    # ranges rise, and are of the database's numbers; no plan has too many tasks
    *({"bounds": bounds} for bounds in ([2, 1], [1, 2**63], [*range(MOST_TASKS + 2)])),
    *({"share": 0}, {"messages": True}, {"partitions": [0]}, {"partitions": [0, None]}),
]


def test_a_plan_that_cannot_be_one_is_refused() -> None:
    """A checkpoint is untrusted text."""
    for part in BAD_PARTS:
        with pytest.raises((BadAddress, BadPlan)):
            tasks_of(offset(part), options())
    with pytest.raises(BadPlan, match="characters"):
        read_plan("[" + " " * LONGEST_PLAN, "r", 2)


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


# an offset of version 1, as a release wrote it into a checkpoint
VERSION_1 = (
    '{"v":1,"stream":"6f1c0d52-3c1b-4b6e-9a53-0d6c1f5be7a1","batch":12,"plan":['
    '{"queue":"\\"public\\".\\"orders\\"","messages":2500,"share":1000,"bytes":1184,'
    '"bounds":[-5,1000,2000,2501],"partitions":[0,1,0]},'
    '{"queue":"\\"sales\\".\\"b, \\u00fc\\"","messages":1,"share":1,"bytes":1,'
    '"bounds":[9223372036854775806,9223372036854775807],"partitions":[1]}]}'
)


def test_an_offset_of_version_1_is_read_and_written_as_it_was() -> None:
    """Checkpoints of earlier releases hold it, and Spark compares the text byte for byte."""
    end = Offset.parse(json.loads(VERSION_1))

    assert json.dumps(end.to_json(), separators=(",", ":")) == VERSION_1
    assert end == Offset(
        stream="6f1c0d52-3c1b-4b6e-9a53-0d6c1f5be7a1",
        batch=12,
        plan=(
            QueuePlan(
                queue='"public"."orders"',
                messages=2500,
                share=1000,
                bytes=1184,
                bounds=(-5, 1000, 2000, 2501),
                partitions=(0, 1, 0),
            ),
            QueuePlan(
                queue='"sales"."b, ü"',
                messages=1,
                share=1,
                bytes=1,
                bounds=(2**63 - 2, 2**63 - 1),
                partitions=(1,),
            ),
        ),
    )
    assert read_plan(write_plan(end.plan), end.stream, end.batch) == end.plan
