"""
Looks at queues and their streams, and the flow between two looks.

The incoming messages are the growth of the highest seq. The outgoing messages are that growth less
the change of the backlog: they were received, expired or purged. The highest seq is that of the
visible messages. If no message waits, it is the last number of the sequence.

An open transaction hides its messages, so that they count in a later interval. A send that was
rolled back counts as in and out. Over several intervals the figures are correct.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import checks, inspect, queue_tables
from sqlq_spark.admin.finding import absent, delayed_alone
from sqlq_spark.database import read_clock, transaction
from sqlq_spark.database.schema import check_state, delayed_of
from sqlq_spark.errors import ConnectionLost, DatabaseFailure, RightMissing, StateNotInstalled
from sqlq_spark.options.names import parse_queue
from sqlq_spark.receive.peek import seconds_since

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlq_spark.admin.finding import Finding
    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

    Locks = Mapping[str, Sequence[Finding]]  # by the canonical address of a queue

Json = dict[str, Any]

# the state of a queue with a problem, where the problem's name does not say it
STATES = {"locked_messages": "held", "delayed_alone": "no queue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
    """A queue at one moment."""

    at: datetime  # by the database's clock
    depth: inspect.Depth
    given: int | None  # the sequence's last number; None if unused, or not visible to this login
    oldest: float | None  # seconds since the lowest message was sent, by its header
    delayed: inspect.Delayed | None
    receipts: int = 0
    held: int = 0  # messages in them
    kind: str = "queue"
    is_read: bool = True  # if not, the depth is an estimate of the catalogue
    problems: Sequence[Finding] = ()

    @property
    def state(self) -> str:
        """`ok`, or what its worst problem is."""
        worst = min(self.problems, key=lambda each: each.rank, default=None)
        return "ok" if worst is None else STATES.get(worst.name, worst.name.replace("_", " "))

    @property
    def queue(self) -> str:
        """Its canonical address."""
        return self.depth.queue

    @property
    def highest(self) -> int | None:
        """The highest known seq."""
        return self.given if self.depth.last is None else self.depth.last


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages per second between two looks; None if unknown."""

    incoming: float | None = None
    outgoing: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Queues and streams at one moment."""

    at: datetime
    queues: list[QueueLook]
    streams: list[inspect.Stream] | None  # None if this login sees no state tables
    server_problems: Sequence[Finding] = ()

    @property
    def problems(self) -> list[Finding]:
        """Those of the queues, then those of the server; errors first."""
        found = [*(one for each in self.queues for one in each.problems), *self.server_problems]
        return sorted(found, key=lambda each: each.rank)


UNKNOWN = Flow()


# ---------------------------------------------------------------- look


def look(connection: Connection, names: Sequence[str], options: DatabaseOptions) -> Look:
    """
    Look at queues, each in its own transaction. Locks nothing.

    Args:
        connection: no transaction open.
        names: of the queues; if empty, all that the database has and all that streams read.
        options: url, state schema and time limit.

    Raises:
        QueueNotFound, RightMissing: of a queue that was named.
    """
    streams, receipts = state(connection, options)
    locks: dict[str, list[Finding]] = {}
    for each in queue_tables.blockers(connection):
        locks.setdefault(each.where, []).append(each)
    if names:
        addresses = dict.fromkeys(parse_queue("QUEUE", name, options.naming) for name in names)
        queues = [look_at(connection, each, options, receipts, locks) for each in addresses]
        asked = {each.queue for each in queues}
        streams = streams and [each for each in streams if not asked.isdisjoint(each.queues)]
    else:
        queues = look_at_all(connection, options, streams or (), receipts, locks)
    server = checks.of_any_server(connection, timeout=options.query_timeout)
    return Look(
        at=read_clock(connection),
        queues=queues,
        streams=streams,
        server_problems=[each for each in server if each.is_problem],
    )


def look_at_all(
    connection: Connection,
    options: DatabaseOptions,
    streams: Sequence[inspect.Stream],
    receipts: Sequence[inspect.Receipt],
    locks: Locks,
) -> list[QueueLook]:
    """Look at all queues of the database; one that cannot be read does not stop the others."""
    tables = queue_tables.tables(connection)
    found = {connection.printed(each.address): each for each in queue_tables.queues(tables)}
    looks = []
    for name, table in found.items():
        try:
            looks.append(
                look_at(connection, table.address, options, receipts, locks, unnamed=table)
            )
        except ConnectionLost:
            raise
        except DatabaseFailure as error:
            looks.append(unread(connection, name, table, [checks.not_waited(name, error)]))
    missing = {name for each in streams for name in each.queues} - found.keys()
    looks += [unread(connection, name, None, [absent(name)]) for name in sorted(missing)]
    for table in queue_tables.without_queue(tables):
        name = connection.printed(table.address)
        looks.append(unread(connection, name, table, [delayed_alone(name)]))
    return looks


def unread(
    connection: Connection, name: str, table: queue_tables.Table | None, problems: Sequence[Finding]
) -> QueueLook:
    """What the catalogue says of a queue that is not read."""
    messages, size = (0, 0) if table is None else (table.messages, table.bytes)
    return QueueLook(
        at=read_clock(connection),
        depth=inspect.Depth(name, messages, None, size, None, None, estimated=True),
        given=None,
        oldest=None,
        delayed=None,
        kind="delayed messages" if table is not None and table.is_delayed else "queue",
        is_read=False,
        problems=problems,
    )


def state(
    connection: Connection, options: DatabaseOptions
) -> tuple[list[inspect.Stream] | None, list[inspect.Receipt]]:
    """Read streams and receipts; None and [] if this login sees no state tables."""
    try:
        check_state(connection)
        with transaction(connection, timeout=options.query_timeout):
            return inspect.streams(connection), inspect.receipts(connection)
    except (StateNotInstalled, RightMissing):
        return None, []


def look_at(
    connection: Connection,
    queue: QueueAddress,
    options: DatabaseOptions,
    receipts: Sequence[inspect.Receipt] = (),
    locks: Locks = MappingProxyType({}),
    *,
    unnamed: queue_tables.Table | None = None,
) -> QueueLook:
    """
    Look at one queue; no transaction is open.

    A queue that is locked is not read. One that nobody named is read only if that is safe.
    """
    name = connection.printed(queue)
    blocked = locks.get(name, ())
    if any(each.name == "locked" for each in blocked):
        return unread(connection, name, unnamed, blocked)
    with transaction(connection, timeout=options.query_timeout):
        if unnamed is not None:
            connection.set_lock_timeout(queue_tables.LOCK_WAIT)
            danger = queue_tables.danger(connection, queue)
            if danger is not None:
                return unread(connection, name, unnamed, [queue_tables.refusal(name, danger)])
        depth = inspect.depth(connection, queue, largest=inspect.LARGEST_COUNTED_TABLE)
        kind, problems = checks.of_look(connection, queue, depth)
        given = connection.rows("seq_given", tables={"queue": queue}, table_name=depth.queue)
        sent = None
        if depth.first is not None:
            sent = connection.rows("sample", tables={"queue": queue}, first=depth.first)[0][1]
        zone = options.endpoint_time_zone
        delayed, refused = look_at_delayed(connection, queue, zone, is_named=unnamed is None)
        now = read_clock(connection)
    own = [each for each in receipts if each.queue == depth.queue]
    return QueueLook(
        at=now,
        depth=depth,
        given=given[0][0] if given else None,
        oldest=seconds_since(sent, now),
        delayed=delayed,
        receipts=len(own),
        held=sum(each.messages for each in own),
        kind=kind,
        problems=[*blocked, *problems, *refused],
    )


def look_at_delayed(
    connection: Connection, queue: QueueAddress, zone: str | None, *, is_named: bool
) -> tuple[inspect.Delayed | None, list[Finding]]:
    """Measure a queue's delayed messages; if nobody named it, only if that is safe."""
    name = inspect.delayed_name(connection, queue)
    if name is not None and not is_named:
        found = queue_tables.delayed(connection, delayed_of(queue))
        if found is None:
            return None, []
        if found.danger is not None:
            return None, [queue_tables.refusal(name, found.danger, name="delayed_not_read")]
    measured = inspect.delayed(connection, queue, zone, largest=inspect.LARGEST_COUNTED_TABLE)
    return measured, []


# ---------------------------------------------------------------- between two looks


def flow(before: QueueLook | None, now: QueueLook) -> Flow:
    """
    The rates in and out, as the module describes; never below 0.

    Returns:
        UNKNOWN at the first look, and if the sequence was restarted.
    """
    if before is None or not (before.is_read and now.is_read):
        return UNKNOWN
    if before.highest is None or now.highest is None:
        return UNKNOWN
    seconds = (now.at - before.at).total_seconds()
    came = now.highest - before.highest
    if seconds <= 0 or came < 0:
        return UNKNOWN
    went = came - (now.depth.messages - before.depth.messages)
    return Flow(came / seconds, max(0, went) / seconds)


def flows(before: Look | None, now: Look) -> dict[str, Flow]:
    """The flow of each queue, by its address."""
    earlier = {} if before is None else {each.queue: each for each in before.queues}
    return {each.queue: flow(earlier.get(each.queue), each) for each in now.queues}


def paces(before: Look | None, now: Look) -> dict[str, float | None]:
    """Messages per second that each stream acknowledged since the previous look."""
    if before is None:
        return {}
    seconds = (now.at - before.at).total_seconds()
    counts = {each.stream: each.messages for each in before.streams or ()}
    return {
        each.stream: max(0, each.messages - counts[each.stream]) / seconds
        for each in now.streams or ()
        if each.stream in counts and seconds > 0
    }


def lag(stream: inspect.Stream, now: Look) -> int:
    """Messages that wait in a stream's queues, and those in its receipts."""
    waiting = Counter({each.queue: each.depth.messages for each in now.queues})
    return sum(waiting[name] for name in stream.queues) + stream.held


# ---------------------------------------------------------------- JSON


def to_json(before: Look | None, now: Look) -> Json:
    """A look as a JSON object; figures per second are null at the first look."""
    found, speeds = flows(before, now), paces(before, now)
    return {
        "at": now.at,
        "queues": [queue_to_json(each, found[each.queue]) for each in now.queues],
        "problems": [asdict(each) for each in now.problems],
        "streams": [
            asdict(each) | {"lag": lag(each, now), "perSecond": round_rate(speeds.get(each.stream))}
            for each in now.streams or ()
        ],
    }


def queue_to_json(each: QueueLook, its: Flow) -> Json:
    """A queue as a JSON object."""
    delayed = each.delayed
    return asdict(each.depth) | {
        "seq": each.highest,
        "oldest": each.oldest,
        "inPerSecond": round_rate(its.incoming),
        "outPerSecond": round_rate(its.outgoing),
        "delayed": None if delayed is None else delayed.messages,
        "due": None if delayed is None else delayed.due,
        "delayedBytes": None if delayed is None else delayed.bytes,
        "delayedEstimated": None if delayed is None else delayed.estimated,
        "receipts": each.receipts,
        "held": each.held,
        "kind": each.kind,
        "state": each.state,
        "read": each.is_read,
    }


def round_rate(value: float | None) -> float | None:
    """Round a rate to two decimal places."""
    return None if value is None else round(value, 2)
