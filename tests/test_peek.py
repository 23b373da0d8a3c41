"""A look at a queue: which queries it makes, what it remembers, and how it cuts a batch."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.receive import peek
from sqlq_spark.receive.pace import Outcome, Plan
from sqlq_spark.receive.peek import Found, PeekState, Query, cut
from sqlq_spark.wire import LOWEST_SEQ


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
def test_the_ranges_cover_the_batch_and_share_it(drawn: tuple[list[int], Found, Plan]) -> None:
    """
    They begin at the lowest, follow one another, and hold at least what the plan asks for.

    Each but the last holds exactly a share. What the tasks may take adds up to the plan.
    """
    seqs, found, plan = drawn

    share, bounds = cut(found, plan)
    held = [sum(first <= seq < stop for seq in seqs) for first, stop in pairwise(bounds)]
    asked = [min(share, plan.messages - at * share) for at in range(len(bounds) - 1)]

    assert bounds[0] == seqs[0]
    assert all(first < stop for first, stop in pairwise(bounds))
    assert plan.messages <= sum(held) < plan.messages + found.grain
    assert len(held) <= plan.tasks
    assert set(held[:-1]) <= {share}
    assert 0 < held[-1] <= share
    assert all(messages > 0 for messages in asked)
    assert sum(asked) == plan.messages


# ----- the queries of a look -------------------------------------------------------------------

WAITING = Found(3, marks=(5, 6, 7), last=7)
NONE_EMPTY = Outcome(tasks=1, empty=0, got=3)
EMPTY = Outcome(tasks=1, empty=1, got=0)


def look(
    state: PeekState,
    *answers: Found,
    now: float = 0.0,
    took: float = 0.0,
    receipts: bool = True,
) -> tuple[PeekState, list[Query]]:
    """Run a look whose queries find `answers`, in order; all of them are needed."""
    query: Query | None
    asked: list[Query] = []
    state, query = peek.start_look(state, now)
    for found in answers:
        assert query is not None
        asked.append(query)
        state, query = peek.answer_look(
            state, query, found, now=now, took=took, receipts=receipts, pause=1.0
        )
    assert query is None
    return state, asked


def plan(state: PeekState) -> PeekState:
    """Plan all that was found."""
    return peek.plan(state, Plan(state.found.messages, 1))[0]


def test_a_look_starts_where_the_queue_started() -> None:
    """The first one, and one each 30 s, at the very beginning; dead rows are passed over."""
    state, asked = look(PeekState(), WAITING)

    assert asked == [Query("start", LOWEST_SEQ)]
    assert (state.found, state.anchor) == (WAITING, 5)
    assert look(state, WAITING, now=29.0)[1] == [Query("anchor", 5)]
    assert look(state, WAITING, now=30.0)[1] == [Query("start", LOWEST_SEQ)]
    slow, _ = look(PeekState(), WAITING, took=2.0)  # seldom: fifty times what it took
    assert look(slow, WAITING, now=99.0)[1] == [Query("anchor", 5)]
    assert look(slow, WAITING, now=100.0)[1] == [Query("start", LOWEST_SEQ)]
    # what was asked for was received, so only dead rows are before its end
    assert peek.learn(plan(state), NONE_EMPTY).anchor == 8


def test_a_look_that_finds_nothing_looks_at_the_very_beginning_and_rests() -> None:
    """A lower seq may have been committed late."""
    state, _ = look(PeekState(), WAITING)

    state, asked = look(state, Found(), Found(), now=1.0)

    assert asked == [Query("anchor", 5), Query("start", LOWEST_SEQ)]
    assert (state.is_awake(1.9), state.is_awake(2.0)) == (False, True)


def test_after_a_batch_that_received_nothing_a_look_passes_over_its_messages() -> None:
    """Others hold them; when nothing is behind them, they are tried again."""
    state = peek.learn(plan(look(PeekState(), WAITING)[0]), EMPTY)
    behind = Found(1, marks=(9,), last=9)

    state, first = look(state, behind)
    state = peek.learn(plan(state), NONE_EMPTY)
    state, second = look(state, Found(), WAITING)

    assert first == [Query("behind", 8, ends=True)]
    assert second == [Query("behind", 8), Query("anchor", 5, ends=True)]
    assert state.found == WAITING
    # one that finds nothing behind them rests, then tries all messages
    state, _ = look(peek.learn(plan(look(PeekState(), WAITING)[0]), EMPTY), Found())
    assert not state.is_awake(0.5)
    assert look(state, WAITING, now=1.0)[1] == [Query("anchor", 5)]


def test_a_busy_queue_does_not_hide_messages_that_were_held() -> None:
    """Each 30 s a look starts at the very beginning, also while messages come behind held ones."""
    state = peek.learn(plan(look(PeekState(), WAITING)[0]), EMPTY)
    behind = Found(1, marks=(9,), last=9)

    state, early = look(state, behind, now=29.0)
    state, due = look(peek.learn(plan(state), NONE_EMPTY), WAITING, now=30.0)
    state, later = look(peek.learn(plan(state), NONE_EMPTY), behind, now=31.0)

    assert early == [Query("behind", 8, ends=True)]
    assert due == [Query("start", LOWEST_SEQ)]
    assert later == [Query("anchor", 8)]


def test_without_receipts_an_unchanged_queue_shows_that_a_batch_received_nothing() -> None:
    """No outcome is known there; with receipts the outcome is what counts."""
    state = plan(look(PeekState(), WAITING)[0])

    assert look(state, WAITING, Found(), receipts=False)[1] == [
        Query("anchor", 5),
        Query("behind", 8, ends=True),
    ]
    assert look(state, WAITING)[1] == [Query("anchor", 5)]


def test_the_end_of_a_run_is_frozen_below_the_highest_seq() -> None:
    """An empty queue has an end, too."""
    assert not PeekState().frozen
    assert (peek.freeze(PeekState(), 7).end, peek.freeze(PeekState(), None).end) == (7, LOWEST_SEQ)
    assert peek.freeze(PeekState(), 2**63 - 1).frozen
