"""
A kill in every gap between two statements of what receives, acknowledges, sends and returns.

A trip is always the same work: a query, jobs that write, or an operator. In each trip every part of
it (`task 0 (0, 1)`, `dispatch`) dies a few times, each time at a point where none of its kind has
died yet: before a statement, or after a commit. Then it is done again as Spark or a user would.
After each commit every message is looked for. The walk is over when no point is left.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from recorded_connection import METHODS

import sqlq_spark
from sqlq_spark.admin import return_to_source
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import ChunksMissing
from sqlq_spark.options import SinkOptions
from sqlq_spark.receive import task as receiving
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import insert, subscriptions
from sqlq_spark.send.chunk import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.dispatch import NAMELESS_SINK
from sqlq_spark.wire.address import delayed_of
from sqlq_spark.wire.headers import FAILED_Q, FORWARD_DESTINATION, dumps
from sqlq_spark.wire.postgresql import POSTGRESQL

from .steps import FIGURES, Killed
from .world import HEARING, Lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.send.dispatch import Staged

    from .steps import Order, Work
    from .world import World

pytestmark = pytest.mark.faults

PACKAGE = Path(sqlq_spark.__file__).parent
# Modules and functions at whose statements nothing is killed. Without a comment: they only read.
ELSEWHERE = {
    *("receive.browse", "receive.driver._freeze", "receive.driver._check_owner", "send.throttle"),
    *("receive.driver.find_above", "send.subscriptions._read", "send.dispatch.last_sent"),
    "receive.driver.purge",  # deletes messages on purpose
    "send.dispatch.give_up",  # a single transaction of a job
    *("send.subscriptions.subscribe", "send.subscriptions._replace"),  # touch no message
    "send.subscriptions.unsubscribe",
}
DEATHS = 8  # how often one process dies in a trip at most
LIFE = 10**8  # milliseconds
TOPIC = "Shop.Billed"
# kind of message → where it is in the end
ENDS = {
    "home": "atomic",
    **dict.fromkeys(["poison", "large", "nowhere", "undeliverable"], "error"),
    **dict.fromkeys(["away", "sent", "failed"], "billing"),
    "delayed": "delayed",
}
CHUNK = pa.schema([*CHUNK_ROW, CHUNK_DELAYS["delay"], CHUNK_TOPICS])


def sites() -> dict[tuple[str, int], str]:
    """Return each place where the package runs a statement: its file and line, and its function."""
    found, stale = {}, {*ELSEWHERE}
    subject = [*PACKAGE.glob("receive/*.py"), *PACKAGE.glob("send/*.py")]
    for path in [*subject, PACKAGE / "admin" / "receipts.py"]:
        module = name = f"{path.parent.name}.{path.stem}"
        for at, line in enumerate(path.read_text().splitlines(), 1):
            if owner := re.match(r" *def (\w+)", line):
                name = f"{module}.{owner[1]}"
            elif re.search(rf"connection\.({'|'.join(METHODS)})\(|\buse\w*\(connection", line):
                stale -= {module, name}
                if ELSEWHERE.isdisjoint({module, name}):
                    found[str(path), at] = name
    assert not stale, f"ELSEWHERE names what is no more: {stale}"
    return found


class Walk:
    """Kills the processes of trips at points that are new, until none is left."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.points: set[Any] = set()
        self.sites: set[tuple[str, int]] = set()
        self.struck: Counter[str] = Counter()  # processes of this trip
        world.order = self.order
        world.stage.passed.clear()
        source, self.routes = world.source, replace(world.queues["orders"], table="routes")
        self.names = {name: POSTGRESQL.print_address(each) for name, each in world.queues.items()}
        given = {
            "url": source.url,
            "stateSchema": source.state_schema,
            "delayedQueue": self.names["delayed"],
            "subscriptionTable": POSTGRESQL.print_address(self.routes),
            "undeliverable": self.names["error"],
        }
        self.options = SinkOptions.parse(given)

    def __call__(self, trip: Callable[[Walk], None]) -> None:
        """
        Repeat a trip until no point is new.

        Each time every message is in its place at the end.
        """
        before = -1
        while len(self.points) > before:
            before = len(self.points)
            self.struck.clear()
            self.world.begin()
            try:
                trip(self)
                self.check()
            finally:
                self.world.close()

    def order(self, work: Work) -> Order:
        kinds: tuple[Order, ...] = ("die", "late") if work.at == "commit" else ("die",)
        for order in kinds:
            point = (work.name.partition(" ")[0], order, work.site, work.passed[work.at])
            alive = work.blocked or self.struck[work.name] == DEATHS
            if work.at and not alive and point not in self.points:
                self.points.add(point)
                self.sites.add(work.site)
                self.struck[work.name] += 1
                return order
        return "go"

    def check(self) -> None:
        found, _ = self.world.places()
        for body, kind in self.world.sent.items():
            assert kind not in ENDS or found[body] == [ENDS[kind]], (body, found[body])
        for table in ("receipt", "receipt_page", "staging", "staging_page"):
            assert self.world.ask(f"SELECT FROM {{state}}.{table}") == [], table

    # ------------------------------------------------------------ jobs

    def done(self, name: str, call: Callable[[], Any], *, sends: bool = False) -> Any:
        """
        Do some work, and again if its process dies.

        With `sends` its commit sends what is in hand.
        """

        def committed(_: object) -> None:
            self.world.hand = []

        while True:
            job = self.world.spawn(name, call, None, on_commit=committed if sends else None)
            self.world.run(job)
            if not isinstance(job.error, Killed):
                assert job.error is None, job.error
                return job.result

    def row(self, kind: str, **columns: Any) -> dict[str, Any]:
        body = self.world.new(kind)
        self.world.hand.append(body)
        return {"headers": "{}", "body": body, **columns}

    def rows(self, kind: str = "") -> list[dict[str, Any]]:
        """Return a row of each kind of destination. `kind` counts them as one kind."""
        return [
            self.row(kind or "sent", queue=self.names["billing"], lifetime=LIFE),
            self.row(kind or "delayed", queue=self.names["billing"], delay=LIFE),
            self.row(kind or "published", topics=[TOPIC, "Shop.IEvent"]),
        ]

    def stage(self, sink: str, batch: int, rows: list[dict[str, Any]]) -> Staged:
        chunks = [pa.Table.from_pylist(rows, CHUNK)]
        with StateSession(self.options, "sink") as session:
            return send.stage(session, chunks, sink=sink, sink_batch=batch)

    def write(self, sink: str, batch: int, *parts: list[dict[str, Any]]) -> None:
        name = sink[:4]
        staged = [
            self.done(f"stage {name} {at}", partial(self.stage, sink, batch, part))
            for at, part in enumerate(parts)
        ]
        self.done(f"dispatch {name}", partial(self.dispatch, staged), sends=True)

    def dispatch(self, staged: list[Staged]) -> int:
        subscriptions.cache.drop(self.options)
        with StateSession(self.options, "dispatch") as session:
            return session.run_with_retries(lambda one: send.dispatch(one, staged, self.options))


# ---------------------------------------------------------------- trips


def stream(walk: Walk) -> None:
    """
    Run a query into a queue, with messages of all kinds.

    Delayed ones become due: one for the queue itself, one for another, one for none.
    """
    world, names = walk.world, walk.names
    places = {"home": names["orders"], "away": names["billing"], "nowhere": '"nowhere"'}
    for kind, place in places.items():
        headers = dumps({FORWARD_DESTINATION: place})
        world.dotnet.store(world.queues["delayed"], headers, world.new(kind), delay=-3600)
    kinds = {"plain": 3, "expired": 2, "poison": 2, "large": 1}
    for kind, messages in kinds.items():
        world.send(messages, kind)
    world.send(2)
    world.query("atomic")
    world.drain()

    counts = "SELECT sum(messages), sum(expired), sum(diverted), sum(forwarded) FROM {state}.stream"
    assert [*map(int, world.ask(counts)[0])] == [6, 2, 4, 1]


def lose(walk: Walk) -> None:
    """Lose a checkpoint before its sink has the batch, and one after: return and drop receipts."""
    world = walk.world
    for phase in ("sink", "sunk"):
        world.send(4)
        checkpoint = world.query("table")
        driver = world.drive(checkpoint)
        while driver.phase != phase:
            driver.next()
            world.finish()
            driver = driver if driver.alive else world.drive(checkpoint)
        world.lose(checkpoint)
    world.drain()


def send_by_name(walk: Walk) -> None:
    """Send under a name; some messages have no destination, and go to the error queue."""
    lost = [walk.row("undeliverable"), walk.row("undeliverable", queue='"nowhere"')]
    walk.write("app:bill", 7, walk.rows(), lost)


def send_otherwise(walk: Walk) -> None:
    """Give up a write, whose chunks a later write deletes. Send another write at least once."""
    world, (one, other) = walk.world, (f"{NAMELESS_SINK}{uuid.uuid4()}" for _ in range(2))
    given_up = [{"queue": walk.names["billing"], "headers": "{}", "body": b"given up"}]
    walk.done("stage", partial(walk.stage, one, 0, given_up))
    with StateSession(walk.options, "abort") as session:
        discard = partial(send.discard, session.open(), final=True)
        walk.done("abort", partial(discard, f"{one}, new", 0))  # no task has staged for it
        job = world.spawn("discard", partial(discard, one, 0), None)
        world.run(job)
    walk.stage(one, 0, given_up)
    assert job.error or not world.ask("SELECT FROM {state}.staging"), "a late task staged"
    world.dotnet.dba.age("staging", "created", hours=8 * 24)
    walk.write(other, 0, [walk.row("sent", queue=walk.names["billing"])])

    options = replace(walk.options, delivery="atLeastOnce")
    chunks = [pa.Table.from_pylist([row], CHUNK) for row in walk.rows("at least once")]

    def send_now() -> None:
        subscriptions.cache.drop(options)
        with StateSession(options, "sink") as session:
            insert.send_now(session, chunks, options)

    walk.done("send_now", send_now)
    world.hand = []


def retry(walk: Walk) -> None:
    """Return what has failed to its queue, in two transactions."""
    world = walk.world
    errors = world.queues["error"]
    for _ in range(3):
        headers = dumps({FAILED_Q: walk.names["billing"]})
        world.dotnet.send(errors, headers, world.new("failed"))

    def give_back() -> None:
        with Session(world.source, "retry") as session:
            choice = return_to_source.Choice()
            planned = return_to_source.plan_return(session.open(), errors, choice)
            returned = return_to_source.give_back(session, errors, planned, batch=2)
            assert not [each for each in returned if each.reason]

    walk.done("retry", give_back)


@pytest.fixture
def walk(world: World, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """Give a walk in a world with delayed messages and subscriptions."""
    monkeypatch.setattr(receiving, "STEP", 220)  # a task receives in several statements
    world.queues["delayed"] = delayed_of(world.queues["orders"])
    world.dotnet.create_delayed(world.queues["delayed"])
    world.source = replace(world.source, delayed_delivery=True)
    made = Walk(world)
    world.dotnet.create_subscriptions(made.routes)
    for name in HEARING:
        world.dotnet.subscribe(made.routes, name, TOPIC, made.names[name])
    return made


@pytest.mark.timeout(900)
def test_a_kill_in_any_gap_loses_nothing_and_repeats_nothing(walk: Walk) -> None:
    """Each process is killed between any two statements. Each message is in its place once."""
    for trip in (stream, lose, send_by_name, send_otherwise, retry):
        walk(trip)

    FIGURES["points of death"] += len(walk.points)
    untouched = {name for site, name in sites().items() if site not in walk.sites}
    # a heartbeat decides nothing about messages, and these drivers have none
    untouched = {name for name in untouched if not name.startswith("receive.heartbeat.")}
    assert untouched == set(), "no kill reaches their statements: a trip must come through them"


def test_a_dispatch_in_two_commits_is_found(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A planted dispatch commits the chunks first and the dispatch log later.

    A kill between the commits repeats messages.
    """

    def dispatch(connection: Connection, staged: list[Staged], options: SinkOptions) -> None:
        with suppress(ChunksMissing), transaction(connection):
            inserts = insert.Inserts(connection, options, isolate_failures=True)
            for each in send.read_chunks(connection, staged):
                inserts.insert(each)
        send.discard(connection, staged[0].sink, staged[0].sink_batch, final=True)

    monkeypatch.setattr(send, "dispatch", dispatch)

    with pytest.raises(Lost):
        walk(send_by_name)
