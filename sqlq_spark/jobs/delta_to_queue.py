"""
A Delta table, or its change feed, → a queue, or who is subscribed; exactly once.

    spark-submit jobs/delta_to_queue.py --settings conf/delta_to_queue.toml
    sqlqueue-delta-to-queue --settings conf/delta_to_queue.toml

Each row becomes a message; the next run sends what came to the table since. The table `[columns]`
of the settings says what a message is made of, as SQL on the columns of the table: body, headers,
id, correlationId, replyToAddress, timeToBeReceived, deliverAt, delay, queue, topics. Without `body`
it is the whole row as JSON. A kill at any moment sends nothing twice: start the job again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.jobs import main as job
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.parse import one_of
from sqlq_spark.send.columns import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW = "to_json(struct(*))"
FEED = 'give changes = "feed" instead'
NOT_OURS = {
    "readchangefeed": FEED,
    "readchangedata": FEED,
    "ignorechanges": "it sends rows again that were sent; skipChangeCommits does not",
}
NEW_STATE = "_change_type <> 'update_preimage'"  # what a row was before is no change of its own


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    table: str = job.setting("The Delta table: a name, or a path, with a slash in it.")
    checkpoint: str = job.checkpoint()
    trigger: str = job.trigger()
    changes: str = job.setting(
        "rows: what is added, of a table to which rows are only added; feed: its change feed, "
        "with _change_type, _commit_version and _commit_timestamp, without update_preimage.",
        default="rows",
        read=one_of("rows", "feed"),
        expected="rows or feed",
    )
    where: str | None = job.setting(
        "Which rows to send, as SQL: _change_type = 'insert'", default=None
    )
    queue: str | None = job.setting("The queue of rows without one of their own.", default=None)
    topics: str | None = job.setting(
        "Published instead: full names of types, separated by commas.", default=None
    )
    columns: dict[str, str] = job.setting("A column of the message = SQL.", default={})
    delta: dict[str, str] = job.setting(
        "Options of Delta's source, as maxFilesPerTrigger, startingVersion or skipChangeCommits.",
        default={},
    )
    sink: dict[str, str] = job.setting(
        "More options of the sink, as messageType and originatingEndpoint.", default={}
    )

    def __post_init__(self) -> None:
        """Refuse columns that no message has, and options that would send what is no news."""
        for each in self.delta:
            if each.lower() in NOT_OURS:
                raise job.BadSettings(f"setting {each} in [delta]: {NOT_OURS[each.lower()]}")
        for each in self.columns:
            if each not in WRITTEN:
                known = ", ".join(WRITTEN)
                raise job.BadSettings(f"setting {each} in [columns]: expected one of {known}")

    def write(self) -> dict[str, str]:
        """Options of the sink."""
        content = {} if "body" in self.columns else {"contentType": "application/json"}
        given = {name.lower() for name in self.sink}
        plain = {name: text for name, text in content.items() if name.lower() not in given}
        return job.passed(
            SinkOptions, plain | self.sink, **self.login, queue=self.queue, topics=self.topics
        )

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What is opened."""
        return [SinkOptions.parse(self.write())]

    def tables(self) -> dict[str, bool]:
        """What is read, and must be there."""
        return {self.table: True}

    def frame(self, spark: SparkSession) -> DataFrame:
        """What is sent."""
        return messages(rows(spark, self), self)


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    """Send what is new."""
    job.bind(spark, settings.checkpoint, SinkOptions.parse(settings.write()))
    writer = (
        settings.frame(spark)
        .writeStream.format("sqlqueue")
        .options(**settings.write())
        .option("checkpointLocation", settings.checkpoint)
    )
    return job.follow(job.triggered(writer, settings.trigger).start())


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
    """The columns of messages, made of a row's."""
    made = {"body": ROW, **settings.columns}
    return found.select(*(F.expr(text).alias(name) for name, text in made.items()))


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run)


if __name__ == "__main__":
    main()
