"""
The tables that one transaction sends to. Each is locked and checked once.

Addresses of destinations come from options, columns, subscriptions and messages. trust.py decides
whether a table may be used. If only a header names the table (ForwardDestination, FailedQ), it must
also have the same owner as the queue that the message came from.

The order is: lock, check, insert. `lock_and_check` raises the first error. `lock_each` returns the
errors, so that only the messages of that destination fail.

A failure of one destination is usually undone alone. Some failures end the whole transaction: on
SQL Server those in a trigger do. Then `run_without_failed` runs the transaction again without that
destination.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlq_spark import errors
from sqlq_spark.database import LOCKS, TRANSIENT, TransactionUndone, attempt, lock_table
from sqlq_spark.database.trust import Use, check_locked, look, use
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons

T = TypeVar("T")
P = TypeVar("P", bound=QueueAddress | str)  # a table, or a text that names one

# Columns that a destination must have. The names are spelled as in the transport's CREATE TABLE,
# because a database may distinguish upper and lower case.
SENT = ("Id", "Expires", "Headers", "Body")  # in a queue
RETURNED = (*SENT, "Seq")  # in a table that only a header names; SQL Server has RowVersion for Seq
DELAYED = ("Headers", "Body", "Due")  # in a table of delayed messages
PATIENCE = 2.0  # seconds that one task waits, in all, for destinations that others lock
# Failures that are not the fault of a destination. Another attempt may succeed, or a DBA cancelled
# the statement. They fail the whole task.
PASSING = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# If only a header names the destination, these two still fail the whole task. Every other failure
# costs only that destination.
LOST = (errors.ConnectionLost, errors.Cancelled)
MOST_FAILED = 10  # destinations that one transaction leaves out, before its failure is raised


class DestinationFailed(Exception):
    """
    A failure of one destination ended the whole transaction.

    Only `run_without_failed` catches it. So code that calls `isolate` must run in its `work`.
    """

    def __init__(self, queue: QueueAddress, failure: errors.DatabaseFailure) -> None:
        super().__init__()
        self.queue = queue
        self.failure = failure


def run_without_failed(work: Callable[[Reasons], T]) -> T:
    """
    Run a transaction; when the failure of one destination ends it, run it again without that one.

    `work` is the whole transaction. Its argument has the destinations that failed before, and
    `work` passes it to its `Destinations`. After MOST_FAILED destinations the failure is raised.
    """
    failed: Reasons = {}
    while True:
        try:
            return work(failed)
        except DestinationFailed as error:
            if len(failed) == MOST_FAILED or error.queue in failed:
                raise error.failure from None
            failed = {**failed, error.queue: error.failure}


class Destinations:
    """The tables that one transaction sends to."""

    def __init__(
        self,
        connection: Connection,
        *,
        source: QueueAddress | None = None,
        by_header: bool = False,
        failed: Reasons | None = None,
    ) -> None:
        self.connection = connection  # inside of the transaction that sends
        self.source = source  # the tables must have the same owner as this queue
        self.by_header = by_header  # whether only a header names the tables
        self.failed = failed or {}  # destinations that ended this transaction before
        self.patience = PATIENCE  # seconds that are left to wait for tables that others lock
        # columns that were asked for → tables that were accepted for them
        self._accepted: dict[tuple[str, ...], set[QueueAddress]] = {}

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> Reasons:
        """
        Return which queues cannot be sent to, and why.

        It locks nothing, and runs no code that a table's owner wrote.
        """
        return look(self.connection, [*dict.fromkeys(queues)], self._wanted(columns))[1]

    def check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT) -> None:
        """Raise the first error that `find_refused` finds, if any."""
        for reason in self.find_refused(queues, columns).values():
            raise reason

    def lock_and_check(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT,
        source: QueueAddress | None = None,
    ) -> None:
        """
        Lock tables, and raise an error if one of them cannot be sent to.

        With `source`, each table must have the same owner as that queue.
        """
        new = self.undecided(queues, columns)
        use(self.connection, new, self._wanted(columns, source))
        self._accepted.setdefault(tuple(columns), set()).update(new)

    def lock_each(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT,
        source: QueueAddress | None = None,
    ) -> Reasons:
        """Lock and check each table on its own; return which cannot be sent to, and why."""
        new = self.undecided(queues, columns)
        wanted = self._wanted(columns, source)
        reasons: Reasons = {queue: self.failed[queue] for queue in new if queue in self.failed}
        reasons |= self._look([queue for queue in new if queue not in reasons], wanted)
        for queue in [queue for queue in new if queue not in reasons]:
            reason = self.isolate(queue, partial(lock_table, self.connection, queue, "insert"))
            if reason is not None:
                reasons[queue] = reason
        locked = [queue for queue in new if queue not in reasons]
        reasons |= check_locked(self.connection, locked, wanted)
        self._accepted.setdefault(tuple(columns), set()).update({*new} - reasons.keys())
        return reasons

    def isolate(
        self, queue: QueueAddress | None, work: Callable[[], None]
    ) -> errors.DatabaseFailure | None:
        """
        Run `work` on one destination; if it fails, undo only that work.

        `queue` is that destination; None: the work concerns several. All waits for locks of
        destinations that only headers name take no longer than PATIENCE together.

        Returns:
            The failure; None: the work succeeded.

        Raises:
            DestinationFailed: the failure of one destination ended the transaction.
            DatabaseFailure: the failure is not the destination's fault.
        """
        started = time.monotonic()
        passing = LOST if self.by_header else PASSING
        try:
            with attempt(self.connection):
                work()
        except TransactionUndone as undone:
            # after a deadlock the whole transaction runs again, with this destination
            if queue is None or isinstance(undone.failure, (*passing, errors.Deadlock)):
                raise
            raise DestinationFailed(queue, undone.failure) from None
        except errors.DatabaseFailure as error:
            if isinstance(error, passing):
                raise
            if not isinstance(error, errors.TimedOut):
                return error
            self.patience = max(0.0, self.patience - (time.monotonic() - started))
            self.connection.set_lock_timeout(self.patience)
            # a limit above PATIENCE is the statement's: it was slow, and did not wait for a lock
            if queue is None or error.seconds > PATIENCE:
                return error
            name = self.connection.printed(queue)
            return errors.DestinationLocked(queue=name, seconds=PATIENCE)
        return None

    def look_at(
        self, places: Iterable[P], look_at_some: Callable[[Sequence[P]], None]
    ) -> dict[P, errors.DatabaseFailure]:
        """
        Look at all tables in one statement, or one by one if that statement fails.

        It fails if it waits too long for a table that another session alters.

        Returns:
            The tables that could not be looked at, and why.
        """
        asked = [*places]
        if LOCKS["insert"] not in self.connection.lacks:
            # here the lock of a table waits for the other session, not the look
            look_at_some(asked)
            return {}
        failures: dict[P, errors.DatabaseFailure] = {}
        if not asked or self.isolate(None, partial(look_at_some, asked)) is None:
            return failures
        for place in asked:
            queue = place if isinstance(place, QueueAddress) else None
            reason = self.isolate(queue, partial(look_at_some, [place]))
            if reason is not None:
                failures[place] = reason
        return failures

    def _look(self, queues: Sequence[QueueAddress], wanted: Use) -> Reasons:
        """Return which tables cannot be sent to, and why; this session has not locked them yet."""
        reasons: Reasons = {}

        def look_at_some(some: Sequence[QueueAddress]) -> None:
            reasons.update(look(self.connection, some, wanted)[1])

        return {**self.look_at(queues, look_at_some), **reasons}

    def undecided(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> list[QueueAddress]:
        accepted = self._accepted.get(tuple(columns), set())
        return [queue for queue in dict.fromkeys(queues) if queue not in accepted]

    def _wanted(self, columns: Sequence[str], source: QueueAddress | None = None) -> Use:
        source = source or self.source
        return Use("insert", columns, source, self.by_header)
