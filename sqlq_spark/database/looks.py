"""The row types of the statements in peek.sql, which look at a queue without locking it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeqEnds:
    """The row of `top`: the lowest and the highest seq of a queue; None: it is empty."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The row of `peek`: how many messages wait, and at which seqs a batch can be cut."""

    messages: int | None  # counted up to a limit; None: no message waits
    last: int | None  # seq of the last message that was counted
    marks: tuple[int, ...] | None  # the seq of every `grain`-th message


@dataclass(frozen=True, slots=True)
class Sample:
    """The row of `sample`: what the messages with the lowest seqs of a queue show."""

    bytes: float | None  # mean size of these messages
    sent: str | None  # header TimeSent of the message with the lowest seq
    span: int | None  # from their lowest seq to their highest


@dataclass(frozen=True, slots=True)
class AboveSequence:
    """The row of `above_sequence`: messages whose seqs the queue's sequence has not given."""

    given: int | None  # the highest seq that it has given; None: this login may not see it
    first: int | None  # the lowest seq of a message above `given`; None: there is none
    messages: int  # messages with a seq above `given`, counted up to a limit
