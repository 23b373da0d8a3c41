"""
Formats numbers, sizes, times and tables of figures, and sets the encoding of the output.

The columns of a table are declared once. The terminal, the page, JSON and the metrics read them.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlq_spark.errors import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def quantity(how_many: int, what: str) -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


def part(how_many: int, total: int, what: str) -> str:
    """Return how many of a total: `1 of 2,000 messages`, `1 of 1 message`."""
    return f"{how_many:,} of {quantity(total, what)}"


def show_span(seconds: float) -> str:
    """Return a time span in its two largest units: `2 h 5 min`."""
    for unit, length, small, less in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= length:
            whole_units, rest = divmod(int(seconds), length)
            return f"{whole_units} {unit} {rest // less} {small}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004


def byte_size(size: float) -> str:
    """Return a number of bytes with its unit: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def rate(value: float) -> str:
    """Return messages per second, with one decimal place below ten."""
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def ago(moment: datetime) -> str:
    """Return how long ago a time was, by this machine's clock: `5 min 3 s ago`."""
    return f"{show_span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def plain(value: object) -> str:
    """Return a value in the form in which a table shows it."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
    return clean(str(value))


# ---------------------------------------------------------------- output


def escape_unencodable() -> None:
    r"""
    Make sure that no character raises an error, which could end a process after a commit.

    Windows writes into a file in an encoding that lacks most characters. Such a character is
    printed as an escape, for example `\u0142`. In input, bytes that cannot be decoded are replaced,
    so an answer with such bytes does not count as a yes.
    """
    for stream, errors in (
        (sys.stdin, "replace"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def write_utf_8() -> None:
    """Write standard output in UTF-8 from here on, for a program that reads it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def has_characters(encoding: str | None, text: str) -> bool:
    """Whether an encoding has all characters of a text."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- tables


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    is_number: bool
    mark: str  # a severity, `ok`, or nothing


def make_cell(
    value: object, form: Callable[[Any], str] = plain, about: str = "", mark: str = ""
) -> Cell:
    """Return the cell of a value: `-` if it is None, or else the value with `about` before it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell("-" if value is None else about + form(value), is_number, mark)


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A figure of a row, and the views that show it."""

    name: str
    path: str = ""  # the path of the row's attribute, as `depth.messages`; by default the name
    form: Callable[[Any], str] = plain  # formats a value that is not None
    only: str = ""  # the views that have the column; by default all
    key: str = ""  # the name in JSON; by default `name`
    estimated: str = ""  # the path of the row's flag that says whether the number is an estimate
    mark: str = ""  # the path of the cell's mark; if the row has None there, the mark is `ok`

    def value(self, row: object) -> Any:  # noqa: ANN401 - a row of any class
        """Return the row's value; None if the value or an object on its path is None."""
        return follow(row, self.path or self.name)

    def cell(self, row: object) -> Cell:
        about = "~" if self.estimated and follow(row, self.estimated) else ""
        return make_cell(
            self.value(row), self.form, about, self.mark and (follow(row, self.mark) or "ok")
        )


def follow(row: object, path: str) -> Any:  # noqa: ANN401 - a row of any class
    """Return the attribute at the end of a path of attributes; None if one of them is None."""
    for name in path.split("."):
        row = None if row is None else getattr(row, name)
    return row


def view(columns: Iterable[ShownColumn], name: str) -> list[ShownColumn]:
    """Return the columns that a view shows."""
    return [column for column in columns if not column.only or name in column.only.split()]


def json_row(columns: Iterable[ShownColumn], row: object) -> dict[str, Any]:
    return {
        column.key or column.name: column.value(row)
        for column in columns
        if column.only != "metrics"
    }
