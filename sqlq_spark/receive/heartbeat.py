"""
Heartbeats: the process that plans a stream writes regularly that it runs the stream.

The first heartbeat is written by the driver, before its first look. It also finds the other streams
that receive from the same queues. Later ones are written by a thread, also while a batch runs or
while the queue is empty. The thread opens a connection for each heartbeat and closes it, so a
stream has no connection more than it needs. If a heartbeat cannot be written, the stream goes on.

A heartbeat is a row of its own. The row of a stream is locked while its tasks run.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import LOCK_PATIENCE
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.state_rows import Heartbeat
from sqlq_spark.wire.dialects import split_canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.receipts import Claim

log = logging.getLogger("sqlq_spark")

INTERVAL = 20.0  # seconds between two heartbeats of a process
LONGEST_HOST = 255  # characters


def write(connection: Connection, claim: Claim) -> None:
    """Write a heartbeat in the transaction that is open."""
    options = claim.options
    connection.run(
        "beat",
        driver=claim.driver,
        name=options.stream_name or options.application,
        queue_name=claim.queue,
        host=socket.gethostname()[:LONGEST_HOST],
        process=os.getpid(),
        shared=options.shared_by_streams,
    )


def begin(connection: Connection, claim: Claim, stream: str | None) -> None:
    """
    Write the first heartbeat of a process, and warn of other streams on the same queues.

    `stream` is the stream of the checkpoint, or None for a new checkpoint. The heartbeat of an
    earlier process of this stream is deleted.
    """
    try:
        with transaction(connection):
            connection.set_lock_timeout(LOCK_PATIENCE)
            write(connection, claim)
            connection.run("forget_heartbeats", driver=claim.driver, stream=stream)
            connection.set_lock_timeout(None)
            others = find_others(connection.rows("heartbeats", Heartbeat), claim)
    except errors.ConnectionLost:
        raise
    except errors.DatabaseFailure as error:
        warn(claim, error)
        return
    if others and not claim.options.shared_by_streams:
        log.warning(
            "%s: other streams receive from this queue too, and each message goes to only one of "
            "them: %s. If this is on purpose, set sharedByStreams=true on each of them",
            claim.queue,
            "; ".join(other.describe() for other in others),
        )


def find_others(heartbeats: Sequence[Heartbeat], claim: Claim) -> list[Heartbeat]:
    """Return the other live processes that read one of the claim's queues."""
    queues = {*claim.options.names}
    return [
        other
        for other in heartbeats
        if other.is_alive
        and other.driver != claim.driver
        and not queues.isdisjoint(split_canonical(other.queue))
    ]


def warn(claim: Claim, error: errors.SqlQueueError) -> None:
    """Warn that a heartbeat was not written."""
    log.warning(
        "%s: the heartbeat of this stream cannot be written, so `sqlqueue stats` shows it only by "
        "its batches: %s",
        claim.queue,
        error,
    )


class HeartbeatThread(threading.Thread):
    """Writes the heartbeats after the first one, until it is stopped or the process ends."""

    def __init__(self, claim: Claim, interval: float) -> None:
        super().__init__(name="sqlqueue heartbeat", daemon=True)
        self._claim = claim
        self._interval = interval
        self._stopped = threading.Event()

    def run(self) -> None:
        """Write a heartbeat after each interval. A failure is logged once, until one succeeds."""
        has_failed = False
        while not self._stopped.wait(self._interval):
            options = self._claim.options
            try:
                with (
                    Session(options, "heartbeat", was_reached=True) as session,
                    transaction(session.open()),
                ):
                    connection = session.open()
                    connection.set_lock_timeout(LOCK_PATIENCE)
                    write(connection, self._claim)
                has_failed = False
            except errors.SqlQueueError as error:
                if not has_failed:
                    warn(self._claim, error)
                has_failed = True

    def stop(self) -> None:
        """Write no more heartbeats. One that is being written is finished."""
        self._stopped.set()
