"""
Staging: tasks put outgoing messages into a table that no receiver reads.

A task writes its messages as chunks, each in a transaction of its own. When all tasks are done, the
driver dispatches the chunks of the attempts that won: see dispatch.py. The chunks of a failed job
are deleted without being sent.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlq_spark.database import transaction
from sqlq_spark.wire.payload import CHUNK_KEY, Packed, Seal, in_row, pack, pages
from sqlq_spark.wire.rows import NO_STREAM, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session

NAMELESS = "write:"  # begins the names of writes that are never replayed


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task wrote to the staging."""

    sink: str
    batch: int
    attempt: str
    messages: int
    # in the order in which the task wrote them; the seals do not pass through the database
    chunks: dict[ChunkKey, Seal] = field(default_factory=dict)
    origin: Origin = NO_STREAM  # the micro-batch, whose receipts may be settled


class ChunkKey(NamedTuple):
    """What identifies a chunk."""

    sink: str
    batch: int
    attempt: str
    chunk: int


def nameless_sink() -> str:
    """Return a name for a write that is never replayed."""
    return f"{NAMELESS}{uuid.uuid4()}"


def stage(
    session: Session,
    chunks: Iterable[pa.Table],
    *,
    sink: str,
    batch: int,
    origin: Origin = NO_STREAM,
) -> Staged:
    """
    Write a task's messages to the staging, a transaction for each chunk.

    Args:
        session: of the task.
        chunks: tables of CHUNK_ROW. Spark computes them while no transaction is open.
        sink: who sends.
        batch: the sink's batch.
        origin: Spark's names for the micro-batch that runs.
    """
    attempt, messages = str(uuid.uuid4()), 0
    sealed: dict[ChunkKey, Seal] = {}
    for chunk in chunks:
        payload = pack(chunk)
        key = ChunkKey(sink, batch, attempt, len(sealed))
        timeout = session.options.query_timeout
        session.run_with_retries(partial(_stage_chunk, key, payload, chunk.num_rows, timeout))
        sealed[key] = payload.seal
        messages += chunk.num_rows
    return Staged(sink, batch, attempt, messages, sealed, origin)


def _stage_chunk(
    key: ChunkKey, payload: Packed, messages: int, timeout: float, connection: Connection
) -> None:
    while True:
        with transaction(connection, timeout=timeout):
            # the sink's drivers wait for the commit; a new sink has no row
            if connection.rows("sink_open", sink=key.sink):
                values: dict[str, Any] = {**key._asdict(), "messages": messages}
                if connection.rows("stage", **values, payload=in_row(payload.bytes)):
                    connection.store("staging_page", pages(payload.bytes, CHUNK_KEY, key))
                return
        # in a transaction of its own: no task waits for the first chunk of another, which may hang
        with transaction(connection, timeout=timeout):
            connection.rows("new_sink", sink=key.sink)
