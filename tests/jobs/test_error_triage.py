"""error_triage: killed while it collects and while it returns, each failure goes once each way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jobs.submit import delta_rows, module, sigterm_when
from sqlq_spark.jobs import error_triage
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, MESSAGE_ID, TIME_OF_FAILURE, dumps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark.stand import Queue

    from jobs.submit import Desk

pytestmark = [pytest.mark.spark, pytest.mark.faults]

FAILURES = 600
STACK = "   at Shop.Handler.Handle(Order order) in /src/Handler.cs:line %d\n"


@pytest.fixture
def error(queue: Queue) -> Queue:
    """Give an error queue: even numbers Late, odd ones Bad, one homeless, one elsewhere."""
    made = queue.another("error")
    queue.place.connection.cursor().executemany(
        f"INSERT INTO {made.name} (id, headers, body) VALUES (gen_random_uuid(), %s, %s)".encode(),
        [
            *((failed(at, queue.name), b"%d" % at) for at in range(FAILURES)),
            (dumps({MESSAGE_ID: "homeless"}), b""),
            (failed(FAILURES, "nowhere"), b""),
        ],
    )
    return made


def failed(number: int, source: str) -> str:
    """Headers of a message that failed."""
    return dumps(
        {
            MESSAGE_ID: f"m-{number}",
            "tenant": "a/b",
            f"{EXCEPTION_INFO}ExceptionType": f"System.{('Late', 'Bad')[number % 2]}",
            f"{EXCEPTION_INFO}Message": f"order {number}",
            f"{EXCEPTION_INFO}StackTrace": STACK % number,
            TIME_OF_FAILURE: "2026-06-30 17:05:39:000001 Z",
            FAILED_Q: source,
        }
    )


def settings(desk: Desk, error: Queue, **more: Any) -> dict[str, Any]:
    """Settings of both modes."""
    return {
        "error_queue": error.name,
        "table": str(desk.folder / "failures"),
        "checkpoint": str(desk.folder / "checkpoint"),
        "source": {"stateSchema": error.place.state, "maxMessagesPerTrigger": "250"},
        "sink": {"stateSchema": error.place.state},
        **more,
    }


@pytest.mark.usefixtures("spark")
def test_killed_while_it_collects(queue: Queue, error: Queue, desk: Desk) -> None:
    """Each failure is in the table once, whole, and in its group."""
    desk.killed_when(lambda: error.received(2), "error_triage", settings(desk, error))
    done = desk.run("error_triage", settings(desk, error))

    assert done.code == 0
    assert error.count() == 0
    rows = delta_rows(desk.folder / "failures")
    assert sorted(row["seq"] for row in rows) == list(range(1, FAILURES + 3))
    whole = next(row for row in rows if row["messageId"] == "m-7")
    assert (whole["headers"], whole["body"]) == (failed(7, queue.name), b"7")
    groups = delta_rows(desk.folder / "failures_groups")
    counted = {row["exceptionType"]: row["failures"] for row in groups}
    assert counted == {"System.Late": 301, "System.Bad": 300, None: 1}


def test_killed_between_a_return_and_its_mark(
    queue: Queue, error: Queue, desk: Desk, spark: SparkSession
) -> None:
    """Sent messages are not sent again; those that cannot be returned stay, with exit code 1."""
    table = desk.folder / "failures"
    sources = [*[queue.name] * 100, "nowhere"]
    rows = [(f"row-{at}", failed(at, each), b"", at, "error") for at, each in enumerate(sources)]
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    made = error_triage.failures(spark.createDataFrame(rows, kinds)).coalesce(1)
    made.write.format("delta").save(str(table))
    late = delta_rows(table)[0]["digest"]
    given = settings(desk, error, mode="retry", groups=late)

    desk.killed_when(queue.count, "error_triage", given)
    between = delta_rows(table)
    done = desk.run("error_triage", given, "--ids", "m-1")

    assert sum(row["request"] is not None for row in between) == 50
    assert not any(row["returned"] for row in between)
    assert [done.totals["resumed"], done.totals["returned"], done.code] == [50, 1, 1]
    assert [*done.totals["staying"].values()] == [1]
    expected = sorted(["m-1", *(f"m-{number}" for number in range(0, 100, 2))])
    assert sorted(row["messageId"] for row in delta_rows(table) if row["returned"]) == expected
    assert sorted(queue.ids()) == expected
    assert all([*headers] == [MESSAGE_ID, "tenant"] for headers, _ in queue.rows())
    assert queue.state("staging") == 0


def test_a_stream_groups_after_each_batch_until_sigterm(
    error: Queue, desk: Desk, spark: SparkSession
) -> None:
    """It ends after its batch."""
    made = module("error_triage")
    source = {"stateSchema": error.place.state}  # all in one batch
    given = settings(desk, error, trigger="100 milliseconds", url=error.place.url, source=source)
    log = desk.folder / "failures_groups" / "_delta_log"

    with sigterm_when(lambda: [*log.glob("*.json")]):
        made.run(spark, made.Settings(**given))

    assert len(delta_rows(desk.folder / "failures_groups")) == 3
    assert error.count() == 0


# ---------------------------------------------------------------- without Spark


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"checkpoint": None}, "setting checkpoint is missing"),
        ({"limit": 1}, "give_up and limit are for --mode retry"),
        ({"groups": ("a",)}, "settings groups, ids, give_up and limit are for --mode retry"),
        ({"sink": {"asReceived": "true"}}, "asReceived in .sink. is set by the job"),
        ({"sink": {"delivery": "atLeastOnce"}}, "delivery in .sink. is set by the job"),
        ({"sink": {"txnAppId": "mine", "txnVersion": "7"}}, "txnAppId in .sink. is set by the job"),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], expected: str) -> None:
    """Before Spark starts; no setting can make a return repeat."""
    kind = module("error_triage").Settings
    given = {"url": "postgresql:///", "error_queue": "e", "table": "/t/", "checkpoint": "c"}
    mode = "retry" if "sink" in more else "collect"

    with pytest.raises(BadSettings, match=expected):
        kind(**given | {"mode": mode} | more).options()
