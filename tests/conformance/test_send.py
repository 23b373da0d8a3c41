"""Sending: staged by tasks, and sent once by the driver, which may wait for a backlog."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import Destinations
from sqlq_spark.database.trust import INSERT, use
from sqlq_spark.datasource.write import BatchWriter, Written
from sqlq_spark.options.connection import Trusted
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.chunk import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.dispatch import Staged
from sqlq_spark.send.insert import Inserts
from sqlq_spark.send.throttle import (
    DestinationNames,
    check_source,
    find_backlog,
    wait_before_chunks,
    wait_before_dispatch,
)
from sqlq_spark.wire.rows import NO_SPARK_BATCH, SparkBatch

from .conftest import TIMEOUT, Bench, bodies

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions


def chunk(*bodies: bytes, queue: str | None = None, lives: int | None = None) -> pa.Table:
    """Make a chunk of equal messages."""
    rows = [{"queue": queue, "headers": "{}", "body": body, "lifetime": lives} for body in bodies]
    return pa.Table.from_pylist(rows, schema=CHUNK_ROW)


def stage(bench: Bench, *chunks: pa.Table, sink: str = "sink", batch: int = 0) -> Staged:
    """Run one attempt of a task."""
    return send.stage(bench.new_session("stage"), chunks, sink=sink, sink_batch=batch)


def dispatch(
    bench: Bench, *staged: Staged, connection: Connection | None = None, **raw: str
) -> int:
    """Run the driver's commit."""
    return send.dispatch(connection or bench.connection, list(staged), bench.sink_options(**raw))


def staging(bench: Bench) -> list[tuple[Any, ...]]:
    """What is staged."""
    return bench.dotnet.state_rows("staging", "sink, sink_batch, attempt, chunk")


def logged(bench: Bench) -> list[tuple[Any, ...]]:
    """The batches that the dispatch log has as sent."""
    return [
        row for row in bench.dotnet.state_rows("dispatch_log", "sink_batch, messages") if any(row)
    ]


def test_nothing_is_visible_before_the_dispatch_and_everything_after(bench: Bench) -> None:
    """Messages keep their order and have ids of their own. A lost attempt is dropped."""
    stage(bench, chunk(b"lost attempt"))
    first = stage(bench, chunk(b"1", b"2"), chunk(b"3"))
    second = stage(bench, chunk(*[b"4"] * 500))
    assert bench.waiting_seqs() == []

    assert dispatch(bench, first, second) == 503

    assert bench.waiting_bodies() == [b"1", b"2", b"3", *[b"4"] * 500]
    ids = {row.id for row in bench.dotnet.rows(bench.queue)}
    assert (len(ids), {each.version for each in ids}) == (503, {7})
    assert staging(bench) == []
    assert logged(bench) == [(0, 503)]


def test_no_statement_of_an_endpoint_waits_for_our_open_dispatch(bench: Bench) -> None:
    """The new messages are not visible yet. Endpoints receive the older ones meanwhile."""
    bench.dotnet.send(bench.queue, body=b"before")
    staged, connection = stage(bench, chunk(b"ours")), bench.open_connection("ours")
    hasty = bench.dotnet.consumer(patience=0.3)

    connection.begin()
    send.lock_exclusive(connection, "sink")
    inserts = Inserts(connection, bench.sink_options())
    for each in send.read_chunks(connection, [staged]):
        inserts.insert(each)
    hasty.send(bench.queue, body=b"after")
    assert hasty.peek(bench.queue) >= 2
    during = [hasty.receive(bench.queue) for _ in range(3)]
    hasty.purge_expired(bench.queue)
    assert hasty.purge(bench.queue) == 0
    connection.run("commit")

    assert [each and each.body for each in during] == [b"before", b"after", None]
    assert bench.waiting_bodies() == [b"ours"]


def test_a_replayed_batch_sends_nothing_twice(bench: Bench) -> None:
    """Its new chunks are dropped, whatever they hold. The dispatch log knows empty batches too."""
    assert dispatch(bench, stage(bench, batch=2)) == 0
    once = stage(bench, chunk(b"once"), batch=3)
    assert dispatch(bench, once) == 1

    assert dispatch(bench, once) == 0  # the answer of its commit was lost
    assert dispatch(bench, stage(bench, chunk(b"twice"), batch=3)) == 0
    assert dispatch(bench, stage(bench, chunk(b"older"), batch=2)) == 0

    assert bench.waiting_bodies() == [b"once"]
    assert staging(bench) == []
    assert logged(bench) == [(3, 1)]


Given: TypeAlias = "dict[str, str | None]"
A_QUEUE: Given = {"queue": "A"}
B_QUEUE: Given = {"queue": "B"}
A_TOPIC: Given = {"queue": None, "topics": "Shop.A"}
B_TOPIC: Given = {"queue": None, "topics": "Shop.B"}
BOTH_TOPICS: Given = {"queue": None, "topics": "Shop.B,Shop.A"}
BY_COLUMNS: Given = {"queue": None}
PAIRS: dict[str, tuple[Given, Given]] = {
    "another queue": (A_QUEUE, B_QUEUE),
    "other topics": (A_TOPIC, B_TOPIC),
    "fewer topics": (BOTH_TOPICS, B_TOPIC),
    "topics for a queue": (A_QUEUE, A_TOPIC),
    "a queue for columns": (BY_COLUMNS, A_QUEUE),
    "columns for topics": (A_TOPIC, BY_COLUMNS),
}


def named(bench: Bench, given: Given) -> SinkOptions:
    """Options of a sink whose queue, if it has one, is beside the queue of the bench."""
    queue, table = given.get("queue"), bench.table_beside("SubscriptionRouting")
    own = {**given, "subscriptionTable": bench.connection.printed(table)}
    return bench.sink_options(**own | {"queue": bench.address(queue) if queue else None})


def write(bench: Bench, options: SinkOptions, *bodies: bytes, batch: int = 7) -> int:
    """Write a batch of the name `bill`; rows name the queue A where no option does."""
    chosen = options.address is None and options.topics is None
    rows = chunk(*bodies, queue=bench.address("A") if chosen else None)
    if options.topics:
        topics = pa.array([list(options.topics)] * len(bodies), CHUNK_TOPICS.type)
        rows = rows.append_column(CHUNK_TOPICS, topics)
    staged = stage(bench, *([rows] if bodies else []), sink="app:bill", batch=batch)
    return send.dispatch(bench.connection, [staged], options)


@pytest.fixture
def two(bench: Bench) -> Bench:
    """Give a bench with the queues A and B, each of which is subscribed to a topic."""
    bench.create_queue("A")
    bench.create_queue("B")
    table = bench.table_beside("SubscriptionRouting")
    bench.dotnet.create_subscriptions(table)
    for name in ("A", "B"):
        bench.dotnet.subscribe(table, name, f"Shop.{name}", bench.address(name))
    return bench


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("empty", [True, False])
def test_two_writes_of_one_name_are_an_error(two: Bench, pair: str, *, empty: bool) -> None:
    """Their destinations differ. The second write would be skipped as a repeated one."""
    first, second = (named(two, given) for given in PAIRS[pair])
    write(two, first, *([] if empty else [b"first"]))
    before = [two.waiting_bodies("A"), two.waiting_bodies("B")]

    with pytest.raises(errors.OtherDestination) as caught:
        write(two, second, b"second")

    assert [caught.value.application, caught.value.sink_batch] == ["bill", 7]
    assert caught.value.found == send.describe_destination(two.connection, first)
    assert caught.value.asked == send.describe_destination(two.connection, second)
    assert {caught.value.found, caught.value.asked} <= {*str(caught.value).split("'")}
    assert "Give each write a txnAppId of its own" in str(caught.value)
    assert [two.waiting_bodies("A"), two.waiting_bodies("B")] == before
    # To change the option, repeat the open batch with the old value, then use the new one.
    assert write(two, first, b"first") == 0
    assert write(two, second, b"next", batch=8) == 1
    assert staging(two) == []


@pytest.mark.parametrize("given", [A_QUEUE, A_TOPIC, BOTH_TOPICS, BY_COLUMNS])
def test_a_repeated_write_is_skipped_with_a_warning(
    two: Bench, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    """The same queue may be spelled otherwise, and the same topics may be in another order."""
    options = named(two, given)
    sent = write(two, options, b"once")
    other = dict(given)
    if "topics" in given:
        other["topics"] = ",".join(reversed(str(given["topics"]).split(",")))
    repeated = named(two, other)
    if options.address is not None:
        repeated = replace(options, address=two.table_beside("A"))

    assert [sent, write(two, repeated, b"twice")] == [1, 0]

    assert two.waiting_bodies("A") + two.waiting_bodies("B") in ([b"once"], [b"once"] * 2)
    (warned,) = [each.getMessage() for each in caplog.records if "before" in each.getMessage()]
    assert warned.startswith("app:bill: batch 7: was sent before; login ")
    assert warned.endswith("If this is another write, give it a txnAppId of its own")


def test_what_the_dispatch_log_does_not_know_is_not_compared(
    two: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no destination for an older batch, a stream's sink, and a job's own entry."""
    here, there = named(two, A_QUEUE), named(two, B_QUEUE)
    write(two, here, b"0", batch=0)
    write(two, here, b"1", batch=1)
    assert write(two, there, b"older", batch=0) == 0
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    caplog.clear()

    staged = stage(two, chunk(b"s"), sink="query:1")
    assert [send.dispatch(two.connection, [staged], options) for options in (here, there)] == [1, 0]
    send.open_request(two.connection, "app:triage")
    send.give_up(two.connection, "app:triage")
    staged = stage(two, chunk(b"r"), sink="app:triage", batch=send.REQUEST_GIVEN_UP)
    assert send.dispatch(two.connection, [staged], there) == 0

    stored = two.dotnet.state_rows("dispatch_log", "sink, destination")
    known = send.describe_destination(two.connection, here)
    assert sorted(stored) == [("app:bill", known), ("app:triage", None), ("query:1", None)]
    assert two.waiting_bodies("B") == []


def test_sinks_do_not_touch_one_another(bench: Bench) -> None:
    """A dispatch of one batch also leaves the chunks of a later batch."""
    mine = stage(bench, chunk(b"mine"), batch=1)
    later = stage(bench, chunk(b"later"), batch=2)
    theirs = stage(bench, chunk(b"theirs"), sink="other", batch=1)

    dispatch(bench, mine)

    assert [row[:2] for row in staging(bench)] == [("other", 1), ("sink", 2)]
    assert dispatch(bench, theirs) == 1
    assert dispatch(bench, later) == 1
    assert bench.waiting_bodies() == [b"mine", b"theirs", b"later"]


def test_an_abort_leaves_no_chunk(bench: Bench) -> None:
    """The batch may be done again. After it was sent or given up, a late task stages nothing."""
    stage(bench, chunk(b"x"), chunk(b"y"), sink="write:1")

    send.discard(bench.connection, "write:1", 0, final=False)
    send.discard(bench.connection, "write:2", 0, final=True)

    assert staging(bench) == []
    assert dispatch(bench, stage(bench, chunk(b"again"), sink="write:1")) == 1
    for sink in ("write:1", "write:2"):
        stage(bench, chunk(b"late"), sink=sink)
    assert staging(bench) == []
    assert bench.waiting_bodies() == [b"again"]


def test_a_missing_chunk_stops_the_whole_batch(bench: Bench) -> None:
    """No part of the batch is sent, and the dispatch log does not advance."""
    first, second = stage(bench, chunk(b"1"), chunk(b"2")), stage(bench, chunk(b"3"))
    bench.dotnet.dba.forget("staging", attempt=next(iter(first.chunks)).attempt, chunk=1)

    with pytest.raises(errors.ChunksMissing, match="staged 3 chunks, but 2 were found"):
        dispatch(bench, first, second)

    assert bench.waiting_seqs() == []
    assert logged(bench) == []
    assert len(staging(bench)) == 2


def test_a_missing_or_unreadable_destination_stops_the_whole_batch(bench: Bench) -> None:
    """Other queues get nothing either. When the queue is made, the batch goes through."""
    absent = bench.table_beside("absent")
    staged = stage(bench, chunk(b"1"), chunk(b"2", queue=bench.address("absent")))

    with pytest.raises(errors.QueueNotFound, match=r"absent.*sqlqueue create"):
        dispatch(bench, staged)
    for address in [*bench.dotnet.dba.shapes.no_address, '""' * 300]:
        with pytest.raises(
            (errors.BadOption, errors.MissingOption, errors.QueueNotFound), match="queue"
        ):
            dispatch(bench, stage(bench, chunk(b"x", queue=address)))

    assert bench.waiting_seqs() == []
    assert logged(bench) == []
    bench.dotnet.create(absent)
    assert dispatch(bench, staged) == 2


def test_expires_is_the_databases_clock_plus_the_lifetime(bench: Bench) -> None:
    """The client's clock and zone do not count. A lifetime of zero has expired at once."""
    lives = [0, 90_000, 2**31 - 1]
    chunks = [chunk(b"%d" % at, lives=each) for at, each in enumerate([*lives, None])]
    staged = stage(bench, pa.concat_tables(chunks))
    before = bench.dotnet.clock()

    dispatch(bench, staged)

    passed = (bench.dotnet.clock() - before) / timedelta(milliseconds=1)
    *expires, eternal = (row.expires for row in bench.dotnet.rows(bench.queue))
    assert eternal is None
    for moment, lifetime in zip(expires, lives, strict=True):
        assert moment is not None
        assert 0 <= (moment - before) / timedelta(milliseconds=1) - lifetime <= passed
    got = [bench.dotnet.receive(bench.queue) for _ in chunks]
    assert [each and each.expired for each in got] == [True, False, False, False]


MICRO_BATCH = SparkBatch(query_id="query", number=4)
ATOMIC = "sendsAtomicWithReceive"


def passed_on(bench: Bench, *, tasks: int = 2) -> tuple[list[str], Staged]:
    """Receive what waits in tasks of one source, and stage it for the same queue."""
    streams = [bench.new_stream()] * tasks
    edges = [-(2**63), *range(2, tasks + 1), 2**63 - 1]
    for at, stream in enumerate(streams):
        task = bench.task(stream, batch=1, task=at, first=edges[at], stop=edges[at + 1])
        receive(bench.connection, task, spark_batch=MICRO_BATCH)
    return streams, staged_for(bench, b"passed on", 4)


def passed_on_from_two(bench: Bench) -> tuple[list[str], Staged]:
    """Receive what waits in two queues, a source for each, and stage it for the first queue."""
    queues = (bench.queue, bench.table_beside("invoices"))
    streams = [bench.new_stream() for _ in queues]
    for number, (stream, queue) in enumerate(zip(streams, queues, strict=True)):
        task = bench.task(stream, batch=1, task=number, queue=queue)
        receive(bench.connection, task, spark_batch=MICRO_BATCH)
    return streams, staged_for(bench, b"passed on", 4)


def staged_for(bench: Bench, body: bytes, batch: int) -> Staged:
    """Stage a message in a micro-batch of the query."""
    spark_batch = replace(MICRO_BATCH, number=batch)
    return send.stage(
        bench.new_session("stage"),
        [chunk(body)],
        sink="s",
        sink_batch=batch,
        spark_batch=spark_batch,
    )


def settled(bench: Bench) -> list[tuple[Any, ...]]:
    """Which receipts there are, and whether they are settled."""
    return bench.dotnet.state_rows("receipt", "task, settled")


def test_the_receipts_of_a_micro_batch_are_settled_by_the_commit_that_sends(bench: Bench) -> None:
    """Receipts stay for a replay until the ack, and can never be returned to the queue."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])
    (stream, _), staged = passed_on(bench)
    assert settled(bench) == [(0, False), (1, False)]

    assert dispatch(bench, staged, transactionMode=ATOMIC) == 1

    assert bench.waiting_bodies() == [b"passed on"]
    assert settled(bench) == [(0, True), (1, True)]
    assert bodies(bench.receive(bench.task(stream))) == [b"1"]
    with pytest.raises(errors.ReceiptSettled):
        bench.return_receipt(stream)


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("task", [0, 1])
def test_a_batch_that_was_returned_sends_nothing(bench: Bench, task: int, sources: int) -> None:
    """Its messages are in the queue again. A send would double them."""
    second = bench.create_queue("invoices") if sources == 2 else bench.queue
    for queue, body in ((bench.queue, b"1"), (second, b"2")):
        bench.dotnet.send(queue, body=body)
    streams, staged = passed_on(bench) if sources == 1 else passed_on_from_two(bench)
    bench.return_receipt(streams[task], task=task)

    with pytest.raises(errors.BatchClosed):
        dispatch(bench, staged, transactionMode=ATOMIC)

    assert bench.waiting_bodies() == [b"%d" % (task + 1)]
    assert logged(bench) == []
    if sources == 2:
        assert settled(bench) == [(1 - task, False)]


def test_a_micro_batch_without_messages_of_the_queue_is_sent(bench: Bench) -> None:
    """All rows are of another source. The stream's last batch was acknowledged before."""
    bench.dotnet.send_many(bench.queue, [b"1"])
    (stream,), staged = passed_on(bench, tasks=1)
    dispatch(bench, staged, transactionMode=ATOMIC)
    bench.store_empty_plan(stream, 1)
    bench.acknowledge(stream, 1)

    assert dispatch(bench, staged_for(bench, b"of a file", 5), transactionMode=ATOMIC) == 1

    assert bench.waiting_bodies() == [b"passed on", b"of a file"]


def test_a_query_without_a_stream_in_the_state_schema_sends_nothing(bench: Bench) -> None:
    """Source and sink must use the same state tables. delivery=atLeastOnce is refused here."""
    said = f"has no stream and no receipt in schema {bench.dotnet.state} of .*url and stateSchema"
    with pytest.raises(errors.NothingToSettle, match=said):
        dispatch(bench, stage(bench, chunk(b"x")), transactionMode=ATOMIC)

    assert bench.waiting_bodies() == []
    with pytest.raises(errors.BadOption, match="exactlyOnce with transactionMode"):
        bench.sink_options(delivery="atLeastOnce", transactionMode=ATOMIC)


# ----- a sink that protects endpoints ---------------------------------------------------------


PLACED = "Shop.OrderPlaced"


def wait(options: SinkOptions, spark_batch: SparkBatch = NO_SPARK_BATCH) -> None:
    """Wait as a task whose rows name no queue."""
    staged = Staged("sink", 1, 0, {}, spark_batch)
    wait_before_dispatch(options, staged, 0, queues(None))


def above(bench: Bench, names: DestinationNames, **raw: str) -> str | None:
    """The queue that a look finds with a message in it."""
    text = find_backlog(bench.connection, bench.sink_options(pauseAboveBacklog="0", **raw), names)
    return text and text.partition("wait in ")[2].removesuffix(" (pauseAboveBacklog=0)")


def queues(*names: str | None) -> DestinationNames:
    """Return names of queues; None is that of the options."""
    return {("queue", name) for name in names}


def looks(bench: Bench) -> int:
    """How often sessions that record their statements looked at a queue."""
    return bench.statements.count("peek")


def hold(bench: Bench, work: Callable[[], Any]) -> Future[Any]:
    """Start work that waits, and return it when it has looked three times."""
    _ = bench.connection
    bench.records_statements = True
    waits = bench.run_in_thread(work)
    until(lambda: looks(bench) >= 3 or waits.done())
    assert not waits.done()
    return waits


def test_a_dispatch_is_held_until_its_queue_is_drained(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds no lock meanwhile. An endpoint receives, and a DBA may lock the whole queue."""
    caplog.set_level(logging.INFO, logger="sqlq_spark")
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(7)])

    waits = hold(bench, partial(wait, bench.sink_options(pauseAboveBacklog="5")))
    with bench.dotnet.locked(bench.queue):
        pass
    assert bench.dotnet.receive(bench.queue)
    again = looks(bench)
    until(lambda: looks(bench) >= again + 2)
    assert not waits.done()  # 6 wait
    assert bench.dotnet.receive(bench.queue)
    waits.result(timeout=TIMEOUT)

    said = f"/1/0 waits: 7 messages wait in {bench.queue_address} (pauseAboveBacklog=5)"
    assert caplog.text.count(said) == caplog.text.count("goes on") == 1


def test_with_at_least_once_each_chunk_is_held(bench: Bench) -> None:
    """The second chunk waits until the first is drained."""
    options = bench.sink_options(pauseAboveBacklog="0", delivery="atLeastOnce")
    large = [b"1" * (9 << 20), b"2" * (9 << 20)]  # two chunks
    rows = pa.RecordBatch.from_pydict({"body": large})
    writer = BatchWriter(options, StructType().add("body", "binary"))

    waits = hold(bench, partial(writer.write, iter([rows])))
    assert bench.waiting_bodies() == large[:1]
    assert bench.dotnet.receive(bench.queue)

    assert waits.result(timeout=TIMEOUT) == Written(None)
    assert bench.waiting_bodies() == large[1:]


def test_a_query_does_not_wait_for_a_queue_that_it_receives_from(bench: Bench) -> None:
    """Nothing else would empty that queue. A login without rights on receipts is not checked."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"])
    passed_on(bench)
    options = bench.sink_options(pauseAboveBacklog="9")

    with pytest.raises(errors.BadOption, match="would wait for itself"):
        wait(options, MICRO_BATCH)
    with pytest.raises(errors.BadOption, match="would wait for itself"):
        next(wait_before_chunks(bench.new_session(), [chunk(b"3")], options, "query"))
    wait(options, SparkBatch(query_id="other", number=4))
    with bench.login_with_rights() as (_, connection):
        check_source(connection, options, queues(None), "query")


def test_a_look_at_a_backlog_without_subscriptions_goes_on(bench: Bench) -> None:
    """The dispatch reports the missing table. The look undoes nothing, so it can commit."""
    bench.dotnet.send(bench.queue)

    assert above(bench, {("topic", "Shop.Placed"), ("queue", None)}) == bench.queue_address
    assert above(bench, {("topic", "Shop.Placed")}) is None


def test_whose_tables_a_login_uses(bench: Bench) -> None:
    """It uses its own, a DBA's, those of owners that are named, and a table that is named."""
    dba, own, other = bench.dotnet.dba, bench.create_queue("own"), bench.create_queue("other")
    stranger = dba.login()
    dba.on(other, dba.shapes.give.format(name=stranger.name))
    with bench.login_with_rights("INSERT") as (login, connection):
        dba.on(own, dba.shapes.give.format(name=login.name))
        dba.grant(login, "INSERT", other)
        connection.trusted = Trusted()

        def refused() -> list[str]:
            with transaction(connection):
                reasons = Destinations(connection).find_refused([own, other, bench.queue])
            assert {*map(type, reasons.values())} <= {errors.OwnerNotTrusted}
            return [queue.table for queue in reasons]

        assert refused() == ["other"]
        for trusted in (
            Trusted(roles=(stranger.name,)),
            Trusted(named=(other,)),
            Trusted(allowed=(other,)),
        ):
            connection.trusted = trusted
            assert refused() == []
            with transaction(connection):
                use(connection, [other], INSERT)
        dba.drop(own)
    dba.drop(other)
    dba.drop_login(stranger)


def test_which_queues_are_destinations(bench: Bench) -> None:
    """
    The queues of subscribers to any of the topics count too.

    An address that cannot be used is left to the dispatch.
    """
    table, error = bench.table_beside("Subscribed"), bench.address("error")
    raw = {"subscriptionTable": bench.connection.printed(table)}
    named: DestinationNames = {("topic", PLACED), ("topic", "Shop.IEvent")}
    assert above(bench, named, **raw) is None  # there is no such table

    bench.dotnet.create_subscriptions(table)
    for topic, address in ((PLACED, bench.address("gone")), ("Shop.IEvent", error)):
        bench.dotnet.subscribe(table, topic, topic, address)
    bench.dotnet.send(bench.error_queue)
    bad = [bench.address("absent"), *bench.dotnet.dba.shapes.no_address]

    assert above(bench, named, **raw) == above(bench, queues(*bad, error)) == error
    assert above(bench, {("topic", PLACED)}, **raw) is above(bench, queues(*bad)) is None
