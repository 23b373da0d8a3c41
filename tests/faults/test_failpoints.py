"""
A kill in every gap between two statements of what receives, acknowledges, sends and returns.

A trip is always the same work: a stream of two batches, a job that writes, or an operator. In each
trip every part of it (`receive 1.0`, `dispatch`) dies at a point where none of its kind has died
yet, and is done again as Spark or a user would; in the end every message is counted. The walk is
over when no point is left. SQLQ_FAULT_ROUNDS walks more than once: from the second walk on every
task of every batch is of its own kind, and some parts are spared, so that other kills meet.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import stamina
from conformance.dotnet import PostgreSQL

from sqlq_spark import database
from sqlq_spark.database import schema, transaction
from sqlq_spark.errors import ChunksMissing, ConnectionLost
from sqlq_spark.receive import task as receiving
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import dispatch_log, staging
from sqlq_spark.wire.rows import NO_STREAM

from .failpoints import points, spark_by_hand
from .failpoints.message_count import HEARING, QUEUES, TIMEOUT, TOPIC, Books, Count, Shop
from .failpoints.points import Order, Strike, Watched
from .failpoints.spark_by_hand import SMALL, Desk, Died, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.staging import Staged

    from .failpoints.points import Point

    Work = Callable[["Walk"], None]
    Harm = Callable[[pytest.MonkeyPatch], None]

pytestmark = pytest.mark.faults

ROUNDS = int(os.environ.get("SQLQ_FAULT_ROUNDS", "1"))
FIRST = ["heavy", "expired", "good", "poison", "good", "good", "expired", "poison", "good", "good"]
SECOND = ["good", "large", "poison", "expired", "good", "heavy"]


class Walk:
    """Strikes each deed at a point that is not known yet, trip after trip, until none is left."""

    def __init__(
        self, books: Books, shop: Shop, run: Callable[[Order], Point | None] | None
    ) -> None:
        self.books = books
        self.shop = shop
        self.run = run  # makes a process to kill; without it sessions are cut off
        self.desk = Desk(shop)
        self.count = Count()
        self.struck: list[Point] = []
        self.only = ""  # how the names of deeds begin that are struck
        self.begin(0)

    def begin(self, number: int) -> None:
        """Begin with the first points again."""
        self.chance = random.Random(number)
        self.spared = 0.25 if number else 0.0
        self.each = number > 0  # batch and task for themselves
        self.known: set[Point] = set()
        self.over: set[str] = set()
        self.fell: Point | None = None

    def __call__(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Do a deed; strike it, if that is its first time in this trip and it has a point left."""
        self.fell = None
        if name in self.over or name in self.done or not name.startswith(self.only):
            return work(self.desk, *args)
        self.done.add(name)
        if self.chance.random() < self.spared:
            return work(self.desk, *args)
        scope = name if self.each else name.partition(" ")[0]
        known = frozenset(point for point in self.known if point.deed == scope)
        return (self._kill if self.run else self._cut)(Order(name, scope, known, work), args)

    def _kill(self, order: Order, args: tuple[Any, ...]) -> Any:
        """In a process of its own."""
        assert self.run is not None
        work = partial(spark_by_hand.elsewhere, self.shop, order.work, args)
        self._note(order, self.run(order._replace(work=work)))
        raise Died(order.deed)

    def _cut(self, order: Order, args: tuple[Any, ...]) -> Any:
        """In this process, which connects again by itself."""
        strike = Watched.strike = Strike(order, partial(points.cut_off, self.books.dotnet.kill))
        try:
            return order.work(self.desk, *args)
        except ConnectionLost:
            raise Died(order.deed) from None
        finally:
            Watched.strike = None
            self._note(order, strike.fell)

    def _note(self, order: Order, point: Point | None) -> None:
        self.fell = point
        if point is None:
            self.over.add(order.deed)
        else:
            self.struck.append(point)
            self.known.add(point.within(order.scope))

    def trips(self, work: Work) -> None:
        """Do a work until no deed of it has a point left, or the count is out; count each time."""
        self.done: set[str] = set()
        while not self.over >= self.done or not self.done:
            before, self.done = len(self.struck), set()
            self.books.open()
            work(self)
            found = self.books.count()
            self.count.add(found)
            if not found.clean:
                told = [str(point) for point in self.struck[before:]]
                self.count.wrong.append(f"{work.__name__} after {told}")
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
    schema.install(connection, timeout=TIMEOUT)
    schema.create_delayed(connection, shop.address("orders"), timeout=TIMEOUT)
    connection.close()
    monkeypatch.setattr(dialect, "connect", points.watching(place.url, mark))
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    with stamina.set_testing(testing=True, attempts=7, cap=True):
        yield shop


@pytest.fixture
def walker(place: Place, shop: Shop) -> Iterator[Callable[[str], Walk]]:
    """Give what makes a walk of a kind: `killed` or `cut off`."""
    with ExitStack() as stack:

        def walk(kind: str) -> Walk:
            books = Books(PostgreSQL.at(place), shop, f"{shop.mark}-{os.getpid()}-")
            stack.callback(books.close)
            run = stack.enter_context(points.forge()) if kind == "killed" else None
            made = Walk(books, shop, run)
            stack.callback(made.desk.close)
            return made

        yield walk


@pytest.mark.timeout(900 * ROUNDS)
@pytest.mark.parametrize("kind", ["killed", "cut off"])
def test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing(
    walker: Callable[[str], Walk], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever dies wherever, each message is in its place once, and nothing is left behind."""
    walk = walker(kind)

    for number in range(ROUNDS):
        walk.begin(number)
        for work in (stream, write, operate):
            walk.trips(work)

    count, names = walk.count, {str(point) for point in walk.struck}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{kind}: {len(names)} points, {len(walk.struck)} kills, {count.messages} messages, "
            f"{len(count.lost)} lost, {len(count.repeated)} repeated\n"
        )
    assert count.clean, "\n".join([*count.lost, *count.repeated, *count.wrong])
    assert points.untouched(points.sites(points.sources()), walk.struck) == []


# ---------------------------------------------------------------- what is checked can fail


def test_a_statement_that_no_kill_reaches_is_told() -> None:
    """A new gap needs a part of the walk that comes through it."""
    texts = points.sources()
    struck = [
        points.Point("deed", "before", site.statement, 1, site.module, site.first, 0)
        for site in points.sites(texts)
    ]
    texts["receive.task"] += """
def new(connection: Connection, name: str) -> None:
    connection.run(
        "made_up", stream="r")
    connection.rows(name)
"""

    found = points.untouched(points.sites(texts), struck)

    assert found == ["receive.task.new:made_up", "receive.task.new:rows"]


def empty_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt without the messages: they are with the attempt that died."""
    save = receiving.save
    monkeypatch.setattr(
        receiving,
        "save",
        lambda at, task, kept, **said: save(at, task, replace(kept, rows=kept.rows[:0]), **said),
    )


def two_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks in one commit, the dispatch log in the next; a second time finds none."""

    def dispatch(connection: Connection, staged: list[Staged], options: SinkOptions) -> None:
        with suppress(ChunksMissing), transaction(connection, timeout=TIMEOUT):
            login, _ = dispatch_log.lock(connection, staged[0].sink)
            send.Dispatch(connection, staged, options, login).copy_chunks()
        staging.discard(connection, staged[0].sink, staged[0].batch, final=True, timeout=TIMEOUT)

    monkeypatch.setattr(send, "dispatch", dispatch)


@pytest.mark.parametrize(
    ("harm", "work", "only", "found"),
    [(empty_receipt, stream, "receive 1.0", "lost"), (two_commits, write, "dispatch", "repeated")],
)
def test_the_count_finds_what_a_kill_loses_or_repeats(
    request: pytest.FixtureRequest, harm: Harm, work: Work, only: str, found: str
) -> None:
    """Each by a protocol that lacks one thing, which a kill or a replay brings to light."""
    harm(request.getfixturevalue("monkeypatch"))
    walk = request.getfixturevalue("walker")("cut off")
    walk.only = only

    walk.trips(work)

    kinds = {kind: bool(getattr(walk.count, kind)) for kind in ("lost", "repeated")}
    assert kinds == {"lost": False, "repeated": False} | {found: True}


def test_the_count_finds_what_is_left_on_the_server(
    walker: Callable[[str], Walk], shop: Shop
) -> None:
    """A transaction, its lock and a chunk that nobody sends."""
    walk = walker("cut off")
    books, connection = walk.books, walk.desk.sends.open()
    books.patience = 0.0
    spark_by_hand.stage(walk.desk, [books.chunk([b"body"], ["{}"])], "app:left", 0, NO_STREAM)
    connection.run("begin")
    connection.rows("sink_close", sink="app:left")

    found = books.count().wrong

    assert found[0] == "1 rows left in staging"
    assert "idle in transaction" in found[1]
    assert shop.mark in found[1]
    assert len(found) == 2
