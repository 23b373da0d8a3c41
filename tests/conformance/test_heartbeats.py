"""Heartbeats: which process runs a stream, two streams on one queue, and removed streams."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

import pytest
from waiting import until

from sqlq_spark import errors
from sqlq_spark.admin import doctor, state_tables
from sqlq_spark.admin.streams import find_stream, remove_stream
from sqlq_spark.database import state_rows
from sqlq_spark.receive import heartbeat
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.wire.rows import SparkBatch

from .conftest import Clock, bodies

if TYPE_CHECKING:
    from sqlq_spark.admin.state_tables import Stream
    from sqlq_spark.database.state_rows import Heartbeat
    from sqlq_spark.receive.batch import Offset
    from sqlq_spark.receive.driver import StreamDriver

    from .conftest import Bench

NAMED = SparkBatch(query_id="query", run_id="run", number=0, query_name="nightly orders")
HOST = socket.gethostname()


FAILED = "the heartbeat cannot be written"


def start(
    bench: Bench, heartbeat: float = 1000.0, clock: Clock | None = None, **raw: str
) -> StreamDriver:
    """Give the driver of a stream with heartbeats, as a new process has it."""
    return bench.beating_driver(heartbeat, clock, bench.source_options(**raw))


def streams(bench: Bench) -> list[Stream]:
    with bench.transaction():
        return state_tables.list_streams(bench.connection)


def run_batch(
    bench: Bench, driver: StreamDriver, start: Offset = INITIAL, spark_batch: SparkBatch = NAMED
) -> Offset:
    """Send a message and receive it. The batch is not acknowledged."""
    bench.dotnet.send(bench.queue)
    end = driver.latest(start)
    for task in driver.tasks(end):
        bench.receive(task, spark_batch=spark_batch)
    return end


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    caplog.clear()
    return found


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream counts as gone at once."""
    for module in (state_rows, state_tables):
        monkeypatch.setattr(module, "LONGEST_SILENCE", 0.0)


def test_a_stream_has_the_name_of_its_query(bench: Bench) -> None:
    """Before the first batch it has the option's name. Its host and process are there too."""
    clock = Clock()
    driver = start(bench, clock=clock, streamName="from the option")
    driver.latest(INITIAL)
    clock.now += 10
    (waiting,) = streams(bench)
    end = run_batch(bench, driver)
    (open_batch,) = streams(bench)
    driver.acknowledge(end)
    (idle,) = streams(bench)

    assert (waiting.stream, waiting.name, waiting.state) == ("", "from the option", "idle")
    assert (open_batch.stream, open_batch.name, open_batch.state) == (
        end.stream,
        "from the option",
        "running",
    )
    assert (idle.name, idle.state, idle.batch) == ("nightly orders", "idle", 1)
    assert {(each.host, each.process) for each in (waiting, open_batch, idle)} == {
        (HOST, os.getpid())
    }
    assert idle.queues == [bench.queue_address]


def test_a_stream_without_a_name_has_its_host_and_process(bench: Bench) -> None:
    """Its query has no name either."""
    driver = start(bench)
    driver.acknowledge(run_batch(bench, driver, spark_batch=SparkBatch()))

    (found,) = streams(bench)
    assert (found.name, found.title) == (None, f"{HOST}:{os.getpid()}")


def test_a_stream_is_gone_after_a_silence(bench: Bench, silent: None) -> None:  # noqa: ARG001
    """It counts as gone, although it has an open batch."""
    run_batch(bench, start(bench))

    (found,) = streams(bench)
    assert found.state.startswith("gone for 0.")


def list_heartbeats(bench: Bench) -> list[Heartbeat]:
    with bench.transaction():
        return state_tables.list_heartbeats(bench.connection)


def test_heartbeats_go_on_while_a_batch_runs(bench: Bench) -> None:
    """The task holds the stream's row all the time, and Spark does not call the driver."""
    driver = start(bench, 0.05)
    driver.acknowledge(run_batch(bench, driver))
    bench.dotnet.send(bench.queue)
    end = driver.latest(driver.memory.end)
    (task,) = driver.tasks(end)
    seen: set[object] = set()

    with bench.uncommitted_task(task, "long"):

        def many() -> bool:
            # SQL Server leaves out a row that is being written
            seen.update(found.beat for found in list_heartbeats(bench))
            return len(seen) > 10

        until(many)
        with bench.transaction():
            assert find_stream(bench.connection, str(end.stream)).state == "running"


def test_an_idle_stream_needs_no_connection_for_a_heartbeat(bench: Bench) -> None:
    """The driver writes heartbeats when Spark calls it, also if the thread has ended."""
    driver = start(bench, 0.05)
    driver.latest(INITIAL)
    writer = driver._heartbeat  # noqa: SLF001 - the thread, which has no other name
    assert writer is not None
    writer.stop()
    seen: set[object] = set()

    def many() -> bool:
        driver.latest(INITIAL)
        seen.update(found.beat for found in list_heartbeats(bench))
        return len(seen) > 5

    until(many)


def test_a_batch_that_runs_again_after_a_kill_is_one_stream(bench: Bench) -> None:
    """Spark asks for its tasks first. The process that was killed has left its heartbeat."""
    end = run_batch(bench, start(bench))

    start(bench).tasks(end)

    assert [found.stream for found in streams(bench)] == [end.stream]
    assert [found.stream for found in list_heartbeats(bench)] == [end.stream]


def test_a_heartbeat_that_cannot_be_written_is_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session holds its row. The stream receives, and the thread tries again."""
    monkeypatch.setattr(heartbeat, "LOCK_WAIT", 0.05)
    clock = Clock()
    driver = start(bench, 0.05, clock)
    driver.latest(INITIAL)
    clock.now += 10
    other = bench.open_connection("other")
    other.begin()
    other.run(
        "beat",
        driver=driver.memory.claim.driver,
        stream=None,
        name=None,
        queue_name="",
        host="",
        process=0,
        shared=False,
    )
    before = list_heartbeats(bench)
    until(lambda: any(FAILED in each.getMessage() for each in caplog.records))
    end = run_batch(bench, driver)
    other.run("rollback")
    until(lambda: list_heartbeats(bench) != before)

    assert len([each for each in warnings(caplog) if FAILED in each]) == 1
    assert end.stream is not None


@pytest.fixture
def two(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> StreamDriver:
    """Give the second of two drivers; the first runs on another host."""
    monkeypatch.setattr(socket, "gethostname", lambda: "first-host")
    start(bench, streamName="first").latest(INITIAL)
    monkeypatch.undo()
    return start(bench, streamName="second")


def test_the_second_stream_on_a_queue_warns(
    bench: Bench, two: StreamDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the first stream and its host. `doctor` names both streams."""
    two.latest(INITIAL)

    (warning,) = (each for each in warnings(caplog) if "other streams" in each)
    assert f"first on first-host (process {os.getpid()})" in warning
    assert "sharedByStreams=true" in warning
    with bench.transaction():
        (finding,) = doctor.of_shared_queues(bench.connection)
    assert (finding.where, finding.severity) == (bench.queue_address, "warning")
    assert all(f"{name} on " in finding.found for name in ("first", "second"))


def test_streams_that_share_a_queue_on_purpose_do_not_warn(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Both streams have the option sharedByStreams. A third one without it causes a finding."""
    for name in ("first", "second"):
        start(bench, streamName=name, sharedByStreams="true").latest(INITIAL)
    with bench.transaction():
        assert doctor.of_shared_queues(bench.connection) == []
    assert not [each for each in warnings(caplog) if "other streams" in each]

    start(bench, streamName="third").latest(INITIAL)
    with bench.transaction():
        assert len(doctor.of_shared_queues(bench.connection)) == 1
    assert [each for each in warnings(caplog) if "other streams" in each]


def test_a_restart_is_no_second_stream(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The process that was killed has left its heartbeat, which is young."""
    driver = start(bench)
    end = run_batch(bench, driver)
    warnings(caplog)

    start(bench).latest(end)

    assert not [each for each in warnings(caplog) if "other streams" in each]
    assert len(list_heartbeats(bench)) == 1


def test_a_removed_stream_is_in_no_list_until_it_starts_again(
    bench: Bench,
    silent: None,  # noqa: ARG001
) -> None:
    """Commands find it by its name, if no other stream has that name."""
    driver = start(bench)
    end = run_batch(bench, driver)
    driver.acknowledge(end)
    with bench.transaction():
        found = find_stream(bench.connection, "nightly orders")
        remove_stream(bench.connection, found.stream)
    assert streams(bench) == []
    with bench.transaction(), pytest.raises(errors.StreamKept, match="no stream has this id"):
        find_stream(bench.connection, str(end.stream))

    start(bench).acknowledge(end)

    assert [stream.stream for stream in streams(bench)] == [end.stream]


def test_a_stream_that_runs_or_holds_receipts_is_not_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changes then."""
    driver = start(bench)
    stream = str(run_batch(bench, driver).stream)
    with bench.transaction(), pytest.raises(errors.StreamKept, match=r"it holds 1 receipt\."):
        remove_stream(bench.connection, stream)
    driver.acknowledge(driver.memory.planned_end or INITIAL)
    with bench.transaction(), pytest.raises(errors.StreamKept, match=f"it runs on {HOST}"):
        remove_stream(bench.connection, stream)
    assert [found.stream for found in streams(bench)] == [stream]

    for module in (state_rows, state_tables):
        monkeypatch.setattr(module, "LONGEST_SILENCE", 0.0)
    with bench.transaction():
        remove_stream(bench.connection, stream)
    assert streams(bench) == []


def test_two_streams_of_one_name_need_an_id(bench: Bench, silent: None) -> None:  # noqa: ARG001
    """The error has the ids."""
    ids = []
    for number in range(2):
        driver = start(bench)
        batch = SparkBatch(query_id=f"query {number}", number=0, query_name="same")
        end = run_batch(bench, driver, spark_batch=batch)
        driver.acknowledge(end)
        ids.append(str(end.stream))

    with bench.transaction(), pytest.raises(errors.StreamKept) as caught:
        find_stream(bench.connection, "same")

    assert all(each in str(caught.value) for each in ids)


def test_a_removed_stream_keeps_the_high_water_mark(bench: Bench, silent: None) -> None:  # noqa: ARG001
    """The checkpoint loses its entries, but not its query's id: the sink would drop the rows."""
    driver = start(bench)
    end = run_batch(bench, driver)
    driver.acknowledge(end)
    with bench.transaction():
        remove_stream(bench.connection, str(end.stream))
    bench.dotnet.send(bench.queue, body=b"new")
    again = start(bench)
    (task,) = again.tasks(again.latest(INITIAL))

    lost = SparkBatch(query_id="query", run_id="next run", number=0)
    with pytest.raises(errors.CheckpointIncomplete):
        bench.receive(task, spark_batch=lost)

    assert bench.waiting_bodies() == [b"new"]
    later = SparkBatch(query_id="query", run_id="next run", number=1)
    assert bodies(bench.receive(task, spark_batch=later)) == [b"new"]
