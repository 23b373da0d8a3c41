"""
Deletes all messages that wait in a queue, or only those that have expired.

No receipts are written, so deleted messages cannot be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import check_types, transaction
from sqlq_spark.database.schema import record_action
from sqlq_spark.database.trust import DELETE, use
from sqlq_spark.errors import Deadlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.admin.queue_sizes import Depth
    from sqlq_spark.database import Connection, Value
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

BATCH = 10_000  # messages, as in the transport
# How often a batch that deadlocks with an endpoint is tried. The pauses are 2 s in total.
ATTEMPTS = 5


def purge_parts(
    connection: Connection,
    queue: QueueAddress,
    depth: Depth,
    *,
    batch: int = BATCH,
    recorded: bool = False,
) -> Iterator[int]:
    """
    Delete the messages that waited when `depth` was measured, batch by batch, lowest seq first.

    Each batch has its own transaction, so an interrupted purge has deleted whole batches. The
    purge waits for messages that others have locked. Messages sent after the measurement stay.

    All batches are ranges of seqs of the same width. A batch has about `batch` messages, if the
    seqs have no gaps. If `recorded`, each batch writes an entry into the audit trail.

    Returns:
        How many messages each batch deleted, after its commit.
    """
    from sqlq_spark.receive.browse import split_range  # noqa: PLC0415 - see cli

    if depth.first is None or depth.last is None:
        return
    parts = max(1, -(-depth.messages // batch))
    for first, stop in split_range(depth.first, depth.last + 1, count=parts):
        yield _delete(connection, "purge_range", queue, recorded=recorded, first=first, stop=stop)


def purge_expired(connection: Connection, queue: QueueAddress, batch: int = BATCH) -> Iterator[int]:
    """
    Delete expired messages, batch by batch. Skips messages that others have locked.

    Each batch has its own transaction, so that there are few locks and dead rows at a time. It is
    safe to run it twice, because a receiver would delete expired messages too.

    Returns:
        How many messages each batch deleted, after its commit. The first batch that is not full is
        the last one.
    """
    deleted = batch
    while deleted >= batch:
        deleted = _delete(connection, "purge_expired", queue, messages=batch)
        if deleted:
            yield deleted


def _delete(
    connection: Connection,
    statement: StatementName,
    queue: QueueAddress,
    *,
    recorded: bool = False,
    **values: Value,
) -> int:
    """Delete one batch in a transaction; return how many messages. A deadlock is tried again."""
    import stamina  # noqa: PLC0415 - see cli

    for attempt in stamina.retry_context(on=Deadlock, attempts=ATTEMPTS, timeout=None):
        with attempt, transaction(connection):
            use(connection, [queue], DELETE)
            check_types(connection, queue)
            gone = int(connection.value(statement, tables={"queue": queue}, **values))
            if recorded and gone:
                record_action(connection, "purge", connection.printed(queue), gone)
            return gone
    raise AssertionError  # pragma: no cover - stamina raises the last error itself
