"""
What this package reads from Spark, and classes that replace those that an older Spark lacks.

Spark 4.0 lacks DataSourceStreamArrowWriter. Spark 4.0 and 4.1 lack admission control: they have no
ReadLimit, do not call `latestOffset(start, limit)`, and run one micro-batch for
Trigger.AvailableNow. Each class is looked up by name and not by Spark's version, because Databricks
Runtime has parts of newer Spark versions.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
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
        Replaces the class that Spark 4.0 lacks: a stream's writer that gets record batches.

        The worker of Spark 4.0 gives record batches to each DataSourceArrowWriter, and rows to all
        other writers. So this class is both a stream's writer and a DataSourceArrowWriter. The
        stream's writer is the first base class, so that commit and abort are those of a stream.
        """


# Whether one run of Trigger.AvailableNow receives all messages that wait. If it is False, a run is
# one micro-batch, and that may be a batch that is only repeated. Then start the query again and
# again, until a run has no micro-batch. With Spark Connect only the client's version is known here,
# not the server's.
DRAINS_AT_ONCE = True
try:
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    DRAINS_AT_ONCE = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for Spark 4.2's class on an older Spark, which never asks for a limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """Replaces Spark 4.2's class, with the same constructor."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces Spark 4.2's class, which has no state either."""


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from sqlq_spark.wire.rows import SparkBatch

# Names of pyspark that other modules import from here.
__all__ = ["DataSourceStreamArrowWriter", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

# Spark 4.2 takes the name of the time zone. Older versions only take whether there is one: UTC.
_ZONE: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(types.to_arrow_schema).parameters
    else {"timestamp_utc": True}
)


TEXTS = (StringType, CharType, VarcharType)  # a StringType may have a collation
# The metadata with the declared type of a column that is, or contains, CHAR(n) or VARCHAR(n). Spark
# reads such a column as a string, unless spark.sql.preserveCharVarcharTypeInfo is set.
DECLARED = "__CHAR_VARCHAR_TYPE_STRING"


def column_types(schema: StructType) -> dict[str, str]:
    """Return Spark's simple name for the type of each column. Every kind of text is `string`."""
    return {field.name: _plain(field.dataType).simpleString() for field in schema}


def padded_texts(schema: StructType) -> frozenset[tuple[str, str]]:
    """
    Return the columns of type CHAR(n), whose texts Spark fills up with blanks.

    Each item is the column and the part of it that is padded: `key` or `value` of a map, or "" for
    any other column. The result of an expression on a CHAR(n) column is a string, not CHAR(n). In
    an INSERT into a table of this format, the column itself is a string too.
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
    """Return a type with StringType in place of each kind of text."""
    if isinstance(kind, TEXTS):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType), kind.valueContainsNull)
    return kind


def current_batch() -> SparkBatch:
    """Return the query, run and batch of Spark to which the task that runs here belongs."""
    from sqlq_spark.wire.rows import SparkBatch  # noqa: PLC0415 - loads pyarrow

    context = TaskContext.get()
    if context is None:
        return SparkBatch()
    number = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return SparkBatch(
        query_id=query_id,
        # the job group is the runId of the query, unless a user's function sets another group
        run_id=context.getLocalProperty("spark.jobGroup.id"),
        number=None if number is None else int(number),
        query_name=find_query_name(context.getLocalProperty("spark.job.description"), query_id),
    )


# Spark's description of a job of a query: the query's name, its id, and more lines. Some versions
# separate the lines with <br/>.
_DESCRIPTION = re.compile(r"(?s)(.*)(?:\n|<br/>)id = (\S+?)(?:\n|<br/>)")
_LONGEST_NAME = 200  # characters


def find_query_name(description: str | None, query_id: str | None) -> str | None:
    """
    Return the name of Spark's query, from the description of its job.

    Returns None if the query has no name, or if a user's function has set another description.
    """
    found = _DESCRIPTION.match(description or "")
    if found is None or query_id is None or found[2] != query_id:
        return None
    return found[1].replace("\0", "").strip()[:_LONGEST_NAME] or None


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for the rows of a read."""
    fields = [StructField(field.name, _plain(field.dataType), field.nullable) for field in schema]
    return types.to_arrow_schema(StructType(fields), **_ZONE)


# The program in which Spark 4.1 and later plan a read with filters.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


def pushes_filters() -> bool:
    """
    Whether this process is the program in which Spark plans a read with filters.

    Spark starts that program only if `spark.sql.python.filterPushdown.enabled` is set. Without this
    setting Spark refuses any reader with `pushFilters`. So only that program may get such a reader.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN in sys.modules or getattr(program, "name", None) == _PUSHDOWN


@cache
def spare_modules() -> None:
    """
    Leave all objects that are alive out of this process's later garbage collections.

    Spark's worker collects all garbage after each task. It then looks at each object of each module
    that was imported, which takes 50 ms of CPU. So a task calls this when it has imported what it
    needs. An object that is not in a cycle is still freed when nothing refers to it.
    """
    gc.collect()
    gc.freeze()
