"""
Sending: stage on the executors, dispatch once on the driver, or send at once.

exactlyOnce: a task writes its messages as parcels into the outbox, where no receiver sees them.
When all tasks are done, the driver enters the batch into the ledger, copies the winning attempts'
parcels into the queues and empties the outbox, in one transaction. A batch that is in the ledger is
not sent again, and one that failed was not sent at all.

atLeastOnce: a task sends each parcel in a transaction of its own, straight into the queues.
A task that is tried again sends again, with the same message ids.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.dialects import transaction
from sqlq_spark.errors import MissingOption, ParcelsMissing, QueueNotFound
from sqlq_spark.message import packed, rising_ids, unpacked
from sqlq_spark.options import addressed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection
    from sqlq_spark.options import DatabaseOptions, SinkOptions
    from sqlq_spark.sessions import Session

log = logging.getLogger("sqlq_spark")

ABANDONED = 7 * 86400.0  # seconds after which nothing is kept of a nameless write


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task put into the outbox."""

    sink: str
    batch: int
    attempt: str
    parcels: int
    messages: int


def nameless_sink() -> str:
    """A name for a write that is never replayed."""
    return f"write:{uuid.uuid4()}"


def stage(session: Session, parcels: Iterable[pa.Table], *, sink: str, batch: int) -> Staged:
    """
    Put a task's messages into the outbox, a transaction for each parcel.

    Args:
        session: of the task.
        parcels: tables of PARCEL_ROW; computed by Spark while no transaction is open.
        sink: who sends.
        batch: the sink's batch.
    """
    attempt, count, messages = str(uuid.uuid4()), 0, 0
    for parcel in parcels:
        session.do(partial(_stage, parcel, (sink, batch, attempt, count), session.options))
        count += 1
        messages += parcel.num_rows
    return Staged(sink, batch, attempt, count, messages)


def _stage(
    parcel: pa.Table,
    key: tuple[str, int, str, int],
    options: DatabaseOptions,
    connection: Connection,
) -> None:
    sink, batch, attempt, number = key
    with transaction(connection, timeout=options.query_timeout):
        connection.rows("sink_open", sink=sink)
        connection.run(
            "stage",
            sink=sink,
            batch=batch,
            attempt=attempt,
            parcel=number,
            messages=parcel.num_rows,
            payload=packed(parcel),
        )


def dispatch(connection: Connection, staged: list[Staged], options: SinkOptions) -> int:
    """
    Send what the winning attempts staged, once, in one transaction.

    Args:
        connection: no transaction open.
        staged: of one sink and batch, one for each task.
        options: the sink's; its queue takes the rows that name none.

    Returns:
        How many messages were sent now; 0 where the batch was sent before.

    Raises:
        ParcelsMissing, QueueNotFound: nothing was sent.
    """
    if not staged:
        return 0
    sink, batch = staged[0].sink, staged[0].batch
    messages = sum(each.messages for each in staged)
    with transaction(connection, timeout=options.query_timeout):
        connection.rows("sink_close", sink=sink)
        new = connection.rows("advance", sink=sink, batch=batch, messages=messages)
        if new:
            send_parcels(connection, staged, options)
        connection.run("discard", sink=sink, batch=batch)
        connection.run("discard_abandoned", seconds=ABANDONED)
        connection.run("forget_abandoned", seconds=ABANDONED)
    log.info(
        "%s: batch %d: %s", sink, batch, f"{messages} messages sent" if new else "was sent before"
    )
    return messages if new else 0


def send_parcels(connection: Connection, staged: list[Staged], options: SinkOptions) -> None:
    """Copy the winning attempts' parcels into the queues, in the order of tasks and rows."""
    sink, batch = staged[0].sink, staged[0].batch
    wanted = [(each.attempt, parcel) for each in staged for parcel in range(each.parcels)]
    there = set(connection.rows("parcels", sink=sink, batch=batch))
    missing = [parcel for parcel in wanted if parcel not in there]
    if missing:
        raise ParcelsMissing(sink, batch, len(wanted), len(wanted) - len(missing))
    known: set[QueueAddress] = set()
    for attempt, parcel in wanted:
        row = connection.rows("parcel", sink=sink, batch=batch, attempt=attempt, parcel=parcel)
        insert(connection, unpacked(row[0][0]), options, known)


def send_now(session: Session, parcels: Iterable[pa.Table], options: SinkOptions) -> int:
    """Send parcels as they come, a transaction for each; returns how many messages."""
    messages = 0
    for parcel in parcels:
        session.do(partial(_send, parcel=parcel, options=options))
        messages += parcel.num_rows
    return messages


def _send(connection: Connection, parcel: pa.Table, options: SinkOptions) -> None:
    with transaction(connection, timeout=options.query_timeout):
        insert(connection, parcel, options, set())


def discard(connection: Connection, sink: str, batch: int, *, final: bool, timeout: float) -> None:
    """
    Drop what a batch, and those before it, staged.

    Args:
        connection: no transaction open.
        sink: who would have sent.
        batch: the one that failed.
        final: it will not be tried again, so its tasks that still run must not stage either.
        timeout: seconds for each statement and wait.
    """
    with transaction(connection, timeout=timeout):
        connection.rows("sink_close", sink=sink)
        if final:
            connection.rows("advance", sink=sink, batch=batch, messages=0)
        connection.run("discard", sink=sink, batch=batch)


def insert(
    connection: Connection, parcel: pa.Table, options: SinkOptions, known: set[QueueAddress]
) -> None:
    """
    Insert a parcel's messages into their queues, Expires by the database's clock.

    Args:
        connection: in a transaction.
        parcel: of PARCEL_ROW.
        options: the sink's.
        known: queues seen in this run; grows.
    """
    rows = expiring(connection, parcel)
    names: dict[QueueAddress, list[str | None]] = {}
    for name in pc.unique(parcel["queue"]).to_pylist():
        names.setdefault(destination(name, options), []).append(name)
    for queue, spelled in names.items():
        if queue not in known:
            look_for(connection, queue)
            known.add(queue)
        own = pc.is_in(parcel["queue"], value_set=pa.array(spelled, pa.string()))
        connection.load(queue, rows if len(names) == 1 else rows.filter(own))


def destination(name: str | None, options: SinkOptions) -> QueueAddress:
    """Where a row goes; `name` is its own queue, untrusted, or None for the sink's."""
    if name is None:
        if options.address is None:
            raise MissingOption("queue", "a queue's name, or a column queue without nulls")
        return options.address
    return addressed("queue (column)", options.url, name)


def look_for(connection: Connection, queue: QueueAddress) -> None:
    """Make sure that a queue is there, by the name that was asked for."""
    if not connection.columns(queue):
        raise QueueNotFound(connection.printed(queue), connection.server)


def expiring(connection: Connection, parcel: pa.Table) -> pa.Table:
    """The columns of a queue, ids fresh; `expires` is the database's now plus the lifetime."""
    ids = rising_ids(parcel.num_rows, time.time())
    columns = {
        "id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(ids), [None, pa.py_buffer(ids)]
        ),
        "headers": parcel["headers"],
        "body": parcel["body"],
    }
    lifetime = parcel["lifetime"]
    if lifetime.null_count < len(lifetime):
        now = connection.rows("clock")[0][0]
        later = pc.multiply(lifetime, 1000).cast(pa.duration("us"))
        columns["expires"] = pc.add(pa.scalar(now, pa.timestamp("us")), later)
    return pa.table(columns)
