"""
Receive an audit queue into a Delta table, exactly once: which endpoint processed which message.

    spark-submit jobs/audit_to_delta.py --settings conf/audit_to_delta.toml
    sqlqueue-audit-to-delta --settings conf/audit_to_delta.toml

The table has one row for each message, partitioned by the UTC date of its processing. If the
headers have no such time, or one in the future or more than 90 days ago, the date is that of its
receipt. Start the job again to continue. After a kill it repeats the last batch, which Delta
recognises.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    ALL_BODIES,
    OneDatabaseSettings,
    StreamSettings,
    body_limits,
    days,
    pairs,
    setting,
)
from sqlq_spark.wire import headers as wire

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark import functions
    from sqlq_spark.functions.expressions import RETRY_ID
    from sqlq_spark.jobs import streams, table_writer

HEADERS = {
    "messageId": wire.MESSAGE_ID,
    "intent": wire.MESSAGE_INTENT,
    "originatingEndpoint": wire.ORIGINATING_ENDPOINT,
    "originatingMachine": wire.ORIGINATING_MACHINE,
    "processingMachine": wire.PROCESSING_MACHINE,
    "delayedRetries": wire.RETRIES,
    "immediateRetries": wire.FL_RETRIES,
}
# A message whose processing is longer ago has the date of its receipt. The time comes from a
# header, so without this limit an author could make a partition for each message.
OLDEST_DAYS = 90
ENDED = "unix_seconds(least(coalesce(processingEnded, sentAt), receivedAt))"
RECEIVED = "unix_seconds(receivedAt)"
# Names of earlier versions: new name → old name. A table that has the old column keeps it.
FORMER = {"sentAt": "timeSent", "receivedAt": "received"}
COMPUTED = {
    "messageId": "coalesce(messageId, id)",
    # How often the message was retried before. `retried` also counts retries by an operator.
    "delayedRetries": "try_cast(delayedRetries AS INT)",
    "immediateRetries": "try_cast(immediateRetries AS INT)",
    "retried": "retryId IS NOT NULL OR greatest(try_cast(delayedRetries AS INT), "
    "try_cast(immediateRetries AS INT), 0) > 0",
    "failed": "failedQueue IS NOT NULL OR exceptionType IS NOT NULL",
    "bodySize": "octet_length(body)",
    # The UTC date of the processing. The session's time zone does not matter. It is never in the
    # future.
    "date": f"date_from_unix_date(CAST(floor(if({RECEIVED} - {ENDED} <= {OLDEST_DAYS * 86_400}, "
    f"{ENDED}, {RECEIVED}) / 86400) AS INT))",
}


@dataclass(frozen=True, kw_only=True)
class AuditSettings(OneDatabaseSettings, StreamSettings):
    """The settings of this job."""

    queue: str = setting("The audit queue.", default="audit")
    table: str = setting("The Delta table: a name, or a path with a slash in it.")
    body_limit: int | None = setting(
        "Which bodies the table keeps: all, none, or those of at most a size, for example 64k. "
        "Default: all. A table that exists without the column body gets it only if this is set.",
        body_limits,
        default=None,
    )
    error_queue: str | None = setting(
        "The queue for poison messages. Default: they are written to the table.", default=None
    )
    retention_days: float | None = setting(
        "Delete rows that were processed and received more than so many days ago.",
        days,
        default=None,
    )
    source: dict[str, str] = setting("More options of the data source.", pairs)

    def read(self) -> dict[str, str]:
        """Return options of the read. Headers are a map, because many columns are made of them."""
        return self.raw_options(
            "source", self, queue=self.queue, errorQueue=self.error_queue, headersFormat="map"
        )

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows to write, as a stream."""
        limit = find_body_limit(spark, self)
        former = streams.former_columns(spark, self.table, FORMER)
        rows = audit_rows(streams.load_stream(spark, self.read()), limit)
        return rows.withColumnsRenamed(former)


def run(spark: SparkSession, settings: AuditSettings) -> dict[str, Any]:
    limit = find_body_limit(spark, settings)
    former = streams.former_columns(spark, settings.table, FORMER)

    def columns(received: DataFrame) -> DataFrame:
        return audit_rows(received, limit).withColumnsRenamed(former)

    return table_writer.keep(spark, settings, columns, delete_old, "date")


def find_body_limit(spark: SparkSession, settings: AuditSettings) -> int:
    """
    Return the size of the largest bodies to keep; 0 if the rows have no bodies.

    A table that exists without the column body does not get it without a setting. Then this prints
    which setting adds it.
    """
    if settings.body_limit is not None:
        return settings.body_limit
    columns = streams.table_columns(spark, settings.table)
    if not columns or "body" in columns:
        return ALL_BODIES
    runner.print_line(
        f"table {settings.table} has no column body, so the job keeps no bodies of the messages "
        'that it deletes from the queue. Set body_limit = "all" to add the column, or '
        'body_limit = "none" to keep none',
        sys.stderr,
    )
    return 0


def audit_rows(received: DataFrame, body_limit: int) -> DataFrame:
    """Return a read's rows with the table's columns. A column is null if its header is missing."""
    rows = received.select(
        *("id", "seq", "correlationId", "headers", "corruptHeaders", "body"),
        *(functions.header("headers", name).alias(column) for column, name in HEADERS.items()),
        functions.header("headers", RETRY_ID).alias("retryId"),
        functions.message_type("headers").alias("messageType"),
        functions.sent_at("headers").alias("sentAt"),
        functions.deliver_at("headers").alias("deliverAt"),
        F.current_timestamp().alias("receivedAt"),
        *functions.audit(),
        *functions.failure(),
    )
    made = rows.withColumns({name: F.expr(text) for name, text in COMPUTED.items()})
    made = made.drop("failedQueue", "exceptionType", "exceptionMessage", "timeOfFailure", "retryId")
    if body_limit == 0:
        return made.drop("body")
    if body_limit == ALL_BODIES:
        return made
    return made.withColumn("body", F.expr(f"if(bodySize <= {body_limit}, body, NULL)"))


def delete_old(spark: SparkSession, settings: AuditSettings) -> dict[str, int]:
    """
    Delete old rows in one commit, if the table exists.

    A row is old if its date and the time of its receipt are older than retentionDays. The date
    selects the partitions, but it comes from an endpoint's clock, which may be wrong.
    """
    if settings.retention_days is None or not streams.has_table(spark, settings.table):
        return {}
    end = datetime.now(UTC) - timedelta(days=settings.retention_days)
    former = streams.former_columns(spark, settings.table, FORMER)
    received = former.get("receivedAt", "receivedAt")
    moment = f"TIMESTAMP_LTZ '{end:%Y-%m-%d %H:%M:%S}Z'"
    old = f"date < DATE '{end:%Y-%m-%d}' AND {received} < {moment}"
    return {"deletedMessages": streams.delete_rows(spark, settings.table, old)}


main = runner.Job(__doc__, AuditSettings, run)  # the entry point of the wheel
