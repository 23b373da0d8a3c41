"""
The demo's Spark jobs, each in its own process that may be killed: send, receive, count.

Only the demo starts `python -m sqlq_spark.demo.job '{"job":"receive",…}'`. The url has a password,
so it is passed in the environment. Events go to standard output as JSON lines, and Spark's log goes
to standard error. The process ends when its owner ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

QUEUE = "Shop.Orders"
OWN = 20_000_000  # an order's number is its message's, counted from here

# A message's id is computed from its number, so that the ids can be compared at the end.
ID = (
    "regexp_replace(md5(concat('order ', id)), '(.{8})(.{4})(.{4})(.{4})(.{12})', '$1-$2-$3-$4-$5')"
)

# As System.Text.Json writes an order of one to four lines.
BODY = f"""to_json(named_struct(
    'OrderId', {OWN} + id,
    'CustomerId', concat('C-', lpad(id * 7919 % 50000, 6, '0')),
    'PlacedAt', date_format(timestamp_seconds(1767225600 + id), "yyyy-MM-dd'T'HH:mm:ss'Z'"),
    'Currency', 'EUR',
    'Lines', transform(sequence(1, 1 + id % 4), at -> named_struct(
        'Sku', concat('SKU-', lpad((id + at) * 104729 % 9000, 4, '0')),
        'Name', element_at(
            array('Espresso beans, 1 kg', 'Filter "V60", size 02', 'Café au lait bowl'),
            cast(1 + (id + at) % 3 AS int)),
        'Quantity', 1 + (id + at) % 3,
        'UnitPrice', cast((id + at) % 4900 / 100 + 1 AS decimal(9, 2)))),
    'ShipTo', named_struct(
        'Name', concat(element_at(array('Ada', 'Grace', 'Edsger'), cast(1 + id % 3 AS int)), ' ',
                       element_at(array('Hopper', 'Dijkstra'), cast(1 + id % 2 AS int))),
        'Street', concat('Harbour Street ', 1 + id % 200),
        'PostalCode', lpad(id % 90000, 5, '1'),
        'City', 'København',
        'Country', 'DK'),
    'Total', cast(id % 30000 / 100 + 5 AS decimal(9, 2))))"""

# Headers that the sink's options do not write.
HEADERS = """map(
    'NServiceBus.OriginatingMachine', concat('WEB-', lpad(id % 8, 2, '0')),
    '$.diagnostics.originating.hostid', md5(concat('WEB-', id % 8)))"""

SINK = {
    "messageType": "Shop.Messages.OrderPlaced, Shop.Messages, Version=1.4.0.0, Culture=neutral, "
    "PublicKeyToken=null",
    "contentType": "application/json",
    "intent": "Publish",
    "originatingEndpoint": "Shop.Web",
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """The parameters of a job."""

    job: str  # send or receive
    messages: int
    batch: int  # messages of one micro-batch, at most
    folder: str
    format: str  # parquet or delta

    @property
    def text(self) -> str:
        """The parameters as a command line argument."""
        return json.dumps(asdict(self))


def main() -> None:
    """Do one job."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Spark, and what it starts, speaks to the log
    threading.Thread(target=die_with_owner, daemon=True).start()
    order = Order(**json.loads(sys.argv[1]))
    spark = session(order)
    spark.sparkContext.setLogLevel("WARN")
    write_event(events, "ready")
    {"send": send, "receive": receive}[order.job](
        spark, order, lambda **said: write_event(events, **said)
    )
    spark.stop()


def write_event(events: IO[str], event: str, **said: object) -> None:
    """Write one event."""
    events.write(json.dumps({"event": event, **said}) + "\n")


def die_with_owner() -> None:
    """Wait for the end of the owner's pipe, then kill this process and the JVM."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def session(order: Order) -> SparkSession:
    """A local session that writes only into the demo's folder."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    temporary = os.environ["TMPDIR"]
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        # Four short-lived JVMs, few cores: 86 s of CPU, against 123 with C2 and G1's threads.
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData "
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.databricks.delta.snapshotPartitions": 2,  # of a small log; 50 tasks by default
        "spark.local.dir": temporary,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{order.folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[*]").appName("sqlqueue demo").config(map=settings)
    if order.format == "delta":
        from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - an extra

        builder = configure_spark_with_delta_pip(
            builder.config(
                "spark.sql.catalog.spark_catalog",
                "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            ).config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        )
    return builder.getOrCreate()


def orders(spark: SparkSession, messages: int) -> DataFrame:
    """Orders as a web shop's endpoint publishes them; columns id, headers, body."""
    return spark.range(messages).selectExpr(
        f"{ID} AS id", f"{HEADERS} AS headers", f"{BODY} AS body"
    )


def send(spark: SparkSession, order: Order, say: Callable[..., None]) -> None:
    """Send all messages, and measure the time of the write without the start of the JVM."""
    begun = time.monotonic()
    (
        orders(spark, order.messages)
        .write.format("sqlqueue")
        .option("url", os.environ["SQLQUEUE_URL"])
        .options(**SINK)
        .mode("append")
        .save(QUEUE)
    )
    say(event="sent", seconds=time.monotonic() - begun)


def receive(spark: SparkSession, order: Order, say: Callable[..., None]) -> None:
    """Receive all messages into the table, and count them."""
    query = (
        spark.readStream.format("sqlqueue")
        .option("url", os.environ["SQLQUEUE_URL"])
        .option("maxMessagesPerTrigger", order.batch)
        .load(QUEUE)
        .writeStream.format(order.format)
        .option("checkpointLocation", f"{order.folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{order.folder}/table")
    )
    watch(query, say)
    say(event="received")
    table = spark.read.format(order.format).load(f"{order.folder}/table")
    found = table.selectExpr("headers['NServiceBus.MessageId'] AS id").toArrow()["id"]
    rows = table.selectExpr("seq", "headers", "decode(body, 'utf-8') AS body").limit(3).collect()
    figures = count(found.to_pylist(), map(message_id, range(order.messages)))
    say(event="counted", rows=[row.asDict() for row in rows], **figures)


def message_id(number: int) -> str:
    """A message's id from its number; the same as ID."""
    return str(uuid.UUID(bytes=hashlib.md5(b"order %d" % number, usedforsecurity=False).digest()))


def count(found: Iterable[str | None], sent: Iterable[str]) -> dict[str, int]:
    """
    Compare the ids of a table with those that were sent.

    Returns:
        `received` rows, ids that are `lost`, ids that are `repeated`, ids that are `strange`.
    """
    times = Counter(found)
    expected = set(sent)
    return {
        "received": times.total(),
        "lost": len(expected - times.keys()),
        "repeated": sum(each > 1 for each in times.values()),
        "strange": len(times.keys() - expected),
    }


def watch(query: StreamingQuery, say: Callable[..., None]) -> None:
    """Report each finished micro-batch, until the stream ends."""
    reported, active = -1, True
    while active:
        active = not query.awaitTermination(0.1)  # type: ignore[arg-type]
        for progress in query.recentProgress:
            if progress.batchId > reported and progress.numInputRows:
                seconds = progress.durationMs["triggerExecution"] / 1000
                say(
                    event="batch",
                    messages=progress.numInputRows,
                    seconds=seconds,
                    cold=reported < 0,
                )
                reported = progress.batchId


if __name__ == "__main__":
    main()
