"""What the cases share: a session, queues, and streams that run until all is received."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbc_driver_postgresql import dbapi
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlq_spark.spark_api import DRAINS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RUNS = 50  # runs of Trigger.AvailableNow, each of which is one micro-batch on Spark 4.0
TIMEOUT = 600  # seconds for one run on a busy machine
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
FILL = """
INSERT INTO {} (Id, Expires, Headers, Body)
SELECT gen_random_uuid(), NULL,
    '{{"NServiceBus.MessageId":"m-' || number || '","NServiceBus.ReplyToAddress":"answers",'
    '"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder, Shop",'
    '"NServiceBus.TimeSent":"2024-05-01 10:00:00:123456 Z"}}',
    convert_to('{{"number":' || number || '}}', 'UTF8')
FROM generate_series({}, {}) AS number ORDER BY number
"""


def execute(url: str, text: str) -> list[Any]:
    """Run one statement in a transaction of its own; gives the first column."""
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(text)
        found = cursor.fetchall() if cursor.description else []
        connection.commit()
        return [row[0] for row in found]


def fill(url: str, table: str, first: int, stop: int) -> None:
    """Send the messages `m-<first>` … `m-<stop - 1>`, with their number in the body."""
    execute(url, FILL.format(table, first, stop - 1))


def numbered(first: int, stop: int) -> list[str]:
    return [f"m-{number}" for number in range(first, stop)]


def raised(work: Callable[[], object], words: str) -> None:
    """Do what must fail with these words; classic and Connect raise different classes."""
    found = ""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
        found = str(error)
    assert words in found, found


@dataclass(frozen=True)
class Stage:
    """One environment's database, and its folder."""

    url: str
    folder: Path
    connect: bool  # Spark Connect instead of a classic session

    def session(self, **settings: bool | float | str | None) -> SparkSession:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.appName("sqlq-compat").config(map=SETTINGS | settings)
        where = builder.remote("local[2]") if self.connect else builder.master("local[2]")
        return where.getOrCreate()

    def options(self, queue: str, **more: object) -> dict[str, str]:
        given = {"url": self.url, "queue": queue, **more}
        return {name: str(value) for name, value in given.items()}

    def sql(self, text: str) -> list[Any]:
        return execute(self.url, text)

    def queue(self, name: str, messages: int = 0) -> str:
        """Make a queue with the messages `m-0` … `m-<messages - 1>`."""
        self.sql(f"CREATE TABLE {name} (LIKE orders INCLUDING ALL)")
        self.fill(name, 0, messages)
        return name

    def fill(self, name: str, first: int, stop: int) -> None:
        fill(self.url, name, first, stop)

    def headers(self, name: str) -> list[dict[str, str]]:
        found = self.sql(f"SELECT Headers FROM {name} ORDER BY Seq")
        return [json.loads(headers) for headers in found]

    def ids(self, name: str) -> list[str]:
        return [each[MESSAGE_ID] for each in self.headers(name)]

    def count(self, name: str) -> int:
        return len(self.sql(f"SELECT 1 FROM {name}"))

    # ------------------------------------------------------------ Spark

    def browse(self, queue: str) -> DataFrame:
        return self.session().read.format("sqlqueue").options(**self.options(queue)).load()

    def stream(self, queue: str, **more: object) -> DataFrame:
        given = {"maxMessagesPerTrigger": 100, "peekDelay": "100ms"} | more
        options = self.options(queue, **given)
        return self.session().readStream.format("sqlqueue").options(**options).load()

    def finish(self, writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
        """Run a stream until it received what waits; raises what it raised."""
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
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
        self.finish(stream.writeStream.foreachBatch(sink), f"{sink.folder}/checkpoint")


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
        call.write_text(json.dumps(rows))
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

    def batches(self) -> list[int]:
        return sorted({int(call.stem.partition("-")[2]) for call in self.folder.glob("*.json")})

    def of(self, batch: int) -> list[list[list[Any]]]:
        """The rows (seq, message id) of each call for a batch."""
        calls = sorted(self.folder.glob(f"*-{batch}.json"))
        return [json.loads(call.read_text()) for call in calls]

    def last_ids(self) -> list[str]:
        """The message ids of the last call for each batch."""
        return [name for batch in self.batches() for _, name in self.of(batch)[-1]]


def lose(checkpoint: Path, *logs: str) -> None:
    """Remove the last entry of `offsets` or `commits`, with the checksum beside it."""
    for each in logs:
        last = max((checkpoint / each).glob("[0-9]*"), key=lambda entry: int(entry.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
