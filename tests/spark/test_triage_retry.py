"""Failures of a table are returned once, wherever a run ends in between."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows

from sqlq_spark.jobs import error_triage as triage
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.send.dispatch import give_up
from sqlq_spark.wire.headers import FAILED_Q, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark.stand import SparkQueue

    Start = Callable[..., triage.Retry]

pytestmark = pytest.mark.spark


BEFORE_SEND, BEFORE_MARK = "before the send", "before the mark"
GAPS = pytest.mark.parametrize("gap", [BEFORE_SEND, BEFORE_MARK])


class Killed(Exception):
    """Ends a retry in a gap."""


@pytest.fixture
def failures(queue: SparkQueue) -> str:
    """Give a table of four failures of the queue, and one of a queue that is not there."""
    rows = [
        (f"row-{at}", dumps({MESSAGE_ID: f"m-{at}", FAILED_Q: queue.name}), b"%d" % at, at, "e")
        for at in range(4)
    ]
    rows.append(("row-4", dumps({FAILED_Q: "nowhere"}), b"4", 4, "e"))
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    table = str(queue.folder / "failures")
    frame = queue.spark.createDataFrame(rows, kinds).coalesce(1)
    triage.failures(frame).write.format("delta").save(table)
    return table


@pytest.fixture
def options(queue: SparkQueue) -> dict[str, str]:
    """Options of the sink; a test may change them between two runs."""
    return {"url": queue.place.url, "stateSchema": queue.place.state}


@pytest.fixture
def retry(queue: SparkQueue, options: dict[str, str], failures: str) -> Start:
    """Give a function that makes a Retry of some messages, as a new process does."""
    errors = queue.another("e")

    def start(*ids: str, **more: Any) -> triage.Retry:
        state = {"stateSchema": options["stateSchema"]}
        settings = triage.Settings(
            url=queue.place.url,
            error_queue=errors.name,
            table=failures,
            mode="retry",
            ids=ids,
            source=state,
            sink=state,
            **more,
        )
        return triage.Retry(queue.spark, settings)

    return start


def state(made: triage.Retry) -> list[tuple[Any, ...]]:
    """Which failures have a request, and which are returned."""
    columns = "failureId", "request IS NOT NULL", "returned IS NOT NULL"
    return sorted(tuple(row) for row in made.rows.selectExpr(*columns).collect())


def counted(made: triage.Retry) -> dict[str, int]:
    """What was done to failures, and to how many."""
    return {name: total for name, total in made.totals.items() if total}


def killed(retry: Start, gap: str, *ids: str, limit: int | None = None) -> list[str]:
    """Begin a return of these messages, and end it in a gap; gives the pending requests."""
    made = retry(*ids)
    update = made._update  # noqa: SLF001 - the second gap is before its second call

    def end(*_: object) -> int:
        raise Killed

    def update_once(which: str, change: str) -> None:
        if change.startswith("returned ="):
            raise Killed
        update(which, change)

    name, replacement = ("send", end) if gap == BEFORE_SEND else ("_update", update_once)
    setattr(made, name, replacement)
    with pytest.raises(Killed):
        made.do(limit)
    return retry().pending()


@GAPS
def test_a_return_that_ends_in_a_gap_is_finished_by_the_next(
    queue: SparkQueue, retry: Start, gap: str
) -> None:
    """Messages are sent once, and are not requested again."""
    (request,) = killed(retry, gap, "m-1", "row-2", "row-9")
    sent = queue.ids()
    assert state(retry())[1:3] == [("row-1", True, False), ("row-2", True, False)]

    again = retry("m-1")
    again.do(None)
    assert counted(again) == {}
    for _ in range(2):
        again.finish(request, "resumed")
    assert counted(again) == {"resumed": 2}

    assert sent == ([] if gap == BEFORE_SEND else ["m-1", "m-2"])
    assert sorted(queue.ids()) == ["m-1", "m-2"]
    assert [row for row in state(again) if row[1] or row[2]] == [
        ("row-1", True, True),
        ("row-2", True, True),
    ]
    assert again.pending() == []


@GAPS
def test_the_oldest_of_a_choice_are_returned_once(
    queue: SparkQueue, retry: Start, gap: str
) -> None:
    """By the time of the failure, then by their order in the error queue; the others stay free."""
    ids = [f"m-{at}" for at in range(4)]
    earlier = "timeOfFailure = TIMESTAMP '2020-01-01 00:00:00Z'"
    retry()._update("failureId = 'row-3'", earlier)  # noqa: SLF001
    killed(retry, gap, *ids, limit=2)

    chosen = [row for row in state(retry()) if row[1]]
    again = retry(*ids)

    assert chosen == [("row-0", True, False), ("row-3", True, False)]
    again.resume()
    again.do(0)
    assert sorted(queue.ids()) == ["m-0", "m-3"]
    again.do(3)
    assert sorted(queue.ids()) == ["m-0", "m-1", "m-3"]
    again.do(9)
    assert sorted(queue.ids()) == ids
    assert counted(again) == {"resumed": 2, "returned": 2}


def test_only_failures_that_were_returned_long_ago_are_deleted(
    queue: SparkQueue, retry: Start, failures: str
) -> None:
    """One that waits for a decision or a retry stays, however old it is."""
    made = retry()
    old, new = (f"current_timestamp() - INTERVAL {days} DAYS" for days in (8, 6))
    made._update("true", f"collected = {old}")  # noqa: SLF001
    for row, change in enumerate([f"returned = {old}", f"returned = {new}", "returned = NULL"]):
        made._update(f"failureId = 'row-{row}'", f"request = 'r', {change}")  # noqa: SLF001
    given: dict[str, Any] = {"url": queue.place.url, "error_queue": "e", "table": failures}
    settings = triage.Settings(**given, retention_days=7.0)

    done = [triage.tidy(queue.spark, settings) for _ in range(2)]

    assert done == [{"deletedFailures": 1}, {"deletedFailures": 0}]
    assert [row[0] for row in state(made)] == ["row-1", "row-2", "row-3", "row-4"]
    assert len(delta_rows(queue.folder / "failures_groups")) == 1


def test_a_group_is_returned_except_for_unreachable_queues(queue: SparkQueue, retry: Start) -> None:
    """The others stay, with the reason."""
    made = retry()
    (digest,) = {row["digest"] for row in made.rows.collect()}

    made = retry(groups=(digest,))
    made.do(None)

    ((reason, messages),) = made.staying.items()
    assert (counted(made), messages) == ({"returned": 4}, 1)
    assert "nowhere" in reason
    assert "this login cannot insert into a queue" in reason
    assert sorted(queue.ids()) == [f"m-{at}" for at in range(4)]
    assert state(made)[4] == ("row-4", False, False)


def test_a_request_whose_queue_was_dropped_waits_for_it(queue: SparkQueue, retry: Start) -> None:
    """It goes on when the queue is there again, and stops no other until then."""
    (request,) = killed(retry, BEFORE_SEND, "m-1")
    queue.dba.drop(queue.address)
    made = retry("m-1", "row-2", "row-9", groups=("0",))

    made.finish(request, "resumed")

    ((reason, messages),) = made.staying.items()
    assert (counted(made), messages) == ({}, 1)
    assert re.search(r"cannot be finished: .*cannot insert into a queue", reason)
    assert made.missing() == ["0", "row-9"]
    queue.create()
    made.resume()
    assert counted(made) == {"resumed": 1}
    assert queue.ids() == ["m-1"]


def test_another_dispatch_log_does_not_send_again(
    retry: Start, queue: SparkQueue, options: dict[str, str]
) -> None:
    """A request that was sent and not marked waits under another stateSchema."""
    killed(retry, BEFORE_MARK, "m-1")
    was = dict(options)
    options["stateSchema"] += "_2"
    replace(queue, place=replace(queue.place, state=options["stateSchema"])).install()
    other = retry(give_up=tuple(retry().pending()))
    other.resume()
    options.update(was)

    ((reason, messages),) = other.staying.items()
    assert (counted(other), messages) == ({}, 1)
    assert "the dispatch log does not have it" in reason
    assert "Set the url and the [sink] with which it was begun" in reason
    again = retry()
    again.resume()
    assert counted(again) == {"resumed": 1}
    assert queue.ids() == ["m-1"]


@GAPS
def test_a_request_that_is_given_up_is_never_sent_automatically(
    retry: Start, queue: SparkQueue, gap: str
) -> None:
    """Its failures are free again, unless they were sent: then they are marked."""
    (request,) = killed(retry, gap, "m-1", "m-2")
    asleep, made = retry(), retry("m-1", "m-2", give_up=(request,))
    rows = asleep.rows.where("request IS NOT NULL")

    if gap == BEFORE_SEND:
        triage.in_log(made.settings.write(request), give_up)
    asleep.send(request, rows, {queue.name: 2})
    made.resume()

    sent = gap == BEFORE_MARK
    assert counted(made) == ({"resumed": 2} if sent else {"freed": 2})
    assert len(queue.ids()) == (2 if sent else 0)
    made.do(None)
    assert made.totals["returned"] == (0 if sent else 2)
    assert sorted(queue.ids()) == ["m-1", "m-2"]
    with pytest.raises(BadSettings, match=f"names '{request}': expected a pending request .none."):
        made.resume()


def test_giving_up_that_is_killed_is_finished_by_the_next(retry: Start, queue: SparkQueue) -> None:
    """The dispatch log has it as given up, and the rows do not yet."""
    (request,) = killed(retry, BEFORE_SEND, "m-1")
    made = retry()
    triage.in_log(made.settings.write(request), give_up)

    made.resume()
    assert (counted(made), made.pending()) == ({"freed": 1}, [])
    assert not any(request or returned for _, request, returned in state(made))
    assert queue.ids() == []


def test_runs_that_mark_at_once_all_succeed(retry: Start) -> None:
    """Each its own rows of one file: a commit that came first is no failure."""
    runs = [retry() for _ in range(4)]

    def mark(at: int) -> None:
        runs[at]._update(f"seq = {at}", "returned = current_timestamp()")  # noqa: SLF001

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(mark, range(len(runs))))

    assert [row[2] for row in state(retry())] == [True, True, True, True, False]
