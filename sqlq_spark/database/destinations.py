"""
The tables that one transaction sends to, each locked and looked at once.

Addresses of destinations come from options, columns, subscriptions and messages. Whether a table
may be used says trust.py. What only a header names (ForwardDestination, FailedQ) must also have the
owner of the queue that the message came from.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.database import TRANSIENT, attempt, lock_table
from sqlq_spark.database.trust import Use, check_locked, look, use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.wire.address import QueueAddress

# columns as the transport's CREATE TABLE writes them, which a database may compare by case
SENT = ("Id", "Expires", "Headers", "Body")  # of a queue
RETURNED = (*SENT, "Seq")  # of a table that only a header names; on SQL Server RowVersion
DELAYED = ("Headers", "Body", "Due")  # of a table of delayed messages
PATIENCE = 2.0  # seconds that one task waits for all destinations that others lock
# failures that are no fault of a destination: another attempt may succeed, or a DBA ended this one
PASSING = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# of those, what passes where only a header names the destination: all else is undone alone
LOST = (errors.ConnectionLost, errors.Cancelled)


class Destinations:
    """The tables that one transaction sends to."""

    def __init__(
        self, connection: Connection, *, source: QueueAddress | None = None, by_header: bool = False
    ) -> None:
        self.connection = connection  # in the transaction that sends
        self.source = source  # whose owner the tables must have
        self.by_header = by_header  # whether only a header directs messages there
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
        reasons = look(self.connection, new, wanted)[1]
        for queue in [each for each in new if each not in reasons]:
            reason = self.isolate(partial(lock_table, self.connection, queue, "insert"))
            if isinstance(reason, errors.TimedOut):
                name = self.connection.printed(queue)
                reason = errors.DestinationLocked(queue=name, seconds=PATIENCE)
            if reason is not None:
                reasons[queue] = reason
        locked = [each for each in new if each not in reasons]
        reasons |= check_locked(self.connection, locked, wanted)
        self._accepted.setdefault(tuple(columns), set()).update({*new} - reasons.keys())
        return reasons

    def isolate(self, work: Callable[[], None]) -> errors.DatabaseFailure | None:
        """
        Do something to a destination, or undo that alone; return why it failed.

        Raises what is no fault of the destination. Those that only headers name are waited for no
        longer than PATIENCE together.
        """
        started = time.monotonic()
        try:
            with attempt(self.connection):
                work()
        except errors.DatabaseFailure as error:
            if isinstance(error, LOST if self.by_header else PASSING):
                raise
            if isinstance(error, errors.TimedOut):
                self.patience = max(0.0, self.patience - (time.monotonic() - started))
                self.connection.set_lock_timeout(self.patience)
            return error
        return None

    def undecided(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> list[QueueAddress]:
        accepted = self._accepted.get(tuple(columns), set())
        return [queue for queue in dict.fromkeys(queues) if queue not in accepted]

    def _wanted(self, columns: Sequence[str], source: QueueAddress | None = None) -> Use:
        source = source or self.source
        return Use("insert", columns, source, self.by_header)
