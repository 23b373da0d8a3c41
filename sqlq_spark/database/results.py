"""
What a statement returns: columns with names, and rows of the caller's own types.

A row type is a frozen dataclass whose fields are the columns of one statement, in any order. A
field with a default may be no column: others fill it. The type of a field says what a value
becomes, because the two databases and their drivers have values of their own:

    datetime              aware, in UTC
    tuple[int, …]         a list of numbers, which SQL Server returns as a text with commas
    tuple[datetime, …]    the same of times
    bytes                 also what a driver returns as a bytearray
    anything else         as it comes
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Result:
    """The columns of a result by name; a statement without a result has none."""

    names: tuple[str, ...]
    columns: Sequence[Sequence[Any]]  # as many values in each as there are rows

    def rows(self, statement: str, row_type: type[R]) -> list[R]:
        """Return the rows as values of a row type."""
        kind: Any = row_type  # a dataclass
        readers = field_readers(kind)
        if not self.names:
            return []
        needed = {field.name for field in fields(kind) if has_no_default(field)}
        if not needed <= {*self.names} <= readers.keys():
            message = (
                f"statement {statement} returns {', '.join(self.names)}, and {row_type.__name__} "
                f"has the fields {', '.join(readers)}"
            )
            raise TypeError(message)
        columns: list[Sequence[Any]] = []
        for name, column in zip(self.names, self.columns, strict=True):
            read = readers[name]
            columns.append(column if read is None else [read(value) for value in column])
        rows = zip(*columns, strict=True)
        return [row_type(**dict(zip(self.names, row, strict=True))) for row in rows]

    def values(self, statement: str) -> list[Any]:
        """Return the values of a result that has one column."""
        if not self.names:
            return []
        if len(self.names) > 1:
            message = f"statement {statement} returns {', '.join(self.names)}: it needs a row type"
            raise TypeError(message)
        return [*self.columns[0]]


NOTHING = Result((), ())


def has_no_default(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


@cache
def field_readers(row_type: type) -> dict[str, Callable[[Any], Any] | None]:
    """Return the fields of a row type in their order, each with what reads its values."""
    hints = get_type_hints(row_type)
    return {each.name: _reader_of(hints[each.name]) for each in fields(row_type)}


def _reader_of(hint: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - of any type
    """Return what reads the values of a field of this type; None: they stay as they come."""
    kinds = {hint, *get_args(hint)} - {type(None)}
    if datetime in kinds and get_origin(hint) is not tuple:
        return read_time
    for kind in kinds:
        if get_origin(kind) is tuple:
            return read_times if datetime in get_args(kind) else read_numbers
    return read_bytes if bytes in kinds else None


def read_time(value: datetime | str | None) -> datetime | None:
    """Return a time with its zone; one without a zone is in UTC."""
    if value is None:
        return None
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def read_numbers(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return a list of numbers, or of their text with commas."""
    if value is None:
        return None
    return tuple(map(int, value.split(",") if isinstance(value, str) else value))


def read_times(value: str | Sequence[datetime] | None) -> tuple[datetime, ...]:
    """Return a list of times, or of their text with commas; null is an empty list."""
    texts = value.split(",") if isinstance(value, str) else (value or ())
    return tuple(time for time in map(read_time, texts) if time is not None)


def read_bytes(value: bytes | bytearray | memoryview | None) -> bytes | None:
    """Return bytes, whatever a driver returns for them."""
    return None if value is None else bytes(value)
