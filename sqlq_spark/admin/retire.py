"""
Drops a queue that is no longer used, and loses no message that arrives meanwhile.

First the queue is unsubscribed. Endpoints keep the subscribers that they have read for a moment, so
the caller waits for PATIENCE. Then one transaction locks the tables, counts again, and drops them.
A sender that waits for the lock fails when the table is gone, so its message is not lost.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import quantity
from sqlq_spark.admin.subscribers import subscriptions_of
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import (
    check_state,
    delayed_of,
    find_states,
    record_action,
    use_state,
)
from sqlq_spark.database.trust import RETURNED, find_destinations
from sqlq_spark.errors import (
    BadAddress,
    ConnectionLost,
    DatabaseFailure,
    NotAQueue,
    QueueNotFound,
    SqlQueueError,
    StateNotInstalled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.inspect import Receipt
    from sqlq_spark.database import Connection
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

PATIENCE = 5  # seconds for which an endpoint keeps the subscribers that it has read


class StillUsed(SqlQueueError):
    """The queue cannot be dropped. Neither it nor its table of delayed messages was dropped."""

    template = "queue {queue} was not dropped: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is left of a queue."""

    messages: int = 0
    last: int = 0  # the highest seq; 0 where no message waits
    delayed: int | None = None  # messages; None: there is no table of delayed messages
    receipts: tuple[Receipt, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()

    @property
    def total(self) -> int:
        """Messages in both tables."""
        return self.messages + (self.delayed or 0)

    def reasons(self, expected: Remains) -> Iterator[str]:
        """
        Say why the queue cannot be dropped.

        Args:
            expected: the messages that may be lost.
        """
        if self.subscriptions:
            endpoint = self.subscriptions[0].endpoint
            yield f"endpoint {endpoint} has subscribed again; stop it first"
        if self.receipts:
            held = quantity(sum(each.messages for each in self.receipts), "message")
            streams = ", ".join(sorted({each.stream for each in self.receipts}))
            yield (
                f"{quantity(len(self.receipts), 'receipt')} with {held} of it are open (stream "
                f"{streams}); let the stream acknowledge them, or see `sqlqueue receipts`"
            )
        if self.total and not expected.total:
            yield (
                f"{quantity(self.total, 'message')} would be lost; receive or move them, or use "
                "--discard-messages"
            )
        elif (
            self.last > expected.last
            or self.messages > expected.messages
            or (self.delayed or 0) > (expected.delayed or 0)
        ):
            yield "messages have arrived meanwhile; run the command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """A queue that is to be dropped, and where its traces are."""

    queue: QueueAddress
    subscription_table: QueueAddress
    states: tuple[str, ...]  # schemas of state tables in which receipts are looked for
    unread: dict[str, str]  # those in which they are not, and why
    timeout: float  # seconds of each statement

    @classmethod
    def of(
        cls,
        connection: Connection,
        queue: QueueAddress,
        subscription_table: QueueAddress,
        *,
        state: str | None,
        timeout: float,
    ) -> Retirement:
        """
        Prepare; no transaction is open. Without `state` all state schemas are looked into.

        Raises:
            QueueNotFound, NotAQueue: the table is not there, or is another one.
        """
        name = connection.printed(queue)
        found = find_destinations(connection, [queue], RETURNED).get(queue)
        if found is None:
            raise QueueNotFound(queue=name, server=connection.server)
        if found.missing is not None:
            raise NotAQueue(queue=name, reason=f"it has no column {found.missing}")
        if state is None:
            states, unread = _readable(connection, *find_states(connection))
        else:
            states, unread = [state] if _has_state(connection) else [], {}
        return cls(
            queue=queue,
            subscription_table=subscription_table,
            states=tuple(states),
            unread=unread,
            timeout=timeout,
        )

    def tables(self, connection: Connection) -> list[QueueAddress]:
        """Return the tables to drop, in the order in which a mover of delayed messages locks."""
        delayed = delayed_of(self.queue)
        try:
            there = "due" in connection.columns(delayed)
        except BadAddress:  # its name would be too long
            there = False
        return [delayed, self.queue] if there else [self.queue]

    def look(self, connection: Connection) -> Remains:
        """Count what is left."""
        with transaction(connection, timeout=self.timeout):
            return self._look(connection)

    def _look(self, connection: Connection) -> Remains:
        depth = inspect.depth(connection, self.queue)
        *delayed, _ = self.tables(connection)
        subscribed = subscriptions_of(connection, self.subscription_table, self.queue)
        return Remains(
            messages=depth.messages,
            last=depth.last or 0,
            delayed=_count(connection, delayed[0]) if delayed else None,
            receipts=tuple(self._receipts(connection)),
            subscriptions=tuple(subscribed),
        )

    def _receipts(self, connection: Connection) -> list[Receipt]:
        """Return the receipts with messages of the queue, which this login may see."""
        found: list[Receipt] = []
        for state in self.states:
            with use_state(connection, state):
                found += inspect.receipts(connection)
        names: dict[str, QueueAddress] = {}
        for each in found:
            with suppress(BadAddress):
                names[each.queue] = connection.names.parse_table(each.queue)
        own, *others = connection.identities([self.queue, *names.values()])
        same = {name for name, other in zip(names, others, strict=True) if other == own}
        return [each for each in found if each.queue in same]

    def unsubscribe(self, connection: Connection, found: Sequence[Subscription]) -> None:
        """End subscriptions, all or none."""
        with transaction(connection, timeout=self.timeout):
            for each in found:
                connection.rows(
                    "unsubscribe",
                    tables={"subscriptions": self.subscription_table},
                    topic=each.topic,
                    endpoint=each.endpoint,
                )

    def check(self, connection: Connection, left: Remains, expected: Remains) -> None:
        """
        Make sure that the queue can be dropped.

        Raises:
            StillUsed.
        """
        if reasons := list(left.reasons(expected)):
            raise StillUsed(queue=connection.printed(self.queue), reason="; ".join(reasons))

    def drop(
        self, connection: Connection, expected: Remains, *, trails: Sequence[str] = ()
    ) -> list[str]:
        """
        Drop the tables if nothing else than expected is in them; no transaction is open.

        Args:
            connection: of a login that owns the tables.
            expected: the messages that may be lost.
            trails: the state schemas into whose audit trail an entry is written.

        Returns:
            The tables that were dropped.

        Raises:
            StillUsed: something else is left. Nothing was dropped.
        """
        with transaction(connection, timeout=self.timeout):
            tables = self.tables(connection)
            for table in tables:
                connection.rows("lock_queue", tables={"queue": table})
            left = self._look(connection)
            self.check(connection, left, expected)
            for table in tables:
                connection.rows("drop_queue", tables={"queue": table})
            for state in trails:
                with use_state(connection, state):
                    record_action(connection, "retire", connection.printed(self.queue), left.total)
        return [connection.printed(table) for table in tables]


def _count(connection: Connection, delayed: QueueAddress) -> int:
    """Return how many messages a table of delayed messages holds."""
    values = {"table_name": connection.printed(delayed), "zone": None, "largest": None}
    return int(connection.rows("stats_delayed", tables={"queue": delayed}, **values)[0][0])


def _readable(
    connection: Connection, states: list[str], unread: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Move the schemas whose receipts cannot be read to the others; no transaction is open."""
    readable = []
    for state in states:
        try:
            with use_state(connection, state):
                check_state(connection)
                inspect.receipts(connection, stream="")
        except ConnectionLost:
            raise
        except DatabaseFailure as error:
            unread = {**unread, state: str(error)}
        else:
            readable.append(state)
    return readable, unread


def _has_state(connection: Connection) -> bool:
    """Whether there are state tables, in which receipts could be."""
    try:
        check_state(connection)
    except StateNotInstalled:
        return False
    return True
