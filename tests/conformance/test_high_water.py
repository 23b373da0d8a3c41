"""No source of a query receives for a batch of Spark that the query has received for before."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from servers import only

from sqlq_spark.database import transaction
from sqlq_spark.errors import CheckpointIncomplete
from sqlq_spark.options.names import names_of
from sqlq_spark.receive import receipts
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.wire.rows import Origin

from .conftest import TIMEOUT, Bench, Clock, bodies

if TYPE_CHECKING:
    from sqlq_spark.receive.driver import StreamDriver
    from sqlq_spark.wire.address import QueueAddress


@dataclass
class Query:
    """A query of Spark with a checkpoint, on a source for each of some queues."""

    bench: Bench
    queues: list[QueueAddress]
    raw: dict[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    offsets: list[tuple[Offset, ...]] = field(default_factory=list)  # offsets/N
    loops: list[StreamDriver] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def start(self, **raw: str) -> None:
        """Be a new driver."""
        self.raw |= raw
        print_address = names_of(self.bench.dotnet.url).print_address
        self.loops = [
            self.bench.loop(self.clock, queue=print_address(queue), **self.raw)
            for queue in self.queues
        ]

    def plan(self) -> None:
        """Ask the sources for the next batch, which acknowledges the one before; log it."""
        self.clock.now += 2.0
        starts = self.offsets[-1] if self.offsets else (INITIAL,) * len(self.queues)
        pairs = zip(self.loops, starts, strict=True)
        self.offsets.append(tuple(loop.latest(start) for loop, start in pairs))

    def receive(self, source: int = 0) -> list[bytes]:
        """Run the tasks of a source in the last batch."""
        number = len(self.offsets) - 1
        end = self.offsets[-1][source]
        if number and self.offsets[-2][source] == end:
            return []
        origin = Origin(query_id=self.id, query_batch=number)
        tasks = self.loops[source].tasks(end)
        return bodies(*(self.bench.receive(task, origin=origin) for task in tasks))


@pytest.fixture
def query(bench: Bench) -> Query:
    """Give a query of one source."""
    made = Query(bench, [bench.queue])
    made.start()
    return made


def send(query: Query, *sent: bytes, to: int = 0) -> list[bytes]:
    """Send messages to a source; give their bodies."""
    for body in sent:
        query.bench.dotnet.send(query.queues[to], body=body)
    return list(sent)


def refused(query: Query, source: int = 0) -> CheckpointIncomplete:
    """Run the tasks of a source, which must receive nothing."""
    before = query.bench.bodies(query.queues[source])
    with pytest.raises(CheckpointIncomplete) as caught:
        query.receive(source)
    assert query.bench.bodies(query.queues[source]) == before
    return caught.value


def batches(error: CheckpointIncomplete) -> tuple[int, int]:
    """The batch that Spark runs, and the last that was received."""
    return error.batch, error.high_water


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_lost_first_entry_is_an_error_that_names_the_files(
    query: Query, *, acknowledged: bool
) -> None:
    """Whether Spark has only received the lost batch, or has planned the one after it."""
    send(query, b"0")
    query.plan()
    query.receive()
    send(query, b"1")
    if acknowledged:
        query.plan()
        query.receive()
        send(query, b"2")
    query.offsets.clear()
    query.start()
    query.plan()

    error = refused(query)

    last, files = (1, "0 to 1") if acknowledged else (0, "0")
    assert (error.query, error.batch, error.high_water) == (query.id, 0, last)
    assert f"files of batch {files} in its folders offsets and commits" in str(error)


def test_without_the_lost_entries_a_query_goes_on_behind_them_after_data_loss(query: Query) -> None:
    """With failOnDataLoss=false the messages wait for the first batch that no sink can hold."""
    for body in (b"0", b"1"):
        send(query, body)
        query.plan()
        query.receive()
    send(query, b"2")
    query.offsets.clear()
    query.start(failOnDataLoss="false")

    got = []
    for _ in range(3):
        query.plan()
        got.append((query.receive(), query.receive()))

    assert got == [([], []), ([], []), ([b"2"], [b"2"])]


def test_a_receipt_is_not_handed_out_for_another_batch_of_its_query(query: Query) -> None:
    """As when another kind of source is in the query, and several last entries are lost."""
    sent = send(query, b"0")
    query.plan()
    query.offsets.insert(0, query.offsets[0])
    query.offsets[0] = (INITIAL,)
    assert query.receive() == sent
    query.offsets.pop(0)

    assert batches(refused(query)) == (0, 1)
    query.start(failOnDataLoss="false")
    assert query.receive() == sent


@pytest.mark.parametrize("move", ["return", "drop"])
def test_what_an_operator_returned_or_dropped_closes_the_batch_of_the_query(
    bench: Bench, query: Query, move: str
) -> None:
    """The sink may hold it; a new checkpoint receives what was returned."""
    sent = send(query, b"0")
    query.plan()
    query.receive()
    stream = query.offsets[0][0].stream
    assert stream is not None
    with transaction(bench.desk, timeout=TIMEOUT):
        if move == "return":
            receipts.return_(bench.desk, (stream, 1, 0), bench.queue)
        else:
            receipts.drop(bench.desk, (stream, 1, 0))
            sent = send(query, b"1")
    query.offsets.clear()
    query.start()
    query.plan()

    assert batches(refused(query)) == (0, 0)
    other = Query(bench, [bench.queue])
    other.start()
    other.plan()
    assert other.receive() == sent


@only("postgresql", "generate_series")
def test_the_first_plan_of_a_stream_is_small_beside_many_old_ones(
    bench: Bench, query: Query
) -> None:
    """Its query is not known yet, so it has the marks of those that were seen last."""
    send(query, b"0")
    query.plan()
    query.receive()
    query.plan()
    bench.dotnet.execute(f"""
        INSERT INTO "{bench.dotnet.state}".stream
               (stream, queue, driver, query_id, query_batch, seen)
        SELECT gen_random_uuid(), 'old', 'gone', gen_random_uuid(), n, now() - n * interval '1 h'
          FROM generate_series(1, 10000) AS n""")
    send(query, b"1")
    query.offsets.clear()
    query.start()
    query.plan()

    assert batches(refused(query)) == (0, 0)
    sizes = bench.dotnet.state_rows("stream", "coalesce(length(plan_after), 0)")
    assert 20_000 < max(sizes)[0] < 25_000
