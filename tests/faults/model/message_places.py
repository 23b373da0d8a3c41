"""
Where every message is, asked of the database after each commit.

It must be in one place:

    queue, receipt, sink, error queue, expired and counted, taken by a competitor, dropped

In a receipt and in the sink at once: only while the sink has that very receipt's batch, until the
ack. In two sinks: only where a second query runs on a copy of the checkpoint, and only the batch
that was in flight. A receipt moves as MOVES says, and there is always someone who will read it.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

from payloads import of_receipt
from receipt_moves import MOVES

from .queries import Receipt
from .steps import FIGURES

if TYPE_CHECKING:
    from conformance.transport import PostgreSQL
    from receipt_moves import State

    from sqlq_spark.options import SinkOptions, SourceOptions
    from sqlq_spark.wire.address import QueueAddress

    from .queries import Checkpoint, Job, Key, Kind, Sink


# state tables that hold what a run leaves
EMPTIED = (
    "stream",
    "receipt",
    "receipt_page",
    "staging",
    "staging_page",
    "dispatch_log",
)


@lru_cache(maxsize=10_000)
def bodies_in(payload: bytes) -> list[bytes]:
    """The messages of a receipt, which is looked at after every commit."""
    bodies: list[bytes] = of_receipt(payload)["body"].to_pylist()
    return bodies


class Lost(AssertionError):
    """A message is not in exactly one place."""


class Places:
    """What was sent, and what became of it."""

    def __init__(
        self,
        dotnet: PostgreSQL,
        source: SourceOptions,
        errors: QueueAddress,
        targets: dict[Kind, SinkOptions],
    ) -> None:
        self.dotnet, self.source, self.errors, self.targets = dotnet, source, errors, targets
        self.begin()

    def begin(self) -> None:
        """Begin a new example with nothing."""
        targets = [each.address for each in self.targets.values()]
        queues = [self.source.address, self.errors, *targets]
        named = [f'"{self.dotnet.state}"."{table}"' for table in EMPTIED]
        named += [f'"{queue.schema}"."{queue.table}"' for queue in queues if queue]
        self.dotnet.connection.execute("; ".join(f"DELETE FROM {name}" for name in named).encode())
        self.sent: dict[bytes, str] = {}
        self.taken: list[bytes] = []  # by the competitor
        self.dropped: list[bytes] = []
        self.expired = 0  # messages whose count went with a receipt
        self.sinks: list[Sink] = []
        self.owners: dict[str, Checkpoint] = {}  # stream → a checkpoint that knew it
        self.retired: dict[str, int] = {}  # stream → the batch that an operator closed
        self.marred: set[str] = set()  # queries whose checkpoint lost entries, or was copied
        self.shared: set[tuple[str, int]] = set()  # batches in flight when a copy came in
        self.before: dict[Key, Receipt] = {}

    def observe(self, job: Job | None) -> None:
        """After a commit: the receipts moved as their table says, and nothing is lost."""
        now, before = self.receipts(), self.before
        gone = {key: before[key] for key in before.keys() - now.keys()}
        for key in before.keys() | now.keys():
            was: State = before[key].state if key in before else "none"
            state: State = now[key].state if key in now else "none"
            if was != state:
                assert job is not None
                assert job.move is not None, f"{job.work.name} moved {key} from {was} to {state}"
                assert MOVES.get((was, job.move)) == state, f"{job.move}: {was} → {state}"
                FIGURES[f"moves: {job.move}"] += 1
        self.before = now
        if job is not None and job.on_commit:
            job.on_commit(gone)
        self.check()

    def check(self) -> None:
        """
        See that every message is in one place.

        Raises:
            Lost: it is in none, or in several.
        """
        found, expired, counted = *self.places(), 0
        for body, kind in self.sent.items():
            where = found.pop(body, [])
            counted += kind == "expired" and not where
            if len(where) == 1 or (kind == "expired" and not where):
                continue
            keys = {sink.keys.get(body) for sink in self.sinks} - {None}
            sinks = {sink.name for sink in self.sinks}
            twice = {*where} <= sinks and len({*where}) == len(where) and len(keys) == 1
            if not (twice and {key[:2] for key in keys if key} <= self.shared):
                raise Lost(f"{kind} message {body!r} is in {where or 'no place'}")
        if found:
            raise Lost(f"unknown messages: {found}")
        if counted != expired:
            raise Lost(f"{counted} messages expired, but {expired} were counted")
        self._check_receipts()

    def places(self) -> tuple[dict[bytes, list[str]], int]:
        """Where each message is, and how many expired ones were counted anywhere."""
        found: dict[bytes, list[str]] = defaultdict(list)
        queues = {"waiting": self.source.address, "error": self.errors}
        queues |= {kind: each.address for kind, each in self.targets.items() if each.address}
        text = " UNION ALL ".join(
            f'SELECT \'{name}\', body FROM "{queue.schema}"."{queue.table}"'
            for name, queue in queues.items()
        )
        text += f"""
            UNION ALL
            SELECT 'expired', int8send(coalesce(sum(expired), 0)::bigint)
              FROM "{self.dotnet.state}".stream"""
        expired = self.expired + sum(receipt.expired for receipt in self.before.values())
        for name, value in self.dotnet.connection.execute(text.encode(), binary=True):
            if name == "expired":
                expired += int.from_bytes(value)
            else:
                found[value].append(name)
        for name, bodies in [
            ("competitor", self.taken),
            ("dropped", self.dropped),
            *((sink.name, each) for sink in self.sinks for each in sink.batches.values()),
        ]:
            for body in bodies:
                found[body].append(name)
        for key, receipt in self.before.items():
            for body in receipt.bodies:
                if not self.sunk(body, key):
                    found[body].append(f"receipt {key}")
        return found, expired

    def sunk(self, body: bytes, key: Key) -> bool:
        """Whether a sink has a message by this receipt."""
        return any(sink.keys.get(body) == key for sink in self.sinks)

    def bodies_of(self, batch: tuple[str, int]) -> set[bytes]:
        """All messages that any sink got by a batch."""
        return {body for sink in self.sinks for body, key in sink.keys.items() if key[:2] == batch}

    def _check_receipts(self) -> None:
        """What lies in a receipt can still be read; settled is sent, and sent is settled."""
        for key, receipt in self.before.items():
            owner = self.owners.get(key[0])
            sent = [self.sunk(body, key) for body in receipt.bodies]
            if receipt.closed and key[1] > self.retired.get(key[0], 0):
                raise Lost(f"receipt {key} is of a closed batch: no one will read it")
            if receipt.state == "settled" and not all(sent):
                raise Lost(f"receipt {key} is settled, but not all of it was sent")
            if owner and owner.sink.kind == "atomic" and receipt.state == "held" and any(sent):
                raise Lost(f"receipt {key} was sent, but is not settled")

    def receipts(self) -> dict[Key, Receipt]:
        """All receipts, opened."""
        state = self.dotnet.state
        text = f"""
            SELECT r.stream, r.batch, r.task, r.settled, r.expired, r.batch <= o.acked_batch,
                   coalesce(nullif(r.payload, ''),
                            (SELECT string_agg(p.payload, '' ORDER BY page)
                               FROM "{state}".receipt_page AS p
                              WHERE (p.stream, p.batch, p.task) = (r.stream, r.batch, r.task)))
              FROM "{state}".receipt AS r JOIN "{state}".stream AS o ON o.stream = r.stream"""
        rows = self.dotnet.connection.execute(text.encode(), binary=True).fetchall()
        return {
            (stream, batch, task): Receipt(
                "settled" if settled else "held",
                bodies_in(payload),
                expired,
                closed,
            )
            for stream, batch, task, settled, expired, closed, payload in rows
        }

    def acked(self, stream: str | None) -> int:
        """The last batch of a stream that is closed."""
        text = f'SELECT acked_batch FROM "{self.dotnet.state}".stream WHERE stream = %s'
        row = self.dotnet.connection.execute(text.encode(), [stream]).fetchone()
        return 0 if row is None else int(row[0])
