"""
Return to source: messages of an error queue go back to where they failed.

`plan` looks, without locking, and says what can be returned and what cannot, and why. `give_back`
does it, batch by batch, a destination at a time: what was chosen and no one else holds is deleted
from the error queue and inserted where it failed, in one transaction, without the headers that the
failure added, as a new row that does not expire. So a message is in exactly one of the two at any
time, and whoever is stopped does the same again: what was returned is no longer there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import RETURNED, Destinations
from sqlq_spark.errors import (
    BadAddress,
    DestinationRefused,
    MessageChanged,
    NotAQueue,
    QueueElsewhere,
    QueueNotFound,
    QueueNotWritable,
    QueueUnquoted,
    RightMissing,
    SqlQueueError,
    StatementRefused,
)
from sqlq_spark.receive import browse
from sqlq_spark.send.queue_writer import add_ids
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FAULT_PREFIXES,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    BadWireTime,
    dumps,
    parse_wire_time,
)
from sqlq_spark.wire.rows import by_seq, flat, opened, uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.wire.address import QueueAddress

BATCH = 1000  # messages in one transaction
BATCH_BYTES = 16 << 20  # of headers and bodies in it, but one message at least

LONGEST = 200  # characters of an address that a reason shows

CORRUPT = "its headers are corrupt"
HOMELESS = f"it has no header {FAILED_Q}, so it is not known where it failed"
ITS_OWN = f"its header {FAILED_Q} names the error queue itself"

# what another attempt would meet as well
REFUSALS = (
    QueueNotFound,
    NotAQueue,
    QueueNotWritable,
    DestinationRefused,
    RightMissing,
    StatementRefused,
)

Text = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Failed:
    """A message of an error queue, as far as a choice needs it."""

    seq: int
    id: str  # of its row
    message_id: str
    bytes: int
    failed_queue: str | None  # where it says that it failed; None where it does not
    exception: str | None
    corrupt: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which messages to return; what is not given lets all pass."""

    ids: frozenset[str] = frozenset()  # of rows or messages
    exceptions: frozenset[str] = frozenset()  # full names of types, or their last part
    failed_queue: str | None = None  # a canonical address
    since: datetime | None = None  # of the failure
    until: datetime | None = None  # before that

    def takes(self, failed: Failed, headers: Text, queue: str | None) -> bool:
        """Whether it is one of them; `queue` is its canonical failed queue."""
        kind = failed.exception or ""
        return (
            (not self.ids or not self.ids.isdisjoint({failed.id, failed.message_id}))
            and (not self.exceptions or not self.exceptions.isdisjoint(names_of(kind)))
            and self.failed_queue in {None, queue}
            and self._in_time(headers)
        )

    def _in_time(self, headers: Text) -> bool:
        if self.since is None and self.until is None:
            return True
        try:
            moment = parse_wire_time(headers.get(TIME_OF_FAILURE) or "")
        except BadWireTime:
            return False
        return (self.since is None or moment >= self.since) and (
            self.until is None or moment < self.until
        )


def names_of(kind: str) -> set[str]:
    """By which names a type may be asked for."""
    return {kind, kind.rpartition(".")[2]} - {""}


@dataclass(frozen=True, slots=True)
class Group:
    """Chosen messages that failed in one place for one reason."""

    failed_queue: str | None
    exception: str | None
    messages: int


@dataclass(kw_only=True)
class Plan:
    """What was chosen, and what can become of it."""

    returning: dict[QueueAddress, list[Failed]] = field(default_factory=dict)
    staying: dict[str, list[Failed]] = field(default_factory=dict)  # by the reason
    missing: list[str] = field(default_factory=list)  # ids that no message has

    def stay(self, reason: str, some: list[Failed]) -> None:
        """Leave messages where they are."""
        self.staying.setdefault(reason, []).extend(some)

    @property
    def messages(self) -> int:
        """How many can be returned."""
        return sum(map(len, self.returning.values()))

    @property
    def groups(self) -> list[Group]:
        """Those that can be returned by failed queue and exception, the largest first."""
        counted = Counter(
            (each.failed_queue, each.exception) for some in self.returning.values() for each in some
        )
        return [Group(*key, messages) for key, messages in counted.most_common()]


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of a batch."""

    destination: QueueAddress
    messages: int  # that went back
    skipped: int = 0  # that others hold, or that were gone
    left: int = 0  # that stay, with all that was still to go there,
    reason: SqlQueueError | None = None  # for this


# ---------------------------------------------------------------- to look


def plan(
    connection: Connection,
    errors: QueueAddress,
    choice: Choice,
    *,
    timeout: float,
    allowed: Sequence[QueueAddress] = (),
) -> Plan:
    """
    Find what is chosen, and whether it can be returned; locks and changes nothing.

    Args:
        connection: no transaction open.
        errors: the error queue.
        choice: of its messages.
        timeout: seconds for each page.
        allowed: the option allowedDestinations.

    Raises:
        QueueNotFound, NotAQueue, RightMissing: of the error queue.
    """
    found = Plan()
    chosen: dict[str, list[Failed]] = {}
    known: dict[str, str | None] = {}
    seen: set[str] = set()
    for first, stop in browse.ranges(connection, errors, parts=1, timeout=timeout):
        for page in browse.pages(connection, errors, first, stop, narrow=False, timeout=timeout):
            for failed, headers in looked_at(page):
                queue = canonical(connection, failed.failed_queue, known)
                if choice.takes(failed, headers, queue):
                    seen |= {failed.id, failed.message_id}
                    _sort(failed, chosen, found)
    found.missing = sorted(choice.ids - seen)
    there, reasons = sources(connection, errors, [*chosen], timeout=timeout, allowed=allowed)
    for text, some in chosen.items():
        if text in there:
            found.returning.setdefault(there[text], []).extend(some)
        else:
            found.stay(reasons[text], some)
    return found


def looked_at(page: pa.Table) -> Iterator[tuple[Failed, Text]]:
    """The rows of a page of QUEUE_ROW, with their headers; none where they are corrupt."""
    sizes = pc.add(*(pc.fill_null(pc.binary_length(page[name]), 0) for name in ("headers", "body")))
    columns = (page["seq"], page["id"], page["headers"], sizes)
    for seq, row, text, size in zip(*(each.to_pylist() for each in columns), strict=True):
        found = opened(text)
        headers = found if found is not None and flat(found) else None
        own: Text = headers or {}
        yield (
            Failed(
                seq=seq,
                id=uuid_text(row),
                message_id=own.get(MESSAGE_ID) or uuid_text(row),
                bytes=size,
                failed_queue=own.get(FAILED_Q) or None,
                exception=own.get(f"{EXCEPTION_INFO}ExceptionType"),
                corrupt=headers is None,
            ),
            own,
        )


def canonical(connection: Connection, text: str | None, known: dict[str, str | None]) -> str | None:
    """A stranger's address as this database writes it, or as it is; `known` remembers."""
    if text is None:
        return None
    if text not in known:
        try:
            known[text] = connection.printed(connection.parsed(text))
        except BadAddress:
            known[text] = text
    return known[text]


def _sort(failed: Failed, chosen: dict[str, list[Failed]], found: Plan) -> None:
    """Put a message to its failed queue, or to those that stay."""
    if failed.failed_queue is None:
        found.stay(CORRUPT if failed.corrupt else HOMELESS, [failed])
    else:
        chosen.setdefault(failed.failed_queue, []).append(failed)


def sources(
    connection: Connection,
    errors: QueueAddress,
    texts: Sequence[str],
    *,
    timeout: float,
    allowed: Sequence[QueueAddress] = (),
) -> tuple[dict[str, QueueAddress], dict[str, str]]:
    """
    Find the queues in which messages failed, all at once; strangers wrote the addresses.

    Args:
        connection: no transaction open.
        errors: the error queue, to which nothing is returned.
        texts: values of the header FailedQ.
        timeout: seconds.
        allowed: the option allowedDestinations.

    Returns:
        The queues that can be sent to, and why the others cannot, by text.
    """
    own, names = connection.printed(errors), connection.names
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, str] = {}
    for text in texts:
        try:
            parsed[text] = connection.parsed(text)
        except BadAddress as error:
            bad = BadAddress(text[:LONGEST], error.args[1])
            other = names.is_of_other_database(text)
            reasons[text] = str(QueueElsewhere(text[:LONGEST], own) if other else bad)
    refused: dict[QueueAddress, SqlQueueError] = {}
    if parsed:
        with transaction(connection, timeout=timeout):
            refused = Destinations(connection, allowed, source=errors, by_header=True).look(
                parsed.values(), RETURNED
            )
    for text, address in parsed.items():
        name = connection.printed(address)
        if name == own:
            reasons[text] = ITS_OWN
        elif address not in refused:
            continue
        elif isinstance(refused[address], DestinationRefused):
            reasons[text] = str(refused[address])
        elif address.catalog is not None or names.is_of_other_database(text):
            reasons[text] = str(QueueElsewhere(text, own))
        elif (guess := names.guess_table(text)) is not None:
            meant = connection.printed(guess)
            reasons[text] = str(QueueUnquoted(text, name, meant, connection.server))
        else:
            reasons[text] = str(refused[address])
    return {text: at for text, at in parsed.items() if text not in reasons}, reasons


# ---------------------------------------------------------------- to do


def give_back(
    session: Session,
    errors: QueueAddress,
    planned: Plan,
    *,
    batch: int = BATCH,
    allowed: Sequence[QueueAddress] = (),
) -> Iterator[Returned]:
    """
    Return what can be returned, each batch in one transaction; a lost answer is asked for again.

    Done twice, a batch finds its messages gone and does nothing.

    Args:
        session: no transaction open.
        errors: the error queue.
        planned: see `plan`.
        batch: messages in one transaction, at most.
        allowed: the option allowedDestinations, as in `plan`.

    Returns:
        What became of each batch, after its commit. A destination that takes none, for a reason
        that another attempt would meet as well, ends with its first batch.

    Raises:
        DatabaseFailure: the batches before are returned, the others wait in the error queue.
    """
    for destination, chosen in planned.returning.items():
        left = len(chosen)
        for part in parts(chosen, batch):
            try:
                messages = session.do(
                    partial(
                        return_batch,
                        errors=errors,
                        destination=destination,
                        chosen=part,
                        timeout=session.options.query_timeout,
                        allowed=allowed,
                    )
                )
            except Refused as error:
                yield Returned(destination, 0, left=left, reason=error.reason)
                break
            left -= len(part)
            yield Returned(destination, messages, skipped=len(part) - messages)


def parts(chosen: Sequence[Failed], batch: int) -> Iterator[list[Failed]]:
    """Cut into batches, by number and by weight."""
    part: list[Failed] = []
    weight = 0
    for each in chosen:
        if part and (len(part) == batch or weight + each.bytes > BATCH_BYTES):
            yield part
            part, weight = [], 0
        part.append(each)
        weight += each.bytes
    if part:
        yield part


class Refused(Exception):
    """A destination takes no message; the transaction is to be undone, and not tried again."""

    def __init__(self, reason: SqlQueueError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def return_batch(
    connection: Connection,
    *,
    errors: QueueAddress,
    destination: QueueAddress,
    chosen: Sequence[Failed],
    timeout: float,
    allowed: Sequence[QueueAddress] = (),
) -> int:
    """
    Move messages from the error queue to where they failed, in one transaction.

    They are found by seq. Where a table was emptied and counts from 1 again, other messages have
    these: nothing is moved then.

    Returns:
        How many; the others are held, or gone.

    Raises:
        Refused, MessageChanged, DatabaseFailure: none was moved.
    """
    with transaction(connection, timeout=timeout):
        ids = {each.seq: each.id for each in chosen}
        taken = by_seq(connection.arrow("take", tables={"queue": errors}, seqs=[*ids]))
        for seq, row in zip(taken["seq"].to_pylist(), taken["id"].to_pylist(), strict=True):
            if ids[seq] != uuid_text(row):
                raise MessageChanged(uuid_text(row), connection.printed(errors))
        if taken.num_rows:
            rows = to_source(connection, errors, destination, taken)
            known = Destinations(connection, allowed, source=errors, by_header=True)
            try:
                known.look_for([destination], RETURNED)
                connection.load(destination, rows)
            except REFUSALS as error:
                raise Refused(error) from None
            known.confirm()
    return int(taken.num_rows)


def to_source(
    connection: Connection, errors: QueueAddress, destination: QueueAddress, taken: pa.Table
) -> pa.Table:
    """The taken rows as they are inserted where they failed; a body that is null becomes empty."""
    texts = []
    for row, text in zip(taken["id"].to_pylist(), taken["headers"].to_pylist(), strict=True):
        headers = opened(text) or {}
        source = headers.get(FAILED_Q)
        if not flat(headers) or not source or connection.parsed(source) != destination:
            raise MessageChanged(uuid_text(row), connection.printed(errors))
        texts.append(dumps(restored(headers, uuid_text(row))))
    body = pc.fill_null(taken["body"], b"")
    return add_ids(pa.table({"headers": pa.array(texts, pa.string()), "body": body}))


def restored(headers: Text, row: str) -> Text:
    """
    Headers as they were before the failure.

    A message without an id of its own goes by its row's, and its row will be another.
    """
    kept = {name: value for name, value in headers.items() if not name.startswith(FAULT_PREFIXES)}
    return kept if MESSAGE_ID in kept else {MESSAGE_ID: row, **kept}
