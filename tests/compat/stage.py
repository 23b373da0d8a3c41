"""What the cases share: a session, queues, and streams that run until all is received."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from adbc_driver_postgresql import dbapi
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlq_spark.spark_api import DRAINS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RUNS = 50  # of Trigger.AvailableNow on Spark 4.0, one micro-batch each
TIMEOUT = 600  # seconds for one of them on a busy machine
SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
# Spark gives a worker ten seconds to start, which cannot be set, and a busy machine needs more.
BUSY = "connect back"
MESSAGE_ID = "NServiceBus.MessageId"
_FILL = """
INSERT INTO {} (Id, Expires, Headers, Body)
SELECT gen_random_uuid(), NULL,
    '{{"NServiceBus.MessageId":"m-' || number || '","NServiceBus.ReplyToAddress":"answers",'
    '"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder, Shop",'
    '"NServiceBus.TimeSent":"2024-05-01 10:00:00:123456 Z"}}',
    convert_to('{{"number":' || number || '}}', 'UTF8')
FROM generate_series({}, {}) AS number ORDER BY number
"""


def execute(url: str, text: str) -> list[tuple[Any, ...]]:
    """Run one statement in a transaction of its own; gives its rows."""
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(text)
        found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        connection.commit()
        return found


def fill(url: str, table: str, first: int, stop: int) -> None:
    """Send the messages `m-<first>` … `m-<stop - 1>`, with their number in the body."""
    execute(url, _FILL.format(table, first, stop - 1))


def numbered(first: int, stop: int) -> list[str]:
    """The message ids that `fill` gives."""
    return [f"m-{number}" for number in range(first, stop)]


def raised(work: Callable[[], object], words: str) -> None:
    """Do what must fail with these words; classic and Connect raise different classes."""
    found = ""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
        found = str(error)
    assert words in found, found


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One environment's corner of the database and of the disk."""

    url: str
    schema: str  # of queues and state tables
    folder: Path
    connect: bool  # Spark Connect instead of a classic session

    def session(self, **settings: bool | float | str | None) -> SparkSession:
        """Give the session; the first call starts it, and may add settings."""
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.appName("sqlq-compat").config(map=SETTINGS | settings)
        where = builder.remote("local[2]") if self.connect else builder.master("local[2]")
        return where.getOrCreate()

    def options(self, queue: str, **more: object) -> dict[str, str]:
        """Options of a read or a write of a queue."""
        known = {"url": self.url, "stateSchema": self.schema, "queue": self.address(queue)}
        return known | {name: str(value) for name, value in more.items()}

    def address(self, queue: str) -> str:
        """Write a queue's name as an option takes it."""
        return f'"{self.schema}"."{queue}"'

    # ------------------------------------------------------------ the database

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        return execute(self.url, text)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a database of its own, and drop it; gives its url."""
        name = f"{self.schema}_{secrets.token_hex(4)}"
        with dbapi.connect(self.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            try:
                yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
            finally:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def queue(self, name: str, messages: int = 0) -> str:
        """Make a queue with so many messages, `m-0` and on."""
        self.sql(f"CREATE TABLE {self.schema}.{name} (LIKE {self.schema}.orders INCLUDING ALL)")
        self.fill(name, 0, messages)
        return name

    def fill(self, name: str, first: int, stop: int) -> None:
        """Send messages `m-<first>` … `m-<stop - 1>`."""
        fill(self.url, f"{self.schema}.{name}", first, stop)

    def headers(self, name: str) -> list[dict[str, str]]:
        """The headers of what waits, by seq."""
        rows = self.sql(f"SELECT Headers FROM {self.schema}.{name} ORDER BY Seq")
        return [json.loads(headers) for (headers,) in rows]

    def ids(self, name: str) -> list[str]:
        """Message ids of what waits, by seq."""
        return [each[MESSAGE_ID] for each in self.headers(name)]

    def count(self, name: str) -> int:
        """How many rows a table has."""
        return int(self.sql(f"SELECT count(*) FROM {self.schema}.{name}")[0][0])

    def held(self, queue: str) -> int:
        """How many receipts of a queue there are."""
        found = f"SELECT count(*) FROM {self.schema}.receipt WHERE queue LIKE '%\"{queue}\"'"
        return int(self.sql(found)[0][0])

    # ------------------------------------------------------------ Spark

    def browse(self, queue: str) -> DataFrame:
        """Look at a queue."""
        return self.session().read.format("sqlqueue").options(**self.options(queue)).load()

    def stream(self, queue: str, **more: object) -> DataFrame:
        """Receive."""
        given = {"maxMessagesPerTrigger": 100, "peekDelay": "100ms"} | more
        options = self.options(queue, **given)
        return self.session().readStream.format("sqlqueue").options(**options).load()

    def finish(self, writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
        """Run a stream until it received what waits; raises what it raised."""
        writer = writer.option("checkpointLocation", str(checkpoint))
        for _ in range(RUNS):
            try:
                query = writer.trigger(availableNow=True).start()
                assert query.awaitTermination(TIMEOUT)
            except PySparkException as error:
                if BUSY in str(error):
                    continue
                raise
            ran = any("addBatch" in each.durationMs for each in query.recentProgress)
            if DRAINS_AT_ONCE or not ran:
                return query
        raise AssertionError(f"the stream has not ended after {RUNS} runs")

    def received(self, queue: str, sink: Record, **more: object) -> None:
        """Receive into a Record; its folder has the checkpoint too."""
        stream = self.stream(queue, **more)
        self.finish(stream.writeStream.foreachBatch(sink), sink.folder / "checkpoint")


@dataclass(frozen=True)
class Record:
    """
    A sink that records its rows, one file for each call.

    Files, because Spark Connect calls it in a process of the server. A file `fail` beside them
    makes it raise, a file `stop-<batch>` makes it wait to be killed, after it got its rows.
    """

    folder: Path

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        rows = [(row.seq, row.headers[MESSAGE_ID]) for row in frame.collect()]
        call = self.folder / f"{time.time_ns()}-{batch}.json"
        call.write_text(json.dumps(rows), encoding="utf-8")
        if (self.folder / "fail").exists():
            raise RuntimeError(f"sink failed on batch {batch}")
        if (self.folder / f"stop-{batch}").exists():
            (self.folder / "reached").touch()
            time.sleep(TIMEOUT)

    def order(self, name: str) -> Path:
        """Set `fail` or `stop-<batch>`; unlink it to go on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).touch()
        return self.folder / name

    def of(self, batch: int) -> list[list[list[Any]]]:
        """The rows (seq, message id) of each call for a batch."""
        calls = sorted(self.folder.glob(f"*-{batch}.json"))
        return [json.loads(call.read_text(encoding="utf-8")) for call in calls]

    def last_ids(self) -> list[str]:
        """The message ids of the last call for each batch."""
        batches = {int(call.stem.partition("-")[2]) for call in self.folder.glob("*.json")}
        return [name for batch in sorted(batches) for _, name in self.of(batch)[-1]]


def lose(checkpoint: Path, *logs: str) -> None:
    """Remove the last entry of `offsets` or `commits`, with the checksum beside it."""
    for each in logs:
        last = max((checkpoint / each).glob("[0-9]*"), key=lambda entry: int(entry.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
