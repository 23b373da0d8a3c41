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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.functions import message_type, time_sent
from sqlq_spark.jobs import bodies, runner, streams, table_writer
from sqlq_spark.jobs.settings import (
    BadSettings,
    DatabaseSettings,
    StreamSettings,
    pairs,
    raw_options,
    setting,
    texts,
    unreadable,
)
from sqlq_spark.jobs.streams import is_path
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import count, flag, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = {"date": "date", "type": "typePartition"}
BODY_ONLY = ["id", "seq", "queue", "messageType", "sentAt", "receivedAt", "body"]
ADDED = ("messageType", "sentAt", "receivedAt", *PARTITIONS.values())


@dataclass(frozen=True, kw_only=True)
class Settings(DatabaseSettings, StreamSettings):
    """What this job takes."""

    queues: str = setting("The queues, separated by commas.")
    table: str = setting("The table: a name, or for Delta a path, with a slash in it.")
    format: str = setting("The format of the tables.", one_of("delta", "iceberg"), default="delta")
    form: str = setting(
        "map: headers as map<string,string>. json: headers as text, faster. body: no headers.",
        one_of("map", "json", "body"),
        default="map",
    )
    partition_by: tuple[str, ...] = setting(
        "Partition columns: date (of receivedAt) and type (a shortened name).", texts, default=()
    )
    error_queue: str | None = setting(
        "The queue for poison messages, and for bodies that do not fit the schema. Default: poison "
        "messages are written to the table.",
        default=None,
    )
    schema: str | None = setting(
        "The columns of a JSON body: Spark's DDL, or a file .ddl that has it. Without split.",
        default=None,
    )
    schemas: dict[str, str] = setting(
        "With split: full type name = its schema, as in the setting schema.", pairs
    )
    schema_prefix: str = setting(
        "The beginning of the names of these columns in the table.", default=""
    )
    split: bool = setting("Write a table for each message type.", flag, default=False)
    most_types: int = setting(
        "With split: how many types of a batch get a table. The others go to the table `other`.",
        count,
        default=50,
    )
    names: dict[str, str] = setting(
        "With split: full type name = table name, to choose the table's name.", pairs
    )
    acknowledge_retries: bool = setting(
        "Report to ServiceControl that messages that it returned are in the table.",
        flag,
        default=True,
    )
    source: dict[str, str] = setting(
        "More options of the data source, for example maxMessagesPerTrigger.", pairs
    )

    def __post_init__(self) -> None:
        """Read the files of schemas, and check settings that depend on each other."""
        ddl = {each: read_ddl(f"{each} in [schemas]", text) for each, text in self.schemas.items()}
        object.__setattr__(self, "schemas", ddl)  # frozen
        if self.schema is not None:
            object.__setattr__(self, "schema", read_ddl("schema", self.schema))
        for wrong, reason in self._conflicts():
            if wrong:
                raise BadSettings(reason=reason)

    def _conflicts(self) -> Iterator[tuple[object, str]]:
        """What is wrong if a condition is true, one after the other."""
        for each in self.partition_by:
            twice = self.partition_by.count(each) > 1
            reason = f"setting partition_by names {each!r}: expected date, type"
            yield each not in PARTITIONS or twice, reason
        for name in self.names.values():
            reason = f"setting names has {name!r}: expected letters, digits and underscores"
            yield not re.fullmatch(r"[A-Za-z0-9_]{1,100}", name), reason
        yield self.names and not self.split, "setting names needs split = true"
        reason = f"setting table is {self.table!r}: expected a name of an Iceberg catalog, "
        reason += "for example lake.shop.orders"
        yield self.format == "iceberg" and is_path(self.table), reason
        yield (
            self.schema is not None and self.split,
            "setting schema is for one table: with split use [schemas]",
        )
        yield (
            self.schemas and not self.split,
            "setting schemas needs split = true; without split use schema",
        )
        yield (
            self.ddl and self.error_queue is None,
            "setting error_queue is missing: messages whose body does not fit the schema go there",
        )
        yield (
            self.schema_prefix and not self.ddl,
            "setting schema_prefix needs schema or [schemas]",
        )
        types: dict[str, str] = {}  # the first of each table
        for each, name in sorted(self.named.items()):
            first, ddl = types.setdefault(name.lower(), each), self.schemas.get(each)
            reason = f"setting names gives {each} and {first} the table {name}: expected the same "
            yield ddl != self.schemas.get(first), reason + "schema for both"
            yield (
                ddl and name.lower() == table_writer.OTHER,
                f"setting names gives {each} the table {name}, which has no schema",
            )

    @property
    def ddl(self) -> dict[str, str]:
        """The schemas: full name of a message type, or "" for all messages → DDL."""
        return {**self.schemas} if self.schema is None else {"": self.schema}

    @property
    def named(self) -> dict[str, str]:
        """Full name of a message type → table name, for types that always get a table."""
        return {each: table_writer.table_name(each) for each in self.schemas} | self.names

    @property
    def partitions(self) -> list[str]:
        return [PARTITIONS[each] for each in self.partition_by]

    def read(self) -> dict[str, str]:
        return raw_options(
            SourceOptions,
            self.source,
            **self.login(),
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
        return raw_options(SinkOptions, known, **self.login(), **own)

    def options(self) -> list[SourceOptions | SinkOptions]:
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
        rows = add_columns(streams.load(spark, self.read()), self)
        writer = table_writer.Appender(self, schemas)
        return writer.columns(bodies.add_columns(rows, schemas), next(iter(schemas), None))


def read_ddl(name: str, given: str) -> str:
    """
    The DDL of a setting: its text, or the content of the file .ddl that it names.

    Raises:
        BadSettings: the file cannot be read, or there is no DDL.
    """
    text = given.strip()
    if text.endswith(".ddl"):
        try:
            text = Path(text).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable(f"setting {name}", given, error) from None
    if not text:
        raise BadSettings(reason=f"setting {name} is empty: expected DDL, for example number INT")
    return text


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    schemas = parse_schemas(spark, settings)
    appenders: list[table_writer.Appender] = []

    def write(received: DataFrame) -> StreamingQuery:
        writer = bodies.add_columns(add_columns(received, settings), schemas).writeStream
        own = settings.split or settings.acknowledge_retries or schemas
        if own or settings.format == "iceberg":
            appenders.append(table_writer.Appender(settings, schemas))
            return streams.start(writer.foreachBatch(appenders[-1].write), settings)
        writer = writer.option("mergeSchema", "true").partitionBy(*settings.partitions)
        return streams.start(writer, settings, settings.table)

    totals = streams.receive(spark, settings, write)
    connected = type(spark).__module__.startswith("pyspark.sql.connect")
    if settings.acknowledge_retries and not connected:
        totals["unacknowledged"] = sum(each.unacknowledged for each in appenders)
    return totals


def parse_schemas(spark: SparkSession, settings: Settings) -> list[bodies.Schema]:
    """Parse the schemas of bodies, whose columns must be no others of the table."""
    taken = [*SourceOptions.parse(settings.read()).columns, *ADDED]
    return bodies.parse(spark, settings.ddl, settings.schema_prefix, taken)


def add_columns(received: DataFrame, settings: Settings) -> DataFrame:
    """Add columns from the headers, the time of the receipt and the partition columns."""
    text = settings.form != "map"
    frame = received.select(
        "*",
        message_type("headers", json=text).alias("messageType"),
        time_sent("headers", json=text).alias("sentAt"),
        F.current_timestamp().alias("receivedAt"),  # the batch's time, which a replay repeats
    )
    kept = ["*"]
    if settings.form == "body":
        kept = [*BODY_ONLY, "headers"] if settings.ddl else BODY_ONLY
    answers = [table_writer.answer(json=text)] if settings.acknowledge_retries else []
    made = {"date": F.to_date("receivedAt"), "typePartition": type_partition()}
    partitions = [made[each].alias(each) for each in settings.partitions]
    return frame.select(*kept, *answers).select("*", *partitions)


def type_partition() -> Column:
    """A folder name of bounded length, made from the untrusted type name."""
    plain = F.regexp_replace("messageType", r"[^A-Za-z0-9._-]+", "_")
    return F.coalesce(F.right(plain, F.lit(table_writer.STEM)), F.lit(table_writer.OTHER))


main = runner.Job(__doc__, Settings, run)  # the entry point of the wheel
