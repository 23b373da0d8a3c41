"""
Messages that cannot be sent where they belong: the option `undeliverable` names an error queue.

A message without a destination, or with one that cannot be read, is found without the database.
Any other fault of a destination makes a statement fail, and with it the transaction. So the same
transaction is run again, carefully: each destination is checked first, then locked and loaded after
a savepoint. Batches without such a message run the same statements as without the option.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sqlq_spark.database import attempt, load_checked
from sqlq_spark.database.failure_headers import failure_headers, list_reasons, rows_to_store
from sqlq_spark.database.sessions import TRANSIENT
from sqlq_spark.database.trust import SENT
from sqlq_spark.errors import BadAddress, Cancelled, DatabaseFailure, TimedOut
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import FAILED_Q, dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Destinations
    from sqlq_spark.errors import SqlQueueError
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")

# failures that are no fault of a destination: another attempt may succeed, or a DBA ended this one
PASSING = (*TRANSIENT, Cancelled, TimedOut)
BODY = pa.binary()
NOWHERE = "the row has no queue, and the sink has no option queue; a reply needs a ReplyToAddress"


def send_or_set_aside(options: SinkOptions, work: Callable[[bool], T]) -> T:
    """
    Run a transaction that sends; if a destination refuses, run it again carefully.

    Args:
        options: the sink's. Without an error queue the failure is raised.
        work: one whole transaction; its argument says whether to be careful.
    """
    try:
        return work(False)  # noqa: FBT003
    except PASSING:
        raise
    except DatabaseFailure:
        if options.undeliverable_address is None:
            raise
    return work(True)  # noqa: FBT003


class Undeliverable:
    """The messages of one transaction that go to the error queue instead."""

    def __init__(
        self,
        connection: Connection,
        options: SinkOptions,
        destinations: Destinations,
        *,
        careful: bool,
    ) -> None:
        """
        Prepare; nothing is sent to the database yet.

        Args:
            connection: in the transaction that sends.
            options: the sink's.
            destinations: of that transaction.
            careful: whether a destination that refuses is set aside, instead of raising.
        """
        self.connection = connection
        self.options = options
        self.destinations = destinations
        self.careful = careful
        self.messages = 0  # in the error queue
        self.reasons: dict[str, SqlQueueError] = {}  # by destination
        self._texts: list[str] = []  # headers of what `send_aside` will send
        self._bodies: list[pa.ChunkedArray] = []

    @property
    def allowed(self) -> bool:
        """Whether there is an error queue."""
        return self.options.undeliverable_address is not None

    # ------------------------------------------------------------ destinations

    def lock(
        self, queues: Iterable[QueueAddress], columns: Sequence[str] = SENT
    ) -> dict[QueueAddress, SqlQueueError]:
        """
        Lock destinations and check them.

        Returns:
            Those that cannot be sent to, and why.

        Raises:
            DatabaseFailure: the transaction is not careful, and one cannot be sent to.
        """
        if not self.careful:
            self.destinations.lock_and_check(queues, columns)
            return {}
        new = self.destinations.undecided(queues, columns)
        refused = self.destinations.find_refused(new, columns)
        for queue in new:
            if queue not in refused:
                reason = self._attempt(partial(self.destinations.lock, queue))
                if reason is not None:
                    refused[queue] = reason
        locked = [queue for queue in new if queue not in refused]
        return refused | self.destinations.check_locked(locked, columns)

    def send(self, queue: QueueAddress, rows: pa.Table) -> SqlQueueError | None:
        """
        Insert rows at their destination; return why not, if it refuses them.

        Raises:
            DatabaseFailure: the transaction is not careful, and the destination refuses.
        """
        if not self.careful:
            self.connection.load(queue, rows)
            return None
        return self._attempt(partial(load_checked, self.connection, queue, rows))

    def _attempt(self, work: Callable[[], None]) -> SqlQueueError | None:
        """Do something to a destination, or undo that alone; return why it failed."""
        try:
            with attempt(self.connection):
                work()
        except PASSING:
            raise
        except DatabaseFailure as error:
            return error
        return None

    # ------------------------------------------------------------ messages

    def add(self, rows: pa.Table, queue: QueueAddress, reason: SqlQueueError) -> None:
        """Set messages aside whose destination refuses them."""
        self.add_copies(rows, self.connection.canonical(queue), reason)

    def add_copies(self, rows: pa.Table, address: str, reason: SqlQueueError) -> None:
        """Set messages aside that all belong to one address."""
        self._describe(rows, [self._headers(address, reason)] * rows.num_rows)

    def add_unreadable(self, rows: pa.Table, reasons: dict[str | None, SqlQueueError]) -> None:
        """Set messages aside whose own queue is null, or cannot be read."""
        known = {
            name: self._headers(
                name, BadAddress(text="", reason=NOWHERE) if name is None else reason
            )
            for name, reason in reasons.items()
        }
        self._describe(rows, [known[name] for name in rows["queue"].to_pylist()])

    def _headers(self, address: str | None, reason: SqlQueueError) -> dict[str, str]:
        self.reasons.setdefault(address or "", reason)
        return failure_headers(self.connection, address, reason)

    def _describe(self, rows: pa.Table, failures: list[dict[str, str]]) -> None:
        """Keep messages with the headers that say why; one FailedQ that they had is replaced."""
        for text, failure in zip(rows["headers"].to_pylist(), failures, strict=True):
            headers = parse_headers(text) or {}
            headers.pop(FAILED_Q, None)
            self._texts.append(dumps(headers | failure))
        self._bodies.append(rows["body"])

    def send_aside(self) -> None:
        """
        Insert what was set aside into the error queue, all at once and without expiry.

        Raises:
            DatabaseFailure: the error queue refuses it, so nothing must be sent.
        """
        errors = self.options.undeliverable_address
        if errors is None or not self._texts:
            return
        self.destinations.lock_and_check([errors])
        bodies = pa.chunked_array((part for each in self._bodies for part in each.chunks), BODY)
        self.connection.load(errors, rows_to_store(self._texts, bodies))
        self.messages += len(self._texts)
        self._texts, self._bodies = [], []

    def log(self, where: str) -> None:
        """Warn, after the commit, of messages that went to the error queue."""
        if self.messages:
            log.warning(
                "%s: undeliverable messages that went to the error queue: %d (%s)",
                where,
                self.messages,
                list_reasons([*self.reasons.values()]),
            )
