"""
Sending: stage on the executors, dispatch once on the driver, or send at once.

exactlyOnce: a task writes its messages as chunks into the staging, where no receiver sees them.
When all tasks are done, the driver enters the batch into the ledger, copies the winning attempts'
chunks into the queues and empties the staging, in one transaction. A batch that is in the ledger is
not sent again, and one that failed was not sent at all.

With sendsAtomicWithReceive that transaction also settles the receipts of the micro-batch: what was
received can no longer be returned to its queue, so receive and sends commit together.

atLeastOnce: a task sends each chunk in a transaction of its own, straight into the queues.
A task that is tried again sends again, with the same message ids.

A message that is published becomes a row in each subscriber's queue, in the same transaction.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.receipt_moves import check_stored
from sqlq_spark.errors import ChunksMissing, MissingOption, NothingToSettle
from sqlq_spark.options.addresses import parse_queue
from sqlq_spark.send import delayed, dispatch_log, subscriptions
from sqlq_spark.send.delays import CHUNK_DELAYS
from sqlq_spark.send.messages import CHUNK_ROW
from sqlq_spark.send.topics import CHUNK_TOPICS
from sqlq_spark.wire.payload import CHUNK_KEY, Packed, Seal, in_row, packed, pages
from sqlq_spark.wire.rows import NO_STREAM, Origin, rising_ids, with_legacy_columns
from sqlq_spark.wire.unpack import Expected, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session, Target
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")

ABANDONED = 7 * 86400.0  # seconds after which nothing is kept of a nameless write


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt of a task put into the staging."""

    sink: str
    batch: int
    attempt: str
    chunks: int
    messages: int
    seals: tuple[Seal, ...] = ()  # one for each chunk; they do not pass through the database
    origin: Origin = NO_STREAM  # the micro-batch, whose receipts may be settled


def database_clock(session: Session) -> datetime:
    """The database's time, by which messages expire."""
    found: datetime = session.do(lambda connection: connection.rows("clock")[0][0])
    return found.replace(tzinfo=UTC)


def nameless_sink() -> str:
    """A name for a write that is never replayed."""
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
    Put a task's messages into the staging, a transaction for each chunk.

    Args:
        session: of the task.
        chunks: tables of CHUNK_ROW; computed by Spark while no transaction is open.
        sink: who sends.
        batch: the sink's batch.
        origin: Spark's names for the micro-batch that runs.
    """
    attempt, messages = str(uuid.uuid4()), 0
    seals: list[Seal] = []
    for chunk in chunks:
        payload, key = packed(chunk), (sink, batch, attempt, len(seals))
        session.do(partial(_stage, payload, chunk.num_rows, key, session.options))
        seals.append(payload.seal)
        messages += chunk.num_rows
    return Staged(sink, batch, attempt, len(seals), messages, tuple(seals), origin)


def _stage(
    payload: Packed,
    messages: int,
    key: tuple[str, int, str, int],
    options: Target,
    connection: Connection,
) -> None:
    sink, batch, attempt, number = key
    with transaction(connection, timeout=options.query_timeout):
        login = dispatch_log.share(connection, sink)
        staged = connection.rows(
            "stage",
            sink=sink,
            login=login,
            batch=batch,
            attempt=attempt,
            chunk=number,
            messages=messages,
            payload=in_row(payload.bytes),
        )
        if staged:
            connection.store("staging_page", pages(payload.bytes, CHUNK_KEY, (*key, login)))


def dispatch(connection: Connection, staged: list[Staged], options: SinkOptions) -> int:
    """
    Send what the winning attempts staged, once, in one transaction.

    Args:
        connection: no transaction open.
        staged: of one sink and batch, one for each task.
        options: the sink's; its queue takes the rows that name none.

    Returns:
        How many messages were sent now; 0 where the batch was sent before.

    Raises:
        ChunksMissing, QueueNotFound, DestinationRefused, SubscriberUnreachable,
        SubscriptionsNotFound, NothingToSettle, DispatchLogAhead, DispatchLogOfOther: nothing was
        sent.
    """
    if not staged:
        return 0
    sink, batch = staged[0].sink, staged[0].batch
    messages = sum(each.messages for each in staged)
    unheard: Counter[str] = Counter()
    with transaction(connection, timeout=options.query_timeout):
        login, last = dispatch_log.lock(connection, sink)
        dispatch_log.check(connection, sink, batch, last)
        values: dict[str, Any] = {"sink": sink, "login": login, "batch": batch}
        new = connection.rows("advance", **values, messages=messages)
        if new and options.settles:
            settle(connection, staged[0].origin)
        if new:
            unheard = send_chunks(connection, staged, options, login)
        connection.run("discard", **values)
        connection.run("discard_abandoned", seconds=ABANDONED)
        connection.run("forget_abandoned", seconds=ABANDONED)
    log.info(
        "%s: batch %d: %s", sink, batch, f"{messages} messages sent" if new else "was sent before"
    )
    warn(f"{sink}: batch {batch}", unheard)
    return messages if new else 0


def settle(connection: Connection, origin: Origin) -> None:
    """Mark what the micro-batch received as sent on, in the transaction that is open."""
    query, batch = origin.query_id, origin.query_batch
    check_stored("settle", f"the receipts of micro-batch {batch} of query {query}")
    if not connection.rows("settle", query_id=query, query_batch=batch):
        raise NothingToSettle(query, batch, connection.state, connection.server)


def warn(where: str, unheard: Counter[str]) -> None:
    """Tell, after the commit, which messages no one was subscribed to; they went nowhere."""
    if unheard:
        log.warning("%s: %s", where, subscriptions.told(unheard))


def send_chunks(
    connection: Connection, staged: list[Staged], options: SinkOptions, login: str
) -> Counter[str]:
    """
    Copy the winning attempts' chunks into the queues, in the order of tasks and rows.

    Args:
        connection: in a transaction, with the sink's row locked.
        staged: of one sink and batch.
        options: the sink's.
        login: that the sink belongs to.

    Returns:
        Of `insert`.
    """
    sink, batch = staged[0].sink, staged[0].batch
    wanted = {
        (each.attempt, number): seal for each in staged for number, seal in enumerate(each.seals)
    }
    there = set(connection.rows("chunks", sink=sink, login=login, batch=batch))
    missing = wanted.keys() - there
    if missing:
        raise ChunksMissing(sink, batch, len(wanted), len(wanted) - len(missing))
    known = Destinations(connection, options.allowed)
    unheard: Counter[str] = Counter()
    for (attempt, number), seal in wanted.items():
        rows = chunk(connection, (sink, batch, attempt, number), seal, login)
        unheard += insert(connection, rows, options, known)
    known.confirm()
    return unheard


def chunk(
    connection: Connection, key: tuple[str, int, str, int], seal: Seal, login: str
) -> pa.Table:
    """
    One chunk of the staging.

    Raises:
        PayloadRefused: it is not the one that the task wrote.
    """
    sink, batch, attempt, number = key
    named: dict[str, Any] = {
        "sink": sink,
        "login": login,
        "batch": batch,
        "attempt": attempt,
        "chunk": number,
    }
    ((payload,),) = connection.rows("chunk", **named)
    stored = [] if payload else connection.rows("chunk_pages", **named)
    expected = Expected(
        where=f"staged chunk {number} of attempt {attempt}, batch {batch} of sink {sink}",
        schema=CHUNK_ROW,
        optional=(*CHUNK_DELAYS.values(), CHUNK_TOPICS),
        most=seal.size,
        size=seal.size,
        seal=seal,
    )
    return unpacked(payload, stored, expected)


def send_now(session: Session, chunks: Iterable[pa.Table], options: SinkOptions) -> int:
    """Send chunks as they come, a transaction for each; returns how many messages."""
    messages, unheard = 0, Counter[str]()
    for chunk in chunks:
        unheard += session.do(partial(_send, chunk=chunk, options=options))
        messages += chunk.num_rows
    warn(session.application, unheard)
    return messages


def _send(connection: Connection, chunk: pa.Table, options: SinkOptions) -> Counter[str]:
    with transaction(connection, timeout=options.query_timeout):
        known = Destinations(connection, options.allowed)
        unheard = insert(connection, chunk, options, known)
        known.confirm()
        return unheard


def discard(connection: Connection, sink: str, batch: int, *, final: bool, timeout: float) -> None:
    """
    Drop what a batch, and those before it, staged.

    Args:
        connection: no transaction open.
        sink: who would have sent.
        batch: the one that failed.
        final: it will not be tried again, so its tasks that still run must not stage either.
        timeout: seconds for each statement and wait.
    """
    with transaction(connection, timeout=timeout):
        login, _ = dispatch_log.lock(connection, sink)
        values: dict[str, Any] = {"sink": sink, "login": login, "batch": batch}
        if final:
            connection.rows("advance", **values, messages=0)
        connection.run("discard", **values)


def insert(
    connection: Connection, chunk: pa.Table, options: SinkOptions, known: Destinations
) -> Counter[str]:
    """
    Insert a chunk's messages into their queues, Expires by the database's clock.

    Args:
        connection: in a transaction.
        chunk: of CHUNK_ROW, with `topics` where some are published, and CHUNK_DELAYS where some
            are delayed: those are stored, due by the database's clock too.
        options: the sink's.
        known: tables sent to in this transaction; grows.

    Returns:
        Topics that no one is subscribed to, with how many messages went nowhere.
    """
    waiting = delayed.waiting(chunk)
    if waiting is not None:
        later, chunk = chunk.filter(waiting), chunk.filter(pc.invert(waiting))
        delayed.store_delayed(connection, later, by_queue(later, options), options, known)
    rows = expiring(connection, chunk)
    if options.fills_legacy_columns:
        rows = with_legacy_columns(rows)
    chosen = by_queue(chunk, options)
    known.look_for(chosen)
    topics, unheard = subscriptions.topics_of(chunk), Counter[str]()
    if topics is not None:
        copied, unheard = subscriptions.fan_out(connection, topics, options, known)
        for queue, copies in copied.items():
            chosen[queue] = pc.or_(chosen[queue], copies) if queue in chosen else copies
    whole = topics is None and len(chosen) == 1
    for queue, own in chosen.items():
        connection.load(queue, identified(rows if whole else rows.filter(own)))
    return unheard


def by_queue(chunk: pa.Table, options: SinkOptions) -> dict[QueueAddress, pa.ChunkedArray]:
    """Which rows go to one queue, as booleans, for each queue."""
    own, topics = chunk["queue"], subscriptions.topics_of(chunk)
    sent = None if topics is None else pc.is_null(topics)
    names: dict[QueueAddress, list[str | None]] = {}
    for name in pc.unique(own if sent is None else own.filter(sent)).to_pylist():
        names.setdefault(destination(name, options), []).append(name)
    chosen = {
        queue: pc.is_in(own, value_set=pa.array(spelled, pa.string()))
        for queue, spelled in names.items()
    }
    return chosen if sent is None else {at: pc.and_(own, sent) for at, own in chosen.items()}


def destination(name: str | None, options: SinkOptions) -> QueueAddress:
    """Where a row goes; `name` is its own queue, untrusted, or None for the sink's."""
    if name is None:
        if options.address is None:
            raise MissingOption("queue", "a queue's name, or a column queue without nulls")
        return options.address
    return parse_queue("queue (column)", name, options.naming)


def look_ahead(connection: Connection, options: SinkOptions) -> None:
    """
    Make sure that what the options send to is there; no transaction is open.

    Raises:
        QueueNotFound, NotAQueue, DestinationRefused, SubscriptionsNotFound.
    """
    with transaction(connection, timeout=options.query_timeout):
        if options.topics is None:
            queue = destination(None, options)
            for reason in Destinations(connection, options.allowed).look([queue]).values():
                raise reason
        else:
            subscriptions.look_for(connection, options.subscription_address)


def expiring(connection: Connection, chunk: pa.Table) -> pa.Table:
    """The columns of a queue, but for ids; `expires` is the database's now plus the lifetime."""
    columns = {"headers": chunk["headers"], "body": chunk["body"]}
    lifetime = chunk["lifetime"]
    if lifetime.null_count < len(lifetime):
        now = connection.rows("clock")[0][0]
        later = pc.multiply(lifetime, 1000).cast(pa.duration("us"))
        columns["expires"] = pc.add(pa.scalar(now, pa.timestamp("us")), later)
    return pa.table(columns)


def identified(rows: pa.Table) -> pa.Table:
    """The rows with ids, fresh and rising: each copy of a message is a row of its own."""
    ids = pa.py_buffer(rising_ids(rows.num_rows, time.time()))
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows.num_rows, [None, ids])
    return rows.append_column("id", column)
