"""
Forwarding: a delayed message that was moved into this queue may be for another one.

The header ForwardDestination says where it belongs; the task that receives it sends it on, in the
same transaction, without the header and without expiry. Where it belongs here, only the header
goes. A message that cannot be sent on goes to the error queue, from where it can be returned;
without one it is delivered here as it is. Nothing of it happens twice, or without the receive.

The addresses are untrusted: they are parsed, looked up all at once without harm, and go only where
destinations.py allows. Whatever else fails for one destination is undone alone.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import attempt
from sqlq_spark.database.destinations import PATIENCE, RETURNED, Destinations, without_server
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
from sqlq_spark.wire.address import LONGEST_ADDRESS
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FORWARD_DESTINATION,
    TIME_OF_FAILURE,
    dumps,
    wire_time,
)
from sqlq_spark.wire.rows import NAMED_IN_HEX, flat, opened, rising_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

# A word that no other header has, and what a foreign writer may spell it with.
# Measured, 33 MB of 50,000 headers without them: 1 ms each as one text, 3 ms row by row, both by
# RE2; 55 ms by pyarrow's plain search, 100 ms by both in one pattern.
MARKS = ("ForwardDestination", NAMED_IN_HEX)
TOLD = 5  # destinations that a warning names
LONGEST_REASON = 16_384  # as the peers cut ExceptionInfo.Message

Text = dict[str, str | None]


def forward(
    connection: Connection,
    queue: QueueAddress,
    errors: QueueAddress | None,
    rows: pa.Table,
    *,
    allowed: Sequence[QueueAddress] = (),
) -> tuple[pa.Table, int, int]:
    """
    Send on what belongs elsewhere.

    Args:
        connection: in the transaction that received the rows.
        queue: where they come from.
        errors: where goes what cannot be sent on; None: it stays here.
        rows: of QUEUE_ROW, none expired.
        allowed: the option allowedDestinations.

    Returns:
        The rows to deliver here, how many were forwarded, how many went to the error queue.

    Raises:
        DestinationRefused: a table is not trusted, and there is no error queue.
    """
    texts = rows["headers"]
    found = [pc.match_substring_regex(texts, mark) for mark in MARKS if mentioned(mark, texts)]
    if not found:
        return rows, 0, 0
    marked = pc.fill_null(reduce(pc.or_, found), fill_value=False)
    destinations = Destinations(connection, allowed, source=queue, by_header=True)
    return Forwarding(destinations, queue, errors, rows.filter(marked)).done(rows, marked)


def mentioned(mark: str, texts: pa.ChunkedArray) -> bool:
    """Whether a mark is in any text; each chunk is searched as one text, for speed."""
    for chunk in texts.chunks:
        _, offsets, data = chunk.buffers()
        if len(chunk) and data is not None:
            ends = np.frombuffer(offsets, np.int32)[[chunk.offset, chunk.offset + len(chunk)]]
            whole = [None, pa.py_buffer(ends.astype(np.int64)), data]
            text = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, whole)
            if pc.match_substring_regex(text, mark)[0].as_py():
                return True
    return False


class Forwarding:
    """The rows of one task that have a mark, and what becomes of each."""

    def __init__(
        self,
        destinations: Destinations,
        queue: QueueAddress,
        errors: QueueAddress | None,
        rows: pa.Table,
    ) -> None:
        self.destinations = destinations
        self.connection = destinations.connection
        self.own = self.connection.printed(queue)
        self.patience = PATIENCE
        self.errors = errors
        self.rows = rows
        self.texts: list[str | None] = rows["headers"].to_pylist()
        self.kept = [True] * rows.num_rows  # delivered here

    def done(self, rows: pa.Table, marked: pa.ChunkedArray) -> tuple[pa.Table, int, int]:
        """Do it; `rows` are all rows of the task, `marked` says which are ours."""
        away = self._elsewhere()
        there, reasons = self._usable(away)
        forwarded = failed = 0
        if there:
            self.connection.patience(self.patience)
            reasons |= self._held(there)
            for destination, address in there.items():
                if destination in reasons:
                    continue
                reason = self._send(address, away[destination])
                if reason is None:
                    forwarded += len(away[destination])
                else:
                    reasons[destination] = reason
            self.destinations.confirm()
            self.connection.patience(None)
        if reasons:
            failed = self._give_up({name: away[name] for name in reasons}, reasons)
        if forwarded:
            log.info("%s: %d delayed messages forwarded", self.own, forwarded)
        return self._delivered(rows, marked), forwarded, failed

    def _elsewhere(self) -> dict[str, list[int]]:
        """Which rows belong where; takes the header off all that have it."""
        away: dict[str, list[int]] = {}
        self.headers: dict[int, Text] = {}
        for at, text in enumerate(self.texts):
            headers = opened(text)
            if headers is None or FORWARD_DESTINATION not in headers or not flat(headers):
                continue  # poison, or a mark stands somewhere else
            destination = headers.pop(FORWARD_DESTINATION)
            if destination is None or self._printed(destination) == self.own:
                self.texts[at] = dumps(headers)
            else:
                self.headers[at] = headers
                away.setdefault(destination, []).append(at)
        return away

    def _printed(self, text: str) -> str | None:
        try:
            return self.connection.printed(self.connection.parsed(text))
        except BadAddress:
            return None

    def _usable(
        self, away: dict[str, list[int]]
    ) -> tuple[dict[str, QueueAddress], dict[str, SqlQueueError]]:
        """Which destinations may be sent to, looked up all at once, and why the others may not."""
        found: dict[str, QueueAddress] = {}
        reasons: dict[str, SqlQueueError] = {}
        for text in away:
            try:
                found[text] = self.connection.parsed(text)
            except BadAddress as error:
                reasons[text] = error
        refused = self.destinations.look(found.values(), RETURNED)
        there = {text: address for text, address in found.items() if address not in refused}
        reasons |= {text: refused[at] for text, at in found.items() if at in refused}
        return there, self._trusted(reasons)

    def _trusted(self, reasons: dict[str, SqlQueueError]) -> dict[str, SqlQueueError]:
        """Fail for want of an error queue where a table is not trusted; the reasons as they are."""
        for reason in reasons.values() if self.errors is None else ():
            if isinstance(reason, DestinationRefused):
                raise reason
        return reasons

    def _held(self, there: dict[str, QueueAddress]) -> dict[str, SqlQueueError]:
        """Lock destinations and decide about them; why some cannot be sent to."""
        failed: dict[QueueAddress, SqlQueueError] = {}
        for address in dict.fromkeys(there.values()):
            reason = self._tried(partial(self.destinations.lock, address))
            if isinstance(reason, TimedOut):
                reason = DestinationLocked(self.connection.printed(address), PATIENCE)
            if reason is not None:
                failed[address] = reason
        locked = [address for address in there.values() if address not in failed]
        failed |= self.destinations.hold(locked, RETURNED)
        return self._trusted({text: failed[at] for text, at in there.items() if at in failed})

    def _send(self, destination: QueueAddress, at: list[int]) -> SqlQueueError | None:
        """Send some rows on; why not, if that fails."""
        rows = self._to_send(at, [dumps(self.headers[row]) for row in at])

        def load() -> None:
            self.connection.load(destination, rows)
            self.connection.rows("check_deferred")

        reason = self._tried(load)
        if reason is None:
            self._leave_out(at)
        return reason

    def _tried(self, work: Callable[[], None]) -> SqlQueueError | None:
        """
        Do something to a destination, or undo that alone; why it failed.

        All destinations that are locked are waited for no longer than PATIENCE together.
        """
        begun = time.monotonic()
        try:
            with attempt(self.connection):
                work()
        except (ConnectionLost, Cancelled):
            raise
        except DatabaseFailure as error:
            if isinstance(error, TimedOut):
                self.patience = max(0.0, self.patience - (time.monotonic() - begun))
                self.connection.patience(self.patience)
            return error
        return None

    def _give_up(self, away: dict[str, list[int]], reasons: dict[str, SqlQueueError]) -> int:
        """Put rows into the error queue all at once, or leave them here; how many are gone."""
        rows = {row: destination for destination, at in away.items() for row in at}
        fate = (
            "are delivered here, as there is no errorQueue"
            if self.errors is None
            else "go to the error queue"
        )
        log.warning(
            "%s: %d delayed messages cannot be forwarded and %s: %s",
            self.own,
            len(rows),
            fate,
            told([*reasons.values()]),
        )
        if self.errors is None:
            return 0
        known = Destinations(
            self.connection, self.destinations.allowed, source=self.destinations.source
        )
        known.look_for([self.errors])
        at = sorted(rows)
        faults = {name: self._fault(name, reason) for name, reason in reasons.items()}
        texts = [dumps(self.headers[row] | faults[rows[row]]) for row in at]
        self.connection.load(self.errors, self._to_send(at, texts))
        known.confirm()
        self._leave_out(at)
        return len(at)

    def _fault(self, destination: str, reason: SqlQueueError) -> Text:
        """Headers of a message in the error queue; it is returned to where it should have gone."""
        return {
            f"{EXCEPTION_INFO}ExceptionType": f"sqlq_spark.errors.{type(reason).__name__}",
            f"{EXCEPTION_INFO}Message": without_server(reason, self.connection)[:LONGEST_REASON],
            TIME_OF_FAILURE: wire_time(datetime.now(UTC)),
            FAILED_Q: destination[:LONGEST_ADDRESS],
        }

    def _leave_out(self, at: list[int]) -> None:
        for row in at:
            self.kept[row] = False

    def _to_send(self, at: list[int], texts: list[str]) -> pa.Table:
        """Rows of a queue under ids of their own; a body that is null becomes empty."""
        ids = pa.py_buffer(rising_ids(len(at), time.time()))
        return pa.table(
            {
                "id": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(at), [None, ids]),
                "headers": pa.array(texts, pa.string()),
                "body": pc.fill_null(self.rows["body"].take(pa.array(at)), b""),
            }
        )

    def _delivered(self, rows: pa.Table, marked: pa.ChunkedArray) -> pa.Table:
        """All rows of the task but those that left, in their order."""
        mask = marked.combine_chunks()
        texts = pa.array(self.texts, pa.string())
        headers = pc.replace_with_mask(rows["headers"].combine_chunks(), mask, texts)
        place = rows.schema.get_field_index("headers")
        rows = rows.set_column(place, rows.schema.field(place), headers)
        if all(self.kept):
            return rows
        every = pa.array([True] * rows.num_rows)
        return rows.filter(pc.replace_with_mask(every, mask, pa.array(self.kept)))


def told(reasons: list[SqlQueueError]) -> str:
    """The first few of many reasons, which quote strangers, for a line of a log."""
    shown = "; ".join(ascii(str(each)[:300]) for each in reasons[:TOLD])
    more = len(reasons) - TOLD
    return shown + (f"; and {more} more destinations" if more > 0 else "")
