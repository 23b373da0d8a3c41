"""
The result of a statement: named columns, and rows of a type that the caller chooses.

A row type is a frozen dataclass. It has a field for each column of one statement, in any order. A
field with a default needs no column: the caller fills it later. The type of a field decides how its
value is converted, because databases and drivers return different Python values for the same thing:

    datetime              an aware time in UTC
    tuple[int, …]         a list of numbers; SQL Server returns it as a text with commas
    tuple[datetime, …]    a list of times; SQL Server returns it as a text with commas
    bytes                 bytes, even if the driver returns a bytearray
    anything else         the value as the driver returned it
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
    """The columns of a result and their names. If a statement has no result, there are none."""

    names: tuple[str, ...]
    columns: Sequence[Sequence[Any]]  # each column has one value for each row

    def rows(self, statement: str, row_type: type[R]) -> list[R]:
        """
        Return the rows as instances of a row type.

        Raises TypeError if its fields are not the columns.
        """
        kind: Any = row_type  # R is any class for mypy; `fields` wants a dataclass
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
        """Return the values of a result that has one column. If it has no column, return []."""
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
    """Return the fields of a row type in their order: name → function that converts a value."""
    hints = get_type_hints(row_type)
    return {field.name: _reader_of(hints[field.name]) for field in fields(row_type)}


def _reader_of(hint: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - any type
    """Return the function that converts values to a type. None if no conversion is needed."""
    kinds = {hint, *get_args(hint)} - {type(None)}
    if datetime in kinds and get_origin(hint) is not tuple:
        return read_time
    for kind in kinds:
        if get_origin(kind) is tuple:
            return read_times if datetime in get_args(kind) else read_numbers
    return read_bytes if bytes in kinds else None


def read_time(value: datetime | str | None) -> datetime | None:
    """Return a time in UTC. A value without a zone already is in UTC."""
    if value is None:
        return None
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def read_numbers(value: str | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return numbers as a tuple. `value` is a list, or a text with commas."""
    if value is None:
        return None
    numbers = value.split(",") if isinstance(value, str) else value
    return tuple(map(int, numbers))


def read_times(value: str | Sequence[datetime] | None) -> tuple[datetime, ...]:
    """Return times as a tuple. `value` is a list, a text with commas, or None for no times."""
    texts = value.split(",") if isinstance(value, str) else (value or ())
    return tuple(time for time in map(read_time, texts) if time is not None)


def read_bytes(value: bytes | bytearray | memoryview | None) -> bytes | None:
    """Return a driver's binary value as bytes."""
    return None if value is None else bytes(value)
