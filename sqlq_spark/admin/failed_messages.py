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

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.admin import inspect
from sqlq_spark.database import check_types, find_same, transaction
from sqlq_spark.database.destinations import RETURNED, Destinations
from sqlq_spark.database.trust import DELETE, use
from sqlq_spark.send.insert import add_ids
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import Headers, parse_headers
from sqlq_spark.wire.rows import id_texts, sort_by_seq

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session

BATCH_BYTES = 16 << 20  # of headers and bodies in one transaction, but at least one message
# headers of a failure, as the fields of `Failed`
COLUMNS = (
    wire.MESSAGE_ID,
    wire.FAILED_Q,
    f"{wire.EXCEPTION_INFO}ExceptionType",
    wire.TIME_OF_FAILURE,
)

# reasons of one message or of many
HOMELESS = f"no header {wire.FAILED_Q}, or corrupt headers"
ITS_OWN = f"the header {wire.FAILED_Q} names the error queue itself"

# errors of a destination that another attempt would raise again
REFUSALS = (
    errors.QueueNotFound,
    errors.NotAQueue,
    errors.QueueNotWritable,
    errors.TableRefused,
    errors.RightMissing,
    errors.StatementRefused,
)


# ---------------------------------------------------------------- choice


@dataclass(frozen=True, slots=True)
class Failed:
    """The properties of a message in an error queue that a choice uses."""

    seq: int
    id: str  # of its row
    bytes: int
    message_id: str | None
    failed_queue: str | None  # the header FailedQ; None or empty without it
    exception: str | None
    time: str | None  # of the failure


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which messages to return. A condition that is not set matches all."""

    ids: frozenset[str] = frozenset()  # of rows or messages
    exceptions: frozenset[str] = frozenset()  # full names of types, or their last part
    failed_queue: QueueAddress | None = None
    since: datetime | None = None  # of the failure
    until: datetime | None = None  # exclusive

    def takes(self, failed: Failed, queues: Collection[str | None]) -> bool:
        """Whether a message matches; `queues` are the spellings of the chosen failed queue."""
        kind = failed.exception or ""
        types = {kind, kind.split(".")[-1]} - {""}
        return (
            not (self.ids and self.ids.isdisjoint((failed.id, failed.message_id)))
            and not (self.exceptions and self.exceptions.isdisjoint(types))
            and (self.failed_queue is None or failed.failed_queue in queues)
            and self._in_time(failed.time)
        )

    def _in_time(self, time: str | None) -> bool:
        if self.since is None and self.until is None:
            return True
        try:
            moment = wire.parse_wire_time(time or "")
        except wire.BadWireTime:
            return False
        return (self.since is None or moment >= self.since) and (
            self.until is None or moment < self.until
        )


def read_failures(page: pa.Table) -> list[Failed]:
    """Read the rows of a page of QUEUE_ROW."""
    texts = page["headers"].combine_chunks()
    sizes = pc.add(*(pc.fill_null(pc.binary_length(each), 0) for each in (texts, page["body"])))
    headers = Headers(texts)
    ids = id_texts(page["id"].combine_chunks())
    columns = (page["seq"], ids, sizes, *map(headers.text, COLUMNS))
    return [*map(Failed, *(each.to_pylist() for each in columns))]


# ---------------------------------------------------------------- plan


@dataclass
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
    def groups(self) -> list[tuple[str | None, str | None, int]]:
        """Failed queue, exception and number of those that can be returned, most of them first."""
        counted = Counter(
            (each.failed_queue, each.exception) for some in self.returning.values() for each in some
        )
        return [(*key, messages) for key, messages in counted.most_common()]


def plan(
    connection: Connection,
    source: QueueAddress,
    choice: Choice,
    *,
    limit: int | None = None,
) -> Plan:
    """
    Find the chosen messages of an error queue, and whether they can be returned.

    Locks and changes nothing; no transaction is open. With a `limit` only so many can be returned,
    those with the lowest seq, and nothing is read beyond them.
    """
    planned = Plan()
    seen: set[str | None] = set()
    known: dict[str, QueueAddress | str] = {}  # by FailedQ: the source, or a reason
    for page in inspect.pages(connection, source):
        failures, asked = read_failures(page), choice.failed_queue
        texts = {each.failed_queue for each in failures if each.failed_queue}
        spellings = find_same(connection, asked, texts) if asked is not None else ()
        chosen = [each for each in failures if choice.takes(each, spellings)]
        new = texts.intersection(each.failed_queue for each in chosen) - known.keys()
        known |= sources(connection, source, new)
        for each in chosen:
            seen |= {each.id, each.message_id}
            place = known.get(each.failed_queue or "", HOMELESS)
            if isinstance(place, str):
                planned.staying.setdefault(place, []).append(each)
                continue
            planned.returning.setdefault(place, []).append(each)
            if limit is not None and planned.messages == limit:
                return planned
    planned.missing = sorted(choice.ids - seen)
    return planned


def sources(
    connection: Connection, source: QueueAddress, texts: Iterable[str]
) -> dict[str, QueueAddress | str]:
    """
    Find the queues in which messages of an error queue failed; no transaction is open.

    Returns:
        By the value of FailedQ, which is untrusted: the queue, if it can be sent to, or the reason
        why not.
    """
    own, names = connection.printed(source), connection.names
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, object] = {}
    for text in texts:
        try:
            parsed[text] = names.parse_address(text)
        except errors.BadAddress as error:
            other = errors.QueueElsewhere(queue=error.text, errors=own)
            reasons[text] = other if names.is_of_other_database(text) else error
    with transaction(connection):
        known = Destinations(connection, source=source, by_header=True)
        refused = known.find_refused(parsed.values(), RETURNED)
    for text, queue in parsed.items():
        reason = refused.get(queue)
        if reason is not None and not isinstance(reason, errors.TableRefused):
            read, here = connection.printed(queue), connection.printed(replace(queue, catalog=None))
            if here != read or names.is_of_other_database(text):
                reason = errors.QueueElsewhere(queue=text, errors=own)
            elif names.may_be_one_name(text):
                meant, server = connection.printed(QueueAddress(text)), connection.server
                reason = errors.QueueUnquoted(text=text, read=read, meant=meant, server=server)
        if reason is not None:
            reasons[text] = reason
    reasons |= dict.fromkeys(find_same(connection, source, parsed), ITS_OWN)
    return {**parsed, **{text: str(reason) for text, reason in reasons.items()}}


# ---------------------------------------------------------------- return


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a batch."""

    destination: QueueAddress
    messages: int  # that were returned
    skipped: int = 0  # that others have locked, or that were gone
    left: int = 0  # that stay, including later batches of the destination
    reason: errors.SqlQueueError | None = None  # why they stay


def give_back(
    session: Session, source: QueueAddress, planned: Plan, *, batch: int
) -> Iterator[Returned]:
    """
    Return the planned messages, each batch in one transaction. A lost connection is retried.

    A batch that is run twice finds its messages gone and does nothing. The session's options are
    those of `plan`. `batch` is how many messages one transaction returns at most.

    Returns:
        The result of each batch, after its commit. If a destination refuses a batch for a reason
        that will not change, its later batches are not tried.
    """
    for destination, chosen in planned.returning.items():
        left = len(chosen)
        for part in parts(chosen, batch):
            work = partial(return_batch, source=source, destination=destination, chosen=part)
            done = session.run_with_retries(work)
            if isinstance(done, errors.SqlQueueError):
                yield Returned(destination, 0, left=left, reason=done)
                break
            left -= len(part)
            yield Returned(destination, done, skipped=len(part) - done)


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
    source: QueueAddress,
    destination: QueueAddress,
    chosen: Sequence[Failed],
) -> int | errors.DatabaseFailure:
    """
    Move messages from the error queue to where they failed, in one transaction.

    Returns:
        How many were moved; the others are locked or gone. Or why the destination accepts none.

    Raises:
        MessageChanged, DatabaseFailure: none was moved.
    """
    rows = None
    try:
        with transaction(connection):
            use(connection, [source], DELETE)
            check_types(connection, source)
            listed = json.dumps([(each.seq, each.id) for each in chosen])
            found = connection.arrow("take", tables={"queue": source}, chosen=listed)
            taken = sort_by_seq(found)
            if taken.num_rows:
                rows = to_source(connection, source, chosen, taken)
                known = Destinations(connection, source=source, by_header=True)
                known.lock_and_check([destination], RETURNED)
                connection.load(destination, rows)
            return int(taken.num_rows)
    except REFUSALS as error:
        if rows is None:  # it is the error queue's
            raise
        return error


def to_source(
    connection: Connection, source: QueueAddress, chosen: Sequence[Failed], taken: pa.Table
) -> pa.Table:
    """
    Make the rows to insert where the messages failed; a null body becomes empty.

    They lack the headers that the failure added. A message without the header MessageId is known by
    its row's id. It gets that id as a header, because the returned row has a new id.

    The messages were found by seq and id. An id may be in the queue again, of a message that failed
    elsewhere. So it is compared where they failed.
    """
    its = {(each.seq, each.id): each for each in chosen}
    texts = []
    columns = (taken["seq"], id_texts(taken["id"].combine_chunks()), taken["headers"])
    for seq, row, text in zip(*(each.to_pylist() for each in columns), strict=True):
        headers = parse_headers(text) or {}
        if headers.get(wire.FAILED_Q) != its[seq, row].failed_queue:
            raise errors.MessageChanged(row=row, queue=connection.printed(source))
        kept = {
            name: value
            for name, value in headers.items()
            if not name.startswith(wire.FAULT_PREFIXES)
        }
        texts.append(
            wire.dumps(kept if wire.MESSAGE_ID in kept else {wire.MESSAGE_ID: row, **kept})
        )
    body = pc.fill_null(taken["body"], b"")
    return add_ids(pa.table({"headers": pa.array(texts, pa.string()), "body": body}))
