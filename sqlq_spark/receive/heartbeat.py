"""
Heartbeats: the process that plans a stream writes regularly that it runs the stream.

An idle stream writes its heartbeat within Spark's calls, on the connection that the driver has.
While a batch runs, Spark does not call the driver. Then a thread writes it, on a connection that is
closed after it. A connection for each heartbeat would cost an idle stream a fifth more of the
server's time.

A heartbeat is a row of its own, because the row of a stream is locked while its tasks run. It
decides nothing about messages: if it cannot be written, the stream goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.state_rows import Heartbeat
from sqlq_spark.errors import ConnectionLost, SqlQueueError
from sqlq_spark.wire.dialects import split_canonical

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.receipts import Claim

log = logging.getLogger("sqlq_spark")

INTERVAL = 10.0  # seconds between two heartbeats of a process
PATIENCE = 1.2  # the thread writes if no call of Spark has written for this many intervals
LOCK_WAIT = 1.0  # seconds that a heartbeat waits for a lock
LONGEST_HOST = 255  # characters
FAILED = (
    "%s: the heartbeat cannot be written, so `sqlqueue stats` may show this stream as gone. The "
    "stream goes on. This is logged once: %s"
)
SHARED = (
    "%s: other streams receive from this queue too, and each message goes to only one of them: %s. "
    "If this is on purpose, set sharedByStreams=true on each of them"
)


def find_sharers(heartbeats: Iterable[Heartbeat]) -> dict[str, list[Heartbeat]]:
    """
    Return the queues from which several live streams receive, with their heartbeats.

    If all streams of a queue have the option sharedByStreams, the queue is left out. Two processes
    of one stream count as one stream, because the later one takes it over.
    """
    found: dict[str, dict[str, Heartbeat]] = {}
    for heartbeat in heartbeats:
        if heartbeat.is_alive:
            for queue in split_canonical(heartbeat.queue):
                streams = found.setdefault(queue, {})
                streams.setdefault(heartbeat.stream or heartbeat.driver, heartbeat)
    return {
        queue: [*streams.values()]
        for queue, streams in found.items()
        if len(streams) > 1 and not all(each.shared for each in streams.values())
    }


class HeartbeatWriter:
    """Writes the heartbeats of one driver process, in Spark's calls or in a thread."""

    def __init__(self, claim: Claim, interval: float) -> None:
        """Create the writer, without a thread. `interval` is the time between two heartbeats."""
        self._claim = claim
        self._interval = interval
        self._application = f"heartbeat {claim.options.address.table}"
        self._stream: str | None = None
        self._tried: float | None = None  # when a heartbeat was tried last, in monotonic seconds
        self._has_warned = False
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, connection: Connection, stream: str | None) -> None:
        """
        Write the heartbeat within a call of Spark, if it is due or the stream has become known.

        No transaction may be open. The first call starts the thread, and warns of other live
        streams on the same queues.

        Raises:
            ConnectionLost.
        """
        is_new = stream is not None and stream != self._stream
        if not is_new and self._elapsed() < self._interval:
            return
        if not self._lock.acquire(blocking=False):  # the thread is writing now
            return
        is_first = self._tried is None
        try:
            self._stream = stream or self._stream
            self._write(connection)
            if is_first or is_new:
                self._forget(connection)
            if is_first:
                self._warn_of_others(connection)
        except ConnectionLost:
            raise
        except SqlQueueError as error:
            self._warn(error)
        finally:
            self._lock.release()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for it."""
        self._is_stopped.set()

    def _elapsed(self) -> float:
        """Return the seconds since the last heartbeat was tried."""
        return self._interval if self._tried is None else time.monotonic() - self._tried

    def _run(self) -> None:
        """Write a heartbeat where no call of Spark has, until the process or the stream ends."""
        late = PATIENCE * self._interval
        while not self._is_stopped.wait(max(0.01, late - self._elapsed())):
            if self._elapsed() < late:
                continue
            with self._lock:
                try:
                    with StateSession(self._claim.options, self._application) as session:
                        self._write(session.open())
                except SqlQueueError as error:
                    self._tried = time.monotonic()  # the connection failed: wait as after a try
                    self._warn(error)

    def _write(self, connection: Connection) -> None:
        claim = self._claim
        options = claim.options
        self._tried = time.monotonic()
        with transaction(connection):
            connection.set_lock_timeout(LOCK_WAIT)
            connection.run(
                "beat",
                driver=claim.driver,
                stream=self._stream,
                name=options.stream_name or options.application,
                queue_name=claim.queue,
                host=socket.gethostname()[:LONGEST_HOST],
                process=os.getpid(),
                shared=options.shared_by_streams,
            )

    def _forget(self, connection: Connection) -> None:
        """Delete the rows of the stream's earlier processes."""
        # a transaction of its own: two processes of a stream would wait for each other's rows
        with transaction(connection):
            connection.set_lock_timeout(LOCK_WAIT)
            connection.run("forget_heartbeats", driver=self._claim.driver, stream=self._stream)

    def _warn_of_others(self, connection: Connection) -> None:
        """Warn of other live streams on the same queues, unless that is on purpose."""
        claim = self._claim
        if claim.options.shared_by_streams:
            return
        with transaction(connection):
            sharers = find_sharers(connection.rows("heartbeats", Heartbeat))
        for queue, streams in sharers.items():
            others = [each.describe() for each in streams if each.driver != claim.driver]
            if len(others) < len(streams):
                log.warning(SHARED, queue, "; ".join(others))

    def _warn(self, error: SqlQueueError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(FAILED, self._claim.queue, error)
