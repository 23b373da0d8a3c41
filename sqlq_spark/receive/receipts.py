"""
Streams and their receipts: from the first plan of a batch to its acknowledgement.

MOVES is a receipt's life, and all there is to it: a move that it does not list is an error.

A batch is open while `batch > acked_batch` of its stream; a task of another batch is stale.
Returning or dropping closes the batch, so that a checkpoint that comes back cannot receive for it
again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sqlq_spark.errors import (
    CheckpointFailure,
    CheckpointRolledBack,
    DatabaseRolledBack,
    ReceiptSettled,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
)
from sqlq_spark.options.parse import LARGEST_MESSAGE
from sqlq_spark.receive.pace import Outcome
from sqlq_spark.receive.task import expected_receipt, most_bytes
from sqlq_spark.wire.address import split_canonical
from sqlq_spark.wire.rows import dated
from sqlq_spark.wire.unpack import unpacked

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

MOST_MESSAGES = 10_000_000  # of a receipt, for its bound: that of an operator's has no plan

# a sink may read some of a batch only; what it has not read waits for the next one
MISSING = (
    "%s: batch %d had %d tasks and left %d receipts: its sink did not read all of it, or the "
    "database has lost commits (a standby that was behind took over); in that case messages that "
    "the sink has come again"
)

State: TypeAlias = Literal["none", "held", "settled"]
Move: TypeAlias = Literal["save", "replay", "settle", "acknowledge", "return_", "drop"]

# fmt: off
MOVES: Final[dict[tuple[State, Move], State]] = {
    # state      move             next         who
    ("none",    "save"):         "held",     # a task, in the commit that deletes the messages
    ("held",    "replay"):       "held",     # any later attempt of that task
    ("held",    "settle"):       "settled",  # the sink's driver, in the commit that sends
    ("settled", "settle"):       "settled",  # a second sink of the same micro-batch
    ("settled", "replay"):       "settled",  # a later attempt
    ("held",    "acknowledge"):  "none",     # the driver, when Spark has the batch in its log
    ("held",    "return_"):      "none",     # an operator: the messages are in the queue again
    ("held",    "drop"):         "none",     # an operator: the messages are gone
    ("settled", "acknowledge"):  "none",     # the driver; sent on already, so never returned
    ("settled", "drop"):         "none",     # an operator
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Driver:
    """Who speaks for a stream, and about which queues."""

    driver: str  # a fresh id for each driver process
    queue: str  # the canonical address; of several queues joined by ", "
    state_schema: str
    fail_on_data_loss: bool = True

    @property
    def queues(self) -> set[str]:
        """Each queue's canonical address."""
        return set(split_canonical(self.queue))

    def check(self, queue: str) -> None:
        """
        Accept the queues of a stream's row: others may have come or gone since, but not all.

        Raises:
            StreamOfOtherQueue: none of them is read here.
        """
        if queue != self.queue and self.queues.isdisjoint(split_canonical(queue)):
            raise StreamOfOtherQueue(queue, self.queue)


@dataclass(frozen=True, kw_only=True)
class Acknowledged:
    """What a batch had come to, and where the stream stands."""

    batch: int  # the last that is closed
    outcome: Outcome
    messages: int = 0
    expired: int = 0
    diverted: int = 0  # to the error queue
    forwarded: int = 0  # to other queues
    plan: str | None = None  # of the batch after it, where that was planned before
    queues: dict[str, Acknowledged] = field(default_factory=dict)  # the same of each queue


def create(connection: Connection, stream: str, who: Driver) -> None:
    """Make the row of a new stream, in the transaction that is open."""
    connection.run("new_stream", stream=stream, queue_name=who.queue, driver=who.driver)


def acknowledge(
    connection: Connection, stream: str, batch: int, who: Driver, *, claim: bool, tasks: int = 0
) -> Acknowledged:
    """
    Close all batches up to `batch` and forget their receipts, in the transaction that is open.

    The row's lock waits for running tasks; those that come later are stale.

    Args:
        connection: in a transaction.
        stream: from the checkpoint.
        batch: Spark has it in its commit log.
        who: this driver.
        claim: take the stream over from the driver before (at the first call of a process).
        tasks: how many the batch was planned for; fewer receipts are warned of.

    Raises:
        StreamNotFound, StreamOfOtherQueue, StreamTakenOver, CheckpointRolledBack,
        DatabaseRolledBack.
    """
    row = connection.rows("lock_stream", stream=stream, login=None)
    if not row:
        raise StreamNotFound(stream, who.state_schema, connection.server)
    queue, driver, acked, plan_batch, plan, login = row[0]
    key: dict[str, Any] = {"stream": stream, "login": login}
    who.check(queue)
    if claim:
        connection.run("claim", **key, driver=who.driver, queue_name=who.queue)
    elif driver != who.driver:
        raise StreamTakenOver(stream)
    if acked > batch:
        rolled_back(CheckpointRolledBack(stream, batch, acked), who)
        return Acknowledged(batch=acked, outcome=Outcome(0, 0, 0), plan=plan)
    rows = connection.rows("outcome", **key, batch=batch, acked=acked)
    # a batch's plan is committed before Spark has its offset, and it follows the one acknowledged
    if acked < batch - 1 or (acked < batch and plan_batch != batch and not rows):
        rolled_back(DatabaseRolledBack(stream, batch, acked, connection.server), who)
    queues = {queue: counted(batch, counts) for queue, *counts in rows}
    total = counted(batch, [sum(column) for column in list(zip(*rows, strict=True))[1:]])
    if acked < batch and total.outcome.tasks < tasks:
        log.warning(MISSING, who.queue, batch, tasks, total.outcome.tasks)
    if rows or acked < batch:
        connection.run(
            "acknowledge",
            **key,
            batch=batch,
            messages=total.messages,
            expired=total.expired,
            diverted=total.diverted,
            forwarded=total.forwarded,
        )
        connection.run("forget_receipts", **key, batch=batch, acked=acked)
    following = plan if plan_batch == batch + 1 else None
    return replace(total, plan=following, queues=queues)


def counted(batch: int, counts: list[int]) -> Acknowledged:
    """What a batch had come to, by the numbers of a row of `outcome`; none are all 0."""
    tasks, empty, messages, expired, diverted, forwarded = counts or [0] * 6
    return Acknowledged(
        batch=batch,
        outcome=Outcome(tasks, empty, messages + expired + diverted + forwarded),
        messages=messages,
        expired=expired,
        diverted=diverted,
        forwarded=forwarded,
    )


def rolled_back(error: CheckpointFailure, who: Driver) -> None:
    """Refuse a checkpoint and a stream's row of different times, unless the user accepts that."""
    if who.fail_on_data_loss:
        raise error
    log.warning("going on after data loss, as failOnDataLoss=false asks for: %s", error)


def store_plan(connection: Connection, stream: str, batch: int, plan: str, who: Driver) -> str:
    """
    Give a batch its plan, in the transaction that is open; a batch has one plan, ever.

    Two plans of one batch would share its receipts, and what only one of them knows would be lost.

    Returns:
        The plan that counts: an earlier one where its commit's answer was lost.

    Raises:
        StreamTakenOver: another driver speaks for the stream.
    """
    row = connection.rows("lock_stream", stream=stream, login=None)[0]
    _, driver, _, plan_batch, stored, login = row
    if driver != who.driver:
        raise StreamTakenOver(stream)
    if plan_batch == batch:
        return str(stored)
    connection.run("store_plan", stream=stream, login=login, batch=batch, plan=plan)
    return plan


# ---------------------------------------------------------------- by an operator


def return_(
    connection: Connection,
    stream: str,
    batch: int,
    task: int,
    queue: QueueAddress,
    *,
    login: str | None = None,
) -> int:
    """
    Put the messages of a receipt back into their queue, in the transaction that is open.

    They keep their ids, headers, bodies and expiry, and get new seqs, behind all others. One that
    was to expire beyond the calendar never does.

    Args:
        connection: in a transaction.
        stream: of the receipt,
        batch: its batch,
        task: and its task.
        queue: of the receipt.
        login: who made the stream; None: the one whose row a stream of this login would take.

    Returns:
        How many.

    Raises:
        ReceiptSettled: they were sent on already.
    """
    found = _remove(connection, "return_", (stream, batch, task), login)
    if found is None:
        return 0
    messages, payload, size = found
    if messages:
        most = most_bytes(min(messages, MOST_MESSAGES), LARGEST_MESSAGE)
        expected = expected_receipt(stream, batch, task, messages=messages, size=size, most=most)
        rows = dated(unpacked(payload, (), expected)).select(["id", "expires", "headers", "body"])
        connection.load(queue, rows)
    return messages


def drop(
    connection: Connection, stream: str, batch: int, task: int, *, login: str | None = None
) -> int:
    """Forget a receipt and its messages, as `return_`; returns how many."""
    found = _remove(connection, "drop", (stream, batch, task), login)
    return 0 if found is None else found[0]


def _remove(
    connection: Connection, move: Move, receipt: tuple[str, int, int], login: str | None
) -> tuple[int, bytes, int] | None:
    """Delete a receipt and close its batch; the stream's lock waits for running tasks."""
    stream, batch, task = receipt
    found = connection.rows("lock_stream", stream=stream, login=login)
    owner: dict[str, Any] = {"stream": stream, "login": found[0][5] if found else login}
    pages = connection.rows("receipt_pages", **owner, batch=batch, task=task)
    row = connection.rows("drop_receipt", **owner, batch=batch, task=task)
    if not row:
        return None
    messages, settled, payload, size = row[0][1:]
    state: State = "settled" if settled else "held"
    if (state, move) not in MOVES:
        raise ReceiptSettled(*receipt)
    connection.run("retire_stream", **owner, batch=batch)
    return messages, payload or b"".join(page for (page,) in pages), size
