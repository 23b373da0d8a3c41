"""Receipts: acknowledged once, returned or dropped by an operator, and not received for twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin.messages import list_messages
from sqlq_spark.receive import receipts
from sqlq_spark.receive.batch import INITIAL, Offset, QueuePlan
from sqlq_spark.wire.headers import TIME_SENT, dumps, format_wire_time
from sqlq_spark.wire.rows import SparkBatch

from .conftest import Bench, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.receive.driver import StreamDriver

ROWS = "stream, batch, task"


def received(bench: Bench, stream: str, *, batch: int = 1, messages: int = 3) -> None:
    """Receive `messages` new messages as a batch of one task."""
    for at in range(messages):
        bench.dotnet.send(bench.queue, f'{{"n":"{at}"}}', b"%d/%d" % (batch, at), lives=10**8)
    bench.receive(bench.task(stream, batch=batch))


def end_of(stream: str, batch: int, *, tasks: int) -> Offset:
    """Give the end of a batch that was planned with `tasks` tasks."""
    bounds = tuple(range(tasks + 1))
    part = QueuePlan(queue="orders", messages=tasks, share=1, bytes=1, bounds=bounds)
    return Offset(stream=stream, batch=batch, plan=(part,))


def ack(bench: Bench, end: Offset, claim: receipts.Claim | None = None) -> None:
    """Acknowledge a batch as a driver does."""
    with bench.transaction():
        receipts.acknowledge(bench.connection, end, claim or bench.claim)


def lax(bench: Bench, **raw: str) -> receipts.Claim:
    """The claim of a driver that goes on after data loss."""
    return replace(bench.claim, options=bench.source_options(failOnDataLoss="false", **raw))


def test_an_ack_deletes_the_receipts_and_adds_up_what_they_held(bench: Bench) -> None:
    """Receipts of other streams and of later batches stay. A second ack changes nothing."""
    stream, other = bench.new_stream(), bench.new_stream()
    received(bench, stream)
    bench.receive(bench.task(stream, task=1))
    bench.dotnet.send(bench.queue, lives=-1)
    bench.dotnet.send(bench.queue, "[]")
    bench.receive(bench.task(stream, task=2, error_address=bench.error_queue))
    received(bench, stream, batch=2)
    received(bench, other)

    done = bench.acknowledge(stream, 1)
    again = bench.acknowledge(stream, 1)

    counts = {"messages": 3, "expired": 1, "diverted": 1, "forwarded": 0}
    assert done.report() == {"batch": 1, "tasks": 3, "emptyTasks": 1, **counts}
    assert done.taken == 5
    assert (again.batch, again.outcomes) == (1, ())
    assert bench.dotnet.state_rows("receipt", ROWS) == sorted([(stream, 2, 0), (other, 1, 0)])
    columns = "acked_batch, messages, expired, diverted"
    assert bench.dotnet.state_rows("stream", columns) == [(0, 0, 0, 0), (1, 3, 1, 1)]


@pytest.mark.parametrize("start", [3, 4])
def test_an_ack_ahead_of_the_stream_is_a_database_that_went_back(
    bench: Bench, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    """Without the error, a stream would repeat messages after a restore or a late failover."""
    stream = bench.new_stream(acked=2)

    with pytest.raises(errors.DatabaseRolledBack) as caught:
        bench.acknowledge(stream, start)

    said = (
        f"is at batch {start}, but {bench.connection.server} has acknowledged only up to batch 2. "
    )
    assert said in str(caught.value)
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(2,)]
    ack(bench, Offset(stream=stream, batch=start), lax(bench))
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(start,)]
    assert "the stream goes on after data loss" in caplog.text


@pytest.mark.parametrize("driver", ["the driver", "one before"])
def test_a_plan_ahead_of_the_stream_is_a_database_that_went_back(bench: Bench, driver: str) -> None:
    """A query that runs through a failover repeats nothing, even if its claim is lost too."""
    stream = bench.new_stream(acked=2)
    claim = replace(bench.claim, driver=driver)

    with (
        pytest.raises(errors.DatabaseRolledBack, match=r"is at batch 4, but .* only up to batch 2"),
        bench.transaction(),
    ):
        receipts.lock_for_plan(bench.connection, stream, 5, claim)

    assert bench.dotnet.state_rows("stream", "acked_batch, plan_batch") == [(2, None)]
    with bench.transaction():
        assert receipts.lock_for_plan(bench.connection, stream, 5, lax(bench)) is None
    bench.store_empty_plan(stream, 5)
    assert bench.dotnet.state_rows("stream", "plan_batch") == [(5,)]


def test_missing_receipts_may_be_an_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A failover may have lost them. By default, or with failOnDataLoss=false, the stream warns."""
    stream, raw = bench.new_stream(), {"failOnMissingReceipts": "true"}
    bench.store_empty_plan(stream, 1)
    received(bench, stream)
    strict = replace(bench.claim, options=bench.source_options(**raw))

    with pytest.raises(errors.ReceiptsMissing, match="had 3 tasks and left 1 receipts"):
        ack(bench, end_of(stream, 1, tasks=3), strict)
    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]
    ack(bench, end_of(stream, 1, tasks=3), lax(bench, **raw))
    assert "the stream goes on after data loss" in caplog.text
    ack(bench, end_of(stream, 1, tasks=3), strict)
    assert bench.dotnet.state_rows("receipt", ROWS) == []
    bench.store_empty_plan(stream, 2)
    received(bench, stream, batch=2)
    ack(bench, end_of(stream, 2, tasks=3))
    assert "batch 2 had 3 tasks and left 1 receipts: " in caplog.text
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(2,)]


def test_an_ack_by_a_driver_that_was_taken_over_is_refused(bench: Bench) -> None:
    """A stream of another queue and an unknown stream are refused too. Nothing changes."""
    stream = bench.new_stream()
    received(bench, stream)
    other = replace(bench.claim, driver="another")
    elsewhere = replace(bench.claim, options=bench.source_options(queues="x"))

    end = Offset(stream=stream, batch=1)

    with pytest.raises(errors.StreamTakenOver):
        ack(bench, end, replace(other, stream=stream))
    with pytest.raises(errors.StreamOfOtherQueue, match=r"of queue .*orders.*, not of .*x"):
        ack(bench, end, elsewhere)
    with pytest.raises(errors.StreamNotFound):
        ack(bench, replace(end, stream="nobody"), other)
    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]
    ack(bench, end, other)
    assert bench.dotnet.state_rows("receipt", ROWS) == []
    with pytest.raises(errors.StreamTakenOver):
        bench.acknowledge(stream, 1)


def test_a_return_that_fails_keeps_the_receipt_and_leaves_the_stream_alone(bench: Bench) -> None:
    """A mistyped batch must not close unplanned batches. The queue may be gone."""
    stream = bench.new_stream()
    received(bench, stream)

    assert bench.return_receipt(stream, batch=999) == 0
    assert bench.drop_receipt(stream, batch=999) == 0
    bench.dotnet.dba.drop(bench.queue)
    with pytest.raises(errors.QueueNotFound):
        bench.return_receipt(stream)

    assert bench.dotnet.state_rows("stream", "acked_batch") == [(0,)]
    bench.dotnet.create(bench.queue)
    assert bench.receive(bench.task(stream)).num_rows == 3


@only("postgresql", "times beyond the year 9999")
def test_a_time_beyond_all_calendars_stops_nothing(bench: Bench) -> None:
    """Python has no such time. Its message is shown, received, diverted and returned without it."""
    sent = dumps({TIME_SENT: format_wire_time(datetime.now(UTC))})
    expires = ["infinity", "294276-12-31", "-infinity", "0044-03-15 BC"]
    for at, each in enumerate(expires):
        bench.dotnet.send(bench.queue, sent, b"good %d" % at, lives=3_600_000)
        bench.dotnet.send(bench.queue, "[]", b"poison %d" % at, lives=3_600_000)
        where = f"WHERE Seq > {2 * at}"
        bench.dotnet.dba.on(bench.queue, f"UPDATE {{queue}} SET Expires = '{each}' {where}")

    seen = list(list_messages(bench.connection, bench.queue, limit=9))
    end, tables = bench.run_batch(
        bench.stream_driver(errorQueue=bench.address("error"), maxConcurrency="1")
    )
    returned = bench.return_receipt(str(end.stream))

    assert len(seen) == 8
    assert bodies(*tables) == [b"good 0", b"good 1"]
    assert bench.waiting_bodies(bench.error_queue) == [b"poison 0", b"poison 1"]
    assert returned == 2
    assert [row.expires for row in bench.dotnet.rows(bench.queue)] == [None, None]


# ----- a query's own batch numbers ---------------------------------------------------------------


def receive(
    bench: Bench, loop: StreamDriver, end: Offset, number: int, query: str = "query"
) -> list[bytes]:
    """Run the tasks of a batch, which has this number in the checkpoint of a query."""
    spark_batch = SparkBatch(query_id=query, run_id=loop.memory.claim.driver, number=number)
    return bodies(*(bench.receive(task, spark_batch=spark_batch) for task in loop.tasks(end)))


@pytest.mark.parametrize(("last", "files"), [(0, "0"), (1, "0 to 1")])
def test_a_lost_first_entry_is_an_error_with_the_files(bench: Bench, last: int, files: str) -> None:
    """Spark has received the lost batch, or has also planned the next one."""
    loop, end = bench.stream_driver(), INITIAL
    for number in range(last + 1):
        bench.dotnet.send(bench.queue)
        end = loop.latest(end)
        receive(bench, loop, end, number)
    bench.dotnet.send(bench.queue, body=b"new")
    again = bench.stream_driver()

    with pytest.raises(errors.CheckpointIncomplete) as caught:
        receive(bench, again, again.latest(INITIAL), 0)

    error = caught.value
    assert bench.waiting_bodies() == [b"new"]
    assert (error.query, error.spark_batch, error.received) == ("query", 0, last)
    assert f"files of batch {files} in its folders offsets and commits" in str(error)


def test_a_receipt_is_not_handed_out_for_another_batch_of_its_query(bench: Bench) -> None:
    """The query has a source of another kind, and several last entries are lost."""
    bench.dotnet.send(bench.queue)
    loop = bench.stream_driver()
    end = loop.latest(INITIAL)
    got = receive(bench, loop, end, 1)

    with pytest.raises(errors.CheckpointIncomplete) as caught:
        receive(bench, loop, end, 0)

    assert (caught.value.spark_batch, caught.value.received) == (0, 1)
    assert receive(bench, bench.stream_driver(failOnDataLoss="false"), end, 0) == got == [b"{}"]


@pytest.mark.parametrize("move", [Bench.return_receipt, Bench.drop_receipt])
def test_what_an_operator_moved_closes_the_batch(bench: Bench, move: Callable[..., int]) -> None:
    """The sink may hold it already. A new checkpoint receives what was returned."""
    bench.dotnet.send(bench.queue)
    loop = bench.stream_driver()
    end = loop.latest(INITIAL)
    receive(bench, loop, end, 0)
    move(bench, str(end.stream))
    if move is Bench.drop_receipt:
        bench.dotnet.send(bench.queue)
    again = bench.stream_driver()
    end = again.latest(INITIAL)

    with pytest.raises(errors.CheckpointIncomplete) as caught:
        receive(bench, again, end, 0)

    assert (caught.value.spark_batch, caught.value.received) == (0, 0)
    assert receive(bench, again, end, 0, "of a new checkpoint") == [b"{}"]
