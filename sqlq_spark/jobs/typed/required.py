"""Finds fields that are NOT NULL in a schema. `from_json` makes all fields nullable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    Test = Callable[[Column], Column]


def required(kind: DataType, path: str = "") -> list[tuple[str, Test]]:
    """The fields that are NOT NULL, also in structs, arrays and maps: path, and a test for null."""
    if isinstance(kind, StructType):
        return [found for each in kind for found in _required_field(each, path)]
    if isinstance(kind, ArrayType):
        return [(name, _any(test)) for name, test in required(kind.elementType, f"{path}[]")]
    if isinstance(kind, MapType):
        inner = required(kind.valueType, f"{path}[]")
        return [(name, _within(F.map_values, _any(test))) for name, test in inner]
    return []


def _required_field(field: StructField, path: str) -> list[tuple[str, Test]]:
    name = f"{path}.{field.name}" if path else field.name
    inner = [
        (each, _within(lambda found: found[field.name], test))
        for each, test in required(field.dataType, name)
    ]
    if field.nullable:
        return inner
    return [(name, lambda found: found.isNotNull() & found[field.name].isNull()), *inner]


def _any(test: Test) -> Test:
    return lambda found: F.exists(found, test)


def _within(part: Test, test: Test) -> Test:
    return lambda found: test(part(found))
