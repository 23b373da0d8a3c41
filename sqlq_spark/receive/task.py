"""
One receive task: a database transaction that takes messages and leaves a receipt.

    fence         the batch is not acknowledged, and cannot be while we work; else StaleTask
    task_lock     one attempt at a time
    find_receipt  another attempt was here: hand out what it got, and receive nothing more
    receive       delete what no one else holds, step by step, up to the ceiling
    divert        expired rows are counted and gone; poison, and what is too large to be fetched,
                  goes to the error queue, what was delayed for another queue is forwarded there
    save_receipt  the rest, in the same commit

The rows go to Spark only after the commit.
A connection lost at any point, the commit's answer among them, is answered by doing all of it
again: either nothing had happened, or the receipt is there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.errors import StaleTask, StreamNotFound
from sqlq_spark.receive.forward import forward
from sqlq_spark.receive.poison import divert_large, divert_poison
from sqlq_spark.wire.payload import RECEIPT_KEY, in_row, packed, pages
from sqlq_spark.wire.rows import BODY_STRING, QUEUE_ROW, Origin, by_seq
from sqlq_spark.wire.unpack import Expected, unpacked

if TYPE_CHECKING:
    from sqlq_spark.database import Connection, Row
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

# A task holds about this much of headers and bodies; the rest waits for the next batch.
CEILING = 64 << 20
STEP = 16 << 20

LARGEST = 256 << 20  # bytes of a message that a task fetches, if the option does not say
# in a receipt: bytes of a row beside headers and body; a text may grow so many times as UTF-8
ROW, GROWTH = 64, 3

TAKEN = QUEUE_ROW.append(pa.field("expired", pa.bool_()))


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one task of a batch is to receive, and from where."""

    queue: QueueAddress
    stream: str
    batch: int
    task: int
    first: int  # of the range of seqs
    stop: int
    messages: int  # at most
    bytes: int = CEILING  # at most, but one message at least
    bytes_each: float = 1024.0  # what one is thought to weigh
    largest: int = LARGEST  # bytes of a message; a larger one is not fetched
    errors: QueueAddress | None = None
    allowed: tuple[QueueAddress, ...] = ()  # the option allowedDestinations
    receipts: bool = True  # False: transactionMode none
    receives: bool = True  # False: the options do not name its queue
    body_string: bool = False  # also the column BodyString
    fail_on_data_loss: bool = True

    @property
    def key(self) -> tuple[str, int, int]:
        """Of its receipt."""
        return self.stream, self.batch, self.task


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
    row = connection.rows("fence", stream=task.stream)
    if not row:
        raise StreamNotFound(task.stream, connection.state, connection.server)
    acked, login = row[0]
    if task.batch <= acked:
        error = StaleTask(task.stream, task.batch, task.task, acked)
        if task.fail_on_data_loss:
            raise error
        log.warning("nothing is received, as failOnDataLoss=false asks for: %s", error)
        return False, login
    lock(connection, task, login)
    return True, login


def lock(connection: Connection, task: Task, login: str) -> None:
    """Wait for another attempt of the task, and let others wait for this one."""
    key: dict[str, Any] = {"stream": task.stream, "login": login, "task": task.task}
    if not connection.rows("task_lock", **key):
        connection.run("new_task", **key)
        connection.rows("task_lock", **key)


def receipt(connection: Connection, task: Task, login: str) -> pa.Table | None:
    """What an earlier attempt of the task got; None where there was none."""
    stream, batch, at = task.key
    key: dict[str, Any] = {"stream": stream, "login": login, "batch": batch, "task": at}
    found = connection.rows("find_receipt", **key)
    if not found:
        return None
    payload, messages, size = found[0]
    stored: list[Row] = []
    if not payload:
        stored = connection.rows("receipt_pages", **key)
    most = most_bytes(task.messages, task.largest)
    expected = expected_receipt(*task.key, messages=messages, size=size, most=most)
    return unpacked(payload, stored, expected)


def most_bytes(messages: int, largest: int) -> int:
    """What a receipt may hold unpacked: the ceiling, a step and one message beyond it, and rows."""
    return CEILING + GROWTH * (STEP + largest) + ROW * messages


def expected_receipt(
    stream: str, batch: int, task: int, *, messages: int, size: int, most: int
) -> Expected:
    """What the payload of a receipt must be; `messages` and `size` as stored with it."""
    return Expected(
        where=f"receipt {stream}/{batch}/{task}",
        schema=QUEUE_ROW,
        optional=(BODY_STRING,),
        most=most,
        size=size,
        rows=messages,
    )


def take(connection: Connection, task: Task) -> pa.Table:
    """
    Delete the task's messages, in steps of about STEP bytes, until its range or a limit ends.

    A step looks at no more rows than are likely to fit; the database cuts it at the exact weight.
    """
    statement: StatementName = "receive_body_string" if task.body_string else "receive"
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
            largest=task.largest,
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
    short = taken.num_rows < task.messages and weigh(taken) < task.bytes
    large, gone = divert_large(connection, task, short=short)
    live = taken.drop_columns("expired")
    if pc.any(taken["expired"]).as_py():
        live = live.filter(pc.invert(taken["expired"]))
    expired = taken.num_rows - live.num_rows + gone
    if not live.num_rows:
        return Kept(live, expired, large)
    good = divert_poison(connection, task, live)
    rest, forwarded, failed = forward(
        connection, task.queue, task.errors, good, allowed=task.allowed
    )
    return Kept(rest, expired, live.num_rows - good.num_rows + failed + large, forwarded)


def save(connection: Connection, task: Task, kept: Kept, *, login: str, origin: Origin) -> None:
    """Write the receipt, also where nothing was got: a replay must then get nothing again."""
    payload = packed(kept.rows)
    connection.run(
        "save_receipt",
        stream=task.stream,
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
        unpacked=payload.size,
        payload=in_row(payload.bytes),
    )
    connection.store("receipt_page", pages(payload.bytes, RECEIPT_KEY, (*task.key, login)))
