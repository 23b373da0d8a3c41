"""
The figures of `sqlqueue report`, and its page: queues, their headers, and failures.

If a queue is deep, the headers of a sample are read, spread evenly over its seqs. Bodies are not
read, and neither are headers that are longer than what a statement returns of them. The times of
sending cover only messages that still wait.

Locks nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from sqlq_spark.admin import formats, inspect, queue_tables, watch
from sqlq_spark.admin.formats import Column, view
from sqlq_spark.admin.problems import CUT
from sqlq_spark.database import transaction
from sqlq_spark.errors import BadAddress
from sqlq_spark.options.names import parse_table
from sqlq_spark.receive.browse import cut
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import Headers
from sqlq_spark.wire.headers import full_name, split_types
from sqlq_spark.wire.rows import with_readable_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

PAGE = 1_000  # rows of headers per page; at most 64 MB, because each is cut at 65,536 characters
SPREAD = 40  # places in a deep queue from which the sample is read
NAMES = 200  # message types, or exceptions, that are counted separately; the rest are "others"
LONGEST = 500  # characters of an untrusted text that are kept
LONGEST_SHOWN = 300  # and that the page shows
BARS = 12  # of one chart; the rest is one more bar
BINS = 24  # columns of a chart over time
OTHERS = "others"
NONE = "(none)"
FORMS = (formats.byte_size, formats.part, formats.percent, formats.quantity, formats.span)
AGES = (
    (60.0, "under 1 min"),
    (600.0, "1 to 10 min"),
    (3600.0, "10 to 60 min"),
    (6 * 3600.0, "1 to 6 h"),
    (86400.0, "6 to 24 h"),
    (7 * 86400.0, "1 to 7 days"),
    (float("inf"), "over 7 days"),
)
EDGES = [edge for edge, _ in AGES]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a table, by the database's statistics."""

    table: int  # bytes
    indexes: int
    large: int  # values that are stored outside the table
    live: int | None  # rows, an estimate
    dead: int | None  # rows that a vacuum has not removed yet; None if they are not counted
    cleaned: datetime | None

    @property
    def note(self) -> str:
        """How much of the table a vacuum would free."""
        if self.dead is None:
            return "The database does not count dead rows of this table."
        live = self.live or 0
        when = "never" if self.cleaned is None else f"{self.cleaned:%Y-%m-%d %H:%M} UTC"
        return (
            f"By the database's statistics {formats.quantity(live, 'live row')} and "
            f"{formats.quantity(self.dead, 'dead row')} "
            f"({formats.percent(self.dead, live + self.dead)}); last vacuum: {when}."
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Statistics of the headers of some messages."""

    read: int
    types: list[tuple[str, int]]  # the most frequent first
    ages: list[tuple[str, int]]  # by AGES; without messages whose TimeSent cannot be read
    sent: list[tuple[datetime, int]]  # columns of even width: the begin and the count of each
    width: float  # seconds
    unknown: int  # messages whose TimeSent cannot be read


@dataclass(frozen=True, slots=True)
class QueueReport:
    """The figures of one queue."""

    look: watch.QueueLook
    sizes: Sizes | None
    sample: Sample
    failed: dict[str, int] = field(default_factory=dict)  # FailedQ of an error queue's messages


@dataclass(slots=True)
class Group:
    """Failures of one type of exception."""

    exception: str
    messages: int = 0
    queues: dict[str, int] = field(default_factory=dict)  # where they failed
    first: datetime | None = None
    last: datetime | None = None
    example: str | None = None  # its message

    @property
    def places(self) -> str:
        """The three queues where most of them failed."""
        return ", ".join(name for name, _ in Counter(self.queues).most_common(3))

    def add(self, queue: str | None, failed: datetime | None, message: str | None) -> None:
        """Count one failure."""
        self.messages += 1
        count(self.queues, [queue])
        self.example = self.example or (message and message[:LONGEST])
        if failed is not None:
            self.first = failed if self.first is None else min(self.first, failed)
            self.last = failed if self.last is None else max(self.last, failed)


EXCEPTIONS = (
    Column("messages"),
    Column("first failed", "first"),
    Column("last failed", "last"),
    Column("failed in", "places"),
    Column("an example", "example"),
    Column("exception"),
)


@dataclass(frozen=True, slots=True)
class Failures:
    """The messages of an error queue, by exception."""

    queue: str
    messages: int
    read: int
    groups: list[Group]  # the most frequent first


@dataclass(frozen=True, slots=True)
class Report:
    """All figures."""

    server: str
    look: watch.Look
    queues: list[QueueReport]
    failures: Failures | None
    errors: dict[str, int]  # messages of the error queues, by where they failed


# ---------------------------------------------------------------- look


def report(
    connection: Connection,
    names: Sequence[str],
    options: DatabaseOptions,
    *,
    errors: QueueAddress | None,
    most: int,
) -> Report:
    """
    Look at queues, streams and headers.

    Args:
        connection: has no transaction open.
        names: of the queues; if empty, all that are found.
        options: url, state schema and time limit.
        errors: an error queue, whose failures are grouped by exception.
        most: read the headers of at most so many messages per queue.
    """
    now = watch.look(connection, names, options)
    named = bool(names)
    queues = [one(connection, each, options, most=most, named=named) for each in now.queues]
    found = None if errors is None else failures(connection, errors, options, most=most)
    failed = failed_in(connection, queues)
    queues = [
        replace(each, look=replace(each.look, errors=failed.get(each.look.queue)))
        for each in queues
    ]
    return Report(connection.server, now, queues, found, failed)


def failed_in(connection: Connection, queues: Sequence[QueueReport]) -> dict[str, int]:
    """How many messages of the error queues failed in each queue, as far as they were read."""
    found: Counter[str] = Counter()
    for text, messages in (item for each in queues for item in each.failed.items()):
        with suppress(BadAddress):  # the header is untrusted
            found[connection.printed(connection.names.parse_address(text))] += messages
    return dict(found)


def one(
    connection: Connection,
    look: watch.QueueLook,
    options: DatabaseOptions,
    *,
    most: int,
    named: bool,
) -> QueueReport:
    """The figures of one queue; one that the look did not read is not read here either."""
    if not look.is_read:
        return QueueReport(look, None, make_sample({}, [], look.at))
    queue, timeout = parse_table("queue", look.queue, options.naming), options.query_timeout
    with transaction(connection, timeout=timeout):
        rows = connection.rows("table_sizes", tables={"queue": queue}, table_name=look.queue)
    tally: dict[str, int] = {}
    failed: dict[str, int] = {}
    sent: list[datetime | None] = []
    for page in pages(connection, queue, look.depth, most=most, timeout=timeout, named=named):
        count(tally, map(derived_type, page.text(wire.ENCLOSED_MESSAGE_TYPES).to_pylist()))
        sent += map(moment, page.text(wire.TIME_SENT).to_pylist())
        if look.kind == "error queue":
            count(failed, filter(None, page.text(wire.FAILED_Q).to_pylist()))
    sizes = Sizes(*rows[0]) if rows else None
    return QueueReport(look, sizes, make_sample(tally, sent, look.at), failed)


def failures(
    connection: Connection, queue: QueueAddress, options: DatabaseOptions, *, most: int
) -> Failures:
    """Group an error queue's messages by the type of their exception."""
    with transaction(connection, timeout=options.query_timeout):
        depth = inspect.depth(connection, queue)
    groups: dict[str, Group] = {}
    read = 0
    for page in pages(connection, queue, depth, most=most, timeout=options.query_timeout):
        columns = [page.text(name).to_pylist() for name in FAILURE]
        for exception, message, failed_queue, failed in zip(*columns, strict=True):
            read += 1
            name = (exception or NONE)[:LONGEST]
            if name not in groups and len(groups) >= NAMES:
                name = OTHERS
            group = groups.setdefault(name, Group(name))
            group.add(failed_queue, moment(failed), message)
    ordered = sorted(groups.values(), key=lambda group: (-group.messages, group.exception))
    return Failures(depth.queue, depth.messages, read, ordered)


FAILURE = (
    f"{wire.EXCEPTION_INFO}ExceptionType",
    f"{wire.EXCEPTION_INFO}Message",
    wire.FAILED_Q,
    wire.TIME_OF_FAILURE,
)


def pages(
    connection: Connection,
    queue: QueueAddress,
    depth: inspect.Depth,
    *,
    most: int,
    timeout: float,
    named: bool = True,
) -> Iterator[Headers]:
    """
    Read the headers of a queue, or of a sample of it, each page in its own transaction.

    A queue that nobody named is read as long as that runs no code of its owner.
    """
    if depth.first is None or depth.last is None:
        return
    parts = 1 if depth.messages <= most else min(SPREAD, most)
    for first, stop in cut(depth.first, depth.last + 1, parts=parts):
        at, left = first, most // parts
        while left > 0 and at < stop:
            with transaction(connection, timeout=timeout):
                if not named and queue_tables.danger(connection, queue) is not None:
                    return
                page = connection.arrow(
                    "browse_headers",
                    tables={"queue": queue},
                    first=at,
                    stop=stop,
                    messages=min(PAGE, left),
                )
            if not page.num_rows:
                break
            texts = with_readable_texts(page)["headers"].combine_chunks()
            yield Headers(texts.filter(pc.less(pc.fill_null(pc.utf8_length(texts), 0), CUT)))
            at, left = page["seq"][-1].as_py() + 1, left - page.num_rows


# ---------------------------------------------------------------- headers


def derived_type(types: str | None) -> str | None:
    return next(map(full_name, split_types(types)), None)


def count(tally: dict[str, int], names: Iterable[str | None]) -> None:
    """Count names, NAMES at most, because a sender may use any number of them."""
    for each in names:
        name = (each or NONE)[:LONGEST]
        name = name if name in tally or len(tally) < NAMES else OTHERS
        tally[name] = tally.get(name, 0) + 1


def moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else wire.parse_wire_time(text)
    except wire.BadWireTime:
        return None


def make_sample(tally: dict[str, int], sent: list[datetime | None], now: datetime) -> Sample:
    """Sort the counts into a sample. A time in the future counts as now."""
    known = sorted(min(each, now) for each in sent if each is not None)
    ages = Counter(bisect_right(EDGES, (now - each).total_seconds()) for each in known)
    width = max(1.0, (known[-1] - known[0]).total_seconds() / BINS) if known else 0.0
    bins = Counter(min(BINS - 1, int((at - known[0]).total_seconds() / width)) for at in known)
    return Sample(
        read=len(sent),
        types=sorted(tally.items(), key=lambda each: (-each[1], each[0])),
        ages=[(name, ages[at]) for at, (_, name) in enumerate(AGES)],
        sent=[
            (known[0] + timedelta(seconds=at * width), bins[at])
            for at in range(BINS if known else 0)
        ],
        width=width,
        unknown=len(sent) - len(known),
    )


# ---------------------------------------------------------------- page and JSON


def write_page(found: Report) -> str:
    """
    The page: escaped, without scripts and external resources.

    Names, types and exceptions are untrusted. The page's content security policy forbids scripts
    and requests.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - with --html only

    page = Environment(autoescape=True, undefined=StrictUndefined, finalize=shown)
    page.globals.update({each.__name__: each for each in (bars, shown, *FORMS)})
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    looks = [each.look for each in found.queues]
    waiting = [each for each in looks if each.kind != "error queue"]
    groups = found.failures.groups if found.failures else []
    return page.from_string(template).render(
        report=found,
        looks=looks,
        waiting=[(each.queue, each.depth.messages) for each in waiting],
        oldest=max((each.oldest for each in waiting if each.oldest is not None), default=None),
        failed=sum(each.depth.messages for each in looks if each.kind == "error queue"),
        exceptions=[(each.exception, each.messages) for each in groups],
        exception_columns=view(EXCEPTIONS, "page"),
        queue_columns=view(watch.QUEUE, "page"),
        stream_columns=view(watch.STREAM, "page"),
    )


def shown(value: object) -> object:
    """A value of the page: without control characters, cut if it is too long."""
    if hasattr(value, "__html__"):  # what a macro returned
        return value
    text = formats.plain(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def bars(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The rows of a chart: the largest, and one for all others."""
    rows = sorted(rows, key=lambda row: -row[1])
    rest = sum(count for _, count in rows[BARS:])
    more = [(formats.quantity(len(rows) - BARS, "other"), rest)] if rest else []
    return [*rows[:BARS], *more]


def to_json(found: Report) -> dict[str, Any]:
    look = watch.to_json(found.look)
    queues = [
        base | {"sizes": each.sizes and asdict(each.sizes), "sample": asdict(each.sample)}
        for base, each in zip(look["queues"], found.queues, strict=True)
    ]
    return look | {
        "server": found.server,
        "queues": queues,
        "errors": found.errors,
        "failures": found.failures and asdict(found.failures),
    }
