"""
Screens: lines, tables, messages and the demo.

Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sqlq_spark import demo
from sqlq_spark.admin.formats import ago, byte_size, clean, part, quantity
from sqlq_spark.admin.inspect import DelayedMessage
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, TIME_SENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.progress import TaskID

    from sqlq_spark.admin.inspect import Message, Receipt, Stream

NO_TERMINAL = 160  # columns, so that little is cut in what a program reads
NO_QUEUES = "no queues: there is no stream; name queues, for example Shop.Orders"
BODY = 200  # characters at most; the terminal's width cuts further

TEN_LINES = """\
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
stream = spark.readStream.format("sqlqueue").option("url", os.environ["SQLQUEUE_URL"])
query = (stream.load("Shop.Orders")
    .writeStream.format("parquet")
    .option("checkpointLocation", "orders/checkpoint")
    .trigger(availableNow=True))
query.start("orders/table").awaitTermination()
"""


# ---------------------------------------------------------------- lines


def out() -> Console:
    """A console for standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else NO_TERMINAL)


def say(text: str) -> None:
    """Print one line on standard output."""
    out().print(Text(clean(text)), soft_wrap=True)


def say_error(text: str) -> None:
    """Print one line on standard error, red on a terminal."""
    Console(stderr=True, highlight=False).print(Text(clean(text), "red"), soft_wrap=True)


def print_json(value: object) -> None:
    """Print one JSON line: times as ISO 8601, control characters as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, default=lambda at: at.isoformat())
    sys.stdout.write(
        "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text) + "\n"
    )


def total(receipts: Sequence[Receipt]) -> str:
    """The number of messages and receipts, as text."""
    messages = sum(each.messages for each in receipts)
    return f"{quantity(messages, 'message')} of {quantity(len(receipts), 'receipt')}"


# ---------------------------------------------------------------- tables


def show(names: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """Print a table. Only its last column is cut at the terminal's width."""
    cells = [[plain(value) for value in row] for row in rows]
    if not cells:
        out().print(Text(f"no {title}", "dim"))
        return
    table = Table(box=None, header_style="bold", title=title, title_justify="left", pad_edge=False)
    for name in names[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(names[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    for row in cells:
        table.add_row(*row)
    console = out()
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    table.expand = natural > console.width
    console.print(table)


def plain(value: object) -> Text:
    """The text of one cell."""
    match value:
        case None:
            return Text("-", "dim")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}", justify="right")
        case datetime():
            return Text(f"{value:%Y-%m-%d %H:%M:%S}")
    return Text(clean(str(value)))


def show_streams(streams: Sequence[Stream]) -> None:
    """Show streams, one per row."""
    rows = (
        (
            each.stream,
            each.batch,
            each.messages,
            each.expired,
            each.diverted,
            each.forwarded,
            ago(each.seen),
            each.receipts,
            each.held,
            each.queue,
        )
        for each in streams
    )
    names = (
        "stream",
        "batch",
        "messages",
        "expired",
        "diverted",
        "forwarded",
        "seen",
        "receipts",
        "held",
        "queue",
    )
    show(names, rows, "streams")


def show_receipts(receipts: Sequence[Receipt]) -> None:
    """Show receipts, one per row."""
    rows = (
        (
            each.stream,
            each.batch,
            each.task,
            each.messages,
            byte_size(each.bytes),
            each.settled,
            ago(each.created),
            None if each.seen is None else ago(each.seen),
            each.login,
            each.queue,
        )
        for each in receipts
    )
    names = (
        "stream",
        "batch",
        "task",
        "messages",
        "size",
        "settled",
        "created",
        "stream seen",
        "login",
        "queue",
    )
    show(names, rows, "receipts")


def show_messages(messages: Iterable[Message]) -> None:
    """Show messages, one per row."""
    rows = (
        (
            each.seq,
            *type_and_time(each.headers),
            each.expires,
            byte_size(len(each.body or b"")),
            None if each.body is None else each.body[:BODY].decode(errors="replace"),
        )
        for each in messages
    )
    show(("seq", "type", "sent", "expires", "size", "body"), rows, "messages")


def type_and_time(headers: Mapping[str, str | None] | None) -> tuple[str | None, str | None]:
    """The type's short name and the time when the message was sent."""
    if headers is None:
        return "(corrupt headers)", None
    types = headers.get(ENCLOSED_MESSAGE_TYPES) or ""
    short = types.partition(";")[0].partition(",")[0].rpartition(".")[2]
    return short or None, (headers.get(TIME_SENT) or "")[:19] or None


def whole(message: Message | DelayedMessage) -> dict[str, Any]:
    """A message as a JSON object; `sqlqueue send` accepts one of a queue."""
    if isinstance(message, DelayedMessage):
        shown: dict[str, Any] = {"id": message.id, "due": message.due.replace(tzinfo=UTC)}
    else:
        shown = {"id": message.id, "seq": message.seq, "expires": message.expires}
    if message.headers is None:
        shown["corruptHeaders"] = message.corrupt_headers
    else:
        shown["headers"] = message.headers
    try:
        shown["body"] = None if message.body is None else message.body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(message.body or b"").decode()
    return shown


# ---------------------------------------------------------------- the demo


def follow(events: Iterable[demo.Event], *, quiet: bool = False) -> demo.Result:
    """Show the demo's progress, unless quiet, and return its result."""
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    events = iter(events)
    first = next(events)  # an error before the first step is raised before the screen changes
    with Progress(*columns, console=out(), disable=quiet) as progress:
        doing: str | None = None
        bar: TaskID | None = None
        for event in chain([first], events):
            match event:
                case demo.Result():
                    finish(progress, bar)
                    return event
                case demo.Kill() if not quiet:
                    progress.console.print(
                        f"[red]✗[/] SIGKILL to {event.processes} processes within batch "
                        f"{event.batch}; {quantity(event.held, 'message')} had left the queue"
                    )
                case demo.Step():
                    if event.doing != doing:
                        finish(progress, bar)
                        doing = event.doing
                        bar = progress.add_task(doing, total=None, count="")
                    if bar is not None:
                        advance(progress, bar, event)
    raise AssertionError  # pragma: no cover - the demo ends with its result


def finish(progress: Progress, bar: TaskID | None) -> None:
    """Mark a step as done."""
    if bar is not None:
        progress.update(bar, total=1, completed=1, count="")


def advance(progress: Progress, bar: TaskID, step: demo.Step) -> None:
    """Show the progress of a step, if it is known."""
    if step.messages is None:
        progress.update(bar, count=step.note)
    else:
        count = step.note or part(step.messages, step.total or 0, "message")
        progress.update(bar, total=step.total, completed=step.messages, count=count)


def show_result(result: demo.Result) -> None:
    """Show the counts, three rows, and how to receive from your own queue."""
    good, bad = "bold green", "bold red"
    console = out()
    table = Table(box=None, show_header=False, title="Counted by message id", title_justify="left")
    table.add_column(justify="right")
    table.add_column()
    figures = [
        (f"{result.sent:,}", "sent", ""),
        (f"{result.received:,}", f"received, over {quantity(result.kills, 'kill')}", ""),
        (f"{result.lost:,}", "lost", bad if result.lost else good),
        (f"{result.repeated:,}", "repeated", bad if result.repeated else good),
        (
            f"{result.sent_each_second:,.0f}",
            "messages/s sent, including the start of the JVM",
            "",
        ),
        (
            f"{result.received_each_second:,.0f}" if result.received_each_second else "-",
            "messages/s received in micro-batches, without the first of each process",
            "",
        ),
    ]
    for number, what, style in figures:
        table.add_row(Text(number, style), what)
    console.print(table)
    if result.strange or result.left:
        say_error(f"{result.strange} ids that were never sent, {result.left} still in the queue")
    rows = ((row["seq"], *type_and_time(row["headers"]), row["body"]) for row in result.rows)
    console.print()
    show(("seq", "type", "sent", "body"), rows, "three of its rows")
    console.print(
        "\nTo receive from your own queue, run [bold]export SQLQUEUE_URL=postgresql://… "
        "PGPASSWORD=…[/] and [bold]sqlqueue install[/], then:\n"
    )
    console.print(Syntax(TEN_LINES, "python", background_color="default"))
