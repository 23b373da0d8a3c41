"""
Runs a stream from its start to its totals. SIGTERM ends it after its batch.

Before Spark 4.2 a stream from queues with `Trigger.AvailableNow` ends after one micro-batch. It is
then started again on its checkpoint, until it has received all that waited after the first run.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import CheckpointFailure
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.fields import duration
from sqlq_spark.receive.offset import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

POLL = 0.25  # seconds between two looks at a stream
LAST_BATCH = 60.0  # seconds to wait for the end of the batch when a stream is stopped


def with_trigger(writer: DataStreamWriter, trigger: str) -> DataStreamWriter:
    """Set the trigger of the setting `trigger`."""
    if trigger == "availableNow":
        return writer.trigger(availableNow=True)
    milliseconds = round(duration(0)(trigger) * 1000)
    return writer.trigger(processingTime=f"{milliseconds} milliseconds")


class Stop:
    """A block in which SIGTERM asks a stream to end after its batch."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    @property
    def asked(self) -> bool:
        """Whether SIGTERM was received."""
        return self._asked.is_set()


class Tally:
    """Counts a stream's messages and batches from its progress."""

    def __init__(self, query: StreamingQuery) -> None:
        self.messages = 0
        self.batches = 0
        self.last = -1  # the last batch that is counted
        self.worked = False  # whether a batch was run, even an empty or a replayed one
        self.stream: str | None = None  # the id of a stream from queues
        self._query = query
        self._seen: object = None

    def note(self) -> None:
        """Count new progress; Spark keeps the progress of 100 batches."""
        latest = self._query.lastProgress
        if latest is None or latest.timestamp == self._seen:
            return
        self._seen = latest.timestamp
        for progress in self._query.recentProgress:
            self.worked |= "addBatch" in progress.durationMs
            if progress.batchId > self.last and progress.numInputRows:
                self.last = progress.batchId
                self.batches += 1
                self.messages += progress.numInputRows
            self.stream = stream_of(progress.sources[0].endOffset) or self.stream


def follow(query: StreamingQuery) -> dict[str, int]:
    """
    Wait for a stream's end, or for SIGTERM, and count.

    SIGTERM stops the stream after its batch. Under spark-submit the signal must reach this process.
    If it reaches only the JVM, the JVM ends immediately, and the next run repeats the batch.

    Returns:
        `messages`, `batches`.
    """
    with Stop() as stop:
        tally = watch(query, stop)
    return {"messages": tally.messages, "batches": tally.batches}


def receive(
    start: Callable[[dict[str, str]], StreamingQuery], read: dict[str, str], trigger: str
) -> dict[str, int]:
    """
    Run a stream from queues to its end; SIGTERM ends it as in `follow`.

    Args:
        start: starts the stream with options of the read; it may be called more than once.
        read: options of the read.
        trigger: the setting.

    Returns:
        `messages`, `batches`, and the messages of acknowledged batches that were not delivered:
        `expired`, `diverted`, `forwarded`.
    """
    source = SourceOptions.parse(read)
    totals = Counter(messages=0, batches=0, expired=0, diverted=0, forwarded=0)
    again, ends = trigger == "availableNow" and not drains(), None
    with Stop() as stop:
        while True:
            before = streams(source)
            tally = watch(start(read), stop)
            totals.update(messages=tally.messages, batches=tally.batches)
            totals.update(undelivered(tally.stream, before, streams(source)))
            if not again or stop.asked or not tally.worked:
                return dict(totals)
            ends = tops(source) if ends is None else ends  # includes delayed messages that were due
            if is_past(source, ends):
                return dict(totals)
            # later messages must not be purged
            read = {name: text for name, text in read.items() if name != "purgeOnStartup"}


def drains() -> bool:
    """Whether `Trigger.AvailableNow` receives all that waits, instead of one micro-batch."""
    from sqlq_spark import spark_api  # noqa: PLC0415 - needs pyspark, --help does not

    return spark_api.DRAINS_AT_ONCE


def watch(query: StreamingQuery, stop: Stop) -> Tally:
    """Wait until a stream ends, or until it was asked to stop and its batch ended."""
    tally, active = Tally(query), True
    while active and not stop.asked:
        active = not query.awaitTermination(POLL)  # type: ignore[arg-type]
        tally.note()
    if active:
        end(query, tally)
    tally.note()
    return tally


def end(query: StreamingQuery, tally: Tally) -> None:
    """Stop a stream after its current batch."""
    last, until = tally.last, time.monotonic() + LAST_BATCH
    while query.status["isDataAvailable"] and tally.last == last and time.monotonic() < until:
        query.awaitTermination(POLL)  # type: ignore[arg-type]
        tally.note()
    query.stop()


# ---------------------------------------------------------------- the queues of a stream


def tops(source: SourceOptions) -> dict[str, tuple[int, int]]:
    """The lowest and the highest seq of each queue that is not empty."""
    with Session(source, "job") as opened:
        connection = opened.open()
        with transaction(connection, timeout=source.query_timeout):
            found = {
                name: connection.rows("top", tables={"queue": queue})[0]
                for name, queue in zip(source.names, source.addresses, strict=True)
            }
    return {name: (first, last) for name, (first, last) in found.items() if first is not None}


def is_past(source: SourceOptions, ends: dict[str, tuple[int, int]]) -> bool:
    """Whether all messages that `tops` once found are received; later ones may wait."""
    left = {name: first for name, (first, _) in tops(source).items() if name in ends}
    return all(first > ends[name][1] for name, first in left.items())


def streams(source: SourceOptions) -> dict[str, inspect.Stream]:
    """The streams of the state tables, by id."""
    if source.transaction_mode == "none":
        return {}
    with StateSession(source, "job") as opened:
        connection = opened.open()
        with transaction(connection, timeout=source.query_timeout):
            return {each.stream: each for each in inspect.streams(connection)}


def undelivered(
    stream: str | None, before: dict[str, inspect.Stream], after: dict[str, inspect.Stream]
) -> dict[str, int]:
    """Count the messages that a stream did not deliver between two looks."""
    names = ("expired", "diverted", "forwarded")
    if stream is None:
        return dict.fromkeys(names, 0)
    now, was = after.get(stream), before.get(stream)
    return {name: getattr(now, name, 0) - getattr(was, name, 0) for name in names}


def stream_of(offset: str | dict[str, Any] | None) -> str | None:
    """Return the stream's id in an offset of the progress; None if it is of another format."""
    try:
        return Offset.parse(json.loads(offset) if isinstance(offset, str) else offset).stream
    except (CheckpointFailure, TypeError, ValueError):
        return None
