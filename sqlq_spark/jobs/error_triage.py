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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark.jobs.frame import main as job
from sqlq_spark.jobs.frame.spark import has_table, is_path
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import one_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    error_queue: str = job.setting("The error queue.")
    table: str = job.setting("The Delta table of failures: a name, or a path with a slash in it.")
    groups_table: str | None = job.setting(
        "The Delta table of groups; default: the name of table with _groups.", default=None
    )
    mode: str = job.setting(
        "collect or retry.",
        default="collect",
        read=one_of("collect", "retry"),
        expected="collect or retry",
    )
    groups: tuple[str, ...] = job.setting(
        "With mode retry: digests of groups, separated by commas.", default=()
    )
    ids: tuple[str, ...] = job.setting(
        "With mode retry: ids of messages or failures, separated by commas.", default=()
    )
    give_up: tuple[str, ...] = job.setting(
        "With mode retry: requests to give up, by the ids that the job reported. Failures that "
        "were not sent can be chosen again.",
        default=(),
    )
    checkpoint: str | None = job.setting(
        "With mode collect: the folder of the stream's checkpoint.", default=None
    )
    allowed_destinations: str | None = job.setting(
        "Tables of other owners to which messages may be returned, separated by commas; * and ? "
        "are wildcards.",
        default=None,
    )
    trigger: str = job.trigger()
    source: dict[str, str] = job.setting("Options of the data source.", default={})
    sink: dict[str, str] = job.setting("Options of the sink.", default={})

    @property
    def groups_into(self) -> str:
        """The table of groups."""
        return self.groups_table or f"{self.table.rstrip('/')}_groups"

    def read(self) -> dict[str, str]:
        """Options of the data source."""
        own = self.login | {"queue": self.error_queue, "headersFormat": "json"}
        own |= {"allowedDestinations": self.allowed_destinations}
        return job.raw_options(SourceOptions, self.source, **own)

    def write(self, request: str | None = None) -> dict[str, str]:
        """Options of the sink; a request is sent only once."""
        name, version = (None, None) if request is None else (f"triage:{request}", "0")
        own = {"asReceived": "true", "delivery": "exactlyOnce", "transactionMode": None}
        own |= {"queue": None, "topics": None, "txnAppId": name, "txnVersion": version}
        own |= {"allowedDestinations": self.allowed_destinations}
        return job.raw_options(SinkOptions, self.sink, **self.login, **own)

    def __post_init__(self) -> None:
        """Reject settings that would overwrite the failures by the groups."""
        if self.groups_into.rstrip("/") == self.table.rstrip("/"):
            raise job.BadSettings(
                reason=f"setting groups_table is {self.groups_table!r}: expected another table "
                "than table"
            )

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        source = SourceOptions.parse(self.read())
        if self.mode == "retry":
            return [source, SinkOptions.parse(self.write())]
        if self.checkpoint is None:
            raise job.BadSettings(
                reason="setting checkpoint is missing: mode collect needs a folder"
            )
        if self.groups or self.ids or self.give_up:
            raise job.BadSettings(reason="settings groups, ids and give_up are for --mode retry")
        return [source]

    def tables(self) -> dict[str, bool]:
        """What is written."""
        return {self.table: self.mode == "retry", self.groups_into: False}


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Collect or retry, as the mode says."""
    return collect(spark, settings) if settings.mode == "collect" else give_back(spark, settings)


# ---------------------------------------------------------------- collect


def collect(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Receive the error queue into the table, and write the groups."""
    from sqlq_spark.jobs.triage import failures as triage  # noqa: PLC0415 - needs pyspark, --help does not

    def start(read: dict[str, str]) -> StreamingQuery:
        frame = triage.failures(spark.readStream.format("sqlqueue").options(**read).load())
        writer = frame.writeStream.option("checkpointLocation", settings.checkpoint)
        return job.start_into(job.with_trigger(writer, settings.trigger), settings.table)

    listener = None if settings.trigger == "availableNow" else regrouping(spark, settings)
    try:
        read = job.spread(spark, settings.read())
        totals = job.receive(start, read, settings.trigger)
    finally:
        if listener is not None:
            spark.streams.removeListener(listener)
    return totals | {"groups": regroup(spark, settings)}


def regroup(spark: SparkSession, settings: Settings) -> int:
    """Overwrite the table of groups in one commit; returns the number of groups."""
    from sqlq_spark.jobs.triage import failures as triage  # noqa: PLC0415 - as above
    from sqlq_spark.jobs.triage.retry import retry_conflicts  # noqa: PLC0415

    if not has_table(spark, settings.table):
        return 0
    into = settings.groups_into

    def overwrite() -> None:
        found = triage.groups(job.read_table(spark.read, settings.table))
        writer = found.coalesce(1).write.format("delta").mode("overwrite")
        writer.save(into) if is_path(into) else writer.saveAsTable(into)

    retry_conflicts(overwrite)
    return job.read_table(spark.read, into).count()


def regrouping(spark: SparkSession, settings: Settings) -> Any:  # noqa: ANN401 - Spark's
    """Add a listener that writes the groups again after each batch of a stream."""
    from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415

    class Regroup(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            if event.progress.numInputRows:
                regroup(spark, settings)

        def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            pass

    made = Regroup()
    spark.streams.addListener(made)
    return made


# ---------------------------------------------------------------- retry


def give_back(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Finish the requests of earlier runs, then return the chosen failures."""
    from sqlq_spark.jobs.triage.retry import Retry  # noqa: PLC0415 - needs pyspark

    work = Retry(spark, settings.table, SourceOptions.parse(settings.read()), settings.write)
    asked = {"groups": settings.groups, "ids": settings.ids}
    freed = work.give_up(settings.give_up)
    resumed, waiting = work.resume()
    returned, staying = work.do(**asked)
    missing = work.missing(**asked)
    regroup(spark, settings)
    return {
        "returned": returned,
        "resumed": resumed,
        "freed": freed,
        "staying": waiting | staying,
        "missing": missing,
        "found": bool(waiting or staying or missing),
    }


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
