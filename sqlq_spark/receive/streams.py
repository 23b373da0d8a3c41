"""
The row of a stream: who speaks for it, which batch is closed, and the plan of the next one.

To create, lock and plan happens in a transaction that the caller has open.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.errors import (
    CheckpointFailure,
    DatabaseRolledBack,
    StreamNotFound,
    StreamOfOtherQueue,
    StreamTakenOver,
)
from sqlq_spark.receive.offset import read_plan, write_plan
from sqlq_spark.wire.address import split_canonical

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.receive.offset import BatchPlan

log = logging.getLogger("sqlq_spark")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of one driver process on a stream, with the queues that it reads."""

    driver: str  # a fresh id for each driver process
    queue: str  # the canonical address; of several queues joined by ", "
    fail_on_data_loss: bool = True
    fail_on_missing_receipts: bool = False

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
            raise StreamOfOtherQueue(found=queue, asked=self.queue)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream's row, locked."""

    queue: str
    driver: str
    acked: int
    plan_batch: int | None
    plan: str | None

    def plan_of(self, batch: int) -> str | None:
        """Give the stored plan, if it is that of a batch."""
        return self.plan if self.plan_batch == batch else None


def lock_stream(connection: Connection, stream: str) -> StreamRow:
    """
    Lock a stream's row until commit; that waits for running tasks.

    Raises:
        StreamNotFound: there is none.
    """
    found = connection.rows("lock_stream", stream=stream)
    if not found:
        raise StreamNotFound(stream=stream, schema=connection.state, server=connection.server)
    return StreamRow(*found[0])


def create(connection: Connection, stream: str, who: Claim) -> None:
    """Make the row of a new stream, in the transaction that is open."""
    connection.run("new_stream", stream=stream, queue_name=who.queue, driver=who.driver)


def store_plan(connection: Connection, stream: str, batch: int, plan: BatchPlan) -> None:
    """Give a batch its plan, which `lock_for_plan` or an acknowledgement has not found."""
    connection.run("store_plan", stream=stream, batch=batch, plan=write_plan(plan))


def lock_for_plan(connection: Connection, stream: str, batch: int, who: Claim) -> BatchPlan | None:
    """
    Lock a stream's row, so that a batch can get its plan. A batch never gets a second plan.

    Two plans of one batch would share its receipts. Messages that only one of them receives would
    be lost.

    The caller has acknowledged the batch before, in an earlier transaction. If the row has not, the
    database has lost commits since: a standby that was behind took over from under a query that
    runs.

    Returns:
        The plan that is there, if the answer of its commit was lost.

    Raises:
        StreamNotFound: the stream's row is gone.
        DatabaseRolledBack: the row has not acknowledged the batch before.
        StreamTakenOver: another driver speaks for the stream.
        BadPlan: the earlier plan cannot be read.
    """
    row = lock_stream(connection, stream)
    if row.acked < batch - 1:  # before the driver: a claim may be among what was lost
        accept_or_raise(
            DatabaseRolledBack(
                stream=stream, start=batch - 1, acked=row.acked, server=connection.server
            ),
            who,
        )
    if row.driver != who.driver:
        raise StreamTakenOver(stream=stream)
    stored = row.plan_of(batch)
    return None if stored is None else read_plan(stored, stream, batch)


def lacks_commits(row: StreamRow, batch: int, *, found: bool) -> bool:
    """
    Say whether the database is older than the checkpoint.

    A batch's plan is committed before Spark has its offset, and it follows the acknowledged one.

    Args:
        row: of the stream.
        batch: Spark has it in its commit log.
        found: whether the batch has receipts.
    """
    planned = row.plan_batch == batch or found
    return row.acked < batch - 1 or (row.acked < batch and not planned)


def accept_or_raise(error: CheckpointFailure, who: Claim) -> None:
    """Refuse a checkpoint and a stream's row of different times, unless the user accepts that."""
    if who.fail_on_data_loss:
        raise error
    log.warning("the stream goes on after data loss because failOnDataLoss=false: %s", error)
