"""
May this table run foreign code? One decision for what is sent to, read, and used as state tables.

The owner of a table decides what code its use runs, with the rights of the login that uses it. Both
databases have one list of the kinds of code, `code_parts` in trust.sql. The action decides what of
it counts: `insert` all of it, `select` what a look at the rows can run, and for a state table even
the code of a trusted owner.

Addresses of destinations come from messages, columns and subscriptions. They have two rules:

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
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlq_spark import errors
from sqlq_spark.database import TRANSIENT, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import Names, QueueAddress

# columns as the transport's CREATE TABLE writes them, which a database may compare by case
SENT = ("Id", "Expires", "Headers", "Body")  # of a queue
RETURNED = (*SENT, "Seq")  # of a table that only a header names; on SQL Server RowVersion
DELAYED = ("Headers", "Body", "Due")  # of a table of delayed messages
PATIENCE = 2.0  # seconds that one task waits for all destinations that others lock
# failures that are no fault of a destination: another attempt may succeed, or a DBA ended this one
PASSING = (*TRANSIENT, errors.Cancelled, errors.TimedOut)
# of those, what passes where only a header names the destination: all else is undone alone
LOST = (errors.ConnectionLost, errors.Cancelled)
Reasons: TypeAlias = "dict[QueueAddress, errors.SqlQueueError]"  # why tables cannot be sent to


@dataclass(frozen=True, slots=True)
class Destination:
    """What the database knows of a table that messages are to go to."""

    identity: int  # while it exists
    catalog: str | None
    here: bool  # whether it is in the database of the connection
    schema: str
    table: str
    missing: str | None  # what is wrong with its first column that no queue has so
    may_insert: bool
    owner: str
    same_owner: bool  # whether its owner is that of the queue that is read
    trusted: bool  # whether, once locked, no untrusted owner can replace it by another table
    code: str | None = None  # the first code of an untrusted owner that an INSERT would run
    locks: str | None = None  # what this transaction has locked by this name; None: not read


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
        self.connection = connection  # in the transaction that sends
        self.allowed = allowed  # the option allowedDestinations
        self.source = source  # the queue that is read, if one is; its owner is trusted
        self.by_header = by_header  # whether only a header directs messages there
        self.patience = PATIENCE  # seconds that are left to wait for tables that others lock
        self._held: dict[tuple[str, ...], dict[QueueAddress, Destination]] = {}

    def find_refused(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> Reasons:
        """Return what cannot be sent to, and why; locks nothing, and runs no code of a table."""
        return self._look(list(dict.fromkeys(queues)), columns)[1]

    def check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT) -> None:
        """Raise why one cannot be sent to, as `find_refused`."""
        for reason in self.find_refused(queues, columns).values():
            raise reason

    def lock(self, queue: QueueAddress) -> None:
        """Keep a table as it is until the transaction ends; fails if it is absent or locked."""
        if "lock_destination" in self.connection.lacks:
            return
        try:
            self.connection.rows("lock_destination", tables={"queue": queue})
        except errors.StatementRefused as error:
            raise errors.NotAQueue(
                queue=self.connection.printed(queue),
                reason=error.reason,
                columns=self.connection.names.queue_columns,
            ) from None

    def lock_and_check(self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT) -> None:
        """Lock tables; raise why one cannot be sent to."""
        new = self.undecided(queues, columns)
        for queue in new:
            self.lock(queue)
        for reason in self._check_locked(new, columns).values():
            raise reason

    def lock_each(self, queues: Iterable[QueueAddress], columns: Sequence[str]) -> Reasons:
        """Lock and check tables, each apart from the others; return why some cannot be sent to."""
        new = self.undecided(queues, columns)
        reasons = self.find_refused(new, columns)
        for queue in [each for each in new if each not in reasons]:
            reason = self.isolate(partial(self.lock, queue))
            if isinstance(reason, errors.TimedOut):
                name = self.connection.printed(queue)
                reason = errors.DestinationLocked(queue=name, seconds=PATIENCE)
            if reason is not None:
                reasons[queue] = reason
        locked = [each for each in new if each not in reasons]
        return reasons | self._check_locked(locked, columns)

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
        held = self._held.get(tuple(columns), {})
        return [queue for queue in dict.fromkeys(queues) if queue not in held]

    def confirm(self) -> None:
        """After the inserts, raise DestinationChanged for a table that is not as it was checked."""
        for columns, held in self._held.items():
            open_ = [queue for queue, each in held.items() if not each.trusted]
            if not open_:
                continue
            found, reasons = self._look(open_, columns)
            locks = self._locks([*found.values()])
            for queue in open_:
                before = held[queue]
                if (
                    queue in reasons
                    or found[queue].identity != before.identity
                    or locks.get(before.identity, (False, ""))[1] != before.locks
                ):
                    raise errors.DestinationChanged(queue=self.connection.printed(queue))

    def _check_locked(self, queues: Sequence[QueueAddress], columns: Sequence[str]) -> Reasons:
        """Return which of the locked tables must not be sent to, and why; `confirm` looks again."""
        found, reasons = self._look(queues, columns)
        new = {queue: found[queue] for queue in queues if queue not in reasons}
        open_ = {queue: each for queue, each in new.items() if not each.trusted}
        locks = self._locks([*open_.values()])
        for queue, each in open_.items():
            locked, text = locks.get(each.identity, (False, ""))
            if not locked:
                raise errors.DestinationChanged(queue=self.connection.printed(queue))
            new[queue] = replace(each, locks=text)
        self._held.setdefault(tuple(columns), {}).update(new)
        return reasons

    def _locks(self, found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
        """Return by identity: whether this transaction has locked it, and all of its name."""
        if not found or "destination_locks" in self.connection.lacks:
            return {each.identity: (True, "") for each in found}
        places = json.dumps([each.identity for each in found])
        rows = self.connection.rows("destination_locks", places=places)
        return {identity: (locked, others) for identity, locked, others in rows}

    def _look(
        self, queues: Sequence[QueueAddress], columns: Sequence[str]
    ) -> tuple[dict[QueueAddress, Destination], Reasons]:
        found = find_destinations(self.connection, queues, columns, self.source)
        return found, {
            queue: reason
            for queue in queues
            if (reason := self._reason(queue, found.get(queue))) is not None
        }

    def _reason(  # noqa: PLR0911 - each return is one kind of error
        self, queue: QueueAddress, found: Destination | None
    ) -> errors.SqlQueueError | None:
        name, server = self.connection.printed(queue), self.connection.server
        if self.by_header and (not found or found.missing is not None or not found.may_insert):
            return errors.QueueNotWritable(queue=name, server=server)
        if found is None:
            return errors.QueueNotFound(queue=name, server=server)
        allowed = is_allowed(found, self.allowed)
        # before the columns: a type of an untrusted owner is code too
        if found.code is not None and not allowed:
            return errors.DestinationRefused(queue=name, owner=found.owner, found=found.code)
        if found.missing is not None:
            return errors.NotAQueue(
                queue=name,
                reason=found.missing,
                columns=self.connection.names.queue_columns,
            )
        if allowed:
            return None
        if self.by_header and self.source is not None and not found.same_owner:
            return errors.DestinationOfOther(
                queue=name, owner=found.owner, found=self.connection.printed(self.source)
            )
        return None


def find_destinations(
    connection: Connection,
    queues: Sequence[QueueAddress],
    columns: Sequence[str],
    source: QueueAddress | None = None,
) -> dict[QueueAddress, Destination]:
    """Return what is known of tables; those that are not there are left out. Fails for none."""
    if not queues:
        return {}
    places = [{**place, "columns": list(columns)} for place in places_of(connection.names, queues)]
    read = None if source is None else connection.names.quote_address(source)
    rows = connection.rows("destinations", places=json.dumps(places), source_table=read)
    found = {queues[at]: Destination(*facts) for at, *facts in rows}
    identities = {queue: each.identity for queue, each in found.items()}
    code = find_code(connection, identities, "insert", read)
    return {queue: replace(each, code=code.get(each.identity)) for queue, each in found.items()}


def find_code(
    connection: Connection,
    tables: Mapping[QueueAddress, int],
    action: Literal["insert", "select"],
    source: str | None = None,
) -> dict[int, str]:
    """
    Return the first code of an owner who is not trusted that an action on tables would run.

    Returned by identity; nothing for tables that may be used. `source` is the queue that is read,
    quoted; its owner is trusted.
    """
    if not tables:
        return {}
    identified = zip(places_of(connection.names, [*tables]), tables.values(), strict=True)
    asked = json.dumps([place | {"identity": identity} for place, identity in identified])
    return dict(connection.rows("table_code", places=asked, action=action, source_table=source))


def find_state_faults(connection: Connection) -> str:
    """Return why the connection's state tables are not trusted; empty where they are."""
    return "; ".join(text for (text,) in connection.rows("state_faults"))


def places_of(names: Names, queues: Sequence[QueueAddress]) -> list[dict[str, Any]]:
    """Return tables as the statements `destinations` and `table_code` take them."""
    return [
        {
            "place": at,
            "catalog": queue.catalog,
            "schema_name": names.qualify(queue).schema,
            "table_name": queue.table,
            "name": names.quote_address(queue),
        }
        for at, queue in enumerate(queues)
    ]


def is_allowed(found: Destination, allowed: Iterable[QueueAddress]) -> bool:
    """Whether a pattern of the option matches a table, part by part."""
    return any(
        fits(each.table, found.table)
        and fits(each.schema or "", found.schema)
        and (found.here if each.catalog is None else fits(each.catalog, found.catalog or ""))
        for each in allowed
    )


def fits(pattern: str, name: str) -> bool:
    """Whether a name is as a pattern, in which `*` is any text and `?` any character."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # a bracket is a character like others
