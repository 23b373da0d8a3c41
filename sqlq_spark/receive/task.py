"""
One receive task: a database transaction that takes messages and leaves a receipt.

Its steps, in this order:

    fence         Check that the batch is not acknowledged, and keep it so while the task runs.
                  Otherwise raise StaleTask.
    enter_query   Check that no other stream of Spark's query receives from this queue. Otherwise
                  raise QueueReadTwice. This step runs only at the first task of a run of the query,
                  in its own transaction.
    find_receipt  If an earlier attempt left a receipt, hand out its messages and receive no others.
    high water    Check that Spark's query has not received for this batch by another plan.
                  Otherwise raise CheckpointIncomplete: a sink may hold that batch, and would drop
                  new messages.
    begin_receipt Insert the key of the receipt. Another attempt of the same task waits here for the
                  commit of the first one, fails, starts again and finds the receipt.
    use           Lock the queue's table, and check who owns it.
    receive       Delete messages that no one else holds, in steps, up to the limits of the task.
    divert        Count and drop expired messages. Move poison, and messages that are too large to
                  be fetched, to the error queue. Forward messages that were delayed for another
                  queue.
    save_receipt  Store the other messages, in the same transaction.

The rows go to Spark only after the commit. If the failure of a destination ends the transaction,
all steps run again without that destination. If the connection is lost, the caller runs the task
again. Then either the receipt is there, or the transaction was undone and nothing has happened.
"""

from __future__ import annotations

from dataclasses import replace
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
from sqlq_spark.receive.forward import forward_delayed
from sqlq_spark.receive.poison import divert_large, divert_poison
from sqlq_spark.receive.receipts import read_fence
from sqlq_spark.wire.rows import QUEUE_ROW, sort_by_seq, weigh

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.database.trust import Reasons
    from sqlq_spark.receive.batch import Task
    from sqlq_spark.receive.receipts import Fence, StoredReceipt
    from sqlq_spark.wire.rows import SparkBatch

TAKEN = QUEUE_ROW.append(pa.field("expired", pa.bool_()))
RECEIVES_NOTHING = "this task receives nothing"


def receive(connection: Connection, task: Task, *, spark_batch: SparkBatch) -> TaskResult:
    """
    Take messages for the task, or return those that an earlier attempt of the task took.

    `spark_batch` has Spark's names for this batch.

    Returns:
        Messages in the order of seq. Their deletion from the queue is committed. For messages that
        an earlier attempt took, only the rows are known, and not what became of the others.

    Raises:
        StaleTask: the batch was acknowledged.
        ReceiptExists: another attempt has just left its receipt. Call again.
        CheckpointIncomplete: Spark's query has received for this batch before, by another plan.
        QueueReadTwice: another stream of Spark's query receives from this queue.
        TableRefused: the queue's table may not be used, see database/trust.py.
        ConnectionLost: it is not known whether messages were taken. Call again.
        DatabaseFailure: nothing was taken.
    """
    work = partial(receive_as_reader, connection, task, spark_batch)
    result = run_without_failed(work)
    while result is None:
        receipts.enter_query(connection, task, spark_batch)
        result = run_without_failed(work)
    return result


def receive_as_reader(
    connection: Connection, task: Task, spark_batch: SparkBatch, failed: Reasons
) -> TaskResult | None:
    """
    Receive as `receive` does, in one transaction.

    `failed` names the destinations whose failure ended this transaction in an earlier attempt.
    Nothing is sent to them.

    Returns None, and changes nothing, if `enter_query` has not yet recorded that the stream
    receives from this queue in this run of Spark's query.
    """
    with transaction(connection):
        may_receive = task.receives
        if task.stream is not None:
            queue = connection.printed(task.queue)
            fence = read_fence(connection, task.stream, spark_batch, queue)
            is_open = check_open(task, fence)
            if not fence.is_reader and spark_batch.query_id is not None:
                return None
            stored = receipts.find_receipt(connection, task.key)
            if stored is not None:
                check_number(task, stored, spark_batch)
                largest = task.options.max_message_bytes
                rows = stored.unpack(task.key, messages=task.messages, largest=largest)
                return TaskResult(rows)
            if not is_open:
                return TaskResult(QUEUE_ROW.empty_table())
            may_receive = is_new(task, fence.plan_high_water, spark_batch) and may_receive
            connection.run("begin_receipt", **receipts.receipt_values(task.key))
        result = TaskResult(QUEUE_ROW.empty_table())
        if may_receive:
            use(connection, [task.queue], DELETE)
            check_types_once(connection, task.queue)
            result = divert(connection, task, take(connection, task), failed)
        if task.stream is not None:
            receipts.save(connection, task, result, spark_batch)
        return result


def check_open(task: Task, fence: Fence) -> bool:
    """Whether the batch of a task is open. If not, raise StaleTask unless the user accepts that."""
    stream, batch, number = task.key
    if batch > fence.acked_batch:
        return True
    stale = StaleTask(stream=stream, batch=batch, task=number, acked=fence.acked_batch)
    receipts.accept_or_raise(stale, task.options, RECEIVES_NOTHING)
    return False


def is_new(task: Task, plan_high_water: int | None, spark_batch: SparkBatch) -> bool:
    """
    Whether Spark's batch is above the high-water mark, so that the task may receive.

    If it is not, raise CheckpointIncomplete unless the user accepts that. Spark stores the plan of
    a batch before the first task of the batch runs. So if a task comes for the same batch with
    another plan, the checkpoint has lost entries. A task to which Spark gave no query and no batch
    is not checked. Such a task runs in a thread that a user's function started.
    """
    if plan_high_water is None or spark_batch.number is None:
        return True
    if spark_batch.number > plan_high_water:
        return True
    accept_lost_files(task, spark_batch, plan_high_water, RECEIVES_NOTHING)
    return False


def check_number(task: Task, stored: StoredReceipt, spark_batch: SparkBatch) -> None:
    """
    Check that a receipt is handed out for the same batch of Spark for which it was received.

    If the query asks for the receipt in another batch, a sink may already have a batch of that
    number. It would drop the messages of the receipt.
    """
    received = stored.spark_batch
    if received is None or spark_batch.number is None or stored.query_id != spark_batch.query_id:
        return
    if spark_batch.number != received:
        accept_lost_files(task, spark_batch, received, "this task hands out its receipt")


def accept_lost_files(task: Task, spark_batch: SparkBatch, received: int, instead: str) -> None:
    """Raise that a checkpoint lost files up to batch `received`, unless the user accepts it."""
    number = spark_batch.number or 0
    error = CheckpointIncomplete(
        query=spark_batch.query_id,
        spark_batch=number,
        received=received,
        task=task.name,
        files=f"{number}" if number >= received else f"{number} to {received}",
    )
    receipts.accept_or_raise(error, task.options, instead)


# ---------------------------------------------------------------- the messages


def take(connection: Connection, task: Task) -> pa.Table:
    """
    Delete the task's messages in steps of about STEP bytes, up to the end of its range or a limit.

    A step asks for as many rows as are likely to fit into STEP. The database also ends the step
    when it has that many bytes.
    """
    steps: list[pa.Table] = []
    first = task.first
    messages = task.messages
    ceiling = task.bytes
    bytes_each = max(1.0, task.bytes_each)
    while first < task.stop and messages > 0 and ceiling > 0:
        room = min(STEP, ceiling)
        step = connection.arrow(
            "receive",
            tables={"queue": task.queue},
            first=first,
            stop=task.stop,
            messages=min(messages, int(room / bytes_each) + 1),
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
        bytes_each = max(1.0, weight / step.num_rows)
    return pa.concat_tables(steps) if steps else TAKEN.empty_table()


def divert(connection: Connection, task: Task, taken: pa.Table, failed: Reasons) -> TaskResult:
    """Drop expired messages, and move large, poison and delayed ones away. Count all of them."""
    is_short = taken.num_rows < task.messages and weigh(taken) < task.bytes
    large = divert_large(connection, task, is_short=is_short)
    live = taken.drop_columns("expired")
    if pc.any(taken["expired"]).as_py():
        live = live.filter(pc.invert(taken["expired"]))
    readable = divert_poison(connection, task, live)
    result = forward_delayed(connection, task, readable.rows, failed)
    poison = live.num_rows - readable.rows.num_rows
    return replace(
        result,
        headers=readable.headers if result.rows is readable.rows else None,
        expired=taken.num_rows - live.num_rows + large.expired,
        diverted=poison + large.diverted + result.diverted,
    )
