"""
Sessions that meet: those on a queue, on delayed messages, on a stream, on sinks, on subscriptions.

Each group lists what one session may do; tests let two and three of them run at once, also twice
the same. `copy` keeps the rows that they insert apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from . import transactions as ours
from .explore import explore
from .statements import SHAPES, Ours
from .steps import Fact
from .transport import ON_TABLES, Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from .found import Found
    from .steps import Transaction

    Make = Callable[["World", str], Transaction]

NEW = {
    ("queue", "1"): "new 1",
    ("queue", "2"): "enew 2",
    ("delayed", "1"): "new 1",
    ("delayed", "2"): "new 2",
}
RECEIPTS = ("0", "1", "2", "3")
CHUNKS = ("a", "b", "x")  # of the sinks a and b, and one that was abandoned


@dataclass(frozen=True)
class World:
    """A database, and the rows that sessions look at."""

    on: Ours
    endpoint: Endpoint
    queue: tuple[str, ...] = ("1", "e2", "new 1", "enew 2")  # the last two are sent meanwhile
    delayed: tuple[str, ...] = ("1", "2", "new 1", "new 2")

    def small(self) -> World:
        """Return the same with two rows in each table."""
        return replace(self, queue=self.queue[:2], delayed=self.delayed[:2])


def worlds(kind: type[Ours] = Ours, shapes: Mapping[str, str] = SHAPES) -> list[World]:
    """Return the kinds of databases: with row versions or not, with a clustered index or not."""
    return [
        World(kind(dict(shapes), *switches), Endpoint(ON_TABLES, *switches))
        for switches in ((False, False), (True, True), (True, False), (False, True))
    ]


ON_QUEUE: dict[str, Make] = {
    "task": lambda at, copy: ours.task(at.on, at.queue, number=copy),
    "divert_large": lambda at, _: ours.divert_large(at.on, at.queue),
    "retry": lambda at, _: ours.retry(at.on, at.queue),
    "purge": lambda at, _: ours.purge(at.on, at.queue),
    "purge_range": lambda at, _: ours.purge_range(at.on, at.queue),
    "purge_expired": lambda at, _: ours.purge_expired(at.on, at.queue),
    "browse": lambda at, _: ours.browse(at.on, at.queue),
    "send": lambda at, copy: ours.send(at.on, NEW["queue", copy]),
    "endpoint receives": lambda at, copy: at.endpoint.receive(at.queue, sends=f"to {copy}"),
    "endpoint purges": lambda at, _: at.endpoint.purge(at.queue),
    "endpoint purges expired": lambda at, _: at.endpoint.purge_expired(at.queue),
}
ON_DELAYED: dict[str, Make] = {
    "move_due": lambda at, _: ours.move_due(at.on, at.delayed),
    "delay": lambda at, copy: ours.delay(at.on, NEW["delayed", copy]),
    "endpoint moves Index_Due": lambda at, _: at.endpoint.move(at.delayed),
    "endpoint moves": lambda at, _: at.endpoint.move(at.delayed, by=""),
    "task": lambda at, copy: ours.task(at.on, ("moved 1", "moved 2"), number=copy),
}
ON_STREAM: dict[str, Make] = {
    "task": lambda at, copy: ours.task(at.on, at.queue[:2], number=copy),
    "attempt": lambda at, _: ours.task(at.on, at.queue[:2], name="attempt"),
    "acknowledge": lambda at, _: ours.acknowledge(at.on, RECEIPTS),
    "plan of another source": lambda at, _: ours.plan(at.on, "2", RECEIPTS),
    "return_": lambda at, _: ours.return_(at.on, "0"),
    "dispatch": lambda at, _: ours.dispatch(at.on, "a", ["a"], settles=("0", "1")),
    "endpoint receives": lambda at, copy: at.endpoint.receive(at.queue[:2], sends=f"to {copy}"),
}
ON_SINKS: dict[str, Make] = {
    "stage a": lambda at, copy: ours.stage(at.on, "a", f"a{copy}"),
    "begin new": lambda at, _: ours.begin_sink(at.on, "new"),
    "dispatch a": lambda at, _: ours.dispatch(at.on, "a", ["a"], abandoned=["x"], others="ab"),
    "dispatch b": lambda at, _: ours.dispatch(at.on, "b", ["b"], abandoned=["x"], others="ab"),
    "dispatch x": lambda at, _: ours.dispatch(at.on, "x", ["x"], abandoned=["x"], old=["x"]),
    "fails": lambda at, _: ours.dispatch(
        at.on, "y", [], abandoned=["x"], old=["x"], ending="rolled back"
    ),
    "dispatch new": lambda at, _: ours.dispatch(at.on, "new", ["new 1"], new=True),
    "dispatch also": lambda at, _: ours.dispatch(at.on, "also", [], new=True),
}
ON_SUBSCRIPTIONS: dict[str, Make] = {
    "subscribe": lambda at, _: ours.subscribe(at.on, "1"),
    "subscribe new": lambda at, copy: ours.subscribe(at.on, f"new {copy}"),
    "unsubscribe": lambda at, _: ours.unsubscribe(at.on, "1"),
    "subscribers": lambda at, _: ours.subscribers(at.on, ("1", "2")),
    "endpoint subscribes": lambda at, _: at.endpoint.subscribe("1"),
    "endpoint unsubscribes": lambda at, _: at.endpoint.unsubscribe("1"),
    "endpoint publishes": lambda at, _: at.endpoint.subscribers(("1", "2")),
}
GROUPS = {
    "queue": ON_QUEUE,
    "delayed": ON_DELAYED,
    "stream": ON_STREAM,
    "sinks": ON_SINKS,
    "subscriptions": ON_SUBSCRIPTIONS,
}
START = (
    *(Fact("queue", row) for row in ("1", "e2")),
    *(Fact("delayed", row) for row in "12"),
    *(Fact("stream", number) for number in "12"),
    *(Fact(table, "0") for table in ("receipt", "receipt_page")),  # of an earlier task
    *(Fact("dispatch_log", sink) for sink in "abxy"),
    *(Fact(table, chunk) for table in ("staging", "staging_page") for chunk in CHUNKS),
    *(Fact("subscriptions", row) for row in "12"),
)
PAIRS_ONLY = {
    "browse",
    "send",
    "delay",
    "divert_large",
}  # they hold no lock that others wait for twice


def meetings(group: str, sessions: int, at: World) -> Iterator[tuple[list[Transaction], Found]]:
    """Yield all that so many sessions of a group can do to each other."""
    makers = GROUPS[group]
    names = [name for name in makers if sessions == 2 or name not in PAIRS_ONLY]
    for chosen in combinations_with_replacement(names, sessions):
        made = [makers[name](at, str(copy)) for copy, name in enumerate(chosen, 1)]
        yield made, explore(made, START)
