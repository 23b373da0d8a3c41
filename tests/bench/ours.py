"""What this package does, as its user sees it: whole batches and writes, with every commit."""

from __future__ import annotations

import random
import time
from datetime import datetime
from queue import Queue
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from .database import expect
from .figures import durations, steady_rate
from .stand import BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .stand import Stand

SMALL_BATCHES = 25
_ARRIVALS = 40  # latency samples of one round: 200 in five
_PEEK_DELAY = 1.0  # seconds; the default of the source
_PATIENCE = 30.0  # seconds for one message to arrive


def receive_json(stand: Stand) -> list[float]:
    """Batches to noop, headers as text. Messages/s."""
    return [_receive(stand, "json")]


def receive_map(stand: Stand) -> list[float]:
    """Batches to noop, headers as a map. Messages/s."""
    return [_receive(stand, "map")]


def receive_delta(stand: Stand) -> list[float]:
    """Batches to a Delta table on the local disk, headers as text. Messages/s."""
    writer = _stream(stand, stand.messages, "json").writeStream.format("delta")
    progress = drain(stand, writer.option("path", stand.checkpoint()))
    return [steady_rate(progress, stand.messages * BATCHES)]


def queue_to_queue(stand: Stand) -> list[float]:
    """Batches from one queue to another, each message exactly once. Messages/s."""
    sink = _stream(stand, stand.messages, "json").drop("queue").writeStream.format(stand.ours)
    writer = sink.option("url", stand.url).option("queue", "sent")
    rate = steady_rate(drain(stand, writer), stand.messages * BATCHES)
    expect("the queue holds", stand.database.count("sent"), stand.messages * BATCHES)
    return [rate]


def write_a_few(stand: Stand) -> None:
    """
    Send ten messages, not measured.

    Spark ends Python processes that idle for a minute; the next write pays 0.6 s for new ones.
    """
    frame = stand.frame.limit(10).write.format(stand.ours)
    frame.option("url", stand.url).mode("append").save("sent")


def write_exactly_once(stand: Stand) -> list[float]:
    """One batch write from memory. Messages/s."""
    return [_write(stand, stand.frame, "exactlyOnce")]


def write_form(form: str, stand: Stand) -> list[float]:
    """One batch write from memory, headers in another form. Messages/s."""
    return [_write(stand, stand.forms[form], "exactlyOnce")]


def write_at_least_once(stand: Stand) -> list[float]:
    """One batch write from memory. Messages/s."""
    return [_write(stand, stand.frame, "atLeastOnce")]


def browse_json(stand: Stand) -> list[float]:
    """Read a queue without receiving, headers as text. Messages/s."""
    return [_browse(stand, "json")]


def browse_map(stand: Stand) -> list[float]:
    """Read a queue without receiving, headers as a map. Messages/s."""
    return [_browse(stand, "map")]


def _browse(stand: Stand, headers: str) -> float:
    source = stand.spark.read.format(stand.ours).option("url", stand.url)
    rows = source.option("headersFormat", headers).load("shelf")
    start = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return stand.messages / (time.perf_counter() - start)


def small_batch(stand: Stand) -> list[float]:
    """Micro-batches of one message to noop. Milliseconds each."""
    writer = _stream(stand, 1, "json").writeStream.format("noop")
    return durations(drain(stand, writer))


def latency(stand: Stand) -> list[float]:
    """Messages sent one by one to an idle stream: commit to end of batch. Milliseconds each."""
    arrivals = _Arrivals()
    stand.spark.streams.addListener(arrivals)
    sink = _stream(stand, stand.messages, "json").writeStream.format("noop")
    query = sink.option("checkpointLocation", stand.checkpoint()).start()
    try:
        _send_and_wait(stand, arrivals)  # the first batch loads code
        return [_send_and_wait(stand, arrivals) for _ in range(_ARRIVALS)]
    finally:
        query.stop()
        stand.spark.streams.removeListener(arrivals)


class _Arrivals(StreamingQueryListener):
    """Says when each batch with rows had ended, in seconds since 1970."""

    def __init__(self) -> None:
        self.ends: Queue[float] = Queue()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 Spark's name
        progress = event.progress
        if progress.numInputRows:
            start = datetime.fromisoformat(progress.timestamp).timestamp()
            self.ends.put(start + progress.durationMs["triggerExecution"] / 1000)

    def onQueryStarted(self, event: QueryStartedEvent) -> None: ...  # noqa: N802

    def onQueryIdle(self, event: object) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802


def _send_and_wait(stand: Stand, arrivals: _Arrivals) -> float:
    time.sleep(random.uniform(0.2, 0.2 + _PEEK_DELAY))  # any phase of the peek loop
    stand.database.send_one("orders")
    sent = time.time()
    return (arrivals.ends.get(timeout=_PATIENCE) - sent) * 1000


def _stream(stand: Stand, most: int, headers: str) -> DataFrame:
    source = stand.spark.readStream.format(stand.ours).option("url", stand.url)
    source = source.option("headersFormat", headers).option("maxMessagesPerTrigger", most)
    return source.load("orders")


def _receive(stand: Stand, headers: str) -> float:
    writer = _stream(stand, stand.messages, headers).writeStream.format("noop")
    rate = steady_rate(drain(stand, writer), stand.messages * BATCHES)
    expect("left in the queue:", stand.database.count("orders"), 0)
    return rate


def drain(stand: Stand, writer: DataStreamWriter) -> list[StreamingQueryProgress]:
    """Run a stream until nothing waits; its progress."""
    writer = writer.option("checkpointLocation", stand.checkpoint())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query.recentProgress


def _write(stand: Stand, frame: DataFrame, delivery: str) -> float:
    sink = frame.write.format(stand.ours)
    start = time.perf_counter()
    sink.option("url", stand.url).option("delivery", delivery).mode("append").save("sent")
    elapsed = time.perf_counter() - start
    expect("the queue holds", stand.database.count("sent"), stand.messages)
    return stand.messages / elapsed
