"""
Where the driver looks for messages: plain reads that lock nothing and wait for no one.

A peek begins where the queue began last time, because rows that were deleted may lie before it,
kept by someone's old snapshot. Now and then, and when nothing is found, it begins at the very
beginning: a lower seq may commit late. Where a batch got nothing, as others hold its messages, it
goes on behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark.dialects import transaction

if TYPE_CHECKING:
    from sqlq_spark.dialects import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.pace import Outcome, Plan

LOWEST, HIGHEST = -(2**63), 2**63 - 1
MARKS = 1000  # places of a full batch where it can be cut
FROM_THE_START = 30.0  # seconds after which a peek begins at the very beginning again


@dataclass(frozen=True, slots=True)
class Found:
    """What a peek saw."""

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


def cut(found: Found, plan: Plan) -> tuple[int, list[int]]:
    """
    Cut a batch into ranges of seqs, at the marks of a peek.

    Returns:
        How many messages each range holds, the last one perhaps fewer, and the ranges' bounds:
        range i is [bounds i, bounds i+1). There are at most `plan.tasks` ranges.
    """
    grains = -(-plan.messages // found.grain)
    step = -(-grains // plan.tasks)
    stop = found.marks[grains] if grains < len(found.marks) else found.last + 1
    return step * found.grain, [*found.marks[:grains:step], stop]


class Peek:
    """Looks at one queue; remembers what saves work, a new process does without."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._end = HIGHEST
        self._anchor = LOWEST  # where the queue began last time
        self._from_start = -1e9  # when a peek last began at the very beginning
        self._behind: int | None = None  # the seq behind messages that others hold
        self._planned: Found | None = None  # what the batch before was planned on,
        self._stop = LOWEST  # where it ended,
        self._asked = 0  # how many messages it asked for,
        self._empty = False  # and whether it got nothing, though they were there

    @property
    def frozen(self) -> bool:
        """Whether the end is fixed (AvailableNow)."""
        return self._end != HIGHEST

    def freeze(self, connection: Connection) -> None:
        """Take the highest seq as it stands now for the end."""
        with transaction(connection, timeout=self.options.query_timeout):
            _, last = connection.rows("top", tables={"queue": self.options.address})[0]
        self._end = LOWEST if last is None else last

    def learn(self, outcome: Outcome) -> None:
        """Heed what came of the batch that was planned last."""
        if self._planned is None:
            return
        self._empty = outcome.got == 0
        if outcome.got >= self._asked and self._behind is None:
            self._anchor = self._stop  # dead rows before it need not be looked at again

    def look(self, connection: Connection, now: float) -> Found:
        """
        See what waits, up to the limit of a batch.

        What is behind held messages is worked off before those are tried again.
        """
        planned, empty = self._planned, self._empty
        self._planned, self._empty = None, False
        found = Found() if empty else self._peek(connection, now)
        if empty or self._unchanged(planned, found):
            self._behind = self._stop
            return self._peek(connection, now)
        if not found.messages and self._behind is not None:
            self._behind = None
            return self._peek(connection, now)
        return found

    def plan(self, found: Found, plan: Plan) -> dict[str, Any]:
        """Cut a batch into ranges, and remember it; what an offset says of one queue."""
        share, bounds = cut(found, plan)
        self._planned, self._stop, self._asked = found, bounds[-1], plan.messages
        each = round(found.bytes_each)
        return {"messages": plan.messages, "share": share, "bytes": each, "bounds": bounds}

    def rest(self) -> None:
        """Begin anew after a pause: what was held may be free."""
        self._planned = self._behind = None

    def _unchanged(self, planned: Found | None, found: Found) -> bool:
        """Without receipts: whether the batch before got nothing, as nothing has moved."""
        without = self.options.transaction_mode == "none"
        return without and planned is not None and planned.place == found.place

    def _peek(self, connection: Connection, now: float) -> Found:
        if self._behind is not None:
            return self._found_from(connection, self._behind)
        if now - self._from_start < FROM_THE_START:
            found = self._found_from(connection, self._anchor)
            if found.messages:
                self._anchor = found.marks[0]
                return found
        found = self._found_from(connection, LOWEST)
        self._from_start = now
        self._anchor = found.marks[0] if found.messages else LOWEST
        return found

    def _found_from(self, connection: Connection, first: int) -> Found:
        tables = {"queue": self.options.address}
        grain = max(1, self.options.max_messages // MARKS)
        messages, last, marks = connection.rows(
            "peek",
            tables=tables,
            first=first,
            last=self._end,
            messages=self.options.max_messages,
            grain=grain,
        )[0]
        if not messages:
            return Found()
        each, sent, span = connection.rows("sample", tables=tables, first=marks[0])[0]
        return Found(
            messages,
            marks=tuple(marks),
            grain=grain,
            last=last,
            bytes_each=max(1.0, each or 1024.0),
            sent=sent,
            span=span or 0,
        )
