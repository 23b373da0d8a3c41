"""
One receive task: a database transaction that takes messages and leaves a receipt.

    fence         the batch is not acknowledged, and cannot be while we work; else StaleTask
    task_lock     one attempt at a time
    find_receipt  another attempt was here: hand out what it got, and receive nothing more
    receive       delete what no one else holds, step by step, up to the ceiling
    divert        expired rows are counted and gone; poison goes to the error queue, what was
                  delayed for another queue is forwarded there
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
from sqlq_spark.errors import ReaderNotFound, StaleTask, StatementFailed
from sqlq_spark.forward import forward
from sqlq_spark.message import BODY_STRING, QUEUE_ROW, Headers, by_seq
from sqlq_spark.payload import RECEIPT_KEY, in_row, packed, pages, unpacked

if TYPE_CHECKING:
    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

log = logging.getLogger("sqlq_spark")

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20

# why a row with a fresh id can be there already
BEHIND = "its sequence gives seqs that are taken; let it go on behind the highest seq"

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
    receives: bool = True  # False: the options do not name its queue
    body_string: bool = False  # also the column BodyString
    fail_on_data_loss: bool = True

    @property
    def key(self) -> tuple[str, int, int]:
        """Of its receipt."""
        return self.reader, self.batch, self.task


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What Spark calls the micro-batch; kept in the receipt so that a sink can settle it."""

    query_id: str | None = None
    query_batch: int | None = None


NO_STREAM = Origin()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a task delivers, and what became of the rest."""

    rows: pa.Table  # of QUEUE_ROW
    expired: int = 0
    diverted: int = 0  # to the error queue
    forwarded: int = 0  # to other queues


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
        With `task.body_string` also BODY_STRING, unless an earlier attempt was not asked for it.

    Raises:
        StaleTask: the batch was acknowledged.
        DatabaseFailure: nothing was taken, or, after ConnectionLost, that is not known: call again.
    """
    with transaction(connection, timeout=timeout):
        if not task.receipts and not task.receives:
            return QUEUE_ROW.empty_table()
        if not task.receipts:
            return divert(connection, task, take(connection, task)).rows
        open_, login = fence(connection, task)
        found = receipt(connection, task, login)
        if found is not None or not open_:
            return QUEUE_ROW.empty_table() if found is None else found
        kept = Kept(QUEUE_ROW.empty_table())
        if task.receives:
            kept = divert(connection, task, take(connection, task))
        save(connection, task, kept, login=login, origin=origin)
        return kept.rows


def fence(connection: Connection, task: Task) -> tuple[bool, str]:
    """
    Make sure that the batch is open, and that no other attempt of the task is at work.

    Returns:
        False where the batch is closed and failOnDataLoss=false accepts that: the task may still
        hand out its receipt, which is there if only another task's was returned, and take nothing.
        And the login that made the stream, to which its receipts belong.
    """
    row = connection.rows("fence", reader=task.reader)
    if not row:
        raise ReaderNotFound(task.reader, connection.state, connection.server)
    acked, login = row[0]
    if task.batch <= acked:
        error = StaleTask(task.reader, task.batch, task.task, acked)
        if task.fail_on_data_loss:
            raise error
        log.warning("nothing is received, as failOnDataLoss=false asks for: %s", error)
        return False, login
    lock(connection, task, login)
    return True, login


def lock(connection: Connection, task: Task, login: str) -> None:
    """Wait for another attempt of the task, and let others wait for this one."""
    key: dict[str, Any] = {"reader": task.reader, "login": login, "task": task.task}
    if not connection.rows("task_lock", **key):
        connection.run("new_task", **key)
        connection.rows("task_lock", **key)


def receipt(connection: Connection, task: Task, login: str) -> pa.Table | None:
    """What an earlier attempt of the task got; None where there was none."""
    reader, batch, at = task.key
    key: dict[str, Any] = {"reader": reader, "login": login, "batch": batch, "task": at}
    found = connection.rows("find_receipt", **key)
    if not found:
        return None
    if payload := found[0][0]:
        return unpacked(payload)
    return unpacked(b"", connection.rows("receipt_pages", **key))


def take(connection: Connection, task: Task) -> pa.Table:
    """
    Delete the task's messages, in steps of about STEP bytes, until its range or a limit ends.

    A step looks at no more rows than are likely to fit; the database cuts it at the exact weight.
    """
    statement = "receive_body_string" if task.body_string else "receive"
    wanted = TAKEN.append(BODY_STRING) if task.body_string else TAKEN
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
            statement,
            tables={"queue": task.queue},
            first=first,
            stop=task.stop,
            messages=min(messages, int(room / each) + 1),
            bytes=room,
        )
        if not step.num_rows:
            break
        step = by_seq(step.select(wanted.names).cast(wanted))
        steps.append(step)
        weight = weigh(step)
        first = step["seq"][-1].as_py() + 1
        messages -= step.num_rows
        ceiling -= weight
        each = max(1.0, weight / step.num_rows)
    return pa.concat_tables(steps) if steps else wanted.empty_table()


def weigh(rows: pa.Table) -> int:
    """Bytes of headers and bodies, and of the bodies' texts, where they were asked for."""
    heavy = {"headers", "body", BODY_STRING.name}.intersection(rows.column_names)
    return sum(pc.sum(pc.binary_length(rows[name])).as_py() or 0 for name in heavy)


def divert(connection: Connection, task: Task, taken: pa.Table) -> Kept:
    """Keep what is to be delivered, and count what is not."""
    live = taken.drop_columns("expired")
    if pc.any(taken["expired"]).as_py():
        live = live.filter(pc.invert(taken["expired"]))
    expired = taken.num_rows - live.num_rows
    if not live.num_rows:
        return Kept(live, expired)
    good = live if task.errors is None else divert_poison(connection, task, live, task.errors)
    rest, forwarded, failed = forward(connection, task.queue, task.errors, good)
    return Kept(rest, expired, live.num_rows - good.num_rows + failed, forwarded)


def divert_poison(
    connection: Connection, task: Task, live: pa.Table, errors: QueueAddress
) -> pa.Table:
    """
    Put poison into the error queue; returns the other rows.

    Raises:
        StatementFailed: the error queue took a row under no id; nothing was received.
    """
    poison = Headers(live["headers"].combine_chunks()).poison()
    bad = live.filter(poison)
    # not its expiry, which may be a time that Python has not
    for row in bad.select(["id", "headers", "body"]).to_pylist():
        taken = any(
            divert_one(connection, errors, row, name)
            for name in (row["id"].hex(), uuid.uuid4().hex)
        )
        if not taken:
            name = connection.printed(errors)
            raise StatementFailed("divert", "duplicate", f"{name} refuses a fresh id: {BEHIND}")
    if not bad.num_rows:
        return live
    log.warning(
        "%s: %d poison messages moved to the error queue",
        connection.printed(task.queue),
        bad.num_rows,
    )
    return live.filter(pc.invert(poison))


def divert_one(
    connection: Connection, errors: QueueAddress, row: dict[str, Any], name: str
) -> bool:
    """Put a poison row, as it was, into the error queue; False where the id is there already."""
    values = {"headers": row["headers"], "body": row["body"]}
    return bool(connection.rows("divert", tables={"errors": errors}, id=name, **values))


def save(connection: Connection, task: Task, kept: Kept, *, login: str, origin: Origin) -> None:
    """Write the receipt, also where nothing was got: a replay must then get nothing again."""
    payload = packed(kept.rows)
    connection.run(
        "save_receipt",
        reader=task.reader,
        login=login,
        batch=task.batch,
        task=task.task,
        queue_name=connection.printed(task.queue),
        messages=kept.rows.num_rows,
        expired=kept.expired,
        diverted=kept.diverted,
        forwarded=kept.forwarded,
        bytes=weigh(kept.rows),
        query_id=origin.query_id,
        query_batch=origin.query_batch,
        payload=in_row(payload),
    )
    connection.store("receipt_page", pages(payload, RECEIPT_KEY, (*task.key, login)))
