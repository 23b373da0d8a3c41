"""
Receiving a whole range of messages at once, where no one else receives.

The statement `receive` first locks the rows that no other session holds, and then deletes them.
Most queues that Spark reads have no other consumer. There `receive_range` deletes a range in one
pass. If it has to wait for a row, it is undone after PATIENCE, and `receive` has the queue for
PAUSE.

Measured, 1.2 kB a message: 4.0 us of the server's time instead of 4.9, and the rows come by seq.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from sqlq_spark.database import attempt
from sqlq_spark.errors import Deadlock, TimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

FEWEST = 1000  # messages; below, four more statements cost more than they save
# seconds to wait for each row that another session holds: beside 16 endpoints that held rows
# for 10 ms, a receive took 0.7 to 8.4 s with 20 ms, and 0.4 to 0.8 s with 1 ms
PATIENCE = 0.001
PAUSE = 60.0  # seconds until a queue with another consumer is tried again
# a step asks for as many messages as are likely to fit: so much more than its size is taken
SLACK = 1.25

# server and queue → when another session held one of its rows, by this process's clock
HELD: dict[tuple[str, QueueAddress], float] = {}


def receive_range(
    connection: Connection, queue: QueueAddress, limits: Mapping[str, int]
) -> pa.Table | None:
    """
    Receive the messages from `first` on, as many numbers as there may be messages.

    Args:
        connection: in a transaction.
        queue: where.
        limits: of the statement `receive`.

    Returns:
        The messages; None where `receive` has to look: the range is empty, too large, or not free.
    """
    first, messages = limits["first"], limits["messages"]
    key = connection.server, queue
    if messages < FEWEST or time.monotonic() < HELD.get(key, -PAUSE) + PAUSE:
        return None
    try:
        with attempt(connection):
            connection.set_lock_timeout(PATIENCE)
            found = connection.arrow(
                "receive_range",
                tables={"queue": queue},
                first=first,
                stop=min(limits["stop"], first + messages),
                messages=messages,
                bytes=min(int(limits["bytes"] * SLACK), limits["ceiling"]),
                largest=limits["largest"],
            )
    except (TimedOut, Deadlock):
        log.info("%s has another consumer", connection.printed(queue))
        HELD[key] = time.monotonic()
        return None
    connection.set_lock_timeout(None)
    return found if found.num_rows else None
