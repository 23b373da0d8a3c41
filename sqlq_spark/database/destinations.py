"""
Which tables messages may go to: one decision for forwards, returns, sends, publishing and jobs.

The owner of a table decides what code an INSERT into it runs, with the rights of the login that
inserts. Addresses come from messages, columns and subscriptions. So each destination has two rules:

    code     an INSERT must run no code of an owner other than this login, a superuser (on SQL
             Server dbo), or the owner of the queue that is read
    place    a message that only a header directs (ForwardDestination, FailedQ) goes only to tables
             with the same owner as the queue that it came from

The option allowedDestinations lists tables that are exempt from both.

A transaction locks a table, checks it, and inserts. If the owner of its schema is not trusted, the
transaction checks the table once more before the commit. The lock keeps triggers and rules as they
are. The last check finds a schema that was renamed. SQL Server has no such lock, and the last check
finds any change. A change undoes the transaction.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from sqlq_spark.errors import (
    DestinationChanged,
    DestinationOfOther,
    DestinationRefused,
    NotAQueue,
    QueueNotFound,
    QueueNotWritable,
    StatementRefused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Connection, Destination
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.wire.address import QueueAddress

SENT = ("id", "expires", "headers", "body")  # columns that a queue has in every database
RETURNED = (*SENT, "seq")  # columns of a table that only a header names
PATIENCE = 2.0  # seconds that one task waits for all destinations that others lock
DELAYED = ("headers", "body", "due")  # of a table of delayed messages


class Destinations:
    """The tables that one transaction sends to."""

    def __init__(
        self,
        connection: Connection,
        allowed: Sequence[QueueAddress] = (),
        *,
        source: QueueAddress | None = None,
        by_header: bool = False,
    ) -> None:
        """
        Prepare; nothing is read yet.

        Args:
            connection: in the transaction that sends.
            allowed: the option allowedDestinations.
            source: the queue that is read, if one is; its owner is trusted.
            by_header: whether only a header directs messages there.
        """
        self.connection = connection
        self.allowed = allowed
        self.source = source
        self.by_header = by_header
        self._held: dict[tuple[str, ...], dict[QueueAddress, Destination]] = {}

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> dict[QueueAddress, SqlQueueError]:
        """
        Return the tables that cannot be sent to, and why; locks nothing, runs none of their code.

        Args:
            queues: the tables, which may be absent.
            columns: those that each table must have.
        """
        asked = list(dict.fromkeys(queues))
        found = self._ask(asked, columns)
        reasons = {queue: self._reason(queue, found.get(queue)) for queue in asked}
        return {queue: reason for queue, reason in reasons.items() if reason is not None}

    def lock(self, queue: QueueAddress) -> None:
        """
        Keep a table as it is until the transaction ends.

        Raises:
            DatabaseFailure: it is not there, may not be inserted into, or is locked by others.
        """
        if "lock_destination" in self.connection.names.lacks:
            return
        try:
            self.connection.run("lock_destination", tables={"queue": queue})
        except StatementRefused as error:
            raise NotAQueue(queue=self.connection.printed(queue), reason=error.reason) from None

    def check_locked(
        self, queues: Iterable[QueueAddress], columns: Sequence[str]
    ) -> dict[QueueAddress, SqlQueueError]:
        """
        Check locked tables, once; `confirm` checks them again.

        Returns:
            The tables that must not be sent to, and why.
        """
        held = self._held.setdefault(tuple(columns), {})
        asked = self.undecided(queues, columns)
        found = self._ask(asked, columns)
        reasons: dict[QueueAddress, SqlQueueError] = {}
        for queue in asked:
            reason = self._reason(queue, found.get(queue))
            if reason is None:
                held[queue] = found[queue]
            else:
                reasons[queue] = reason
        self._mark(held, [queue for queue in asked if queue in held])
        return reasons

    def _mark(self, held: dict[QueueAddress, Destination], new: list[QueueAddress]) -> None:
        """Record what is locked by the names of tables whose schema may be renamed."""
        open_ = [queue for queue in new if not held[queue].settled]
        if not open_:
            return
        locks = self._locks([held[queue] for queue in open_])
        for queue in open_:
            kept, text = locks.get(held[queue].identity, (False, ""))
            if not kept:
                raise DestinationChanged(queue=self.connection.printed(queue))
            held[queue] = replace(held[queue], locks=text)

    def _locks(self, found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
        """
        Return for each table, by its identity, whether this transaction has locked it.

        The text beside it lists all tables of that name that the transaction has locked.
        """
        if "destination_locks" in self.connection.names.lacks:
            return {each.identity: (True, "") for each in found}
        places = json.dumps([each.identity for each in found])
        rows = self.connection.rows("destination_locks", places=places)
        return {identity: (locked, others) for identity, locked, others in rows}

    def lock_and_check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT) -> None:
        """
        Lock tables and make sure that they can be sent to.

        Raises:
            DatabaseFailure: one cannot.
        """
        new = self.undecided(queues, columns)
        for queue in new:
            self.lock(queue)
        for reason in self.check_locked(new, columns).values():
            raise reason

    def undecided(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> list[QueueAddress]:
        """Return the tables that were not checked yet."""
        held = self._held.get(tuple(columns), {})
        return [queue for queue in dict.fromkeys(queues) if queue not in held]

    def confirm(self) -> None:
        """
        Make sure, after the inserts, that the tables are still those that were checked.

        Raises:
            DestinationChanged: the transaction must be undone.
        """
        for columns, held in self._held.items():
            open_ = [queue for queue, each in held.items() if not each.settled]
            if not open_:
                continue
            found = self._ask(open_, columns)
            locks = self._locks([*found.values()])
            for queue in open_:
                now, before = found.get(queue), held[queue]
                same = now is not None and now.identity == before.identity
                if (
                    not same
                    or locks.get(before.identity, (False, ""))[1] != before.locks
                    or self._reason(queue, now) is not None
                ):
                    raise DestinationChanged(queue=self.connection.printed(queue))

    def _ask(
        self, queues: Sequence[QueueAddress], columns: Sequence[str]
    ) -> dict[QueueAddress, Destination]:
        if not queues:
            return {}
        return self.connection.destinations(queues, columns, self.source)

    def _reason(self, queue: QueueAddress, found: Destination | None) -> SqlQueueError | None:
        """Return why a table must not be sent to, or None."""
        name, server = self.connection.printed(queue), self.connection.server
        unfit = found is None or found.missing is not None
        if self.by_header and (found is None or unfit or not found.may_insert):
            return QueueNotWritable(queue=name, server=server)
        if found is None:
            return QueueNotFound(queue=name, server=server)
        if found.missing is not None:
            return NotAQueue(queue=name, reason=f"it has no column {found.missing}")
        return None if is_allowed(found, self.allowed) else self._distrust(name, found)

    def _distrust(self, name: str, found: Destination) -> SqlQueueError | None:
        """Return why a table is not trusted, or None."""
        if found.code is not None:
            return DestinationRefused(queue=name, owner=found.owner, found=found.code)
        if self.by_header and self.source is not None and not found.same_owner:
            return DestinationOfOther(
                queue=name, owner=found.owner, found=self.connection.printed(self.source)
            )
        return None


def check_writable(
    connection: Connection, queues: Sequence[QueueAddress], allowed: Sequence[QueueAddress]
) -> None:
    """
    Make sure that queues can be sent to, before anything is received; in a transaction.

    Raises:
        QueueNotWritable, DestinationRefused.
    """
    found = connection.destinations(queues, RETURNED, None)
    for queue in queues:
        there = found.get(queue)
        if there is None or there.missing is not None or not there.may_insert:
            raise QueueNotWritable(queue=connection.printed(queue), server=connection.server)
    for reason in Destinations(connection, allowed).find_refused(queues, RETURNED).values():
        raise reason


def is_allowed(found: Destination, allowed: Iterable[QueueAddress]) -> bool:
    """Whether a pattern of the option matches a table, part by part."""
    return any(
        fits(each.table, found.table)
        and fits(each.schema or "", found.schema)
        and (found.here if each.catalog is None else fits(each.catalog, found.catalog or ""))
        for each in allowed
    )


@cache
def pattern(text: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression; `*` is any text and `?` any character."""
    parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in text)
    return re.compile("".join(parts), re.DOTALL)


def fits(text: str, name: str) -> bool:
    """Whether a pattern matches a whole name."""
    return pattern(text).fullmatch(name) is not None


def without_server(reason: SqlQueueError, connection: Connection) -> str:
    """Return a reason without the url: headers that contain it may leave this database."""
    return str(reason).replace(connection.server, "this database")
