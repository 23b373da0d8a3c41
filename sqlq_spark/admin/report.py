"""
The figures of `sqlqueue report`, and its page: queues, their headers, and failures.

If a queue is deep, the headers of a sample are read, spread evenly over its seqs. Bodies are not
read, and neither are headers that are longer than what a statement returns of them.

Locks nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from sqlq_spark.admin import formats, inspect, watch
from sqlq_spark.admin.problems import CUT
from sqlq_spark.database import transaction
from sqlq_spark.errors import BadAddress, QueueNotFound, RightMissing, TimedOut
from sqlq_spark.options.names import parse_table
from sqlq_spark.receive.browse import cut
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import Headers
from sqlq_spark.wire.rows import with_readable_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

    Texts = list[str | None]

PAGE = 1_000  # rows of headers per page; at most 64 MB, because each is cut at 65,536 characters
SPREAD = 40  # places in a deep queue from which the sample is read
NAMES = 200  # message types, or exceptions, that are counted separately; the rest are "others"
LONGEST = 500  # characters of an untrusted text that are kept
LONGEST_SHOWN = 300  # and that the page shows
BARS = 12  # of one chart; the rest is one more bar
OTHERS = "others"
# what may have happened to a queue that nobody named since the look; it stops no other
LATER = (QueueNotFound, RightMissing, TimedOut)
ERRORS = "error queue"  # the kind of a queue
NONE = "(none)"
AGES = {  # below so many seconds
    "under 1 min": 60.0,
    "1 to 10 min": 600.0,
    "10 to 60 min": 3600.0,
    "1 to 6 h": 6 * 3600.0,
    "6 to 24 h": 86400.0,
    "1 to 7 days": 7 * 86400.0,
    "over 7 days": float("inf"),
}
SIZES = (  # of a table, by the database's statistics
    "table",  # bytes
    "indexes",
    "large",  # values that are stored outside the table
    "live",  # rows, an estimate
    "dead",  # rows that a vacuum has not removed yet; None if they are not counted
    "cleaned",  # when
)
SAMPLED = (wire.ENCLOSED_MESSAGE_TYPES, wire.TIME_SENT, wire.FAILED_Q)
FAILURE = (
    f"{wire.EXCEPTION_INFO}ExceptionType",
    f"{wire.EXCEPTION_INFO}Message",
    wire.FAILED_Q,
    wire.TIME_OF_FAILURE,
)


class QueueReport(NamedTuple):
    """The figures of one queue."""

    look: watch.QueueLook
    sizes: dict[str, Any] | None  # by SIZES
    sample: dict[str, Any]  # of headers: see `make_sample`


@dataclass(frozen=True, slots=True)
class Report:
    """All figures."""

    server: str
    look: watch.Look
    queues: list[QueueReport]
    failures: dict[str, Any] | None  # of an error queue: see `failures`
    errors: dict[str, int]  # messages of the error queues that were read, by where they failed


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
    Look at queues, all without names, streams, and the headers of at most `most` messages a queue.

    The failures of the error queue `errors` are grouped by exception. A queue that the look did not
    read is not read here either. No transaction is open.
    """
    now = watch.look(connection, names, options)
    queues, failed = [], Counter[str]()
    for look in now.queues:
        sizes: dict[str, Any] | None = None
        columns: list[Texts] = [[], [], []]
        with suppress(*() if names else LATER):
            if look.is_read:
                queue = parse_table("queue", look.queue, connection.names)
                with transaction(connection):
                    rows = connection.rows(
                        "table_sizes", tables={"queue": queue}, table_name=look.queue
                    )
                sizes = dict(zip(SIZES, rows[0], strict=True)) if rows else None
                columns = read_headers(
                    connection, queue, look.depth, SAMPLED, most=most, is_named=bool(names)
                )
        types, sent, places = columns
        queues.append(QueueReport(look, sizes, make_sample(types, sent, now.at)))
        failed.update(filter(None, places if look.kind == ERRORS else ()))
    by_place = Counter[str]()
    for text, messages in failed.most_common(NAMES):
        with suppress(BadAddress):  # the header is untrusted
            by_place[connection.printed(connection.names.parse_address(text))] += messages
    found = None if errors is None else failures(connection, errors, most=most)
    return Report(connection.server, now, queues, found, by_place)


def failures(connection: Connection, queue: QueueAddress, *, most: int) -> dict[str, Any]:
    """
    Group an error queue's messages by the type of their exception.

    Returns:
        The queue, how many messages it has, how many were read, and the groups, the largest first:
        each with the queues where its messages failed, when first and last, and the text of one.
    """
    with transaction(connection):
        depth = inspect.depth(connection, queue)
    names, *columns = read_headers(connection, queue, depth, FAILURE, most=most)
    kept = {name for name, _ in count(names)}
    names = [name if (name := each or NONE) in kept else OTHERS for each in names]
    groups: list[dict[str, Any]] = []
    rows = sorted(zip(names, *columns, strict=True), key=itemgetter(0))
    for name, its in groupby(rows, itemgetter(0)):
        _, messages, queues, times = zip(*its, strict=True)
        known = sorted(filter(None, map(moment, times)))
        group = {
            "exception": name,
            "messages": len(messages),
            "queues": dict(count(queues)),
            "first": known[0] if known else None,
            "last": known[-1] if known else None,
            "example": next(filter(None, messages), None),
        }
        groups.append(group)
    groups.sort(key=itemgetter("messages"), reverse=True)
    return {"queue": depth.queue, "messages": depth.messages, "read": len(names), "groups": groups}


def read_headers(
    connection: Connection,
    queue: QueueAddress,
    depth: inspect.Depth,
    names: Sequence[str],
    *,
    most: int,
    is_named: bool = True,
) -> list[Texts]:
    """
    Read some headers of a queue, or of a sample of it, each page in its own transaction.

    A queue that nobody named is read as long as that runs no code of its owner.
    """
    columns: list[Texts] = [[] for _ in names]
    if depth.first is None or depth.last is None:
        return columns
    parts = 1 if depth.messages <= most else min(SPREAD, most)
    for first, stop in cut(depth.first, depth.last + 1, parts=parts):
        at, left = first, most // parts
        while left > 0 and at < stop:
            with transaction(connection):
                if not is_named and inspect.danger(connection, queue) is not None:
                    return columns
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
            read = Headers(texts.filter(pc.less(pc.fill_null(pc.utf8_length(texts), 0), CUT)))
            for column, name in zip(columns, names, strict=True):
                column.extend(pc.utf8_slice_codeunits(read.text(name), 0, LONGEST).to_pylist())
            at, left = page["seq"][-1].as_py() + 1, left - page.num_rows
    return columns


# ---------------------------------------------------------------- headers


def make_sample(types: Texts, sent: Texts, now: datetime) -> dict[str, Any]:
    """
    Give statistics of the headers of some messages. A time in the future counts as now.

    Returns:
        How many were read; their types, the most frequent first; their ages by AGES, and how many
        have no TimeSent that can be read.
    """
    times = [*map(moment, sent)]
    ages = Counter(
        next(name for name, edge in AGES.items() if (now - each).total_seconds() < edge)
        for each in times
        if each is not None
    )
    derived = (next(map(wire.full_name, wire.split_types(each)), None) for each in types)
    return {
        "read": len(times),
        "types": count(derived),
        "ages": [(name, ages[name]) for name in AGES],
        "unknown": times.count(None),
    }


def count(names: Iterable[str | None]) -> list[tuple[str, int]]:
    """Count names, NAMES at most, because a sender may use any number of them."""
    return largest(Counter(each or NONE for each in names).items(), NAMES)


def largest(rows: Iterable[tuple[str, int]], most: int = BARS) -> list[tuple[str, int]]:
    """The rows with the largest counts, and one for all others."""
    rows = sorted(rows, key=lambda row: (-row[1], row[0]))
    rest = rows[most:]
    others = formats.quantity(len(rest), "other"), sum(count for _, count in rest)
    return [*rows[:most], *([others] if rest else [])]


def moment(text: str | None) -> datetime | None:
    try:
        return None if text is None else wire.parse_wire_time(text)
    except wire.BadWireTime:
        return None


# ---------------------------------------------------------------- page and JSON


def write_page(found: Report) -> str:
    """
    The page: escaped, without scripts and external resources.

    Names, types and exceptions are untrusted. The page's content security policy forbids scripts
    and requests.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - with --html only

    page = Environment(autoescape=True, undefined=StrictUndefined, finalize=shown)
    page.globals |= {"formats": formats, "largest": largest, "shown": shown}
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    looks = found.look.queues
    return page.from_string(template).render(
        report=found,
        waiting=[(each.queue, each.depth.messages) for each in looks if each.kind != ERRORS],
        columns={"queues": watch.QUEUE, "streams": watch.STREAM},
    )


def shown(value: object) -> object:
    """A value of the page: without control characters, cut if it is too long."""
    if hasattr(value, "__html__"):  # what a macro returned
        return value
    text = formats.plain(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def to_json(found: Report) -> dict[str, Any]:
    look = watch.to_json(found.look)
    for row, each in zip(look["queues"], found.queues, strict=True):
        row |= {"sizes": each.sizes, "sample": each.sample}
    return look | {"server": found.server, "errors": found.errors, "failures": found.failures}
