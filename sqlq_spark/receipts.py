"""
Readers and their receipts: from the first plan of a batch to its acknowledgement.

A receipt's life, and all there is to it:

    state      move            next       who
    (none)     save            held       a task, in the commit that deletes the messages
    held       replay          held       any later attempt of that task
    held       acknowledge     (none)     the driver, when Spark has the batch in its commit log
    held       return_         (none)     an operator: the messages are in the queue again
    held       drop            (none)     an operator: the messages are gone
    settled    acknowledge     (none)     the driver; settled = sent on already, never returned
    settled    drop            (none)     an operator

A batch is open while `batch > acked_batch` of its reader; a task of another batch is stale.
Returning or dropping closes the batch, so that a checkpoint that comes back cannot receive for it
again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.errors import (
    CheckpointRolledBack,
    ReaderNotFound,
    ReaderOfOtherQueue,
    ReaderTakenOver,
    ReceiptSettled,
)
from sqlq_spark.message import unpacked
from sqlq_spark.pace import Outcome

if TYPE_CHECKING:
    from sqlq_spark.address import QueueAddress
    from sqlq_spark.dialects import Connection

log = logging.getLogger("sqlq_spark")


@dataclass(frozen=True, kw_only=True)
class Driver:
    """Who speaks for a reader, and about which queue."""

    driver: str  # a fresh id for each driver process
    queue: str  # the canonical address
    state_schema: str
    fail_on_data_loss: bool = True


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """What a batch had come to, and where the reader stands."""

    batch: int  # the last that is closed
    outcome: Outcome
    messages: int = 0
    expired: int = 0
    diverted: int = 0
    plan: str | None = None  # of the batch after it, where that was planned before


def create(connection: Connection, reader: str, who: Driver) -> None:
    """Make the row of a new reader, in the transaction that is open."""
    connection.run("new_reader", reader=reader, queue_name=who.queue, driver=who.driver)


def acknowledge(
    connection: Connection, reader: str, batch: int, who: Driver, *, claim: bool
) -> Acknowledged:
    """
    Close all batches up to `batch` and forget their receipts, in the transaction that is open.

    The row's lock waits for running tasks; those that come later are stale.

    Args:
        connection: in a transaction.
        reader: from the checkpoint.
        batch: Spark has it in its commit log.
        who: this driver.
        claim: take the reader over from the driver before (at the first call of a process).

    Raises:
        ReaderNotFound, ReaderOfOtherQueue, ReaderTakenOver, CheckpointRolledBack.
    """
    row = connection.rows("lock_reader", reader=reader)
    if not row:
        raise ReaderNotFound(reader, who.state_schema, connection.server)
    queue, driver, acked, plan_batch, plan = row[0]
    if queue != who.queue:
        raise ReaderOfOtherQueue(queue, who.queue)
    if claim:
        connection.run("claim", reader=reader, driver=who.driver)
    elif driver != who.driver:
        raise ReaderTakenOver(reader)
    if acked > batch:
        rolled_back(reader, batch, acked, who)
        return Acknowledged(batch=acked, outcome=Outcome(0, 0, 0), plan=plan)
    tasks, empty, messages, expired, diverted = connection.rows(
        "outcome", reader=reader, batch=batch
    )[0]
    if tasks or acked < batch:
        connection.run(
            "acknowledge",
            reader=reader,
            batch=batch,
            messages=messages,
            expired=expired,
            diverted=diverted,
        )
        connection.run("forget_receipts", reader=reader, batch=batch)
    return Acknowledged(
        batch=batch,
        outcome=Outcome(tasks, empty, messages + expired + diverted),
        messages=messages,
        expired=expired,
        diverted=diverted,
        plan=plan if plan_batch == batch + 1 else None,
    )


def rolled_back(reader: str, batch: int, acked: int, who: Driver) -> None:
    """Refuse a checkpoint that is behind its reader, unless the user accepts the gap."""
    error = CheckpointRolledBack(reader, batch, acked)
    if who.fail_on_data_loss:
        raise error
    log.warning("going on after data loss, as failOnDataLoss=false asks for: %s", error)


def store_plan(connection: Connection, reader: str, batch: int, plan: str, who: Driver) -> str:
    """
    Give a batch its plan, in the transaction that is open; a batch has one plan, ever.

    Two plans of one batch would share its receipts, and what only one of them knows would be lost.

    Returns:
        The plan that counts: an earlier one where its commit's answer was lost.

    Raises:
        ReaderTakenOver: another driver speaks for the reader.
    """
    _, driver, _, plan_batch, stored = connection.rows("lock_reader", reader=reader)[0]
    if driver != who.driver:
        raise ReaderTakenOver(reader)
    if plan_batch == batch:
        return str(stored)
    connection.run("store_plan", reader=reader, batch=batch, plan=plan)
    return plan


# ---------------------------------------------------------------- by an operator


def return_(connection: Connection, reader: str, batch: int, task: int, queue: QueueAddress) -> int:
    """
    Put the messages of a receipt back into their queue, in the transaction that is open.

    They keep their ids, headers, bodies and expiry, and get new seqs, behind all others.

    Returns:
        How many.

    Raises:
        ReceiptSettled: they were sent on already.
    """
    found = _drop(connection, reader, batch, task)
    if found is None:
        return 0
    messages, settled, payload = found
    if settled:
        raise ReceiptSettled(reader, batch, task)
    if messages:
        connection.load(queue, unpacked(payload).select(["id", "expires", "headers", "body"]))
    return messages


def drop(connection: Connection, reader: str, batch: int, task: int) -> int:
    """Forget a receipt and its messages, in the transaction that is open; returns how many."""
    found = _drop(connection, reader, batch, task)
    return 0 if found is None else found[0]


def _drop(
    connection: Connection, reader: str, batch: int, task: int
) -> tuple[int, bool, bytes] | None:
    """Delete a receipt and close its batch; the reader's lock waits for running tasks."""
    connection.rows("lock_reader", reader=reader)
    row = connection.rows("drop_receipt", reader=reader, batch=batch, task=task)
    if not row:
        return None
    connection.run("retire_reader", reader=reader, batch=batch)
    messages, settled, payload = row[0][1:]
    return messages, settled, payload
