"""What a look at a queue returns, without a lock: the rows of the statements in peek.sql."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeqEnds:
    """The lowest and the highest seq of a queue: the row of `top`. Both are None if it is empty."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many messages wait, and where to cut them: the row of `peek`."""

    messages: int | None  # up to the limit; None: there is none
    last: int | None  # seq of the last message that was counted
    cuts: tuple[int, ...] | None  # the seq of every `grain`-th message: a batch can be cut there


# How many of the lowest messages `sample` weighs. A test compares it with the statements.
SAMPLED = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """What the lowest messages of a queue show: the row of `sample`."""

    bytes: float | None  # the mean size of the lowest messages
    sent: str | None  # TimeSent of the lowest message
    span: int | None  # from the lowest seq to the highest


@dataclass(frozen=True, slots=True)
class AboveSequence:
    """What the sequence of a queue has not given: the row of `above_sequence`."""

    given: int | None  # the highest seq that it has given; None: this login may not see it
    first: int | None  # the lowest seq above it; None: there is none
    messages: int  # how many have a seq above it, up to a limit
