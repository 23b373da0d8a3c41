"""
The page of `sqlqueue report`: what waits, what failed, and what is wrong.

Of each error queue that the look read, it reads the headers of some messages, those with the lowest
seqs. It reads no bodies, and no headers that are longer than what a statement returns of them.

Locks nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from importlib.resources import files
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.admin import formats, queue_sizes, stats
from sqlq_spark.admin.queue_checks import CUT
from sqlq_spark.database import transaction
from sqlq_spark.database.trust import READ, use
from sqlq_spark.options.names import parse_table
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import Headers
from sqlq_spark.wire.rows import with_readable_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection

    Texts = tuple[str | None, ...]

MOST = 20_000  # messages of an error queue whose headers are read
PAGE = 1_000  # of them; at most 64 MB, because each is cut at 65,536 characters
NAMES = 200  # exceptions, and queues of one: senders choose the names
LONGEST = 500  # characters of an untrusted text that are kept
LONGEST_SHOWN = 300  # and that the page shows
BARS = 12  # of one chart
NONE = "(none)"
# what may have happened to a queue that nobody named since the look; it stops no other
LATER = (errors.QueueNotFound, errors.RightMissing, errors.TableRefused, errors.TimedOut)
GROUPED_HEADERS = (
    f"{wire.EXCEPTION_INFO}ExceptionType",
    f"{wire.EXCEPTION_INFO}Message",
    wire.FAILED_Q,
    wire.TIME_OF_FAILURE,
)


# ---------------------------------------------------------------- failures


def find_failures(
    connection: Connection, look: stats.Look, *, are_named: bool
) -> list[dict[str, Any]]:
    """
    Group the messages of each error queue by the type of their exception; no transaction is open.

    A queue that the look did not read is not read here either.

    Returns:
        Each queue, how many messages it has, how many were read, and the groups, the largest first:
        each with the queues where its messages failed, when first and last, and the text of one.
    """
    found = []
    for its in look.queues:
        if its.kind == stats.ERRORS and its.depth.first is not None:
            with suppress(*() if are_named else LATER):
                rows = [*read_headers(connection, its.depth, is_named=are_named)]
                one = {"queue": its.queue, "messages": its.depth.messages, "read": len(rows)}
                found.append(one | {"groups": group(rows)})
    return found


def read_headers(
    connection: Connection, depth: queue_sizes.Depth, *, is_named: bool
) -> Iterator[Texts]:
    """
    Read the headers GROUPED_HEADERS of a queue's lowest messages, each page in its own transaction.

    It raises TableRefused if the queue's table must no longer be used.
    """
    queue = parse_table("queue", depth.queue, connection.names)
    first, stop = depth.first or 0, (depth.last or 0) + 1
    for _ in range(0, MOST, PAGE):
        with transaction(connection):
            if not is_named:
                connection.set_lock_timeout(queue_sizes.UNNAMED_LOCK_WAIT)
            use(connection, [queue], READ)
            page = connection.arrow(
                "browse_headers", tables={"queue": queue}, first=first, stop=stop, messages=PAGE
            )
        if not page.num_rows:
            return
        texts = with_readable_texts(page)["headers"].combine_chunks()
        read = Headers(texts.filter(pc.less(pc.fill_null(pc.utf8_length(texts), 0), CUT)))
        columns = (pc.utf8_slice_codeunits(read.text(name), 0, LONGEST) for name in GROUPED_HEADERS)
        yield from zip(*(each.to_pylist() for each in columns), strict=True)
        first = page["seq"][-1].as_py() + 1


def group(rows: list[Texts]) -> list[dict[str, Any]]:
    failures = defaultdict(list)
    for exception, *facts in rows:
        failures[exception or NONE].append(facts)
    groups = []
    for name, its in failures.items():
        messages, queues, texts = zip(*its, strict=True)
        times = []
        for text in filter(None, texts):
            with suppress(wire.BadWireTime):
                times.append(wire.parse_wire_time(text))
        one = {
            "exception": name,
            "messages": len(its),
            "queues": dict(Counter(each or NONE for each in queues).most_common(NAMES)),
            "first": min(times, default=None),
            "last": max(times, default=None),
            "example": next(filter(None, messages), None),
        }
        groups.append(one)
    return sorted(groups, key=itemgetter("messages"), reverse=True)[:NAMES]


# ---------------------------------------------------------------- page


def write_page(server: str, look: stats.Look, failures: list[dict[str, Any]]) -> str:
    """
    The page: escaped, without scripts and external resources.

    Names, types and exceptions are untrusted. The page's content security policy forbids scripts
    and requests.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - with --html only

    failed = Counter[str]()
    for its in failures:
        for one in its["groups"]:
            failed[one["exception"]] += one["messages"]
    waiting = {each.queue: each.depth.messages for each in look.queues if each.kind != stats.ERRORS}
    page = Environment(autoescape=True, undefined=StrictUndefined, finalize=shown)
    page.globals |= {"formats": formats, "shown": shown, "bars": BARS}
    template = files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    return page.from_string(template).render(
        server=server,
        look=look,
        failures=failures,
        waiting=Counter(waiting),
        failed=failed,
        columns={"queues": stats.QUEUE_COLUMNS, "streams": stats.STREAM_COLUMNS},
    )


def shown(value: object) -> object:
    """A value of the page: without control characters, cut if it is too long."""
    if hasattr(value, "__html__"):  # what a macro returned
        return value
    text = formats.plain(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
