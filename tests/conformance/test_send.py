"""Sending: staged by tasks, sent once by the driver, with the order and expiry of an endpoint."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sqlq_spark.database import transaction
from sqlq_spark.errors import (
    BadOption,
    ChunksMissing,
    MissingOption,
    NothingToSettle,
    QueueNotFound,
    ReceiptSettled,
)
from sqlq_spark.receive.receipts import return_
from sqlq_spark.receive.task import receive
from sqlq_spark.send import at_least_once, dispatch_log
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import staging as send_staging
from sqlq_spark.send.messages import CHUNK_ROW, Sender
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import Origin

from .conftest import TIMEOUT, Bench, Strike, strikes
from .test_install import HOSTILE

if TYPE_CHECKING:
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.send.staging import Staged


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
    return send_staging.stage(bench.session("stage"), chunks, sink=sink, batch=batch)


def dispatch(
    bench: Bench, *staged: Staged, connection: Connection | None = None, **raw: str
) -> int:
    """Run the driver's commit."""
    return send.dispatch(connection or bench.desk, list(staged), bench.sink(**raw))


def staging(bench: Bench) -> list[tuple[Any, ...]]:
    """What is staged."""
    return bench.dotnet.state_rows("staging", "sink, batch, attempt, chunk")


# ----- exactly once ----------------------------------------------------------------------------


def test_nothing_is_visible_before_the_dispatch_and_everything_after(bench: Bench) -> None:
    """In the order of tasks and rows; the staging is empty again."""
    first = stage(bench, chunk(b"1", b"2"), chunk(b"3"))
    second = stage(bench, chunk(b"4"))
    assert bench.seqs() == []

    assert dispatch(bench, first, second) == 4

    assert bench.bodies() == [b"1", b"2", b"3", b"4"]
    assert staging(bench) == []
    assert bench.dotnet.state_rows("dispatch_log", "sink, batch, messages") == [("sink", 0, 4)]


def test_a_replayed_batch_sends_nothing_twice(bench: Bench) -> None:
    """Its new chunks are dropped, whatever they hold."""
    dispatch(bench, stage(bench, chunk(b"once"), batch=3))

    assert dispatch(bench, stage(bench, chunk(b"twice"), batch=3)) == 0
    assert dispatch(bench, stage(bench, chunk(b"older"), batch=2)) == 0

    assert bench.bodies() == [b"once"]
    assert staging(bench) == []


def test_a_dispatch_done_again_sends_nothing_twice(bench: Bench) -> None:
    """The answer of its commit was lost: the chunks are gone, the ledger knows."""
    staged = stage(bench, chunk(b"once"))
    dispatch(bench, staged)

    assert dispatch(bench, staged) == 0

    assert bench.bodies() == [b"once"]


def test_only_the_winning_attempts_are_sent(bench: Bench) -> None:
    """A task that died half-way leaves chunks: they go with its batch."""
    stage(bench, chunk(b"lost attempt"))
    won = stage(bench, chunk(b"won"))

    dispatch(bench, won)

    assert bench.bodies() == [b"won"]
    assert staging(bench) == []


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
    """And sends nothing; the batch may be done anew."""
    stage(bench, chunk(b"x"), chunk(b"y"))

    send_staging.discard(bench.desk, "sink", 0, final=False, timeout=5)

    assert staging(bench) == []
    assert bench.seqs() == []
    assert dispatch(bench, stage(bench, chunk(b"again"))) == 1


def test_a_task_that_comes_late_stages_nothing(bench: Bench) -> None:
    """Its batch was sent by another attempt, or given up for good."""
    dispatch(bench, stage(bench, chunk(b"sent"), sink="write:1"))
    send_staging.discard(bench.desk, "write:2", 0, final=True, timeout=5)

    stage(bench, chunk(b"late"), sink="write:1")
    stage(bench, chunk(b"late"), sink="write:2")

    assert staging(bench) == []
    assert bench.bodies() == [b"sent"]


def test_a_missing_chunk_stops_the_whole_batch(bench: Bench) -> None:
    """Half a batch would be worse than none; the ledger is not advanced either."""
    first, second = stage(bench, chunk(b"1"), chunk(b"2")), stage(bench, chunk(b"3"))
    bench.dotnet.dba.forget("staging", attempt=first.attempt, chunk=1)

    with pytest.raises(ChunksMissing) as caught:
        dispatch(bench, first, second)

    assert str(caught.value).startswith(
        "batch 0 of sink sink staged 3 chunks, but 2 were found. Nothing of it was sent."
    )
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    assert len(staging(bench)) == 2


def test_a_batch_without_rows_is_entered_in_the_ledger(bench: Bench) -> None:
    """Its replay, with rows, is as little sent as any other."""
    assert dispatch(bench, stage(bench)) == 0

    assert bench.dotnet.state_rows("dispatch_log", "sink, batch, messages") == [("sink", 0, 0)]
    assert send.dispatch(bench.desk, [], bench.sink()) == 0


def test_two_drivers_at_once_send_a_batch_once(bench: Bench) -> None:
    """The second waits for the first, then finds it done."""
    staged = stage(bench, chunk(b"once"))
    first, second = bench.open("first"), bench.open("second")
    first.run("begin")
    assert dispatch_log.enter(first, "sink", 0, 1)
    other = bench.thread(lambda: dispatch(bench, staged, connection=second))
    bench.blocked("second")
    login = bench.dotnet.state_rows("dispatch_log", "login")[0][0]
    send.Dispatch(first, [staged], bench.sink(), login).copy_chunks()
    first.run("commit")

    assert other.result(timeout=TIMEOUT) == 0
    assert bench.bodies() == [b"once"]


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_a_send_is_answered_by_doing_it_again(
    bench: Bench,
) -> None:
    """Each message is in its queue once, whether the statement or only its answer was lost."""
    struck: list[str] = []
    chunks = [chunk(b"1", lives=10**8), chunk(b"2")]
    for batch, (at, after) in enumerate(strikes(struck)):
        bench.dotnet.dba.empty(bench.queue)
        name = f"struck {at}"
        bench.watched = True
        bench.strike = Strike(at, partial(bench.dotnet.kill, f"{bench.name} {name}"), after)
        session = bench.session(name)

        staged = send_staging.stage(session, chunks, sink="sink", batch=batch)
        session.do(partial(send.dispatch, staged=[staged], options=bench.sink()))

        bench.watched = False
        assert bench.bodies() == [b"1", b"2"]
        assert staging(bench) == []
        if bench.strike.fell is not None and not after:
            struck.append(bench.strike.fell)

    assert {"stage", "advance", "chunks", "chunk", "load", "discard"} <= set(struck)
    assert struck.count("commit") == 3


# ----- at least once ---------------------------------------------------------------------------


def test_at_least_once_sends_chunk_by_chunk_and_needs_no_state_tables(bare: Bench) -> None:
    """An earlier chunk stays sent when a later one fails."""

    def chunks() -> Any:
        yield chunk(b"1")
        yield chunk(b"2")
        message = "the task fails"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError):
        at_least_once.send_now(bare.session(), chunks(), bare.sink(delivery="atLeastOnce"))

    assert bare.bodies() == [b"1", b"2"]


# ----- destinations ----------------------------------------------------------------------------


def test_each_row_goes_where_it_says_in_its_order(bench: Bench) -> None:
    """Those that say nothing go to the sink's queue."""
    error = bench.address("error")
    rows = [(None, b"1"), (error, b"2"), (bench.printed, b"3"), (error, b"4"), (None, b"5")]
    mixed = pa.concat_tables([chunk(body, queue=queue) for queue, body in rows])

    assert dispatch(bench, stage(bench, mixed)) == 5

    assert sorted(map(bytes, filter(None, bench.bodies()))) == [b"1", b"3", b"5"]
    own = [body for body in bench.bodies() if body != b"3"]
    assert own == [b"1", b"5"]
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [b"2", b"4"]


def test_rows_without_a_queue_go_nowhere_else(bench: Bench) -> None:
    """Beside rows of one other queue: each message is in one queue, and once."""
    error = bench.address("error")
    mixed = pa.concat_tables([chunk(b"mine"), chunk(b"theirs", queue=error)])

    dispatch(bench, stage(bench, mixed))

    assert bench.bodies() == [b"mine"]
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [b"theirs"]


def test_a_queue_named_in_two_ways_keeps_the_order_of_its_messages(bench: Bench) -> None:
    """Quoted or not, or by the sink's option: it is one queue, and its rows keep their order."""
    rows = [(None, b"1"), (bench.printed, b"2"), (None, b"3")]
    mixed = pa.concat_tables([chunk(body, queue=queue) for queue, body in rows])

    dispatch(bench, stage(bench, mixed))

    assert bench.bodies() == [b"1", b"2", b"3"]


def test_a_missing_destination_stops_the_whole_batch(bench: Bench) -> None:
    """Nothing is visible, also where the other queues are there; made, the batch goes through."""
    absent = QueueAddress("absent", bench.dotnet.schema)
    staged = stage(bench, chunk(b"1"), chunk(b"2", queue=bench.address("absent")))

    with pytest.raises(QueueNotFound, match=r"absent.*sqlqueue create"):
        dispatch(bench, staged)

    assert bench.seqs() == []
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]
    bench.dotnet.create(absent)
    assert dispatch(bench, staged) == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_destination_is_only_a_name(bench: Bench, name: str) -> None:
    """It comes out of a column, untrusted: found where such a queue is, else not found."""
    quoted = bench.desk.canonical(QueueAddress(name, bench.dotnet.schema))
    with pytest.raises(QueueNotFound):
        dispatch(bench, stage(bench, chunk(b"x", queue=quoted)))
    queue = QueueAddress(name, bench.dotnet.schema)
    bench.dotnet.create(queue)

    dispatch(bench, stage(bench, chunk(b"x", queue=quoted)))

    assert [row.body for row in bench.dotnet.rows(queue)] == [b"x"]
    assert bench.seqs() == []


UNREADABLE = {
    "postgresql": ["", '"unclosed', '"a"b"', '"a"."b"."c"', "x" * 56, "nul\0", '"a" b', '""'],
    "sqlserver": ["", "[unclosed", "[a]b]", "a@b@c@d", "x" * 129, "nul\0", "[a] b", "[]"],
}


@pytest.mark.parametrize("at", range(8))
def test_an_unreadable_destination_stops_the_batch(bench: Bench, at: int) -> None:
    """Whatever a row's queue holds, the error says which text it was."""
    name = UNREADABLE[bench.dotnet.dialect][at]
    with pytest.raises((BadOption, MissingOption), match="queue"):
        dispatch(bench, stage(bench, chunk(b"x", queue=name)))

    assert bench.seqs() == []


# ----- rows ------------------------------------------------------------------------------------


def later(moment: datetime | None, before: datetime) -> float:
    """Milliseconds between a row's expiry and the database's clock."""
    assert moment is not None
    return (moment - before).total_seconds() * 1000


def test_expires_is_the_databases_clock_plus_the_lifetime(bench: Bench) -> None:
    """Whatever clock the client, or its zone, has."""
    mixed = pa.concat_tables(
        [
            chunk(b"1", lives=90_000),
            chunk(b"2"),
            chunk(b"3", lives=0),
            chunk(b"4", lives=2**31 - 1),
        ]
    )
    staged = stage(bench, mixed)
    before = bench.dotnet.clock()

    dispatch(bench, staged)

    passed = later(bench.dotnet.clock(), before)
    one, two, three, four = bench.dotnet.rows(bench.queue)
    assert 90_000 <= later(one.expires, before) <= 90_000 + passed
    assert two.expires is None
    assert 0 <= later(three.expires, before) <= passed
    assert 2**31 - 1 <= later(four.expires, before) <= 2**31 - 1 + passed


def test_every_row_has_an_id_of_its_own(bench: Bench) -> None:
    """Fresh for each row, version 4; not the message id."""
    dispatch(bench, stage(bench, chunk(*[b"x"] * 500), chunk(*[b"x"] * 500)))

    ids = [row.id for row in bench.dotnet.rows(bench.queue)]
    assert len(set(ids)) == 1000
    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {uuid.RFC_4122}


def test_the_endpoint_receives_what_we_send(bench: Bench) -> None:
    """Zero bytes are not NULL; headers are byte for byte what was staged."""
    text = '{"a\\/b":"\\uD83D\\uDE80","n":null,"ü":"ß"}'
    dispatch(bench, stage(bench, chunk(b"", b"\xef\xbb\xbf\x00\xff", headers=text, lives=10**6)))

    first, second = bench.dotnet.receive(bench.queue), bench.dotnet.receive(bench.queue)

    assert first is not None
    assert second is not None
    assert (first.expired, first.headers, first.body) == (False, text, b"")
    assert second.body == b"\xef\xbb\xbf\x00\xff"
    assert bench.dotnet.receive(bench.queue) is None


def test_the_endpoint_drops_what_we_sent_with_no_life_left(bench: Bench) -> None:
    """By the same clock and the same comparison."""
    dispatch(bench, stage(bench, chunk(b"dead", lives=0)))

    got = bench.dotnet.receive(bench.queue)

    assert got is not None
    assert got.expired


def test_a_frame_becomes_messages_that_we_receive_again(bench: Bench) -> None:
    """Rows → chunks → queue → task, whole."""
    batch = pa.RecordBatch.from_pydict(
        {"body": [b"%d" % at for at in range(1000)], "timeToBeReceived": [None, "00:10:00"] * 500}
    )
    sender = Sender(options=bench.sink(messageType="Shop.Placed"), partition=0)

    dispatch(bench, stage(bench, *sender.chunks([batch])))

    rows = bench.receive(bench.task(bench.new_stream(), errors=bench.errors))
    assert rows["body"].to_pylist() == batch["body"].to_pylist()
    assert rows["expires"].null_count == 500
    assert '"NServiceBus.EnclosedMessageTypes":"Shop.Placed"' in rows["headers"][0].as_py()


def test_a_body_of_100_mb_is_sent(bench: Bench) -> None:
    """A chunk of one message."""
    batch = pa.RecordBatch.from_pydict({"body": [b"\xa5" * 100_000_000, b"small"]})
    sender = Sender(options=bench.sink(), partition=0)

    dispatch(bench, stage(bench, *sender.chunks([batch])))

    assert [len(body or b"") for body in bench.bodies()] == [100_000_000, 5]


@pytest.mark.parametrize("older", ["extra columns in another order", "bigint seq", "other widths"])
def test_older_tables_are_sent_to(bench: Bench, older: str) -> None:
    """Columns go by name."""
    bench.dotnet.dba.drop(bench.queue)
    bench.dotnet.dba.on(bench.queue, bench.dotnet.dba.shapes.older[older])

    dispatch(bench, stage(bench, chunk(b"x", lives=1000, headers='{"a":"b"}')))

    (row,) = bench.dotnet.rows(bench.queue)
    assert (row.headers, row.body, row.seq) == ('{"a":"b"}', b"x", 1)
    assert row.expires is not None


# ----- sends atomic with receive ---------------------------------------------------------------

MICRO_BATCH = Origin(query_id="query", query_batch=4)
ATOMIC = "sendsAtomicWithReceive"


def passed_on(bench: Bench, *, tasks: int = 2) -> tuple[str, Staged]:
    """Receive what waits in several tasks of a micro-batch, and stage it for the same queue."""
    stream = bench.new_stream()
    edges = [-(2**63), *range(2, tasks + 1), 2**63 - 1]
    for at in range(tasks):
        task = bench.task(stream, batch=1, task=at, first=edges[at], stop=edges[at + 1])
        receive(bench.desk, task, timeout=TIMEOUT, origin=MICRO_BATCH)
    chunks = [chunk(b"passed on")]
    staged = send_staging.stage(
        bench.session("stage"), chunks, sink="s", batch=4, origin=MICRO_BATCH
    )
    return stream, staged


def settled(bench: Bench) -> list[tuple[Any, ...]]:
    """Which receipts there are, and whether they are settled."""
    return bench.dotnet.state_rows("receipt", "task, settled")


def test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends(bench: Bench) -> None:
    """They stay for a replay until the ack, and can never be returned to the queue."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"], lives=None)
    stream, staged = passed_on(bench)
    assert settled(bench) == [(0, False), (1, False)]

    assert dispatch(bench, staged, transactionMode=ATOMIC) == 1

    assert bench.bodies() == [b"passed on"]
    assert settled(bench) == [(0, True), (1, True)]
    assert bench.receive(bench.task(stream))["body"].to_pylist() == [b"1"]
    with transaction(bench.desk, timeout=TIMEOUT), pytest.raises(ReceiptSettled):
        return_(bench.desk, stream, 1, 0, bench.queue)


@pytest.mark.parametrize("task", [0, 1])
def test_a_micro_batch_of_which_a_receipt_was_returned_sends_nothing(
    bench: Bench, task: int
) -> None:
    """Its messages are in the queue again: sending them on too would double them."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"], lives=None)
    stream, staged = passed_on(bench)
    with transaction(bench.desk, timeout=TIMEOUT):
        return_(bench.desk, stream, 1, task, bench.queue)

    with pytest.raises(NothingToSettle):
        dispatch(bench, staged, transactionMode=ATOMIC)

    assert bench.bodies() == [b"%d" % (task + 1)]
    assert bench.dotnet.state_rows("dispatch_log", "batch") == [(None,)]


def test_without_a_stream_of_ours_nothing_can_be_settled(bench: Bench) -> None:
    """The error says what the mode needs."""
    staged = stage(bench, chunk(b"x"))

    with pytest.raises(NothingToSettle) as caught:
        dispatch(bench, staged, transactionMode=ATOMIC)

    said = f"micro-batch None of query None has no open receipts in schema {bench.dotnet.state} of "
    assert str(caught.value).startswith(said)
    assert bench.seqs() == []


def test_sends_atomic_with_receive_needs_exactly_once(bench: Bench) -> None:
    """Straight inserts commit before the receipts could be settled."""
    with pytest.raises(BadOption, match="exactlyOnce with transactionMode"):
        bench.sink(delivery="atLeastOnce", transactionMode=ATOMIC)
