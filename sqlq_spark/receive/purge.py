"""Empty queues before a stream starts, as the option purgeOnStartup asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.database.schema import has_trail, record_action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def purge(connection: Connection, queues: Sequence[QueueAddress], *, timeout: float) -> int:
    """
    Delete every message of some queues, in one transaction; waits for those that others hold.

    Each queue gets an entry in the audit trail, if there is one.

    Returns:
        How many. A second call deletes what has arrived in between as well.

    Raises:
        QueueNotFound, RightMissing, TimedOut: nothing was deleted.
    """
    with transaction(connection, timeout=timeout):
        recorded, total = has_trail(connection), 0
        for each in queues:
            gone = int(connection.rows("purge", tables={"queue": each})[0][0])
            if recorded and gone:
                record_action(connection, "purge", connection.printed(each), gone)
            total += gone
        return total
