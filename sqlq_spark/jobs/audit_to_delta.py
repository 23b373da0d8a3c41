"""
Receive an audit queue into a Delta table, exactly once: which endpoint processed which message.

    spark-submit jobs/audit_to_delta.py --settings conf/audit_to_delta.toml
    sqlqueue-audit-to-delta --settings conf/audit_to_delta.toml

The table has one row for each message, partitioned by the UTC date of its processing. If the
headers have no such time, or one in the future, the date is that of its receipt. Start the job
again to continue. After a kill it repeats the last batch, which Delta recognises.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    OneDatabaseSettings,
    StreamSettings,
    days,
    pairs,
    setting,
)
from sqlq_spark.options.fields import size
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
    "date": "date_from_unix_date(CAST(floor("
    "unix_seconds(least(coalesce(processingEnded, timeSent), received)) / 86400) AS INT))",
}


@dataclass(frozen=True, kw_only=True)
class AuditSettings(OneDatabaseSettings, StreamSettings):
    """The settings of this job."""

    queue: str = setting("The audit queue.", default="audit")
    table: str = setting("The Delta table: a name, or a path with a slash in it.")
    body_limit: int | None = setting(
        "Keep bodies of at most this size, for example 64k. By default no bodies are kept.",
        size,
        default=None,
    )
    retention_days: float | None = setting(
        "Delete rows that were processed and received more than so many days ago.",
        days,
        default=None,
    )
    source: dict[str, str] = setting("More options of the data source.", pairs)

    def read(self) -> dict[str, str]:
        """Return options of the read. Headers are a map, because many columns are made of them."""
        return self.raw_options("source", self, queue=self.queue, headersFormat="map")


def run(spark: SparkSession, settings: AuditSettings) -> dict[str, Any]:
    columns = partial(audit_rows, body_limit=settings.body_limit)
    return table_writer.keep(spark, settings, columns, delete_old, "date")


def audit_rows(received: DataFrame, body_limit: int | None) -> DataFrame:
    """Return a read's rows with the table's columns. A column is null if its header is missing."""
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
    old = f"date < DATE '{end:%Y-%m-%d}' AND received < TIMESTAMP_LTZ '{end:%Y-%m-%d %H:%M:%S}Z'"
    return {"deletedMessages": streams.delete_rows(spark, settings.table, old)}


main = runner.Job(__doc__, AuditSettings, run)  # the entry point of the wheel
