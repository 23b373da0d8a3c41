"""
Forwarding: a delayed message that was moved into this queue may be for another one.

The header ForwardDestination says where it belongs. The task that receives the message sends it on,
in the same transaction, without the header and without expiry. If it belongs here, only the header
is removed. A message that cannot be sent on goes to the error queue, from where it can be returned.
Without an error queue it is delivered here as it is.

The addresses are untrusted. They are parsed, looked up all at once, and receive messages only if
database/trust.py allows it. Any other failure of one destination is undone alone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sqlq_spark.database import attempt, load_checked
from sqlq_spark.database.failure_headers import failure_headers, list_reasons, rows_to_store
from sqlq_spark.database.spellings import find_same
from sqlq_spark.database.trust import PATIENCE, RETURNED, Destinations
from sqlq_spark.errors import (
    BadAddress,
    Cancelled,
    ConnectionLost,
    DatabaseFailure,
    DestinationLocked,
    DestinationRefused,
    SqlQueueError,
    TimedOut,
)
from sqlq_spark.receive.destination_header import deliver, find_marked, find_routes
from sqlq_spark.wire.headers import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.destination_header import Routes
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What is delivered here, and how many messages are not."""

    rows: pa.Table
    forwarded: int = 0
    failed: int = 0  # went to the error queue


def forward(
    connection: Connection,
    queue: QueueAddress,
    errors: QueueAddress | None,
    rows: pa.Table,
    *,
    allowed: Sequence[QueueAddress] = (),
) -> Forwarded:
    """
    Send on the messages that belong to other queues.

    Args:
        connection: in the transaction that received the rows.
        queue: where they come from.
        errors: takes what cannot be sent on; None: it stays here.
        rows: of QUEUE_ROW, none expired.
        allowed: the option allowedDestinations.

    Raises:
        DestinationRefused: a table is not trusted, and there is no error queue.
    """
    marked = find_marked(rows["headers"])
    if marked is None:
        return Forwarded(rows)
    own, mine = connection.printed(queue), rows.filter(marked)
    routes = find_routes(mine["headers"].to_pylist(), partial(find_same, connection, queue))
    destinations = Destinations(connection, allowed, source=queue, by_header=True)
    work = Forwarding(destinations, own, errors, mine, routes)
    reasons = work.send()
    failed = work.give_up(reasons) if reasons else 0
    sent = routes.rows_of(routes.away.keys() - reasons.keys())
    if sent:
        log.info("%s: %d delayed messages forwarded", own, len(sent))
    gone = {*sent, *(routes.rows_of(reasons) if failed else ())}
    return Forwarded(deliver(rows, marked, routes.texts, gone), len(sent), failed)


class Forwarding:
    """One task's messages that belong elsewhere, on their way to their destinations."""

    def __init__(
        self,
        destinations: Destinations,
        own: str,
        errors: QueueAddress | None,
        rows: pa.Table,
        routes: Routes,
    ) -> None:
        self.destinations = destinations
        self.connection = destinations.connection
        self.own = own
        self.errors = errors
        self.rows = rows
        self.routes = routes
        self.patience = PATIENCE  # seconds that are left to wait for locked destinations

    def send(self) -> dict[str, SqlQueueError]:
        """Send on what can be sent; why the other destinations got nothing."""
        there, reasons = self._look_up()
        if not there:
            return reasons
        self.connection.patience(self.patience)
        reasons |= self._lock(there)
        for destination, address in there.items():
            if destination not in reasons:
                reason = self._load(address, self.routes.away[destination])
                if reason is not None:
                    reasons[destination] = reason
        self.destinations.confirm()
        self.connection.patience(None)
        return reasons

    def give_up(self, reasons: dict[str, SqlQueueError]) -> int:
        """Put messages into the error queue all at once, or leave them here; how many are gone."""
        rows = self.routes.rows_of(reasons)
        log.warning(
            "%s: %d delayed messages cannot be forwarded and %s: %s",
            self.own,
            len(rows),
            "are delivered here, as there is no errorQueue"
            if self.errors is None
            else "go to the error queue",
            list_reasons([*reasons.values()]),
        )
        if self.errors is None:
            return 0
        known = Destinations(
            self.connection, self.destinations.allowed, source=self.destinations.source
        )
        known.lock_and_check([self.errors])
        faults: dict[int, dict[str, str]] = {}
        for destination, reason in reasons.items():
            headers = failure_headers(self.connection, destination, reason)
            faults |= dict.fromkeys(self.routes.away[destination], headers)
        texts = [dumps(self.routes.headers[row] | faults[row]) for row in rows]
        self.connection.load(self.errors, self._to_send(rows, texts))
        known.confirm()
        return len(rows)

    def _look_up(self) -> tuple[dict[str, QueueAddress], dict[str, SqlQueueError]]:
        """Find the destinations that may be sent to, all at once, and why the others may not."""
        found: dict[str, QueueAddress] = {}
        reasons: dict[str, SqlQueueError] = {}
        for text in self.routes.away:
            try:
                found[text] = self.connection.parsed(text)
            except BadAddress as error:
                reasons[text] = error
        refused = self.destinations.find_refused(found.values(), RETURNED)
        there = {text: address for text, address in found.items() if address not in refused}
        reasons |= {text: refused[at] for text, at in found.items() if at in refused}
        self._check_trust(reasons)
        return there, reasons

    def _lock(self, there: dict[str, QueueAddress]) -> dict[str, SqlQueueError]:
        """Lock destinations and decide about them; why some cannot be sent to."""
        failed: dict[QueueAddress, SqlQueueError] = {}
        for address in dict.fromkeys(there.values()):
            reason = self._attempt(partial(self.destinations.lock, address))
            if isinstance(reason, TimedOut):
                reason = DestinationLocked(queue=self.connection.printed(address), seconds=PATIENCE)
            if reason is not None:
                failed[address] = reason
        locked = [address for address in there.values() if address not in failed]
        failed |= self.destinations.check_locked(locked, RETURNED)
        reasons = {text: failed[at] for text, at in there.items() if at in failed}
        self._check_trust(reasons)
        return reasons

    def _check_trust(self, reasons: dict[str, SqlQueueError]) -> None:
        """Fail if a table is not trusted and there is no error queue."""
        for reason in reasons.values():
            if self.errors is None and isinstance(reason, DestinationRefused):
                raise reason

    def _load(self, destination: QueueAddress, rows: list[int]) -> SqlQueueError | None:
        """Store some messages at their destination; why not, if that fails."""
        table = self._to_send(rows, [dumps(self.routes.headers[row]) for row in rows])
        return self._attempt(partial(load_checked, self.connection, destination, table))

    def _attempt(self, work: Callable[[], None]) -> SqlQueueError | None:
        """
        Do something to a destination, or undo that alone; why it failed.

        All destinations that are locked are waited for no longer than PATIENCE together.
        """
        started = time.monotonic()
        try:
            with attempt(self.connection):
                work()
        except (ConnectionLost, Cancelled):
            raise
        except DatabaseFailure as error:
            if isinstance(error, TimedOut):
                self.patience = max(0.0, self.patience - (time.monotonic() - started))
                self.connection.patience(self.patience)
            return error
        return None

    def _to_send(self, rows: list[int], texts: list[str]) -> pa.Table:
        """Make rows of a queue, under new ids."""
        return rows_to_store(texts, self.rows["body"].take(pa.array(rows)))
