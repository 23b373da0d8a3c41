"""
The tables that one transaction sends to. Each is locked and checked once.

Addresses of destinations come from options, columns, subscriptions and messages. The module
trust.py decides whether a table may be used. A table that only a header names (ForwardDestination,
FailedQ) must also have the owner of the queue that the message came from.

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
from sqlq_spark.database.trust import Use, check_locked, look_at_tables, use
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons

T = TypeVar("T")
P = TypeVar("P", bound=QueueAddress | str)  # a table, or a text that names one

# columns as the transport's CREATE TABLE writes them, which a database may compare by case
SENT_COLUMNS = ("Id", "Expires", "Headers", "Body")  # of a queue
# of a table that only a header names; on SQL Server `Seq` means RowVersion
RETURNED_COLUMNS = (*SENT_COLUMNS, "Seq")
DELAYED_COLUMNS = ("Headers", "Body", "Due")  # of a table of delayed messages
# seconds that one task waits for tables that others lock, for all its destinations together
LOCK_PATIENCE = 2.0
# These failures are no fault of a destination, and are raised: another attempt may succeed, or a
# DBA ended this one.
PASSING_FAILURES = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# Where only a header names the destination, these two are raised. Any other failure costs that
# destination only.
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
    """
    The tables that one transaction sends to.

    The order of its verbs, in the transaction that is open:

    1. Lock and check: `lock_and_check` raises why a table cannot be sent to, and `lock_each`
       returns it for each table. A table that was accepted once is not locked again.
    2. Insert: the caller does it, inside `isolate` if a failure is to be undone alone.
    3. Confirm: `transaction` looks at the tables once more before the commit, where the database
       has no such lock. The look of step 1 has asked for it.

    `find_refused` and `check` are looks without a lock, for whoever sends nothing now. A table that
    they accept must still be locked and checked before an insert.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        source: QueueAddress | None = None,
        by_header: bool = False,
        failed: Reasons | None = None,
    ) -> None:
        self.connection = connection  # in the transaction that sends
        self.source = source  # the tables must have the owner of this queue
        self.by_header = by_header  # whether only a header directs messages there
        # destinations that ended this transaction before, and why: see `run_without_failed`
        self.failed = failed or {}
        # seconds that are left to wait for tables that others lock
        self.patience = LOCK_PATIENCE
        self._accepted: dict[tuple[str, ...], set[QueueAddress]] = {}  # by their columns

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT_COLUMNS
    ) -> Reasons:
        """Return which tables cannot be sent to, and why; lock nothing, run no code of a table."""
        return look_at_tables(self.connection, [*dict.fromkeys(queues)], self._wanted(columns))[1]

    def check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT_COLUMNS) -> None:
        """Raise why a table cannot be sent to; lock nothing."""
        for reason in self.find_refused(queues, columns).values():
            raise reason

    def lock_and_check(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT_COLUMNS,
        source: QueueAddress | None = None,
    ) -> None:
        """Lock and check tables; raise why one cannot be sent to, or has not the source's owner."""
        new = self.undecided(queues, columns)
        use(self.connection, new, self._wanted(columns, source))
        self._accepted.setdefault(tuple(columns), set()).update(new)

    def lock_each(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT_COLUMNS,
        source: QueueAddress | None = None,
    ) -> Reasons:
        """Lock and check tables, each apart from the others; return why some cannot be sent to."""
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
        Do something to a destination; if it fails, undo that alone. None: to several destinations.

        A destination that another session locks is waited for. All those waits of a task together
        take no longer than LOCK_PATIENCE, where only headers name the destinations.

        Returns:
            The failure; None: the work succeeded.

        Raises:
            DestinationFailed: the failure of one destination ended the transaction.
            DatabaseFailure: the failure is not the destination's fault.
        """
        started = time.monotonic()
        passing = LOST if self.by_header else PASSING_FAILURES
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
            # a statement that was slow for another reason has a longer limit
            if queue is None or error.seconds > LOCK_PATIENCE:
                return error
            name = self.connection.printed(queue)
            return errors.DestinationLocked(queue=name, seconds=LOCK_PATIENCE)
        return None

    def look_at(
        self, places: Iterable[P], look_at_some: Callable[[Sequence[P]], None]
    ) -> dict[P, errors.DatabaseFailure]:
        """
        Look at all tables in one statement.

        Where another session's ALTER makes that wait, each table is looked at alone.

        Returns:
            Why some tables could not be looked at.
        """
        all_places = [*places]
        if LOCKS["insert"] not in self.connection.lacks:
            # the lock waits, and the look after it does not
            look_at_some(all_places)
            return {}
        failures: dict[P, errors.DatabaseFailure] = {}
        if not all_places or self.isolate(None, partial(look_at_some, all_places)) is None:
            return failures
        for place in all_places:
            queue = place if isinstance(place, QueueAddress) else None
            reason = self.isolate(queue, partial(look_at_some, [place]))
            if reason is not None:
                failures[place] = reason
        return failures

    def _look(self, queues: Sequence[QueueAddress], wanted: Use) -> Reasons:
        """Return which tables cannot be sent to, before this transaction locks them."""
        reasons: Reasons = {}

        def look_at_some(some: Sequence[QueueAddress]) -> None:
            reasons.update(look_at_tables(self.connection, some, wanted)[1])

        return {**self.look_at(queues, look_at_some), **reasons}

    def undecided(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT_COLUMNS
    ) -> list[QueueAddress]:
        """Return the tables that this transaction has not accepted yet."""
        accepted = self._accepted.get(tuple(columns), set())
        return [queue for queue in dict.fromkeys(queues) if queue not in accepted]

    def _wanted(self, columns: Sequence[str], source: QueueAddress | None = None) -> Use:
        source = source or self.source
        return Use("insert", columns, source, self.by_header)
