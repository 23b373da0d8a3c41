"""
The tables that one transaction sends to, each locked and looked at once.

Addresses of destinations come from options, columns, subscriptions and messages. Whether a table
may be used says trust.py. What only a header names (ForwardDestination, FailedQ) must also have the
owner of the queue that the message came from.

A failure of one destination is undone alone. Some failures end the whole transaction, as those in a
trigger do on SQL Server. Then `run_without_failed` runs it again without that destination.
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

# columns as the transport's CREATE TABLE writes them, which a database may compare by case
SENT = ("Id", "Expires", "Headers", "Body")  # of a queue
RETURNED = (*SENT, "Seq")  # of a table that only a header names; on SQL Server RowVersion
DELAYED = ("Headers", "Body", "Due")  # of a table of delayed messages
PATIENCE = 2.0  # seconds that one task waits for all destinations that others lock
# failures that are no fault of a destination: another attempt may succeed, or a DBA ended this one
PASSING = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# of those, what passes where only a header names the destination: all else is undone alone
LOST = (errors.ConnectionLost, errors.Cancelled)
MOST_FAILED = 10  # destinations without which one transaction is run again


class DestinationFailed(Exception):
    """
    A failure of one destination ended the whole transaction.

    Only `run_without_failed` catches it, so whoever isolates failures runs in its `work`.
    """

    def __init__(self, queue: QueueAddress, failure: errors.DatabaseFailure) -> None:
        super().__init__()
        self.queue = queue
        self.failure = failure


def run_without_failed(work: Callable[[Reasons], T]) -> T:
    """
    Run a transaction, and again without each destination whose failure ended it.

    `work` is the whole transaction. It gets what failed before, for its `Destinations`. Beyond
    MOST_FAILED destinations the failure is raised.
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
        self.connection = connection  # in the transaction that sends
        self.source = source  # whose owner the tables must have
        self.by_header = by_header  # whether only a header directs messages there
        self.failed = failed or {}  # what ended this transaction before, see run_without_failed
        self.patience = PATIENCE  # seconds that are left to wait for tables that others lock
        self._accepted: dict[tuple[str, ...], set[QueueAddress]] = {}  # by their columns

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> Reasons:
        """Return what cannot be sent to, and why; locks nothing, and runs no code of a table."""
        return look(self.connection, [*dict.fromkeys(queues)], self._wanted(columns))[1]

    def check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT) -> None:
        """Raise why one cannot be sent to, as `find_refused`."""
        for reason in self.find_refused(queues, columns).values():
            raise reason

    def lock_and_check(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT,
        source: QueueAddress | None = None,
    ) -> None:
        """Lock tables; raise why one cannot be sent to. Its owner must be that of the source."""
        new = self.undecided(queues, columns)
        use(self.connection, new, self._wanted(columns, source))
        self._accepted.setdefault(tuple(columns), set()).update(new)

    def lock_each(
        self,
        queues: Iterable[QueueAddress],
        columns: Sequence[str] = SENT,
        source: QueueAddress | None = None,
    ) -> Reasons:
        """Lock and check tables, each apart from the others; return why some cannot be sent to."""
        new, wanted = self.undecided(queues, columns), self._wanted(columns, source)
        reasons: Reasons = {queue: self.failed[queue] for queue in new if queue in self.failed}
        reasons |= self._look([each for each in new if each not in reasons], wanted)
        for queue in [each for each in new if each not in reasons]:
            reason = self.isolate(queue, partial(lock_table, self.connection, queue, "insert"))
            if reason is not None:
                reasons[queue] = reason
        locked = [each for each in new if each not in reasons]
        reasons |= check_locked(self.connection, locked, wanted)
        self._accepted.setdefault(tuple(columns), set()).update({*new} - reasons.keys())
        return reasons

    def isolate(
        self, queue: QueueAddress | None, work: Callable[[], None]
    ) -> errors.DatabaseFailure | None:
        """
        Do something to a destination, or to several (None), or undo that alone.

        Those that only headers name are waited for no longer than PATIENCE together.

        Returns:
            Why it failed; None where it did not.

        Raises:
            DestinationFailed: the failure of one destination ended the transaction.
            DatabaseFailure: what is no fault of a destination.
        """
        started = time.monotonic()
        passing = LOST if self.by_header else PASSING
        try:
            with attempt(self.connection):
                work()
        except TransactionUndone as undone:
            # another attempt of the whole transaction may end without a deadlock
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
            if queue is None or error.seconds > PATIENCE:
                return error
            name = self.connection.printed(queue)
            return errors.DestinationLocked(queue=name, seconds=PATIENCE)
        return None

    def look_at(
        self, places: Iterable[P], look_at_some: Callable[[Sequence[P]], None]
    ) -> dict[P, errors.DatabaseFailure]:
        """
        Look at tables at once, or at each alone where another session's ALTER makes that wait.

        Returns:
            Why some could not be looked at.
        """
        asked = [*places]
        if LOCKS["insert"] not in self.connection.lacks:
            # the lock waits, and the look after it does not
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
        """Return what cannot be sent to, of tables that nobody has locked yet."""
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
