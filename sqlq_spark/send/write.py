"""
One batch of a sink: what a task does with its rows, and what the driver does when all are done.

With delivery=exactlyOnce a task stages its messages, and the driver dispatches them. With
delivery=atLeastOnce a task sends them itself.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database import read_clock
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.send import at_least_once, queue_writer, staging
from sqlq_spark.send.dispatch import dispatch
from sqlq_spark.send.message.sender import Sender
from sqlq_spark.send.pace.named import Named
from sqlq_spark.send.pace.turn import wait_before_chunks, wait_before_dispatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.message.sent_by import SentBy
    from sqlq_spark.send.staging import Staged
    from sqlq_spark.wire.rows import Origin

log = logging.getLogger("sqlq_spark")


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """What identifies the write of one partition."""

    sink: str
    batch: int
    partition: int
    origin: Origin
    sent_by: SentBy | None = None

    @property
    def name(self) -> str:
        """What the DBA and the logs call it."""
        return f"{self.sink}/{self.batch}/{self.partition}"


def look_ahead(options: SinkOptions) -> None:
    """Fail on the driver, before a task runs, if a table that the options name does not exist."""
    if not options.names_tables:
        return
    with choose_session(options)(options, "look ahead", worker=True) as session:
        session.run_with_retries(
            lambda connection: queue_writer.check_destinations(connection, options)
        )


def choose_session(options: SinkOptions) -> type[Session]:
    """Return the kind of session that the delivery needs."""
    return StateSession if options.delivery == "exactlyOnce" else Session


def write(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], task: WriteTask
) -> tuple[Staged | None, int]:
    """
    Stage or send the rows of one task, and wait as the options ask for it.

    Returns:
        What was staged, None with delivery=atLeastOnce; and how many messages there were.
    """
    exactly_once = options.delivery == "exactlyOnce"
    # a task that Spark tries again sends the same ids
    seed = None if exactly_once else hashlib.sha256(task.name.encode()).digest()[:16]
    named = Named()
    known = task.batch > 0  # of a stream, by the batches before
    session_of = choose_session(options)
    with session_of(options, f"sink {task.name}", worker=True, reached=known) as session:
        sender = Sender(
            options=options,
            partition=task.partition,
            seed=seed,
            clock=partial(session.run_with_retries, read_clock),  # it decides when messages expire
            own_address=partial(queue_writer.own_address, session),
            sent_by=task.sent_by,
        )
        chunks = sender.chunks(batches)
        if not exactly_once:
            paced = wait_before_chunks(session, chunks, options, task)
            return None, at_least_once.send_now(session, paced, options)
        staged = staging.stage(
            session, named.record(chunks), sink=task.sink, batch=task.batch, origin=task.origin
        )
    wait_before_dispatch(options, task, named)
    return staged, staged.messages


def dispatch_staged(options: SinkOptions, staged: Sequence[Staged]) -> None:
    """Send what the tasks of a batch staged, in one transaction."""
    if staged:
        name = f"dispatch {staged[0].sink}/{staged[0].batch}"
        with StateSession(options, name, worker=True, reached=True) as session:
            session.run_with_retries(lambda connection: dispatch(connection, staged, options))


def discard_staged(options: SinkOptions, sink: str, batch: int, *, final: bool) -> None:
    """
    Delete what was staged for a batch that was aborted.

    A failure is only logged, because Spark reports why the write was aborted.

    Args:
        options: of the sink.
        sink: who would have sent.
        batch: the one that failed.
        final: whether the batch is never tried again. Then tasks that still run cannot stage.
    """
    if options.delivery != "exactlyOnce":
        return
    try:
        with StateSession(options, f"abort {sink}/{batch}") as session:
            session.run_with_retries(
                lambda connection: staging.discard(
                    connection, sink, batch, final=final, timeout=options.query_timeout
                )
            )
    except SqlQueueError as error:
        log.warning("%s: batch %d: its chunks are left for now: %s", sink, batch, error)
