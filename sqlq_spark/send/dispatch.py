"""
Dispatch: the driver copies what the tasks staged into the queues, once, in one transaction.

The transaction advances the dispatch log, copies the chunks of the attempts that won, and deletes
all chunks of the batch. A batch that is in the dispatch log is not sent again. A batch that failed
has sent nothing.

With sendsAtomicWithReceive the transaction also settles the receipts of the micro-batch. They can
no longer be returned to their queue.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import transaction
from sqlq_spark.errors import BatchClosed, ChunksMissing, NothingToSettle
from sqlq_spark.send import dispatch_log
from sqlq_spark.send.queue_writer import QueueWriter
from sqlq_spark.send.staging import fetch_chunk
from sqlq_spark.send.undeliverable import send_or_set_aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.staging import ChunkKey, Staged
    from sqlq_spark.wire.payload import Seal

log = logging.getLogger("sqlq_spark")

ABANDONED = 7 * 86400.0  # seconds after which chunks and log rows of a nameless write are deleted


def dispatch(connection: Connection, staged: Sequence[Staged], options: SinkOptions) -> int:
    """
    Send what the attempts that won staged, once, in one transaction.

    Args:
        connection: no transaction open.
        staged: of one sink and batch, one for each task.
        options: the sink's; its queue takes the rows that name none.

    Returns:
        How many messages were sent now; 0 where the batch was sent before.

    Raises:
        ChunksMissing, QueueNotFound, DestinationRefused, SubscriberUnreachable,
        SubscriptionsNotFound, NothingToSettle, BatchClosed, DispatchLogAhead: nothing was
        sent.
    """
    if not staged:
        return 0
    one, before = send_or_set_aside(options, partial(_commit, connection, staged, options))
    where = f"{staged[0].sink}: batch {staged[0].batch}"
    if before is not None:
        log.info("%s: was sent before; login %s began this sink", where, before)
        return 0
    log.info("%s: %s", where, one.describe())
    one.writer.log_unheard(where)
    one.writer.undeliverable.log(where)
    return one.messages


def _commit(
    connection: Connection,
    staged: Sequence[Staged],
    options: SinkOptions,
    careful: bool,  # noqa: FBT001
) -> tuple[Dispatch, str | None]:
    """Run the transaction; return it, and who began the sink if the batch was sent before."""
    sink, batch = staged[0].sink, staged[0].batch
    with transaction(connection, timeout=options.query_timeout):
        login, last = dispatch_log.lock(connection, sink)
        dispatch_log.check(connection, sink, batch, last)
        one = Dispatch(connection, staged, options, careful=careful)
        new = one.advance()
        if new:
            one.settle()
            one.copy_chunks()
        one.delete_chunks()
    return one, None if new else login


@dataclass(slots=True)
class Dispatch:
    """One batch of a sink, in a transaction that has locked the sink's row."""

    connection: Connection
    staged: Sequence[Staged]  # one for each task
    options: SinkOptions
    careful: bool = field(default=False, kw_only=True)  # see undeliverable.py
    writer: QueueWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = QueueWriter(self.connection, self.options, careful=self.careful)

    @property
    def messages(self) -> int:
        """How many messages the tasks staged."""
        return sum(each.messages for each in self.staged)

    def describe(self) -> str:
        """Say, for the log, how many messages were sent, and how many were set aside."""
        aside = self.writer.undeliverable.messages
        return f"{self.messages} messages sent" + (f", {aside} to the error queue" if aside else "")

    @property
    def _key(self) -> dict[str, Any]:
        first = self.staged[0]
        return {"sink": first.sink, "batch": first.batch}

    def advance(self) -> bool:
        """Enter the batch into the dispatch log; False where it was sent before."""
        return dispatch_log.advance(self.connection, **self._key, messages=self.messages)

    def settle(self) -> None:
        """
        Mark the receipts of the micro-batch as settled, if the options ask for it.

        A source without new messages has no receipt. The query's mark says that the batch is open.

        Raises:
            NothingToSettle: the query has no stream and no receipt here.
            BatchClosed: receipts of the batch were returned or dropped.
        """
        if not self.options.settles:
            return
        origin, connection = self.staged[0].origin, self.connection
        query, batch = origin.query_id, origin.query_batch
        schema, server = connection.state, connection.server
        settled = connection.rows("settle", query_id=query, query_batch=batch)
        ((mark,),) = connection.rows("query_mark", query_id=query)
        if mark is None and not settled:
            raise NothingToSettle(query=query, batch=batch, schema=schema, server=server)
        if mark is not None and batch is not None and mark >= batch:
            raise BatchClosed(query=query, batch=batch, schema=schema, server=server)

    def check_chunks(self) -> dict[ChunkKey, Seal]:
        """
        Return the chunks to send, in the order of tasks and rows.

        Raises:
            ChunksMissing: the staging lacks one.
        """
        first = self.staged[0]
        wanted = {
            key: seal
            for each in self.staged
            for key, seal in zip(each.keys(), each.seals, strict=True)
        }
        there = set(self.connection.rows("chunks", **self._key))
        found = sum((key.attempt, key.chunk) in there for key in wanted)
        if found < len(wanted):
            raise ChunksMissing(sink=first.sink, batch=first.batch, staged=len(wanted), found=found)
        return wanted

    def copy_chunks(self) -> None:
        """Copy the chunks into the queues; while one is sent, a thread unpacks the next one."""
        with ThreadPoolExecutor(1) as pool:
            for chunk in self._unpacked(pool):
                self.writer.insert(chunk)
        self.writer.confirm()

    def _unpacked(self, pool: Executor) -> Iterator[pa.Table]:
        ahead: Future[pa.Table] | None = None
        for key, seal in self.check_chunks().items():
            chunk, unpack = ahead, fetch_chunk(self.connection, key, seal)
            ahead = pool.submit(unpack)
            if chunk is not None:
                yield chunk.result()
        if ahead is not None:
            yield ahead.result()

    def delete_chunks(self) -> None:
        """Delete the batch's chunks, also of attempts that lost, and what nameless writes left."""
        self.connection.run("discard", **self._key)
        self.connection.run("discard_abandoned", seconds=ABANDONED)
        self.connection.run("delete_old_sinks", seconds=ABANDONED)
