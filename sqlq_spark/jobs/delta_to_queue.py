"""
Send the rows or changes of a Delta table to a queue, or publish them; exactly once.

    spark-submit jobs/delta_to_queue.py --settings conf/delta_to_queue.toml
    sqlqueue-delta-to-queue --settings conf/delta_to_queue.toml

Each row becomes a message. The next run sends the rows that were added since. The table `[columns]`
of the settings defines a message's columns as SQL expressions on the table's columns. They are
body, headers, id, correlationId, replyToAddress, timeToBeReceived, deliverAt, delay, queue and
topics. The default body is the whole row as JSON, with the names of the table's columns. A .NET
endpoint needs the names of its own properties: to_json(struct(total AS Total)). The default content
type is application/json. After a kill, start the job again: it sends nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.jobs.frame import main as job
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import one_of
from sqlq_spark.send.frame import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW = "to_json(struct(*))"
JSON = "application/json"
FEED = 'set changes = "feed" instead'
NOT_OURS = {
    "readchangefeed": FEED,
    "readchangedata": FEED,
    "ignorechanges": "it would send rows again that were already sent; use skipChangeCommits",
}
NEW_STATE = "_change_type <> 'update_preimage'"  # leaves out the state before an update


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    table: str = job.setting("The Delta table: a name, or a path, with a slash in it.")
    checkpoint: str = job.checkpoint()
    trigger: str = job.trigger()
    changes: str = job.setting(
        "rows: added rows, for a table that only grows. feed: the change feed, with the columns "
        "_change_type, _commit_version and _commit_timestamp, without update_preimage.",
        default="rows",
        read=one_of("rows", "feed"),
        expected="rows or feed",
    )
    where: str | None = job.setting(
        "Which rows to send, as an SQL condition, for example _change_type = 'insert'.",
        default=None,
    )
    queue: str | None = job.setting(
        "The queue of all rows; without it and without topics, the column queue.", default=None
    )
    topics: str | None = job.setting(
        "Publish to these topics instead: full type names, separated by commas.", default=None
    )
    columns: dict[str, str] = job.setting(
        "Columns of the message: NAME = SQL expression.", default={}
    )
    delta: dict[str, str] = job.setting(
        "Options of Delta's source: maxFilesPerTrigger, startingVersion, skipChangeCommits, …",
        default={},
    )
    sink: dict[str, str] = job.setting(
        "More options of the sink: messageType, contentType (default: application/json), …",
        default={},
    )

    def __post_init__(self) -> None:
        """Reject unknown message columns, and options that would send rows again."""
        for each in self.delta:
            if each.lower() in NOT_OURS:
                raise job.BadSettings(reason=f"setting {each} in [delta]: {NOT_OURS[each.lower()]}")
        for each in self.columns:
            if each not in WRITTEN:
                known = ", ".join(WRITTEN)
                raise job.BadSettings(
                    reason=f"setting {each} in [columns]: expected one of {known}"
                )

    def write(self) -> dict[str, str]:
        """Options of the sink."""
        given = {name.lower() for name in self.sink}
        content = {} if "contenttype" in given else {"contentType": JSON}
        return job.raw_options(
            SinkOptions, content | self.sink, **self.login, queue=self.queue, topics=self.topics
        )

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        return [SinkOptions.parse(self.write())]

    def tables(self) -> dict[str, bool]:
        """The table that is read, which must exist."""
        return {self.table: True}

    def frame(self, spark: SparkSession) -> DataFrame:
        """The messages to send."""
        return messages(rows(spark, self), self)


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Send new rows."""
    job.bind(spark, settings.checkpoint, SinkOptions.parse(settings.write()))
    writer = (
        settings.frame(spark)
        .writeStream.format("sqlqueue")
        .options(**settings.write())
        .option("checkpointLocation", settings.checkpoint)
    )
    return job.follow(job.with_trigger(writer, settings.trigger).start())


def rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """The table's rows, or changes, as a stream."""
    feed = settings.changes == "feed"
    reader = spark.readStream.options(**settings.delta)
    if feed:
        reader = reader.option("readChangeFeed", "true")
    found = job.read_table(reader, settings.table)
    if feed:
        found = found.where(NEW_STATE)
    return found if settings.where is None else found.where(settings.where)


def messages(found: DataFrame, settings: Settings) -> DataFrame:
    """The columns of messages, from those of the table."""
    made = {"body": ROW, **settings.columns}
    return found.select(*(F.expr(text).alias(name) for name, text in made.items()))


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
