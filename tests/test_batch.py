"""The tasks of a batch, from its offset alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sqlq_spark.errors import BadAddress, BadOffset, BadPlan
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.offset import (
    INITIAL,
    LONGEST,
    MOST_TASKS,
    Offset,
    by_partition,
    read_plan,
    share_out,
    tasks_of,
)
from sqlq_spark.receive.receipts import CEILING
from sqlq_spark.wire.address import QueueAddress

MIB = 1 << 20


def options(**raw: str) -> SourceOptions:
    """Options of a stream of two queues."""
    return SourceOptions.parse({"url": "postgresql://host/shop", "queues": "a, b", **raw})


def offset(*parts: dict[str, Any]) -> Offset:
    """Parse an offset of parts that lack what does not matter."""
    part = {"queue": '"public"."a"', "messages": 10, "share": 5, "bytes": 100, "bounds": [1, 6, 11]}
    plan: list[dict[str, Any]] = [part | each for each in parts]
    for each in plan:
        bounds: list[int] = each["bounds"]
        each.setdefault("partitions", [0] * (len(bounds) - 1))
    return Offset.parse({"v": 1, "stream": "r", "batch": 3, "plan": plan})


def test_tasks_are_numbered_over_all_queues() -> None:
    """The receipt of a task is found by stream, batch and number."""
    end = offset(
        {},
        {"queue": '"sales"."b, c"', "bounds": [7, 9], "share": 10},
        {"bounds": [2, 3]},
        {"queue": 'a"; DROP TABLE b; --', "bounds": [4, 5]},
    )

    found = tasks_of(end, options())

    assert [each.key for each in found] == [("r", 3, at) for at in range(5)]
    assert [(each.queue, each.first, each.stop, each.messages) for each in found] == [
        (QueueAddress("a"), 1, 6, 5),
        (QueueAddress("a"), 6, 11, 5),
        (QueueAddress("b, c", "sales"), 7, 9, 10),
        (QueueAddress("a"), 2, 3, 5),
        (QueueAddress('a"; DROP TABLE b; --'), 4, 5, 5),
    ]
    # a queue that the options do not name is not received from, but its tasks keep their numbers
    assert [each.receives for each in found] == [True, True, False, True, False]


def test_the_bytes_of_a_batch_are_shared_by_what_was_expected() -> None:
    """Between the queues by weight, between the tasks of one evenly."""
    end = offset({}, {"messages": 3, "bytes": 1000, "bounds": [1, 2]})

    for raw, expected in (
        ({}, [CEILING] * 3),
        ({"maxBytesPerTrigger": "8m"}, [MIB, MIB, 6 * MIB]),
        ({"maxBytesPerTrigger": "1"}, [1, 1, 1]),
    ):
        assert [each.bytes for each in tasks_of(end, options(**raw))] == expected


def test_small_tasks_share_partitions_and_large_ones_do_not() -> None:
    """No more partitions than are allowed, each with about as much to do as the others."""
    small = {"messages": 1, "share": 1, "bounds": [1, 2]}
    large = {"messages": 50_000, "share": 50_000, "bytes": 1000, "bounds": [1, 100_000]}
    end = offset(*[small] * 5, large, *[small] * 6)

    few, many = (replace(end, plan=share_out(end.plan, most)) for most in (3, 100))

    parts = by_partition(few, tasks_of(few, options()))
    assert [[task.task for task in part] for part in parts] == [
        [5],
        [0, 2, 4, 7, 9, 11],
        [1, 3, 6, 8, 10],
    ]
    assert [len(part) for part in by_partition(many, tasks_of(many, options()))] == [1] * 12
    assert share_out([], 3) == ()


def test_a_batch_that_runs_again_has_the_same_partitions() -> None:
    """Whatever the options are by then: a sink may number messages by partition."""
    end = offset({"partitions": [1, 0]}, {"bounds": [3, 4], "partitions": [1]})

    for most in ("1", "9"):
        tasks = tasks_of(end, options(maxConcurrency=most, maxBytesPerTrigger="1k"))
        parts = by_partition(end, tasks)
        assert [[task.task for task in part] for part in parts] == [[1], [0, 2]]


@pytest.mark.parametrize("queue", ['"a', '"a"."b"."c"', "", "x" * 56])
def test_a_queue_that_cannot_be_one_is_refused(queue: str) -> None:
    """A checkpoint is untrusted text."""
    with pytest.raises(BadAddress):
        tasks_of(offset({"queue": queue}), options())


@pytest.mark.parametrize(
    "wrong",
    [
        *({"bounds": [2, 1]}, {"bounds": [1, 2**63]}, {"share": 0}, {"messages": True}),
        *({"queue": None}, {"partitions": [0]}, {"partitions": [0, None]}),
    ],
)
def test_a_part_with_numbers_that_none_can_have_is_refused(wrong: dict[str, Any]) -> None:
    """Ranges rise, and are of the database's numbers; no plan has too many tasks."""
    with pytest.raises(BadPlan, match="the plan of batch 3 of stream r"):
        offset(wrong)
    with pytest.raises(BadPlan, match="has 10001 tasks"):
        offset({"bounds": list(range(MOST_TASKS + 2))})
    with pytest.raises(BadPlan, match="characters"):
        read_plan("[" + " " * LONGEST, "r", 2)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"v": 2}, "its version is 2, and this release reads version 1"),
        ({"v": "1"}, "its version is '1'"),
        ({"stream": 7}, "its stream is not a text"),
        ({"batch": "3"}, "its batch is not a whole number"),
        ({"more": 1}, "its keys are not v, stream, batch, plan"),
    ],
)
def test_an_offset_of_another_form_raises(wrong: dict[str, Any], found: str) -> None:
    """The error says what was found, and what to do with the checkpoint."""
    with pytest.raises(BadOffset, match=found) as error:
        Offset.parse(offset({}).to_json() | wrong)

    assert "Run the query with the release of sqlq_spark that wrote" in str(error.value)


def test_an_offset_keeps_its_text() -> None:
    """Spark compares the text of offsets: the order of keys is constant."""
    end = offset({}, {"bounds": [3, 4]})

    assert Offset.parse(end.to_json()) == end
    assert json.dumps(INITIAL.to_json()) == '{"v": 1, "stream": null, "batch": 0, "plan": []}'
    assert json.dumps(end.to_json()).startswith(
        '{"v": 1, "stream": "r", "batch": 3, "plan": [{"queue": "\\"public\\".\\"a\\"", '
        '"messages": 10, "share": 5, "bytes": 100, "bounds": [1, 6, 11], '
        '"partitions": [0, 0]}, {'
    )
