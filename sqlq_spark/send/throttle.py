"""
Where a sink waits, as the options maxMessagesPerSecond and pauseAboveBacklog ask.

Tasks wait, not the driver. Measured on Spark 4.2, when a query is stopped: Spark ends a waiting
task after three seconds. A wait in the driver's Python worker goes on, and `stop` does not return.

With delivery=exactlyOnce a task waits after it has staged its messages: the driver dispatches when
all tasks have ended. One task is enough to keep the dispatch waiting, so only the first one waits
for the rate and for the destinations of the options. The others end, and free their cores. Each
task waits for destinations that its own rows name.

With delivery=atLeastOnce a task waits before each chunk.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow.compute as pc

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import RETURNED
from sqlq_spark.database.looks import Waiting
from sqlq_spark.database.schema import check_state
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import INSERT, Use, look, use
from sqlq_spark.send import publish, subscriptions
from sqlq_spark.send.delayed import find_waiting
from sqlq_spark.send.dispatch import last_sent
from sqlq_spark.send.insert import destination_of, names_of_queues
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.dispatch import Staged
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")
T = TypeVar("T")
# destinations, untrusted: ("topic", its name), ("queue", its name or None for that of the options)
Names: TypeAlias = "set[tuple[str, str | None]]"

REMINDER = 600.0  # seconds after which a wait is logged again
PAUSE = 1.0  # seconds between looks at a backlog
PAUSE_SHARE = 10.0  # of the time that a look took: dead rows that a snapshot keeps make it slow
LONGEST_PAUSE = 60.0  # seconds between looks at the clock
COUNTED = 100_000  # messages that a look counts at most, if the limit is less; they take 12 ms


def wait_before_dispatch(
    options: SinkOptions, staged: Staged, partition: int, names: Names
) -> None:
    """
    Wait until the driver may dispatch what a task staged, as far as this task decides it.

    No connection is held during a pause. `names` are those of the task's rows.
    """
    name, rate = f"sink {staged.sink}/{staged.batch}/{partition}", options.max_rate

    def run(work: Callable[[Connection], T]) -> T:
        # this session leaves its connection to the next one
        with StateSession(options, name, keep_connection=True, was_reached=True) as session:
            return session.run_with_retries(work)

    common = names_of_options(options)
    names = names - common if partition else names | common
    if rate is not None and not partition:
        read = partial(read_seconds_left, sink=staged.sink, batch=staged.batch, rate=rate)
        _wait_for_rate(time.monotonic() + run(read), rate, name)
    _wait_for_backlog(options, names, name, staged.spark_batch.query_id, run)


def wait_before_chunks(
    session: Session, chunks: Iterable[pa.Table], options: SinkOptions, query: str | None
) -> Iterator[pa.Table]:
    """
    Pass chunks on, each when it may be inserted; `query` is Spark's id.

    No transaction is open in the session, which reconnects if the server ended it.
    """
    for chunk in chunks:
        _wait_for_backlog(
            options, names_of_chunk(chunk), session.application, query, session.run_with_retries
        )
        yield chunk


class Reason(NamedTuple):
    """What a wait waits for."""

    text: str
    pause: float  # seconds until another look is worthwhile


def wait_while(
    look: Callable[[], Reason | None], name: str, *, level: int = logging.WARNING
) -> None:
    """
    Return when there is no reason to wait any more.

    A wait has no end of its own. Spark ends the process of a task when its query is stopped. One
    line is logged when the wait begins, a warning every REMINDER seconds, and one line at the end;
    `level` is that of the first line and the last.
    """
    began = time.monotonic()
    reason = look()
    if reason is None:
        return
    log.log(level, "%s waits: %s", name, reason.text)
    remind = began + REMINDER
    while reason is not None:
        time.sleep(reason.pause)
        reason = look()
        now = time.monotonic()
        if now >= remind and reason is not None:
            log.warning("%s still waits, %d s: %s", name, now - began, reason.text)
            remind = now + REMINDER
    log.log(level, "%s waited %.1f s and goes on", name, now - began)


# ---------------------------------------------------------------- for maxMessagesPerSecond


def _wait_for_rate(until: float, rate: int, name: str) -> None:
    def look() -> Reason | None:
        left = until - time.monotonic()
        text = f"{left:.1f} s until the next batch (maxMessagesPerSecond={rate})"
        return Reason(text, min(left, LONGEST_PAUSE)) if left > 0 else None

    # such a wait comes with each batch, so it is no warning
    wait_while(look, name, level=logging.INFO)


def read_seconds_left(connection: Connection, sink: str, batch: int, rate: int) -> float:
    """Return how long the batch must wait; 0 for one that was sent before."""
    with transaction(connection):
        last = last_sent(connection, sink)
    if last is None or last.batch is None or last.batch >= batch:
        return 0.0
    return seconds_left(last.messages, last.seconds, rate)


def seconds_left(messages: int, seconds: float, rate: int) -> float:
    """
    Return how long the next dispatch must still wait, from 0 to messages/rate seconds.

    A dispatch is one transaction, so the pause is between batches. After a batch of n messages, the
    next one begins n/rate seconds later at the earliest. Within any t seconds, at most rate·t
    messages and one batch become visible. If the database's clock was set back, the seconds since
    the last dispatch began are negative, and the wait is not longer for it.
    """
    pause = messages / rate
    return min(max(0.0, pause - seconds), pause)


# ---------------------------------------------------------------- for pauseAboveBacklog


def names_of_options(options: SinkOptions) -> Names:
    """Return what the options name."""
    if options.topics is not None:
        return {("topic", topic) for topic in options.topics}
    return set() if options.address is None else {("queue", None)}


def names_of_chunk(chunk: pa.Table) -> Names:
    """Return what the rows of a chunk name, but for delayed ones, which reach no queue now."""
    waiting = find_waiting(chunk)
    if waiting is not None:
        chunk = chunk.filter(pc.invert(waiting))
    names: Names = {("queue", queue) for queue in names_of_queues(chunk)}
    topics = publish.topics_of(chunk)
    if topics is not None:
        names |= {("topic", topic) for topic in pc.unique(pc.list_flatten(topics)).to_pylist()}
    return names


def record_names(chunks: Iterable[pa.Table], names: Names) -> Iterator[pa.Table]:
    """Pass chunks on, and add what their rows name."""
    for chunk in chunks:
        names |= names_of_chunk(chunk)
        yield chunk


def _find_queues(connection: Connection, options: SinkOptions, names: Names) -> list[QueueAddress]:
    """
    Return the queues of names, those of subscribers among them, in a constant order.

    Names that lead to no queue are left out: the dispatch reports them. Topics need a transaction.
    """
    queues: list[QueueAddress] = []
    for name in sorted((name for kind, name in names if kind == "queue"), key=str):
        with suppress(errors.BadInput):
            queues.append(destination_of(name, options))
    topics = sorted(name for kind, name in names if kind == "topic" and name is not None)
    # a statement that fails would undo the transaction, so the table is looked for first
    if topics and connection.columns(options.subscription_address):
        subscribed = subscriptions.cache.find(connection, options, topics)
        for subscription in chain.from_iterable(subscribed.values()):
            with suppress(errors.BadAddress):
                queues.append(connection.names.parse_address(subscription.address))
    return list(dict.fromkeys(map(connection.names.qualify, queues)))


def _wait_for_backlog(
    options: SinkOptions,
    names: Names,
    name: str,
    query: str | None,
    run: Callable[[Callable[[Connection], Any]], Any],
) -> None:
    """Wait while the backlog of a destination is above the limit, if there is one."""
    if options.pause_above is None or not names:
        return
    if query is not None:
        run(partial(check_source, options=options, names=names, query=query))

    def look() -> Reason | None:
        began = time.monotonic()
        text = run(partial(find_backlog, options=options, names=names))
        pause = max(PAUSE, PAUSE_SHARE * (time.monotonic() - began))
        return None if text is None else Reason(text, pause)

    wait_while(look, name)


def check_source(connection: Connection, options: SinkOptions, names: Names, query: str) -> None:
    """
    Raise BadOption if the query itself receives from a queue: it would wait for itself.

    A login that may not read receipts, as that of a sender, is not checked. No transaction is open;
    `query` is Spark's id.
    """
    try:
        check_state(connection)
        with transaction(connection):
            received: list[str] = connection.values("query_queues", query_id=query)
            queues = _find_queues(connection, options, names) if received else []
    except (errors.RightMissing, errors.StateNotInstalled, errors.StateOfOther):
        return
    sources = connection.identities([connection.names.parse_address(queue) for queue in received])
    for queue, identity in zip(queues, connection.identities(queues), strict=True):
        if identity in sources:
            raise errors.BadOption(
                option="pauseAboveBacklog",
                found=str(options.pause_above),
                expected="no limit, because this query receives from "
                f"{connection.printed(queue)} and would wait for itself",
            )


def find_backlog(connection: Connection, options: SinkOptions, names: Names) -> str | None:
    """
    Say which destination has a backlog above the limit, for a line of the log; None: none has.

    A look is a short transaction that counts with the statement `peek`, and locks no message. No
    transaction is open before it. RightMissing: this login may not read a destination.
    """
    limit = options.pause_above or 0
    most = max(limit + 1, COUNTED)
    with transaction(connection):
        queues = _find_queues(connection, options, names)
    for queue in queues:
        messages = _count_waiting(connection, queue, most)
        if messages > limit:
            counted = f"{messages}{' or more' if messages >= most else ''}"
            where = connection.printed(queue)
            return f"{counted} messages wait in {where} (pauseAboveBacklog={limit})"
    return None


def _count_waiting(connection: Connection, queue: QueueAddress, most: int) -> int:
    """
    Count what waits in a queue, up to `most`; 0 for one that cannot be sent to.

    Rows name queues that are untrusted, so a table is checked as before an INSERT.
    RightMissing: this login may send to it, but not read it.
    """
    try:
        with transaction(connection):
            use(connection, [queue], Use("insert", RETURNED))
            waiting = connection.row(
                "peek",
                Waiting,
                tables={"queue": queue},
                first=LOWEST_SEQ,
                last=HIGHEST_SEQ,
                messages=most,
                grain=most,
            )
            return 0 if waiting is None else waiting.messages or 0
    except (errors.QueueNotFound, errors.NotAQueue, errors.TableRefused):
        return 0  # the dispatch reports it
    except errors.RightMissing:
        with transaction(connection):
            tables, _ = look(connection, [queue], INSERT)
        if queue in tables and tables[queue].may_insert:
            raise
        return 0
