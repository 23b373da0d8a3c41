"""
The queries that the driver asks of one queue: plain reads that lock nothing and wait for no one.

peek.py decides which queries, and what to remember.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlq_spark.receive.driver import peek
from sqlq_spark.receive.driver.pace import Backlog
from sqlq_spark.receive.driver.peek import Answer, Found, PeekState
from sqlq_spark.receive.offset import QueuePlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.receive.driver.pace import Outcome, Plan
    from sqlq_spark.wire.address import QueueAddress

MARKS = 1000  # places of a full batch where it can be cut


class Peeker:
    """Looks at one queue, and keeps the state of its looks."""

    def __init__(
        self, options: SourceOptions, address: QueueAddress, name: str, clock: Callable[[], float]
    ) -> None:
        """
        Start; nothing was seen yet.

        Args:
            options: of the stream.
            address: of the queue.
            name: its canonical address.
            clock: monotonic seconds, by which the queries are timed.
        """
        self.options = options
        self.address = address
        self.name = name
        self.clock = clock
        self.state = PeekState()
        self._most_tasks = options.most_tasks(address)

    @property
    def found(self) -> Found:
        """What the last look saw."""
        return self.state.found

    @property
    def backlog(self) -> Backlog:
        """What the last look saw, as the plan of a batch needs it."""
        return Backlog(self.found.messages, self.found.bytes_each, self._most_tasks)

    def freeze(self, connection: Connection) -> None:
        """Take the highest seq as it is now for the end, in the transaction that is open."""
        _, last = connection.rows("top", tables={"queue": self.address})[0]
        self.state = peek.freeze(self.state, last)

    def look(self, connection: Connection, now: float) -> None:
        """See what waits, up to the limit of a batch. A look that fails changes no state."""
        receipts, pause = self.options.transaction_mode != "none", self.options.peek_delay
        query: peek.Query | None
        state, query = peek.start_look(self.state, now)
        while query is not None:
            started = self.clock()
            found = self._query(connection, query.first, state.end)
            answer = Answer(found, now, took=self.clock() - started)
            state, query = peek.answer_look(state, query, answer, receipts=receipts, pause=pause)
        self.state = state

    def plan(self, asked: Plan) -> QueuePlan:
        """Make what an offset says of this queue."""
        self.state, share, bounds = peek.plan(self.state, asked)
        return QueuePlan(
            queue=self.name,
            messages=asked.messages,
            share=share,
            bytes=round(self.found.bytes_each),
            bounds=bounds,
        )

    def learn(self, outcome: Outcome) -> None:
        """Record what the batch that was planned last has received."""
        self.state = peek.learn(self.state, outcome)

    def forget_plan(self) -> None:
        """Expect no outcome of the batch that was planned last."""
        self.state = replace(self.state, planned=None)

    def rest(self, until: float) -> None:
        """Look at nothing for a while."""
        self.state = peek.rest(self.state, until)

    def wake(self) -> None:
        """End the rest: a message came."""
        self.state = peek.wake(self.state)

    def _query(self, connection: Connection, first: int, last: int) -> Found:
        tables = {"queue": self.address}
        grain = max(1, self.options.max_messages // MARKS)
        messages, top, marks = connection.rows(
            "peek",
            tables=tables,
            first=first,
            last=last,
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
            last=top,
            bytes_each=max(1.0, each or 1024.0),
            sent=sent,
            span=span or 0,
        )
