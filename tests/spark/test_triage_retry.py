"""Failures of a table are returned once, wherever it ends in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sqlq_spark import triage
from sqlq_spark.headers import FAILED_Q, MESSAGE_ID, dumps
from sqlq_spark.options import SourceOptions
from sqlq_spark.triage_retry import RequestStuck, Retry

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
def retry(spark: SparkSession, queue: Queue, failures: str) -> Callable[[], Retry]:
    """Give what returns them, as a fresh process has it."""
    options = {"url": queue.place.url, "stateSchema": queue.place.state}

    def sink(request: str) -> dict[str, str]:
        once = {"txnAppId": f"triage:{request}", "txnVersion": "0"}
        return {**options, "asReceived": "true", **once}

    source = SourceOptions.parse({**options, "queue": "e"})
    return lambda: Retry(spark, failures, source, sink)


def state(made: Retry) -> list[tuple[Any, ...]]:
    """Which failures a request has, and which are returned."""
    columns = "failureId", "request IS NOT NULL", "returned IS NOT NULL"
    return sorted(tuple(row) for row in made.rows.selectExpr(*columns).collect())


def dying(made: Retry, gap: str, monkeypatch: pytest.MonkeyPatch) -> Retry:
    """Let it die before it sends, or between the send and its mark."""
    if gap == "before the send":
        monkeypatch.setattr(made, "finish", struck)
    else:
        update = made._update  # noqa: SLF001 - the gap is before its second call

        def once(which: Any, values: dict[str, Any]) -> None:
            if "returned" in values:
                raise Killed
            update(which, values)

        monkeypatch.setattr(made, "_update", once)
    return made


def struck(_: str) -> int:
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
    assert "is no queue in" in reason
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

    with pytest.raises(RequestStuck, match=r"cannot be finished: .* is no queue in"):
        made.finish(request)
    returned, waiting = made.resume()
    missing = made.missing(groups=["0"], ids=["m-1", "row-2", "row-9"])

    assert (returned, [*waiting.values()], missing) == (0, [1], ["0", "row-9"])
    assert made.missing(groups=["0"], ids=["row-9"]) == ["0", "row-9"]
    queue.create()
    assert made.resume() == (1, {})
    assert queue.ids() == ["m-1"]
