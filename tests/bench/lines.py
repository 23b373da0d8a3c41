"""The lines of the bench as one table: what each runs, on what, and its aims."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from . import ours, queues, start, yardsticks
from .stand import BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .stand import Stand

    Step = Callable[[Stand], None]


@dataclass(frozen=True)
class Line:
    """One figure to measure."""

    name: str
    says: str
    ready: Step  # not timed
    run: Callable[[Stand], Sequence[float]]
    # another line → the least ratio of the medians, for times the greatest; p99 → the greatest
    aims: Mapping[str, float] = field(default_factory=dict)
    unit: str = "messages/s"


def _waiting(messages: Callable[[Stand], int]) -> Step:
    return lambda stand: stand.database.fill("orders", messages(stand))


def _hard(batches: int) -> Step:
    return lambda stand: stand.database.fill("orders", stand.messages * batches, store="hard")


_one_batch = _waiting(lambda stand: stand.messages)
_batches = _waiting(lambda stand: stand.messages * BATCHES)
_a_few = _waiting(lambda _: ours.SMALL_BATCHES)
_nothing = _waiting(lambda _: 0)


def _shelf(stand: Stand) -> None:
    stand.database.settle("shelf")


def _sent(stand: Stand) -> None:
    stand.frame.count()  # made and cached before the clock runs
    stand.database.fill("sent", 0)


def _warm(stand: Stand) -> None:
    ours.write_a_few(stand)
    _sent(stand)


def _form(form: str, says: str) -> Line:
    def ready(stand: Stand) -> None:
        stand.forms[form].count()
        _warm(stand)

    return Line(
        f"write-{form.replace(' ', '-')}",
        f"df.write, exactlyOnce, {says}",
        ready,
        partial(ours.write_form, form),
        {"write-exactly-once": 0.9},
    )


def _both(stand: Stand) -> None:
    _batches(stand)
    _sent(stand)


# A line stands next to its yardsticks, so that they are measured seconds apart.
LINES = (
    Line("limit", "DELETE by ranges, receipt, two connections", _one_batch, yardsticks.limit),
    Line(
        "receive-json",
        "stream to noop, headersFormat=json",
        _batches,
        ours.receive_json,
        {"by-hand": 0.55, "jdbc-read": 0.5, "limit": 0.6, "transport-loop": 25},
    ),
    Line("by-hand", "tuned JDBC read of a range, one DELETE", _one_batch, yardsticks.by_hand),
    Line("jdbc-read", "JDBC, 1 partition, default fetchsize", _shelf, yardsticks.read_plain),
    Line(
        "receive-map",
        "stream to noop, headersFormat=map",
        _batches,
        ours.receive_map,
        {"by-hand": 0.45, "jdbc-read": 0.4, "transport-loop": 25},
    ),
    Line("receive-delta", "stream to a Delta table, local disk", _batches, ours.receive_delta),
    Line(
        "receive-json-hard",
        "stream to noop, bodies of random hexadecimal digits",
        _hard(BATCHES),
        ours.receive_json,
        {"by-hand-hard": 0.55},
    ),
    Line("by-hand-hard", "by-hand with the same bodies", _hard(1), yardsticks.by_hand),
    Line("jdbc-read-tuned", "JDBC, 2 partitions, fetchsize 10,000", _shelf, yardsticks.read_tuned),
    Line("browse-json", "spark.read to noop, json", _shelf, ours.browse_json, {"jdbc-read": 1.0}),
    Line("browse-map", "spark.read to noop, map", _shelf, ours.browse_map, {"jdbc-read": 0.8}),
    Line("transport-loop", "without Spark, one row a transaction", _one_batch, yardsticks.loop),
    _form("white space", "headers as json.dumps writes them"),
    _form("escapes", r"headers with \u002f"),
    _form("map", "headers as a map"),
    Line(
        "write-exactly-once",
        "df.write, exactlyOnce",
        _warm,
        ours.write_exactly_once,
        {"jdbc-append": 1.0},
    ),
    Line("jdbc-append", "JDBC append, plain", _sent, yardsticks.append_plain),
    Line(
        "write-at-least-once",
        "df.write, atLeastOnce",
        _warm,
        ours.write_at_least_once,
        {"jdbc-append": 1.7, "jdbc-append-rewrite": 1.3},
    ),
    Line(
        "jdbc-append-rewrite",
        "JDBC append, many rows an INSERT",
        _sent,
        yardsticks.append_rewritten,
    ),
    Line(
        "queue-to-queue",
        "stream from queue to queue, exactlyOnce",
        _both,
        ours.queue_to_queue,
        {"receive-json": 0.45},
    ),
    Line(
        "small-batch",
        "micro-batch of one message",
        _a_few,
        ours.small_batch,
        {"rate-batch": 1.25, "python-batch": 1.25},
        "ms",
    ),
    Line(
        "python-batch",
        "micro-batch of a Python source that does nothing",
        _nothing,
        yardsticks.python_batch,
        unit="ms",
    ),
    Line(
        "rate-batch",
        "micro-batch of Spark's rate source",
        _nothing,
        yardsticks.rate_batch,
        unit="ms",
    ),
    Line(
        "small-batch-of-64",
        "micro-batch of 64 queues with a message in each",
        queues.fill,
        queues.many_small,
        {"small-batch": 5.0},
        "ms",
    ),
    Line("idle", "CPU a second of an idle stream", queues.empty, queues.idle_one, unit="ms"),
    Line(
        "idle-of-64",
        "CPU a second of an idle stream of 64 queues",
        queues.empty,
        queues.idle_many,
        {"idle": 1.35},
        "ms",
    ),
    Line(
        "start",
        "new process to the end of its first batch",
        _waiting(lambda _: 1),
        start.ours,
        {"python-start": 1.1},
        "ms",
    ),
    Line(
        "python-start",
        "the same of a Python source that does nothing",
        _nothing,
        start.nothing,
        unit="ms",
    ),
    Line(
        "latency",
        "sent to an idle stream; peekDelay 1s",
        _nothing,
        ours.latency,
        {"p99": 1500},
        "ms",
    ),
)
