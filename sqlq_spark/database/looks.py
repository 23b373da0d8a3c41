"""The row types of the statements in peek.sql, which look at a queue without locking it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeqEnds:
    """The lowest and the highest seq of a queue: the row of `top`. Both are None if it is empty."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The row of `peek`: how many messages wait, and at which seqs a batch can be cut."""

    messages: int | None  # up to the limit; None: there is none
    last: int | None  # seq of the last message that was counted
    cuts: tuple[int, ...] | None  # the seq of every `grain`-th message: a batch can be cut there


# How many of the lowest messages `sample` weighs. A test compares it with the statements.
SAMPLED = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """The row of `sample`: what the messages with the lowest seqs of a queue show."""

    bytes: float | None  # the mean size of the lowest messages
    sent: str | None  # TimeSent of the lowest message
    span: int | None  # from the lowest seq to the highest


@dataclass(frozen=True, slots=True)
class AboveSequence:
    """The row of `above_sequence`: messages whose seqs the queue's sequence has not given."""

    given: int | None  # the highest seq that it has given; None: this login may not see it
    first: int | None  # the lowest seq above it; None: there is none
    messages: int  # how many have a seq above it, up to a limit
