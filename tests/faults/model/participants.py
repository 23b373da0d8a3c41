"""Everyone who touches the queue: queries and their misfortunes, a competitor, an operator."""

from __future__ import annotations

import uuid
from collections import defaultdict
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import ConnectionLost, Deadlock, ReceiptSettled
from sqlq_spark.receive import receipts
from sqlq_spark.send import dispatch
from sqlq_spark.send.sender import CHUNK_ROW

from .message_places import Lost, Places
from .queries import TIMEOUT, Checkpoint, Driver, Job, Sink, expected
from .steps import FIGURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from receipt_moves import Move

    from sqlq_spark.receive.offset import Offset
    from sqlq_spark.wire.rows import Origin

    from .queries import Key, Kind, Receipt
    from .steps import Order, Stage


class World(Places):
    """The database, all that was sent, and all who work."""

    def __init__(self, stage: Stage, *places: Any) -> None:
        super().__init__(*places)
        self.stage = stage
        self.rival = self.dotnet.consumer()

    def begin(self) -> None:
        """Begin a new example with nothing."""
        super().begin()
        ticks = count(1000.0, 2.0)  # a peek pauses for less
        self.clock: Callable[[], float] = lambda: next(ticks)
        self.jobs: list[Job] = []
        self.drivers: list[Driver] = []
        self.checkpoints: list[Checkpoint] = []
        self.held: list[bytes] = []  # by the competitor, not committed
        self.in_hand: set[str] = set()  # streams that an operator has in hand
        self.planned: dict[tuple[str, int], set[int]] = defaultdict(set)

    # ------------------------------------------------------------ processes

    def spawn(self, name: str, call: Callable[[], Any], move: Move | None, **more: Any) -> Job:
        """Start a process; it stands before its first statement."""
        job = Job(self.stage.start(name, call), move, **more)
        self.jobs.append(job)
        return job

    def step(self, job: Job, order: Order = "go") -> None:
        """Let a process do one statement, then look at what became of everything."""
        FIGURES[f"ordered: {order}"] += order != "go"
        job.work.step(order)
        if job.work.committed:
            job.work.committed = False
            self.observe(job)
        self.stage.stir()
        self.reap()

    def run(self, job: Job) -> None:
        """Let a process go to its end, or to where it must wait."""
        while not job.work.done and not job.work.blocked:
            self.step(job)

    def hurry(self, driver: Driver) -> None:
        """Let a driver do its next thing, and what that starts, if nothing makes it wait."""
        before = list(map(id, self.jobs))
        driver.next()
        for job in [each for each in self.jobs if id(each) not in before]:
            self.run(job)

    def reap(self) -> None:
        """End the jobs whose process has ended."""
        for job in [each for each in self.jobs if each.work.done]:
            if job in self.jobs:
                self.jobs.remove(job)
                if job.on_end:
                    job.on_end()

    def finish(self) -> None:
        """Run all processes to their ends, in turn."""
        while self.jobs:
            for job in list(self.jobs):
                if job in self.jobs:
                    self.step(job)

    def stage_rows(self, sink: Sink, bodies: list[bytes], origin: Origin) -> dispatch.Staged:
        """Put a task's messages into the staging, a chunk for each two of them."""
        assert sink.options is not None
        rows = [{"headers": "{}", "body": body} for body in bodies]
        chunks = [
            pa.Table.from_pylist(rows[at : at + 2], CHUNK_ROW) for at in range(0, len(rows), 2)
        ]
        query, batch = origin.query_id, origin.query_batch
        assert batch is not None
        with StateSession(sink.options, "sink") as session:
            return dispatch.stage(
                session, chunks, sink=f"query:{query}", batch=batch, origin=origin
            )

    def send(self, messages: int, kind: str = "plain") -> None:
        """Send messages: plain, expired or poison."""
        headers, lives = "[]" if kind == "poison" else "{}", -1000 if kind == "expired" else None
        for _ in range(messages):
            body = b"%s %d" % (kind.encode(), len(self.sent))
            self.dotnet.send(self.source.address, headers, body, lives=lives)
            self.sent[body] = kind
        FIGURES["messages"] += messages

    # ------------------------------------------------------------ the operator

    def operate(self, key: Key, move: Literal["return_", "drop"]) -> Job:
        """Return or drop a receipt, as the operator's command does."""
        bodies = self.before[key].bodies if key in self.before else []

        def run() -> None:
            with Session(self.source, "operator") as session:
                one = session.open()
                with transaction(one, timeout=TIMEOUT):
                    if move == "return_":
                        receipts.return_(one, key, self.source.address)
                    else:
                        receipts.drop(one, key)

        def committed(gone: dict[Key, Receipt]) -> None:
            assert set(gone) <= {key}, gone
            FIGURES[f"receipts: {move}"] += len(gone)
            self.marred |= {self.owners[key[0]].query} if gone else set()
            self.retired[key[0]] = max(self.retired.get(key[0], 0), key[1] if gone else 0)
            self.expired += sum(each.expired for each in gone.values())
            if gone and move == "drop":
                self.dropped += [body for body in bodies if not self.sunk(body, key)]

        def end() -> None:
            self.in_hand.discard(key[0])
            if isinstance(job.work.error, ReceiptSettled):
                assert self.before[key].state == "settled"
            else:
                expected(job.work.error, ConnectionLost, Deadlock)

        self.in_hand.add(key[0])
        job = self.spawn(move, run, move, on_commit=committed, on_end=end)
        return job

    def may_operate(self, key: Key) -> bool:
        """
        Whether a careful operator would touch a receipt now.

        With sendsAtomicWithReceive he may at any time. Otherwise only he can know that the sink has
        not got the batch, and that no query will bring it there.
        """
        owner = self.owners[key[0]]
        if key[0] in self.in_hand:
            return False
        if owner.sink.kind == "atomic" and owner.sources == 1:
            return True
        speaking = any(driver.alive and key[0] in driver.names for driver in self.drivers)
        return not speaking and not self.bodies_of(key[:2])

    # ------------------------------------------------------------ queries

    def query(self, kind: Kind, sources: int = 1, sink: Sink | None = None) -> Checkpoint:
        """Begin a query with an empty checkpoint."""
        if sink is None:
            named = [each for each in self.sinks if each.name == kind]
            sink = named[0] if named else self._sink(kind)
        checkpoint = Checkpoint(str(uuid.uuid4()), sink, sources)
        self.checkpoints.append(checkpoint)
        return checkpoint

    def _sink(self, kind: Kind) -> Sink:
        name = kind if kind != "table" else f"table {len(self.sinks)}"
        sink = Sink(name, kind, self.targets.get(kind))
        self.sinks.append(sink)
        return sink

    def drive(self, checkpoint: Checkpoint) -> Driver | None:
        """Start a driver, unless an operator has the checkpoint's receipts in hand."""
        if checkpoint.streams & self.in_hand and checkpoint.sink.kind != "atomic":
            return None
        driver = Driver(self, checkpoint)
        self.drivers.append(driver)
        FIGURES["drivers started"] += 1
        return driver

    def alive(self, checkpoint: Checkpoint | None = None) -> list[Driver]:
        """The drivers that live, of one checkpoint or of all."""
        self.drivers = [driver for driver in self.drivers if driver.alive]
        return [each for each in self.drivers if checkpoint in {None, each.checkpoint}]

    def heard(self, driver: Driver, end: Offset) -> None:
        """Note who was given which plan; a second query is given one only as it takes over."""
        assert end.stream is not None
        self.owners[end.stream] = driver.checkpoint
        queries = self.planned[end.stream, end.batch]
        if queries and id(driver.checkpoint) not in queries:
            assert driver.latests == 1, "a plan went to a second query that had not just begun"
            self.shared.add((end.stream, end.batch))
        queries.add(id(driver.checkpoint))

    def spoken_for(self, driver: Driver) -> bool:
        """Whether another driver speaks for a stream of this one's."""
        text = f'SELECT driver FROM "{self.dotnet.state}".stream WHERE stream = %s'
        return any(
            self.dotnet.connection.execute(text.encode(), [start.stream]).fetchone()
            != (stream.claim.driver,)
            for stream, start in zip(driver.streams, driver.start, strict=True)
        )

    def copy(self, checkpoint: Checkpoint, *, elsewhere: bool) -> Checkpoint:
        """Copy a checkpoint; the second query writes the same sink, or a table of its own."""
        FIGURES["checkpoints copied"] += 1
        self.marred.add(checkpoint.query)
        sink = checkpoint.sink
        if elsewhere and sink.kind == "table":
            sink = self._sink("table")
        twin = Checkpoint(checkpoint.query, sink, checkpoint.sources)
        twin.offsets, twin.commits = dict(checkpoint.offsets), set(checkpoint.commits)
        self.checkpoints.append(twin)
        last = max(twin.offsets, default=-1)
        if last >= 0 and last not in twin.commits:
            self.shared |= {(str(each.stream), each.batch) for each in twin.offsets[last]}
        for offsets in twin.offsets.values():
            for each in offsets:
                self.planned[str(each.stream), each.batch].add(id(twin))
        return twin

    def roll_back(self, checkpoint: Checkpoint, entries: int, *, offsets: bool) -> None:
        """
        Lose the last entries of a checkpoint's logs: commits only, or the offsets with them.

        Without the first offsets a query loses its streams, but not its name. They stay where a
        copy has the same name: two queries that run at once would use one batch's number.
        """
        copies = sum(each.query == checkpoint.query for each in self.checkpoints)
        self.marred.add(checkpoint.query)
        for driver in self.alive(checkpoint):
            driver.die()
        for batch in sorted(checkpoint.offsets, reverse=True)[:entries]:
            checkpoint.commits.discard(batch)
            if offsets and (batch > 0 or copies == 1):
                FIGURES["first entries lost"] += batch == 0
                del checkpoint.offsets[batch]
        FIGURES["checkpoints rolled back"] += 1

    def lose(self, checkpoint: Checkpoint) -> Checkpoint:
        """Lose a checkpoint; its query begins again, with another id, on the same sink."""
        for driver in self.alive(checkpoint):
            driver.die()
        self.checkpoints.remove(checkpoint)
        FIGURES["checkpoints lost"] += 1
        return self.query(checkpoint.sink.kind, checkpoint.sources, checkpoint.sink)

    # ------------------------------------------------------------ the competitor

    def rival_takes(self) -> None:
        """Receive one message as the transport does, in a transaction that stays open."""
        if not self.held:
            self.rival.connection.execute("BEGIN")
        found = self.rival.receive(self.source.address)
        if found is None and not self.held:
            self.rival.connection.execute("ROLLBACK")
        if found is not None:
            assert found.body is not None
            self.held.append(found.body)

    def rival_ends(self, *, commit: bool) -> None:
        """End the competitor's transaction."""
        if not self.held:
            return
        self.rival.connection.execute("COMMIT" if commit else "ROLLBACK")
        self.taken += self.held if commit else []
        FIGURES["taken by the competitor"] += len(self.held) if commit else 0
        self.held = []
        self.observe(None)

    # ------------------------------------------------------------ the end

    def drain(self) -> None:
        """Let everyone come to an end, until all messages are where they are to stay."""
        self.rival_ends(commit=False)
        for _ in range(20):
            self.finish()
            for checkpoint in list(self.checkpoints):
                self._drain_query(checkpoint)
            left = list(self.before)
            for key in left:
                sunk = bool(self.bodies_of(key[:2]) & {*self.before[key].bodies})
                settled = self.before[key].state == "settled"
                self.operate(key, "drop" if sunk or settled else "return_")
                self.finish()
            if not left and not self._waiting():
                FIGURES["examples drained"] += 1
                return
        raise Lost(f"the queue does not get empty: {self.places()}")

    def _waiting(self) -> bool:
        name = f'"{self.source.address.schema}"."{self.source.address.table}"'
        row = self.dotnet.connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()
        return bool(row and row[0])

    def _drain_query(self, checkpoint: Checkpoint) -> None:
        """Run a query until there is nothing more; one that cannot go on begins again."""
        for second in self.alive(checkpoint)[1:]:
            second.die()
        while True:
            drivers = self.alive(checkpoint)
            driver = drivers[0] if drivers else self.drive(checkpoint)
            assert driver is not None
            driver.idle = 0
            # two peeks more: the first may look behind what others held
            while driver.alive and (not driver.idle or (driver.idle < 3 and self._waiting())):
                driver.next()
                self.finish()
            if driver.alive:
                return
            if driver.fresh and not drivers:
                checkpoint = self.lose(checkpoint)

    def close(self) -> None:
        """End an example, whatever became of it: no process, no transaction, no session is left."""
        if self.held:
            self.rival.connection.execute("ROLLBACK")
            self.held = []
        for job in list(self.jobs):
            job.work.step("die")
            job.work.thread.join(10)
        for driver in self.drivers:
            for loop in driver.streams:
                loop.close()
