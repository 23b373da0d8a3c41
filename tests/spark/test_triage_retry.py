"""Failures of a table are returned once, wherever it ends in between."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.triage import failures as triage
from sqlq_spark.jobs.triage.retry import RequestStuck, Retry
from sqlq_spark.options import SourceOptions
from sqlq_spark.wire.headers import FAILED_Q, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.stand import Queue

pytestmark = pytest.mark.spark


class Killed(Exception):
    """What ends a retry in a gap."""


@pytest.fixture
def failures(spark: SparkSession, queue: Queue, tmp_path: Path) -> str:
    """Give a table of four failures of the queue, and one of a queue that is not there."""
    rows = [
        (f"row-{at}", dumps({MESSAGE_ID: f"m-{at}", FAILED_Q: queue.name}), b"%d" % at, at, "e")
        for at in range(4)
    ]
    rows.append(("row-4", dumps({FAILED_Q: "nowhere"}), b"4", 4, "e"))
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    table = str(tmp_path / "failures")
    frame = spark.createDataFrame(rows, kinds).coalesce(1)
    triage.failures(frame).write.format("delta").save(table)
    return table


@pytest.fixture
def options(queue: Queue) -> dict[str, str]:
    """Where messages are returned to, and the ledger is; may be changed between two runs."""
    return {"url": queue.place.url, "stateSchema": queue.place.state}


@pytest.fixture
def retry(
    spark: SparkSession, queue: Queue, options: dict[str, str], failures: str
) -> Callable[[], Retry]:
    """Give what returns them, as a fresh process has it; the error queue has the same owner."""
    errors = queue.beside("e")
    errors.create()

    def sink(request: str) -> dict[str, str]:
        once = {"txnAppId": f"triage:{request}", "txnVersion": "0"}
        return {**options, "asReceived": "true", **once}

    source = SourceOptions.parse({**options, "queue": errors.name})
    return lambda: Retry(spark, failures, source, sink)


def state(made: Retry) -> list[tuple[Any, ...]]:
    """Which failures a request has, and which are returned."""
    columns = "failureId", "request IS NOT NULL", "returned IS NOT NULL"
    return sorted(tuple(row) for row in made.rows.selectExpr(*columns).collect())


def dying(made: Retry, gap: str, monkeypatch: pytest.MonkeyPatch) -> Retry:
    """Let it die before it sends, or between the send and its mark."""
    if gap == "before the send":
        monkeypatch.setattr(made, "send", struck)
    else:
        update = made._update  # noqa: SLF001 - the gap is before its second call

        def once(which: str, change: str) -> None:
            if change.startswith("returned ="):
                raise Killed
            update(which, change)

        monkeypatch.setattr(made, "_update", once)
    return made


def struck(*_: Any) -> int:
    """End it."""
    raise Killed


@pytest.mark.parametrize("gap", ["before the send", "before the mark"])
def test_what_ends_in_a_gap_is_finished_by_the_next(
    queue: Queue, retry: Callable[[], Retry], gap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent once; neither is it asked for again."""
    with pytest.raises(Killed):
        dying(retry(), gap, monkeypatch).do(groups=(), ids=["m-1", "row-2", "row-9"])
    sent = queue.ids()
    assert state(retry())[1:3] == [("row-1", True, False), ("row-2", True, False)]

    again = retry()
    (request,) = again.pending()
    assert again.do(groups=(), ids=["m-1"]) == (0, {})
    assert [again.finish(request) for _ in range(2)] == [2, 0]

    assert sent == ([] if gap == "before the send" else ["m-1", "m-2"])
    assert sorted(queue.ids()) == ["m-1", "m-2"]
    assert [row for row in state(again) if row[1] or row[2]] == [
        ("row-1", True, True),
        ("row-2", True, True),
    ]
    assert again.pending() == []


def test_a_group_goes_but_for_what_has_nowhere_to_go(
    queue: Queue, retry: Callable[[], Retry]
) -> None:
    """The rest stays and is told; a queue that has gone stops a request, until it is there."""
    made = retry()
    (digest,) = {row["digest"] for row in made.rows.collect()}

    returned, staying = made.do(groups=[digest], ids=())

    assert returned == 4
    assert [*staying.values()] == [1]
    (reason,) = staying
    assert "nowhere" in reason
    assert "this login cannot insert into a queue" in reason
    assert sorted(queue.ids()) == [f"m-{at}" for at in range(4)]
    assert state(made)[4] == ("row-4", False, False)


def test_a_request_whose_queue_has_gone_waits_for_it(
    queue: Queue, retry: Callable[[], Retry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on when the queue is there again, and stops no other until then."""
    with pytest.raises(Killed):
        dying(retry(), "before the send", monkeypatch).do(groups=(), ids=["m-1"])
    queue.dba.drop(queue.address)
    made = retry()
    (request,) = made.pending()

    with pytest.raises(RequestStuck, match=r"cannot be finished: .*cannot insert into a queue"):
        made.finish(request)
    returned, waiting = made.resume()
    missing = made.missing(groups=["0"], ids=["m-1", "row-2", "row-9"])

    assert (returned, [*waiting.values()], missing) == (0, [1], ["0", "row-9"])
    assert made.missing(groups=["0"], ids=["row-9"]) == ["0", "row-9"]
    queue.create()
    assert made.resume() == (1, {})
    assert queue.ids() == ["m-1"]


def test_another_ledger_is_not_taken_for_one_that_sent_nothing(
    retry: Callable[[], Retry],
    queue: Queue,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that was sent, and not marked, is not sent again by way of another stateSchema."""
    with pytest.raises(Killed):
        dying(retry(), "before the mark", monkeypatch).do(groups=(), ids=["m-1"])
    was = dict(options)
    options["stateSchema"] += "_2"
    replace(queue, place=replace(queue.place, state=options["stateSchema"])).install()
    returned, waiting = retry().resume()
    (request,) = retry().pending()
    freed = retry().give_up([request])
    options.update(was)

    assert (returned, [*waiting.values()], freed) == (0, [1], 0)
    (told,) = waiting
    assert "the dispatch log does not have it" in told
    assert "Set the url and the [sink] with which it was begun" in told
    assert retry().resume() == (1, {})
    assert queue.ids() == ["m-1"]


@pytest.mark.parametrize("gap", ["before the send", "before the mark"])
def test_a_request_that_is_let_go_is_never_sent_by_itself(
    retry: Callable[[], Retry], queue: Queue, gap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failures are free again, unless they were sent: then they are marked."""
    with pytest.raises(Killed):
        dying(retry(), gap, monkeypatch).do(groups=(), ids=["m-1", "m-2"])
    asleep, made = retry(), retry()
    (request,) = made.pending()
    rows = asleep.rows.where("request IS NOT NULL")

    freed = made.give_up([request])
    asleep.send(request, rows, {queue.name: 2})
    resumed = made.resume()

    sent = gap == "before the mark"
    assert (freed, resumed) == ((0, (2, {})) if sent else (2, (0, {})))
    assert len(queue.ids()) == (2 if sent else 0)
    assert made.do(groups=(), ids=["m-1", "m-2"]) == (0 if sent else 2, {})
    assert sorted(queue.ids()) == ["m-1", "m-2"]
    with pytest.raises(BadSettings, match=f"names '{request}': expected a pending request .none."):
        made.give_up([request])


def test_one_that_is_killed_while_it_lets_go_is_done_by_the_next(
    retry: Callable[[], Retry], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger says that it was given up, and the rows do not yet."""
    with pytest.raises(Killed):
        dying(retry(), "before the send", monkeypatch).do(groups=(), ids=["m-1"])
    made = retry()
    (request,) = made.pending()
    made.log.give_up(request)

    assert made.resume() == (0, {})
    assert made.pending() == []
    assert not any(request or returned for _, request, returned in state(made))
    assert queue.ids() == []


def test_a_commit_that_came_first_is_no_failure(retry: Callable[[], Retry]) -> None:
    """Runs that mark at once, each its own rows of one file: each is done on what others left."""
    runs = [retry() for _ in range(4)]

    def mark(at: int) -> None:
        runs[at]._update(f"seq = {at}", "returned = current_timestamp()")  # noqa: SLF001

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(mark, range(len(runs))))

    assert [row[2] for row in state(retry())] == [True, True, True, True, False]
