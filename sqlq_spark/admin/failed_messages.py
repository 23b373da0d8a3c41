"""
Failed messages: those of an error queue that were chosen, and their return to where they failed.

`plan` reads without locks. It says which messages can be returned, which cannot, and why.

`give_back` returns planned messages batch by batch, one destination after the other. Each batch is
one transaction: it deletes messages that are not locked from the error queue, and inserts them
where they failed. The inserted row lacks the headers that the failure added, and does not expire.

A message is in exactly one of the two queues at any time. An interrupted return can be run again,
because returned messages are no longer in the error queue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import find_same, transaction
from sqlq_spark.database.trust import RETURNED, Destinations
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
from sqlq_spark.send.insert import add_ids
from sqlq_spark.wire.header_columns import parse_headers
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
from sqlq_spark.wire.rows import sort_by_seq, uuid_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.wire.address import QueueAddress

LONGEST = 200  # characters of an address that a reason shows
BATCH_BYTES = 16 << 20  # of headers and bodies in one transaction, but at least one message

# reasons of one message or of many
CORRUPT = "corrupt headers"
HOMELESS = f"no header {FAILED_Q}, so the source is unknown"
ITS_OWN = f"the header {FAILED_Q} names the error queue itself"

# errors of a destination that another attempt would raise again
REFUSALS = (
    QueueNotFound,
    NotAQueue,
    QueueNotWritable,
    DestinationRefused,
    RightMissing,
    StatementRefused,
)

Text = dict[str, str | None]


# ---------------------------------------------------------------- choice


@dataclass(frozen=True, slots=True)
class Failed:
    """The properties of a message in an error queue that a choice uses."""

    seq: int
    id: str  # of its row
    message_id: str
    bytes: int
    failed_queue: str | None  # the header FailedQ; None without it
    exception: str | None
    corrupt: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which messages to return. A condition that is not set matches all."""

    ids: frozenset[str] = frozenset()  # of rows or messages
    exceptions: frozenset[str] = frozenset()  # full names of types, or their last part
    failed_queue: QueueAddress | None = None
    since: datetime | None = None  # of the failure
    until: datetime | None = None  # exclusive

    def takes(self, failed: Failed, headers: Text, queues: Collection[str]) -> bool:
        """Whether a message matches; `queues` are the spellings of the chosen failed queue."""
        kind = failed.exception or ""
        types = {kind, kind.rpartition(".")[2]} - {""}
        return (
            (not self.ids or not self.ids.isdisjoint({failed.id, failed.message_id}))
            and (not self.exceptions or not self.exceptions.isdisjoint(types))
            and (self.failed_queue is None or failed.failed_queue in queues)
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


def read_failures(page: pa.Table) -> Iterator[tuple[Failed, Text]]:
    """Read the rows of a page of QUEUE_ROW, with their headers ({} if they are corrupt)."""
    sizes = pc.add(*(pc.fill_null(pc.binary_length(page[name]), 0) for name in ("headers", "body")))
    columns = (page["seq"], page["id"], page["headers"], sizes)
    for seq, row, text, size in zip(*(each.to_pylist() for each in columns), strict=True):
        headers = parse_headers(text)
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


# ---------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True)
class Group:
    """Chosen messages with the same failed queue and exception."""

    failed_queue: str | None
    exception: str | None
    messages: int


@dataclass(kw_only=True)
class Plan:
    """The chosen messages: those that can be returned, and those that cannot."""

    returning: dict[QueueAddress, list[Failed]] = field(default_factory=dict)
    staying: dict[str, list[Failed]] = field(default_factory=dict)  # by the reason
    missing: list[str] = field(default_factory=list)  # ids that no message has

    @property
    def messages(self) -> int:
        """How many messages can be returned."""
        return sum(map(len, self.returning.values()))

    @property
    def groups(self) -> list[Group]:
        """Groups of the messages that can be returned, the largest first."""
        counted = Counter(
            (each.failed_queue, each.exception) for some in self.returning.values() for each in some
        )
        return [Group(*key, messages) for key, messages in counted.most_common()]


def plan(
    connection: Connection,
    errors: QueueAddress,
    choice: Choice,
    *,
    timeout: float,
    allowed: Sequence[QueueAddress] = (),
    limit: int | None = None,
) -> Plan:
    """
    Find the chosen messages, and whether they can be returned. Locks and changes nothing.

    Args:
        connection: no transaction open.
        errors: the error queue.
        choice: which of its messages.
        timeout: seconds for each page.
        allowed: the option allowedDestinations.
        limit: only so many messages that can be returned, those with the lowest seq. Nothing is
            read beyond them.

    Raises:
        QueueNotFound, NotAQueue, RightMissing: of the error queue.
    """
    planned, left = Plan(), limit
    seen: set[str] = set()
    texts: set[str] = set()  # values of FailedQ that were compared with the chosen queue
    spellings: set[str] = set()  # those that name it
    places: dict[str, QueueAddress] = {}
    reasons: dict[str, str] = {}
    for page in _pages(connection, errors, timeout):
        failures = list(read_failures(page))
        new = {each.failed_queue for each, _ in failures if each.failed_queue} - texts
        if choice.failed_queue is not None and new:
            texts |= new
            spellings |= find_same(connection, choice.failed_queue, new)
        chosen = [each for each, headers in failures if choice.takes(each, headers, spellings)]
        known = {None, *places, *reasons}
        new_texts = dict.fromkeys(each.failed_queue for each in chosen)
        more = [text for text in new_texts if text is not None and text not in known]
        there, why = sources(connection, errors, more, timeout=timeout, allowed=allowed)
        places |= there
        reasons |= why
        for each in chosen:
            seen |= {each.id, each.message_id}
            text = each.failed_queue
            if text in places:
                planned.returning.setdefault(places[text], []).append(each)
                left = None if left is None else left - 1
                if left == 0:
                    return planned
            else:
                unknown = CORRUPT if each.corrupt else HOMELESS
                reason = unknown if text is None else reasons[text]
                planned.staying.setdefault(reason, []).append(each)
    planned.missing = sorted(choice.ids - seen)
    return planned


def _pages(connection: Connection, queue: QueueAddress, timeout: float) -> Iterator[pa.Table]:
    for _, first, stop in browse.parts(connection, [queue], parts=1, timeout=timeout):
        yield from browse.pages(connection, queue, first, stop, narrow=False, timeout=timeout)


def sources(
    connection: Connection,
    errors: QueueAddress,
    texts: Iterable[str],
    *,
    timeout: float,
    allowed: Sequence[QueueAddress] = (),
) -> tuple[dict[str, QueueAddress], dict[str, str]]:
    """
    Find the queues in which messages failed, all together. The addresses are untrusted.

    Args:
        connection: no transaction open.
        errors: the error queue, to which nothing is returned.
        texts: values of the header FailedQ.
        timeout: seconds.
        allowed: the option allowedDestinations.

    Returns:
        Two maps by text: the queues that can be sent to, and the reasons why others cannot.
    """
    own, names = connection.printed(errors), connection.names
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, str] = {}
    for text in texts:
        try:
            parsed[text] = names.parse_address(text)
        except BadAddress as error:
            bad = BadAddress(text=text[:LONGEST], reason=error.reason)
            other = names.is_of_other_database(text)
            reasons[text] = str(QueueElsewhere(queue=text[:LONGEST], errors=own) if other else bad)
    if not parsed:
        return {}, reasons
    with transaction(connection, timeout=timeout):
        known = Destinations(connection, allowed, source=errors, by_header=True)
        refused = known.find_refused(parsed.values(), RETURNED)
    its_own = find_same(connection, errors, parsed)
    for text, address in parsed.items():
        if text in its_own:
            reasons[text] = ITS_OWN
        elif address in refused:
            reasons[text] = str(explain(connection, text, address, refused[address], own))
    return {text: at for text, at in parsed.items() if text not in reasons}, reasons


def explain(
    connection: Connection, text: str, address: QueueAddress, error: SqlQueueError, own: str
) -> SqlQueueError:
    """Choose the error that says best why a destination is refused; `own` is the error queue."""
    names = connection.names
    if isinstance(error, DestinationRefused):
        return error
    here = connection.printed(replace(address, catalog=None)) == connection.printed(address)
    if not here or names.is_of_other_database(text):
        return QueueElsewhere(queue=text, errors=own)
    if (guess := names.guess_table(text)) is not None:
        meant = connection.printed(guess)
        return QueueUnquoted(
            text=text, read=connection.printed(address), meant=meant, server=connection.server
        )
    return error


# ---------------------------------------------------------------- return


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a batch."""

    destination: QueueAddress
    messages: int  # that were returned
    skipped: int = 0  # that others have locked, or that were gone
    left: int = 0  # that stay, including later batches of the destination
    reason: SqlQueueError | None = None  # why they stay


class Refused(Exception):
    """A destination accepts no message. The transaction is rolled back and not retried."""

    def __init__(self, reason: SqlQueueError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def give_back(
    session: Session,
    errors: QueueAddress,
    planned: Plan,
    *,
    batch: int,
    allowed: Sequence[QueueAddress] = (),
) -> Iterator[Returned]:
    """
    Return the planned messages, each batch in one transaction. A lost connection is retried.

    A batch that is run twice finds its messages gone and does nothing.

    Args:
        session: no transaction open.
        errors: the error queue.
        planned: see `plan`.
        batch: messages in one transaction, at most.
        allowed: the option allowedDestinations, as in `plan`.

    Returns:
        The result of each batch, after its commit. If a destination refuses a batch for a reason
        that will not change, its later batches are not tried.

    Raises:
        DatabaseFailure: the earlier batches are returned, the others stay in the error queue.
    """
    for destination, chosen in planned.returning.items():
        left = len(chosen)
        for part in parts(chosen, batch):
            try:
                messages = session.run_with_retries(
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
    """Cut into batches, by the number of messages and by their bytes."""
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


def return_batch(
    connection: Connection,
    *,
    errors: QueueAddress,
    destination: QueueAddress,
    chosen: Sequence[Failed],
    timeout: float,
    allowed: Sequence[QueueAddress],
) -> int:
    """
    Move messages from the error queue to where they failed, in one transaction.

    The messages are found by seq. If a table was emptied and its sequence restarted, other messages
    may have these numbers. The ids are therefore compared, and then nothing is moved.

    Returns:
        How many were moved; the others are locked or gone.

    Raises:
        Refused, MessageChanged, DatabaseFailure: none was moved.
    """
    with transaction(connection, timeout=timeout):
        ids = {each.seq: each.id for each in chosen}
        taken = sort_by_seq(connection.arrow("take", tables={"queue": errors}, seqs=[*ids]))
        for seq, row in zip(taken["seq"].to_pylist(), taken["id"].to_pylist(), strict=True):
            if ids[seq] != uuid_text(row):
                raise MessageChanged(row=uuid_text(row), queue=connection.printed(errors))
        if taken.num_rows:
            rows = to_source(connection, errors, destination, taken)
            known = Destinations(connection, allowed, source=errors, by_header=True)
            try:
                known.lock_and_check([destination], RETURNED)
                connection.load(destination, rows)
            except REFUSALS as error:
                raise Refused(error) from None
            known.confirm()
    return int(taken.num_rows)


def to_source(
    connection: Connection, errors: QueueAddress, destination: QueueAddress, taken: pa.Table
) -> pa.Table:
    """
    Make the rows to insert where the messages failed; a null body becomes empty.

    They lack the headers that the failure added. A message without the header MessageId is known by
    its row's id. It gets that id as a header, because the returned row has a new id.
    """
    texts = []
    for id_, text in zip(taken["id"].to_pylist(), taken["headers"].to_pylist(), strict=True):
        row, headers = uuid_text(id_), parse_headers(text) or {}
        source = headers.get(FAILED_Q)
        if not source or connection.names.parse_address(source) != destination:
            raise MessageChanged(row=row, queue=connection.printed(errors))
        kept = {
            name: value for name, value in headers.items() if not name.startswith(FAULT_PREFIXES)
        }
        texts.append(dumps(kept if MESSAGE_ID in kept else {MESSAGE_ID: row, **kept}))
    body = pc.fill_null(taken["body"], b"")
    return add_ids(pa.table({"headers": pa.array(texts, pa.string()), "body": body}))
