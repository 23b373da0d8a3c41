"""
Writes micro-batches into tables, exactly once, and what does not fit them into the error queue.

The table recognises a repeated write by a name and a number, and the sink of this package by its
dispatch log. So a job that is killed between these writes repeats the batch, and each of them
is done once. The names of the writes contain the rules that share a batch among them.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints
from sqlq_spark.jobs import acknowledgement, type_tables
from sqlq_spark.jobs.table_formats import FORMATS, Write
from sqlq_spark.jobs.typed.schema import UNFIT, Schema, failures, fitting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.jobs.queue_to_delta import Settings

log = logging.getLogger("sqlq_spark")

LONGEST_TYPE = 1000  # characters; a longer type gets no table of its own
FAILED = "failed"  # the write into the error queue


class Appender:
    """
    Writes a micro-batch into the table, then failures, then acknowledges.

    Without schemas the name of the write is that of Delta's own sink, so a checkpoint can be used
    with both. With Spark Connect the object is pickled, and runs in a process of the server.
    """

    def __init__(self, settings: Settings, schemas: Sequence[Schema] = ()) -> None:
        """Begin; `query` is the stream's id, which is read from the checkpoint later."""
        self.settings = settings
        self.schemas = schemas
        self.query = ""
        self.unacknowledged = 0  # retries; with Spark Connect only the server's copy counts them

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch. A replay has the same rows, and writes them to the same tables."""
        if not self.query:
            self.query = query_id(batch.sparkSession, self.settings.checkpoint)
        with persist(batch) as frame:
            good = fitting(frame, self.schemas)
            self.write_rows(good, number)
            self.fail(frame, number)
            if self.settings.acknowledge_retries:
                answers = self.settings.answers()
                self.unacknowledged += acknowledgement.acknowledge(good, answers)

    def write_rows(self, frame: DataFrame, number: int) -> None:
        """Write the rows of a batch."""
        name = self.application("table") if self.schemas else self.query
        schema = next(iter(self.schemas), None)  # of all messages
        self.append_once(frame, self.settings.table, name, number, schema)

    def fail(self, frame: DataFrame, number: int) -> None:
        """Send what does not fit its schema to the error queue, unless it was sent."""
        failed = failures(frame, self.schemas, json=self.settings.form != "map")
        if failed is not None:
            options = self.settings.failures(self.application(FAILED), number)
            failed.write.format("sqlqueue").mode("append").options(**options).save()

    def application(self, name: str) -> str:
        """The name of a write."""
        settings = self.settings
        return type_tables.application(
            self.query,
            name,
            settings.named,
            most=settings.most_types,
            form=settings.form,
            schemas=settings.ddl,
        )

    def append_once(
        self,
        rows: DataFrame,
        table: str,
        application: str,
        number: int,
        schema: Schema | None = None,
    ) -> None:
        """Append rows to a table, unless it has this write."""
        write = Write(
            table=table,
            partitions=self.settings.partitions,
            application=application,
            number=number,
        )
        FORMATS[self.settings.format](self.columns(rows, schema), write)

    def columns(self, rows: DataFrame, schema: Schema | None) -> DataFrame:
        """The columns of a table: those of a message, and those of its body."""
        own = [acknowledgement.COLUMN, UNFIT, *(each.name for each in self.schemas)]
        if self.settings.form == "body":
            own.append("headers")  # which only failures need
        kept = [each for each in rows.columns if each not in own]
        return rows.select(*kept, *(schema.into_columns() if schema else []))


class Splitter(Appender):
    """Writes a micro-batch into the tables of its types."""

    def write_rows(self, frame: DataFrame, number: int) -> None:
        """Write the rows of a batch into their tables."""
        tables = self.shares(frame)
        for name, types in tables.items():
            self.append(frame.where(F.col("messageType").isin(types)), name, number)
        chosen = [each for types in tables.values() for each in types]
        rest = frame.where(~F.coalesce(F.col("messageType").isin(chosen), F.lit(False)))  # noqa: FBT003
        if not rest.isEmpty():
            self.append(rest, type_tables.OTHER, number)

    def shares(self, frame: DataFrame) -> dict[str, list[str]]:
        """The types of a batch by their tables; all others go to `other`."""
        named, most = self.settings.named, self.settings.most_types
        mine = F.col("messageType").isin(list(named))
        found = (
            frame.where(F.length("messageType") <= LONGEST_TYPE)
            .groupBy("messageType")
            .count()
            .orderBy(mine.desc(), F.desc("count"), "messageType")
            .limit(most + len(named))
            .collect()
        )
        return type_tables.routes(((row[0], row[1]) for row in found), named, most=most)

    def append(self, rows: DataFrame, name: str, number: int) -> None:
        """Write the rows of one table, unless it has this write; its types have one schema."""
        named = self.settings.named
        mine = (each for each in self.schemas if name in {named[one] for one in each.types})
        table = type_tables.place(self.settings.table, name)
        self.append_once(rows, table, self.application(name), number, next(mine, None))


@contextmanager
def persist(batch: DataFrame) -> Iterator[DataFrame]:
    """Keep a batch in memory. If that is not allowed, as on serverless, each use reads it again."""
    try:
        batch = batch.persist()
        persisted = True
    except PySparkException as error:
        log.info("a micro-batch cannot be persisted and is read for each table: %s", error)
        persisted = False
    try:
        yield batch
    finally:
        if persisted:
            batch.unpersist()


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """The stream's id, which is the same for the life of its checkpoint."""
    return str(json.loads(checkpoints.text(spark, f"{checkpoint.rstrip('/')}/metadata"))["id"])
