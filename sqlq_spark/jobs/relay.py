"""
Copy messages between queues of two databases, PostgreSQL or SQL Server, exactly once.

    spark-submit jobs/relay.py --settings conf/relay.toml
    sqlqueue-relay --settings conf/relay.toml

Body, headers and message id are unchanged, and a message keeps its remaining time to be received.
Each queue's messages go to the queue of the same name, or to the one in [targets]. Delayed messages
stay in their table. Poison messages go to the error queue of the source. Addresses in headers
(ReplyToAddress, FailedQ) stay those of the source. Within one database, transactionMode =
"sendsAtomicWithReceive" in [sink] lets the send and the settling of receipts commit together.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import RETURNED_COLUMNS, Destinations
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    BadSettings,
    DatabaseSettings,
    Opened,
    StreamSettings,
    pairs,
    setting,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import parse_queue
from sqlq_spark.wire.address import QueueAddress

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark.functions import forward
    from sqlq_spark.jobs import streams

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, kw_only=True)
class RelaySettings(StreamSettings):
    """The settings of this job."""

    queues: str = setting("The queues, separated by commas.")
    targets: dict[str, str] = setting(
        "Queue in source = queue in target, if their names differ.", pairs
    )
    target_schema: str | None = setting(
        "The schema of the target's queues; default: the default schema.", default=None
    )
    error_queue: str = setting("The source's queue for poison messages, which are not copied.")
    source: dict[str, str] = setting("Options of the data source.", pairs)
    sink: dict[str, str] = setting("Options of the sink.", pairs)
    source_database: DatabaseSettings  # the settings source_url and so on
    target_database: DatabaseSettings  # the settings target_url and so on

    def read(self) -> dict[str, str]:
        return self.raw_options(
            "source",
            self.source_database,
            queues=self.queues,
            errorQueue=self.error_queue,
            headersFormat="json",
        )

    def write(self) -> dict[str, str]:
        return self.raw_options("sink", self.target_database, queue=None, asReceived=True)

    def options(self) -> Opened:
        return [*super().options(), SinkOptions.parse(self.write())]

    def needs_delta(self) -> bool:
        return False

    def frame(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Check both databases for a dry run. Returns no rows."""
        find_routes(self)


def find_routes(settings: RelaySettings) -> dict[str, str]:
    """
    Find where the messages of each queue go, and check that they can be sent there.

    Returns:
        By the queue that is read, the queue to which its messages are sent. Both are addresses as
        they are in messages, with the name of the database.

    Raises:
        QueueNotWritable: a target is not a queue, or this login may not send to it.
        TableRefused: a target's owner is not trusted.
        BadSettings: [targets] names a queue that is not read, or a queue is sent to itself.
    """
    source, target = SourceOptions.parse(settings.read()), SinkOptions.parse(settings.write())
    reads, writes, targets = source.naming, target.naming, settings.targets
    named = {reads.qualify(parse_queue("targets", name, reads)): name for name in targets}
    routes = {}
    for queue in map(reads.qualify, source.addresses):
        to = QueueAddress(queue.table, settings.target_schema)
        if queue in named:
            to = parse_queue("targets", targets[named.pop(queue)], writes)
        routes[queue] = writes.qualify(to)
    if named:
        raise BadSettings(
            reason=f"setting {min(named.values())} in [targets] is not one of the queues that are "
            f"read: {', '.join(source.names)}"
        )
    with StateSession(source, "relay") as reading, StateSession(target, "relay") as writing:
        received, sent = reading.open(), writing.open()
        both = {*routes} & {*routes.values()} if received.server == sent.server else ()
        for queue in both:
            raise BadSettings(
                reason=f"queue {received.printed(queue)} is read and sent to in {sent.server}: "
                "set another target_url, target_schema or [targets]"
            )
        with transaction(sent):
            Destinations(sent, by_header=True).check(routes.values(), RETURNED_COLUMNS)
        return {received.canonical(queue): sent.canonical(to) for queue, to in routes.items()}


def run(spark: SparkSession, settings: RelaySettings) -> dict[str, Any]:
    routes, options = find_routes(settings), settings.write()
    streams.bind_checkpoint(spark, settings.checkpoint, SinkOptions.parse(options))
    target = F.create_map(*map(F.lit, chain(*routes.items())))[F.col("queue")]

    def send(received: DataFrame) -> StreamingQuery:
        frame = received.select(*forward(target, json=True), "expires")
        return streams.start(frame.writeStream.format("sqlqueue").options(**options), settings)

    return streams.receive_queues(spark, settings, send)


main = runner.Job(__doc__, RelaySettings, run)  # the entry point of the wheel
