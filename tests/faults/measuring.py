"""
What the long measurements stand on: queues in schemas of their own, a Spark session, figures.

Messages are made on the server, 1.2 kB each, so that filling is quick beside receiving.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from pyspark.sql import SparkSession

from sqlq_spark import database
from sqlq_spark.database import schema as install
from sqlq_spark.demo import embedded
from sqlq_spark.wire.address import QueueAddress, print_postgresql

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT = 60.0  # seconds, for installing
_FILL = """
INSERT INTO {queue} (id, headers, body)
SELECT gen_random_uuid(),
       '{{"NServiceBus.MessageId":"' || n || '","NServiceBus.MessageIntent":"Send",'
       || '"NServiceBus.ConversationId":"' || md5('c' || n) || '",'
       || '"NServiceBus.ContentType":"application\\/json",'
       || '"NServiceBus.EnclosedMessageTypes":"Shop.Messages.Commands.PlaceOrder, Shop.Messages",'
       || '"NServiceBus.OriginatingEndpoint":"Shop.Web","NServiceBus.Version":"9.1.2",'
       || '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}',
       convert_to('{{"OrderId":"' || md5('o' || n) || md5('p' || n) || md5('q' || n)
       || '","Note":"' || repeat('desk lamp, coffee mill; ', {notes}) || '"}}', 'UTF8')
  FROM generate_series({first}::int, {stop}::int - 1) AS n
 ORDER BY n
"""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A corner of a database, with state tables."""

    url: str
    schema: str  # of the queues
    state: str  # of the state tables
    connection: psycopg.Connection[tuple[Any, ...]]

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run one statement, commit it, and return its rows, if it has any."""
        cursor = self.connection.execute(text.encode(), args or None)
        return [] if cursor.description is None else cursor.fetchall()

    def create(self, queue: str) -> None:
        """Make the state tables, where they are absent, and a queue."""
        with contextlib.closing(connect(self)) as connection:
            install.install(connection, timeout=TIMEOUT)
            install.create_queue(connection, QueueAddress(queue, self.schema), timeout=TIMEOUT)

    def name(self, queue: str) -> str:
        """The canonical address, which is what SQL needs too."""
        return print_postgresql(QueueAddress(queue, self.schema))

    def options(self, queue: str, **more: object) -> dict[str, str]:
        """What a stream or a writer must be given."""
        named = {"url": self.url, "stateSchema": self.state, "queue": self.name(queue)}
        return named | {option: str(value) for option, value in more.items()}

    def fill(self, queue: str, first: int, stop: int, *, notes: int = 30) -> None:
        """Send messages with the ids `first` … `stop - 1`, of 1.2 kB with 30 notes."""
        self.sql(_FILL.format(queue=self.name(queue), first=first, stop=stop, notes=notes))

    def count(self, table: str) -> int:
        """How many rows a table has, given as SQL."""
        return int(self.sql(f"SELECT count(*) FROM {table}")[0][0])


def connect(ground: Ground) -> database.Connection:
    """Open a session of the package."""
    url, state, name = ground.url, ground.state, "sqlqueue measuring"
    return database.of(url).connect(url, application=name, timeout=TIMEOUT, state=state)


@contextmanager
def ground(url: str | None) -> Iterator[Ground]:
    """Take a corner of a database, of a private server where none is named; it is gone after."""
    if url is None:
        with embedded.server(tcp=True) as server, ground(server.url) as made:
            yield made
        return
    schema, state = (f"{kind}_{secrets.token_hex(4)}" for kind in ("shop", "state"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        try:
            yield Ground(url=url, schema=schema, state=state, connection=connection)
        finally:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema}, {state} CASCADE".encode())


@contextmanager
def session() -> Iterator[SparkSession]:
    """Run a local Spark of two cores that keeps little of what was: the JVM's heap is measured."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "100",
        "spark.sql.ui.retainedExecutions": "100",
        "spark.ui.enabled": "false",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "100",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("sqlq-measuring")
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder for checkpoints."""
    with tempfile.TemporaryDirectory(prefix="sqlq-measuring") as name:
        yield Path(name)
