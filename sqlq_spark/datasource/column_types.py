"""A frame's columns in Spark's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def column_types(schema: StructType) -> dict[str, str]:
    """Column → type, in Spark's words."""
    return {field.name: field.dataType.simpleString() for field in schema}
