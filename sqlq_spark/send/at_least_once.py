"""
Delivery at least once: a task inserts its messages directly into the queues.

Each chunk is a transaction. A task that Spark tries again sends again, with the same message ids.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.send.fan_out import log_unheard
from sqlq_spark.send.queue_writer import QueueWriter
from sqlq_spark.send.undeliverable import send_or_set_aside

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions


def send_now(session: Session, chunks: Iterable[pa.Table], options: SinkOptions) -> int:
    """Send chunks as they come, a transaction for each; return how many messages were sent."""
    messages, unheard = 0, Counter[str]()
    for chunk in chunks:
        unheard += session.run_with_retries(partial(send_chunk, chunk=chunk, options=options))
        messages += chunk.num_rows
    log_unheard(session.application, unheard)
    return messages


def send_chunk(connection: Connection, chunk: pa.Table, options: SinkOptions) -> Counter[str]:
    """
    Insert a chunk into its queues, in a transaction of its own.

    Returns:
        Topics without a subscriber, with how many messages each list of them had.
    """
    writer = send_or_set_aside(options, partial(_insert, connection, chunk, options))
    writer.undeliverable.log(connection.application)
    return writer.unheard


def _insert(
    connection: Connection,
    chunk: pa.Table,
    options: SinkOptions,
    careful: bool,  # noqa: FBT001
) -> QueueWriter:
    with transaction(connection, timeout=options.query_timeout):
        writer = QueueWriter(connection, options, careful=careful)
        writer.insert(chunk)
        writer.confirm()
    return writer
