"""audit_to_delta: each audited message once, with the values of its headers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from jobs.submit import delta_rows, module
from sqlq_spark.jobs.settings import BadSettings, load

if TYPE_CHECKING:
    from spark.stand import Queue

    from jobs.submit import Desk

pytestmark = [pytest.mark.spark, pytest.mark.faults]

AUDITED = {
    "NServiceBus.MessageId": "one",
    "NServiceBus.MessageIntent": "Send",
    "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder, Shop, Version=1.0.0.0",
    "NServiceBus.ConversationId": "talk",
    "NServiceBus.CorrelationId": "answered",
    "NServiceBus.RelatedTo": "zero",
    "NServiceBus.OriginatingEndpoint": "Shop.Web",
    "NServiceBus.OriginatingMachine": "WEB-01",
    "NServiceBus.TimeSent": "2026-06-30 17:05:09:623456 Z",
    "NServiceBus.ProcessingStarted": "2026-06-30 17:05:10:000000 Z",
    "NServiceBus.ProcessingEnded": "2026-06-30 17:05:10:250001 Z",
    "NServiceBus.ProcessingEndpoint": "Shop.Sales",
    "NServiceBus.ProcessingMachine": "SALES-01",
}
EXPECTED = {
    "messageId": "one",
    "messageType": "Shop.PlaceOrder",
    "intent": "Send",
    "originatingEndpoint": "Shop.Web",
    "originatingMachine": "WEB-01",
    "processingEndpoint": "Shop.Sales",
    "processingMachine": "SALES-01",
    "conversationId": "talk",
    "correlationId": "answered",
    "relatedTo": "zero",
    "timeSent": datetime(2026, 6, 30, 17, 5, 9, 623456),  # noqa: DTZ001 - INT96 has no zone
    "deliverAt": None,
    "processingTime": 0.250001,
    "criticalTime": 0.626545,
    "delayedRetries": None,
    "immediateRetries": None,
    "retried": False,
    "failed": False,
    "bodySize": 2,
    "body": b"{}",
    "date": "2026-06-30",
}


def ended(moment: str, **more: str) -> str:
    """Headers of a message whose processing ended then."""
    return json.dumps({"NServiceBus.ProcessingEnded": moment, **more})


@pytest.fixture
def given(queue: Queue, desk: Desk) -> dict[str, Any]:
    """Give the settings of the job."""
    return {
        "queue": queue.name,
        "table": str(desk.folder / "audit"),
        "checkpoint": str(desk.folder / "checkpoint"),
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": 100},
    }


@pytest.mark.usefixtures("spark")
def test_killed_in_the_middle_each_audited_message_is_there_once(
    queue: Queue, desk: Desk, given: dict[str, Any]
) -> None:
    """Headers that no endpoint should write stop nothing; a date is never in the future."""
    table = desk.folder / "audit"
    queue.put(json.dumps(AUDITED))
    queue.put(ended("0001-01-01 00:00:00:000000 Z", **{"NServiceBus.Retries": "x"}), b"x" * 2000)
    queue.put(ended("9999-12-31 23:59:59:999999 Z", **{"NServiceBus.FLRetries": "2"}))
    queue.put(ended("no time", **{"NServiceBus.FailedQ": "Shop.Sales"}), None)
    queue.put("[]")
    queue.fill(0, 295)
    given["body_limit"] = "1k"

    today = queue.place.sql("SELECT (now() AT TIME ZONE 'UTC')::date")[0][0]
    desk.killed_when((table / "_delta_log" / f"{0:020}.json").exists, "audit_to_delta", given)
    left = queue.count()
    done = desk.run("audit_to_delta", given)

    assert done.code == 0, done.log
    assert 0 < left <= done.totals["messages"] <= 300
    rows = delta_rows(table)
    assert len(rows) == len({row["id"] for row in rows}) == 300
    assert [queue.count(), queue.state("receipt")] == [0, 0]
    (one,) = (row for row in rows if row["messageId"] == "one")
    assert {name: one[name] for name in EXPECTED} == EXPECTED
    ancient, ahead, failed, poison = sorted(
        (row for row in rows if row["messageType"] is None), key=lambda row: row["seq"]
    )
    assert (ancient["date"], ancient["bodySize"], ancient["body"]) == ("0001-01-01", 2000, None)
    assert (ancient["delayedRetries"], ancient["retried"]) == (None, False)
    assert (ahead["immediateRetries"], ahead["retried"]) == (2, True)
    assert (failed["failed"], failed["bodySize"], failed["processingEnded"]) == (True, None, None)
    assert (poison["headers"], poison["corruptHeaders"]) == (None, "[]")
    assert all(row["date"] >= str(today) for row in (ahead, failed, poison))


# ---------------------------------------------------------------- without Spark


@pytest.mark.parametrize("value", ["0", "nan", "1e6"])
def test_times_that_would_do_harm_are_refused(value: str) -> None:
    """None, or longer than a calendar."""
    audit, flag = module("audit_to_delta"), "--retention-days"
    words = ["--url", "postgresql:///", "--table", "t", "--checkpoint", "c", flag, value]
    expected = "a number of days above 0, at most 36500"

    with pytest.raises(BadSettings, match=f"flag {flag} is '{value}': expected {expected}"):
        load("", audit.Settings, words)
