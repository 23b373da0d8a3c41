"""Streams and receipts: acknowledged once, returned or dropped by an operator, never twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin import inspect
from sqlq_spark.database import transaction
from sqlq_spark.receive import receipts
from sqlq_spark.receive.offset import Offset, QueuePlan
from sqlq_spark.wire.headers import TIME_SENT, dumps, wire_time

from .conftest import TIMEOUT, Bench, bodies

ROWS = "stream, batch, task"


def received(bench: Bench, stream: str, *, batch: int = 1, messages: int = 3) -> None:
    """Receive `messages` new messages as a batch of one task."""
    for at in range(messages):
        bench.dotnet.send(bench.queue, f'{{"n":"{at}"}}', b"%d/%d" % (batch, at), lives=10**8)
    bench.receive(bench.task(stream, batch=batch))


def end_of(stream: str, batch: int, *, tasks: int) -> Offset:
    """Give the end of a batch that was planned with so many tasks."""
    bounds = tuple(range(tasks + 1))
    part = QueuePlan(queue="orders", messages=tasks, share=1, bytes=1, bounds=bounds)
    return Offset(stream=stream, batch=batch, plan=(part,))


def return_(bench: Bench, stream: str, batch: int = 1, task: int = 0) -> int:
    """Return a receipt as the operator's command does."""
    with transaction(bench.desk, timeout=TIMEOUT):
        return receipts.return_(bench.desk, (stream, batch, task), bench.queue)


def drop(bench: Bench, stream: str, batch: int = 1, task: int = 0) -> int:
    """Drop a receipt as the operator's command does."""
    with transaction(bench.desk, timeout=TIMEOUT):
        return receipts.drop(bench.desk, (stream, batch, task))


def test_an_ack_deletes_the_receipts_and_adds_up_what_they_held(bench: Bench) -> None:
    """Of this stream and up to this batch, no others; done again, it changes nothing."""
    stream, other = bench.new_stream(), bench.new_stream()
    received(bench, stream)
    bench.receive(bench.task(stream, task=1))
    bench.dotnet.send(bench.queue, lives=-1)
    bench.dotnet.send(bench.queue, "[]")
    bench.receive(bench.task(stream, task=2, error_address=bench.errors))
    received(bench, stream, batch=2)
    received(bench, other)

    done, again = bench.ack(stream, 1), bench.ack(stream, 1)

    assert (done.batch, done.messages, done.expired, done.diverted) == (1, 3, 1, 1)
    assert (done.outcome.tasks, done.outcome.empty, done.outcome.got) == (3, 1, 5)
    assert (again.batch, again.outcome.tasks) == (1, 0)
    assert bench.dotnet.state_rows("receipt", ROWS) == sorted([(stream, 2, 0), (other, 1, 0)])
    columns = "acked_batch, messages, expired, diverted"
    assert bench.dotnet.state_rows("stream", columns) == [(0, 0, 0, 0), (1, 3, 1, 1)]


def test_an_ack_behind_the_stream_is_a_rolled_back_checkpoint(bench: Bench) -> None:
    """The error says from where to where, and what to do."""
    stream = bench.new_stream(acked=5)
    received(bench, stream, batch=6)

    with pytest.raises(errors.CheckpointRolledBack) as caught:
        bench.ack(stream, 3)

    assert str(caught.value).startswith(
        f"the checkpoint of stream {stream} is at batch 3, but batch 5 was acknowledged. "
    )
    assert "failOnDataLoss=false" in str(caught.value)
    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 6, 0)]


@pytest.mark.parametrize("start", [3, 4])
def test_an_ack_ahead_of_the_stream_is_a_database_that_went_back(
    bench: Bench, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    """A standby that was behind, a backup: what was received since would come again, unsaid."""
    stream = bench.new_stream(acked=2)

    with pytest.raises(errors.DatabaseRolledBack) as caught:
        bench.ack(stream, start)

    assert str(caught.value).startswith(
        f"the checkpoint of stream {stream} is at batch {start}, but {bench.desk.server} has "
        "acknowledged only up to batch 2. "
    )
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(2,)]
    accepting = replace(bench.who, options=bench.source(failOnDataLoss="false"))
    with transaction(bench.desk, timeout=TIMEOUT):
        receipts.acknowledge(bench.desk, Offset(stream=stream, batch=start), accepting)
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(start,)]
    assert "the stream goes on after data loss" in caplog.text


@pytest.mark.parametrize("driver", ["the driver", "one before"])
def test_a_plan_ahead_of_the_stream_is_a_database_that_went_back(bench: Bench, driver: str) -> None:
    """A query that runs through a failover receives nothing again; its claim may be lost too."""
    stream = bench.new_stream(acked=2)
    who = replace(bench.who, driver=driver)

    with (
        pytest.raises(errors.DatabaseRolledBack, match=r"is at batch 4, but .* only up to batch 2"),
        transaction(bench.desk, timeout=TIMEOUT),
    ):
        receipts.lock_for_plan(bench.desk, stream, 5, who)

    assert bench.dotnet.state_rows("stream", "acked_batch, plan_batch") == [(2, None)]
    accepting = replace(bench.who, options=bench.source(failOnDataLoss="false"))
    with transaction(bench.desk, timeout=TIMEOUT):
        assert receipts.lock_for_plan(bench.desk, stream, 5, accepting) is None
    bench.plan(stream, 5)
    assert bench.dotnet.state_rows("stream", "plan_batch") == [(5,)]


def test_what_a_takeover_lost_of_a_batch_that_is_there_is_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its plan alone, and its tasks ran after; or its receipts alone, which is warned of."""
    stream = bench.new_stream()
    received(bench, stream)
    bench.ack(stream, 1)
    assert "receipts" not in caplog.text
    bench.plan(stream, 2)

    with transaction(bench.desk, timeout=TIMEOUT):
        receipts.acknowledge(bench.desk, end_of(stream, 2, tasks=3), bench.who)

    assert "batch 2 had 3 tasks and left 0 receipts: " in caplog.text
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(2,)]


def test_receipts_that_are_missing_are_an_error_if_an_option_asks_for_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps what is there. With failOnDataLoss=false the stream continues."""
    stream = bench.new_stream()
    bench.plan(stream, 1)
    received(bench, stream)
    raw = {"failOnMissingReceipts": "true"}
    strict = replace(bench.who, options=bench.source(**raw))
    lax = replace(bench.who, options=bench.source(failOnDataLoss="false", **raw))

    def ack(who: receipts.Claim, tasks: int) -> None:
        with transaction(bench.desk, timeout=TIMEOUT):
            receipts.acknowledge(bench.desk, end_of(stream, 1, tasks=tasks), who)

    with pytest.raises(errors.ReceiptsMissing, match="had 3 tasks and left 1 receipts"):
        ack(strict, 3)
    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]
    ack(lax, 3)
    assert "the stream goes on after data loss" in caplog.text
    ack(strict, 3)
    assert bench.dotnet.state_rows("receipt", ROWS) == []


def test_an_ack_by_a_driver_that_was_taken_over_is_refused(bench: Bench) -> None:
    """And one of a stream of another queue, and one of no stream at all; nothing changes."""
    stream = bench.new_stream()
    received(bench, stream)
    other = replace(bench.who, driver="another")
    elsewhere = replace(bench.who, options=bench.source(queues="x"))

    def ack(stream: str, who: receipts.Claim, *, claim: bool = False) -> None:
        known = replace(who, stream=None if claim else stream)
        with transaction(bench.desk, timeout=TIMEOUT):
            receipts.acknowledge(bench.desk, Offset(stream=stream, batch=1), known)

    with pytest.raises(errors.StreamTakenOver):
        ack(stream, other)
    with pytest.raises(errors.StreamOfOtherQueue, match=r"of queue .*orders.*, not of .*x"):
        ack(stream, elsewhere, claim=True)
    with pytest.raises(errors.StreamNotFound):
        ack("nobody", other, claim=True)
    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]
    ack(stream, other, claim=True)
    assert bench.dotnet.state_rows("receipt", ROWS) == []
    with pytest.raises(errors.StreamTakenOver):
        ack(stream, bench.who)


def test_a_settled_receipt_cannot_be_returned_but_dropped(bench: Bench) -> None:
    """Its messages were sent on; a refusal changes nothing, and what is dropped is gone."""
    stream = bench.new_stream()
    received(bench, stream)
    bench.dotnet.dba.change("receipt", settled=True)

    with pytest.raises(errors.ReceiptSettled, match="sqlqueue receipts drop"):
        return_(bench, stream)

    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(0,)]
    assert [drop(bench, stream), drop(bench, stream)] == [3, 0]
    assert bench.bodies() == []
    assert bench.dotnet.state_rows("receipt", ROWS) == []
    with pytest.raises(errors.StaleTask):
        bench.receive(bench.task(stream))


def test_returning_a_receipt_that_is_not_there_leaves_the_stream_alone(bench: Bench) -> None:
    """A mistyped batch must not close batches that were never planned."""
    stream = bench.new_stream()
    received(bench, stream)

    assert return_(bench, stream, batch=999) == 0
    assert drop(bench, stream, batch=999) == 0

    assert bench.dotnet.state_rows("stream", "acked_batch") == [(0,)]
    assert bench.receive(bench.task(stream)).num_rows == 3


def test_a_return_into_a_queue_that_is_gone_keeps_the_receipt(bench: Bench) -> None:
    """The messages lie in it and nowhere else."""
    stream = bench.new_stream()
    received(bench, stream)
    bench.dotnet.dba.drop(bench.queue)

    with pytest.raises(Exception, match="was not found"):
        return_(bench, stream)

    assert bench.dotnet.state_rows("receipt", ROWS) == [(stream, 1, 0)]


@only("postgresql", "times beyond the year 9999")
@pytest.mark.parametrize(
    ("expires", "gone"),
    [("infinity", False), ("294276-12-31", False), ("-infinity", True), ("0044-03-15 BC", True)],
)
def test_a_time_beyond_all_calendars_stops_nothing(
    bench: Bench, expires: str, *, gone: bool
) -> None:
    """A time that Python has not: it is shown, received, diverted, and returned without it."""
    sent = dumps({TIME_SENT: wire_time(datetime.now(UTC))})
    bench.dotnet.send(bench.queue, sent, b"good", lives=3_600_000)
    bench.dotnet.send(bench.queue, "[]", b"poison", lives=3_600_000)
    bench.dotnet.dba.on(bench.queue, f"UPDATE {{queue}} SET Expires = '{expires}'")

    seen = list(inspect.messages(bench.desk, bench.queue, limit=5))
    end, tables = bench.batch(bench.loop(errorQueue=bench.address("error")))
    returned = return_(bench, str(end.stream))

    assert [each.body for each in seen] == [b"good", b"poison"]
    assert bodies(*tables) == ([] if gone else [b"good"])
    assert bench.bodies(bench.errors) == ([] if gone else [b"poison"])
    assert returned == (0 if gone else 1)
    rows = [(row.body, row.expires) for row in bench.dotnet.rows(bench.queue)]
    assert rows == ([] if gone else [(b"good", None)])
