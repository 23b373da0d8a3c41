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
    """The row of `peek`: how many messages wait, and at which seqs they can be cut into ranges."""

    messages: int | None  # how many wait, counted up to the limit; None if no message waits
    last: int | None  # the seq of the last message that was counted
    cuts: tuple[int, ...] | None  # the seq of every `grain`-th message: a batch can be cut there


# How many messages with the lowest seqs `sample` weighs. A test compares this number with the
# statements.
SAMPLED = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """The row of `sample`: facts of the messages with the lowest seqs of a queue."""

    bytes: float | None  # the mean size of these messages
    sent: str | None  # the header TimeSent of the message with the lowest seq
    span: int | None  # how many seqs there are from the queue's lowest to its highest


@dataclass(frozen=True, slots=True)
class AboveSequence:
    """The row of `above_sequence`: messages with seqs that the queue's sequence has not given."""

    given: int | None  # the last seq that the sequence gave; None if the login may not see it
    first: int | None  # the lowest seq above `given` in the queue; None if there is none
    messages: int  # how many messages have a seq above `given`, counted up to a limit
