"""
Receive an audit queue into a Delta table, exactly once: which endpoint processed which message.

    spark-submit jobs/audit_to_delta.py --settings conf/audit_to_delta.toml
    sqlqueue-audit-to-delta --settings conf/audit_to_delta.toml

The table has one row for each message, partitioned by the UTC date of its processing. If the
headers have no such time, or one in the future, the date is that of its receipt. Start the job
again to continue. After a kill it repeats the last batch, which Delta recognises.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    DatabaseSettings,
    StreamSettings,
    days,
    keep_text,
    number,
    pairs,
    raw_options,
    setting,
)
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.fields import duration, flag, size
from sqlq_spark.wire import headers as wire

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark import functions
    from sqlq_spark.functions.expressions import RETRY_ID
    from sqlq_spark.jobs import table_writer
    from sqlq_spark.jobs.streams import delete_rows, has_table, parallelism, quote_table, set_conf

if TYPE_CHECKING:
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

# A file of an unfinished batch is in no version of the table yet. If VACUUM removed it, its rows
# would be lost. No batch takes a day, even if it is frozen for some time.
LEAST_HOURS, MOST_HOURS = 24, 87_600  # of unused files
# Delta 4.4 ignores any time of VACUUM but 0, so the retention is set as a table property.
KEPT = "delta.deletedFileRetentionDuration"
# the number of tasks in which VACUUM lists the table; 10,000 by default
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"

HEADERS = {
    "messageId": wire.MESSAGE_ID,
    "intent": wire.MESSAGE_INTENT,
    "originatingEndpoint": wire.ORIGINATING_ENDPOINT,
    "originatingMachine": wire.ORIGINATING_MACHINE,
    "processingMachine": wire.PROCESSING_MACHINE,
    "delayedRetries": wire.RETRIES,
    "immediateRetries": wire.FL_RETRIES,
}
COMPUTED = {
    "messageId": "coalesce(messageId, id)",
    # earlier retries, by the endpoint or an operator
    "delayedRetries": "try_cast(delayedRetries AS INT)",
    "immediateRetries": "try_cast(immediateRetries AS INT)",
    "retried": "retryId IS NOT NULL OR greatest(try_cast(delayedRetries AS INT), "
    "try_cast(immediateRetries AS INT), 0) > 0",
    "failed": "failedQueue IS NOT NULL OR exceptionType IS NOT NULL",
    "bodySize": "octet_length(body)",
    # the UTC date of the processing, in any session time zone; never in the future
    "date": "date_from_unix_date(CAST(floor("
    "unix_seconds(least(coalesce(processingEnded, timeSent), received)) / 86400) AS INT))",
}


@dataclass(frozen=True, kw_only=True)
class Settings(DatabaseSettings, StreamSettings):
    """What this job takes."""

    queue: str = setting("The audit queue.", default="audit")
    table: str = setting("The Delta table: a name, or a path with a slash in it.")
    body_limit: str | None = setting(
        "Keep bodies of at most this size, for example 64k. By default no bodies are kept.",
        keep_text(size),
        default=None,
    )
    optimize: bool = setting("Compact small files at the end.", flag, default=False)
    retention_days: float | None = setting(
        "Delete rows at the end that were processed and received more than so many days ago.",
        days,
        default=None,
    )
    vacuum_hours: float | None = setting(
        "Remove files at the end that the table has not used for so many hours, for example 168; "
        "at least 24. The job sets it as a table property.",
        number(f"a number of hours from {LEAST_HOURS} to {MOST_HOURS}", LEAST_HOURS, MOST_HOURS),
        default=None,
    )
    upkeep_every: str = setting(
        "How often to compact, delete and remove while a stream runs, between two batches.",
        keep_text(duration(1, expected="a time, for example 6h")),
        default="6h",
    )
    source: dict[str, str] = setting("More options of the data source.", pairs)

    def read(self) -> dict[str, str]:
        """Options of the data source; headers are a map, because many columns read them."""
        own = {"queue": self.queue, "headersFormat": "map"}
        return raw_options(SourceOptions, self.source, **self.login(), **own)

    def options(self) -> list[SourceOptions | SinkOptions]:
        return [SourceOptions.parse(self.read())]

    def tables(self) -> dict[str, bool]:
        return {self.table: False}


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """
    Receive into the table, and maintain it after the last batch, or between batches of a stream.

    Returns:
        The totals, and `messagesPerSecond`, without the start of Spark and the upkeep. With Spark
        Connect they have no upkeep of a stream that runs on.
    """
    done, ends = Counter[str](), settings.trigger == "availableNow"
    begun = last = time.monotonic()

    def write(batch: DataFrame, query: str, number: int) -> None:
        nonlocal last
        table_writer.append_delta(batch, settings.table, query, number, ["date"])
        if ends or time.monotonic() - last < duration(1)(settings.upkeep_every):
            return
        try:
            maintain(batch.sparkSession, settings, done, datetime.now(UTC))
        except Exception as error:  # noqa: BLE001 - the stream goes on
            log.warning("%s: upkeep failed and will be tried again: %s", settings.table, error)
        last = time.monotonic()

    columns = partial(audit_rows, body_limit=settings.body_limit)
    totals = table_writer.receive(spark, settings, columns, write)
    totals["messagesPerSecond"] = round(totals["messages"] / (time.monotonic() - begun), 1)
    if ends:
        maintain(spark, settings, done, datetime.now(UTC))
    return {**totals, **done}


def audit_rows(received: DataFrame, body_limit: str | None) -> DataFrame:
    """The table's columns, from those of a read; a missing header is null."""
    rows = received.select(
        *("id", "seq", "correlationId", "headers", "corruptHeaders", "body"),
        *(functions.header("headers", name).alias(column) for column, name in HEADERS.items()),
        functions.header("headers", RETRY_ID).alias("retryId"),
        functions.message_type("headers").alias("messageType"),
        functions.time_sent("headers").alias("timeSent"),
        functions.deliver_at("headers").alias("deliverAt"),
        F.current_timestamp().alias("received"),
        *functions.audit(),
        *functions.failure(),
    )
    made = rows.withColumns({name: F.expr(text) for name, text in COMPUTED.items()})
    made = made.drop("failedQueue", "exceptionType", "exceptionMessage", "timeOfFailure", "retryId")
    if body_limit is None:
        return made.drop("body")
    return made.withColumn("body", F.expr(f"if(bodySize <= {size(body_limit)}, body, NULL)"))


def maintain(spark: SparkSession, settings: Settings, done: Counter[str], now: datetime) -> None:
    """
    Delete old rows, then compact small files, then remove unused files; count them in `done`.

    Each step is one Delta commit, or removes files that no version of the table needs. After a kill
    the table is complete, and the next round does the rest. Does nothing without a table.
    """
    table = quote_table(settings.table)
    if not has_table(spark, settings.table):
        return
    if settings.retention_days is not None:
        # The date selects the partitions. It comes from an endpoint's clock, which may be wrong,
        # so a row also stays for this time after it was received.
        end = now - timedelta(days=settings.retention_days)
        old = f"date < DATE '{end:%Y-%m-%d}' AND received < TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}Z'"
        done["deletedMessages"] += delete_rows(spark, settings.table, old)
    if settings.optimize:
        (row,) = spark.sql(f"OPTIMIZE {table}").collect()
        done["packedFiles"] += row["metrics"]["numFilesRemoved"]
    if settings.vacuum_hours is not None:
        kept = f"interval {round(settings.vacuum_hours * 3600)} seconds"
        if (KEPT, kept) not in spark.sql(f"SHOW TBLPROPERTIES {table}").collect():
            spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{KEPT}' = '{kept}')")
        set_conf(spark, LISTING, str(4 * (parallelism(spark) or 1)))
        spark.sql(f"VACUUM {table}")
        done["vacuums"] += 1


main = runner.Job(__doc__, Settings, run)  # the entry point of the wheel
