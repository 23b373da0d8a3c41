"""Sending: staged by tasks, sent once by the driver, with the order and expiry of an endpoint."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.datasource.write import look_ahead
from sqlq_spark.options import SinkOptions
from sqlq_spark.receive.receipts import return_
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.sender import CHUNK_ROW
from sqlq_spark.wire.rows import Origin

from .conftest import TIMEOUT, Bench

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.send.dispatch import Staged


def chunk(
    *bodies: bytes, queue: str | None = None, lives: int | None = None, headers: str = "{}"
) -> pa.Table:
    """Make a chunk of equal messages."""
    rows = [
        {"queue": queue, "headers": headers, "body": body, "lifetime": lives} for body in bodies
    ]
    return pa.Table.from_pylist(rows, schema=CHUNK_ROW)


def stage(bench: Bench, *chunks: pa.Table, sink: str = "sink", batch: int = 0) -> Staged:
    """Run one attempt of a task."""
    return send.stage(bench.session("stage"), chunks, sink=sink, batch=batch)


def dispatch(
    bench: Bench, *staged: Staged, connection: Connection | None = None, **raw: str
) -> int:
    """Run the driver's commit."""
    return send.dispatch(connection or bench.desk, list(staged), bench.sink(**raw))


def staging(bench: Bench) -> list[tuple[Any, ...]]:
    """What is staged."""
    return bench.dotnet.state_rows("staging", "sink, batch, attempt, chunk")


def test_nothing_is_visible_before_the_dispatch_and_everything_after(bench: Bench) -> None:
    """In the order of tasks and rows; chunks of a task that died half-way go with their batch."""
    stage(bench, chunk(b"lost attempt"))
    first = stage(bench, chunk(b"1", b"2"), chunk(b"3"))
    second = stage(bench, chunk(b"4"))
    assert bench.seqs() == []

    assert dispatch(bench, first, second) == 4

    assert bench.bodies() == [b"1", b"2", b"3", b"4"]
    assert staging(bench) == []
    assert bench.dotnet.state_rows("dispatch_log", "sink, batch, messages") == [("sink", 0, 4)]


def test_a_replayed_batch_sends_nothing_twice(bench: Bench) -> None:
    """Its new chunks are dropped, whatever they hold; the dispatch log knows empty batches too."""
    assert dispatch(bench, stage(bench, batch=2)) == 0
    once = stage(bench, chunk(b"once"), batch=3)
    assert dispatch(bench, once) == 1

    assert dispatch(bench, once) == 0  # the answer of its commit was lost
    assert dispatch(bench, stage(bench, chunk(b"twice"), batch=3)) == 0
    assert dispatch(bench, stage(bench, chunk(b"older"), batch=2)) == 0

    assert bench.bodies() == [b"once"]
    assert staging(bench) == []
    assert bench.dotnet.state_rows("dispatch_log", "sink, batch, messages") == [("sink", 3, 1)]


def test_sinks_do_not_touch_one_another(bench: Bench) -> None:
    """Nor does a batch the chunks of a later one."""
    mine = stage(bench, chunk(b"mine"), batch=1)
    later = stage(bench, chunk(b"later"), batch=2)
    theirs = stage(bench, chunk(b"theirs"), sink="other", batch=1)

    dispatch(bench, mine)

    assert [row[:2] for row in staging(bench)] == [("other", 1), ("sink", 2)]
    assert dispatch(bench, theirs) == 1
    assert dispatch(bench, later) == 1
    assert bench.bodies() == [b"mine", b"theirs", b"later"]


def test_an_abort_leaves_no_chunk(bench: Bench) -> None:
    """The batch may be done again; once it was sent or given up for good, late tasks stage none."""
    stage(bench, chunk(b"x"), chunk(b"y"), sink="write:1")

    send.discard(bench.desk, "write:1", 0, final=False)
    send.discard(bench.desk, "write:2", 0, final=True)

    assert staging(bench) == []
    assert dispatch(bench, stage(bench, chunk(b"again"), sink="write:1")) == 1
    for sink in ("write:1", "write:2"):
        stage(bench, chunk(b"late"), sink=sink)
    assert staging(bench) == []
    assert bench.bodies() == [b"again"]


def test_a_missing_chunk_stops_the_whole_batch(bench: Bench) -> None:
    """Half a batch would be worse than none; the dispatch log is not advanced either."""
    first, second = stage(bench, chunk(b"1"), chunk(b"2")), stage(bench, chunk(b"3"))
    bench.dotnet.dba.forget("staging", attempt=next(iter(first.chunks)).attempt, chunk=1)

    with pytest.raises(errors.ChunksMissing) as caught:
        dispatch(bench, first, second)

    assert str(caught.value).startswith(
        "batch 0 of sink sink staged 3 chunks, but 2 were found. Nothing of it was sent."
    )
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    assert len(staging(bench)) == 2


def test_a_missing_destination_stops_the_whole_batch(bench: Bench) -> None:
    """Nothing is visible, also where the other queues are there; made, the batch goes through."""
    absent = bench.beside("absent")
    staged = stage(bench, chunk(b"1"), chunk(b"2", queue=bench.address("absent")))

    with pytest.raises(errors.QueueNotFound, match=r"absent.*sqlqueue create"):
        dispatch(bench, staged)

    assert bench.seqs() == []
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    bench.dotnet.create(absent)
    assert dispatch(bench, staged) == 2


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("queue", errors.QueueNotFound),
        ("delayedQueue", errors.DelayedQueueNotFound),
        ("subscriptionTable", errors.SubscriptionsNotFound),
    ],
)
def test_a_table_that_an_option_names_is_looked_for_before_a_task_runs(
    bench: Bench, option: str, error: type[Exception]
) -> None:
    """The error names the table, whatever the columns say; with the table there is no error."""
    absent = bench.beside("absent")
    options = bench.sink(**{option: bench.address("absent")})

    with pytest.raises(error, match="absent"):
        look_ahead(options)
    if option == "queue":
        bench.dotnet.create(absent)
    elif option == "delayedQueue":
        bench.dotnet.create_delayed(absent)
    else:
        bench.dotnet.create_subscriptions(absent)

    look_ahead(options)


def test_a_sink_whose_rows_alone_say_where_to_looks_for_nothing() -> None:
    """Nor connects: the column decides for each row."""
    look_ahead(
        SinkOptions.parse({"url": "postgresql://host.invalid/shop", "delivery": "atLeastOnce"})
    )


def test_an_unreadable_destination_stops_the_batch(bench: Bench) -> None:
    """Whatever a row's queue holds, the error says which text it was."""
    for address in [*bench.dotnet.dba.shapes.no_address, '""' * 300]:
        with pytest.raises(
            (errors.BadOption, errors.MissingOption, errors.QueueNotFound), match="queue"
        ):
            dispatch(bench, stage(bench, chunk(b"x", queue=address)))

    assert bench.seqs() == []


def test_expires_is_the_databases_clock_plus_the_lifetime(bench: Bench) -> None:
    """Whatever clock the client, or its zone, has; an endpoint finds zero to be expired at once."""
    lives = [0, 90_000, 2**31 - 1, None]
    mixed = pa.concat_tables([chunk(b"%d" % at, lives=each) for at, each in enumerate(lives)])
    staged = stage(bench, mixed)
    before = bench.dotnet.clock()

    dispatch(bench, staged)

    passed = (bench.dotnet.clock() - before) / timedelta(milliseconds=1)
    *rows, eternal = bench.dotnet.rows(bench.queue)
    assert eternal.expires is None
    for row, lifetime in zip(rows, lives[:3], strict=True):
        assert row.expires is not None
        assert 0 <= (row.expires - before) / timedelta(milliseconds=1) - (lifetime or 0) <= passed
    got = [bench.dotnet.receive(bench.queue) for _ in lives]
    assert [each and each.expired for each in got] == [True, False, False, False]


def test_every_row_has_an_id_of_its_own(bench: Bench) -> None:
    """Fresh for each row, version 4; not the message id."""
    dispatch(bench, stage(bench, chunk(*[b"x"] * 500), chunk(*[b"x"] * 500)))

    ids = [row.id for row in bench.dotnet.rows(bench.queue)]
    assert len(set(ids)) == 1000
    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {uuid.RFC_4122}


MICRO_BATCH = Origin(query_id="query", query_batch=4)
ATOMIC = "sendsAtomicWithReceive"


def passed_on(bench: Bench, *, tasks: int = 2) -> tuple[str, Staged]:
    """Receive what waits in several tasks of a micro-batch, and stage it for the same queue."""
    stream = bench.new_stream()
    edges = [-(2**63), *range(2, tasks + 1), 2**63 - 1]
    for at in range(tasks):
        task = bench.task(stream, batch=1, task=at, first=edges[at], stop=edges[at + 1])
        receive(bench.desk, task, origin=MICRO_BATCH)
    chunks = [chunk(b"passed on")]
    staged = send.stage(bench.session("stage"), chunks, sink="s", batch=4, origin=MICRO_BATCH)
    return stream, staged


def settled(bench: Bench) -> list[tuple[Any, ...]]:
    """Which receipts there are, and whether they are settled."""
    return bench.dotnet.state_rows("receipt", "task, settled")


def test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends(bench: Bench) -> None:
    """They stay for a replay until the ack, and can never be returned to the queue."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])
    stream, staged = passed_on(bench)
    assert settled(bench) == [(0, False), (1, False)]

    assert dispatch(bench, staged, transactionMode=ATOMIC) == 1

    assert bench.bodies() == [b"passed on"]
    assert settled(bench) == [(0, True), (1, True)]
    assert bench.receive(bench.task(stream))["body"].to_pylist() == [b"1"]
    with transaction(bench.desk, timeout=TIMEOUT), pytest.raises(errors.ReceiptSettled):
        return_(bench.desk, (stream, 1, 0), bench.queue)


@pytest.mark.parametrize("task", [0, 1])
def test_a_micro_batch_of_which_a_receipt_was_returned_sends_nothing(
    bench: Bench, task: int
) -> None:
    """Its messages are in the queue again: sending them on too would double them."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"])
    stream, staged = passed_on(bench)
    with transaction(bench.desk, timeout=TIMEOUT):
        return_(bench.desk, (stream, 1, task), bench.queue)

    with pytest.raises(errors.BatchClosed):
        dispatch(bench, staged, transactionMode=ATOMIC)

    assert bench.bodies() == [b"%d" % (task + 1)]
    assert {batch for (batch,) in bench.dotnet.state_rows("dispatch_log", "batch")} == {None}


def test_a_micro_batch_of_two_sources_of_which_one_was_returned_sends_nothing(
    bench: Bench,
) -> None:
    """The receipts of the other source are there, but the batch is closed for the query."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"])
    first, second = bench.new_stream(), bench.new_stream()
    for stream, edges in ((first, (-(2**63), 2)), (second, (2, 2**63 - 1))):
        task = bench.task(stream, first=edges[0], stop=edges[1])
        receive(bench.desk, task, origin=MICRO_BATCH)
    staged = send.stage(
        bench.session("stage"), [chunk(b"both")], sink="s", batch=4, origin=MICRO_BATCH
    )
    with transaction(bench.desk, timeout=TIMEOUT):
        return_(bench.desk, (first, 1, 0), bench.queue)

    with pytest.raises(errors.BatchClosed):
        dispatch(bench, staged, transactionMode=ATOMIC)

    assert bench.bodies() == [b"1"]
    assert settled(bench) == [(0, False)]


def test_a_micro_batch_without_messages_of_the_queue_is_sent(bench: Bench) -> None:
    """Another source of the query may have rows alone; its stream was acknowledged before."""
    bench.dotnet.send_many(bench.queue, [b"1"])
    stream, staged = passed_on(bench, tasks=1)
    dispatch(bench, staged, transactionMode=ATOMIC)
    bench.plan(stream, 1)
    bench.ack(stream, 1)
    later = Origin(query_id="query", query_batch=5)
    staged = send.stage(
        bench.session("stage"), [chunk(b"of a file")], sink="s", batch=5, origin=later
    )

    assert dispatch(bench, staged, transactionMode=ATOMIC) == 1

    assert bench.bodies() == [b"passed on", b"of a file"]


def test_a_query_without_a_stream_in_the_state_schema_sends_nothing(bench: Bench) -> None:
    """The likeliest mistake is a url or stateSchema that only one side has."""
    with pytest.raises(errors.NothingToSettle) as caught:
        dispatch(bench, stage(bench, chunk(b"x")), transactionMode=ATOMIC)

    said = f"query None has no stream and no receipt in schema {bench.dotnet.state} of "
    assert str(caught.value).startswith(said)
    assert "the same url and stateSchema" in str(caught.value)
    assert bench.bodies() == []


def test_sends_atomic_with_receive_needs_exactly_once(bench: Bench) -> None:
    """Straight inserts commit before the receipts could be settled."""
    with pytest.raises(errors.BadOption, match="exactlyOnce with transactionMode"):
        bench.sink(delivery="atLeastOnce", transactionMode=ATOMIC)
