"""What a stream's progress shows as `sources[].latestOffset`, in messages and seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlq_spark.wire.headers import BadWireTime, parse_wire_time

if TYPE_CHECKING:
    from sqlq_spark.receive.driver.pace import Ramp
    from sqlq_spark.receive.driver.peek import Found
    from sqlq_spark.receive.receipts import Acknowledged

Report = dict[str, Any]


def report_stream(
    name: str,
    found: dict[str, Found],
    ramp: Ramp,
    last: Acknowledged | None,
    *,
    most: int,
) -> Report:
    """
    Report on a stream as a whole, and on each queue if there are several.

    Args:
        name: of its queue, or of all of them.
        found: by queue, at the last look.
        ramp: how many tasks may run now, and what led there.
        last: the batch that was acknowledged last, if there was one.
        most: where a look stops counting.
    """
    now = datetime.now(UTC)
    queues = [report_queue(each, seen, most, now) for each, seen in found.items()]
    report = sum_queues(name, queues) | {
        "tasks": ramp.tasks,
        "ramp": {"successes": ramp.successes, "failures": ramp.failures},
    }
    if last is not None:
        report["lastBatch"] = report_batch(last)
    if len(queues) > 1:
        batches = {} if last is None else last.queues
        report["queues"] = [
            queue | ({"lastBatch": report_batch(batches[name])} if name in batches else {})
            for name, queue in zip(found, queues, strict=True)
        ]
    return report


def report_queue(name: str, found: Found, most: int, now: datetime) -> Report:
    """Report what waits in a queue; beyond the limit of a batch that is only estimated."""
    full = found.messages >= most
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if full else found.messages,
        "backlogIsEstimate": full,
        "oldestWaited": seconds_since(found.sent, now),
    }


def sum_queues(name: str, queues: list[Report]) -> Report:
    """Report what waits in all queues together."""
    oldest = [each["oldestWaited"] for each in queues if each["oldestWaited"] is not None]
    return {
        "queue": name,
        "backlog": sum(each["backlog"] for each in queues),
        "backlogIsEstimate": any(each["backlogIsEstimate"] for each in queues),
        "oldestWaited": max(oldest, default=None),
    }


def report_batch(last: Acknowledged) -> Report:
    """Report what a batch has received."""
    return {
        "batch": last.batch,
        "tasks": last.outcome.tasks,
        "emptyTasks": last.outcome.empty,
        "messages": last.messages,
        "expired": last.expired,
        "diverted": last.diverted,
        "forwarded": last.forwarded,
    }


def seconds_since(sent: str | None, now: datetime) -> float | None:
    """Count the seconds since a message was sent, by its header; None: the header has no time."""
    if sent is None:
        return None
    try:
        return max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
    except BadWireTime:
        return None
