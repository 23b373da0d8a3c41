"""
How a sink waits if the option maxMessagesPerSecond or pauseAboveBacklog is set.

Only tasks wait, and never the driver. Measured on Spark 4.2: when a query is stopped, Spark ends a
waiting task after three seconds. A wait in the driver's Python worker would go on, and `stop` would
not return.

With delivery=exactlyOnce a task waits after it has staged its messages. The driver dispatches when
all tasks have ended, so it is enough if one task waits. The first task waits for the rate and for
the destinations that the options name. Other tasks end, and free their cores, unless their own rows
name destinations: each task waits for those.

With delivery=atLeastOnce a task waits before each chunk.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import RETURNED_COLUMNS
from sqlq_spark.database.looks import Waiting
from sqlq_spark.database.schema import check_state
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import INSERT, Use, lock_and_check, look_at_tables
from sqlq_spark.send import subscriptions
from sqlq_spark.send.chunk import names_of_queues, names_of_topics, split_delayed, topics_of
from sqlq_spark.send.dispatch import last_sent
from sqlq_spark.send.routes import destination_of
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
# Untrusted destinations: ("topic", name) or ("queue", name). ("queue", None) is the queue that the
# options name.
DestinationNames: TypeAlias = "set[tuple[str, str | None]]"

REMINDER = 600.0  # seconds after which a wait is logged again
PAUSE = 1.0  # seconds between two looks at a backlog
# If a look took t seconds, the pause after it is at least PAUSE_FACTOR * t seconds. So looks that
# are slow, because an old snapshot keeps dead rows, are rare.
PAUSE_FACTOR = 10.0
LONGEST_PAUSE = 60.0  # seconds between two looks at the clock
# How many messages a look counts at most. If pauseAboveBacklog is not below this number, a look
# counts up to pauseAboveBacklog + 1 messages. Counting 100,000 messages takes 12 ms.
COUNTED = 100_000


def wait_before_dispatch(
    options: SinkOptions, staged: Staged, partition: int, names: DestinationNames
) -> None:
    """
    Wait until this task has no reason to delay the driver's dispatch.

    During a pause the task holds no connection. `names` are the destinations that its rows name.
    """
    name = f"sink {staged.sink}/{staged.sink_batch}/{partition}"
    rate = options.max_rate
    is_first_task = partition == 0

    def run(work: Callable[[Connection], T]) -> T:
        # when this session ends, the next one can use its connection
        with StateSession(options, name, keep_connection=True, was_reached=True) as session:
            return session.run_with_retries(work)

    common = names_of_options(options)
    names = names | common if is_first_task else names - common
    if rate is not None and is_first_task:
        read = partial(read_seconds_left, sink=staged.sink, sink_batch=staged.sink_batch, rate=rate)
        _wait_for_rate(time.monotonic() + run(read), rate, name)
    _wait_for_backlog(options, names, name, staged.spark_batch.query_id, run)


def wait_before_chunks(
    session: Session, chunks: Iterable[pa.Table], options: SinkOptions, query: str | None
) -> Iterator[pa.Table]:
    """
    Yield each chunk as soon as it may be inserted. `query` is Spark's id of the query.

    No transaction is open during a wait. If the server ends the session meanwhile, the session
    reconnects.
    """
    for chunk in chunks:
        _wait_for_backlog(
            options, names_of_chunk(chunk), session.application, query, session.run_with_retries
        )
        yield chunk


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a task must wait."""

    text: str
    pause: float  # seconds until another look is worthwhile


def wait_while(
    look: Callable[[], Reason | None], name: str, *, level: int = logging.WARNING
) -> None:
    """
    Wait until `look` returns None: there is no reason to wait any more.

    A wait has no time limit. Spark ends the process of a task when its query is stopped.

    One line is logged when the wait begins and one when it ends, both with `level`. A warning is
    logged every REMINDER seconds.
    """
    began = time.monotonic()
    reason = look()
    if reason is None:
        return
    log.log(level, "%s waits: %s", name, reason.text)
    next_reminder = began + REMINDER
    while reason is not None:
        time.sleep(reason.pause)
        reason = look()
        now = time.monotonic()
        if now >= next_reminder and reason is not None:
            log.warning("%s still waits, %d s: %s", name, now - began, reason.text)
            next_reminder = now + REMINDER
    log.log(level, "%s waited %.1f s and goes on", name, now - began)


# ---------------------------------------------------------------- for maxMessagesPerSecond


def _wait_for_rate(until: float, rate: int, name: str) -> None:
    """Wait `until` a time of the monotonic clock."""

    def look() -> Reason | None:
        left = until - time.monotonic()
        if left <= 0:
            return None
        text = f"{left:.1f} s until the next batch (maxMessagesPerSecond={rate})"
        return Reason(text, min(left, LONGEST_PAUSE))

    # each batch waits for the rate, so this is no warning
    wait_while(look, name, level=logging.INFO)


def read_seconds_left(connection: Connection, sink: str, sink_batch: int, rate: int) -> float:
    """Return how many seconds a batch must still wait: 0 if it was sent before."""
    with transaction(connection):
        last = last_sent(connection, sink)
    if last is None or last.sink_batch is None or last.sink_batch >= sink_batch:
        return 0.0
    return seconds_left(last.messages, last.seconds, rate)


def seconds_left(messages: int, seconds: float, rate: int) -> float:
    """
    Return how many seconds the next dispatch must still wait, from 0 to messages/rate.

    The last dispatch sent `messages` messages, and began `seconds` seconds ago. The next one may
    begin messages/rate seconds after it. A dispatch is one transaction, so all its messages become
    visible at once. Within any t seconds, at most rate·t messages and those of one more batch
    become visible. If the database's clock was set back, `seconds` is negative. Then the wait is
    messages/rate seconds and not longer.
    """
    pause = messages / rate
    return min(max(0.0, pause - seconds), pause)


# ---------------------------------------------------------------- for pauseAboveBacklog


def names_of_options(options: SinkOptions) -> DestinationNames:
    """Return which destinations the options name."""
    if options.topics is not None:
        return {("topic", topic) for topic in options.topics}
    return set() if options.address is None else {("queue", None)}


def names_of_chunk(chunk: pa.Table) -> DestinationNames:
    """Return the destinations that the rows of a chunk name, without those of delayed rows."""
    _, others = split_delayed(chunk)
    names: DestinationNames = {("queue", queue) for queue in names_of_queues(others)}
    topics = topics_of(others)
    if topics is not None:
        names |= {("topic", topic) for topic in names_of_topics(topics)}
    return names


def record_names(chunks: Iterable[pa.Table], names: DestinationNames) -> Iterator[pa.Table]:
    """Yield the chunks, and add the destinations that their rows name to `names`."""
    for chunk in chunks:
        names |= names_of_chunk(chunk)
        yield chunk


def _find_queues(
    connection: Connection, options: SinkOptions, names: DestinationNames
) -> list[QueueAddress]:
    """
    Return the queues that `names` name, and the queues of subscribers, in a constant order.

    A name without a queue is left out, because the dispatch reports it. The caller has a
    transaction open.
    """
    queues: list[QueueAddress] = []
    for name in sorted((name for kind, name in names if kind == "queue"), key=str):
        with suppress(errors.BadInput):
            queues.append(destination_of(name, options))
    topics = sorted(name for kind, name in names if kind == "topic" and name is not None)
    # The table is looked for first, because a statement that fails would undo the transaction.
    if topics and connection.columns(options.subscription_address):
        subscribed = subscriptions.cache.find(connection, options, topics)
        for subscription in chain.from_iterable(subscribed.values()):
            with suppress(errors.BadAddress):
                queues.append(connection.names.parse_address(subscription.address))
    return list(dict.fromkeys(map(connection.names.qualify, queues)))


def _wait_for_backlog(
    options: SinkOptions,
    names: DestinationNames,
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
        pause = max(PAUSE, PAUSE_FACTOR * (time.monotonic() - began))
        return None if text is None else Reason(text, pause)

    wait_while(look, name)


def check_source(
    connection: Connection, options: SinkOptions, names: DestinationNames, query: str
) -> None:
    """
    Raise BadOption if the query receives from one of its own destinations.

    Such a query would wait for itself. If the login may not read receipts, nothing is checked. A
    login that only sends may lack this right. `query` is Spark's id of the query. The caller has no
    transaction open.
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


def find_backlog(
    connection: Connection, options: SinkOptions, names: DestinationNames
) -> str | None:
    """
    Return a text for the log that names a destination with a backlog above the limit, or None.

    Each queue is counted in a short transaction by the statement `peek`, which locks no message.
    The caller has no transaction open.

    Raises:
        RightMissing: this login may not read a destination.
    """
    limit = options.pause_above or 0
    most = max(limit + 1, COUNTED)
    with transaction(connection):
        queues = _find_queues(connection, options, names)
    for queue in queues:
        messages = _count_waiting(connection, queue, most)
        if messages > limit:
            counted = f"{messages} or more" if messages >= most else f"{messages}"
            where = connection.printed(queue)
            return f"{counted} messages wait in {where} (pauseAboveBacklog={limit})"
    return None


def _count_waiting(connection: Connection, queue: QueueAddress, most: int) -> int:
    """
    Count the messages that wait in a queue, up to `most`. Return 0 if nothing can be sent to it.

    The queues that rows name are untrusted. So each table is checked as before an insert.

    Raises:
        RightMissing: this login may send to the queue, but not read it.
    """
    try:
        with transaction(connection):
            lock_and_check(connection, [queue], Use("insert", RETURNED_COLUMNS))
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
            tables, _ = look_at_tables(connection, [queue], INSERT)
        if queue in tables and tables[queue].may_insert:
            raise
        return 0
