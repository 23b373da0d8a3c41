"""
Screens: lines, tables and messages.

Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import ago, byte_size, clean, quantity
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, TIME_SENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlq_spark.admin.inspect import DelayedMessage, Message, Receipt, Stream

NO_TERMINAL = 160  # columns, so that little is cut in what a program reads
NO_QUEUES = (
    "no queues: this login may read no table of this database that has the columns of a queue"
)
BODY = 200  # characters at most; the terminal's width cuts further


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
        case Text():
            return value
        case None:
            return Text("-", "dim")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}", justify="right")
        case datetime():
            return Text(f"{value:%Y-%m-%d %H:%M:%S}")
    return Text(clean(str(value)))


def number(text: str) -> Text:
    """A number that is text already."""
    return Text(text, justify="right")


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


def show_received(receipt: Receipt, message: Message) -> None:
    """Show a message of a receipt: the receipt, each header, and the whole body."""
    say(f"receipt {receipt.name} of {receipt.queue}, login {receipt.login}")
    shown = whole(message)
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


def whole(message: Message | DelayedMessage) -> dict[str, Any]:
    """A message as a JSON object; `sqlqueue send` accepts one of a queue."""
    if isinstance(message, inspect.DelayedMessage):
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
