"""
Looks at queues and their streams, and computes what flowed between two looks.

    in  = growth of the highest seq
    out = in - growth of the backlog

Messages that went out were received, or they expired, or somebody purged them. The highest seq is
that of the visible messages. If no message waits, it is the last number that the queue's sequence
gave.

The messages of an open transaction are not visible, so they are counted in a later interval. A send
that was rolled back has used numbers of the sequence, so its messages count as in and as out. Over
several intervals the difference of in and out is correct.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.admin import doctor, queue_sizes, state_tables
from sqlq_spark.admin.formats import ShownColumn, ago, byte_size, json_row, rate, show_span
from sqlq_spark.admin.queue_checks import Finding, blockers, of_head, of_table, unreadable
from sqlq_spark.database import read_clock, transaction
from sqlq_spark.database.destinations import LOST
from sqlq_spark.database.looks import Sample
from sqlq_spark.database.schema import check_state
from sqlq_spark.options.names import database_name, parse_queue
from sqlq_spark.receive.peek import seconds_since

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.database.state_rows import HeldReceipt
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import Names, QueueAddress

ERRORS = "error queue"  # the kind of a queue


@dataclass(slots=True, kw_only=True)
class QueueLook:
    """A queue at one moment."""

    at: datetime | None = None  # by the database's clock; None if the queue was not read
    depth: queue_sizes.Depth  # an estimate of the catalogue, if the queue was not read
    # The highest seq. None if no seq was used yet, or if this login may not see the sequence.
    highest: int | None = None
    oldest: float | None = None  # seconds since the lowest message was sent, by its header TimeSent
    delayed: queue_sizes.Delayed | None = None
    receipts: int = 0  # how many receipts of the queue there are
    held: int = 0  # how many messages are in these receipts
    kind: str = "queue"
    problems: list[Finding]
    # Messages per second since the previous look; None if that is not known.
    incoming: float | None = None
    outgoing: float | None = None

    @property
    def state(self) -> str:
        """Return `ok`, or the name of the worst problem."""
        return self.worst.name.replace("_", " ") if self.worst else "ok"

    @property
    def worst(self) -> Finding | None:
        return min(self.problems, key=lambda problem: problem.rank, default=None)

    @property
    def is_read(self) -> bool:
        return self.at is not None

    @property
    def faults(self) -> int:
        return len(self.problems)

    @property
    def queue(self) -> str:
        return self.depth.queue


@dataclass(frozen=True, slots=True)
class Look:
    """Queues and streams at one moment."""

    at: datetime
    queues: list[QueueLook]
    streams: list[state_tables.Stream] | None  # None if this login cannot read the state tables
    server_problems: Sequence[Finding] = ()

    @property
    def problems(self) -> list[Finding]:
        """Return the problems of the queues and of the server, errors first."""
        of_queues = [problem for queue in self.queues for problem in queue.problems]
        return sorted([*of_queues, *self.server_problems], key=lambda problem: problem.rank)


# ---------------------------------------------------------------- columns

# The last column of a table on the terminal names the row.
QUEUE_COLUMNS = (
    ShownColumn("backlog", "depth.messages", key="messages", estimated="depth.estimated"),
    ShownColumn("oldest", form=show_span),
    ShownColumn("in/s", "incoming", rate, only="watch", key="inPerSecond"),
    ShownColumn("out/s", "outgoing", rate, only="watch", key="outPerSecond"),
    ShownColumn("expired", "depth.expired"),
    ShownColumn("delayed", "delayed.messages", estimated="delayed.estimated"),
    ShownColumn("due", "delayed.due"),
    ShownColumn("receipts"),
    ShownColumn("held"),
    ShownColumn("size", "depth.bytes", byte_size, key="bytes"),
    ShownColumn("first seq", "depth.first", only="once", key="first"),
    ShownColumn("last seq", "depth.last", only="once", key="last"),
    ShownColumn("kind"),
    ShownColumn("state", mark="worst.severity"),
    ShownColumn("queue"),
    ShownColumn("highest seq", "highest", only="json", key="seq"),
    ShownColumn("estimated", "depth.estimated", only="json"),
    ShownColumn("delayed size", "delayed.bytes", only="json", key="delayedBytes"),
    ShownColumn("delayed estimated", "delayed.estimated", only="json", key="delayedEstimated"),
    ShownColumn("read", "is_read", only="json"),
    ShownColumn("problems", "faults", only="metrics"),
)
# The metric of a column: its name after `sqlqueue_`, and its help.
GAUGES = {
    "backlog": ("messages", "Messages that wait; an estimate for a table above 256 MiB."),
    "oldest": ("oldest_seconds", "Age of the message with the lowest seq, by its TimeSent."),
    "expired": ("expired_messages", "Messages that wait although they have expired."),
    "delayed": ("delayed_messages", "Messages in the table of delayed messages."),
    "due": ("due_messages", "Delayed messages that should have been moved to the queue."),
    "receipts": ("receipts", "Receipts that the streams of this state schema hold."),
    "held": ("held_messages", "Messages in these receipts."),
    "size": ("bytes", "Size of the table and its indexes."),
    "highest seq": ("highest_seq", "The highest seq; it grows by one for each message sent."),
    "problems": ("problems", "Errors and warnings that `sqlqueue stats` reports."),
}
# The metric of a stream: the attribute, its name after `sqlqueue_stream_`, and its help.
STREAM_GAUGES = {
    "is_alive": ("alive", "1 if the stream gave a sign in the last 40 seconds, else 0."),
    "lag": ("lag_messages", "Messages that wait in its queues and are in its receipts."),
    "held": ("held_messages", "Messages in its receipts."),
    "batch": ("acknowledged_batch", "The number of its last acknowledged batch."),
    "silent": ("silent_seconds", "Seconds since its last batch or heartbeat."),
}
STREAM_COLUMNS = (
    ShownColumn("name", "title"),
    ShownColumn("state"),
    ShownColumn("batch"),
    ShownColumn("lag"),
    ShownColumn("held"),
    ShownColumn("messages", only="page json"),
    ShownColumn("expired", only="json"),
    ShownColumn("diverted", only="json"),
    ShownColumn("forwarded", only="json"),
    ShownColumn("receipts", only="page json"),
    ShownColumn("seen", only="page json", form=ago),
    ShownColumn("created", only="json"),
    ShownColumn("host"),
    ShownColumn("process", only="json"),
    ShownColumn("query id", "query_id", only="json", key="queryId"),
    ShownColumn("queue"),
    ShownColumn("stream"),
)


# ---------------------------------------------------------------- look


def take_look(connection: Connection, names: Sequence[str], options: DatabaseOptions) -> Look:
    """
    Look at queues, each in its own transaction. It locks nothing.

    If `names` is empty, it looks at all queues of the database and at all that streams read. Then a
    queue that cannot be read does not stop the look at the others.

    Raises:
        QueueNotFound, RightMissing, TableRefused: a queue that was named cannot be read.
    """
    streams: list[state_tables.Stream] | None = None
    receipts: list[HeldReceipt] = []
    shared: list[Finding] = []
    state_problems: list[Finding] = []
    try:
        check_state(connection)
        with transaction(connection):
            streams = state_tables.list_streams(connection)
            receipts = state_tables.list_receipts(connection)
            shared = doctor.of_shared_queues(connection)
    except errors.StateOfOther as refused:
        finding = doctor.error_of_state(connection, "state_owner", refused, "do what is said there")
        state_problems = [finding]
    except (errors.StateNotInstalled, errors.RightMissing):
        pass
    locks = blockers(connection)
    if names:
        named = dict.fromkeys(parse_queue("QUEUE_COLUMNS", name, options.naming) for name in names)
        connection.trusted = options.trusted.with_named(named)
        queues = [look_at(connection, each, options, locks) for each in named]
        asked = {each.queue for each in queues}
        streams = streams and [each for each in streams if not asked.isdisjoint(each.queues)]
    else:
        queues = look_at_all(connection, options, locks)
        used = {name for each in streams or () for name in each.queues}
        for name in sorted(used.difference(each.queue for each in queues)):
            error = errors.QueueNotFound(queue=name, server=connection.server)
            queues.append(unread(name, None, unreadable(name, error)))
    for each in queues:
        held = [receipt.messages for receipt in receipts if receipt.queue == each.queue]
        each.receipts, each.held = len(held), sum(held)
        each.problems += [problem for problem in shared if problem.where == each.queue]
    waiting = {each.queue: each.depth.messages for each in queues}
    streams = streams and [with_lag(stream, waiting) for stream in streams]
    server = [each for each in doctor.of_server(connection) if each.is_problem] + state_problems
    return Look(at=read_clock(connection), queues=queues, streams=streams, server_problems=server)


def look_at_all(
    connection: Connection, options: DatabaseOptions, locks: Mapping[str, list[Finding]]
) -> list[QueueLook]:
    """Look at all tables that the login may read. A table that is not trusted is only listed."""
    looks = []
    tables = queue_sizes.list_tables(connection)
    refused = queue_sizes.find_refused(connection, [each.address for each in tables])
    for table in tables:
        reason = refused.get(table.address)
        if reason is None:
            looks.append(look_at(connection, table.address, options, locks, unnamed=table))
        else:
            name = connection.printed(table.address)
            looks.append(unread(name, table, *locks.get(name, ()), unreadable(name, reason)))
    return looks


def with_lag(stream: state_tables.Stream, waiting: Mapping[str, int]) -> state_tables.Stream:
    """
    Add the lag of a stream that runs: how many messages wait in its queues and are in its receipts.

    `waiting` says how many messages wait, by the name of the queue.
    """
    if not stream.is_alive:
        return stream
    messages = sum(waiting.get(queue, 0) for queue in stream.queues)
    return replace(stream, lag=messages + stream.held)


def unread(name: str, table: queue_sizes.QueueTable | None, *problems: Finding) -> QueueLook:
    """Return what the catalogue says about a queue that is not read."""
    messages, size = (0, 0) if table is None else (table.messages, table.bytes)
    depth = queue_sizes.Depth(
        queue=name,
        messages=messages,
        expired=None,
        bytes=size,
        first=None,
        last=None,
        estimated=True,
    )
    return QueueLook(depth=depth, problems=[*problems])


def look_at(
    connection: Connection,
    queue: QueueAddress,
    options: DatabaseOptions,
    locks: Mapping[str, list[Finding]],
    *,
    unnamed: queue_sizes.QueueTable | None = None,
) -> QueueLook:
    """
    Look at a queue, if it is not locked and may be used.

    Missing rights are not reported, because a login that looks at a queue need not receive from it.
    """
    name = connection.printed(queue)
    looked = unread(name, unnamed, *locks.get(name, ()))
    if "locked" in {problem.name for problem in looked.problems}:
        return looked
    try:
        with transaction(connection):
            if unnamed:
                connection.set_lock_timeout(queue_sizes.UNNAMED_LOCK_WAIT)
            read_queue(connection, queue, looked, options.endpoint_time_zone)
    except errors.DatabaseFailure as error:
        if unnamed is None or isinstance(error, LOST):
            raise
        looked.problems.append(unreadable(name, error))
    return looked


def read_queue(
    connection: Connection, queue: QueueAddress, looked: QueueLook, zone: str | None
) -> None:
    """Read a queue and its delayed messages, and fill in `looked`, in the open transaction."""
    depth = queue_sizes.measure_queue(connection, queue, largest=queue_sizes.LARGEST_COUNTED_TABLE)
    problems = [
        finding
        for finding in of_table(connection, queue, last=depth.last)
        if finding.is_problem and not finding.name.endswith("_right")
    ]
    kind, poison = of_head(connection, queue, depth.first, depth.last)
    highest, sent = find_highest(connection, queue, depth)
    delayed = queue_sizes.delayed_name(connection, queue)
    if delayed is not None:
        try:
            looked.delayed = queue_sizes.measure_delayed(connection, queue, zone)
        except errors.TableRefused as error:
            refused = unreadable(delayed, error)
            problems.append(replace(refused, name="delayed_not_read"))
    looked.at = read_clock(connection)
    looked.depth = depth
    looked.kind = kind
    looked.highest = highest
    looked.oldest = seconds_since(sent, looked.at)
    looked.problems += [*problems, *poison]


def find_highest(
    connection: Connection, queue: QueueAddress, depth: queue_sizes.Depth
) -> tuple[int | None, str | None]:
    """Return the highest seq that was used, and the header TimeSent of the lowest message."""
    if depth.first is None:
        quoted = connection.names.quote_address(queue)
        given: int | None = connection.value(
            "seq_given", tables={"queue": queue}, table_name=quoted
        )
        return given, None
    (sample,) = connection.rows("sample", Sample, tables={"queue": queue}, first=depth.first)
    return depth.last, sample.sent


# ---------------------------------------------------------------- between two looks


def add_rates(before: Look | None, now: Look) -> Look:
    """Add what flowed since the look `before`, by the formulas at the top of this module."""
    if before is not None:
        earlier = {look.queue: look for look in before.queues}
        for look in now.queues:
            flow(earlier.get(look.queue), look)
    return now


def flow(before: QueueLook | None, now: QueueLook) -> QueueLook:
    """Add the rates in and out to `now`. They stay None if the sequence was restarted."""
    if before is None or before.at is None or now.at is None:
        return now
    if before.highest is None or now.highest is None or now.highest < before.highest:
        return now
    came = now.highest - before.highest
    went = came - (now.depth.messages - before.depth.messages)
    seconds = (now.at - before.at).total_seconds()
    if seconds > 0:
        now.incoming = round(max(0, came) / seconds, 2)
        now.outgoing = round(max(0, went) / seconds, 2)
    return now


# ---------------------------------------------------------------- for programs


def to_json(now: Look) -> dict[str, Any]:
    """Return a look as a JSON object. Figures per second are null at the first look."""
    return {
        "at": now.at,
        "queues": [json_row(QUEUE_COLUMNS, queue) for queue in now.queues],
        "problems": [asdict(problem) for problem in now.problems],
        "streams": [json_row(STREAM_COLUMNS, stream) for stream in now.streams or ()],
    }


def to_metrics(now: Look, options: DatabaseOptions) -> str:
    """
    Return the figures that are known, as gauges in the format of Prometheus and OpenMetrics.

    The labels of each sample differ from those of all others, because a collector rejects a page
    that has the same labels twice. So a stream without an id, which has no batch yet, is left out.
    """
    queues = {queue.queue for queue in now.queues}
    streams = [stream for stream in now.streams or () if stream.stream]
    database = database_name(options.url)
    read = queues.union(*(stream.queues for stream in streams))
    plain = plain_names(read, options.naming, database)
    place = {"database": database, "state_schema": options.state_schema}
    lines = []
    for column in QUEUE_COLUMNS:
        if column.name in GAUGES:
            name, text = GAUGES[column.name]
            lines += heading(name, text)
            for queue in now.queues:
                value = column.value(queue)
                if value is not None:
                    labels = {"queue": plain[queue.queue], **place}
                    lines.append(f"sqlqueue_{name}{{{write_labels(labels)}}} {value}")
    for attribute, (name, text) in STREAM_GAUGES.items():
        lines += heading(f"stream_{name}", text)
        for stream in streams:
            value = getattr(stream, attribute)
            if value is not None:
                named = {"stream": stream.stream, "name": stream.title}
                several = ", ".join(plain[queue] for queue in stream.queues)
                labels = {**named, "queue": several, **place}
                number = int(value) if isinstance(value, bool) else value
                lines.append(f"sqlqueue_stream_{name}{{{write_labels(labels)}}} {number}")
    return "\n".join([*lines, "# EOF\n"])


def plain_names(queues: Iterable[str], naming: Names, database: str) -> dict[str, str]:
    """
    Return the plain names of queues of a database for charts. Each is that of one queue only.

    A queue keeps its address if its plain name is another one's too: `a.b` may be a table, or a
    schema and a table. A text that is no address is its own name.
    """
    addresses = {*queues}
    names: dict[str, str] = {}
    for text in addresses:
        try:
            address = naming.parse_table(text)
        except errors.BadAddress:
            names[text] = text
            continue
        is_here = (address.catalog or "").casefold() == database.casefold()
        names[text] = naming.plain_name(replace(address, catalog=None) if is_here else address)
    uses = Counter(names.values())
    return {
        text: name if uses[name] == 1 and name not in addresses else text
        for text, name in names.items()
    }


def heading(name: str, text: str) -> list[str]:
    """Return the lines above the samples of a gauge."""
    return [f"# HELP sqlqueue_{name} {text}", f"# TYPE sqlqueue_{name} gauge"]


def write_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={label(text)}" for key, text in labels.items())


def label(text: str) -> str:
    """Return a label's untrusted value in quotes, with JSON's escapes of control characters."""
    visible = (
        character if character.isprintable() or character == "\n" else json_escape(character)
        for character in text
    )
    escaped = "".join(visible).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def json_escape(character: str) -> str:
    return json.dumps(character)[1:-1]
