"""audit_to_delta: each audited message once, with what its headers say."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from jobs.submit import delta_actions, delta_rows, module
from sqlq_spark.jobs import main as job
from sqlq_spark.jobs import settings_reader

if TYPE_CHECKING:
    from pathlib import Path

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
    """Headers of a message processed then."""
    return json.dumps({"NServiceBus.ProcessingEnded": moment, **more})


def test_killed_in_the_middle_each_audited_message_comes_once(queue: Queue, desk: Desk) -> None:
    """And what no endpoint should write stops nothing: a date is never later than the coming."""
    table = desk.folder / "audit"
    queue.put(json.dumps(AUDITED))
    queue.put(ended("0001-01-01 00:00:00:000000 Z", **{"NServiceBus.Retries": "x"}), b"x" * 2000)
    queue.put(ended("9999-12-31 23:59:59:999999 Z", **{"NServiceBus.FLRetries": "2"}))
    queue.put(ended("no time", **{"NServiceBus.FailedQ": "Shop.Sales"}), None)
    queue.put("[]")
    queue.fill(0, 295)
    settings = {
        "queue": queue.name,
        "table": str(table),
        "checkpoint": str(desk.folder / "checkpoint"),
        "body_limit": "1k",
        "optimize": True,
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": 100},
    }

    today = queue.place.sql("SELECT (now() AT TIME ZONE 'UTC')::date")[0][0]
    desk.killed_when((table / "_delta_log" / f"{0:020}.json").exists, "audit_to_delta", settings)
    left = queue.count()
    done = desk.run("audit_to_delta", settings)

    assert done.code == 0, done.log
    assert 0 < left <= done.totals["messages"] <= 300
    assert done.totals["messagesPerSecond"] > 0
    assert done.totals["packedFiles"] > 1
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


OLD = "2026-01-0{} 17:05:10:000000 Z"  # long before any retention


def operations(table: Path) -> list[str]:
    """What the commits of a table were, in their order."""
    told = (action["commitInfo"] for action in delta_actions(table) if "commitInfo" in action)
    return [each["operation"] for each in told]


@pytest.mark.timeout(900)  # four starts of Spark
def test_killed_while_it_keeps_the_table_in_order(queue: Queue, desk: Desk) -> None:
    """After the rows are deleted, while files are packed, while unused ones go: rows stay whole."""
    table = desk.folder / "audit"
    table.mkdir()
    for number in range(200):
        old = {} if number % 2 else {"NServiceBus.ProcessingEnded": OLD.format(1 + number % 3)}
        queue.put(json.dumps({"NServiceBus.MessageId": f"m-{number}", **old}))
    kept = {f"m-{number}" for number in range(1, 200, 2)}
    settings = {
        "queue": queue.name,
        "table": str(table),
        "checkpoint": str(desk.folder / "checkpoint"),
        "optimize": True,
        "retention_days": 0.000001,
        "vacuum_hours": 24,
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": 50},
    }

    def whole() -> list[set[str]]:
        ids = [row["messageId"] for row in delta_rows(table)]
        assert len(ids) == len(set(ids))
        return [set(ids)]

    desk.killed_when(lambda: "DELETE" in operations(table), "audit_to_delta", settings)
    deleted = whole()
    there = set(table.rglob("*.parquet"))
    desk.killed_when(lambda: set(table.rglob("*.parquet")) - there, "audit_to_delta", settings)
    packed = whole()
    unused = [table / f"unused-{number}.parquet" for number in range(5000)]
    for each in unused:
        each.touch()
        os.utime(each, (time.time() - 90_000,) * 2)
    desk.killed_when(lambda: not all(each.exists() for each in unused), "audit_to_delta", settings)
    vacuumed = whole()
    done = desk.run("audit_to_delta", settings)

    assert done.code == 0, done.log
    assert deleted + packed + vacuumed + whole() == [kept] * 4
    assert not any(each.exists() for each in unused)
    assert [queue.count(), done.totals["vacuums"]] == [0, 1]


# ---------------------------------------------------------------- without Spark


HOURS = "a number of hours from 24 to 87600"
DAYS = "a number of days above 0, at most 36500"


@pytest.mark.parametrize(
    ("flag", "given", "told"),
    [
        *(("--vacuum-hours", given, HOURS) for given in ("0.0001", "23.9", "nan", "inf")),
        *(("--retention-days", given, DAYS) for given in ("0", "nan", "1e6")),
    ],
)
def test_times_that_would_harm_are_refused_at_the_start(flag: str, given: str, told: str) -> None:
    """No version of a table has the files of a batch that is being written: a day they stay."""
    audit = module("audit_to_delta")
    words = ["--url", "postgresql:///", "--table", "t", "--checkpoint", "c", flag, given]
    found = settings_reader.parse_words("", audit.Settings, words)

    with pytest.raises(job.BadSettings, match=f"flag {flag} is '{given}': expected {told}"):
        settings_reader.load(audit.Settings, found, lambda *_: "")
