"""Cutting a batch at the marks of a peek: the ranges cover it, do not overlap, and are even."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.receive.pace import Plan
from sqlq_spark.receive.peek import Found, cut


@st.composite
def peeks(draw: st.DrawFn) -> tuple[list[int], Found, Plan]:
    """Draw the seqs that wait, what a peek says of them, and a plan for some of them."""
    gaps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=300))
    seqs = [draw(st.integers(-50, 50))]
    for gap in gaps[1:]:
        seqs.append(seqs[-1] + gap)
    grain = draw(st.integers(1, 20))
    found = Found(len(seqs), marks=tuple(seqs[::grain]), grain=grain, last=seqs[-1])
    plan = Plan(draw(st.integers(1, len(seqs))), draw(st.integers(1, 12)))
    return seqs, found, plan


@given(peeks())
def test_the_ranges_cover_the_batch_in_order(drawn: tuple[list[int], Found, Plan]) -> None:
    """They begin at the lowest, follow one another, and hold at least what the plan asks for."""
    seqs, found, plan = drawn

    _, bounds = cut(found, plan)
    inside = [seq for seq in seqs if bounds[0] <= seq < bounds[-1]]

    assert bounds[0] == seqs[0]
    assert all(first < stop for first, stop in pairwise(bounds))
    assert plan.messages <= len(inside) < plan.messages + found.grain


@given(peeks())
def test_no_range_holds_more_than_its_share(drawn: tuple[list[int], Found, Plan]) -> None:
    """Each but the last holds exactly a share, and there are no more of them than tasks."""
    seqs, found, plan = drawn

    share, bounds = cut(found, plan)
    held = [sum(first <= seq < stop for seq in seqs) for first, stop in pairwise(bounds)]

    assert len(held) <= plan.tasks
    assert set(held[:-1]) <= {share}
    assert 0 < held[-1] <= share


@given(peeks())
def test_the_tasks_together_ask_for_the_plan(drawn: tuple[list[int], Found, Plan]) -> None:
    """What each may take, as the stream reckons it from an offset, adds up to the plan."""
    _, found, plan = drawn

    share, bounds = cut(found, plan)
    asked = [min(share, plan.messages - at * share) for at in range(len(bounds) - 1)]

    assert all(messages > 0 for messages in asked)
    assert sum(asked) == plan.messages
