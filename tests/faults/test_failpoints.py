"""
A kill in every gap between two statements of what receives, acknowledges, sends and returns.

A trip is always the same work: a stream of two batches, a job that writes, or an operator. In each
trip every part of it (`receive 1.0`, `dispatch`) dies at a point where none of its kind has died
yet, and is done again as Spark or a user would; in the end every message is counted. The walk is
over when no point is left.
"""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import stamina
from conformance.transport import PostgreSQL

from sqlq_spark import database
from sqlq_spark.database import schema, transaction
from sqlq_spark.errors import ChunksMissing
from sqlq_spark.receive import receipts
from sqlq_spark.receive import task as receiving
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.insert import Inserts
from sqlq_spark.wire.rows import NO_STREAM

from .failpoints import points, spark_by_hand
from .failpoints.message_count import HEARING, QUEUES, TIMEOUT, TOPIC, Books, Count, Shop
from .failpoints.points import Order
from .failpoints.spark_by_hand import SMALL, Desk, Died, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.receive.task import Task, TaskResult
    from sqlq_spark.send.dispatch import Staged
    from sqlq_spark.wire.rows import Origin

    from .failpoints.points import Point
    from .failpoints.spark_by_hand import Harm, Patch

    Work = Callable[["Walk"], None]

pytestmark = pytest.mark.faults

FIRST = ["heavy", "expired", "good", "poison", "good", "good", "expired", "poison", "good", "good"]
SECOND = ["good", "large", "poison", "expired", "good", "heavy"]


def nothing(_: object) -> None:
    """Leave the package as it is."""


class Walk:
    """Strikes each deed at a point that is not known yet, trip after trip, until none is left."""

    def __init__(self, books: Books, shop: Shop, run: Callable[[Order], Point | None]) -> None:
        self.books = books
        self.shop = shop
        self.run = run  # makes a process to kill
        self.desk = Desk(shop)
        self.count = Count()
        self.struck: list[Point] = []
        self.over: set[str] = set()  # deeds without a point left
        self.done: set[str] = set()  # deeds of this trip
        self.only = ""  # how the names of deeds begin that are struck
        self.harm: Harm = nothing  # what the package lacks
        self.fell: Point | None = None

    def __call__(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Do a deed; strike it, if that is its first time in this trip and it has a point left."""
        self.fell = None
        if name in self.over | self.done or not name.startswith(self.only):
            return work(self.desk, *args)
        self.done.add(name)
        known = frozenset(point.kind for point in self.struck)
        elsewhere = partial(spark_by_hand.elsewhere, self.shop, self.harm, work, args)
        self.fell = self.run(Order(name, known, elsewhere))
        if self.fell is None:
            self.over.add(name)
        else:
            self.struck.append(self.fell)
        raise Died(name)

    def trips(self, work: Work) -> None:
        """Do a work until no deed of it has a point left, or the count is out; count each time."""
        self.done = set()
        while not self.over >= self.done or not self.done:
            before, self.done = len(self.struck), set()
            self.books.open()
            work(self)
            found = self.books.count()
            self.count.add(found)
            if not found.clean:
                names = [str(point) for point in self.struck[before:]]
                self.count.wrong.append(f"{work.__name__} after {names}")
            if found.lost or found.repeated:
                return


def stream(walk: Walk) -> None:
    """
    Run a query while another consumer takes one message, and holds a second for a while.

    Delayed messages become due: one for the queue itself, one for another, one for none.
    """
    books, shop = walk.books, walk.shop
    names = {"orders": "sold", "billing": "sold", "nowhere": "error"}
    books.delay({shop.printed(table): place for table, place in names.items()})
    bodies = books.post(FIRST)
    books.hold(bodies[4], bodies[8])
    books.post(SECOND)
    Stream(walk.desk, books, walk).run()
    books.total(9, 3, 5, 1)
    walk.desk.restart()


def write(walk: Walk) -> None:
    """Run a job that writes."""
    spark_by_hand.write(walk.desk, walk.books, walk)


def operate(walk: Walk) -> None:
    """Bring back what a stream has left."""
    walk.books.post(FIRST)
    spark_by_hand.operate(walk.desk, walk.books, walk)
    walk.desk.restart()


def lose(walk: Walk) -> None:
    """Lose entries of a checkpoint whose batch the sink has."""
    walk.books.post(FIRST)
    spark_by_hand.lose(walk.desk, walk.books, walk)
    walk.desk.restart()


@pytest.fixture
def shop(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Give queues and state tables; sessions are watched, and connect again without pauses."""
    dotnet, mark = PostgreSQL.at(place), f"faults {secrets.token_hex(4)}"
    shop = Shop(place.url, place.schema, place.state, mark)
    for table in QUEUES:
        dotnet.create(shop.address(table))
    routes = shop.address("SubscriptionRouting")
    dotnet.create_subscriptions(routes)
    for table in HEARING:
        dotnet.subscribe(routes, table, TOPIC, shop.printed(table))
    dialect = database.of(place.url)
    connection = dialect.connect(place.url, application=mark, timeout=TIMEOUT, state=place.state)
    schema.install(connection)
    schema.create_delayed(connection, shop.address("orders"))
    connection.close()
    monkeypatch.setattr(dialect, "connect", points.watching(place.url, mark))
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    with stamina.set_testing(testing=True, attempts=7, cap=True):
        yield shop


@pytest.fixture
def walk(place: Place, shop: Shop) -> Iterator[Walk]:
    """Give a walk whose processes are killed."""
    with (
        closing(Books(PostgreSQL.at(place), shop, f"{shop.mark}-{os.getpid()}-")) as books,
        points.forge() as run,
    ):
        made = Walk(books, shop, run)
        yield made
        made.desk.close()


@pytest.mark.timeout(900)
def test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing(
    walk: Walk, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever dies wherever, each message is in its place once, and nothing is left behind."""
    for work in (stream, write, operate, lose):
        walk.trips(work)

    count, names = walk.count, {str(point) for point in walk.struck}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(names)} points, {len(walk.struck)} kills, {count.messages} messages, "
            f"{len(count.lost)} lost, {len(count.repeated)} repeated\n"
        )
    assert count.clean, "\n".join([*count.lost, *count.repeated, *count.wrong])
    assert points.untouched(points.sites(points.sources()), walk.struck) == []


# ---------------------------------------------------------------- what is checked can fail


def test_a_statement_that_no_kill_reaches_is_found() -> None:
    """A new gap needs a part of the walk that comes through it."""
    texts = points.sources()
    struck = [
        points.Point("deed", "before", site.statement, 1, site.module, site.first, 0)
        for site in points.sites(texts)
    ]
    texts["receive.task"] += """
def new(connection: Connection, name: str) -> None:
    connection.rows(
        "made_up", stream="r")
    connection.rows(name)
"""

    found = points.untouched(points.sites(texts), struck)

    assert found == ["receive.task.new:made_up", "receive.task.new:rows"]


def empty_receipt(patch: Patch) -> None:
    """A receipt without the messages: they are with the attempt that died."""
    save = receipts.save

    def empty(at: Connection, task: Task, result: TaskResult, origin: Origin) -> None:
        save(at, task, replace(result, rows=result.rows[:0]), origin)

    patch(receipts, "save", empty)


def two_commits(patch: Patch) -> None:
    """The chunks in one commit, the dispatch log in the next; a second time finds none."""

    def dispatch(connection: Connection, staged: list[Staged], options: SinkOptions) -> None:
        with suppress(ChunksMissing), transaction(connection, timeout=TIMEOUT):
            send.lock_exclusive(connection, staged[0].sink)
            inserts = Inserts(connection, options, isolate_failures=True)
            for chunk in send.read_chunks(connection, staged):
                inserts.insert(chunk)
        send.discard(connection, staged[0].sink, staged[0].batch, final=True)

    patch(send, "dispatch", dispatch)


def no_high_water(patch: Patch) -> None:
    """A task receives for a number that the query has used: the sink drops what it received."""
    patch(receiving, "is_new", lambda *_: True)


@pytest.mark.parametrize(
    ("harm", "work", "only", "found"),
    [
        (empty_receipt, stream, "receive 1.0", "lost"),
        (two_commits, write, "dispatch", "repeated"),
        (no_high_water, lose, "receive_lost", "lost"),
    ],
)
def test_the_count_finds_what_a_kill_loses_or_repeats(
    walk: Walk, monkeypatch: pytest.MonkeyPatch, *, harm: Harm, work: Work, only: str, found: str
) -> None:
    """Each by a protocol that lacks one thing, which a kill shows."""
    harm(monkeypatch.setattr)
    walk.harm = harm
    walk.only = only

    walk.trips(work)

    kinds = {kind: bool(getattr(walk.count, kind)) for kind in ("lost", "repeated")}
    assert kinds == {"lost": False, "repeated": False} | {found: True}


def test_the_count_finds_what_is_left_on_the_server(walk: Walk, shop: Shop) -> None:
    """A transaction, its lock and a chunk that nobody sends."""
    books, connection = walk.books, walk.desk.sends.open()
    books.patience = 0.0
    spark_by_hand.stage(walk.desk, [books.chunk([b"body"], ["{}"])], "app:left", 0, NO_STREAM)
    connection.rows("begin")
    connection.rows("sink_close", sink="app:left")

    found = books.count().wrong

    assert found[0] == "1 rows left in staging"
    assert "idle in transaction" in found[1]
    assert shop.mark in found[1]
    assert len(found) == 2
