"""
Receive queues into a Delta table, exactly once.

    spark-submit jobs/queue_to_delta.py --settings conf/queue_to_delta.toml
    sqlqueue-queue-to-delta --settings conf/queue_to_delta.toml

The table has the columns of a read, and messageType (the first type of the header), sentAt and
receivedAt. After a kill, start the job again on its checkpoint: no message is lost or repeated.
With `split` each message type gets its own table, whose path or name begins with `table`.
The job reports to ServiceControl that messages that it returned are in the table.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.functions import message_type, time_sent
from sqlq_spark.jobs import acknowledgement, type_tables
from sqlq_spark.jobs.frame import files
from sqlq_spark.jobs.frame import main as job
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.parse import count, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("sqlq_spark")

PARTITIONS = {"date": "date", "type": "typePartition"}
BODY_ONLY = ["id", "seq", "queue", "messageType", "sentAt", "receivedAt", "body"]
LONGEST_TYPE = 1000  # characters; a longer type gets no table of its own


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    queues: str = job.setting("The queues, separated by commas.")
    table: str = job.setting("The Delta table: a name, or a path, with a slash in it.")
    checkpoint: str = job.checkpoint()
    trigger: str = job.trigger()
    form: str = job.setting(
        "map: headers as map<string,string>. json: headers as text, faster. body: no headers.",
        default="map",
        read=one_of("map", "json", "body"),
        expected="map, json or body",
    )
    partition_by: tuple[str, ...] = job.setting(
        "Partition columns: date (of receivedAt) and type (a shortened name).", default=()
    )
    error_queue: str | None = job.setting(
        "The queue for poison messages; by default they are written to the table.", default=None
    )
    split: bool = job.setting("Write a table for each message type.", default=False)
    most_types: int = job.setting(
        "With split: how many types of a batch get a table. The others go to the table `other`.",
        default=50,
        read=count,
        expected="a whole number of at least 1",
    )
    names: dict[str, str] = job.setting(
        "With split: full type name = table name, to choose the table's name.",
        default={},
    )
    acknowledge_retries: bool = job.setting(
        "Report to ServiceControl that messages that it returned are in the table.", default=True
    )
    source: dict[str, str] = job.setting(
        "More options of the data source, for example maxMessagesPerTrigger.", default={}
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        for each in self.partition_by:
            if each not in PARTITIONS or self.partition_by.count(each) > 1:
                raise job.BadSettings(f"setting partition_by names {each!r}: expected date, type")
        for name in self.names.values():
            if not re.fullmatch(r"[A-Za-z0-9_]{1,100}", name):
                raise job.BadSettings(
                    f"setting names has {name!r}: expected letters, digits and underscores"
                )
        if self.names and not self.split:
            raise job.BadSettings("setting names needs split = true")

    def read(self) -> dict[str, str]:
        """Options of the data source."""
        return job.raw_options(
            SourceOptions,
            self.source,
            **self.login,
            queues=self.queues,
            errorQueue=self.error_queue,
            headersFormat="map" if self.form == "map" else "json",
        )

    def answers(self) -> SinkOptions:
        """Options of the sink of acknowledgements, which needs no state tables."""
        shared = {"allowedDestinations", "queryTimeout"}
        known = {name: text for name, text in self.read().items() if name in shared}
        own = {"delivery": "atLeastOnce"}
        return SinkOptions.parse(job.raw_options(SinkOptions, known, **self.login, **own))

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        source = SourceOptions.parse(self.read())
        return [source, self.answers()] if self.acknowledge_retries else [source]

    def tables(self) -> dict[str, bool]:
        """The table that is written; it need not exist."""
        return {} if self.split else {self.table: False}

    def needs_delta(self) -> bool:
        """The job always writes Delta tables."""
        return True

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows to write."""
        return read_rows(spark, self, self.read()).drop(acknowledgement.COLUMN)


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Receive into the table or the tables."""

    def start(read: dict[str, str]) -> StreamingQuery:
        writer = read_rows(spark, settings, read).writeStream
        writer = writer.option("checkpointLocation", settings.checkpoint)
        writer = job.with_trigger(writer, settings.trigger)
        if settings.split or settings.acknowledge_retries:
            kind = Splitter if settings.split else Appender
            return writer.foreachBatch(kind(settings).write).start()
        writer = writer.option("mergeSchema", "true").partitionBy(*partitions(settings))
        return job.start_into(writer, settings.table)

    return job.receive(start, job.spread(spark, settings.read()), settings.trigger)


def read_rows(spark: SparkSession, settings: Settings, read: dict[str, str]) -> DataFrame:
    """The rows to write, from a read."""
    return add_columns(spark.readStream.format("sqlqueue").options(**read).load(), settings)


def partitions(settings: Settings) -> list[str]:
    """The columns by which tables are partitioned."""
    return [PARTITIONS[each] for each in settings.partition_by]


def add_columns(received: DataFrame, settings: Settings) -> DataFrame:
    """Add columns from the headers, the time of the receipt and the partition columns."""
    text = settings.form != "map"
    frame = received.select(
        "*",
        message_type("headers", json=text).alias("messageType"),
        time_sent("headers", json=text).alias("sentAt"),
        F.current_timestamp().alias("receivedAt"),  # the batch's time, which a replay repeats
    )
    answers = [acknowledgement.acknowledgement(json=text)] if settings.acknowledge_retries else []
    if settings.form == "body":
        frame = frame.select(*BODY_ONLY, *answers)
    elif answers:
        frame = frame.select("*", *answers)
    made = {"date": F.to_date("receivedAt"), "typePartition": type_partition()}
    return frame.select("*", *(made[each].alias(each) for each in partitions(settings)))


def type_partition() -> Column:
    """A folder name of bounded length, made from the untrusted type name."""
    plain = F.regexp_replace("messageType", r"[^A-Za-z0-9._-]+", "_")
    return F.coalesce(F.right(plain, F.lit(type_tables.STEM)), F.lit(type_tables.OTHER))


class Appender:
    """
    Writes a micro-batch into the table, then acknowledges; Delta recognises a repeated write.

    The name of the write is that of Delta's own sink, so a checkpoint can be used with both. With
    Spark Connect the object is pickled, and runs in a process of the server.
    """

    def __init__(self, settings: Settings) -> None:
        """Begin; `query` is the stream's id, which is read from the checkpoint later."""
        self.settings = settings
        self.query = ""

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch. A replay has the same rows, and writes them to the same tables."""
        if not self.query:
            self.query = query_id(batch.sparkSession, self.settings.checkpoint)
        with persist(batch) as frame:
            self.write_rows(frame, number)
            if self.settings.acknowledge_retries:
                acknowledgement.acknowledge(frame, self.settings.answers())

    def write_rows(self, frame: DataFrame, number: int) -> None:
        """Write the rows of a batch."""
        self.append_once(frame, self.settings.table, self.query, number)

    def append_once(self, rows: DataFrame, table: str, application: str, number: int) -> None:
        """Append rows to a table, unless Delta has this write."""
        writer = (
            rows.drop(acknowledgement.COLUMN)
            .write.format("delta")
            .mode("append")
            .partitionBy(*partitions(self.settings))
            .option("mergeSchema", "true")
            .option("txnAppId", application)
            .option("txnVersion", str(number))
        )
        if job.is_path(table):
            writer.save(table)
        else:
            writer.saveAsTable(table)


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
        named, most = self.settings.names, self.settings.most_types
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
        """Write the rows of one table, unless Delta has this write."""
        settings = self.settings
        table = type_tables.place(settings.table, name)
        application = type_tables.application(
            self.query,
            name,
            settings.names,
            most=settings.most_types,
            form=settings.form,
        )
        self.append_once(rows, table, application, number)


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
    return str(json.loads(files.text(spark, f"{checkpoint.rstrip('/')}/metadata"))["id"])


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
