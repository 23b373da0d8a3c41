"""
Where the driver looks for messages: a frozen state, and pure functions that move it. No IO.

A look starts where the queue started last time, because deleted rows may lie before it, which an
old snapshot keeps. From time to time, and when nothing is found, a look starts at the very
beginning: a lower seq may be committed late. If a batch received nothing, others hold its messages.
Until the next look from the beginning, looks then skip to the seq after them. A queue in which
nothing was found rests for a while.

A run of AvailableNow looks up to the highest seq that the sequence had given when the run started,
because later messages have a higher one. But a row may have a seq that the sequence did not give:
it was copied, or its writer chose it. The run receives such rows after all others, and only as many
as there were at its start. Otherwise one such row at the very end would let it receive for ever.
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

LAST_LOOKED_AT = HIGHEST_SEQ - 1  # the seq after it must be a number of the database too
# A question from the very beginning walks over the dead rows that an old snapshot keeps. So it
# comes FROM_THE_START seconds after the one before, and at least FROM_THE_START_FACTOR times as
# long after it as that one took.
FROM_THE_START = 30.0
FROM_THE_START_FACTOR = 50.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a look saw of a queue."""

    messages: int = 0  # up to the limit
    cuts: tuple[int, ...] = ()  # the seq of every `grain`-th message: a batch can be cut there
    grain: int = 1
    last: int = 0  # seq of the last message that was counted
    bytes_each: float = 1024.0  # of a message, on average
    sent: str | None = None  # TimeSent of the lowest message
    span: int = 0  # from the lowest seq to the highest: about how many messages wait in all

    def is_unchanged(self, earlier: Found) -> bool:
        """Whether it looks as if no one has taken or added anything since."""
        return (self.messages, self.cuts[:1], self.last) == (
            earlier.messages,
            earlier.cuts[:1],
            earlier.last,
        )


@dataclass(frozen=True, slots=True)
class LastBatch:
    """What a look remembers of the batch that was planned last."""

    found: Found  # by which it was planned
    stop: int  # the seq after its last range
    messages: int  # how many it asked for
    is_empty: bool = False  # whether it received nothing, though messages were there


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
    rests_until: float = -inf
    end: int = LAST_LOOKED_AT  # the highest seq to look at
    above: AboveEnd | None = None  # what AvailableNow receives after everything up to the end
    left: int | None = None  # how many messages it may still receive; None: there is no limit
    anchor: int = LOWEST_SEQ  # where the queue started last time
    from_start: float = -inf  # when a look may start at the very beginning again
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
    messages: int  # at most


# A look yields its questions. It is sent what each one found, and how many seconds it took.
Look: TypeAlias = "Generator[Question, tuple[Found, float], PeekState]"
Step: TypeAlias = "Generator[Question, tuple[Found, float], tuple[PeekState, Found]]"


def look(state: PeekState, now: float, options: SourceOptions) -> Look:
    """
    Look at a queue, by one question or a few.

    Messages after those that others hold are received first. Then a look tries the held ones again.

    Args:
        state: what is remembered of the queue.
        now: monotonic seconds.
        options: with the limit of a batch, and the pause after a look that finds nothing.

    Returns:
        The new state, whose `found` is the result of the look.
    """
    last_batch = state.last_batch
    state = replace(state, last_batch=None)
    if last_batch is not None and last_batch.is_empty and now < state.from_start:
        state, found = yield from ask_after(replace(state, skip_to=last_batch.stop), options)
    else:
        state, found = yield from ask_lowest(state, now, options)
        # without receipts no outcome is known, but an unchanged queue shows it
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
    """Ask at the very beginning if that is due, else after held messages or at the anchor."""
    if now >= state.from_start:
        return (yield from ask_at_start(state, now, options))
    if state.skip_to is not None:
        return (yield from ask_after(state, options))
    return (yield from ask_at_anchor(state, now, options))


def ask_at_start(state: PeekState, now: float, options: SourceOptions) -> Step:
    """Ask at the very beginning. Remember where the queue starts, and when to do this again."""
    found, seconds = yield from ask(state, LOWEST_SEQ, options)
    anchor = found.cuts[0] if found.messages else LOWEST_SEQ
    from_start = now + max(FROM_THE_START, FROM_THE_START_FACTOR * seconds)
    return replace(state, anchor=anchor, skip_to=None, from_start=from_start), found


def ask_at_anchor(state: PeekState, now: float, options: SourceOptions) -> Step:
    """Ask where the queue started last time; if nothing is there, at the very beginning."""
    found, _ = yield from ask(state, state.anchor, options)
    if found.messages:
        return replace(state, anchor=found.cuts[0]), found
    if state.left is not None:  # what is above the end of a run is looked at only upwards
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
    """Go on with the messages above the end of a run."""
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
    End all looks at the highest seq as it is now, or at the last one that the sequence gave.

    `last` and `sequence` are None if the queue is empty.
    """
    end = LOWEST_SEQ if last is None else min(last, LAST_LOOKED_AT - 1)
    if sequence is None or sequence.given is None or sequence.first is None:
        return replace(state, end=end)
    above = AboveEnd(sequence.first, last=end, messages=sequence.messages)
    return replace(state, end=sequence.given, above=above)


def spend(state: PeekState, messages: int) -> PeekState:
    """Count messages that were received against the limit of the run, if it has one."""
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
        How many messages each range holds, the last one perhaps fewer, and the ranges' bounds:
        range i is [bounds i, bounds i+1).
    """
    grains = -(-quota.messages // found.grain)
    step = -(-grains // quota.tasks)
    stop = found.cuts[grains] if grains < len(found.cuts) else found.last + 1
    stop = max(stop, found.cuts[0] + 1)  # a range has one seq at least
    # where seqs repeat, two cuts may be one seq
    bounds = dict.fromkeys((*found.cuts[:grains:step], stop))
    return step * found.grain, tuple(bounds)


def learn(state: PeekState, taken: int) -> PeekState:
    """Record how many messages the batch that was planned last has taken from the queue."""
    last_batch = state.last_batch
    if last_batch is None:
        return state
    state = spend(state, taken)
    state = replace(state, last_batch=replace(last_batch, is_empty=taken == 0))
    if taken >= last_batch.messages and state.skip_to is None:
        # only dead rows are before its end, which need no second look
        state = replace(state, anchor=last_batch.stop)
    return state


def forget_batch(state: PeekState) -> PeekState:
    """Expect no outcome: the next batch was not planned by the last look."""
    return replace(state, last_batch=None)


def rest(state: PeekState, until: float) -> PeekState:
    """Look at nothing for a while, and then at all messages: held ones may be free by then."""
    return replace(state, last_batch=None, skip_to=None, rests_until=until)


def wake(state: PeekState) -> PeekState:
    return replace(state, rests_until=-inf)


# ---------------------------------------------------------------- what the progress shows


def report_queue(name: str, found: Found, most: int, now: datetime) -> dict[str, Any]:
    """Report what waits in a queue. Beyond the limit of a batch that is only estimated."""
    is_full = found.messages >= most
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if is_full else found.messages,
        "backlogIsEstimate": is_full,
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
