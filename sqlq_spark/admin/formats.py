"""
Formats of numbers, sizes and times, of tables of figures, and of the process's output.

A table's columns are declared once. The terminal, the page, JSON and metrics read them.
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
    """`1 message`, `2,000 messages`."""
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


def part(how_many: int, total: int, what: str) -> str:
    """`1 of 2,000 messages`, `1 of 1 message`."""
    return f"{how_many:,} of {quantity(total, what)}"


def show_span(seconds: float) -> str:
    """A time show_span in its two largest units: `2 h 5 min`."""
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
    """A number of bytes: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def rate(value: float) -> str:
    """Messages per second, with one decimal place below ten."""
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def ago(moment: datetime) -> str:
    """How long ago, by this machine's clock: `5 min 3 s ago`."""
    return f"{show_span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def plain(value: object) -> str:
    """A value as a table shows it."""
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
    Let no character end the process, because it may have committed something.

    Windows writes into a file in an encoding that lacks most characters. What the encoding lacks is
    printed as `\u0142`. An answer that cannot be read is no yes.
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
    """The cell of a value; `about` precedes one that is known."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell("-" if value is None else about + form(value), is_number, mark)


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A figure of a row, and who shows it."""

    name: str
    path: str = ""  # of the row's attribute, `depth.messages`; by default the name
    form: Callable[[Any], str] = plain  # of a value that is known
    only: str = ""  # the views that have the column; by default all
    key: str = ""  # in JSON; by default the name
    estimated: str = ""  # path of what says that the number is an estimate
    mark: str = ""  # path of the cell's mark, which is `ok` if it is None

    def value(self, row: object) -> Any:  # noqa: ANN401 - a row of any class
        """The row's value; None if it, or an object on its path, is None."""
        return follow(row, self.path or self.name)

    def cell(self, row: object) -> Cell:
        about = "~" if self.estimated and follow(row, self.estimated) else ""
        return make_cell(
            self.value(row), self.form, about, self.mark and (follow(row, self.mark) or "ok")
        )


def follow(row: object, path: str) -> Any:  # noqa: ANN401 - as above
    """Follow a path of attributes; None where one is None."""
    for name in path.split("."):
        row = None if row is None else getattr(row, name)
    return row


def view(columns: Iterable[ShownColumn], name: str) -> list[ShownColumn]:
    """The columns that a view shows."""
    return [each for each in columns if not each.only or name in each.only.split()]


def json_row(columns: Iterable[ShownColumn], row: object) -> dict[str, Any]:
    return {each.key or each.name: each.value(row) for each in columns if each.only != "metrics"}
