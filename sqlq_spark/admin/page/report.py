"""The page of `sqlqueue report --html`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sqlq_spark.admin import watch
from sqlq_spark.admin.formats import byte_size, estimate, part, quantity, span
from sqlq_spark.admin.page import page
from sqlq_spark.admin.page.overview import overview

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlq_spark.admin.inspect import Stream
    from sqlq_spark.admin.report import Failures, QueueReport, Report, Sample, Sizes

ABSENT = "-"
SHOWN = 12  # bars of a chart; the rest is one more bar
EXAMPLES = 50  # rows of a table of failures


def write_page(found: Report) -> str:
    """Write the page."""
    at = f"{found.look.at:%Y-%m-%d %H:%M:%S} UTC"
    return page.whole(
        f"Queues of {found.server}, {at}",
        page.heading(1, "Queues"),
        page.paragraph(f"{found.server}, as of {at}."),
        overview(found),
        *map(queue, found.queues),
        streams(found),
        "" if found.failures is None else failures(found.failures),
        footer(),
    )


# ---------------------------------------------------------------- a queue


def queue(each: QueueReport) -> str:
    """The section of one queue."""
    if not each.look.is_read:
        return ""
    charts = [*types(each), *ages(each.sample), *sent(each.sample)]
    if each.sizes is not None:
        charts.append(bloat(each.sizes))
    return (
        f"<section>{page.heading(2, each.look.queue)}{page.tiles(figures(each))}"
        f"{sampling(each)}<div class='charts'>{''.join(charts)}</div></section>"
    )


def figures(each: QueueReport) -> Iterable[tuple[str, str]]:
    """The main figures."""
    look = each.look
    yield "backlog", estimate(look.depth.messages, estimated=look.depth.estimated)
    yield "oldest", ABSENT if look.oldest is None else span(look.oldest)
    yield "expired", ABSENT if look.depth.expired is None else f"{look.depth.expired:,}"
    if look.delayed is not None:
        yield "delayed", estimate(look.delayed.messages, estimated=look.delayed.estimated)
        yield "due", ABSENT if look.delayed.due is None else f"{look.delayed.due:,}"
    yield "held in receipts", f"{look.held:,}"
    yield "size", byte_size(look.depth.bytes)


def sampling(each: QueueReport) -> str:
    """A note if only the headers of a sample were read."""
    of, read = each.look.depth.messages, each.sample.read
    if read >= of:
        return ""
    return page.paragraph(
        f"Types and times are those of a sample of {part(read, of, 'message')}, spread "
        "evenly over the queue."
    )


def types(each: QueueReport) -> list[str]:
    """A chart of the types of waiting messages."""
    rows = each.sample.types
    if not rows:
        return []
    read = each.sample.read
    return [
        page.figure(
            "Message types",
            "Messages that wait, by their most derived type.",
            page.bars([(name, count, share(count, read)) for name, count in fewest(rows)]),
        )
    ]


def fewest(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first rows, and one for all others."""
    rest = sum(count for _, count in rows[SHOWN:])
    more = [(quantity(len(rows) - SHOWN, "other"), rest)] if rest else []
    return [*rows[:SHOWN], *more]


def ages(sample: Sample) -> list[str]:
    """A chart of how long messages have waited."""
    if not sample.read:
        return []
    unknown = [("without a time", sample.unknown)] if sample.unknown else []
    rows = [(name, count, share(count, sample.read)) for name, count in [*sample.ages, *unknown]]
    note = "How long ago the waiting messages were sent, by their headers."
    return [page.figure("Ages", note, page.bars(rows))]


def sent(sample: Sample) -> list[str]:
    """A chart of when the waiting messages were sent."""
    if not sample.sent:
        return []
    begin, end = sample.sent[0][0], sample.sent[-1][0] + timedelta(seconds=sample.width)
    rows = [(f"{at:%Y-%m-%d %H:%M:%S}", count) for at, count in sample.sent]
    counts = [count for _, count in sample.sent]
    return [
        page.figure(
            "When they were sent",
            f"Only messages that still wait. Each column covers {span(sample.width)}.",
            page.columns(
                counts,
                unit="messages",
                ends=times(begin, end),
                said=f"{quantity(sum(counts), 'message')}, {max(counts):,} in the highest column",
            ),
            page.details("The numbers", page.table(("from (UTC)", "messages"), rows)),
        )
    ]


def bloat(sizes: Sizes) -> str:
    """A chart of the table's size, and how much of it a vacuum would free."""
    parts = [("table", sizes.table), ("indexes", sizes.indexes), ("large values", sizes.large)]
    rows = [(name, float(size), byte_size(size)) for name, size in parts]
    if sizes.dead is None:
        note = "The database does not count dead rows of this table."
    else:
        total = (sizes.live or 0) + sizes.dead
        when = "never" if sizes.cleaned is None else f"{sizes.cleaned:%Y-%m-%d %H:%M} UTC"
        note = (
            f"By the database's statistics {quantity(sizes.live or 0, 'live row')} and "
            f"{quantity(sizes.dead, 'dead row')} ({percent(sizes.dead, total)}); "
            f"last vacuum: {when}."
        )
    return page.figure("Size and bloat", note, page.bars(rows))


def times(begin: datetime, end: datetime) -> list[str]:
    """Labels of a time axis: begin, middle, end; the day only once if it is the same."""
    middle = begin + (end - begin) / 2
    form = "%H:%M" if begin.date() == end.date() else "%m-%d %H:%M"
    return [f"{begin:%Y-%m-%d %H:%M}", f"{middle:{form}}", f"{end:{form}} UTC"]


def share(count: int, of: int) -> str:
    """A count and its share in percent."""
    return f"{count:,} ({percent(count, of)})"


def percent(part: int, of: int) -> str:
    """A part in percent."""
    found = 100 * part / of if of else 0.0
    if not part:
        return "0 %"
    return "under 0.1 %" if 0 < found < 0.1 else f"{found:.1f} %"  # noqa: PLR2004


# ---------------------------------------------------------------- streams and failures


def streams(found: Report) -> str:
    """A table of the streams."""
    if found.look.streams is None:
        note = "Streams are unknown, because this login sees no state tables."
        return f"<section>{page.heading(2, 'Streams')}{page.paragraph(note)}</section>"
    names = ("stream", "queue", "lag", "receipts", "held", "acknowledged", "seen", "since")
    rows = [stream(each, found.look) for each in found.look.streams]
    inner = page.table(names, rows) if rows else page.paragraph("There are no streams.")
    note = (
        "Lag: messages that wait in its queues, and those in its receipts. Acknowledged: messages "
        "since its first batch."
    )
    return f"<section>{page.heading(2, 'Streams')}{page.paragraph(note)}{inner}</section>"


def stream(each: Stream, now: watch.Look) -> list[object]:
    """The row of one stream."""
    ago = max(0.0, (now.at - each.seen).total_seconds())
    return [
        each.stream,
        each.queue,
        watch.lag(each, now),
        each.receipts,
        each.held,
        each.messages,
        f"{span(ago)} ago",
        f"{each.created:%Y-%m-%d %H:%M}",
    ]


def failures(found: Failures) -> str:
    """The section of an error queue, by exception."""
    note = f"{quantity(found.messages, 'message')} in {found.queue}."
    if found.read < found.messages:
        note += f" The headers of {part(found.read, found.messages, 'message')} were read."
    rows = [(each.exception, each.messages) for each in found.groups]
    bars = page.bars([(name, count, share(count, found.read)) for name, count in fewest(rows)])
    names = ("exception", "messages", "first failed", "last failed", "failed in", "an example")
    table = page.table(
        names,
        (
            (
                each.exception,
                each.messages,
                ABSENT if each.first is None else f"{each.first:%Y-%m-%d %H:%M}",
                ABSENT if each.last is None else f"{each.last:%Y-%m-%d %H:%M}",
                ", ".join(sorted(each.queues, key=lambda name: -each.queues[name])[:3]),
                each.example or ABSENT,
            )
            for each in found.groups[:EXAMPLES]
        ),
    )
    inner = page.figure("Failures by exception", "By the type in the header.", bars) + table
    title = page.heading(2, f"Failures in {found.queue}")
    body = inner if found.groups else ""
    return f"<section>{title}{page.paragraph(note)}{body}</section>"


def footer() -> str:
    """An explanation of the figures."""
    return (
        "<footer>"
        + page.paragraph(
            "Ages are by the senders' clocks. Written by sqlqueue report. This page runs no script "
            "and loads nothing."
        )
        + "</footer>"
    )
