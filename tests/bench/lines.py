"""The lines of the bench as two tables: what each runs, what it needs before, and its aims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sqlq_spark.receive.batch import CEILING

from . import delta, ours, start, yardsticks
from .stand import BATCHES, CORES, ERROR_QUEUE, MANY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .stand import Stand

    Step = Callable[[Stand], None]

_HEADERS = 600  # about as many bytes of a message are not its body


@dataclass(frozen=True)
class Line:
    """One figure to measure."""

    name: str
    ready: Step  # prepares the line; its time does not count
    run: Callable[[Stand], Sequence[float]]
    unit: str = "messages/s"


def _waiting(batches: int, store: str = "store") -> Step:
    return lambda stand: stand.database.fill("orders", stand.messages * batches, store=store)


def _few(messages: int) -> Step:
    return lambda stand: stand.database.fill("orders", messages)


def _shelf(stand: Stand) -> None:
    stand.database.settle("shelf")


def _sent(stand: Stand) -> None:
    stand.frame.count()  # computes and caches the frame before the time is measured
    stand.database.fill("sent", 0)


def _warm(stand: Stand) -> None:
    ours.write_a_few(stand)
    _sent(stand)


def _both(stand: Stand) -> None:
    _waiting(BATCHES)(stand)
    _sent(stand)


def _loop(stand: Stand) -> list[float]:
    return [stand.database.loop()]


def _form(form: str) -> Line:
    def ready(stand: Stand) -> None:
        stand.forms[form].count()
        _warm(stand)

    run = partial(ours.write, "exactlyOnce", form=form)
    return Line(f"write-{form.replace(' ', '-')}", ready, run)


def _bodies(size: int) -> Line:
    """Return a line for bodies of one size; a batch is as large as its tasks may hold."""

    def most(stand: Stand) -> int:
        return min(stand.messages, CORES * CEILING // (size + _HEADERS))

    def ready(stand: Stand) -> None:
        store, text = f"bodies_{size}", "convert_from(body, 'UTF8')"
        stand.database.ask(
            f"CREATE UNLOGGED TABLE IF NOT EXISTS {store} AS SELECT seq, id, headers, "
            f"convert_to(rpad({text}, {size}, {text}), 'UTF8') AS body FROM store"
            f" WHERE seq <= {most(stand) * BATCHES}"
        )
        stand.database.fill("orders", most(stand) * BATCHES, store=store)

    return Line(f"body-{size}", ready, lambda stand: ours.receive(stand, most(stand)))


def _spread(delivery: str, queues: int) -> Line:
    def ready(stand: Stand) -> None:
        ours.empty_many(stand)
        _warm(stand)

    run = partial(ours.spread, delivery, queues)
    return Line(f"queues-{queues}-{delivery}", ready, run)


def _sizes(name: str, ready: Step, run: Callable[..., Sequence[float]]) -> list[Line]:
    """Return lines that move the same messages in batches of three sizes."""
    return [
        Line(f"{name}-of-{most}", ready, partial(run, most=most, maxConcurrency=tasks))
        for most, tasks in ((100_000, 2), (200_000, 4), (400_000, 8))
    ]


_receive_map_errors = partial(ours.receive, headersFormat="map", errorQueue=ERROR_QUEUE)
_latency_tuned = partial(delta.latency, delay="100ms", partitions=2)
_batch, _batches, _nothing = _waiting(1), _waiting(BATCHES), _few(0)

# A line stands next to its yardsticks, so that they are measured seconds apart.
LINES = (
    Line("limit", _batch, yardsticks.limit),
    Line("receive-json", _batches, ours.receive),
    Line("by-hand", _batch, yardsticks.by_hand),
    Line("jdbc-read", _shelf, partial(yardsticks.read, tuned=False)),
    Line("receive-json-errors", _batches, partial(ours.receive, errorQueue=ERROR_QUEUE)),
    Line("receive-map", _batches, partial(ours.receive, headersFormat="map")),
    Line("receive-map-errors", _batches, _receive_map_errors),
    Line("parquet-delta", delta.write_parquet, delta.parquet_to_delta),
    Line("receive-delta", _batches, partial(delta.receive, errorQueue=ERROR_QUEUE)),
    Line("job-delta", _batches, partial(delta.job, typed=False)),
    Line("job-delta-typed", _batches, partial(delta.job, typed=True)),
    Line("receive-json-hard", _waiting(BATCHES, "hard"), ours.receive),
    Line("by-hand-hard", _waiting(1, "hard"), yardsticks.by_hand),
    Line("jdbc-read-tuned", _shelf, partial(yardsticks.read, tuned=True)),
    Line("browse-json", _shelf, partial(ours.browse, "json")),
    Line("browse-map", _shelf, partial(ours.browse, "map")),
    Line("transport-loop", _batch, _loop),
    *map(_form, ("white space", "escapes", "map")),
    Line("write-exactly-once", _warm, partial(ours.write, "exactlyOnce")),
    Line("jdbc-append", _sent, yardsticks.append),
    _form("hard"),
    Line("jdbc-append-hard", _sent, partial(yardsticks.append, form="hard")),
    Line("write-at-least-once", _warm, partial(ours.write, "atLeastOnce")),
    Line("jdbc-append-rewrite", _sent, yardsticks.append_rewritten),
    Line("queue-to-queue", _both, ours.queue_to_queue),
    Line("small-batch", _few(25), ours.small_batches, "ms"),
    Line("lock-and-look", _nothing, ours.lock_and_look, "ms"),
    Line("python-batch", _nothing, yardsticks.python_batch, "ms"),
    Line("rate-batch", _nothing, yardsticks.rate_batch, "ms"),
    Line("small-batch-delta", _few(25), delta.small_batches, "ms"),
    Line("python-batch-delta", _nothing, delta.python_batch, "ms"),
    Line("small-batch-of-64", ours.fill_many, ours.many_small, "ms"),
    Line("idle", ours.empty_many, partial(ours.idle, 1), "ms"),
    Line("idle-of-64", ours.empty_many, partial(ours.idle, len(MANY)), "ms"),
    Line("start", _few(1), start.ours, "ms"),
    Line("python-start", _nothing, start.nothing, "ms"),
    Line("latency", _nothing, ours.latency, "ms"),
    Line("latency-delta", _nothing, partial(delta.latency, delay="1s"), "ms"),
    Line("latency-delta-quick", _nothing, partial(delta.latency, delay="100ms"), "ms"),
)
# Each of these changes one size. They run only if --only names them.
GROWTH = (
    *(Line(f"tasks-{n}", _batches, partial(ours.receive, maxConcurrency=n)) for n in (1, 2, 4, 8)),
    *map(_bodies, (100, 1_000, 10_000, 1_000_000)),
    *(_spread(each, n) for n in (1, 10, 64) for each in ("exactlyOnce", "atLeastOnce")),
    # with --messages 400000
    *_sizes("batches", _batches, ours.receive_in_batches),
    *_sizes("batches-delta", _batches, delta.receive_in_batches),
    Line("growing", _batches, ours.receive_in_batches),
    Line("growing-delta", _batches, delta.receive_in_batches),
    *_sizes("batches-queue", _both, ours.queue_to_queue),
    Line("backlog", _batches, ours.backlog, "ms"),
    Line("latency-delta-tuned", _nothing, partial(_latency_tuned, commits=10), "ms"),
    Line("latency-delta-rare", _nothing, partial(_latency_tuned, commits=100), "ms"),
    Line("dispatch", _sent, ours.dispatched),
)
# Line → another line → the aim for the ratio of their medians. It is the least ratio, or for times
# the greatest ratio. Line → p99 → the greatest p99.
AIMS: Mapping[str, Mapping[str, float]] = {
    "receive-json": {"by-hand": 0.65, "jdbc-read": 0.5, "limit": 0.6, "transport-loop": 25},
    "receive-json-errors": {"receive-json": 0.97},
    "receive-map-errors": {"receive-map": 0.97},
    "receive-delta": {"parquet-delta": 0.9},
    "job-delta": {"parquet-delta": 0.9},
    "small-batch-delta": {"python-batch-delta": 1.2},
    "receive-map": {"by-hand": 0.45, "jdbc-read": 0.4, "transport-loop": 25},
    "receive-json-hard": {"by-hand-hard": 0.55},
    "browse-json": {"jdbc-read": 1.0},
    "browse-map": {"jdbc-read": 0.8},
    "write-white-space": {"write-exactly-once": 0.9},
    "write-escapes": {"write-exactly-once": 0.9},
    "write-map": {"write-exactly-once": 0.9},
    "write-exactly-once": {"jdbc-append": 1.0},
    "write-hard": {"jdbc-append-hard": 1.0},
    "write-at-least-once": {"jdbc-append": 1.7, "jdbc-append-rewrite": 1.3},
    "queue-to-queue": {"receive-json": 0.45},
    "small-batch": {"rate-batch": 1.25, "python-batch": 1.25},
    "small-batch-of-64": {"small-batch": 5.0},
    "idle-of-64": {"idle": 1.35},
    "start": {"python-start": 1.1},
    "latency": {"p99": 1500},
}
