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

import hashlib
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlq_spark import checkpoints
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    LOGIN_OPTIONS,
    BadSettings,
    OneDatabaseSettings,
    Opened,
    StreamSettings,
    pairs,
    setting,
)
from sqlq_spark.options import SinkOptions
from sqlq_spark.options.fields import count, flag, one_of

with suppress(ImportError):  # the runner says what to install
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark import functions
    from sqlq_spark.jobs import bodies, streams, table_writer
    from sqlq_spark.jobs.streams import is_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger("sqlq_spark")

# Options that the read and the sinks have in common.
SHARED = (*LOGIN_OPTIONS, "trustedOwners", "allowedDestinations", "queryTimeout", "stateSchema")
# A message type with a longer name gets no table of its own.
LONGEST_TYPE = 1000  # characters
OTHER = "other"  # the table of the types that have no table of their own
STEM = 60  # how many last characters of a type's name are part of its table's name
# How many types of a batch get a table of their own, besides the types that the settings name. How
# many get one in all is the setting most_tables.
MOST_TYPES = 50
REASONS_SHOWN = 5  # how many reasons the warning of failed messages names


@dataclass(frozen=True, kw_only=True)
class QueueToDeltaSettings(OneDatabaseSettings, StreamSettings):
    """The settings of this job."""

    queues: str = setting("The queues, separated by commas.")
    table: str = setting("The table: a name, or for Delta a path, with a slash in it.")
    format: str = setting("The format of the tables.", one_of("delta", "iceberg"), default="delta")
    headers_format: str = setting(
        "map: headers as map<string,string>. json: headers as text, faster.",
        one_of("map", "json"),
        default="map",
        former="form",
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
    split: bool = setting("Write a table for each message type.", flag, default=False)
    most_tables: int = setting(
        "With split: how many types, besides those of names and schemas, get a table. Later types "
        "go to the table other.",
        count,
        default=200,
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
        """Check settings that depend on each other."""
        split, ddl = self.split, self.ddl
        wrong = {  # the reason → whether it holds
            "settings names and schemas need split = true; without split use schema": (
                (self.names or self.schemas) and not split
            ),
            f"setting table is {self.table!r}: expected a name of an Iceberg catalog, for example "
            "lake.shop.orders": self.format == "iceberg" and is_path(self.table),
            "setting schema is for one table: with split use [schemas]": self.schema and split,
            "setting error_queue is missing: messages whose body does not fit the schema go "
            "there": ddl and self.error_queue is None,
        }
        types = {OTHER: "other types"}  # table name → the first type with this table
        for each, name in sorted(self.named.items()):
            first = types.setdefault(name.lower(), each)
            reason = f"setting names gives {each} and {first} the table {name}: expected the same "
            wrong[reason + "schema for both"] = ddl.get(each) != ddl.get(first)
        if reasons := [reason for reason, holds in wrong.items() if holds]:
            raise BadSettings(reason="\n".join(reasons))

    @cached_property
    def ddl(self) -> dict[str, str]:
        """Return the schemas: full name of a message type, or "" for all messages → DDL."""
        given = self.schemas if self.schema is None else {"": self.schema}
        return {message_type: read_ddl(message_type, text) for message_type, text in given.items()}

    @property
    def named(self) -> dict[str, str]:
        """Return the types that always get a table: full name of the type → table name."""
        return {
            message_type: table_name(message_type) for message_type in self.schemas
        } | self.names

    @property
    def json(self) -> bool:
        """Return whether the headers column is JSON text, not a map."""
        return self.headers_format == "json"

    def read(self) -> dict[str, str]:
        return self.raw_options(
            "source",
            self,
            queues=self.queues,
            errorQueue=self.error_queue,
            headersFormat=self.headers_format,
        )

    def failures(self, application: str, number: int) -> dict[str, str]:
        """Return options of the sink that sends messages with unfit bodies to the error queue."""
        own = {"queue": str(self.error_queue), "txnAppId": application, "txnVersion": str(number)}
        return self.shared | own

    @property
    def shared(self) -> dict[str, str]:
        return {name: text for name, text in self.read().items() if name in SHARED}

    def answers(self) -> SinkOptions:
        """Return options of the sink that answers ServiceControl. No state tables are needed."""
        return SinkOptions.parse({**self.shared, "delivery": "atLeastOnce"})

    def options(self) -> Opened:
        opened = super().options()
        if self.ddl:
            opened.append(SinkOptions.parse(self.failures("check", 0)))
        return [*opened, self.answers()] if self.acknowledge_retries else opened

    def needs_delta(self) -> bool:
        """Return whether Spark must have Delta. Iceberg must come with the session."""
        return self.format == "delta"

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows to write, as a stream. With split they lack the columns of bodies."""
        appender = Appender(self)
        rows = appender.add_columns(streams.load_stream(spark, self.read()))
        return appender.columns(rows, appender.schema)


def read_ddl(message_type: str, given: str) -> str:
    """
    Return the DDL of a setting: the setting's text or, if it names a file .ddl, the file's content.

    Raises:
        BadSettings: the file cannot be read.
    """
    if not given.strip().endswith(".ddl"):
        return given
    try:
        return Path(given.strip()).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        name = f"{message_type} in [schemas]" if message_type else "schema"
        reason = f"setting {name} is {given!r}: expected a file to read ({error})"
        raise BadSettings(reason=reason) from None


def run(spark: SparkSession, settings: QueueToDeltaSettings) -> dict[str, Any]:
    appender = Appender(settings)
    totals = table_writer.receive_into(spark, settings, appender.add_columns, appender.write)
    if settings.ddl and "failed" in totals:
        if appender.has_written or not totals["batches"]:
            totals["failed"] += appender.failed
        else:
            # With Spark Connect a process of the server writes, so its count is not known here.
            del totals["failed"]
    return totals


class Appender:
    """
    Writes a micro-batch into the table or tables, then failures, then acknowledges.

    A job that was killed between these writes repeats the whole batch, but each write is done only
    once. A table recognises a repeated write by a name and a number, and the sink of this package
    by its dispatch log. The name of a write contains the rules that decide which rows go to which
    table: see `application`.
    """

    def __init__(self, settings: QueueToDeltaSettings) -> None:
        self.settings = settings
        self.schemas = list[bodies.Schema]()
        # message type → the first batch that wrote it into a table of its own
        self.batches: dict[str, int] | None = None
        self.schema: bodies.Schema | None = None  # the schema of all messages, if there is one
        self.has_written = False  # whether batches are written in this process
        self.failed = 0  # how many messages this process sent to the error queue

    def add_columns(self, received: DataFrame) -> DataFrame:
        """
        Add columns from the headers, the time of the receipt, and parsed bodies.

        Raises:
            BadSettings: a schema is not valid.
        """
        settings = self.settings
        frame = received.select(
            "*",
            functions.message_type("headers", json=settings.json).alias("messageType"),
            functions.sent_at("headers", json=settings.json).alias("sentAt"),
            F.current_timestamp().alias(
                "receivedAt"
            ),  # the time of the batch; a replay of the batch has the same time
        )
        self.schemas = bodies.parse(frame.sparkSession, settings.ddl, frame.columns)
        self.schema = self.schemas[0] if settings.schema else None
        return bodies.add_columns(frame, self.schemas)

    def columns(self, rows: DataFrame, schema: bodies.Schema | None) -> DataFrame:
        """Return the rows with a table's columns: those of a message, then those of its body."""
        added = {bodies.UNFIT_BODY, *(parsed.name for parsed in self.schemas)}
        columns = [F.col(name) for name in rows.columns if name not in added]
        if schema is not None:
            body = F.col(schema.name)[bodies.BODY]
            columns += [body[field].alias(name) for field, name in schema.names.items()]
        return rows.select(*columns)

    def write(self, batch: DataFrame, query: str, number: int) -> None:
        """Write a batch. A replay has the same rows, and writes them to the same tables."""
        settings = self.settings
        self.has_written = True
        iceberg = settings.format == "iceberg"
        append = table_writer.append_iceberg if iceberg else table_writer.append_delta
        with suppress(PySparkException):  # serverless refuses persist: the batch is read again
            batch.persist()
        try:
            good, unfit = (
                batch.where(f"{bodies.UNFIT_BODY} IS {null}") for null in ("NULL", "NOT NULL")
            )
            for name, rows, schema in self.shares(good, number):
                table = place_of(settings.table, name) if settings.split else settings.table
                by = application(query, name, settings)
                append(self.columns(rows, schema), table, by, number)
            if self.schemas and not unfit.isEmpty():
                reason = F.coalesce(*map(bodies.reason, self.schemas))
                failed = unfit.select(*functions.fail(bodies.EXCEPTION, reason, json=settings.json))
                options = settings.failures(application(query, "failed", settings), number)
                failed.write.format("sqlqueue").mode("append").options(**options).save()
                self.report_failed(unfit.groupBy(reason.alias("reason")).count(), number)
            if settings.acknowledge_retries:
                table_writer.report_retries(good, settings.answers(), json=settings.json)
        finally:
            with suppress(PySparkException):
                batch.unpersist()

    def report_failed(self, reasons: DataFrame, number: int) -> None:
        """Count and log the messages of a batch that went to the error queue."""
        found = reasons.orderBy(F.desc("count"), "reason").limit(REASONS_SHOWN).collect()
        failed = reasons.agg(F.sum("count")).collect()[0][0]
        self.failed += failed
        log.warning(
            "batch %d: %d messages whose body does not fit the schema went to %s (%s)",
            number,
            failed,
            self.settings.error_queue,
            "; ".join(f"{row['reason']}: {row['count']}" for row in found),
        )

    def shares(
        self, rows: DataFrame, number: int
    ) -> Iterator[tuple[str, DataFrame, bodies.Schema | None]]:
        """
        Divide the rows of a batch among tables, by the message type.

        The most frequent types have a table of their own, until there are most_tables. Yields
        each table's name, its rows, and the schema of its bodies or None.
        """
        if not self.settings.split:
            yield "table", rows, self.schema
            return
        kind, named = F.col("messageType"), self.settings.named
        frequent = (
            rows.where((F.length(kind) <= LONGEST_TYPE) & ~kind.isin(list(named)))
            .groupBy(kind)
            .count()
            .orderBy(F.desc("count"), kind)
            .limit(MOST_TYPES)
            .collect()
        )
        chosen = self.choose_types(rows.sparkSession, [each for each, _ in frequent], number)
        tables = {"": OTHER} | {each: table_name(each) for each in chosen} | named
        found = F.create_map(*map(F.lit, chain(*tables.items())))[kind]
        table = F.coalesce(found, F.lit(OTHER))
        schemas = {tables[each]: schema for schema in self.schemas for each in schema.types}
        for (name,) in rows.select(table).distinct().collect():
            yield name, rows.where(table == name), schemas.get(name)

    def choose_types(self, spark: SparkSession, frequent: Sequence[str], number: int) -> list[str]:
        """
        Choose the types of a batch that have a table of their own.

        The types that have a table are noted in the checkpoint before their first rows are written.
        A replay reads only the notes of earlier batches, so it chooses the same types.
        """
        folder = f"{self.settings.checkpoint.rstrip('/')}/sqlqueue_tables"
        if self.batches is None:
            self.batches = read_notes(spark, folder)
        known = {each for each, first in self.batches.items() if first < number}
        room = max(0, self.settings.most_tables - len(known))
        added = [each for each in frequent if each not in known][:room]
        if added:
            text = json.dumps({"batch": number, "types": added})
            note = spark.range(1).select(F.lit(text).alias("value")).coalesce(1)
            note.write.mode("overwrite").text(f"{folder}/batch={number}")
            self.batches |= dict.fromkeys(added, number)
        return [each for each in frequent if each in known or each in added]


def read_notes(spark: SparkSession, folder: str) -> dict[str, int]:
    """Return the types that have a table, each with the first batch that wrote into it."""
    notes = map(json.loads, checkpoints.read_files(spark, folder, "text", "value") or ())
    return {message_type: note["batch"] for note in notes for message_type in note["types"]}


def table_name(message_type: str) -> str:
    """
    Return a table's name for a type: `shop_orderplaced_5f1c0a9e` for `Shop.OrderPlaced`.

    The name of a type is untrusted. With a digest of the type, `Shop.Placed`, `shop.placed` and
    `Shop_Placed` get different tables, even if table names are not case-sensitive. A type always
    gets the same table name. It has at most 69 letters, digits and underscores, and is never
    `other`.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", message_type.lower()).strip("_")[-STEM:].strip("_")
    digest = hashlib.sha256(message_type.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem}_{digest}" if stem else digest


def place_of(table: str, name: str) -> str:
    """Return a type's table: a folder below the path `table`, or the name `table` and a suffix."""
    return f"{table.rstrip('/')}/{name}" if is_path(table) else f"{table}_{name}"


def application(query: str, name: str, settings: QueueToDeltaSettings) -> str:
    """
    Return the txnAppId by which Delta recognises a write: query, table, and rules.

    The rules decide which rows go to which table. A user may change them between a kill and the
    replay of a batch. Then the write gets another name, and is done again. Messages may be repeated
    in another table, but none is lost. The rules are:

    - `headers_format`, because a poison message has a type only if headers are text.
    - The schemas, because they decide whether a message is written or fails.

    With one table and no schemas the name is that of Delta's own sink, so that a checkpoint can be
    used with both.
    """
    if not settings.split and not settings.ddl:
        return query
    rules = [
        sorted(settings.named.items()),
        MOST_TYPES,
        settings.most_tables,
        settings.headers_format,
    ]
    if settings.ddl:
        rules.append(sorted(settings.ddl.items()))
    return f"{query}:{name}:{hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16]}"


main = runner.Job(__doc__, QueueToDeltaSettings, run)  # the entry point of the wheel
