"""What a look at a queue returns, without a lock: the rows of the statements in peek.sql."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeqEnds:
    """The lowest and the highest seq of a queue: the row of `top`; None: it is empty."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many messages wait, and where to cut them: the row of `peek`."""

    messages: int | None  # up to the limit; None: none
    last: int | None  # seq of the last one counted
    marks: tuple[int, ...] | None  # the seq of every `grain`-th message


@dataclass(frozen=True, slots=True)
class Sample:
    """What the lowest messages of a queue show: the row of `sample`."""

    bytes: float | None  # of a message, the mean of the lowest
    sent: str | None  # TimeSent of the lowest
    span: int | None  # from the lowest seq to the highest
