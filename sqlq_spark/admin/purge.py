"""
Deleting what nobody will handle: all that waits, or only what has expired.

Neither leaves a receipt; what is deleted here is meant to be gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.receive.browse import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.admin.inspect import Depth
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

BATCH = 10_000  # messages, as the transport's


def purge_parts(
    connection: Connection, queue: QueueAddress, depth: Depth, *, timeout: float, batch: int = BATCH
) -> Iterator[int]:
    """
    Delete the messages that waited when a queue was measured, batch by batch, the lowest first.

    Each batch is a transaction of its own, so that whoever stops in between leaves whole batches.
    It waits for the messages that others hold. What was sent since the measure stays; doing it
    twice deletes that too.

    Args:
        connection: no transaction open.
        queue: where.
        depth: of this queue; batches are ranges of its seqs, of even width.
        timeout: seconds for each batch.
        batch: about how many messages, where the seqs have no gaps.

    Returns:
        How many messages each batch deleted, after its commit.

    Raises:
        QueueNotFound, RightMissing, TimedOut: the batches before are deleted.
    """
    if depth.first is None or depth.last is None:
        return
    parts = max(1, -(-depth.messages // batch))
    for first, stop in cut(depth.first, depth.last + 1, parts=parts):
        with transaction(connection, timeout=timeout):
            rows = connection.rows("purge_range", tables={"queue": queue}, first=first, stop=stop)
        yield int(rows[0][0])


def purge_expired(
    connection: Connection, queue: QueueAddress, *, timeout: float, batch: int = BATCH
) -> Iterator[int]:
    """
    Delete the messages that have expired, batch by batch; what others hold is left.

    Each batch is a transaction of its own, so that whoever stops in between leaves whole batches,
    and locks and dead rows stay few. Doing it twice does no harm: a receiver would drop them too.

    Returns:
        How many messages each batch deleted, after its commit; it ends with the batch that finds
        fewer than it may take.
    """
    while True:
        with transaction(connection, timeout=timeout):
            found = connection.rows("purge_expired", tables={"queue": queue}, messages=batch)[0][0]
        if found:
            yield int(found)
        if found < batch:
            return
