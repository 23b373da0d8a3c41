"""
Prints lines, tables and messages on a screen or as JSON.

Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sqlq_spark.admin.formats import has_characters, make_cell, write_utf_8
from sqlq_spark.errors import Cancelled, clean
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, TIME_SENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from sqlq_spark.admin.formats import Cell, ShownColumn
    from sqlq_spark.admin.messages import StoredMessage
    from sqlq_spark.admin.queue_checks import Finding

# Ctrl-C raises one of these. While a statement runs, the database driver cancels the statement.
CTRL_C = (KeyboardInterrupt, Cancelled)
# The width of the output if there is no terminal, in characters. Longer lines are rare, and cut.
NO_TERMINAL = 200
NO_QUEUES = (
    "no queues: this login may read no table of this database that has the columns of a queue"
)
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "dim", "ok": "green"}


# ---------------------------------------------------------------- lines


def out(*, quiet: bool = False) -> Console:
    width = None if sys.stdout.isatty() else NO_TERMINAL
    return Console(highlight=False, width=width, quiet=quiet)


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


def print_unchanged(text: str) -> None:
    """Print a text that a program runs, without escapes, because they would change names."""
    encoding = sys.stdout.encoding
    if not has_characters(encoding, text):
        say_error(f"the output is UTF-8, because {encoding} lacks characters of it")
        write_utf_8()
    sys.stdout.write(text)


def finding_lines(finding: Finding) -> list[Text]:
    """Return a finding as lines: what was found, then the statements that fix it."""
    head = (finding.severity, STYLES[finding.severity])
    fixes = [Text(f"    {line}", "cyan") for line in finding.fix_lines]
    return [Text.assemble(head, f"  {clean(finding.where)}: {clean(finding.found)}"), *fixes]


# ---------------------------------------------------------------- tables


def show_table(names: Sequence[str], rows: Iterable[Iterable[object]], title: str) -> None:
    """Print a table of values."""
    columns = zip(*rows, strict=True)
    cells = ([*map(make_cell, column)] for column in columns)
    out().print(draw([*zip(names, cells, strict=False)], title))


def draw_rows(columns: Iterable[ShownColumn], rows: Sequence[object], title: str) -> RenderableType:
    """Draw a table of some columns of rows."""
    return draw([(each.name, [*map(each.cell, rows)]) for each in columns], title)


def draw(columns: Sequence[tuple[str, Sequence[Cell]]], title: str) -> RenderableType:
    """
    Draw a table. Its last column is cut at the terminal's width.

    Other columns are cut only if that is not enough. If a terminal is too narrow, columns that have
    only `-` or 0 are left out.
    """
    if not columns or not columns[0][1]:
        return Text(f"no {title}", "dim")
    table, console = lay_out(columns, title), out()
    wide = console.options.update(width=10_000)
    if console.measure(table, options=wide).maximum > console.width:
        if console.is_terminal:
            *others, last = columns
            kept = [each for each in others if any(cell.text not in {"-", "0"} for cell in each[1])]
            table = lay_out([*kept, last], title)
        table.expand = console.measure(table, options=wide).maximum > console.width
    return table


def lay_out(columns: Sequence[tuple[str, Sequence[Cell]]], title: str) -> Table:
    table = Table(box=None, header_style="bold", title=title, title_justify="left", pad_edge=False)
    for name, cells in columns[:-1]:
        justify: Any = "right" if any(each.is_number for each in cells) else "left"
        table.add_column(name.replace("_", " "), no_wrap=True, justify=justify)
    table.add_column(columns[-1][0], no_wrap=True, overflow="ellipsis", ratio=1)
    for row in zip(*(cells for _, cells in columns), strict=True):
        styles = ("dim" if each.text == "-" else STYLES.get(each.mark, "") for each in row)
        table.add_row(*(Text(each.text, style) for each, style in zip(row, styles, strict=True)))
    return table


# ---------------------------------------------------------------- messages


def type_and_time(headers: Mapping[str, str | None] | None) -> tuple[str | None, str | None]:
    """Return the short name of a message's type, and the time when it was sent."""
    if headers is None:
        return "(corrupt headers)", None
    types = headers.get(ENCLOSED_MESSAGE_TYPES) or ""
    short = types.partition(";")[0].partition(",")[0].rpartition(".")[2]
    return short or None, (headers.get(TIME_SENT) or "")[:19] or None


def message_as_json(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a JSON object, which `sqlqueue send` accepts."""
    shown: dict[str, Any] = {"id": message.id, "seq": message.seq, "expires": message.expires}
    if message.headers is None:
        shown["corruptHeaders"] = message.corrupt_headers
    else:
        shown["headers"] = message.headers
    try:
        shown["body"] = None if message.body is None else message.body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(message.body or b"").decode()
    return shown


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the block at Ctrl-C and SIGTERM, without an error."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except CTRL_C:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
