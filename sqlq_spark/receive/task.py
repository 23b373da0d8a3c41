"""
One receive task: a database transaction that takes messages and leaves a receipt.

    fence         the batch is not acknowledged, and cannot be while the task runs; else StaleTask
    enter_query   only at the first task of a run of Spark's query, in a transaction of its own: no
                  other stream of the query receives from this queue; else QueueReadTwice
    find_receipt  an earlier attempt left a receipt: hand out its messages, and receive nothing more
    high water    Spark's query has not received for this batch by another plan: a sink may hold it
                  already, and would drop new messages; else CheckpointIncomplete
    begin_receipt its key is the lock of an attempt: another attempt waits here for the first one's
                  commit, fails, starts again and finds the receipt
    use           lock the queue's table, and ask whose it is
    receive       delete what no one else holds, step by step, up to the ceiling
    divert        expired rows are counted and dropped; poison, and what is too large to be fetched,
                  goes to the error queue; what was delayed for another queue is forwarded there
    save_receipt  the rest, in the same commit

The rows go to Spark only after the commit.
If a destination's failure ends the transaction, all of it runs again without that destination.
After a lost connection, the caller runs the task again. It does not matter whether the commit was
done: either nothing has happened, or the receipt is there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import check_types_once, transaction
from sqlq_spark.database.destinations import run_without_failed
from sqlq_spark.database.trust import DELETE, use
from sqlq_spark.errors import CheckpointIncomplete, StaleTask
from sqlq_spark.receive import receipts
from sqlq_spark.receive.batch import STEP, TaskResult
from sqlq_spark.receive.forward import forward
from sqlq_spark.receive.poison import divert_large, divert_poison
from sqlq_spark.wire.rows import NO_SPARK_BATCH, QUEUE_ROW, SparkBatch, sort_by_seq, weigh

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.receive.batch import Task

TAKEN = QUEUE_ROW.append(pa.field("expired", pa.bool_()))
NOTHING = "this task receives nothing"


def receive(connection: Connection, task: Task, *, spark_batch: SparkBatch) -> pa.Table:
    """
    Take what the task may take, or what an earlier attempt of it took.

    `spark_batch` has Spark's names for this batch.

    Returns:
        Messages of QUEUE_ROW in the order of seq. They have left the queue, committed.

    Raises:
        StaleTask: the batch was acknowledged.
        ReceiptExists: another attempt has just left its receipt: call again.
        CheckpointIncomplete: Spark's query has received for this batch before, by another plan.
        QueueReadTwice: another stream of Spark's query receives from this queue.
        TableRefused: the queue's table has another owner than the options name, or other code.
        DatabaseFailure: nothing was taken. After ConnectionLost that is not known: call again.
    """
    work = partial(receive_as_reader, connection, task, spark_batch)
    rows = run_without_failed(work)
    while rows is None:
        receipts.enter_query(connection, task, spark_batch)
        rows = run_without_failed(work)
    return rows


def receive_as_reader(
    connection: Connection, task: Task, spark_batch: SparkBatch, failed: Reasons
) -> pa.Table | None:
    """
    Receive as `receive`, in one transaction.

    `failed` are destinations of messages that ended this transaction before. They get nothing.

    Returns None, and changes nothing, if the stream has not yet entered itself as the one that
    receives from this queue for this run of Spark's query.
    """
    with transaction(connection):
        allowed = task.receives
        if task.stream is not None:
            is_open, high_water, is_reader = fence(connection, task, spark_batch)
            if not is_reader and spark_batch.query_id is not None:
                return None
            stored = receipts.find_receipt(connection, task.key)
            if stored is not None:
                check_number(task, stored, spark_batch)
                largest = task.options.max_message_bytes
                return stored.unpack(task.key, messages=task.messages, largest=largest)
            if not is_open:
                return QUEUE_ROW.empty_table()
            allowed = is_new(task, high_water, spark_batch) and allowed
            connection.run("begin_receipt", **receipts.receipt_values(task.key))
        result = TaskResult(QUEUE_ROW.empty_table())
        if allowed:
            use(connection, [task.queue], DELETE)
            check_types_once(connection, task.queue)
            result = divert(connection, task, take(connection, task), failed)
        if task.stream is not None:
            receipts.save(connection, task, result, spark_batch)
        return result.rows


def fence(
    connection: Connection, task: Task, spark_batch: SparkBatch = NO_SPARK_BATCH
) -> tuple[bool, int | None, bool]:
    """
    Make sure that the batch is open. Raises StreamNotFound, StaleTask.

    Returns:
        Whether the batch is open; the last batch that Spark's query has received for by another
        plan, or None; and whether the stream has entered itself for this run of the query. The
        first two hold until the transaction ends.
    """
    stream, batch, number = task.key
    queue = connection.printed(task.queue)
    row = receipts.read_fence(connection, stream, spark_batch, queue)
    if row is None:
        raise receipts.stream_not_found(connection, stream)
    if batch <= row.acked_batch:
        stale = StaleTask(stream=stream, batch=batch, task=number, acked=row.acked_batch)
        receipts.accept_or_raise(stale, task.options, NOTHING)
    return batch > row.acked_batch, row.plan_high_water, row.is_reader


def is_new(task: Task, high_water: int | None, spark_batch: SparkBatch) -> bool:
    """
    Whether Spark's batch is above the high-water mark of its query; raises CheckpointIncomplete.

    Spark runs a batch only by the plans that it has stored before the first task of the batch. A
    task of another plan means that the checkpoint lost entries. A task without Spark's names, as in
    a thread that a user's function started, is not checked.
    """
    if high_water is None or spark_batch.number is None or spark_batch.number > high_water:
        return True
    accept_lost_files(task, spark_batch, high_water, NOTHING)
    return False


def check_number(task: Task, stored: receipts.StoredReceipt, spark_batch: SparkBatch) -> None:
    """Refuse to hand out a receipt for another batch of its query: a sink may hold that one."""
    received, asked = stored.spark_batch, spark_batch.number
    if (
        stored.query_id != spark_batch.query_id
        or received is None
        or asked is None
        or asked == received
    ):
        return
    accept_lost_files(task, spark_batch, received, "this task hands out its receipt")


def accept_lost_files(task: Task, spark_batch: SparkBatch, received: int, instead: str) -> None:
    """Raise that a checkpoint lost the files of a batch up to the one received, or accept it."""
    batch = spark_batch.number or 0
    error = CheckpointIncomplete(
        query=spark_batch.query_id,
        batch=batch,
        high_water=received,
        task=task.name,
        files=f"{batch}" if batch >= received else f"{batch} to {received}",
    )
    receipts.accept_or_raise(error, task.options, instead)


# ---------------------------------------------------------------- the messages


def take(connection: Connection, task: Task) -> pa.Table:
    """
    Delete the task's messages, in steps of about STEP bytes, until its range or a limit ends.

    A step looks at no more rows than are likely to fit. The database cuts it at the exact weight.
    """
    steps: list[pa.Table] = []
    first, messages, ceiling = task.first, task.messages, task.bytes
    each = max(1.0, task.bytes_each)
    while first < task.stop and messages > 0 and ceiling > 0:
        room = min(STEP, ceiling)
        step = connection.arrow(
            "receive",
            tables={"queue": task.queue},
            first=first,
            stop=task.stop,
            messages=min(messages, int(room / each) + 1),
            bytes=room,
            ceiling=ceiling,
            largest=task.options.max_message_bytes,
            largest_headers=task.options.max_header_bytes,
        )
        if not step.num_rows:
            break
        step = sort_by_seq(step.select(TAKEN.names).cast(TAKEN))
        steps.append(step)
        weight = weigh(step)
        first = step["seq"][-1].as_py()  # another message may have the same seq
        messages -= step.num_rows
        ceiling -= weight
        each = max(1.0, weight / step.num_rows)
    return pa.concat_tables(steps) if steps else TAKEN.empty_table()


def divert(connection: Connection, task: Task, taken: pa.Table, failed: Reasons) -> TaskResult:
    """Drop what expired, and move poison and delayed messages away; keep and count the rest."""
    short = taken.num_rows < task.messages and weigh(taken) < task.bytes
    large, gone = divert_large(connection, task, short=short)
    live = taken.drop_columns("expired")
    if pc.any(taken["expired"]).as_py():
        live = live.filter(pc.invert(taken["expired"]))
    expired = taken.num_rows - live.num_rows + gone
    good = divert_poison(connection, task, live)
    rows, forwarded, given_up = forward(connection, task, good, failed)
    diverted = live.num_rows - good.num_rows + given_up + large
    return TaskResult(rows, expired, diverted, forwarded)
