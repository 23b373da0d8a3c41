"""
Receive queues into a Delta or Iceberg table, exactly once.

    spark-submit jobs/queue_to_delta.py --settings conf/queue_to_delta.toml
    sqlqueue-queue-to-delta --settings conf/queue_to_delta.toml

The table has the columns of a read, and messageType (the first type of the header), sentAt and
receivedAt. With `schema` it also has the columns of the body, and messages whose body does not fit
go to the error queue. After a kill, start the job again on its checkpoint: no message is lost or
repeated.
With `split` each message type gets its own table, whose path or name begins with `table`.
The job reports to ServiceControl that messages that it returned are in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.functions import message_type, time_sent
from sqlq_spark.jobs import acknowledgement, type_tables
from sqlq_spark.jobs.frame import main as job
from sqlq_spark.jobs.table_writer import Appender, Splitter
from sqlq_spark.jobs.typed import schema as typed
from sqlq_spark.jobs.typed import settings as typed_settings
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import count, one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = {"date": "date", "type": "typePartition"}
BODY_ONLY = ["id", "seq", "queue", "messageType", "sentAt", "receivedAt", "body"]
ADDED = ("messageType", "sentAt", "receivedAt", *PARTITIONS.values())


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    queues: str = job.setting("The queues, separated by commas.")
    table: str = job.setting("The table: a name, or for Delta a path, with a slash in it.")
    format: str = job.setting(
        "The format of the tables.",
        default="delta",
        read=one_of("delta", "iceberg"),
        expected="delta or iceberg",
    )
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
        "The queue for poison messages, and for bodies that do not fit the schema. Default: poison "
        "messages are written to the table.",
        default=None,
    )
    schema: str | None = job.setting(
        "The columns of a JSON body: Spark's DDL, or a file .ddl that has it. Without split.",
        default=None,
    )
    schemas: dict[str, str] = job.setting(
        "With split: full type name = its schema, as in the setting schema.", default={}
    )
    schema_prefix: str = job.setting(
        "The beginning of the names of these columns in the table.", default=""
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
                raise job.BadSettings(
                    reason=f"setting partition_by names {each!r}: expected date, type"
                )
        for name in self.names.values():
            if not re.fullmatch(r"[A-Za-z0-9_]{1,100}", name):
                raise job.BadSettings(
                    reason=f"setting names has {name!r}: expected letters, digits and underscores"
                )
        if self.names and not self.split:
            raise job.BadSettings(reason="setting names needs split = true")
        if self.format == "iceberg" and job.is_path(self.table):
            raise job.BadSettings(
                reason=f"setting table is {self.table!r}: expected a name of an Iceberg catalog, "
                "for example lake.shop.orders"
            )
        typed_settings.check(self)

    @property
    def ddl(self) -> dict[str, str]:
        """The schemas: full name of a message type, or "" for all messages → DDL."""
        return {**self.schemas} if self.schema is None else {"": self.schema}

    @property
    def named(self) -> dict[str, str]:
        """Full name of a message type → table name, for types that always get a table."""
        return {each: type_tables.table_name(each) for each in self.schemas} | self.names

    @property
    def partitions(self) -> list[str]:
        """The columns by which tables are partitioned."""
        return [PARTITIONS[each] for each in self.partition_by]

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
        return SinkOptions.parse(self._write(delivery="atLeastOnce"))

    def failures(self, application: str, number: int) -> dict[str, str]:
        """Options of the sink of failures."""
        state = self.read().get("stateSchema")
        return self._write(
            queue=self.error_queue, stateSchema=state, txnAppId=application, txnVersion=str(number)
        )

    def _write(self, **own: str | None) -> dict[str, str]:
        shared = {"allowedDestinations", "queryTimeout"}
        known = {name: text for name, text in self.read().items() if name in shared}
        return job.raw_options(SinkOptions, known, **self.login, **own)

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        opened: list[SourceOptions | SinkOptions] = [SourceOptions.parse(self.read())]
        if self.ddl:
            opened.append(SinkOptions.parse(self.failures("check", 0)))
        if self.acknowledge_retries:
            opened.append(self.answers())
        return opened

    def tables(self) -> dict[str, bool]:
        """The table that is written; it need not exist."""
        return {} if self.split else {self.table: False}

    def needs_delta(self) -> bool:
        """Iceberg must come with the session."""
        return self.format == "delta"

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows to write; with split without the columns of bodies."""
        schemas = parse_schemas(spark, self)
        rows = read_rows(spark, self, self.read(), schemas)
        return Appender(self, schemas).columns(rows, next(iter(schemas), None))


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Receive into the table or the tables."""
    schemas = parse_schemas(spark, settings)
    appenders: list[Appender] = []

    def start(read: dict[str, str]) -> StreamingQuery:
        writer = read_rows(spark, settings, read, schemas).writeStream
        writer = writer.option("checkpointLocation", settings.checkpoint)
        writer = job.with_trigger(writer, settings.trigger)
        own = settings.split or settings.acknowledge_retries or schemas
        if own or settings.format == "iceberg":
            appenders.append((Splitter if settings.split else Appender)(settings, schemas))
            return writer.foreachBatch(appenders[-1].write).start()
        writer = writer.option("mergeSchema", "true").partitionBy(*settings.partitions)
        return job.start_into(writer, settings.table)

    totals = job.receive(start, job.spread(spark, settings.read()), settings.trigger)
    connected = type(spark).__module__.startswith("pyspark.sql.connect")
    if settings.acknowledge_retries and not connected:
        totals["unacknowledged"] = sum(each.unacknowledged for each in appenders)
    return totals


def parse_schemas(spark: SparkSession, settings: Settings) -> list[typed.Schema]:
    """Parse the schemas of bodies, whose columns must be no others of the table."""
    taken = [*SourceOptions.parse(settings.read()).columns, *ADDED]
    return typed_settings.parse(spark, settings.ddl, settings.schema_prefix, taken)


def read_rows(
    spark: SparkSession,
    settings: Settings,
    read: dict[str, str],
    schemas: Sequence[typed.Schema] = (),
) -> DataFrame:
    """The rows to write, from a read."""
    received = spark.readStream.format("sqlqueue").options(**read).load()
    return typed.add_columns(add_columns(received, settings), schemas)


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
        kept = [*BODY_ONLY, "headers"] if settings.ddl else BODY_ONLY
        frame = frame.select(*kept, *answers)
    elif answers:
        frame = frame.select("*", *answers)
    made = {"date": F.to_date("receivedAt"), "typePartition": type_partition()}
    return frame.select("*", *(made[each].alias(each) for each in settings.partitions))


def type_partition() -> Column:
    """A folder name of bounded length, made from the untrusted type name."""
    plain = F.regexp_replace("messageType", r"[^A-Za-z0-9._-]+", "_")
    return F.coalesce(F.right(plain, F.lit(type_tables.STEM)), F.lit(type_tables.OTHER))


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
