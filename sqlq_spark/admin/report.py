"""
Writes the page of `sqlqueue report`: what waits, what failed, and what is wrong.

What waits comes from `take_look`. What failed comes from the error queues that `take_look` has
read: from the headers of the messages with the lowest seqs, without their bodies. Headers that are
so long that the statement cuts them are left out. Nothing is locked.
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

MOST = 20_000  # how many messages of an error queue are read, without their bodies
# How many messages one statement reads. Their headers have at most 64 MB, because each is cut at
# 65,536 characters.
PAGE = 1_000
# How many types of exceptions are kept, and how many queues of one type. Senders choose the names.
NAMES = 200
LONGEST = 500  # how many characters of an untrusted text are kept
LONGEST_SHOWN = 300  # how many characters of a text the page shows
BARS = 12  # how many bars one chart has
NONE = "(none)"
# Errors after which a queue that the user did not name is skipped. It may have changed since
# `take_look` has read it.
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
    Group the messages of each error queue by the type of their exception.

    No transaction may be open. An error queue that `take_look` did not read is not read here
    either.

    Returns:
        One dict for each error queue: its name, how many messages it has, how many were read, and
        its groups, the largest first. A group has the queues where its messages failed, the times
        of the first and the last failure, and the text of one exception.
    """
    failures = []
    for queue in look.queues:
        if queue.kind == stats.ERRORS and queue.depth.first is not None:
            with suppress(*() if are_named else LATER):
                rows = [*read_headers(connection, queue.depth, is_named=are_named)]
                failure = {
                    "queue": queue.queue,
                    "messages": queue.depth.messages,
                    "read": len(rows),
                    "groups": group(rows),
                }
                failures.append(failure)
    return failures


def read_headers(
    connection: Connection, depth: queue_sizes.Depth, *, is_named: bool
) -> Iterator[Texts]:
    """
    Read GROUPED_HEADERS of a queue's lowest messages, each page in its own transaction.

    Raises:
        TableRefused: since `take_look` has read the table, it has become one that must not be used.
    """
    queue = parse_table("queue", depth.queue, connection.names)
    first = depth.first or 0
    stop = (depth.last or 0) + 1
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
    for name, facts_of_group in failures.items():
        messages, queues, texts = zip(*facts_of_group, strict=True)
        times = []
        for text in filter(None, texts):
            with suppress(wire.BadWireTime):
                times.append(wire.parse_wire_time(text))
        one = {
            "exception": name,
            "messages": len(facts_of_group),
            "queues": dict(Counter(queue or NONE for queue in queues).most_common(NAMES)),
            "first": min(times, default=None),
            "last": max(times, default=None),
            "example": next(filter(None, messages), None),
        }
        groups.append(one)
    return sorted(groups, key=itemgetter("messages"), reverse=True)[:NAMES]


# ---------------------------------------------------------------- page


def write_page(server: str, look: stats.Look, failures: list[dict[str, Any]]) -> str:
    """
    Return the page. Its texts are escaped, and it has no scripts and loads nothing.

    Names, types and exceptions are untrusted. The page's content security policy forbids scripts
    and requests.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - with --html only

    failed = Counter[str]()
    for failure in failures:
        for failed_alike in failure["groups"]:
            failed[failed_alike["exception"]] += failed_alike["messages"]
    waiting = {
        queue.queue: queue.depth.messages for queue in look.queues if queue.kind != stats.ERRORS
    }
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
    """Return a value as the page shows it: without control characters, and cut if it is long."""
    if hasattr(value, "__html__"):  # what a macro returned
        return value
    text = formats.plain(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
