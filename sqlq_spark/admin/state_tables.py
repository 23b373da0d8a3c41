"""Reads streams, receipts and the audit trail from the state tables. Locks nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime  # noqa: TC003 - the type of a row's field
from typing import TYPE_CHECKING

from sqlq_spark.admin.formats import show_span
from sqlq_spark.database import read_clock
from sqlq_spark.database.state_rows import LONGEST_SILENCE, Heartbeat, HeldReceipt
from sqlq_spark.errors import BadAddress
from sqlq_spark.options.fields import INT64
from sqlq_spark.wire.dialects import split_canonical

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, slots=True)
class Stream:
    """A row of `streams`. Each checkpoint has its own stream."""

    stream: str
    name: str | None  # the name of Spark's query, or of the stream
    queue: str  # addresses; several are joined by ", "
    host: str | None  # the host and the process that run it, or did so last
    process: int | None
    query_id: str | None
    batch: int  # the number of the last acknowledged batch
    messages: int  # how many, in all acknowledged batches
    expired: int
    diverted: int  # how many went to an error queue
    forwarded: int
    created: datetime
    seen: datetime
    receipts: int
    held: int  # messages in them
    is_open: bool  # whether a batch is planned and not acknowledged
    silent: float  # seconds since the last batch or heartbeat
    # How many messages wait in its queues and its receipts. Not a column: `stats` adds it to a
    # stream that runs.
    lag: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.silent < LONGEST_SILENCE

    @property
    def state(self) -> str:
        """Say what the stream does now, or for how long it is gone."""
        if not self.is_alive:
            return f"gone for {show_span(self.silent)}"
        return "running" if self.is_open else "idle"

    @property
    def title(self) -> str:
        """Return the stream's name, or where it runs, or else the beginning of its id."""
        if self.name:
            return self.name
        return f"{self.stream[:8]}…" if self.host is None else f"{self.host}:{self.process}"

    @property
    def queues(self) -> list[str]:
        """Return the canonical addresses of the queues that the stream reads."""
        return split_canonical(self.queue)


@dataclass(frozen=True, slots=True)
class DivertedTotal:
    """How many messages a stream moved to its error queue, in all its batches."""

    queries: frozenset[str]  # Spark's queries that ran the stream
    messages: int


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """Who purged, returned, dropped or retired what, and how many messages."""

    at: datetime
    login: str
    session_login: str  # the login that connected
    action: str
    messages: int
    stream: str | None  # the stream of a receipt; None for other actions
    batch: int | None
    task: int | None
    queue: str


def list_streams(connection: Connection) -> list[Stream]:
    """
    List all streams but those that were removed, the one that was seen last first.

    The streams that run and have no batch yet come first. Their id is empty.
    """
    new = [
        begin_stream(heartbeat)
        for heartbeat in list_heartbeats(connection)
        if heartbeat.is_alive and heartbeat.stream is None
    ]
    return new + [
        replace(stream, queue=queue_names(connection, stream.queue))
        for stream in connection.rows("streams", Stream)
    ]


def begin_stream(heartbeat: Heartbeat) -> Stream:
    """Return what is known of a stream before its first batch."""
    return Stream(
        stream="",
        name=heartbeat.name,
        queue=heartbeat.queue,
        host=heartbeat.host,
        process=heartbeat.process,
        query_id=None,
        batch=0,
        messages=0,
        expired=0,
        diverted=0,
        forwarded=0,
        created=heartbeat.started,
        seen=heartbeat.beat,
        receipts=0,
        held=0,
        is_open=False,
        silent=heartbeat.silent,
    )


def count_diverted(connection: Connection) -> dict[str, DivertedTotal]:
    """
    Count the messages that each stream moved to its error queue, by the stream's id.

    The batch that is not acknowledged counts too: its receipts have the counts.
    """
    from sqlq_spark.receive.receipts import find_outcomes  # noqa: PLC0415 - it loads pyarrow

    counted = {}
    for stream in list_streams(connection):
        messages, queries = stream.diverted, {stream.query_id}
        if stream.receipts:
            outcomes = find_outcomes(connection, stream.stream, stream.batch + 1, INT64)
            messages += sum(outcome.diverted for outcome in outcomes)
            queries.update(outcome.query_id for outcome in outcomes)
        known = frozenset(query for query in queries if query is not None)
        counted[stream.stream] = DivertedTotal(known, messages)
    return counted


def list_heartbeats(connection: Connection) -> list[Heartbeat]:
    """List the processes that run streams, the one that began first at first."""
    return [
        replace(heartbeat, queue=queue_names(connection, heartbeat.queue))
        for heartbeat in connection.rows("heartbeats", Heartbeat)
    ]


def unseen_streams(connection: Connection, older: float) -> list[Stream]:
    """List the streams that hold receipts and were not seen for more than `older` seconds."""
    now = read_clock(connection)
    return [
        stream
        for stream in list_streams(connection)
        if stream.receipts and (now - stream.seen).total_seconds() > older
    ]


def list_receipts(
    connection: Connection,
    *,
    stream: str | None = None,
    batch: int | None = None,
    task: int | None = None,
    queue: QueueAddress | None = None,
) -> list[HeldReceipt]:
    """List receipts, the oldest first. An argument that is None is not a condition."""
    name = None if queue is None else connection.names.print_address(queue)
    return [
        replace(receipt, queue=queue_names(connection, receipt.queue))
        for receipt in connection.rows("receipts", HeldReceipt, stream=stream, queue_name=name)
        if batch in {None, receipt.batch} and task in {None, receipt.task}
    ]


def read_trail(
    connection: Connection, *, entries: int, queue: QueueAddress | None = None
) -> list[TrailEntry]:
    """Return the latest entries of the audit trail, the latest first, of a queue or of all."""
    name = None if queue is None else connection.printed(queue)
    return connection.rows("trail", TrailEntry, entries=entries, queue_name=name)


def queue_names(connection: Connection, text: str) -> str:
    """
    Return the queues of a row of a state table as all commands print them.

    A text that is no address is returned as it is. The rows do not name their database, so in a
    copy of the database they name the queues of the copy.
    """
    try:
        found = map(connection.names.parse_queue, split_canonical(text))
        return ", ".join(map(connection.printed, found))
    except BadAddress:
        return text
