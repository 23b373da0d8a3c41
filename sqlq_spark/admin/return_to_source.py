"""
Returns failed messages from an error queue to the queues where they failed, for `sqlqueue retry`.

`plan_return` reads the error queue without locks. It counts the messages that can be returned and,
by the reason, those that cannot.

`give_back` reads the messages again and returns them batch by batch. Each batch has one destination
and one transaction. The transaction deletes those messages of the batch that are not locked from
the error queue, and inserts them into the queue where they failed. There a message does not expire,
and it lacks the headers that the failure has added (see wire/returning.py).

Senders choose how many messages there are and how long a header is. So both functions hold only one
page of messages in memory, and nothing that grows with the queue.

A message is in exactly one of the two queues at any time. An interrupted return can be run again,
because returned messages are no longer in the error queue.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.admin.messages import read_all_pages
from sqlq_spark.database import check_types, find_same, transaction
from sqlq_spark.database.destinations import RETURNED_COLUMNS, Destinations
from sqlq_spark.database.trust import DELETE, use
from sqlq_spark.receive import browse
from sqlq_spark.send.chunk import add_ids
from sqlq_spark.wire import LOWEST_SEQ, returning
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.header_columns import Headers, parse_headers
from sqlq_spark.wire.rows import id_texts, sort_by_seq

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session

# How many bytes of headers and bodies one transaction returns. It returns at least one message.
BATCH_BYTES = 16 << 20
# Limits of what a plan keeps in memory, because senders choose the texts.
MOST_SOURCES = 1000  # spellings of queues in which messages failed
MOST_GROUPS = 1000  # pairs of a queue in which messages failed and an exception
MOST_REASONS = 100  # reasons why messages stay
FIRST_IDS = 5  # ids of messages that stay for one reason
LONGEST_KEPT = 1000  # characters of a text
# The headers of a failure, in the order of the fields of `Failed`.
CHOICE_HEADERS = (
    wire.MESSAGE_ID,
    wire.FAILED_Q,
    returning.EXCEPTION_TYPE,
    wire.TIME_OF_FAILURE,
)

TOO_MANY = f"a run returns messages to {MOST_SOURCES} queues at most. Run it again for the others"
# the name under which the others are counted above MOST_GROUPS or MOST_REASONS
OTHER_GROUPS = "(others)"

# Errors of a destination that another attempt would raise again.
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
    id: str  # the id of its row
    bytes: int  # the size of headers and body
    message_id: str | None
    failed_queue: str | None  # the header FailedQ; None or empty if it is missing
    exception: str | None  # the full name of its type
    time: str | None  # the time of the failure, as the header has it


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which messages to return. A condition that is not set matches all."""

    ids: frozenset[str] = frozenset()  # ids of rows, or ids of messages
    exceptions: frozenset[str] = frozenset()  # full names of types, or their last part
    failed_queue: QueueAddress | None = None
    since: datetime | None = None  # the earliest time of the failure
    until: datetime | None = None  # the failure was before this time

    def takes(self, failed: Failed, queues: Collection[str | None]) -> bool:
        """
        Return whether a message matches all conditions.

        `queues`: the spellings of `self.failed_queue`, the queue where the message must have
        failed.
        """
        kind = failed.exception or ""
        types = {kind, kind.rpartition(".")[2]} - {""}
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
    sizes = pc.add(*(pc.fill_null(pc.binary_length(part), 0) for part in (texts, page["body"])))
    headers = Headers(texts)
    ids = id_texts(page["id"].combine_chunks())
    columns = (page["seq"], ids, sizes, *map(headers.text, CHOICE_HEADERS))
    return [*map(Failed, *(column.to_pylist() for column in columns))]


# ---------------------------------------------------------------- plan


@dataclass
class Staying:
    """How many messages cannot be returned because of the same reason, and the first ids."""

    messages: int = 0
    ids: list[str] = field(default_factory=list)  # the row ids of the first messages

    def add(self, row_id: str) -> None:
        self.messages += 1
        if len(self.ids) < FIRST_IDS:
            self.ids.append(row_id)


@dataclass
class ReturnPlan:
    """How many chosen messages can be returned, and how many cannot. It keeps no message."""

    choice: Choice
    messages: int = 0  # how many can be returned
    stop: int = 0  # one more than the seq of the last message that can be returned
    # The queues where messages go, by the untrusted text of the header FailedQ.
    destinations: dict[str, QueueAddress] = field(default_factory=dict)
    # How many messages can be returned, by failed queue and exception. Both texts are shortened.
    counted: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    staying: dict[str, Staying] = field(default_factory=dict)  # by the reason
    missing: list[str] = field(default_factory=list)  # chosen ids that no message has

    @property
    def groups(self) -> list[tuple[str | None, str | None, int]]:
        """Return the groups: failed queue, exception and number of messages, the largest first."""
        return [(*key, messages) for key, messages in self.counted.most_common()]

    @property
    def queues(self) -> int:
        """Return to how many queues messages go. Two spellings of one queue may count twice."""
        return len(set(self.destinations.values()))

    def add(self, failed: Failed) -> None:
        """Count a message that can be returned."""
        self.messages += 1
        self.stop = failed.seq + 1
        group = shorten(failed.failed_queue), shorten(failed.exception)
        if group not in self.counted and len(self.counted) >= MOST_GROUPS:
            group = OTHER_GROUPS, OTHER_GROUPS
        self.counted[group] += 1

    def leave(self, failed: Failed, reason: str) -> None:
        """Count a message that cannot be returned."""
        if reason not in self.staying and len(self.staying) >= MOST_REASONS:
            reason = OTHER_GROUPS
        self.staying.setdefault(reason, Staying()).add(failed.id)


def shorten(text: str | None) -> str | None:
    """Return the beginning of a text that is too long to keep."""
    return text if text is None or len(text) <= LONGEST_KEPT else text[:LONGEST_KEPT] + "…"


def plan_return(
    connection: Connection,
    source: QueueAddress,
    choice: Choice,
    *,
    limit: int | None = None,
) -> ReturnPlan:
    """
    Count the chosen messages of an error queue, and find whether they can be returned.

    It locks and changes nothing. No transaction may be open. If `limit` is given, the plan has at
    most `limit` messages to return, those with the lowest seqs. Messages behind them are not read.
    """
    planned = ReturnPlan(choice)
    ids_found: set[str | None] = set()  # the ids of choice.ids that a message has
    for page in read_all_pages(connection, source):
        chosen = choose(connection, page, choice)
        for failed in chosen:
            ids_found |= choice.ids.intersection(ids_of(failed))
        places = find_places(connection, source, chosen, planned)
        for failed in chosen:
            refusal = returning.find_refusal(failed.failed_queue, failed.exception)
            place = refusal or places[failed.failed_queue or ""]
            if isinstance(place, str):
                planned.leave(failed, place)
                continue
            planned.add(failed)
            if limit is not None and planned.messages == limit:
                return planned
    planned.missing = sorted(choice.ids - ids_found)
    return planned


def choose(connection: Connection, page: pa.Table, choice: Choice) -> list[Failed]:
    """Return the messages of a page that match the choice."""
    failures = read_failures(page)
    spellings: Collection[str] = ()
    if choice.failed_queue is not None:
        texts = {failed.failed_queue for failed in failures if failed.failed_queue}
        spellings = find_same(connection, choice.failed_queue, texts)
    return [failed for failed in failures if choice.takes(failed, spellings)]


def ids_of(failed: Failed) -> tuple[str, str | None]:
    return failed.id, failed.message_id


def find_places(
    connection: Connection, source: QueueAddress, chosen: Iterable[Failed], planned: ReturnPlan
) -> dict[str, QueueAddress | str]:
    """
    Find where the messages of a page go, or why they stay.

    Destinations that the plan does not have yet are added to it.

    Returns:
        By the text of the header FailedQ: the queue where its messages go, or the reason why they
        stay.
    """
    texts = dict.fromkeys(failed.failed_queue for failed in chosen if failed.failed_queue)
    new = [text for text in texts if text not in planned.destinations]
    places = find_sources(connection, source, new)
    for text, place in places.items():
        if isinstance(place, QueueAddress):
            if len(planned.destinations) < MOST_SOURCES:
                planned.destinations[text] = place
            else:
                places[text] = TOO_MANY
    return {**places, **planned.destinations}


def find_sources(
    connection: Connection, source: QueueAddress, texts: Collection[str]
) -> dict[str, QueueAddress | str]:
    """
    Find the queues in which messages of an error queue failed. No transaction may be open.

    Returns:
        By the untrusted text of the header FailedQ: the queue, or the reason why no message can be
        sent to it.
    """
    if not texts:
        return {}
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
        refused = known.find_refused(parsed.values(), RETURNED_COLUMNS)
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
    reasons |= dict.fromkeys(find_same(connection, source, parsed), returning.ITS_OWN)
    return {**parsed, **{text: str(reason) for text, reason in reasons.items()}}


# ---------------------------------------------------------------- return


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a batch."""

    destination: QueueAddress
    messages: int  # how many were returned
    skipped: int = 0  # how many messages others had locked, or were gone
    left: int = 0  # how many stay, because the destination refused this or an earlier batch
    reason: errors.SqlQueueError | None = None  # why the destination refused


def give_back(
    session: Session, source: QueueAddress, planned: ReturnPlan, *, batch: int
) -> Iterator[Returned]:
    """
    Return the planned messages, each batch in one transaction. A lost connection is retried.

    The error queue is read again, up to the last message of the plan. At most as many messages are
    returned as the plan has counted, and only to queues of the plan. The session must have the
    options with which `plan_return` ran. One transaction returns at most `batch` messages.

    Returns:
        The result of each batch, after its commit. If a destination refuses a batch for a reason
        that will not change, later batches for this destination are not tried.
    """
    refused: dict[QueueAddress, errors.SqlQueueError] = {}
    for destination, part in cut_batches(session, source, planned, batch):
        done: int | errors.SqlQueueError
        if destination in refused:
            done = refused[destination]
        else:
            work = partial(return_batch, source=source, destination=destination, chosen=part)
            done = session.run_with_retries(work)
        if isinstance(done, errors.SqlQueueError):
            refused[destination] = done
            yield Returned(destination, 0, left=len(part), reason=done)
        else:
            yield Returned(destination, done, skipped=len(part) - done)


def cut_batches(
    session: Session, source: QueueAddress, planned: ReturnPlan, most: int
) -> Iterator[tuple[QueueAddress, list[Failed]]]:
    """
    Cut the planned messages into batches of one destination.

    A batch has at most `most` messages, and about BATCH_BYTES at most. At most `most` messages wait
    until their batch is full. Their headers and bodies are not kept in memory.
    """
    waiting: dict[QueueAddress, list[Failed]] = {}
    weights = Counter[QueueAddress]()
    for failed in islice(read_again(session, source, planned, most), planned.messages):
        destination = planned.destinations[failed.failed_queue or ""]
        if weights[destination] + failed.bytes > BATCH_BYTES and destination in waiting:
            yield destination, waiting.pop(destination)
            weights[destination] = 0
        waiting.setdefault(destination, []).append(failed)
        weights[destination] += failed.bytes
        if sum(map(len, waiting.values())) == most:
            yield from waiting.items()
            waiting, weights = {}, Counter()
    yield from waiting.items()


def read_again(
    session: Session, source: QueueAddress, planned: ReturnPlan, most: int
) -> Iterator[Failed]:
    """Read the planned messages, in pages of about `most`, with the texts that a return needs."""
    first = LOWEST_SEQ
    rows = max(browse.FIRST_PAGE, min(most, browse.LARGEST_PAGE))
    while first < planned.stop:
        read = partial(
            browse.read_messages, queue=source, first=first, stop=planned.stop, messages=rows
        )
        page, first = session.run_with_retries(read)
        for failed in read_failures(page):
            refusal = returning.find_refusal(failed.failed_queue, failed.exception)
            if (
                refusal is None
                and failed.failed_queue in planned.destinations
                and planned.choice.takes(failed, planned.destinations)
            ):
                yield replace(failed, message_id=None, exception=None, time=None)


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
        How many messages were moved, or the error if the destination refuses the messages. Messages
        that were not moved are locked or gone.

    Raises:
        MessageChanged, DatabaseFailure: no message was moved.
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
                known.lock_and_check([destination], RETURNED_COLUMNS)
                connection.load(destination, rows)
            return int(taken.num_rows)
    except REFUSALS as error:
        if rows is None:  # the error queue refused, not the destination
            raise
        return error


def to_source(
    connection: Connection, source: QueueAddress, chosen: Sequence[Failed], taken: pa.Table
) -> pa.Table:
    """
    Make the rows to insert where the messages failed. A null body becomes empty.

    The messages were deleted from the error queue by seq and id. Since the plan, another message
    may have got the same seq and id, and may have failed elsewhere. So MessageChanged is raised
    unless the message has the FailedQ of the plan.
    """
    planned = {(failed.seq, failed.id): failed for failed in chosen}
    texts = []
    columns = (taken["seq"], id_texts(taken["id"].combine_chunks()), taken["headers"])
    for seq, row, text in zip(*(each.to_pylist() for each in columns), strict=True):
        headers = parse_headers(text) or {}
        found = headers.get(wire.FAILED_Q)
        exception = headers.get(returning.EXCEPTION_TYPE)
        is_refused = returning.find_refusal(found, exception) is not None
        if is_refused or found != planned[seq, row].failed_queue:
            raise errors.MessageChanged(row=row, queue=connection.printed(source))
        texts.append(returning.write_headers(headers, row))
    body = pc.fill_null(taken["body"], b"")
    return add_ids(pa.table({"headers": pa.array(texts, pa.string()), "body": body}))
