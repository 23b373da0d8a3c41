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
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.errors import TimedOut
from sqlq_spark.functions import forward
from sqlq_spark.jobs import runner, streams
from sqlq_spark.jobs.settings import (
    BadSettings,
    StreamSettings,
    credentials_setting,
    pairs,
    password_setting,
    raw_options,
    setting,
    url_setting,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import flag
from sqlq_spark.options.names import names_of, parse_queue
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sqlq_spark.database import Connection

PATIENCE = 1.0  # seconds to wait for a lock that only this job takes


@dataclass(frozen=True, kw_only=True)
class Settings(StreamSettings):
    """What this job takes."""

    source_url: str = url_setting("The database to receive from.", "SQLQUEUE_SOURCE_URL")
    source_user: str | None = setting("The login, if it is not in source_url.", default=None)
    source_password: str | None = password_setting(
        "SQLQUEUE_SOURCE_PASSWORD", key="source_secret_key"
    )
    source_secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    source_credentials: str | None = credentials_setting("SQLQUEUE_SOURCE_CREDENTIALS")
    target_url: str = url_setting("The database to send to.", "SQLQUEUE_TARGET_URL")
    target_user: str | None = setting("The login, if it is not in target_url.", default=None)
    target_password: str | None = password_setting(
        "SQLQUEUE_TARGET_PASSWORD", key="target_secret_key"
    )
    target_secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    target_credentials: str | None = credentials_setting("SQLQUEUE_TARGET_CREDENTIALS")
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

    def write(self, queue: str | None = None) -> dict[str, str]:
        """Options of the sink, or of a sink for one queue."""
        mode = "sendsAtomicWithReceive" if self.atomic else None
        own = {"queue": queue, "asReceived": "true", "transactionMode": mode}
        return raw_options(SinkOptions, self.sink, **self.login("target_"), **own)

    def routes(self) -> dict[str, str]:
        """
        Map each queue of the source to its queue in the target, both canonical.

        Raises:
            BadSettings: [targets] names a queue that is not read.
        """
        source = SourceOptions.parse(self.read())
        reads, writes = source.naming, names_of(self.target_url)
        named = {
            reads.print_address(parse_queue("targets", each, reads)): each for each in self.targets
        }
        if stray := named.keys() - set(source.names):
            raise BadSettings(
                reason=f"setting {named[min(stray)]} in [targets] is not one of the queues that "
                f"are read: {', '.join(source.names)}"
            )
        found = {}
        for queue, name in zip(source.addresses, source.names, strict=True):
            target = QueueAddress(queue.table, self.target_schema)
            if name in named:
                target = parse_queue("targets", self.targets[named[name]], writes)
            found[name] = writes.print_address(target)
        return found

    def options(self) -> list[SourceOptions | SinkOptions]:
        routes = self.routes()
        if self.source_url == self.target_url:
            check_loop(routes, "one database")
        targets = [SinkOptions.parse(self.write(each)) for each in dict.fromkeys(routes.values())]
        return [SourceOptions.parse(self.read()), *targets]


def check_loop(routes: dict[str, str], database: str) -> None:
    """
    Reject a route that sends messages into a queue that is read.

    Raises:
        BadSettings: the job would never end.
    """
    if again := routes.keys() & set(routes.values()):
        raise BadSettings(
            reason=f"queue {min(again)} is read and sent to in {database}: set another "
            "target_url, target_schema or [targets]"
        )


def find_loop(routes: dict[str, str], connection: Connection) -> None:
    """Reject a loop as `check_loop` does, also if a queue has two spellings."""
    texts = [*routes, *routes.values()]
    identities = connection.identities([connection.names.parse_address(each) for each in texts])
    sent = identities[len(routes) :]
    for text, identity in zip(routes, identities, strict=False):
        if identity in sent:
            check_loop({text: text}, connection.server)


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
    source = SourceOptions.parse(settings.read())
    target = SinkOptions.parse(settings.write())
    with StateSession(source, "relay") as reading, StateSession(target, "relay") as writing:
        received, sent = reading.open(), writing.open()
        routes = {
            received.canonical(received.names.parse_queue(queue)): sent.canonical(
                sent.names.parse_queue(other)
            )
            for queue, other in settings.routes().items()
        }
        if one_database(received, sent):
            find_loop(routes, sent)
        elif settings.atomic:
            raise BadSettings(
                reason="setting atomic is true: expected one database, not "
                f"{received.server} and {sent.server}"
            )
        queues = [sent.names.parse_address(each) for each in dict.fromkeys(routes.values())]
        with transaction(sent, timeout=target.query_timeout):
            Destinations(sent, target.allowed, by_header=True).check(queues, RETURNED)
    return routes


def run(spark: SparkSession, settings: Settings) -> dict[str, Any]:
    routes, options = check(settings), settings.write()
    streams.bind(spark, settings.checkpoint, SinkOptions.parse(options))
    target = F.create_map(*map(F.lit, chain(*routes.items())))[F.col("queue")]

    def send(received: DataFrame) -> StreamingQuery:
        frame = received.select(*forward(target, json=True), "expires")
        return streams.start(frame.writeStream.format("sqlqueue").options(**options), settings)

    return streams.receive(spark, settings, send)


main = partial(runner.program, __doc__, Settings, run)  # the entry point of the wheel
