"""queue_to_delta: killed in the middle and started again, every message is in a table once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from jobs.submit import delta_rows

if TYPE_CHECKING:
    from spark.stand import Queue

    from jobs.submit import Desk

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_killed_between_two_batches(queue: Queue, desk: Desk) -> None:
    """One table, by date and type; its columns have the values of the headers."""
    settings = {
        "queues": queue.name,
        "table": str(desk.folder / "table"),
        "checkpoint": str(desk.folder / "checkpoint"),
        "partition_by": ["date", "type"],
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": 200},
    }
    queue.fill(0, 500)
    queue.put("no json")
    queue.dotnet.send(queue.address, lives=-3_600_000)

    desk.killed_when(lambda: queue.received(2), "queue_to_delta", settings)
    ended = desk.submit("queue_to_delta", settings)

    rows = delta_rows(desk.folder / "table")
    first = next(row for row in rows if row["seq"] == 1)
    assert (ended.code, ended.totals["expired"], ended.totals["diverted"]) == (0, 1, 0), ended
    assert sorted(row["seq"] for row in rows) == list(range(1, 502))
    assert [queue.count(), queue.state("receipt")] == [0, 0]
    assert (first["messageType"], first["typePartition"]) == ("Shop.PlaceOrder",) * 2
    assert first["sentAt"] == datetime(2026, 6, 30, 17, 5, 9, 123456)  # noqa: DTZ001 - as stored
    assert first["date"] == f"{first['receivedAt']:%Y-%m-%d}"
