"""
Screens: lines, tables, messages, progress bars.

Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

import base64
import json
import sys
from contextlib import contextmanager, nullcontext
from datetime import UTC
from itertools import compress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sqlq_spark.admin.formats import Column, ago, byte_size, clean, make_cell, part, quantity
from sqlq_spark.errors import Cancelled
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, TIME_SENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from sqlq_spark.admin.formats import Cell
    from sqlq_spark.admin.inspect import Message, Receipt
    from sqlq_spark.admin.problems import Finding

# Ctrl-C raises one of these: while a statement runs, the database driver cancels the statement
CTRL_C = (KeyboardInterrupt, Cancelled)
NO_TERMINAL = 160  # columns, so that little is cut in what a program reads
NO_QUEUES = (
    "no queues: this login may read no table of this database that has the columns of a queue"
)
BODY = 200  # characters at most; the terminal's width cuts further
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "dim", "ok": "green"}
RECEIPT = (
    *map(Column, ("stream", "batch", "task", "messages")),
    Column("size", "bytes", byte_size),
    Column("settled"),
    Column("created", form=ago),
    Column("stream seen", "seen", ago),
    Column("login"),
    Column("queue"),
)
PROGRESS = (
    TextColumn("{task.description}"),
    BarColumn(bar_width=30),
    TextColumn("{task.fields[count]}"),
    TimeElapsedColumn(),
)


# ---------------------------------------------------------------- lines


def out() -> Console:
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


def show_findings(findings: Sequence[Finding]) -> None:
    """Show findings, errors first, each with the statements that fix it, one per line."""
    for each in sorted(findings, key=lambda each: each.rank):
        for line in finding_lines(each):
            out().print(line, soft_wrap=True)
    if not any(each.is_problem for each in findings):
        out().print(Text("no problems found", "green"))


def finding_lines(its: Finding) -> list[Text]:
    """A finding, and below it its fix."""
    head = (its.severity, STYLES[its.severity])
    fixes = [Text(f"    {clean(fix)}", "cyan") for fix in its.fix.splitlines()]
    return [Text.assemble(head, f"  {clean(its.where)}: {clean(its.found)}"), *fixes]


# ---------------------------------------------------------------- tables


def show(names: Sequence[str], rows: Iterable[Iterable[object]], title: str) -> None:
    """Print a table of values."""
    out().print(draw(names, [[*map(make_cell, row)] for row in rows], title))


def show_rows(columns: Sequence[Column], rows: Iterable[object], title: str) -> None:
    out().print(draw_rows(columns, rows, title))


def draw_rows(columns: Sequence[Column], rows: Iterable[object], title: str) -> RenderableType:
    cells = [[each.cell(row) for each in columns] for row in rows]
    return draw([each.name for each in columns], cells, title)


def draw(names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> RenderableType:
    """
    A table whose last column is cut at the terminal's width, and others only if that is not enough.

    If a terminal is too narrow, columns that say nothing are left out.
    """
    if not rows:
        return Text(f"no {title}", "dim")
    table = lay_out(names, rows, title)
    console = out()
    wide = console.options.update(width=10_000)
    if console.measure(table, options=wide).maximum > console.width:
        if console.is_terminal:
            columns = zip(*rows, strict=True)
            kept = [any(each.text not in {"-", "0"} for each in column) for column in columns]
            kept[-1] = True
            rows = [[*compress(row, kept)] for row in rows]
            table = lay_out([*compress(names, kept)], rows, title)
        table.expand = console.measure(table, options=wide).maximum > console.width
    return table


def lay_out(names: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> Table:
    table = Table(box=None, header_style="bold", title=title, title_justify="left", pad_edge=False)
    for name, cells in zip(names[:-1], zip(*rows, strict=True), strict=False):
        is_number = any(each.is_number for each in cells)
        table.add_column(name, no_wrap=True, justify="right" if is_number else "left")
    table.add_column(names[-1], no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        styles = ("dim" if each.text == "-" else STYLES.get(each.mark, "") for each in row)
        table.add_row(*(Text(each.text, style) for each, style in zip(row, styles, strict=True)))
    return table


# ---------------------------------------------------------------- messages


def show_messages(messages: Iterable[Message]) -> None:
    """Show messages, one per row."""
    rows = (
        (each.seq, *type_and_time(each.headers), each.expires, *size_and_body(each.body))
        for each in messages
    )
    show(("seq", "type", "sent", "expires", "size", "body"), rows, "messages")


def show_delayed(messages: Iterable[Message]) -> None:
    """Show delayed messages, one per row."""
    rows = (
        (each.due, *type_and_time(each.headers), *size_and_body(each.body)) for each in messages
    )
    show(("due", "type", "sent", "size", "body"), rows, "delayed messages")


def show_received(receipt: Receipt, message: Message) -> None:
    """Show a message of a receipt: the receipt, each header, and the whole body."""
    say(f"receipt {receipt.name} of {receipt.queue}, login {receipt.login}")
    shown = message_as_json(message)
    headers = shown.pop("headers", None) or {}
    body = {name: shown.pop(name) for name in ("body", "bodyBase64") if name in shown}
    for name, value in [*shown.items(), *headers.items(), *body.items()]:
        say(f"{name}: {value}")


def type_and_time(headers: Mapping[str, str | None] | None) -> tuple[str | None, str | None]:
    """The type's short name and the time when the message was sent."""
    if headers is None:
        return "(corrupt headers)", None
    types = headers.get(ENCLOSED_MESSAGE_TYPES) or ""
    short = types.partition(";")[0].partition(",")[0].rpartition(".")[2]
    return short or None, (headers.get(TIME_SENT) or "")[:19] or None


def size_and_body(body: bytes | None) -> tuple[str, str | None]:
    text = None if body is None else body[:BODY].decode(errors="replace")
    return byte_size(len(body or b"")), text


def message_as_json(message: Message) -> dict[str, Any]:
    """A message as a JSON object; `sqlqueue send` accepts one of a queue."""
    if message.due is not None:
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


# ---------------------------------------------------------------- progress


@contextmanager
def progress(
    what: str, total: int | None = None, *, quiet: bool, done: str | None = None
) -> Iterator[Callable[[int], None]]:
    """
    Show a progress bar on standard error, on a terminal only.

    Args:
        what: what is counted, for example `message`.
        total: how many there will be; None if that is not known.
        quiet: show no bar.
        done: what was done with those that are counted, for example `deleted`. If it is set, Ctrl-C
            prints how many there were.

    Returns:
        A function that adds a number to the bar.
    """
    gone = 0
    of = "" if total is None else f" of {total:,}"
    try:
        hidden = quiet or not sys.stderr.isatty()
        bars = Progress(*PROGRESS, console=Console(stderr=True), disable=hidden, transient=quiet)
        with nullcontext() if hidden else bars:  # before rich 15 a disabled one ends with a newline
            bar = bars.add_task(f"{what}s", total=total, count=f"0{of}")

            def advance(more: int) -> None:
                nonlocal gone
                gone += more
                bars.update(bar, completed=gone, count=f"{gone:,}{of}")

            yield advance
    except CTRL_C:
        if done is not None:
            counted = quantity(gone, what) if total is None else part(gone, total, what)
            say_error(f"stopped: {counted} {done}")
        raise


def follow(
    batches: Iterable[int], what: str, total: int | None, *, quiet: bool, done: str | None = None
) -> int:
    """Show the progress of batches by their numbers of messages; returns the sum."""
    gone = 0
    with progress(what, total, quiet=quiet, done=done) as advance:
        for count in batches:
            gone += count
            advance(count)
    return gone
