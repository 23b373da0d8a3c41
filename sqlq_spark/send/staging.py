"""
Staging: tasks put outgoing messages into a table that no receiver reads.

A task writes its messages as chunks, each in a transaction of its own. When all tasks are done, the
driver dispatches the chunks of the attempts that won: see dispatch.py. The chunks of a failed job
are deleted without being sent.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlq_spark.database import transaction
from sqlq_spark.send import dispatch_log
from sqlq_spark.send.message.delays import CHUNK_DELAYS
from sqlq_spark.send.message.sender import CHUNK_ROW
from sqlq_spark.send.topics import CHUNK_TOPICS
from sqlq_spark.wire.payload import CHUNK_KEY, Expected, Packed, Seal, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import NO_STREAM, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task wrote to the staging."""

    sink: str
    batch: int
    attempt: str
    messages: int
    seals: tuple[Seal, ...] = ()  # one for each chunk; they do not pass through the database
    origin: Origin = NO_STREAM  # the micro-batch, whose receipts may be settled

    def keys(self) -> list[ChunkKey]:
        """The keys of the chunks, in the order in which the task wrote them."""
        return [
            ChunkKey(self.sink, self.batch, self.attempt, number)
            for number in range(len(self.seals))
        ]


class ChunkKey(NamedTuple):
    """What identifies a chunk."""

    sink: str
    batch: int
    attempt: str
    chunk: int


def nameless_sink() -> str:
    """Return a name for a write that is never replayed."""
    return f"write:{uuid.uuid4()}"


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
    seals: list[Seal] = []
    for chunk in chunks:
        payload = pack(chunk)
        key = ChunkKey(sink, batch, attempt, len(seals))
        timeout = session.options.query_timeout
        session.run_with_retries(partial(_stage_chunk, key, payload, chunk.num_rows, timeout))
        seals.append(payload.seal)
        messages += chunk.num_rows
    return Staged(sink, batch, attempt, messages, tuple(seals), origin)


def _stage_chunk(
    key: ChunkKey, payload: Packed, messages: int, timeout: float, connection: Connection
) -> None:
    with transaction(connection, timeout=timeout):
        if dispatch_log.share(connection, key.sink):
            values: dict[str, Any] = {**key._asdict(), "messages": messages}
            if connection.rows("stage", **values, payload=in_row(payload.bytes)):
                connection.store("staging_page", pages(payload.bytes, CHUNK_KEY, key))
            return
    dispatch_log.begin(key.sink, timeout, connection)
    _stage_chunk(key, payload, messages, timeout, connection)


def fetch_chunk(connection: Connection, key: ChunkKey, seal: Seal) -> Callable[[], pa.Table]:
    """
    Read one chunk from the database.

    Args:
        connection: in the transaction that dispatches.
        key: of the chunk.
        seal: what the task reported of it.

    Returns:
        What unpacks it, in any thread. It raises PayloadRefused if it is not the chunk that the
        task wrote.
    """
    values: dict[str, Any] = key._asdict()
    ((payload,),) = connection.rows("chunk", **values)
    stored = [] if payload else connection.rows("chunk_pages", **values)
    expected = Expected(
        where=f"staged chunk {key.chunk} of attempt {key.attempt}, batch {key.batch} "
        f"of sink {key.sink}",
        schema=CHUNK_ROW,
        optional=(*CHUNK_DELAYS.values(), CHUNK_TOPICS),
        most=seal.size,
        size=seal.size,
        seal=seal,
    )
    return partial(unpack, payload, stored, expected)


def discard(connection: Connection, sink: str, batch: int, *, final: bool, timeout: float) -> None:
    """
    Delete the chunks of a batch and of the batches before it.

    Args:
        connection: no transaction open.
        sink: who would have sent.
        batch: the one that failed.
        final: whether the batch is never tried again. Then tasks that still run cannot stage.
        timeout: seconds for each statement and wait.
    """
    with transaction(connection, timeout=timeout):
        dispatch_log.lock(connection, sink)
        if final:
            dispatch_log.advance(connection, sink, batch)
        connection.run("discard", sink=sink, batch=batch)
