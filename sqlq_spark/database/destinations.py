"""
The tables that one transaction sends to. Each table is locked and checked once.

Addresses of destinations come from options, columns, subscriptions and messages. The module
trust.py decides whether a table may be used. A table that only a header names (ForwardDestination,
FailedQ) must also have the owner of the queue that the message came from.

A table is locked, then checked, and then the caller inserts. `lock_and_check` raises the first
error. `lock_each` returns the error of each destination, so that only the messages for those
destinations fail.

If the insert into one destination fails, usually only this insert is undone. But some failures end
the whole transaction, for example a failure in a trigger on SQL Server. Then `run_without_failed`
runs the transaction again without that destination.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlq_spark import errors
from sqlq_spark.database import LOCKS, TRANSIENT, TransactionUndone, attempt, lock_table
from sqlq_spark.database.trust import (
    Use,
    check_locked,
    lock_and_check,
    look_at_tables,
    with_other_case,
)
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons

T = TypeVar("T")
P = TypeVar("P", bound=QueueAddress | str)  # a table, or a text that names one

# Columns that a table must have. They are spelled as in the transport's CREATE TABLE, because a
# database may distinguish upper and lower case.
SENT_COLUMNS = ("Id", "Expires", "Headers", "Body")  # columns of a queue
# columns of a queue that only a header names; on SQL Server `Seq` means RowVersion
RETURNED_COLUMNS = (*SENT_COLUMNS, "Seq")
DELAYED_COLUMNS = ("Headers", "Body", "Due")  # columns of a table of delayed messages
# How many seconds one task waits for tables that other sessions lock: the sum for all its
# destinations.
LOCK_PATIENCE = 2.0
# Failures that do not come from a destination, so they are raised. Another attempt may succeed, or
# a DBA has ended this attempt.
PASSING_FAILURES = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# The failures that are raised even if only a header names the destination. After any other failure
# of such a destination, only its messages are not sent.
LOST = (errors.ConnectionLost, errors.Cancelled)
MOST_FAILED = 10  # how many destinations a transaction may leave out before a failure is raised


class DestinationFailed(Exception):
    """
    A failure of one destination ended the whole transaction.

    Only `run_without_failed` catches this exception. So code that calls `isolate` must run inside
    the `work` of `run_without_failed`.
    """

    def __init__(self, queue: QueueAddress, failure: errors.DatabaseFailure) -> None:
        super().__init__()
        self.queue = queue
        self.failure = failure


def run_without_failed(work: Callable[[Reasons], T]) -> T:
    """
    Run a transaction. If the failure of one destination ends it, run it without that destination.

    `work` is the whole transaction. Its argument holds the destinations that failed in earlier
    runs, and `work` passes it to its `Destinations`. If more than MOST_FAILED destinations fail,
    the failure is raised.
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

    The steps, in the transaction that is open:

    1. Lock and check. If a table cannot be sent to, `lock_and_check` raises the reason, and
       `lock_each` returns it for each table. A table that was accepted is not locked again.
    2. Insert. The caller inserts, inside `isolate` if a failure is to be undone alone.
    3. Look again. If the database has no lock for step 1, `transaction` looks at the tables once
       more before the commit.

    `find_refused` and `check` look at tables without a lock, when nothing is sent to them yet. A
    table that they accept must still be locked and checked before an insert.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        source: QueueAddress | None = None,
        by_header: bool = False,
        failed: Reasons | None = None,
    ) -> None:
        self.connection = connection  # has the transaction open that sends
        self.source = source  # the tables must have the owner of this queue
        self.by_header = by_header  # whether only a header directs messages there
        # destinations whose failure ended an earlier run of this transaction: `run_without_failed`
        self.failed = failed or {}
        # how many seconds are left of LOCK_PATIENCE
        self.patience = LOCK_PATIENCE
        # the tables that were accepted, by the columns that they must have
        self._accepted: dict[tuple[str, ...], set[QueueAddress]] = {}

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT_COLUMNS
    ) -> Reasons:
        """Return which tables cannot be sent to, and why. Lock nothing, run no code of a table."""
        return look_at_tables(self.connection, [*dict.fromkeys(queues)], self._wanted(columns))[1]

    def check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT_COLUMNS) -> None:
        """Raise an error if a table that options or arguments name cannot be sent to."""
        for reason in self.find_refused(queues, columns).values():
            if isinstance(reason, errors.QueueNotFound):
                raise with_other_case(self.connection, reason)
            raise reason

    def lock_and_check(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT_COLUMNS,
        source: QueueAddress | None = None,
    ) -> None:
        """Lock and check tables. Raise if one cannot be used, or lacks the source's owner."""
        new = self.undecided(queues, columns)
        lock_and_check(self.connection, new, self._wanted(columns, source))
        self._accepted.setdefault(tuple(columns), set()).update(new)

    def lock_each(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT_COLUMNS,
        source: QueueAddress | None = None,
    ) -> Reasons:
        """Lock and check each table apart from the others. Return why some cannot be sent to."""
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
        Do `work` on a destination. If it fails, undo only this work.

        `queue` is None if the work is on several destinations. If another session has locked the
        destination, the work waits for that lock. If only headers name the destinations, all such
        waits of a task together take no longer than LOCK_PATIENCE.

        Returns:
            The failure, or None if the work succeeded.

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
            # a statement with a longer time limit was slow for another reason
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

        If this statement has to wait for a session that alters one of the tables, look at each
        table alone.

        Returns:
            Why some tables could not be looked at.
        """
        all_places = [*places]
        if LOCKS["insert"] not in self.connection.lacks:
            # in this database only the lock before an insert waits for an ALTER, and a look does
            # not
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
