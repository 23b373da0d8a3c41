"""
Failed messages: those of an error queue that were chosen, and the queues where they failed.

`plan` reads without locks. It says which messages can be returned, which cannot, and why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import find_same, transaction
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.errors import (
    BadAddress,
    DestinationRefused,
    QueueElsewhere,
    QueueUnquoted,
    SqlQueueError,
)
from sqlq_spark.receive import browse
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    TIME_OF_FAILURE,
    BadWireTime,
    parse_wire_time,
)
from sqlq_spark.wire.rows import uuid_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

LONGEST = 200  # characters of an address that a reason shows

# reasons of one message or of many
CORRUPT = "corrupt headers"
HOMELESS = f"no header {FAILED_Q}, so the source is unknown"
ITS_OWN = f"the header {FAILED_Q} names the error queue itself"

Text = dict[str, str | None]


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
        return (
            (not self.ids or not self.ids.isdisjoint({failed.id, failed.message_id}))
            and (not self.exceptions or not self.exceptions.isdisjoint(type_names(kind)))
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


def type_names(kind: str) -> set[str]:
    """The names that match an exception type."""
    return {kind, kind.rpartition(".")[2]} - {""}


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

    def stay(self, reason: str, some: list[Failed]) -> None:
        """Note that messages stay in the error queue."""
        self.staying.setdefault(reason, []).extend(some)

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
) -> Plan:
    """
    Find the chosen messages, and whether they can be returned. Locks and changes nothing.

    Args:
        connection: no transaction open.
        errors: the error queue.
        choice: which of its messages.
        timeout: seconds for each page.
        allowed: the option allowedDestinations.

    Raises:
        QueueNotFound, NotAQueue, RightMissing: of the error queue.
    """
    found = Plan()
    chosen: dict[str, list[Failed]] = {}
    spellings = Spellings(connection, choice.failed_queue)
    seen: set[str] = set()
    for _, first, stop in browse.parts(connection, [errors], parts=1, timeout=timeout):
        for page in browse.pages(connection, errors, first, stop, narrow=False, timeout=timeout):
            failures = list(read_failures(page))
            queues = spellings.find({each.failed_queue or "" for each, _ in failures} - {""})
            for failed, headers in failures:
                if choice.takes(failed, headers, queues):
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


class Spellings:
    """The spellings of one queue among the headers FailedQ; each is looked up once."""

    def __init__(self, connection: Connection, queue: QueueAddress | None) -> None:
        """Prepare; `queue` None: no spelling is looked for."""
        self.connection = connection
        self.queue = queue
        self._looked: set[str] = set()
        self._found: set[str] = set()

    def find(self, texts: Collection[str]) -> Collection[str]:
        """Return all spellings that were found, also among these texts."""
        new = set(texts) - self._looked
        if self.queue is not None and new:
            self._looked |= new
            self._found |= find_same(self.connection, self.queue, new)
        return self._found


def _sort(failed: Failed, chosen: dict[str, list[Failed]], found: Plan) -> None:
    """Add a message to its failed queue, or to those that stay."""
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
            parsed[text] = connection.names.parse_address(text)
        except BadAddress as error:
            bad = BadAddress(text=text[:LONGEST], reason=error.reason)
            other = names.is_of_other_database(text)
            reasons[text] = str(QueueElsewhere(queue=text[:LONGEST], errors=own) if other else bad)
    refused: dict[QueueAddress, SqlQueueError] = {}
    if parsed:
        with transaction(connection, timeout=timeout):
            refused = Destinations(connection, allowed, source=errors, by_header=True).find_refused(
                parsed.values(), RETURNED
            )
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
