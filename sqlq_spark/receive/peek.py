"""
Where the driver looks for messages in a queue.

The state of the looks is frozen, and pure functions return the next state. Nothing here asks the
database: a look yields questions, and the driver answers them.

Usually a look starts at the lowest seq that an earlier look has found. Before that seq there may be
deleted rows that an old snapshot keeps, and reading past them takes time. There are three
exceptions:

- From time to time, and when nothing is found, a look starts at the very beginning, because a
  message with a lower seq may be committed late.
- If a batch received nothing, others hold its messages. Then looks start after these messages,
  until the next look from the very beginning.
- A queue in which nothing was found is not looked at for a while: it rests.

A run of AvailableNow looks up to the highest seq that the queue's sequence had given when the run
started, because later messages get a higher seq. But a message may have a seq that the sequence has
not given yet, because it was copied or its writer chose the seq. The run receives such messages
last, and only as many as there were at its start. It must not simply look up to their seqs: new
messages have lower seqs, and it could receive for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ
from sqlq_spark.wire.headers import BadWireTime, parse_wire_time

if TYPE_CHECKING:
    from collections.abc import Generator
    from datetime import datetime

    from sqlq_spark.database.looks import AboveSequence
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.pace import Quota

LAST_LOOKED_AT = HIGHEST_SEQ - 1  # a bigint of the database must hold the seq after it too
# The pause, in seconds, between two questions from the very beginning of a queue. Such a question
# walks over the dead rows that an old snapshot keeps. If one took t seconds, the pause after it is
# at least FROM_THE_START_FACTOR * t seconds.
FROM_THE_START = 30.0
FROM_THE_START_FACTOR = 50.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a look saw of a queue."""

    messages: int = 0  # how many wait, counted up to the limit of a batch
    cuts: tuple[int, ...] = ()  # the seq of every `grain`-th message: a batch can be cut there
    grain: int = 1  # how many messages lie between two cuts
    last: int = 0  # the seq of the last message that was counted
    bytes_each: float = 1024.0  # the mean size of a message
    sent: str | None = None  # the header TimeSent of the message with the lowest seq
    span: int = 0  # seqs from the lowest to the highest: about how many messages wait in all
    is_full: bool = False  # whether more may wait than were counted

    def is_unchanged(self, earlier: Found) -> bool:
        """Whether nobody seems to have taken or added messages since the `earlier` look."""
        return (self.messages, self.cuts[:1], self.last) == (
            earlier.messages,
            earlier.cuts[:1],
            earlier.last,
        )


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What a look remembers of the batch that was planned last."""

    found: Found  # what the look found by which the batch was planned
    stop: int  # the seq after the last range of the batch
    messages: int  # how many messages the batch asked for
    is_empty: bool = False  # whether the batch received nothing, though messages were there


@dataclass(frozen=True, slots=True)
class AboveEnd:
    """Messages with a higher seq than the sequence had given when a run of AvailableNow started."""

    first: int  # the lowest seq of these messages
    last: int  # the highest seq of these messages
    messages: int  # how many there were when the run started


@dataclass(frozen=True, slots=True)
class PeekState:
    """What the driver remembers of one queue, to save work. A new process starts without it."""

    found: Found = Found()  # what the last look found
    rests_until: float = -inf  # monotonic seconds
    end: int = LAST_LOOKED_AT  # the highest seq to look at
    above: AboveEnd | None = None  # what AvailableNow receives after all messages up to `end`
    left: int | None = None  # how many messages the run may still receive; None if not limited
    anchor: int = LOWEST_SEQ  # the lowest seq that an earlier look found
    # when a look may start at the very beginning again, in monotonic seconds
    from_start: float = -inf
    skip_to: int | None = None  # the seq after messages that others hold
    last_batch: LastBatch | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether this is a run of AvailableNow."""
        return self.end != LAST_LOOKED_AT

    def is_awake(self, now: float) -> bool:
        return now >= self.rests_until


# ---------------------------------------------------------------- a look


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask the database for: the lowest messages of a range of seqs."""

    first: int
    last: int
    messages: int  # how many messages to look at


# A look yields its questions. The driver answers each one: what it found, and how long it took.
Look: TypeAlias = "Generator[Question, tuple[Found, float], PeekState]"
Step: TypeAlias = "Generator[Question, tuple[Found, float], tuple[PeekState, Found]]"


def look(state: PeekState, now: float, options: SourceOptions) -> Look:
    """
    Look at a queue, by one question or a few.

    If others hold the messages of the last batch, a look asks for the messages after them. If there
    are none, it asks for the held messages again.

    Args:
        state: what is remembered of the queue.
        now: monotonic seconds.
        options: the stream's options: the limit of a batch, and the pause if a look finds nothing.

    Returns:
        The new state, whose `found` is the result of the look.
    """
    last_batch = state.last_batch
    state = replace(state, last_batch=None)
    if last_batch is not None and last_batch.is_empty and now < state.from_start:
        state, found = yield from ask_after(replace(state, skip_to=last_batch.stop), options)
    else:
        state, found = yield from ask_lowest(state, now, options)
        # without receipts, only an unchanged queue shows that the last batch received nothing
        shows_outcome = options.transaction_mode == "none"
        if shows_outcome and last_batch is not None and found.is_unchanged(last_batch.found):
            state, found = yield from ask_after(replace(state, skip_to=last_batch.stop), options)
        elif not found.messages and state.skip_to is not None:
            state = replace(state, skip_to=None)
            state, found = yield from ask_at_anchor(state, now, options)
    if not found.messages and state.above is not None:
        state = go_above(state, state.above)
        state, found = yield from ask_at_anchor(state, now, options)
    state = replace(state, found=found)
    return state if found.messages else rest(state, now + options.peek_delay)


def ask_lowest(state: PeekState, now: float, options: SourceOptions) -> Step:
    """Ask at the very beginning if it is time to. Else ask after held messages or at the anchor."""
    if now >= state.from_start:
        return (yield from ask_at_start(state, now, options))
    if state.skip_to is not None:
        return (yield from ask_after(state, options))
    return (yield from ask_at_anchor(state, now, options))


def ask_at_start(state: PeekState, now: float, options: SourceOptions) -> Step:
    """Ask at the very beginning. Remember where the queue starts, and when to ask there again."""
    found, seconds = yield from ask(state, LOWEST_SEQ, options)
    anchor = found.cuts[0] if found.messages else LOWEST_SEQ
    from_start = now + max(FROM_THE_START, FROM_THE_START_FACTOR * seconds)
    return replace(state, anchor=anchor, skip_to=None, from_start=from_start), found


def ask_at_anchor(state: PeekState, now: float, options: SourceOptions) -> Step:
    """Ask from the anchor on. If no message is found, ask at the very beginning."""
    found, _ = yield from ask(state, state.anchor, options)
    if found.messages:
        return replace(state, anchor=found.cuts[0]), found
    if state.left is not None:  # after go_above, no look goes back to the very beginning
        return state, found
    return (yield from ask_at_start(state, now, options))


def ask_after(state: PeekState, options: SourceOptions) -> Step:
    """Ask after the messages that others hold."""
    assert state.skip_to is not None, "there are such messages"  # noqa: S101
    found, _ = yield from ask(state, state.skip_to, options)
    return state, found


def ask(
    state: PeekState, first: int, options: SourceOptions
) -> Generator[Question, tuple[Found, float], tuple[Found, float]]:
    """Ask one question, unless the run may receive nothing more."""
    most = options.max_messages
    if state.left is not None:
        most = min(most, state.left)
    if not most:
        return Found(), 0.0
    return (yield Question(first, state.end, most))


def go_above(state: PeekState, above: AboveEnd) -> PeekState:
    """Go on with the messages that `above` describes."""
    return replace(
        state,
        end=above.last,
        anchor=above.first,
        from_start=inf,
        skip_to=None,
        above=None,
        left=above.messages,
    )


# ---------------------------------------------------------------- what happens between looks


def freeze(state: PeekState, last: int | None, sequence: AboveSequence | None) -> PeekState:
    """
    Fix the highest seq at which a run of AvailableNow looks, when the run starts.

    This is the queue's highest seq or the last one that its sequence has given, whichever is lower.
    `last` is the queue's highest seq. `last` and `sequence` are None if the queue is empty.
    """
    end = LOWEST_SEQ if last is None else min(last, LAST_LOOKED_AT - 1)
    if sequence is None or sequence.given is None or sequence.first is None:
        return replace(state, end=end)
    above = AboveEnd(sequence.first, last=end, messages=sequence.messages)
    return replace(state, end=sequence.given, above=above)


def spend(state: PeekState, messages: int) -> PeekState:
    """
    Count received messages against the limit of a run of AvailableNow.

    Only such a run has a limit, and only for the messages of AboveEnd.
    """
    return state if state.left is None else replace(state, left=max(0, state.left - messages))


def plan_ranges(state: PeekState, quota: Quota) -> tuple[PeekState, int, tuple[int, ...]]:
    """Cut what the last look found into ranges, as `cut_ranges` does, and remember the batch."""
    share, bounds = cut_ranges(state.found, quota)
    last_batch = LastBatch(state.found, stop=bounds[-1], messages=quota.messages)
    return replace(wake(state), last_batch=last_batch), share, bounds


def cut_ranges(found: Found, quota: Quota) -> tuple[int, tuple[int, ...]]:
    """
    Cut a batch into at most `quota.tasks` ranges of seqs.

    Returns:
        How many messages each range holds, and the bounds of the ranges. The last range may hold
        fewer. Range i is [bounds[i], bounds[i+1]).
    """
    grains = -(-quota.messages // found.grain)
    step = -(-grains // quota.tasks)
    stop = found.cuts[grains] if grains < len(found.cuts) else found.last + 1
    stop = max(stop, found.cuts[0] + 1)  # a range has one seq at least
    # if messages share a seq, two cuts may be the same seq
    bounds = dict.fromkeys((*found.cuts[:grains:step], stop))
    return step * found.grain, tuple(bounds)


def learn(state: PeekState, taken: int) -> PeekState:
    """Record how many messages were `taken` from the queue by the batch that was planned last."""
    last_batch = state.last_batch
    if last_batch is None:
        return state
    state = spend(state, taken)
    state = replace(state, last_batch=replace(last_batch, is_empty=taken == 0))
    if taken >= last_batch.messages and state.skip_to is None:
        # the next look starts after the batch: before its end there are only dead rows now
        state = replace(state, anchor=last_batch.stop)
    return state


def forget_batch(state: PeekState) -> PeekState:
    """
    Forget the last batch.

    The next batch was not planned by a look, so nothing is to be learned from it.
    """
    return replace(state, last_batch=None)


def rest(state: PeekState, until: float) -> PeekState:
    """Look at nothing for a while. Then look at all messages, because held ones may be free."""
    return replace(state, last_batch=None, skip_to=None, rests_until=until)


def wake(state: PeekState) -> PeekState:
    return replace(state, rests_until=-inf)


# ---------------------------------------------------------------- what the progress shows


def report_queue(name: str, found: Found, now: datetime) -> dict[str, Any]:
    """Report what waits in a queue. The count is estimated if a batch cannot hold all of it."""
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if found.is_full else found.messages,
        "backlogIsEstimate": found.is_full,
        "oldestWaited": seconds_since(found.sent, now),
    }


def seconds_since(sent: str | None, now: datetime) -> float | None:
    """Return how many seconds ago a message was sent. Returns None if `sent` is not a time."""
    if sent is None:
        return None
    try:
        return max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
    except BadWireTime:
        return None
