"""The lines of the bench as one table: what each runs, on what, and which aims bind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import ours, yardsticks
from .figures import Aim
from .stand import BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .stand import Stand


@dataclass(frozen=True)
class Line:
    """One figure to measure."""

    name: str
    says: str
    unit: str
    ready: Callable[[Stand], None]  # not timed
    run: Callable[[Stand], Sequence[float]]
    aims: tuple[Aim, ...] = ()


def _one_batch(stand: Stand) -> None:
    stand.database.fill("orders", stand.messages)


def _batches(stand: Stand) -> None:
    stand.database.fill("orders", stand.messages * BATCHES)


def _a_few(stand: Stand) -> None:
    stand.database.fill("orders", ours.SMALL_BATCHES)


def _nothing(stand: Stand) -> None:
    stand.database.fill("orders", 0)


def _shelf(stand: Stand) -> None:
    stand.database.settle("shelf")


def _sent(stand: Stand) -> None:
    stand.frame.count()  # made and cached before the clock runs
    stand.database.fill("sent", 0)


def _warm(stand: Stand) -> None:
    ours.write_a_few(stand)
    _sent(stand)


def _both(stand: Stand) -> None:
    _batches(stand)
    _sent(stand)


_RECEIVE_JSON = (
    Aim(of="jdbc-read", issue3=0.4, issue4=0.5),
    Aim(of="limit", issue4=0.6),
    Aim(of="transport-loop", issue3=20, issue4=25),
)
_RECEIVE_MAP = (
    Aim(of="jdbc-read", issue3=0.33, issue4=0.4),
    Aim(of="transport-loop", issue3=20, issue4=25),
)
_WRITE_MANY = (
    Aim(of="jdbc-append", issue3=2.0, issue4=2.5),
    Aim(of="jdbc-append-rewrite", issue4=1.2),
)
_RATE, _TIME = "messages/s", "ms"

# A line stands next to its yardsticks, so that they are measured seconds apart.
LINES = (
    Line(
        "limit", "DELETE by ranges, receipt, two connections", _RATE, _one_batch, yardsticks.limit
    ),
    Line(
        "receive-json",
        "stream to noop, headersFormat=json",
        _RATE,
        _batches,
        ours.receive_json,
        _RECEIVE_JSON,
    ),
    Line("jdbc-read", "JDBC, 1 partition, default fetchsize", _RATE, _shelf, yardsticks.read_plain),
    Line(
        "receive-map",
        "stream to noop, headersFormat=map",
        _RATE,
        _batches,
        ours.receive_map,
        _RECEIVE_MAP,
    ),
    Line(
        "jdbc-read-tuned",
        "JDBC, 2 partitions, fetchsize 10,000",
        _RATE,
        _shelf,
        yardsticks.read_tuned,
    ),
    Line(
        "browse",
        "spark.read to noop, json",
        _RATE,
        _shelf,
        ours.browse,
        (Aim(of="jdbc-read", issue4=1.0),),
    ),
    Line(
        "transport-loop", "without Spark, one row a transaction", _RATE, _one_batch, yardsticks.loop
    ),
    Line(
        "write-exactly-once",
        "df.write, exactlyOnce",
        _RATE,
        _warm,
        ours.write_exactly_once,
        (Aim(of="jdbc-append", issue3=1.0, issue4=1.5),),
    ),
    Line("jdbc-append", "JDBC append, plain", _RATE, _sent, yardsticks.append_plain),
    Line(
        "write-at-least-once",
        "df.write, atLeastOnce",
        _RATE,
        _warm,
        ours.write_at_least_once,
        _WRITE_MANY,
    ),
    Line(
        "jdbc-append-rewrite",
        "JDBC append, many rows an INSERT",
        _RATE,
        _sent,
        yardsticks.append_rewritten,
    ),
    Line(
        "queue-to-queue",
        "stream from queue to queue, exactlyOnce",
        _RATE,
        _both,
        ours.queue_to_queue,
        (Aim(of="receive-json", issue4=0.4),),
    ),
    Line(
        "small-batch",
        "micro-batch of one message",
        _TIME,
        _a_few,
        ours.small_batch,
        (Aim(of="rate-batch", issue4=1.3, most=True),),
    ),
    Line(
        "rate-batch",
        "micro-batch of Spark's rate source",
        _TIME,
        lambda _: None,
        yardsticks.rate_batch,
    ),
    Line(
        "latency",
        "sent to an idle stream; peekDelay 1s",
        _TIME,
        _nothing,
        ours.latency,
        (Aim(of=None, issue4=1500, most=True),),
    ),
)
