"""
Everyone who touches the queues, and where every message is, asked of the database at each commit.

A message must be in one place: a queue, a receipt, a sink, the hand of a job that has not sent it,
expired and counted, taken by a competitor, or dropped. In a receipt and in the sink at once: only
while the sink has that very receipt's batch, until the ack. A receipt moves as MOVES says, and
there is always someone who will read it.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from payloads import of_receipt
from psycopg import sql
from receipt_moves import MOVES

from sqlq_spark.admin import receipts
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import ConnectionLost, Deadlock, ReceiptSettled
from sqlq_spark.wire.postgresql import POSTGRESQL

from .queries import TIMEOUT, Checkpoint, Driver, Receipt, Sink
from .steps import FIGURES, Work, expected

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.transport import PostgreSQL
    from receipt_moves import Move, State

    from sqlq_spark.options import SinkOptions, SourceOptions
    from sqlq_spark.wire.address import QueueAddress

    from .queries import Key, Kind
    from .steps import Order, Stage

# state tables that hold what a run leaves
EMPTIED = (
    *("stream", "query_reader", "receipt", "receipt_page"),
    *("staging", "staging_page", "dispatch_log"),
)
INPUTS = ["orders", "invoices"]  # the queue of each source of a query
HEARING = ["billing", "shipping"]  # the queues that get a copy of what is published
HEADERS = {"poison": "[]", "large": '{"Note": "%s"}' % ("x" * 30_000)}  # by kind


@lru_cache(maxsize=10_000)
def bodies_in(payload: bytes) -> list[bytes]:
    """The messages of a receipt, which is looked at after every commit."""
    bodies: list[bytes] = of_receipt(payload)["body"].to_pylist()
    return bodies


class Lost(AssertionError):
    """A message is in no place, or in more than one."""


class World:
    """The database, all that was sent, and all who work."""

    def __init__(
        self,
        stage: Stage,
        dotnet: PostgreSQL,
        queues: dict[str, QueueAddress],
        source: SourceOptions,
        targets: dict[Kind, SinkOptions],
    ) -> None:
        """Begin with nothing; `source` reads the queue `orders`, `targets` are sinks."""
        self.stage, self.dotnet, self.queues = stage, dotnet, queues
        self.source, self.targets = source, targets
        self.rival = dotnet.consumer()
        self.order: Callable[[Work], Order] = lambda _: "go"  # what a step does by default
        self.begin()

    def begin(self) -> None:
        for table in EMPTIED:
            self.ask(f"DELETE FROM {{state}}.{table}")
        for queue in self.queues.values():
            self.dotnet.dba.empty(queue)
        # each call is 2 s later, which is more than a peek's pause
        self.clock: Callable[[], float] = count(1000.0, 2.0).__next__
        self.jobs: list[Work] = []
        self.drivers: list[Driver] = []
        self.checkpoints: list[Checkpoint] = []
        self.inputs = INPUTS[:1]  # the queues that queries read
        self.sinks: dict[Kind, Sink] = {}
        self.sent: dict[bytes, str] = {}  # body → kind
        self.hand: list[bytes] = []  # messages that a job will send
        self.held: list[bytes] = []  # messages that the competitor holds, not committed
        self.taken: list[bytes] = []  # messages that the competitor has received
        self.dropped: list[bytes] = []
        self.expired = 0  # messages whose count went with a receipt
        self.owners: dict[str, Checkpoint] = {}  # stream → a checkpoint that knew it
        self.retired: Counter[str] = Counter()  # stream → the batch that an operator closed
        self.marred: set[str] = set()  # queries whose checkpoint lost entries, or was copied
        self.before: dict[Key, Receipt] = {}

    def ask(self, text: str, *values: object) -> list[Any]:
        """Run a statement; `{state}` is the schema of the state tables."""
        query = sql.SQL(text).format(state=sql.Identifier(self.dotnet.state))
        found = self.dotnet.connection.execute(query, values, binary=True)
        return [] if found.description is None else found.fetchall()

    # ------------------------------------------------------------ processes

    def spawn(self, name: str, call: Callable[[], Any], move: Move | None, **more: Any) -> Work:
        self.jobs.append(Work(self.stage, name, call, move=move, **more))
        return self.jobs[-1]

    def step(self, job: Work, order: Order = "go") -> None:
        """Let a process run one statement, and then look for every message."""
        order = self.order(job) if order == "go" else order
        job.step(order)
        if job.committed:
            job.committed = False
            self.observe(job)
        self.stage.stir(self.jobs)
        self.reap()

    def run(self, job: Work, statements: int = 1000) -> None:
        """Let a process run some statements, or until it ends or must wait."""
        for _ in range(statements):
            if not job.done and not job.blocked:
                self.step(job)

    def hurry(self, driver: Driver) -> None:
        """Let a driver take its next step, and all work that it starts, if nothing must wait."""
        before = list(map(id, self.jobs))
        driver.next()
        for job in [each for each in self.jobs if id(each) not in before]:
            self.run(job)

    def reap(self) -> None:
        for job in [each for each in self.jobs if each.done]:
            if job in self.jobs:
                self.jobs.remove(job)
                if job.on_end:
                    job.on_end()

    def finish(self) -> None:
        while self.jobs:
            for job in list(self.jobs):
                if job in self.jobs:
                    self.step(job)

    # ------------------------------------------------------------ messages, and where they are

    def new(self, kind: str) -> bytes:
        body = b"%s %d" % (kind.encode(), len(self.sent))
        self.sent[body] = kind
        return body

    def send(self, messages: int, kind: str = "plain", headers: str = "{}") -> None:
        for number in range(messages):
            lives = -1000 if kind == "expired" else None
            text = HEADERS.get(kind, headers)
            queue = self.queues[self.inputs[number % len(self.inputs)]]
            self.dotnet.send(queue, text, self.new(kind), lives=lives)
        FIGURES["messages"] += messages

    def observe(self, job: Work | None) -> None:
        """Check after a commit that receipts moved as their table allows, and nothing is lost."""
        now, before = self.receipts(), self.before
        gone = {key: before[key] for key in before.keys() - now.keys()}
        for key in before.keys() | now.keys():
            was: State = before[key].state if key in before else "none"
            state: State = now[key].state if key in now else "none"
            move = job.move if job is not None else None
            moved = MOVES.get((was, move)) if move is not None else None
            assert state in {was, moved}, f"{move}: {key} from {was} to {state}"
        self.before = now
        if job is not None and job.on_commit:
            job.on_commit(gone)
        self.check()

    def check(self) -> None:
        """Raise Lost unless every message is in one place."""
        found, expired, counted = *self.places(), 0
        for body, kind in self.sent.items():
            where = found.pop(body, [])
            counted += kind == "expired" and not where
            copies = kind == "published" and sorted(where) == HEARING
            again = kind == "at least once" and where
            gone = kind == "expired" and not where
            if not (len(where) == 1 or copies or again or gone):
                raise Lost(f"{kind} message {body!r} is in {where or 'no place'}")
        if found:
            raise Lost(f"unknown messages: {found}")
        if counted != expired:
            raise Lost(f"{counted} messages expired, but {expired} were counted")
        self._check_receipts()

    def places(self) -> tuple[dict[bytes, list[str]], int]:
        found: dict[bytes, list[str]] = defaultdict(list)
        text = " UNION ALL ".join(
            f"SELECT '{name}', body FROM {self.dotnet.quoted(queue)}"
            for name, queue in self.queues.items()
        )
        text += """
            UNION ALL
            SELECT 'expired', int8send(coalesce(sum(expired), 0)::bigint) FROM {state}.stream"""
        expired = self.expired + sum(receipt.expired for receipt in self.before.values())
        for name, value in self.ask(text):
            if name == "expired":
                expired += int.from_bytes(value)
            else:
                found[value].append(name)
        for name, bodies in [
            ("hand", self.hand),
            ("competitor", self.taken),
            ("dropped", self.dropped),
            *((kind, x) for kind, sink in self.sinks.items() for x in sink.batches.values()),
        ]:
            for body in bodies:
                found[body].append(name)
        for key, receipt in self.before.items():
            for body in receipt.bodies:
                if not self.sunk(body, key):
                    found[body].append(f"receipt {key}")
        return found, expired

    def sunk(self, body: bytes, key: Key) -> bool:
        return any(sink.keys.get(body) == key for sink in self.sinks.values())

    def bodies_of(self, batch: tuple[str, int]) -> set[bytes]:
        found = (each for sink in self.sinks.values() for each in sink.keys.items())
        return {body for body, key in found if key[:2] == batch}

    def _check_receipts(self) -> None:
        """Check that every receipt can be read, and that it is settled exactly if it was sent."""
        for key, receipt in self.before.items():
            owner = self.owners.get(key[0])
            sent = [self.sunk(body, key) for body in receipt.bodies]
            if receipt.closed and key[1] > self.retired[key[0]]:
                raise Lost(f"receipt {key} is of a closed batch: no one will read it")
            if receipt.state == "settled" and not all(sent):
                raise Lost(f"receipt {key} is settled, but not all of it was sent")
            if owner and owner.sink.kind == "atomic" and receipt.state == "held" and any(sent):
                raise Lost(f"receipt {key} was sent, but is not settled")

    def receipts(self) -> dict[Key, Receipt]:
        rows = self.ask("""
            SELECT r.stream, r.batch, r.task, r.settled, r.expired, r.batch <= o.acked_batch,
                   coalesce(nullif(r.payload, ''),
                            (SELECT string_agg(p.payload, '' ORDER BY page)
                               FROM {state}.receipt_page AS p
                              WHERE (p.stream, p.batch, p.task) = (r.stream, r.batch, r.task)))
              FROM {state}.receipt AS r JOIN {state}.stream AS o ON o.stream = r.stream""")
        return {
            (stream, batch, task): Receipt(
                "settled" if settled else "held", bodies_in(payload), expired, closed
            )
            for stream, batch, task, settled, expired, closed, payload in rows
        }

    def stream(self, name: str | None) -> tuple[int, str | None]:
        """Return the last closed batch of a stream, and the driver that owns the stream."""
        rows = self.ask("SELECT acked_batch, driver FROM {state}.stream WHERE stream = %s", name)
        return rows[0] if rows else (0, None)

    # ------------------------------------------------------------ the operator

    def operate(self, key: Key, move: Literal["return_", "drop"]) -> None:
        bodies = self.before[key].bodies
        named = {POSTGRESQL.print_address(each): each for each in self.queues.values()}
        text = "SELECT queue FROM {state}.receipt WHERE (stream, batch, task) = (%s, %s, %s)"
        queue = named[self.ask(text, *key)[0][0]]

        def run() -> None:
            with Session(self.source, "operator") as session:
                one = session.open()
                with transaction(one, timeout=TIMEOUT):
                    if move == "return_":
                        receipts.return_receipt(one, key, queue)
                    else:
                        receipts.drop_receipt(one, key)

        def committed(gone: dict[Key, Receipt]) -> None:
            assert set(gone) <= {key}, gone
            FIGURES[f"receipts {move}"] += len(gone)
            if gone:
                self.marred.add(self.owners[key[0]].query)
                self.retired[key[0]] = max(self.retired[key[0]], key[1])
                self.expired += gone[key].expired
            if gone and move == "drop":
                self.dropped += [body for body in bodies if not self.sunk(body, key)]

        def end() -> None:
            expected(job.error, ConnectionLost, Deadlock, ReceiptSettled)
            if isinstance(job.error, ReceiptSettled):
                assert self.before[key].state == "settled"

        job = self.spawn(move, run, move, on_commit=committed, on_end=end)
        # otherwise a driver could begin to read the receipt meanwhile
        if not self.owners[key[0]].shared:
            self.run(job)
            self.step(job, "die")

    def may_operate(self, key: Key) -> bool:
        """
        Return whether a careful operator would act.

        No sink has the batch, and no query continues it.
        """
        speaking = any(driver.alive and key[0] in driver.names for driver in self.drivers)
        return self.owners[key[0]].shared or not (speaking or self.bodies_of(key[:2]))

    # ------------------------------------------------------------ queries

    def query(self, kind: Kind, sources: int = 1) -> Checkpoint:
        """Begin a query with an empty checkpoint; all of a kind write one table or queue."""
        sink = self.sinks.setdefault(kind, Sink(kind, self.targets.get(kind)))
        self.inputs = INPUTS[:sources]
        self.checkpoints.append(Checkpoint(str(uuid.uuid4()), sink, sources))
        return self.checkpoints[-1]

    def drive(self, checkpoint: Checkpoint) -> Driver:
        self.drivers.append(Driver(self, checkpoint))
        FIGURES["drivers"] += 1
        return self.drivers[-1]

    def alive(self, checkpoint: Checkpoint | None = None) -> list[Driver]:
        self.drivers = [driver for driver in self.drivers if driver.alive]
        return [each for each in self.drivers if checkpoint in {None, each.checkpoint}]

    def copy(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint; the second query writes the same sink."""
        FIGURES["checkpoints copied"] += 1
        self.marred.add(checkpoint.query)
        offsets, commits = dict(checkpoint.offsets), set(checkpoint.commits)
        self.checkpoints.append(replace(checkpoint, offsets=offsets, commits=commits))

    def roll_back(self, checkpoint: Checkpoint, entries: int, *, offsets: bool) -> None:
        """
        Lose the last entries of a checkpoint's logs: commits only, or the offsets with them.

        The first offsets stay where a copy has the query's name: two would use a batch's number.
        """
        copies = sum(each.query == checkpoint.query for each in self.checkpoints)
        self.marred.add(checkpoint.query)
        for driver in self.alive(checkpoint):
            driver.die()
        for batch in sorted(checkpoint.offsets, reverse=True)[:entries]:
            checkpoint.commits.discard(batch)
            if offsets and (batch > 0 or copies == 1):
                del checkpoint.offsets[batch]
        FIGURES["checkpoints rolled back"] += 1

    def lose(self, checkpoint: Checkpoint) -> Checkpoint:
        """Lose a checkpoint; its query begins again, with another id, on the same sink."""
        for driver in self.alive(checkpoint):
            driver.die()
        self.checkpoints.remove(checkpoint)
        FIGURES["checkpoints lost"] += 1
        return self.query(checkpoint.sink.kind, checkpoint.sources)

    # ------------------------------------------------------------ the competitor

    def rival_takes(self) -> None:
        """Receive one message as the transport does, in a transaction that stays open."""
        if not self.held:
            self.rival.connection.execute("BEGIN")
        found = self.rival.receive(self.queues["orders"])
        if found is not None and found.body is not None:
            self.held.append(found.body)
        elif not self.held:
            self.rival.connection.execute("ROLLBACK")

    def rival_ends(self, *, commit: bool) -> None:
        if self.held:
            self.rival.connection.execute("COMMIT" if commit else "ROLLBACK")
            self.taken += self.held if commit else []
            self.held = []
            self.observe(None)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Let all work end, until every message is where it stays."""
        self.rival_ends(commit=False)
        for _ in range(20):
            self.finish()
            for checkpoint in list(self.checkpoints):
                self._drain_query(checkpoint)
            left = list(self.before)
            if not left and not self._waiting():
                return self.check()
            for key in left:
                receipt = self.before[key]
                sunk = self.bodies_of(key[:2]) & {*receipt.bodies}
                self.operate(key, "drop" if sunk or receipt.state == "settled" else "return_")
                self.finish()
        raise Lost(f"the queue does not get empty: {self.places()}")

    def _waiting(self) -> int:
        return sum(self.dotnet.dba.count(self.queues[name]) for name in self.inputs)

    def options_of(self, source: int) -> SourceOptions:
        """The options of a query's source: each reads a queue of its own."""
        return replace(self.source, queue=self.queues[INPUTS[source]])

    def _drain_query(self, checkpoint: Checkpoint) -> None:
        """Run a query until nothing is left. A query that cannot continue begins again."""
        for second in self.alive(checkpoint)[1:]:
            second.die()
        while True:
            drivers = self.alive(checkpoint)
            driver = drivers[0] if drivers else self.drive(checkpoint)
            driver.idle = 0
            # two peeks more: the first may look behind what others held
            while driver.alive and (not driver.idle or (driver.idle < 3 and self._waiting())):
                driver.next()
                self.finish()
            if driver.alive:
                return
            if driver.fresh and not (drivers or driver.killed):
                checkpoint = self.lose(checkpoint)

    def close(self) -> None:
        """End an example, without a process, transaction or session left."""
        if self.held:
            self.rival.connection.execute("ROLLBACK")
            self.held = []
        for job in list(self.jobs):
            job.step("die")
            job.thread.join(10)
        for driver in self.drivers:
            for loop in driver.streams:
                loop.close()
