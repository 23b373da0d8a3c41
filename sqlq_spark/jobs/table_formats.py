"""
Appends the rows of a micro-batch to a table, once: Delta or Iceberg.

Delta compares txnAppId and txnVersion when it commits. Iceberg has no such check for a batch write.
So the name and the number are written into the properties of the snapshot, and are looked up before
the next write, as by Iceberg's own streaming sink. The look finds the write as long as its
snapshot is in the table's history, and two drivers may both look before one writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sqlq_spark.jobs.frame.spark import is_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

# properties of a snapshot; Spark makes options lower case
APPLICATION, BATCH = "sqlqueue.application", "sqlqueue.batch"


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write of one micro-batch into one table."""

    table: str  # a name, or for Delta a path with a slash in it
    partitions: Sequence[str] = ()  # columns of a new table
    application: str
    number: int


class Append(Protocol):
    """Appends rows, unless the table has this write."""

    def __call__(self, rows: DataFrame, write: Write) -> None:
        """Do the write."""


def append_delta(rows: DataFrame, write: Write) -> None:
    """Append rows to a Delta table, which is created if it is missing."""
    writer = (
        rows.write.format("delta")
        .mode("append")
        .partitionBy(*write.partitions)
        .option("mergeSchema", "true")
        .option("txnAppId", write.application)
        .option("txnVersion", str(write.number))
    )
    if is_path(write.table):
        writer.save(write.table)
    else:
        writer.saveAsTable(write.table)


def append_iceberg(rows: DataFrame, write: Write) -> None:
    """Append rows to an Iceberg table, which is created if it is missing."""
    spark, table = rows.sparkSession, write.table
    if not spark.catalog.tableExists(table):
        create_iceberg(rows, write)
    spark.sql(f"REFRESH TABLE {table}")  # another session's cache may be older
    if last_batch(rows, write) >= write.number:
        return
    (
        rows.writeTo(table)
        .option("merge-schema", "true")
        .option("check-ordering", "false")
        .option(f"snapshot-property.{APPLICATION}", write.application)
        .option(f"snapshot-property.{BATCH}", str(write.number))
        .append()
    )


def create_iceberg(rows: DataFrame, write: Write) -> None:
    """Create an empty table that takes new columns."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    writer = rows.limit(0).writeTo(write.table).using("iceberg")
    writer = writer.tableProperty("write.spark.accept-any-schema", "true")
    columns = [F.col(each) for each in write.partitions]
    (writer.partitionedBy(*columns) if columns else writer).create()


def last_batch(rows: DataFrame, write: Write) -> int:
    """The number of the last write of this name in the table's history; -1 if there is none."""
    table = write.table
    found = rows.sparkSession.sql(
        f"SELECT max(CAST(s.summary['{BATCH}'] AS BIGINT)) FROM {table}.snapshots AS s "  # noqa: S608 - the table is the operator's
        f"JOIN {table}.history AS h ON h.snapshot_id = s.snapshot_id "
        f"WHERE h.is_current_ancestor AND s.summary['{APPLICATION}'] = :application",
        args={"application": write.application},
    ).collect()[0][0]
    return -1 if found is None else int(found)


FORMATS: dict[str, Append] = {"delta": append_delta, "iceberg": append_iceberg}
