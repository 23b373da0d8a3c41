"""A sink that protects endpoints: it waits for the backlog of its destinations, and for a rate."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from waiting import until

from sqlq_spark.database.statements import Statements
from sqlq_spark.datasource.write import BatchWriter, Written
from sqlq_spark.errors import BadOption, RightMissing
from sqlq_spark.send.dispatch import Staged
from sqlq_spark.send.throttle import (
    Names,
    check_source,
    find_backlog,
    read_seconds_left,
    wait_before_chunks,
    wait_before_dispatch,
)
from sqlq_spark.wire.rows import NO_STREAM, Origin

from .conftest import TIMEOUT, Bench
from .test_send import MICRO_BATCH, chunk, dispatch, passed_on, stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from sqlq_spark.options import SinkOptions

PLACED = "Shop.OrderPlaced"
LIMIT = " (pauseAboveBacklog=0)"


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sqlq_spark")


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """The lines of the log with a word, without the task's name."""
    found = [record.getMessage() for record in caplog.records]
    return [text for text in found if f" {word}" in text]


def task(bench: Bench, *, batch: int = 1, sink: str = "sink", origin: Origin = NO_STREAM) -> Staged:
    """Name what a task staged; its sessions bear the bench's name."""
    return Staged(f"{bench.name} {sink}", batch, 0, origin=origin)


def wait(
    bench: Bench,
    names: Names,
    options: SinkOptions,
    partition: int = 0,
    origin: Origin = NO_STREAM,
) -> None:
    """Let a task wait."""
    wait_before_dispatch(options, task(bench, origin=origin), partition, names)


def above(bench: Bench, names: Names, **raw: str) -> str | None:
    """The queue that a look finds with a message in it."""
    text = find_backlog(bench.desk, bench.sink(pauseAboveBacklog="0", **raw), names)
    return None if text is None else text.partition("wait in ")[2].removesuffix(LIMIT)


def queues(*names: str | None) -> Names:
    """Return names of queues; None is that of the options."""
    return {("queue", name) for name in names}


@pytest.fixture
def looks(bench: Bench) -> Callable[[], int]:
    """Count the looks of watched sessions, which all sessions are that are opened now."""
    _ = bench.desk
    bench.watched = True
    return lambda: bench.said.count("peek")


def hold(bench: Bench, looks: Callable[[], int], work: Callable[[], Any]) -> Future[Any]:
    """Start something that waits, and return when it has looked three times in vain."""
    before = looks()
    waits = bench.thread(work)
    until(lambda: looks() >= before + 3 or waits.done())
    assert not waits.done()
    return waits


def test_a_dispatch_is_held_until_the_destination_is_drained(
    bench: Bench, looks: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """
    It goes on when the backlog is not above the limit any more.

    Meanwhile it holds nothing: an endpoint receives, and a DBA may lock the whole queue.
    """
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(7)])
    held = partial(wait, bench, queues(None), bench.sink(pauseAboveBacklog="5"))

    waits = hold(bench, looks, held)
    with bench.dotnet.locked(bench.queue):
        pass
    assert bench.dotnet.receive(bench.queue)
    again = looks()
    until(lambda: looks() >= again + 2)
    assert not waits.done()  # 6 wait
    assert bench.dotnet.receive(bench.queue)
    waits.result(timeout=TIMEOUT)

    (begin,) = lines(caplog, "waits: ")
    assert begin.endswith(f"/1/0 waits: 7 messages wait in {bench.printed} (pauseAboveBacklog=5)")
    assert len(lines(caplog, "goes on")) == 1


@pytest.mark.usefixtures("impatient")
def test_a_wait_survives_the_loss_of_its_connection(bench: Bench, looks: Callable[[], int]) -> None:
    """As when the server ends idle sessions, or restarts."""
    bench.dotnet.send(bench.queue)
    held = partial(wait, bench, queues(None), bench.sink(pauseAboveBacklog="0"))

    waits = hold(bench, looks, held)
    until(lambda: bench.dotnet.kill(f"{bench.name} sink"))
    again = looks()
    until(lambda: looks() >= again + 2)
    assert not waits.done()
    assert bench.dotnet.receive(bench.queue)

    waits.result(timeout=TIMEOUT)


def test_with_at_least_once_each_chunk_is_held(bench: Bench, looks: Callable[[], int]) -> None:
    """The second chunk waits until the first is drained."""
    options = bench.sink(pauseAboveBacklog="0", delivery="atLeastOnce")
    large = [b"1" * (9 << 20), b"2" * (9 << 20)]  # two chunks
    rows = pa.RecordBatch.from_pydict({"body": large})

    writer = BatchWriter(options, StructType().add("body", "binary"))

    waits = hold(bench, looks, partial(writer.write, iter([rows])))
    assert bench.bodies() == large[:1]
    assert bench.dotnet.receive(bench.queue)

    assert waits.result(timeout=TIMEOUT) == Written(None)
    assert bench.bodies() == large[1:]


def test_which_task_waits_for_which_destination(bench: Bench, looks: Callable[[], int]) -> None:
    """The first task for those of the options, and each for those that its own rows name."""
    full = bench.queue
    bench.dotnet.send(full)
    options = bench.sink(pauseAboveBacklog="0")
    elsewhere = bench.sink(pauseAboveBacklog="0", queue=bench.address("error"))
    own = queues(bench.printed)

    wait(bench, queues(None), options, 1)
    wait(bench, queues(None, bench.address("absent")), elsewhere)
    wait(bench, queues(None), bench.sink())
    held = [
        hold(bench, looks, partial(wait, bench, set(), options)),
        hold(bench, looks, partial(wait, bench, own, elsewhere, 1)),
    ]
    assert bench.dotnet.receive(full)

    for each in held:
        each.result(timeout=TIMEOUT)


def test_a_query_does_not_wait_for_a_queue_that_it_receives_from(bench: Bench) -> None:
    """Nothing else would empty it; a login that may not read receipts is not checked."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"])
    passed_on(bench)
    options, names = bench.sink(pauseAboveBacklog="9"), queues(None)

    with pytest.raises(BadOption, match="would wait for itself"):
        wait(bench, names, options, origin=MICRO_BATCH)
    with pytest.raises(BadOption, match="would wait for itself"):
        next(wait_before_chunks(bench.session(), [chunk(b"3")], options, "query"))
    elsewhere = bench.sink(pauseAboveBacklog="9", queue=bench.address("error"))
    wait(bench, names, elsewhere, origin=MICRO_BATCH)
    wait(bench, names, options, origin=Origin(query_id="other", query_batch=4))
    with bench.login() as (_, connection):
        check_source(connection, options, names, "query")


def test_the_queues_of_subscribers_are_destinations(bench: Bench) -> None:
    """Of any of the topics; a subscriber whose queue is gone is left to the dispatch."""
    table = bench.beside("Subscribed")
    raw = {"subscriptionTable": bench.desk.printed(table)}
    named: Names = {("topic", PLACED), ("topic", "Shop.IEvent")}
    assert above(bench, named, **raw) is None  # there is no such table

    bench.dotnet.create_subscriptions(table)
    bench.dotnet.subscribe(table, "gone", PLACED, bench.address("gone"))
    bench.dotnet.subscribe(table, "bad", PLACED, '"')
    bench.dotnet.subscribe(table, "billing", "Shop.IEvent", bench.address("error"))
    bench.dotnet.send(bench.errors)
    bench.dotnet.send(bench.queue)

    assert above(bench, named, **raw) == bench.address("error")
    assert above(bench, {("topic", PLACED)}, **raw) is None


def test_a_destination_that_cannot_be_sent_to_is_left_to_the_dispatch(bench: Bench) -> None:
    """Whatever a row names; the others are looked at."""
    bench.dotnet.send(bench.errors)
    bad = [bench.address("absent"), *bench.dotnet.dba.shapes.no_address]

    assert above(bench, queues(*bad)) is None
    assert above(bench, queues(*bad, bench.address("error"))) == bench.address("error")


def test_a_login_that_may_not_read_the_destination_gets_the_grant(bench: Bench) -> None:
    """That of `sqlqueue script`, of one column; without INSERT the dispatch reports it."""
    with bench.login() as (login, connection):
        options = bench.sink(pauseAboveBacklog="0")
        look = partial(find_backlog, connection, options, queues(None))
        assert look() is None
        bench.dotnet.dba.grant(login, "INSERT", bench.queue)
        with pytest.raises(RightMissing, match=r"statement peek") as refused:
            look()
        fix = refused.value.fix
        printed = Statements.load(bench.desk.names.dialect)["script_send"]
        assert fix.partition(" ON ")[0].removeprefix("GRANT ") in printed
        assert "SELECT (" in fix
        bench.dotnet.dba.run(fix.replace("the_user", login.name))
        assert look() is None


def test_the_next_batch_waits_for_the_rate(bench: Bench) -> None:
    """By the dispatch log, so in a new process too; a new sink and a replay do not wait."""
    sink = task(bench).sink

    def left(batch: int, name: str = sink) -> float:
        return read_seconds_left(bench.desk, name, batch, rate=1)

    staged = stage(bench, chunk(*[b"x"] * 600), sink=sink, batch=1)
    assert left(1) == 0

    dispatch(bench, staged)

    assert 0 < left(2) <= 600
    assert left(1) == 0
    assert left(2, "other") == 0
    bench.dotnet.dba.age("dispatch_log", "dispatched", hours=1)
    assert left(2) == 0
