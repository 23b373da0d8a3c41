"""
Where a task waits for its turn, as the options maxMessagesPerSecond and pauseAboveBacklog ask.

Tasks wait, not the driver. Measured on Spark 4.2, when a query is stopped: Spark ends a waiting
task after three seconds. A wait in the driver's Python worker goes on, and `stop` does not return.

With delivery=exactlyOnce a task waits after it has staged its messages: the driver dispatches when
all tasks have ended. One task is enough to keep the dispatch waiting, so only the first one waits
for the rate and for the destinations of the options. The others end, and free their cores. Each
task waits for destinations that its own rows name.

With delivery=atLeastOnce a task waits before each chunk.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.send import dispatch_log
from sqlq_spark.send.pace.backlog import Above, check_source, find_above
from sqlq_spark.send.pace.named import Named
from sqlq_spark.send.pace.rate import seconds_left
from sqlq_spark.send.pace.wait import Reason, wait_while

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.write import WriteTask

Work: TypeAlias = "Callable[[Connection], Above | None]"

PAUSE = 1.0  # seconds between looks at a backlog
PAUSE_SHARE = 10.0  # of the time that a look took: dead rows that a snapshot keeps make it slow
LONGEST_PAUSE = 60.0  # seconds between looks at the clock


def wait_before_dispatch(options: SinkOptions, task: WriteTask, named: Named) -> None:
    """
    Wait until the driver may dispatch, as far as this task decides it.

    No connection is held during a pause.

    Args:
        options: the sink's.
        task: that has staged its rows.
        named: what its rows name.
    """
    first, common = task.partition == 0, Named.of_options(options)
    if first and options.max_rate is not None:
        wait_for_rate(options, task, options.max_rate)
    if options.pause_above is not None:
        own = named | common if first else named - common
        do = partial(do_once, options, task.name)
        wait_for_backlog(options, options.pause_above, own, task, do)


def wait_before_chunks(
    session: Session, chunks: Iterable[pa.Table], options: SinkOptions, task: WriteTask
) -> Iterator[pa.Table]:
    """
    Pass chunks on, each when it may be inserted.

    Args:
        session: of the task; no transaction is open. It reconnects if the server ended it.
        chunks: tables of CHUNK_ROW.
        options: the sink's.
        task: whose rows they are.
    """
    for chunk in chunks:
        if options.pause_above is not None:
            wait_for_backlog(
                options, options.pause_above, Named.of_chunk(chunk), task, session.run_with_retries
            )
        yield chunk


def do_once(options: SinkOptions, name: str, work: Work) -> Above | None:
    """Do something in a session of its own, which leaves its connection to the next one."""
    with StateSession(options, f"sink {name}", worker=True, reached=True) as session:
        return session.run_with_retries(work)


def wait_for_backlog(
    options: SinkOptions,
    limit: int,
    named: Named,
    task: WriteTask,
    do: Callable[[Work], Above | None],
) -> None:
    """Wait while the backlog of a destination is above the limit."""
    if named.queues or named.topics:
        query = task.origin.query_id
        if query is not None:
            do(partial(check_source, named=named, options=options, query=query))
        wait_while(BacklogLook(options, named, limit, do), f"sink {task.name}")


@dataclass
class BacklogLook:
    """Looks for a destination above the limit, at the last one that was found first."""

    options: SinkOptions
    named: Named
    limit: int
    do: Callable[[Work], Above | None]
    found: Above | None = None

    def __call__(self, *, exact: bool) -> Reason | None:
        """As Look."""
        first = None if self.found is None else self.found.queue

        def look(connection: Connection) -> Above | None:
            return find_above(
                connection, self.named, self.options, self.limit, first=first, exact=exact
            )

        began = time.monotonic()
        self.found = self.do(look)
        pause = max(PAUSE, PAUSE_SHARE * (time.monotonic() - began))
        return None if self.found is None else Reason(str(self.found), pause)


def wait_for_rate(options: SinkOptions, task: WriteTask, rate: int) -> None:
    """Wait until the rate allows the next dispatch of the sink."""
    with StateSession(options, f"sink {task.name}", worker=True, reached=True) as session:
        left = session.run_with_retries(partial(read_seconds_left, options, task, rate))
    # such a wait comes with each batch, so it is no warning
    wait_while(RateLook(time.monotonic() + left, rate), f"sink {task.name}", level=logging.INFO)


def read_seconds_left(
    options: SinkOptions, task: WriteTask, rate: int, connection: Connection
) -> float:
    """Return how long the batch must wait; 0 for one that was sent before."""
    with transaction(connection, timeout=options.query_timeout):
        sent = dispatch_log.last_sent(connection, task.sink)
    if sent is None or sent.batch >= task.batch:
        return 0.0
    return seconds_left(sent.messages, sent.seconds, rate)


@dataclass
class RateLook:
    """Looks whether a time has come."""

    until: float  # monotonic
    rate: int

    def __call__(self, *, exact: bool) -> Reason | None:  # noqa: ARG002
        """As Look."""
        left = self.until - time.monotonic()
        if left <= 0:
            return None
        text = f"{left:.1f} s until the next batch (maxMessagesPerSecond={self.rate})"
        return Reason(text, min(left, LONGEST_PAUSE))
