"""
Where the driver looks for messages: plain reads that lock nothing and wait for no one.

A peek begins where the queue began last time, because rows that were deleted may lie before it,
kept by someone's old snapshot. Now and then, and when nothing is found, it begins at the very
beginning: a lower seq may commit late. Where a batch got nothing, as others hold its messages, it
goes on behind them. A queue where nothing was found is left alone for a while, by itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.pace import Outcome, Plan
    from sqlq_spark.wire.address import QueueAddress

# of seqs; what is one higher still must be a number of the database
LOWEST, HIGHEST = -(2**63), 2**63 - 2
MARKS = 1000  # places of a full batch where it can be cut
# A peek from the very beginning walks over the dead rows that an old snapshot keeps. It comes so
# many seconds after the one before, and so many times what that one took.
FROM_THE_START = 30.0
FROM_THE_START_SHARE = 50.0


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

    def __init__(self, options: SourceOptions, address: QueueAddress, name: str) -> None:
        """
        Begin; nothing was seen yet.

        Args:
            options: of the stream.
            address: of the queue.
            name: its canonical address.
        """
        self.options = options
        self.address = address
        self.name = name
        self.most_tasks = options.most_tasks(address)
        self.found = Found()  # by the last look
        self._rests_until = -1e9
        self._end = HIGHEST
        self._anchor = LOWEST  # where the queue began last time
        self._from_start = -1e9  # when a peek may begin at the very beginning again
        self._behind: int | None = None  # the seq behind messages that others hold
        self._planned: Found | None = None  # what the batch before was planned on,
        self._stop = LOWEST  # where it ended,
        self._asked = 0  # how many messages it asked for,
        self._empty = False  # and whether it got nothing, though they were there

    @property
    def frozen(self) -> bool:
        """Whether the end is fixed (AvailableNow)."""
        return self._end != HIGHEST

    def awake(self, now: float) -> bool:
        """Whether its rest is over."""
        return now >= self._rests_until

    def freeze(self, connection: Connection) -> None:
        """Take the highest seq as it stands now for the end, in the transaction that is open."""
        _, last = connection.rows("top", tables={"queue": self.address})[0]
        self._end = LOWEST if last is None else min(last, HIGHEST - 1)

    def learn(self, outcome: Outcome) -> None:
        """Heed what came of the batch that was planned last."""
        if self._planned is None:
            return
        self._empty = outcome.got == 0
        if outcome.got >= self._asked and self._behind is None:
            self._anchor = self._stop  # dead rows before it need not be looked at again

    def look(self, connection: Connection, now: float) -> None:
        """
        See what waits, up to the limit of a batch; a queue where nothing does is left alone now.

        What is behind held messages is worked off before those are tried again.
        """
        self.found = self._look(connection, now)
        if not self.found.messages:
            self.rest(now + self.options.peek_delay)

    def _look(self, connection: Connection, now: float) -> Found:
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

    def plan(self, plan: Plan) -> dict[str, Any]:
        """Cut what was found into ranges, and remember it; what an offset says of one queue."""
        share, bounds = cut(self.found, plan)
        self._planned, self._stop, self._asked = self.found, bounds[-1], plan.messages
        self._rests_until = -1e9
        return {
            "queue": self.name,
            "messages": plan.messages,
            "share": share,
            "bytes": round(self.found.bytes_each),
            "bounds": bounds,
        }

    def rest(self, until: float) -> None:
        """Leave the queue alone, and begin anew after that: what was held may be free."""
        self._planned = self._behind = None
        self._rests_until = until

    def wake(self) -> None:
        """End its rest: something came."""
        self._rests_until = -1e9

    def _unchanged(self, planned: Found | None, found: Found) -> bool:
        """Without receipts: whether the batch before got nothing, as nothing has moved."""
        without = self.options.transaction_mode == "none"
        return without and planned is not None and planned.place == found.place

    def _peek(self, connection: Connection, now: float) -> Found:
        if self._behind is not None:
            return self._found_from(connection, self._behind)
        if now < self._from_start:
            found = self._found_from(connection, self._anchor)
            if found.messages:
                self._anchor = found.marks[0]
                return found
        begun = time.monotonic()
        found = self._found_from(connection, LOWEST)
        took = time.monotonic() - begun
        self._from_start = now + max(FROM_THE_START, FROM_THE_START_SHARE * took)
        self._anchor = found.marks[0] if found.messages else LOWEST
        return found

    def _found_from(self, connection: Connection, first: int) -> Found:
        tables = {"queue": self.address}
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
