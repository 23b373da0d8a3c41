"""
Copy messages between queues of two databases, PostgreSQL or SQL Server, exactly once.

    spark-submit jobs/relay.py --settings conf/relay.toml
    sqlqueue-relay --settings conf/relay.toml

Body, headers and message id are unchanged, and a message keeps its remaining time to be received.
Each queue's messages go to the queue of the same name, or to the one in [targets]. Delayed messages
stay in their table. Poison messages go to the error queue of the source. Addresses in headers
(ReplyToAddress, FailedQ) stay those of the source. With --atomic, within one database, receive and
send commit together.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.errors import TimedOut
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    BadSettings,
    StreamSettings,
    pairs,
    raw_options,
    setting,
    with_two_databases,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import flag
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.wire.address import QueueAddress

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark.functions import forward
    from sqlq_spark.jobs import streams

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from sqlq_spark.database import Connection

PATIENCE = 1.0  # seconds to wait for a lock that only this job takes


@dataclass(frozen=True, kw_only=True)
@with_two_databases
class Settings(StreamSettings):
    """What this job takes."""

    target_url: str
    queues: str = setting("The queues, separated by commas.")
    targets: dict[str, str] = setting(
        "Queue in source = queue in target, if their names differ.", pairs
    )
    target_schema: str | None = setting(
        "The schema of the target's queues; default: the default schema.", default=None
    )
    error_queue: str = setting("The source's queue for poison messages, which are not copied.")
    atomic: bool = setting(
        "Within one database: commit receive and send in one transaction.", flag, default=False
    )
    source: dict[str, str] = setting("Options of the data source.", pairs)
    sink: dict[str, str] = setting("Options of the sink.", pairs)

    def read(self) -> dict[str, str]:
        own = {"queues": self.queues, "errorQueue": self.error_queue, "headersFormat": "json"}
        return raw_options(SourceOptions, self.source, **self.login("source_"), **own)

    def write(self) -> dict[str, str]:
        mode = "sendsAtomicWithReceive" if self.atomic else None
        own = {"queue": None, "asReceived": "true", "transactionMode": mode}
        return raw_options(SinkOptions, self.sink, **self.login("target_"), **own)

    def routes(self) -> dict[QueueAddress, QueueAddress]:
        """
        Map each queue of the source to its queue in the target.

        Raises:
            BadSettings: [targets] names a queue that is not read.
        """
        source, writes = SourceOptions.parse(self.read()), names_of(self.target_url)
        reads, routes = source.naming, {}
        named = {reads.qualify(parse_queue("targets", name, reads)): name for name in self.targets}
        for queue in map(reads.qualify, source.addresses):
            target = QueueAddress(queue.table, self.target_schema)
            if queue in named:
                target = parse_queue("targets", self.targets[named.pop(queue)], writes)
            routes[queue] = writes.qualify(target)
        if named:
            raise BadSettings(
                reason=f"setting {min(named.values())} in [targets] is not one of the queues that "
                f"are read: {', '.join(source.names)}"
            )
        return routes

    def options(self) -> list[SourceOptions | SinkOptions]:
        return [SourceOptions.parse(self.read()), SinkOptions.parse(self.write())]

    def frame(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Let a dry run check both databases."""
        check(self)


def one_database(first: Connection, second: Connection) -> bool:
    """
    Whether two sessions are in one database, even if their urls differ.

    Locks belong to a database: if one session waits for a lock of the other, they share it.
    """
    name = f"relay {uuid.uuid4()}"
    with transaction(first, timeout=10 * PATIENCE):
        first.rows("install_lock", state_name=name)
        try:
            with transaction(second, timeout=PATIENCE):
                second.rows("install_lock", state_name=name)
        except TimedOut:
            return True
    return False


def check(settings: Settings) -> dict[str, str]:
    """
    Check that messages can be sent, before any are received.

    Returns:
        The routes, with the addresses as messages hold them, which name their databases.

    Raises:
        QueueNotWritable: a target is not a queue, or this login may not send to it.
        DestinationRefused: an INSERT would run code of an owner that is not trusted.
        BadSettings: the databases do not fit the settings.
    """
    source, target = SourceOptions.parse(settings.read()), SinkOptions.parse(settings.write())
    routes = settings.routes()
    with StateSession(source, "relay") as reading, StateSession(target, "relay") as writing:
        received, sent = reading.open(), writing.open()
        if one_database(received, sent):
            identities = sent.identities([*routes, *routes.values()])
            for queue, identity in zip(routes, identities, strict=False):
                if identity in identities[len(routes) :]:
                    raise BadSettings(
                        reason=f"queue {received.printed(queue)} is read and sent to in "
                        f"{sent.server}: set another target_url, target_schema or [targets]"
                    )
        elif settings.atomic:
            raise BadSettings(
                reason="setting atomic is true: expected one database, not "
                f"{received.server} and {sent.server}"
            )
        with transaction(sent, timeout=target.query_timeout):
            Destinations(sent, target.allowed, by_header=True).check(routes.values(), RETURNED)
        return {received.canonical(queue): sent.canonical(to) for queue, to in routes.items()}


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    routes, options = check(settings), settings.write()
    streams.bind(spark, settings.checkpoint, SinkOptions.parse(options))
    target = F.create_map(*map(F.lit, chain(*routes.items())))[F.col("queue")]

    def send(received: DataFrame) -> StreamingQuery:
        frame = received.select(*forward(target, json=True), "expires")
        return streams.start(frame.writeStream.format("sqlqueue").options(**options), settings)

    return streams.receive(spark, settings, send)


main = runner.Job(__doc__, Settings, run)  # the entry point of the wheel
