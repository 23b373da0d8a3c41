"""What jobs refuse before they receive anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobs import submit
from jobs.submit import module
from sqlq_spark.jobs.settings import BadSettings, make_settings

if TYPE_CHECKING:
    from spark.stand import Queue

pytestmark = pytest.mark.spark

TRIAGE = {"queue": "e", "mode": "retry"}
COLLECT = TRIAGE | {"mode": "collect"}


def settings(job: str, **given: Any) -> Any:
    """Settings of a job on a database that nothing connects to."""
    shared = {"url": "postgresql:///s", "table": "/t", "checkpoint": "c"}
    return make_settings(module(job).main.kind, shared | given)


@pytest.mark.parametrize(
    ("job", "given", "expected"),
    [
        ("delta_to_queue", {"delta": {"ReadChangeFeed": "true"}}, 'set changes = "feed"'),
        ("delta_to_queue", {"delta": {"ignoreChanges": "true"}}, "it would send rows again"),
        ("error_triage", COLLECT | {"checkpoint": None}, "setting checkpoint is missing"),
        ("error_triage", COLLECT | {"limit": 1}, "give_up and limit are for --mode retry"),
        ("error_triage", TRIAGE | {"sink": {"asReceived": "true"}}, "asReceived in .sink. is set"),
        ("error_triage", TRIAGE | {"sink": {"delivery": "atLeastOnce"}}, "delivery in .sink. is s"),
        ("error_triage", TRIAGE | {"sink": {"txnAppId": "mine"}}, "txnAppId in .sink. is set by"),
    ],
)
def test_settings_that_would_send_again_are_refused(
    job: str, given: dict[str, Any], expected: str
) -> None:
    """No setting can make a return repeat, or send a row as it was before its change."""
    more = {"queue": "q"} if job == "delta_to_queue" else {}

    with pytest.raises(BadSettings, match=expected):
        settings(job, **more, **given).options()


def test_targets_of_a_relay_are_checked(queue: Queue) -> None:
    """A target may be absent, or the queue itself, also by a url with other parameters."""
    relay, place, bills = module("relay"), queue.place, queue.another("bills")
    queue.another("error")

    def check(**more: Any) -> None:
        made = make_settings(
            relay.RelaySettings, submit.settings("relay", queue, Path("/"), **more)
        )
        made.options()
        relay.find_routes(made)

    for more, expected in (
        ({"targets": {queue.name: "absent"}}, r'"public"\."absent" in'),
        ({"targets": {"nobody": "x"}}, r"nobody in \[targets\] is not one of the queues"),
        ({"target_schema": place.schema}, "is read and sent to in postgresql://"),
        (
            {"target_schema": place.schema, "target_url": f"{place.url}?connect_timeout=9"},
            "is read and sent to in postgresql://",
        ),
    ):
        with pytest.raises(Exception, match=expected):
            check(**more)
    together = {"stateSchema": place.state, "transactionMode": "sendsAtomicWithReceive"}
    check(targets={queue.name: bills.name}, sink=together)  # two queues of one database
