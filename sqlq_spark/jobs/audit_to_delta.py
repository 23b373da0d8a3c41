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
import threading
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
from sqlq_spark.jobs import runner, streams
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
from sqlq_spark.jobs.streams import delete_rows, has_table, parallelism, quote_table, set_conf
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.fields import duration, flag, size
from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

# A file of an unfinished batch is in no version of the table yet. If VACUUM removed it, its rows
# would be lost. No batch takes a day, even if it is frozen for some time.
LEAST_HOURS, MOST_HOURS = 24, 87_600  # of unused files
# Delta 4.4 ignores any time of VACUUM but 0, so the retention is set as a table property.
KEPT = "deletedFileRetentionDuration"
# the number of tasks in which VACUUM lists the table; 10,000 by default
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


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
        "How often to compact, delete and remove while a stream runs.",
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
    Receive into the table, and maintain it after the last batch, or while a stream runs.

    Returns:
        The totals, and `messagesPerSecond`, without the start of Spark and the upkeep.
    """
    upkeep = Upkeep(
        spark=spark,
        table=settings.table,
        optimize=settings.optimize,
        retention_days=settings.retention_days,
        vacuum_hours=settings.vacuum_hours,
    )

    def write(received: DataFrame) -> StreamingQuery:
        writer = audit_rows(received, settings.body_limit).writeStream.partitionBy("date")
        return streams.start(writer.option("mergeSchema", "true"), settings, settings.table)

    ends = settings.trigger == "availableNow"
    upkeep.prepare()
    begun = time.monotonic()
    with nullcontext() if ends else upkeep.beside(duration(1)(settings.upkeep_every)):
        totals = streams.receive(spark, settings, write)
    totals["messagesPerSecond"] = round(totals["messages"] / (time.monotonic() - begun), 1)
    if ends:
        upkeep.once()
    return {**totals, **upkeep.totals}


# ---------------------------------------------------------------- columns


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


# ---------------------------------------------------------------- upkeep


@dataclass(kw_only=True)
class Upkeep:
    """
    Maintains the table: compacts small files, deletes old rows, removes unused files.

    Each step is one Delta commit, or removes files that no version of the table needs. After a kill
    the table is complete, and the next round does the rest. The steps do not conflict with a stream
    that appends to the table.
    """

    spark: SparkSession
    table: str  # a name, or a path with a slash in it
    optimize: bool = False
    retention_days: float | None = None  # None: no rows are deleted
    vacuum_hours: float | None = None  # None: no files are removed
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    totals: Counter[str] = field(default_factory=Counter)
    failure: Exception | None = None

    def prepare(self) -> None:
        """
        Set how long files are kept, before a stream starts: a later change fails its batch.

        It becomes a property of the existing table, or of the table that this session creates.
        """
        if self.vacuum_hours is None:
            return
        made = f"spark.databricks.delta.properties.defaults.{KEPT}"
        if not set_conf(self.spark, made, self._retention):
            log.info("%s cannot be set here: a new table gets it after its first run", made)
        set_conf(self.spark, LISTING, str(4 * (parallelism(self.spark) or 1)))
        if has_table(self.spark, self.table):
            self._keep()

    @property
    def _retention(self) -> str:
        return f"interval {round((self.vacuum_hours or 0) * 3600)} seconds"

    def _keep(self) -> None:
        """Set how long the table keeps its files, if its property differs."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {quote_table(self.table)}").collect()
        if ("delta." + KEPT, self._retention) not in {(row.key, row.value) for row in rows}:
            change = f"SET TBLPROPERTIES ('delta.{KEPT}' = '{self._retention}')"
            self.spark.sql(f"ALTER TABLE {quote_table(self.table)} {change}")

    def once(self) -> None:
        """
        Do one round: delete rows, then compact files, then remove files.

        Does nothing if the table does not exist yet.
        """
        if not has_table(self.spark, self.table):
            return
        if self.retention_days is not None:
            self.totals["deletedMessages"] += self._delete(self.retention_days)
        if self.optimize:
            (row,) = self.spark.sql(f"OPTIMIZE {quote_table(self.table)}").collect()
            self.totals["packedFiles"] += row["metrics"]["numFilesRemoved"]
        if self.vacuum_hours is not None:
            self._keep()
            self.spark.sql(f"VACUUM {quote_table(self.table)}")
            self.totals["vacuums"] += 1

    @contextmanager
    def beside(self, seconds: float) -> Iterator[None]:
        """
        Do a round every so many seconds until the block ends.

        A failure is logged, and the next round tries again. If the last round failed, its error is
        raised at the end.
        """
        done = threading.Event()

        def rounds() -> None:
            while not done.wait(seconds):
                try:
                    self.once()
                    self.failure = None
                except Exception as error:  # noqa: BLE001 - kept, and raised below
                    log.warning("%s: upkeep failed and will be tried again: %s", self.table, error)
                    self.failure = error

        worker = threading.Thread(target=rounds, name="upkeep", daemon=True)
        worker.start()
        try:
            yield
        finally:
            done.set()
            worker.join()
        if self.failure is not None:
            raise self.failure

    def _delete(self, days: float) -> int:
        """
        Delete rows that are older, by their date and by their receipt; returns how many.

        The date selects the partitions. It comes from an endpoint's clock, which may be wrong, so
        a row also stays for this time after it was received.
        """
        end = self.clock() - timedelta(days=days)
        old = f"date < DATE '{end:%Y-%m-%d}' AND received < TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}Z'"
        return delete_rows(self.spark, self.table, old)


main = runner.Job(__doc__, Settings, run)  # the entry point of the wheel
