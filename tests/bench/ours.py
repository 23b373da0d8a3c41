"""What this package does, as its user sees it: whole batches and writes, with every commit."""

from __future__ import annotations

import os
import random
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
from pyspark.sql import functions
from waiting import until

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import DELETE, use
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.send.dispatch import NAMELESS_SINK, dispatch, stage
from sqlq_spark.send.sender import Sender

from .messages import orders
from .stand import BATCHES, MANY, expect
from .yardsticks import SMALL_BATCHES, durations, first_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from .stand import Stand

_ARRIVALS = 40  # latency samples of one round: 200 in five
_PEEK_DELAY = 1.0  # seconds; the default of the source
_PATIENCE = 30.0  # seconds for one message to arrive
_IDLE = 15.0  # seconds of an idle stream
_WARM = 10.0  # seconds that the idle stream runs before it is measured


def receiving(
    stand: Stand, most: int | None, path: str | None = "orders", **options: Any
) -> DataFrame:
    """Rows of a stream with headers as text, in batches of `most` messages. None: they grow."""
    source = stand.spark.readStream.format(stand.ours).option("url", stand.url)
    source = source.option("headersFormat", "json")
    if most is not None:
        source = source.option("maxMessagesPerTrigger", most)
    return source.options(**options).load(path)


def drain(stand: Stand, writer: DataStreamWriter) -> list[Any]:
    """Run a stream until nothing waits, and return its progress."""
    writer = writer.option("checkpointLocation", stand.checkpoint())
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query.recentProgress


def steady_rate(stand: Stand, writer: DataStreamWriter, messages: int) -> float:
    """Messages/s over all batches with rows but the first, by their whole duration."""
    batches = [each for each in drain(stand, writer) if each.numInputRows]
    expect("the stream received", sum(each.numInputRows for each in batches), messages)
    seconds = sum(each.durationMs["triggerExecution"] for each in batches[1:]) / 1000
    return float(sum(each.numInputRows for each in batches[1:]) / seconds)


# ---------------------------------------------------------------- receive


def receive(stand: Stand, most: int | None = None, **options: Any) -> list[float]:
    """Batches to noop. Messages/s."""
    most = most or stand.messages
    writer = receiving(stand, most, **options).writeStream.format("noop")
    rate = steady_rate(stand, writer, most * BATCHES)
    expect("left in the queue:", stand.database.count("orders"), 0)
    return [rate]


def receive_in_batches(stand: Stand, most: int | None = None, **options: Any) -> list[float]:
    """The same messages to noop, in batches of another size. None: they grow. Messages/s."""
    writer = receiving(stand, most, **options).writeStream.format("noop")
    return [steady_rate(stand, writer, stand.messages * BATCHES)]


def queue_to_queue(stand: Stand, most: int | None = None, **options: Any) -> list[float]:
    """Batches from one queue to another, each message exactly once. Messages/s."""
    rows = receiving(stand, most or stand.messages, **options)
    sink = rows.drop("queue").writeStream.format(stand.ours)
    writer = sink.option("url", stand.url).option("queue", "sent")
    rate = steady_rate(stand, writer, stand.messages * BATCHES)
    expect("the queue holds", stand.database.count("sent"), stand.messages * BATCHES)
    return [rate]


def browse(headers: str, stand: Stand) -> list[float]:
    """Read a queue without receiving. Messages/s."""
    source = stand.spark.read.format(stand.ours).option("url", stand.url)
    rows = source.option("headersFormat", headers).load("shelf")
    start = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return [stand.messages / (time.perf_counter() - start)]


def small_batches(stand: Stand) -> list[float]:
    """Micro-batches of one message to noop. Milliseconds each."""
    return durations(drain(stand, receiving(stand, 1).writeStream.format("noop")))


def lock_and_look(stand: Stand) -> list[float]:
    """How long each receive transaction takes to check who owns its queue. Milliseconds each."""
    options, samples = SourceOptions.parse({"url": stand.url, "queue": "orders"}), []
    with Session(options, "bench") as session:
        for _ in range(SMALL_BATCHES):
            with transaction(session.open()):
                start = time.perf_counter()
                use(session.open(), options.addresses, DELETE)
                samples.append(1000 * (time.perf_counter() - start))
    return samples


def backlog(stand: Stand) -> list[float]:
    """The first micro-batches of a long queue, each of a few messages. Milliseconds each."""
    return first_batches(stand, receiving(stand, max(1, stand.messages // 100)))


def latency(stand: Stand) -> list[float]:
    """Messages sent one by one to an idle stream: commit to end of batch. Milliseconds each."""
    sink = receiving(stand, stand.messages).writeStream.format("noop")
    query = sink.option("checkpointLocation", stand.checkpoint()).start()
    try:
        # the first batch does not count, because it loads code
        return [_arrival(stand, query) for _ in range(_ARRIVALS + 1)][1:]
    finally:
        query.stop()


def _arrival(stand: Stand, query: StreamingQuery) -> float:
    time.sleep(random.uniform(0.2, 0.2 + _PEEK_DELAY))  # arrive at any phase of the peek loop
    before = query.lastProgress
    stand.database.send_one("orders")
    sent = time.time()

    def arrived() -> Any:  # a stream that finds nothing at its start has an empty first batch
        last = query.lastProgress
        old = last and before and last.batchId <= before.batchId
        return last if last and last.numInputRows and not old else None

    progress = until(arrived, seconds=_PATIENCE)
    start = datetime.fromisoformat(progress.timestamp).timestamp()
    return 1000 * (start - sent) + float(progress.durationMs["triggerExecution"])


# ---------------------------------------------------------------- many queues


def _many(stand: Stand, queues: int) -> DataStreamWriter:
    rows = receiving(stand, queues, None, queues=",".join(MANY[:queues]))
    return rows.writeStream.format("noop")


def fill_many(stand: Stand) -> None:
    """Put the messages of SMALL_BATCHES batches into each queue: one message a batch."""
    for queue in MANY:
        stand.database.fill(queue, SMALL_BATCHES, settled=False)


def empty_many(stand: Stand) -> None:
    """Leave no message in any of the queues."""
    for queue in MANY:
        stand.database.ask(f"TRUNCATE TABLE {queue}")


def many_small(stand: Stand) -> list[float]:
    """Micro-batches of one message from each of 64 queues, to noop. Milliseconds each."""
    return durations(drain(stand, _many(stand, len(MANY))))


def idle(queues: int, stand: Stand) -> list[float]:
    """CPU of an idle stream of `queues` queues. Milliseconds a second."""
    writer = _many(stand, queues).option("checkpointLocation", stand.checkpoint())
    query = writer.start()
    try:
        time.sleep(_WARM)
        before, start = _cpu(stand), time.perf_counter()
        time.sleep(_IDLE)
        used = sum(each - before.get(pid, 0.0) for pid, each in _cpu(stand).items())
        return [1000 * used / (time.perf_counter() - start)]
    finally:
        query.stop()


def _cpu(stand: Stand) -> dict[int, float]:
    """
    Seconds of CPU that each process has used so far.

    This process, those below it (the JVM, the workers of Python), and the sessions of the bench's
    database, if the server is on this machine.
    """
    its = {os.getpid(), *processes.below(os.getpid())}
    name = stand.url.rpartition("/")[2]
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if pid in its or f" {name} " in processes.command(pid):
            used = processes.cpu_seconds(pid)
            if used is not None:
                found[pid] = used
    return found


# ---------------------------------------------------------------- send


def write_a_few(stand: Stand) -> None:
    """
    Send ten messages, not measured.

    Spark ends Python processes that idle for a minute; the next write pays 0.6 s for new ones.
    """
    frame = stand.frame.limit(10).write.format(stand.ours)
    frame.option("url", stand.url).mode("append").save("sent")


def write(delivery: str, stand: Stand, form: str = "") -> list[float]:
    """One batch write from memory, perhaps of messages in another form. Messages/s."""
    frame = stand.forms[form] if form else stand.frame
    return [_write(stand, frame, delivery, "sent", ["sent"])]


def spread(delivery: str, queues: int, stand: Stand) -> list[float]:
    """One batch write to `queues` queues, by the column `queue`. Messages/s."""
    number = functions.pmod(functions.hash("id"), functions.lit(queues))
    frame = stand.frame.withColumn("queue", functions.concat(functions.lit("many"), number))
    return [_write(stand, frame, delivery, None, MANY[:queues])]


def _write(
    stand: Stand, frame: DataFrame, delivery: str, path: str | None, queues: Sequence[str]
) -> float:
    sink = frame.write.format(stand.ours)
    start = time.perf_counter()
    sink.option("url", stand.url).option("delivery", delivery).mode("append").save(path)
    elapsed = time.perf_counter() - start
    expect("the queues hold", sum(map(stand.database.count, queues)), stand.messages)
    return stand.messages / elapsed


def dispatched(stand: Stand) -> list[float]:
    """A dispatch alone on its connection, without Spark. Messages/s."""
    options = SinkOptions.parse({"url": stand.url, "queue": "sent"})
    batches = orders(0, stand.messages).to_batches()
    chunks = list(Sender(options=options, partition=0).chunks(batches))
    with StateSession(options, stand.ours) as session:
        staged = stage(session, chunks, sink=f"{NAMELESS_SINK}{uuid.uuid4()}", sink_batch=0)
        start = time.perf_counter()
        dispatch(session.open(), [staged], options)
        elapsed = time.perf_counter() - start
    expect("dispatched", stand.database.count("sent"), stand.messages)
    return [stand.messages / elapsed]
