"""
Where the driver looks for messages: a frozen state, and pure functions that move it. No IO.

A look starts where the queue started last time, because rows that were deleted may lie before it,
kept by someone's old snapshot. From time to time, and when nothing is found, it starts at the very
beginning: a lower seq may commit late. If a batch received nothing, because others hold its
messages, the looks until then start behind them. A queue where nothing was found rests for a while.

A look is a few queries. `start_look` gives the first one, and `answer_look` takes what a query
found and gives the next one, or None at the end. driver.py runs the queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ
from sqlq_spark.wire.headers import BadWireTime, parse_wire_time

if TYPE_CHECKING:
    from sqlq_spark.receive.pace import Outcome, Plan, Ramp
    from sqlq_spark.receive.receipts import Acknowledged

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
class PeekState:
    """What the driver remembers of one queue. It only saves work: a new process starts without."""

    found: Found = Found()  # by the last look
    rests_until: float = -1e9
    end: int = LAST_LOOKED_AT  # the highest seq to look at
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
    Take the answer of a query.

    Messages behind those that others hold are received first, before a look tries the held ones
    again.

    Args:
        state: before the answer.
        query: the one that was asked.
        found: what it found.
        now: monotonic seconds when the look started.
        took: seconds.
        receipts: False: transactionMode=none, so that only this look shows what a batch received.
        pause: seconds that a queue rests in which nothing was found.

    Returns:
        The state, and the next query. None: the look is over, and `found` is its result.
    """
    state = note_place(state, query, found, now=now, took=took)
    if query.place == "anchor" and not found.messages:
        return state, replace(query, place="start", first=LOWEST_SEQ)
    if not query.ends:
        planned, state = state.planned, replace(state, planned=None)
        if planned is not None and not receipts and planned.found.place == found.place:
            return look_behind(state, planned)
        if not found.messages and state.behind is not None:
            state = replace(state, behind=None)
            return state, replace(choose_query(state, now), ends=True)
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


def freeze(state: PeekState, last: int | None) -> PeekState:
    """Take the highest seq as it is now for the end of all looks."""
    return replace(state, end=LOWEST_SEQ if last is None else min(last, LAST_LOOKED_AT - 1))


def plan(state: PeekState, asked: Plan) -> tuple[PeekState, int, tuple[int, ...]]:
    """
    Cut what the last look found into ranges, and remember the batch.

    Returns:
        The state, and as `cut` the share of each range and the bounds.
    """
    share, bounds = cut(state.found, asked)
    planned = Planned(state.found, stop=bounds[-1], asked=asked.messages)
    return replace(wake(state), planned=planned), share, bounds


def cut(found: Found, asked: Plan) -> tuple[int, tuple[int, ...]]:
    """
    Cut a batch into ranges of seqs, at the marks of a query.

    Returns:
        How many messages each range holds, the last one perhaps fewer, and the ranges' bounds:
        range i is [bounds i, bounds i+1). There are at most `asked.tasks` ranges.
    """
    grains = -(-asked.messages // found.grain)
    step = -(-grains // asked.tasks)
    stop = found.marks[grains] if grains < len(found.marks) else found.last + 1
    return step * found.grain, (*found.marks[:grains:step], stop)


def learn(state: PeekState, outcome: Outcome) -> PeekState:
    """Record what the batch that was planned last has received."""
    planned = state.planned
    if planned is None:
        return state
    state = replace(state, planned=replace(planned, empty=outcome.got == 0))
    if outcome.got >= planned.asked and state.behind is None:
        state = replace(state, anchor=planned.stop)  # dead rows before it need no second look
    return state


def rest(state: PeekState, until: float) -> PeekState:
    """Look at nothing for a while, and then at all messages: held ones may be free by then."""
    return replace(state, planned=None, behind=None, rests_until=until)


def wake(state: PeekState) -> PeekState:
    return replace(state, rests_until=-1e9)


# ---------------------------------------------------------------- what the progress shows


def report_stream(
    name: str,
    found: dict[str, Found],
    ramp: Ramp,
    last: Acknowledged | None,
    *,
    most: int,
) -> dict[str, Any]:
    """
    Report on a stream as a whole, and on each queue if there are several.

    Args:
        name: of its queue, or of all of them.
        found: by queue, at the last look.
        ramp: how many tasks may run now, and what led there.
        last: the batch that was acknowledged last, if there was one.
        most: where a look stops counting.
    """
    now = datetime.now(UTC)
    queues = [report_queue(each, seen, most, now) for each, seen in found.items()]
    ages = [each["oldestWaited"] for each in queues if each["oldestWaited"] is not None]
    report: dict[str, Any] = {
        "queue": name,
        "backlog": sum(each["backlog"] for each in queues),
        "backlogIsEstimate": any(each["backlogIsEstimate"] for each in queues),
        "oldestWaited": max(ages, default=None),
        "tasks": ramp.tasks,
        "ramp": {"successes": ramp.successes, "failures": ramp.failures},
    }
    if last is not None:
        report["lastBatch"] = report_batch(last)
    if len(queues) > 1:
        batches = {} if last is None else last.queues
        report["queues"] = [
            queue | ({"lastBatch": report_batch(batches[name])} if name in batches else {})
            for name, queue in zip(found, queues, strict=True)
        ]
    return report


def report_queue(name: str, found: Found, most: int, now: datetime) -> dict[str, Any]:
    """Report what waits in a queue; beyond the limit of a batch that is only estimated."""
    full = found.messages >= most
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if full else found.messages,
        "backlogIsEstimate": full,
        "oldestWaited": seconds_since(found.sent, now),
    }


def report_batch(last: Acknowledged) -> dict[str, Any]:
    return {
        "batch": last.batch,
        "tasks": last.outcome.tasks,
        "emptyTasks": last.outcome.empty,
        **last.counts,
    }


def seconds_since(sent: str | None, now: datetime) -> float | None:
    """Count the seconds since a message was sent, by its header; None: the header has no time."""
    if sent is None:
        return None
    try:
        return max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
    except BadWireTime:
        return None
