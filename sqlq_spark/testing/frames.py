"""Frames with the columns of a read, made of messages and no database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sqlq_spark.options import SourceOptions
from sqlq_spark.spark_api import to_arrow_schema
from sqlq_spark.testing.messages import as_message, table_rows
from sqlq_spark.wire.header_columns import to_read_columns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

NOWHERE = "postgresql://user@host/database"  # nothing connects


def frame(
    spark: SparkSession, messages: Iterable[object], *, queue: str = "Shop.Orders", **options: str
) -> DataFrame:
    """
    Return a frame as a read of a queue gives it, for a function that `foreachBatch` calls.

    Args:
        spark: a session, classic or Spark Connect.
        messages: each a Message, or the body of one. Those without a seq are numbered from 1.
        queue: for the column `queue`.
        options: of a read; `headersFormat` changes the columns.

    Raises:
        BadOption: an option's value cannot be used.
        UnknownOption: an option's name is a likely typo.
    """
    read = SourceOptions.parse({"url": NOWHERE, "queue": queue, **options})
    ddl = ", ".join(f"{name} {kind}" for name, kind in read.columns.items())
    empty = spark.createDataFrame([], ddl)
    schema = empty.schema
    arrow = to_arrow_schema(schema)
    rows = table_rows(map(as_message, messages))
    found = [to_read_columns(each, arrow, queue=read.names[0]) for each in rows.to_batches()]
    if not found:
        return empty  # Spark takes no Arrow table without a batch
    return spark.createDataFrame(pa.Table.from_batches(found, schema=arrow), schema=schema)
