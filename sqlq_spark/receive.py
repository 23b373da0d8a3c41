"""
One receive task: a database transaction that takes messages and leaves a receipt.

    fence         the batch is not acknowledged, and cannot be while we work; else StaleTask
    task_lock     one attempt at a time
    find_receipt  another attempt was here: hand out what it got, and receive nothing more
    receive       delete what no one else holds, step by step, up to the ceiling
    divert        expired rows are counted and gone; poison goes to the error queue
    save_receipt  the rest, in the same commit

The rows go to Spark only after the commit.
A connection lost at any point, the commit's answer among them, is answered by doing all of it
again: either nothing had happened, or the receipt is there.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.dialects import transaction
from sqlq_spark.errors import ReaderNotFound, StaleTask
from sqlq_spark.message import QUEUE_ROW, Headers, by_seq, packed, unpacked

if TYPE_CHECKING:
    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

log = logging.getLogger("sqlq_spark")

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20

TAKEN = QUEUE_ROW.append(pa.field("expired", pa.bool_()))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one task of a batch is to receive, and from where."""

    queue: QueueAddress
    reader: str
    batch: int
    task: int
    first: int  # of the range of seqs
    stop: int
    messages: int  # at most
    bytes: int = CEILING  # at most, but one message at least
    bytes_each: float = 1024.0  # what one is thought to weigh
    errors: QueueAddress | None = None
    receipts: bool = True  # False: transactionMode none
    fail_on_data_loss: bool = True


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What Spark calls the micro-batch; kept in the receipt so that a sink can settle it."""

    query_id: str | None = None
    query_batch: int | None = None


def receive(connection: Connection, task: Task, *, timeout: float, origin: Origin) -> pa.Table:
    """
    Take what the task may take, or what an earlier attempt of it took.

    Args:
        connection: no transaction open.
        task: its range, limits and identity.
        timeout: seconds for each statement and wait.
        origin: Spark's names for this batch.

    Returns:
        Messages of QUEUE_ROW in the order of seq; they have left the queue, committed.

    Raises:
        StaleTask: the batch was acknowledged.
        DatabaseFailure: nothing was taken, or, after ConnectionLost, that is not known: call again.
    """
    with transaction(connection, timeout=timeout):
        if not task.receipts:
            return divert(connection, task, take(connection, task))[0]
        if not fence(connection, task):
            return QUEUE_ROW.empty_table()
        found = connection.rows(
            "find_receipt", reader=task.reader, batch=task.batch, task=task.task
        )
        if found:
            return unpacked(found[0][0])
        taken = take(connection, task)
        rows, expired, diverted = divert(connection, task, taken)
        save(connection, task, rows, origin=origin, expired=expired, diverted=diverted)
        return rows


def fence(connection: Connection, task: Task) -> bool:
    """
    Make sure that the batch is open, and that no other attempt of the task is at work.

    Returns:
        False where the batch is closed and failOnDataLoss=false accepts that.
    """
    row = connection.rows("fence", reader=task.reader)
    if not row:
        raise ReaderNotFound(task.reader, connection.state, connection.server)
    acked = row[0][0]
    if task.batch <= acked:
        error = StaleTask(task.reader, task.batch, task.task, acked)
        if task.fail_on_data_loss:
            raise error
        log.warning("nothing is received, as failOnDataLoss=false asks for: %s", error)
        return False
    connection.rows("task_lock", reader=task.reader, batch=task.batch, task=task.task)
    return True


def take(connection: Connection, task: Task) -> pa.Table:
    """
    Delete the task's messages, in steps of about STEP bytes, until its range or a limit ends.

    A step looks at no more rows than are likely to fit; the database cuts it at the exact weight.
    """
    steps: list[pa.Table] = []
    first, messages, ceiling, each = (
        task.first,
        task.messages,
        task.bytes,
        max(1.0, task.bytes_each),
    )
    while first < task.stop and messages > 0 and ceiling > 0:
        room = min(STEP, ceiling)
        step = connection.arrow(
            "receive",
            tables={"queue": task.queue},
            first=first,
            stop=task.stop,
            messages=min(messages, int(room / each) + 1),
            bytes=room,
        )
        if not step.num_rows:
            break
        step = by_seq(step.select(TAKEN.names).cast(TAKEN))
        steps.append(step)
        weight = weigh(step)
        first = step["seq"][-1].as_py() + 1
        messages -= step.num_rows
        ceiling -= weight
        each = max(1.0, weight / step.num_rows)
    return pa.concat_tables(steps) if steps else TAKEN.empty_table()


def weigh(rows: pa.Table) -> int:
    """Bytes of headers and bodies."""
    lengths = (pc.sum(pc.binary_length(rows[name])).as_py() or 0 for name in ("headers", "body"))
    return sum(lengths)


def divert(connection: Connection, task: Task, taken: pa.Table) -> tuple[pa.Table, int, int]:
    """
    Keep what is to be delivered.

    Returns:
        The rows of QUEUE_ROW, how many were expired, how many went to the error queue.
    """
    live = taken.drop_columns("expired")
    if pc.any(taken["expired"]).as_py():
        live = live.filter(pc.invert(taken["expired"]))
    expired = taken.num_rows - live.num_rows
    if task.errors is None or not live.num_rows:
        return live, expired, 0
    poison = Headers(live["headers"].combine_chunks()).poison()
    bad = live.filter(poison)
    for row in bad.to_pylist():
        if not divert_one(connection, task.errors, row, row["id"].hex()):
            divert_one(connection, task.errors, row, uuid.uuid4().hex)
    return live.filter(pc.invert(poison)) if bad.num_rows else live, expired, bad.num_rows


def divert_one(
    connection: Connection, errors: QueueAddress, row: dict[str, Any], name: str
) -> bool:
    """Put a poison row, as it was, into the error queue; False where the id is there already."""
    values = {"headers": row["headers"], "body": row["body"]}
    return bool(connection.rows("divert", tables={"errors": errors}, id=name, **values))


def save(
    connection: Connection,
    task: Task,
    rows: pa.Table,
    *,
    origin: Origin,
    expired: int,
    diverted: int,
) -> None:
    """Write the receipt, also where nothing was got: a replay must then get nothing again."""
    connection.run(
        "save_receipt",
        reader=task.reader,
        batch=task.batch,
        task=task.task,
        queue_name=connection.printed(task.queue),
        messages=rows.num_rows,
        expired=expired,
        diverted=diverted,
        bytes=weigh(rows),
        query_id=origin.query_id,
        query_batch=origin.query_batch,
        payload=packed(rows),
    )
    if diverted:
        log.warning(
            "%s: %d poison messages moved to the error queue",
            connection.printed(task.queue),
            diverted,
        )
