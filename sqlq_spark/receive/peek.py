"""
Where the driver looks for messages: a frozen state, and pure functions that move it. No IO.

A look starts where the queue started last time, because rows that were deleted may lie before it,
kept by someone's old snapshot. From time to time, and when nothing is found, it starts at the very
beginning: a lower seq may commit late. If a batch received nothing, because others hold its
messages, the looks until then start behind them. A queue where nothing was found rests for a while.

A run of AvailableNow looks up to the highest seq that the sequence had given at its start, because
later messages have a higher one. A row may have a seq that the sequence did not give: it was
copied, or its writer chose it. Of those the run receives as many as there were at its start, after
all others. Else one such row at the very end would let it receive for ever.

A look is a few queries. `start_look` gives the first one, and `answer_look` takes what a query
found and gives the next one, or None at the end. driver.py runs the queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ
from sqlq_spark.wire.headers import BadWireTime, parse_wire_time

if TYPE_CHECKING:
    from datetime import datetime

    from sqlq_spark.database.looks import AboveSequence
    from sqlq_spark.receive.pace import Plan

LAST_LOOKED_AT = HIGHEST_SEQ - 1  # what is one higher still must be a number of the database
# A query from the very beginning walks over the dead rows that an old snapshot keeps. It comes so
# many seconds after the one before, and so many times what that one took.
FROM_THE_START = 30.0
FROM_THE_START_SHARE = 50.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a query saw."""

    messages: int = 0  # up to the limit
    marks: tuple[int, ...] = ()  # the seq of every `grain`-th message
    grain: int = 1
    last: int = 0  # seq of the last one counted
    bytes_each: float = 1024.0
    sent: str | None = None  # TimeSent of the lowest
    span: int = 0  # from the lowest seq to the highest: about how many wait in all

    @property
    def place(self) -> tuple[int, tuple[int, ...], int]:
        """What stays the same while no one takes or adds anything."""
        return self.messages, self.marks[:1], self.last


@dataclass(frozen=True, slots=True)
class Planned:
    """The batch that was planned last, and what is known of it."""

    found: Found  # by which it was planned
    stop: int  # the seq behind its last range
    asked: int  # messages
    empty: bool = False  # it received nothing, though messages were there


@dataclass(frozen=True, slots=True)
class AboveEnd:
    """The messages of a queue above what its sequence had given at the start of a run."""

    first: int  # their lowest seq
    last: int  # their highest seq
    messages: int  # at the start


@dataclass(frozen=True, slots=True)
class PeekState:
    """What the driver remembers of one queue. It only saves work: a new process starts without."""

    found: Found = Found()  # by the last look
    rests_until: float = -1e9
    end: int = LAST_LOOKED_AT  # the highest seq to look at
    above: AboveEnd | None = None  # what AvailableNow receives after all up to the end
    left: int | None = None  # how many messages it may still receive; None: it has no limit
    anchor: int = LOWEST_SEQ  # where the queue started last time
    from_start: float = -1e9  # when a look may start at the very beginning again
    behind: int | None = None  # the seq behind messages that others hold
    planned: Planned | None = None

    @property
    def frozen(self) -> bool:  # AvailableNow
        return self.end != LAST_LOOKED_AT

    def is_awake(self, now: float) -> bool:
        return now >= self.rests_until


@dataclass(frozen=True, slots=True)
class Query:
    """What to ask the database for: messages from a seq on."""

    place: Literal["behind", "anchor", "start"]
    first: int
    ends: bool = False  # its answer ends the look, also if it is empty


# ---------------------------------------------------------------- a look


def start_look(state: PeekState, now: float) -> tuple[PeekState, Query]:
    """Choose the first query of a look."""
    planned = state.planned
    if planned is not None and planned.empty and now < state.from_start:
        return look_behind(state, planned)
    return state, choose_query(state, now)


def answer_look(
    state: PeekState,
    query: Query,
    found: Found,
    *,
    now: float,
    took: float,
    receipts: bool,
    pause: float,
) -> tuple[PeekState, Query | None]:
    """
    Take what a query found.

    Messages behind those that others hold are received first, before a look tries the held ones
    again.

    Args:
        state: before the answer.
        query: the one that was asked.
        found: its answer.
        now: monotonic seconds when the look started.
        took: seconds that the query took.
        receipts: False: transactionMode=none, so that only this look shows what a batch received.
        pause: seconds that a queue rests in which nothing was found.

    Returns:
        The state, and the next query. None: the look is over, and `found` is its result.
    """
    state = note_place(state, query, found, now=now, took=took)
    if query.place == "anchor" and not found.messages and state.left is None:
        return state, replace(query, place="start", first=LOWEST_SEQ)
    if not query.ends:
        planned, state = state.planned, replace(state, planned=None)
        if planned is not None and not receipts and planned.found.place == found.place:
            return look_behind(state, planned)
        if not found.messages and state.behind is not None:
            state = replace(state, behind=None)
            return state, replace(choose_query(state, now), ends=True)
    if not found.messages and state.above is not None:
        state = go_above(state, state.above)
        return state, Query("anchor", state.anchor, ends=True)
    state = replace(state, found=found)
    return (state if found.messages else rest(state, now + pause)), None


def choose_query(state: PeekState, now: float) -> Query:
    """Start at the very beginning if that is due, else behind held messages or at the anchor."""
    if now >= state.from_start:
        return Query("start", LOWEST_SEQ)
    if state.behind is not None:
        return Query("behind", state.behind)
    return Query("anchor", state.anchor)


def look_behind(state: PeekState, planned: Planned) -> tuple[PeekState, Query]:
    """Pass over the messages of a batch that received nothing: others hold them."""
    state = replace(state, behind=planned.stop, planned=None)
    return state, Query("behind", planned.stop, ends=True)


def go_above(state: PeekState, above: AboveEnd) -> PeekState:
    """Go on with the messages above the end. They are looked at only upwards."""
    return replace(
        state,
        end=above.last,
        anchor=above.first,
        from_start=inf,
        behind=None,
        planned=None,
        above=None,
        left=above.messages,
    )


def note_place(
    state: PeekState, query: Query, found: Found, *, now: float, took: float
) -> PeekState:
    """Remember where the queue starts, and when a look may start at the very beginning again."""
    if query.place == "behind":
        return state
    if found.messages:
        state = replace(state, anchor=found.marks[0])
    if query.place == "anchor":
        return state
    anchor = state.anchor if found.messages else LOWEST_SEQ
    from_start = now + max(FROM_THE_START, FROM_THE_START_SHARE * took)
    return replace(state, anchor=anchor, behind=None, from_start=from_start)


# ---------------------------------------------------------------- what happens between looks


def freeze(state: PeekState, last: int | None, sequence: AboveSequence | None) -> PeekState:
    """
    End all looks at the highest seq as it is now, or at the last that the sequence gave.

    `last` and `sequence` are None if the queue is empty.
    """
    end = LOWEST_SEQ if last is None else min(last, LAST_LOOKED_AT - 1)
    if sequence is None or sequence.given is None or sequence.first is None:
        return replace(state, end=end)
    above = AboveEnd(sequence.first, last=end, messages=sequence.messages)
    return replace(state, end=sequence.given, above=above)


def limit(state: PeekState, most: int) -> int:
    """Return how many messages the next batch may have of the queue."""
    return most if state.left is None else min(most, state.left)


def spend(state: PeekState, messages: int) -> PeekState:
    """Count messages that were received against the limit of the run, if it has one."""
    return state if state.left is None else replace(state, left=max(0, state.left - messages))


def plan(state: PeekState, asked: Plan) -> tuple[PeekState, int, tuple[int, ...]]:
    """Cut what the last look found into ranges, as `cut` gives them, and remember the batch."""
    share, bounds = cut(state.found, asked)
    planned = Planned(state.found, stop=bounds[-1], asked=asked.messages)
    return replace(wake(state), planned=planned), share, bounds


def cut(found: Found, asked: Plan) -> tuple[int, tuple[int, ...]]:
    """
    Cut a batch into at most `asked.tasks` ranges of seqs, at the marks of a query.

    Returns:
        How many messages each range holds, the last one perhaps fewer, and the ranges' bounds:
        range i is [bounds i, bounds i+1).
    """
    grains = -(-asked.messages // found.grain)
    step = -(-grains // asked.tasks)
    stop = found.marks[grains] if grains < len(found.marks) else found.last + 1
    # where seqs repeat, two marks may be one seq; a range has one seq at least
    bounds = dict.fromkeys((*found.marks[:grains:step], max(stop, found.marks[0] + 1)))
    return step * found.grain, tuple(bounds)


def learn(state: PeekState, taken: int) -> PeekState:
    """Record how many messages the batch that was planned last has taken from the queue."""
    planned = state.planned
    if planned is None:
        return state
    state = replace(spend(state, taken), planned=replace(planned, empty=taken == 0))
    if taken >= planned.asked and state.behind is None:
        state = replace(state, anchor=planned.stop)  # dead rows before it need no second look
    return state


def rest(state: PeekState, until: float) -> PeekState:
    """Look at nothing for a while, and then at all messages: held ones may be free by then."""
    return replace(state, planned=None, behind=None, rests_until=until)


def wake(state: PeekState) -> PeekState:
    return replace(state, rests_until=-1e9)


# ---------------------------------------------------------------- what the progress shows


def report_queue(name: str, found: Found, most: int, now: datetime) -> dict[str, Any]:
    """Report what waits in a queue; beyond the limit of a batch that is only estimated."""
    full = found.messages >= most
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if full else found.messages,
        "backlogIsEstimate": full,
        "oldestWaited": seconds_since(found.sent, now),
    }


def seconds_since(sent: str | None, now: datetime) -> float | None:
    """Count the seconds since a message was sent, by its header; None: the header has no time."""
    if sent is None:
        return None
    try:
        return max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
    except BadWireTime:
        return None
