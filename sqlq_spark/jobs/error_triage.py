"""
Collect an error queue in a Delta table of failures and one of groups; return failures.

    spark-submit jobs/error_triage.py --settings conf/error_triage.toml
    sqlqueue-error-triage --settings conf/error_triage.toml
    spark-submit jobs/error_triage.py --settings conf/error_triage.toml --mode retry --groups DIGEST

`collect` receives the error queue into the table, exactly once, with complete headers and bodies.
It then writes the table of groups again. A group has failures of one exception and one stack.

`retry` returns the failures of some groups or ids to the queues in which they failed, each exactly
once. It first writes a request into their rows. Then it sends them in one transaction, which also
enters the request into the database's dispatch log. Then it marks them as returned. After a kill,
the next `retry` finishes each open request. It does not send a request again that is in the
dispatch log, and reports one that this dispatch log does not have.

Failures that cannot be returned, and ids or groups that are not in the table, are reported, and the
exit code is 1. If a request's queue no longer exists, use `--give-up`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from sqlq_spark.jobs import failures, runner, streams
from sqlq_spark.jobs.settings import (
    BadSettings,
    DatabaseSettings,
    StreamSettings,
    days,
    pairs,
    raw_options,
    setting,
    texts,
)
from sqlq_spark.jobs.streams import delete_rows, has_table, is_path, read_table
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import count, one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Settings(DatabaseSettings, StreamSettings):
    """What this job takes."""

    error_queue: str = setting("The error queue.")
    table: str = setting("The Delta table of failures: a name, or a path with a slash in it.")
    groups_table: str | None = setting(
        "The Delta table of groups; default: the name of table with _groups.", default=None
    )
    mode: str = setting("collect or retry.", one_of("collect", "retry"), default="collect")
    groups: tuple[str, ...] = setting(
        "With mode retry: digests of groups, separated by commas.", texts, default=()
    )
    ids: tuple[str, ...] = setting(
        "With mode retry: ids of messages or failures, separated by commas.", texts, default=()
    )
    give_up: tuple[str, ...] = setting(
        "With mode retry: requests to give up, by the ids that the job reported. Failures that "
        "were not sent can be chosen again.",
        texts,
        default=(),
    )
    limit: int | None = setting(
        "With mode retry: return only so many of the chosen failures, the oldest. Those of a retry "
        "that was killed count.",
        count,
        default=None,
    )
    retention_days: float | None = setting(
        "Delete failures that were returned more than so many days ago. Others are never deleted.",
        days,
        default=None,
    )
    checkpoint: str | None = setting(  # type: ignore[assignment]  # mode retry needs none
        "With mode collect: the folder of the stream's checkpoint.", default=None
    )
    allowed_destinations: str | None = setting(
        "Tables of other owners to which messages may be returned, separated by commas; * and ? "
        "are wildcards.",
        default=None,
    )
    source: dict[str, str] = setting("Options of the data source.", pairs)
    sink: dict[str, str] = setting("Options of the sink.", pairs)

    @property
    def groups_into(self) -> str:
        return self.groups_table or f"{self.table.rstrip('/')}_groups"

    def read(self) -> dict[str, str]:
        return raw_options(
            SourceOptions,
            self.source,
            **self.login(),
            queue=self.error_queue,
            headersFormat="json",
            allowedDestinations=self.allowed_destinations,
        )

    def write(self, request: str | None = None) -> dict[str, str]:
        """Options of the sink; a request is sent only once."""
        return raw_options(
            SinkOptions,
            self.sink,
            **self.login(),
            asReceived="true",
            delivery="exactlyOnce",
            transactionMode=None,
            queue=None,
            topics=None,
            txnAppId=None if request is None else f"triage:{request}",
            txnVersion=None if request is None else "0",
            allowedDestinations=self.allowed_destinations,
        )

    def __post_init__(self) -> None:
        """Reject settings that would overwrite the failures by the groups."""
        if self.groups_into.rstrip("/") == self.table.rstrip("/"):
            raise BadSettings(
                reason=f"setting groups_table is {self.groups_table!r}: expected another table "
                "than table"
            )

    def options(self) -> list[SourceOptions | SinkOptions]:
        source = SourceOptions.parse(self.read())
        if self.mode == "retry":
            return [source, SinkOptions.parse(self.write())]
        if self.checkpoint is None:
            raise BadSettings(reason="setting checkpoint is missing: mode collect needs a folder")
        if self.groups or self.ids or self.give_up or self.limit:
            raise BadSettings(reason="settings groups, ids, give_up and limit are for --mode retry")
        return [source]

    def tables(self) -> dict[str, bool]:
        return {self.table: self.mode == "retry", self.groups_into: False}


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    return collect(spark, settings) if settings.mode == "collect" else retry(spark, settings)


def collect(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Receive the error queue into the table, and write the groups after each batch."""

    def write(received: DataFrame) -> StreamingQuery:
        writer = failures.failures(received).writeStream
        return streams.start(writer, settings, settings.table)

    class Tidy(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            if event.progress.numInputRows:
                tidy(spark, settings, totals)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            pass

    totals = Counter[str]()
    listener, runs_on = Tidy(), settings.trigger != "availableNow"
    if runs_on:
        spark.streams.addListener(listener)
    try:
        received = streams.receive(spark, settings, write)
    finally:
        if runs_on:
            spark.streams.removeListener(listener)
    groups = tidy(spark, settings, totals)
    return received | totals | {"groups": groups}


def retry(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Finish the requests of earlier runs, then return the chosen failures."""
    source = SourceOptions.parse(settings.read())
    work = failures.Retry(spark, settings.table, source, settings.write)
    freed = work.give_up(settings.give_up)
    resumed, waiting = work.resume()
    left = None if settings.limit is None else max(0, settings.limit - resumed)
    returned, staying = work.do(groups=settings.groups, ids=settings.ids, limit=left)
    missing = work.missing(groups=settings.groups, ids=settings.ids)
    totals = Counter[str]()
    tidy(spark, settings, totals)
    return {
        "returned": returned,
        "resumed": resumed,
        "freed": freed,
        "staying": waiting | staying,
        "missing": missing,
        **totals,
        "found": bool(waiting or staying or missing),
    }


def tidy(spark: SparkSession, settings: Settings, totals: Counter[str]) -> int:
    """
    Delete settled failures that are old, and overwrite the table of groups, each in one commit.

    A failure is settled once it is marked as returned. One that waits for a decision, or has a
    request that is not finished, stays.

    Returns:
        The number of groups.
    """
    if not has_table(spark, settings.table):
        return 0
    into = settings.groups_into

    def delete() -> int:
        old = f"returned < TIMESTAMP '{end:%Y-%m-%d %H:%M:%S}Z'"
        return delete_rows(spark, settings.table, old)

    if settings.retention_days is not None:
        end = datetime.now(UTC) - timedelta(days=settings.retention_days)
        totals["deletedFailures"] += failures.retry_conflicts(delete)

    def overwrite() -> None:
        found = failures.groups(read_table(spark.read, settings.table))
        writer = found.coalesce(1).write.format("delta").mode("overwrite")
        writer.save(into) if is_path(into) else writer.saveAsTable(into)

    failures.retry_conflicts(overwrite)
    return read_table(spark.read, into).count()


main = runner.Job(__doc__, Settings, run)  # the entry point of the wheel
