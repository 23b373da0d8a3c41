"""
What this package asks Spark, and the parts of pyspark that differ between the versions of Spark 4.

Databricks Runtime has parts of newer Spark versions, so each part is looked up by name. Spark 4.0
lacks DataSourceStreamArrowWriter. Spark 4.0 and 4.1 lack admission control, which is ReadLimit,
`latestOffset(start, limit)` and more than one micro-batch for Trigger.AvailableNow. Here are
stand-ins of the classes that are missing. They are built as the classes of the newer Spark are.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.pandas import types
from pyspark.sql.types import (
    ArrayType,
    CharType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(  # type: ignore[misc, no-redef]
        datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
    ):
        """
        A stream's writer that gets record batches from Spark 4.0 too.

        The worker of 4.0 gives record batches to each DataSourceArrowWriter, and rows to other
        writers. There a stream's writer may be of both kinds. Its commit and abort are a stream's.
        """


# Whether Trigger.AvailableNow receives all that waits in one run. If not, a run is one micro-batch,
# even if it only replays a batch. Start the query again until a run has no micro-batch. The version
# of a Spark Connect server is not checked.
DRAINS_AT_ONCE = True
try:
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    DRAINS_AT_ONCE = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for Spark 4.2's class, which this Spark does not ask for."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Stands for Spark 4.2's class, and is built as that one."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for Spark 4.2's class, which has no state of its own."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from sqlq_spark.wire.rows import SparkBatch

# Names of pyspark that other modules import from here.
__all__ = ["DataSourceStreamArrowWriter", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

# Spark 4.2 names the time zone. Older versions only say whether there is one, which is UTC.
_ZONE: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(types.to_arrow_schema).parameters
    else {"timestamp_utc": True}
)


TEXTS = (StringType, CharType, VarcharType)  # StringType also with a collation
# The metadata with the declared type of a column that is, or contains, CHAR(n) or VARCHAR(n). Spark
# reads such a column as a string, unless spark.sql.preserveCharVarcharTypeInfo is set.
DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


def column_types(schema: StructType) -> dict[str, str]:
    """Return the columns with their types in Spark's words. Every kind of text is `string`."""
    return {field.name: _plain(field.dataType).simpleString() for field in schema}


def padded_texts(schema: StructType) -> frozenset[tuple[str, str]]:
    """
    Return the columns whose texts Spark fills up with blanks: those of CHAR(n).

    Each column comes with its part that is padded: `key` or `value` of a map, or "". An expression
    on such a column is a string. In an INSERT into a table of this format the column is one too.
    """
    padded = set()
    for field in schema:
        declared = (field.metadata or {}).get(DECLARED) or field.dataType.simpleString()
        parts = {"": declared.removeprefix("array<")}
        if isinstance(field.dataType, MapType):
            key, _, value = declared.removeprefix("map<").partition(",")
            parts = {"key": key, "value": value}
        padded |= {(field.name, part) for part, text in parts.items() if text.startswith("char(")}
    return frozenset(padded)


def _plain(kind: DataType) -> DataType:
    """Return a type with a simple string for each kind of text."""
    if isinstance(kind, TEXTS):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType), kind.valueContainsNull)
    return kind


def current_batch() -> SparkBatch:
    """Return Spark's names of the micro-batch of the task that runs here."""
    from sqlq_spark.wire.rows import SparkBatch  # noqa: PLC0415 - loads pyarrow

    context = TaskContext.get()
    if context is None:
        return SparkBatch()
    batch = context.getLocalProperty("streaming.sql.batchId")
    return SparkBatch(
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        # It is the runId of the query, unless a user's function names a group of its own.
        run_id=context.getLocalProperty("spark.jobGroup.id"),
        number=None if batch is None else int(batch),
    )


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Give the Arrow schema in which Spark expects the rows of a read."""
    fields = [StructField(field.name, _plain(field.dataType), field.nullable) for field in schema]
    return types.to_arrow_schema(StructType(fields), **_ZONE)


# The program in which Spark 4.1 and later plan a read with filters.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


def pushes_filters() -> bool:
    """
    Return whether Spark plans a read with filters in this process.

    Spark starts that program only with `spark.sql.python.filterPushdown.enabled`. Without the
    setting it refuses any reader that has `pushFilters`. So only that program may see such a one.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN in sys.modules or getattr(program, "name", None) == _PUSHDOWN
