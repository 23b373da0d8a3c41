"""
The driver's side of a stream: acknowledge, peek, pace, plan.

Spark calls `latest` with the end of the last batch in its commit log: that is the acknowledgement.
All that must last is in the offset and in the reader's row. What is kept here (where the queue
began, when to look again, the ramp) only saves work, and a new process does without.

An offset: `{"v":1,"reader":"<uuid>","batch":12,"plan":[{"queue":…,"messages":…,"share":…,
"bytes":…,"bounds":[…]}]}`; task i of the batch receives seq in [bounds i, bounds i+1).
"""

from __future__ import annotations

import json
import logging
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark import dialects, pace, receipts
from sqlq_spark.dialects import transaction
from sqlq_spark.errors import ReaderOfOtherQueue
from sqlq_spark.headers import BadWireTime, parse_wire_time
from sqlq_spark.pace import Backlog, Limits, Ramp
from sqlq_spark.peek import Found, Peek
from sqlq_spark.receive import CEILING, Task
from sqlq_spark.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection
    from sqlq_spark.options import SourceOptions

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

Offset = dict[str, Any]
INITIAL: Offset = {"v": 1, "reader": None, "batch": 0, "plan": []}


class Reader:
    """One stream's peek loop; lives in Spark's long-lived driver worker."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float]) -> None:
        """
        Begin; nothing is connected yet.

        Args:
            options: of the stream.
            clock: monotonic seconds.
        """
        self.options = options
        self.clock = clock
        self.address = dialects.of(options.url).printed(options.address)
        self.who = receipts.Driver(
            driver=str(uuid.uuid4()),
            queue=self.address,
            state_schema=options.state_schema,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        self.ramp = Ramp(options.concurrency)
        self.peek = Peek(options)
        self._session = Session(options, f"driver {options.address.table}", state=self._receipts)
        self._purged = False
        self._claimed: str | None = None  # the reader that this process speaks for
        self._acknowledged: Offset = INITIAL
        self._closed = 0  # the last batch that is acknowledged
        self._last: receipts.Acknowledged | None = None
        self._found: Found | None = None
        self._quiet_until = -1e9
        self._waiting_since: float | None = None

    # ------------------------------------------------------------ what Spark calls

    def freeze(self) -> None:
        """Take the highest seq as it stands now for the end of this run (AvailableNow)."""
        self._do(self.peek.freeze)

    def latest(self, start: Offset) -> Offset:
        """
        Acknowledge `start` and plan the batch after it.

        Returns:
            The next offset; `start` itself where there is nothing to do now.
        """
        return self._do(lambda connection: self._latest(connection, start))

    def acknowledge(self, end: Offset) -> None:
        """Acknowledge `end`, whose batch Spark has in its commit log."""
        self._do(lambda connection: self._acknowledge(connection, end))

    def tasks(self, end: Offset) -> list[Task]:
        """The tasks of a batch, from its offset alone."""
        options = self.options
        tasks = []
        for part in end["plan"]:
            if part["queue"] != self.address:
                raise ReaderOfOtherQueue(part["queue"], self.address)
            bounds, messages, share = part["bounds"], part["messages"], part["share"]
            ranges = len(bounds) - 1
            ceiling = min(CEILING, (options.max_bytes or CEILING * ranges) // ranges)
            tasks += [
                Task(
                    queue=options.address,
                    reader=end["reader"] or "",
                    batch=end["batch"],
                    task=at,
                    first=bounds[at],
                    stop=bounds[at + 1],
                    messages=max(1, min(share, messages - at * share)),
                    bytes=max(1, ceiling),
                    bytes_each=part["bytes"],
                    errors=options.error_address,
                    receipts=end["reader"] is not None,
                    fail_on_data_loss=options.fail_on_data_loss,
                )
                for at in range(ranges)
            ]
        return tasks

    def report(self) -> dict[str, Any]:
        """What the progress shows as `sources[].latestOffset`, in messages and seconds."""
        found, last = self._found, self._last
        backlog = 0 if found is None else found.messages
        full = found is not None and backlog >= self.options.max_messages
        said: dict[str, Any] = {
            "queue": self.address,
            "backlog": max(backlog, found.span) if found is not None and full else backlog,
            "backlogIsEstimate": full,
            "oldestWaited": None if found is None else waited(found.sent, datetime.now(UTC)),
            "tasks": self.ramp.tasks,
        }
        if last is not None:
            said["lastBatch"] = {
                "batch": last.batch,
                "tasks": last.outcome.tasks,
                "emptyTasks": last.outcome.empty,
                "messages": last.messages,
                "expired": last.expired,
                "diverted": last.diverted,
            }
        return said

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _do(self, work: Callable[[Connection], T]) -> T:
        return self._session.do(lambda connection: work(self._ready(connection)))

    def _ready(self, connection: Connection) -> Connection:
        """Purge at the first use in this process, if asked to."""
        if self.options.purge_on_startup and not self._purged:
            with transaction(connection, timeout=self.options.query_timeout):
                connection.run("purge", tables=self._tables)
            self._purged = True
            log.warning("%s: purged, as purgeOnStartup asks for", self.address)
        return connection

    @property
    def _tables(self) -> dict[str, QueueAddress]:
        return {"queue": self.options.address}

    @property
    def _receipts(self) -> bool:
        return self.options.transaction_mode == "receiveOnly"

    # ------------------------------------------------------------ the loop

    def _latest(self, connection: Connection, start: Offset) -> Offset:
        pending = self._acknowledge(connection, start)
        if pending is not None:
            return pending
        now = self.clock()
        if now < self._quiet_until:
            return start
        with transaction(connection, timeout=self.options.query_timeout):
            return self._next(connection, start, now) or self._pause(start, now)

    def _next(self, connection: Connection, start: Offset, now: float) -> Offset | None:
        """Peek, pace and plan, in the transaction that is open; None where nothing is to do."""
        found = self._found = self.peek.look(connection, now)
        plan = pace.plan(self._backlog(found, now), self._limits, self.ramp)
        if plan is None:
            return None
        self._waiting_since = None
        part = {"queue": self.address} | self.peek.plan(found, plan)
        return self._store(connection, start["reader"], [part])

    def _pause(self, start: Offset, now: float) -> Offset:
        """Leave the database alone for a while."""
        self.peek.rest()
        self._quiet_until = now + self.options.peek_delay
        if self._waiting_since is not None:
            end = self._waiting_since + self.options.max_trigger_delay
            self._quiet_until = min(self._quiet_until, max(now, end))
        return start

    def _acknowledge(self, connection: Connection, end: Offset) -> Offset | None:
        """Close `end`'s batch; returns the offset after it, where that was planned before."""
        if end == self._acknowledged:
            return None
        reader, acked = end["reader"], None
        if reader is not None:
            with transaction(connection, timeout=2 * self.options.query_timeout):
                acked = receipts.acknowledge(
                    connection, reader, end["batch"], self.who, claim=self._claimed != reader
                )
            self._claimed = reader
            self._heed(acked)
        self._acknowledged, self._last = end, acked
        self._closed = end["batch"] if acked is None else acked.batch
        if acked is None or acked.plan is None:
            return None
        return offset(reader, self._closed + 1, json.loads(acked.plan))

    def _heed(self, acked: receipts.Acknowledged) -> None:
        """Learn from what a batch came to."""
        if not acked.outcome.tasks:
            return
        self.ramp = self.ramp.after(acked.outcome, self.options.concurrency)
        self.peek.learn(acked.outcome)
        log.info(
            "%s: batch %d acknowledged: %d messages, %d expired, %d diverted",
            self.address,
            acked.batch,
            acked.messages,
            acked.expired,
            acked.diverted,
        )

    @property
    def _limits(self) -> Limits:
        options = self.options
        return Limits(
            messages=options.max_messages,
            bytes=options.max_bytes,
            min_messages=None if self.peek.frozen else options.min_messages,
            max_delay=options.max_trigger_delay,
            concurrency=options.concurrency,
        )

    def _backlog(self, found: Found, now: float) -> Backlog:
        if not found.messages:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        since = now if self._waiting_since is None else self._waiting_since
        return Backlog(found.messages, found.bytes_each, now - since)

    def _store(self, connection: Connection, reader: str | None, plan: list[Any]) -> Offset:
        batch = self._closed + 1
        if not self._receipts:
            return offset(None, batch, plan)
        if reader is None:
            reader = str(uuid.uuid4())
            self._warn_of_orphans(connection)
            receipts.create(connection, reader, self.who)
        stored = receipts.store_plan(connection, reader, batch, json.dumps(plan), self.who)
        self._claimed = reader
        return offset(reader, batch, json.loads(stored))

    def _warn_of_orphans(self, connection: Connection) -> None:
        """Tell of receipts of other readers of this queue: their checkpoint may be gone."""
        held = connection.rows("receipts", reader=None, queue_name=self.address)
        if held:
            log.warning(
                "%s: %d messages lie in receipts of other readers; if their checkpoints are gone, "
                "`sqlqueue receipts list` and `sqlqueue receipts return` bring them back",
                self.address,
                sum(row[4] for row in held),
            )


def offset(reader: str | None, batch: int, plan: list[Any]) -> Offset:
    """An offset, its keys in the one order there is: Spark compares the text."""
    return {"v": 1, "reader": reader, "batch": batch, "plan": plan}


def waited(sent: str | None, now: datetime) -> float | None:
    """Seconds since a message was sent, by its header; None where that cannot be known."""
    try:
        return (
            None
            if sent is None
            else max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
        )
    except BadWireTime:
        return None
