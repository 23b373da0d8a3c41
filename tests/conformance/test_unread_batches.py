"""Batches of which Spark ran no task: the function read nothing, or the sink skipped the batch."""

from __future__ import annotations

import pytest

from sqlq_spark import errors
from sqlq_spark.receive import driver
from sqlq_spark.receive.batch import INITIAL

from .conftest import Bench, Clock, bodies

WARNING = "no task of batch"


def fill(bench: Bench, messages: int = 3) -> None:
    for number in range(messages):
        bench.dotnet.send(bench.queue, body=b"%d" % number)


@pytest.mark.parametrize("option", [None, "false"])
def test_a_stream_pauses_after_a_batch_that_nothing_read(
    bench: Bench, caplog: pytest.LogCaptureFixture, option: str | None
) -> None:
    """It pauses as after an empty peek, warns once a minute, and loses nothing."""
    fill(bench)
    clock = Clock()
    given = {} if option is None else {"failOnMissingReceipts": option}
    loop = bench.stream_driver(clock, peekDelay="5s", **given)
    start, planned = INITIAL, 0

    for _ in range(120):  # a minute: Spark asks every half second
        end = loop.latest(start)
        planned += end != start
        start = end  # Spark commits the batch, and none of its tasks has run
        clock.now += 0.5
    warnings = caplog.text.count(WARNING)
    clock.now += driver.WARN_AGAIN
    end = loop.latest(start)
    assert loop.latest(end) == end
    clock.now += 5
    rows = [bench.receive(task) for task in loop.tasks(loop.latest(end))]

    assert planned == 11
    assert warnings == 1
    assert caplog.text.count(WARNING) == 2
    assert bodies(*rows) == [b"0", b"1", b"2"]


def test_a_run_of_available_now_ends_with_an_error(bench: Bench) -> None:
    """The batch is closed before, so the next run receives all."""
    fill(bench)
    loop = bench.stream_driver()
    loop.freeze()
    end = loop.latest(INITIAL)

    with pytest.raises(errors.ReceiptsMissing, match="returned before it read") as caught:
        loop.latest(end)

    assert "the next start receives what is in the queue" in str(caught.value)
    assert bench.dotnet.state_rows("stream", "acked_batch") == [(1,)]
    again = bench.stream_driver()
    again.freeze()
    assert bench.drain(again, end) == [b"0", b"1", b"2"]


def test_a_run_of_available_now_may_end_without_an_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It does with failOnMissingReceipts=false, and logs how many messages are left."""
    fill(bench)
    loop = bench.stream_driver(failOnMissingReceipts="false", maxMessagesPerTrigger="2")
    loop.freeze()
    end = loop.latest(INITIAL)

    assert loop.latest(end) == end
    assert loop.latest(end) == end
    assert "at least 3 messages are left" in caplog.text
    assert len(bench.waiting_seqs()) == 3


def test_a_batch_without_receipts_may_stay_open(bench: Bench) -> None:
    """With failOnMissingReceipts=true an operator decides, also where Spark has no AvailableNow."""
    fill(bench)
    loop = bench.stream_driver(failOnMissingReceipts="true")
    end = loop.latest(INITIAL)

    for _ in range(2):
        with pytest.raises(errors.ReceiptsMissing, match="The batch stays open"):
            loop.latest(end)

    assert bench.dotnet.state_rows("stream", "acked_batch") == [(0,)]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_new_process_follows_an_unread_batch_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, *, is_committed: bool
) -> None:
    """
    Spark 4.0 and 4.1 ask once in each run of AvailableNow: a pause would end the run.

    A warning comes, because the database may have lost the receipts, also if Spark commits first.
    """
    fill(bench)
    end = bench.stream_driver().latest(INITIAL)

    loop = bench.stream_driver()
    if is_committed:
        loop.acknowledge(end)

    following = loop.latest(end)

    assert (following.stream, following.batch) == (end.stream, 2)
    assert caplog.text.count("left 0 receipts") == 1
