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

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    BadSettings,
    OneDatabaseSettings,
    Opened,
    StreamSettings,
    pairs,
    setting,
)
from sqlq_spark.options import SinkOptions
from sqlq_spark.options.fields import one_of
from sqlq_spark.send.frame import WRITTEN

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark.jobs import streams

FEED = 'set changes = "feed" instead'
NOT_OURS = {
    "readchangefeed": FEED,
    "readchangedata": FEED,
    "ignorechanges": "it would send rows again that were already sent; use skipChangeCommits",
}


@dataclass(frozen=True, kw_only=True)
class DeltaToQueueSettings(OneDatabaseSettings, StreamSettings):
    """The settings of this job."""

    table: str = setting("The Delta table: a name, or a path, with a slash in it.")
    changes: str = setting(
        "rows: added rows, for a table that only grows. feed: the change feed, with the columns "
        "_change_type, _commit_version and _commit_timestamp, without update_preimage.",
        one_of("rows", "feed"),
        default="rows",
    )
    where: str | None = setting(
        "Which rows to send, as an SQL condition, for example _change_type = 'insert'.",
        default=None,
    )
    queue: str | None = setting(
        "The queue of all rows; without it and without topics, the column queue.", default=None
    )
    topics: str | None = setting(
        "Publish to these topics instead: full type names, separated by commas.", default=None
    )
    columns: dict[str, str] = setting("Columns of the message: NAME = SQL expression.", pairs)
    delta: dict[str, str] = setting(
        "Options of Delta's source: maxFilesPerTrigger, startingVersion, skipChangeCommits, …",
        pairs,
    )
    sink: dict[str, str] = setting(
        "More options of the sink: messageType, contentType (default: application/json), …", pairs
    )

    def __post_init__(self) -> None:
        """Reject unknown message columns, and options that would send rows again."""
        for name in self.delta:
            if name.lower() in NOT_OURS:
                raise BadSettings(reason=f"setting {name} in [delta]: {NOT_OURS[name.lower()]}")
        for name in self.columns:
            if name not in WRITTEN:
                known = ", ".join(WRITTEN)
                raise BadSettings(reason=f"setting {name} in [columns]: expected one of {known}")

    def write(self) -> dict[str, str]:
        raw = self.raw_options("sink", self, queue=self.queue, topics=self.topics)
        return {"contentType": "application/json", **raw}

    def options(self) -> Opened:
        return [SinkOptions.parse(self.write())]

    def needs_table(self) -> bool:
        return True

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the messages to send, as a stream."""
        feed = self.changes == "feed"
        reader = spark.readStream.options(**self.delta, readChangeFeed=feed)
        rows = streams.read_table(reader, self.table).where(self.where or "true")
        if feed:
            # An update_preimage is the row as it was before an update.
            rows = rows.where("_change_type <> 'update_preimage'")
        columns = {"body": "to_json(struct(*))", **self.columns}
        return rows.select(*(F.expr(text).alias(name) for name, text in columns.items()))


def run(spark: SparkSession, settings: DeltaToQueueSettings) -> dict[str, Any]:
    options = settings.write()
    streams.bind_checkpoint(spark, settings.checkpoint, SinkOptions.parse(options))
    writer = settings.frame(spark).writeStream.format("sqlqueue").options(**options)
    with streams.sigterm() as asked:
        tally = streams.watch(streams.start(writer, settings), asked)
    return {"messages": tally.messages, "batches": tally.batches}


main = runner.Job(__doc__, DeltaToQueueSettings, run)  # the entry point of the wheel
