"""
Receive an audit queue into a Delta table, exactly once: which endpoint processed which message.

    spark-submit jobs/audit_to_delta.py --settings conf/audit_to_delta.toml
    sqlqueue-audit-to-delta --settings conf/audit_to_delta.toml

The table has one row for each message, partitioned by the UTC date of its processing. If the
headers have no such time, or one in the future, the date is that of its receipt. Start the job
again to continue. After a kill it repeats the last batch, which Delta recognises.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.functions import (
    audit,
    deliver_at,
    failure,
    header,
    message_type,
    time_sent,
    wire_time,
)
from sqlq_spark.functions.failed import RETRY_ID
from sqlq_spark.jobs.frame import main as job
from sqlq_spark.jobs.frame.upkeep import Upkeep
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import duration, size
from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LEAST_HOURS, MOST_HOURS = 24, 87_600  # of unused files
MOST_DAYS = 36_500  # of rows


def bytes_of(text: str) -> str:
    """Check a size, and return its text."""
    size(text)
    return text


def days(text: str) -> float:
    """Read how long rows are kept."""
    if not 0 < float(text) <= MOST_DAYS:
        raise ValueError
    return float(text)


def hours(text: str) -> float:
    """
    Read how long unused files are kept.

    A file of an unfinished batch is in no version of the table yet. If VACUUM removed it, its rows
    would be lost. No batch takes a day, even if it is frozen for some time.
    """
    if not LEAST_HOURS <= float(text) <= MOST_HOURS:
        raise ValueError
    return float(text)


def period(text: str) -> str:
    """Check a time of at least a second, and return its text."""
    duration(1)(text)
    return text


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    queue: str = job.setting("The audit queue.", default="audit")
    table: str = job.setting("The Delta table: a name, or a path with a slash in it.")
    checkpoint: str = job.checkpoint()
    trigger: str = job.trigger()
    body_limit: str | None = job.setting(
        "Keep bodies of at most this size, for example 64k. By default no bodies are kept.",
        default=None,
        read=bytes_of,
        expected="a size, for example 64k",
    )
    optimize: bool = job.setting("Compact small files at the end.", default=False)
    retention_days: float | None = job.setting(
        "Delete rows at the end that were processed and received more than so many days ago.",
        default=None,
        read=days,
        expected=f"a number of days above 0, at most {MOST_DAYS}",
    )
    vacuum_hours: float | None = job.setting(
        "Remove files at the end that the table has not used for so many hours, for example 168; "
        "at least 24. The job sets it as a table property.",
        default=None,
        read=hours,
        expected=f"a number of hours from {LEAST_HOURS} to {MOST_HOURS}",
    )
    upkeep_every: str = job.setting(
        "How often to compact, delete and remove while a stream runs.",
        default="6h",
        read=period,
        expected="a time, for example 6h",
    )
    source: dict[str, str] = job.setting("More options of the data source.", default={})

    def read(self) -> dict[str, str]:
        """Options of the data source; headers are a map, because many columns read them."""
        own = {"queue": self.queue, "headersFormat": "map"}
        return job.raw_options(SourceOptions, self.source, **self.login, **own)

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        return [SourceOptions.parse(self.read())]

    def tables(self) -> dict[str, bool]:
        """What is written."""
        return {self.table: False}


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """
    Receive into the table, and maintain it after the last batch, or while a stream runs.

    Returns:
        The totals, and `messagesPerSecond`, without the start of Spark and the upkeep.
    """
    upkeep = Upkeep(
        spark=spark,
        table=settings.table,
        date="date",
        received="received",
        optimize=settings.optimize,
        retention_days=settings.retention_days,
        vacuum_hours=settings.vacuum_hours,
    )
    ends = settings.trigger == "availableNow"
    upkeep.prepare()
    begun = time.monotonic()
    with nullcontext() if ends else upkeep.beside(duration(1)(settings.upkeep_every)):
        read = job.spread(spark, settings.read())
        begin = partial(start, spark, settings)
        totals: dict[str, Any] = {**job.receive(begin, read, settings.trigger)}
    totals["messagesPerSecond"] = round(totals["messages"] / (time.monotonic() - begun), 1)
    if ends:
        upkeep.once()
    return {**totals, **upkeep.totals}


def start(spark: SparkSession, settings: Settings, read: dict[str, str]) -> StreamingQuery:
    """Start the stream into the table."""
    received = spark.readStream.format("sqlqueue").options(**read).load()
    writer = audit_rows(received, settings.body_limit).writeStream.partitionBy("date")
    writer = writer.option("mergeSchema", "true")
    writer = writer.option("checkpointLocation", settings.checkpoint)
    return job.start_into(job.with_trigger(writer, settings.trigger), settings.table)


def audit_rows(received: DataFrame, body_limit: str | None) -> DataFrame:
    """The table's columns, from those of a read; a missing header is null."""
    return received.withColumn("received", F.current_timestamp()).select(
        "id",
        "seq",
        *processing("headers"),
        "correlationId",
        *flags("headers"),
        "headers",
        "corruptHeaders",
        *bodies(body_limit),
        "received",
        day("headers").alias("date"),
    )


def processing(headers: str) -> list[Column]:
    """Columns of the message, its sender, and who processed it, when and how long."""
    texts = {
        "intent": wire.MESSAGE_INTENT,
        "originatingEndpoint": wire.ORIGINATING_ENDPOINT,
        "originatingMachine": wire.ORIGINATING_MACHINE,
        "processingMachine": wire.PROCESSING_MACHINE,
    }
    return [
        F.coalesce(header(headers, wire.MESSAGE_ID), "id").alias("messageId"),
        message_type(headers).alias("messageType"),
        *(header(headers, name).alias(column) for column, name in texts.items()),
        time_sent(headers).alias("timeSent"),
        deliver_at(headers).alias("deliverAt"),
        *audit(headers),
    ]


def flags(headers: str) -> list[Column]:
    """Columns of earlier retries, by the endpoint or an operator, and whether it failed."""
    delayed, immediate = (
        header(headers, name).try_cast("int") for name in (wire.RETRIES, wire.FL_RETRIES)
    )
    again = header(headers, RETRY_ID).isNotNull()
    queue, exception, *_ = failure(headers)
    return [
        delayed.alias("delayedRetries"),
        immediate.alias("immediateRetries"),
        (again | (F.greatest(delayed, immediate, F.lit(0)) > 0)).alias("retried"),
        (queue.isNotNull() | exception.isNotNull()).alias("failed"),
    ]


def bodies(limit: str | None) -> list[Column]:
    """The body's size, and the body itself, if `limit` is set and the body is not larger."""
    length = F.octet_length("body")
    if limit is None:
        return [length.alias("bodySize")]
    return [
        length.alias("bodySize"),
        F.when(length <= size(limit), F.col("body")).alias("body"),
    ]


def day(headers: str) -> Column:
    """The UTC date of the processing, in any session time zone; never in the future."""
    ended = wire_time(header(headers, wire.PROCESSING_ENDED))
    moment = F.least(F.coalesce(ended, time_sent(headers)), F.col("received"))
    return F.date_from_unix_date(F.floor(F.unix_seconds(moment) / 86_400).cast("int"))


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
