"""
Exactly-once sends: tasks stage their messages, and the driver dispatches them.

A task stages its messages as chunks. The staging is a table that no receiver reads. When all tasks
of a batch have ended, the driver does the following in one transaction:

- It enters the batch into the dispatch log. If the log has the batch already, nothing is sent.
- It copies the chunks into the queues. If a task ran more than once, only the chunks of the attempt
  that Spark accepted are copied.
- It deletes all chunks of the batch.

So a batch is sent once, and a batch that failed has sent nothing. With sendsAtomicWithReceive the
same transaction also settles the receipts of the micro-batch. The messages of a settled receipt can
no longer be returned to their queue.

The dispatch log has one row for each sink, with the last batch that was sent. If an application has
named the sink, the row also says where that batch went. If another write uses the same name by
mistake, this destination differs, and an error is raised.

The row is also a lock. A task that stages locks it shared. A driver that dispatches or discards
locks it exclusively.
"""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.send.chunk import CHUNK_OPTIONAL, CHUNK_ROW
from sqlq_spark.send.insert import Inserted, send_in_transaction
from sqlq_spark.send.publish import log_without_subscriber
from sqlq_spark.wire import payload
from sqlq_spark.wire.rows import NO_SPARK_BATCH, SparkBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.insert import Inserts

log = logging.getLogger("sqlq_spark")

NAMED_SINK = "app:"  # begins the name of a sink that an application names, by txnAppId
NAMELESS_SINK = "write:"  # begins the name of a write that is never replayed
ABANDONED = 7 * 86400.0  # seconds after which chunks and log rows of a nameless write are deleted
SKIPPED = ". Nothing was sent now. If this is another write, give it a txnAppId of its own"
# By how many batches the dispatch log may be ahead of a batch that is sent. It is one, because a
# restarted query may repeat the batch before the last one.
AHEAD = 1

# The states of a request of the job error_triage. Each request is a sink in the dispatch log, and
# the number of the sink's last batch is the state of the request. It only increases.
REQUEST_UNKNOWN = -2  # the dispatch log does not have the request
# The job enters this state before it decides what to send. So if a dispatch log does not have a
# request that was begun, the log belongs to another database or stateSchema, and does not show
# whether the request was sent.
REQUEST_OPEN = -1
REQUEST_SENT = 0  # entered by the transaction of the write, as its txnVersion
REQUEST_GIVEN_UP = 1  # an operator gave the request up: a write that still runs cannot send it


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task wrote to the staging."""

    sink: str
    sink_batch: int
    messages: int
    # The chunks in the order in which the task wrote them, with their seals. The seals do not pass
    # through the database, so nobody there can change a chunk without being noticed.
    chunks: dict[ChunkKey, payload.Seal]
    spark_batch: SparkBatch  # Spark's batch in which the task ran; its receipts may be settled


class ChunkKey(NamedTuple):
    """The primary key of a chunk in the staging. The fields have the names of the columns."""

    sink: str
    sink_batch: int
    attempt: str
    chunk: int


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk of a sink's batch that is in the staging."""

    attempt: str
    chunk: int


@dataclass(frozen=True, slots=True)
class LoggedSink:
    """What the dispatch log has of a sink: who began it, and where its last batch went."""

    login: str  # the login that began the sink
    sink_batch: int | None  # the last batch that was sent; None if none was sent
    # where that batch went, in the words of `describe_destination`; None if this is not known
    destination: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """How a batch was entered into the dispatch log."""

    is_new: bool  # True if the batch was entered now, False if it was sent before
    first_login: str  # the login that began the sink


@dataclass(frozen=True, slots=True)
class Sent:
    """What one dispatch did."""

    messages: int  # how many messages were sent now
    entry: Entry
    inserted: Inserted


@dataclass(frozen=True, slots=True)
class LastDispatch:
    """What the dispatch log has of a sink: when its last batch was sent, and how large it was."""

    sink_batch: int | None  # None if no batch was sent
    messages: int
    seconds: float  # how many seconds ago the dispatch began, by the database's clock


def stage(
    session: Session,
    chunks: Iterable[pa.Table],
    *,
    sink: str,
    sink_batch: int,
    spark_batch: SparkBatch = NO_SPARK_BATCH,
) -> Staged:
    """
    Write the chunks of a task's messages to the staging. Each chunk has a transaction of its own.

    While Spark computes the next chunk, no transaction is open.
    """
    attempt = str(uuid.uuid4())
    messages = 0
    seals: dict[ChunkKey, payload.Seal] = {}
    for chunk in chunks:
        packed = payload.pack(chunk)
        key = ChunkKey(sink, sink_batch, attempt, len(seals))
        session.run_with_retries(partial(_stage_chunk, key, packed, chunk.num_rows))
        seals[key] = packed.seal
        messages += chunk.num_rows
    return Staged(sink, sink_batch, messages, seals, spark_batch)


def _stage_chunk(
    key: ChunkKey, packed: payload.Packed, messages: int, connection: Connection
) -> None:
    while True:
        with transaction(connection):
            # The sink's row is now locked, so drivers wait for this commit. A new sink has no row.
            if last_sent(connection, key.sink) is not None:
                small = payload.in_row(packed.bytes)
                if connection.value("stage", **key._asdict(), messages=messages, payload=small):
                    pages = payload.pages(packed.bytes, payload.CHUNK_KEY, key)
                    connection.store("staging_page", pages)
                return
        # A new sink's row has a transaction of its own. Otherwise tasks would wait until another
        # task has staged its first chunk, and that task may hang.
        with transaction(connection):
            connection.run("new_sink", sink=key.sink)


# ---------------------------------------------------------------- the driver


def dispatch(connection: Connection, staged: Sequence[Staged], options: SinkOptions) -> int:
    """
    Send, once and in one transaction, what the tasks of a batch have staged.

    All of `staged` belongs to one batch of one sink. There is one item for each task, from the
    attempt that won. The caller has no transaction open.

    Returns:
        How many messages were sent now. This is 0 if the batch was sent before.

    Raises:
        ChunksMissing, QueueNotFound, TableRefused, SubscriberUnreachable, NothingToSettle,
        SubscriptionsNotFound, BatchClosed, DispatchLogAhead, OtherDestination: nothing was sent.
    """
    sink = staged[0].sink
    sink_batch = staged[0].sink_batch
    messages = sum(part.messages for part in staged)

    def send(inserts: Inserts) -> Sent:
        entry = enter(connection, sink, sink_batch, messages, options)
        inserted = Inserted()
        if entry.is_new:
            if options.settles:
                settle(connection, staged[0].spark_batch)
            for chunk in read_chunks(connection, staged):
                inserted += inserts.insert(chunk)
        # this also deletes the chunks of attempts that lost
        connection.run("discard", sink=sink, sink_batch=sink_batch)
        if sink.startswith(NAMELESS_SINK):
            delete_abandoned(connection)
        return Sent(messages if entry.is_new else 0, entry, inserted)

    sent = send_in_transaction(connection, options, send)
    log_sent(sink, sink_batch, sent)
    return sent.messages


def log_sent(sink: str, sink_batch: int, sent: Sent) -> None:
    """Log what a dispatch has done. Call this after its commit."""
    where = f"{sink}: batch {sink_batch}"
    login = sent.entry.first_login
    inserted = sent.inserted
    if sent.entry.is_new:
        more = f", {inserted.diverted} to the error queue" if inserted.diverted else ""
        log.info("%s: %d messages sent%s", where, sent.messages, more)
        log_without_subscriber(where, inserted.without_subscriber)
        inserted.log_diverted(where)
    elif sink.startswith(NAMED_SINK):
        # this may be another write that has the same name by mistake
        log.warning("%s: was sent before; login %s began this sink%s", where, login, SKIPPED)
    else:
        # a stream that starts again repeats its last batch
        log.info("%s: was sent before; login %s began this sink", where, login)


def discard(connection: Connection, sink: str, sink_batch: int, *, final: bool) -> None:
    """
    Delete the chunks of a batch that failed, and of the batches before it.

    If `final`, the batch is never tried again, and tasks that still run can stage nothing. The
    caller has no transaction open.
    """
    with transaction(connection):
        lock_exclusive(connection, sink)
        if final:
            advance(connection, sink, sink_batch)
        connection.run("discard", sink=sink, sink_batch=sink_batch)


def settle(connection: Connection, spark_batch: SparkBatch) -> None:
    """
    Mark the receipts of a micro-batch as settled.

    The micro-batch must be open. If its sources had no new messages, it has no receipt that shows
    this. So the statement `closed_high_water` is asked too: it returns the highest batch that a
    stream of the query has closed.

    Raises:
        NothingToSettle: the query has no stream and no receipt here.
        BatchClosed: receipts of the batch were returned or dropped.
    """
    query = spark_batch.query_id
    number = spark_batch.number
    settled = connection.values("settle", query_id=query, spark_batch=number)
    closed_high_water: int | None = connection.value("closed_high_water", query_id=query)
    schema, server = connection.state, connection.server
    if closed_high_water is None and not settled:
        raise errors.NothingToSettle(query=query, spark_batch=number, schema=schema, server=server)
    if closed_high_water is not None and number is not None and closed_high_water >= number:
        raise errors.BatchClosed(query=query, spark_batch=number, schema=schema, server=server)


def read_chunks(connection: Connection, staged: Sequence[Staged]) -> Iterator[pa.Table]:
    """
    Yield the staged chunks in the order of tasks and rows.

    Raises ChunksMissing if a chunk is missing.
    """
    sink = staged[0].sink
    sink_batch = staged[0].sink_batch
    wanted = {key: seal for part in staged for key, seal in part.chunks.items()}
    present = set(connection.rows("chunks", StagedChunk, sink=sink, sink_batch=sink_batch))
    found = sum(StagedChunk(key.attempt, key.chunk) in present for key in wanted)
    if found < len(wanted):
        raise errors.ChunksMissing(
            sink=sink, sink_batch=sink_batch, staged=len(wanted), found=found
        )
    unpacking: Future[pa.Table] | None = None
    with ThreadPoolExecutor(1) as pool:
        # Only the calling thread uses the connection. While it sends a chunk, the pool's thread
        # unpacks the next one.
        for key, seal in wanted.items():
            small = connection.value("chunk", **key._asdict())
            pages = [] if small else connection.values("chunk_pages", **key._asdict())
            next_chunk = pool.submit(payload.unpack, small, pages, _expect(key, seal))
            if unpacking is not None:
                yield unpacking.result()
            unpacking = next_chunk
        if unpacking is not None:
            yield unpacking.result()


def _expect(key: ChunkKey, seal: payload.Seal) -> payload.Expected:
    """Describe the payload of a chunk. `payload.unpack` raises PayloadRefused for any other."""
    return payload.Expected(
        where=f"staged chunk {key.chunk} of attempt {key.attempt}, batch {key.sink_batch} "
        f"of sink {key.sink}",
        schema=CHUNK_ROW,
        optional=CHUNK_OPTIONAL,
        most=seal.size,
        seal=seal,
    )


def delete_abandoned(connection: Connection) -> None:
    """Delete what nameless writes left in the staging and the dispatch log over a week ago."""
    connection.run("discard_abandoned", seconds=ABANDONED)
    connection.run("delete_old_sinks", seconds=ABANDONED)


# ---------------------------------------------------------------- the dispatch log


def enter(
    connection: Connection, sink: str, sink_batch: int, messages: int, options: SinkOptions
) -> Entry:
    """
    Enter a batch into the dispatch log, if it was not sent before. This transaction will send it.

    Raises:
        DispatchLogAhead, OtherDestination.
    """
    last = lock_exclusive(connection, sink)
    if last.sink_batch is not None and last.sink_batch > sink_batch + AHEAD:
        # all batches up to the logged one would be taken for sent, and their messages dropped
        raise errors.DispatchLogAhead(
            sink=sink,
            sink_batch=sink_batch,
            found=last.sink_batch,
            schema=connection.state,
            server=connection.server,
        )
    destination = None
    if sink.startswith(NAMED_SINK):
        destination = describe_destination(connection, options)
        if last.sink_batch == sink_batch:
            refuse_other_destination(connection, sink, sink_batch, last.destination, destination)
    is_new = advance(connection, sink, sink_batch, messages, destination)
    return Entry(is_new, last.login)


def lock_exclusive(connection: Connection, sink: str) -> LoggedSink:
    """Lock a sink's row until the commit. The sink's tasks and other drivers wait until then."""
    sinks = connection.rows("sink_close", LoggedSink, sink=sink)
    if not sinks:
        connection.run("new_sink", sink=sink)
        sinks = connection.rows("sink_close", LoggedSink, sink=sink)
    return sinks[0]


def last_sent(connection: Connection, sink: str) -> LastDispatch | None:
    """
    Return the last dispatch of a sink. Returns None if the sink is new.

    This waits for a driver that dispatches. Then it locks the sink's row shared, so that no driver
    can begin to dispatch before the caller's commit. Nothing is changed.
    """
    return connection.row("sink_open", LastDispatch, sink=sink)


def advance(
    connection: Connection,
    sink: str,
    sink_batch: int,
    messages: int = 0,
    destination: str | None = None,
) -> bool:
    """Enter a batch of a locked sink. Returns False if the log has this batch or a later one."""
    entered = connection.value(
        "advance", sink=sink, sink_batch=sink_batch, messages=messages, destination=destination
    )
    return entered is not None


# ---------------------------------------------------------------- where a batch went

TO_QUEUE = "queue "
TO_TOPICS = "topics "
BY_COLUMNS = "the columns queue and topics"


def describe_destination(connection: Connection, options: SinkOptions) -> str:
    """
    Return where a write goes, as the text that the dispatch log stores.

    The text does not name the queues in the column `queue` of the rows. A user may take these
    queues from a table that changes before the batch is repeated.
    """
    if options.topics is not None:
        return TO_TOPICS + ",".join(sorted({*options.topics}))
    if options.address is None:
        return BY_COLUMNS
    return TO_QUEUE + connection.canonical(options.address)


def refuse_other_destination(
    connection: Connection, sink: str, sink_batch: int, before: str | None, destination: str
) -> None:
    """Raise OtherDestination if the batch was sent before to another destination."""
    if before is None or before == destination:
        return
    if is_same_queue(connection, before, destination):
        return
    raise errors.OtherDestination(
        application=sink.removeprefix(NAMED_SINK),
        sink_batch=sink_batch,
        found=before,
        asked=destination,
    )


def is_same_queue(connection: Connection, *destinations: str) -> bool:
    """Whether two destinations are spellings of one queue. Only the server can compare them."""
    if not all(text.startswith(TO_QUEUE) for text in destinations):
        return False
    parse = connection.names.parse_address
    try:
        one, other = connection.identities(
            [parse(text.removeprefix(TO_QUEUE)) for text in destinations]
        )
    except errors.BadAddress:  # the dispatch log is untrusted: its text may be no address
        return False
    return one == other


# ---------------------------------------------------------------- a request of a job


def read_state(connection: Connection, sink: str) -> int:
    """Return the state of a request: one of the constants REQUEST_. Change nothing."""
    with transaction(connection):
        last = last_sent(connection, sink)
    return REQUEST_UNKNOWN if last is None or last.sink_batch is None else last.sink_batch


def open_request(connection: Connection, sink: str) -> None:
    """Enter a request as open, unless the dispatch log already has a state of it."""
    with transaction(connection):
        lock_exclusive(connection, sink)
        advance(connection, sink, REQUEST_OPEN)


def give_up(connection: Connection, sink: str) -> None:
    """Give up a request that was not sent, and delete what was staged for it."""
    with transaction(connection):
        last = lock_exclusive(connection, sink)
        if last.sink_batch is None or last.sink_batch < REQUEST_SENT:
            advance(connection, sink, REQUEST_GIVEN_UP)
            connection.run("discard", sink=sink, sink_batch=REQUEST_GIVEN_UP)
