"""What a stream's progress shows as `sources[].latestOffset`, in messages and seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlq_spark.wire.headers import BadWireTime, parse_wire_time

if TYPE_CHECKING:
    from sqlq_spark.receive.pace import Ramp
    from sqlq_spark.receive.peek import Found
    from sqlq_spark.receive.receipts import Acknowledged

Said = dict[str, Any]


def report(
    name: str,
    found: dict[str, Found],
    ramp: Ramp,
    last: Acknowledged | None,
    *,
    most: int,
) -> Said:
    """
    Tell of a stream: all of it, and of several queues each.

    Args:
        name: of its queue, or of all of them.
        found: by queue, at the last look.
        ramp: how many tasks may run now, and what led there.
        last: the batch that was acknowledged last, if there was one.
        most: where a look stops counting.
    """
    now = datetime.now(UTC)
    queues = [queue(each, seen, most, now) for each, seen in found.items()]
    said = total(name, queues) | {
        "tasks": ramp.tasks,
        "ramp": {"successes": ramp.successes, "failures": ramp.failures},
    }
    if last is not None:
        said["lastBatch"] = batch(last)
    if len(queues) > 1:
        got = {} if last is None else last.queues
        said["queues"] = [
            each | ({"lastBatch": batch(got[each["queue"]])} if each["queue"] in got else {})
            for each in queues
        ]
    return said


def queue(name: str, found: Found, most: int, now: datetime) -> Said:
    """What waits in a queue; beyond the limit of a batch that is only estimated."""
    full = found.messages >= most
    return {
        "queue": name,
        "backlog": max(found.messages, found.span) if full else found.messages,
        "backlogIsEstimate": full,
        "oldestWaited": waited(found.sent, now),
    }


def total(name: str, queues: list[Said]) -> Said:
    """What waits in all queues together."""
    oldest = [each["oldestWaited"] for each in queues if each["oldestWaited"] is not None]
    return {
        "queue": name,
        "backlog": sum(each["backlog"] for each in queues),
        "backlogIsEstimate": any(each["backlogIsEstimate"] for each in queues),
        "oldestWaited": max(oldest, default=None),
    }


def batch(last: Acknowledged) -> Said:
    """What a batch had come to."""
    return {
        "batch": last.batch,
        "tasks": last.outcome.tasks,
        "emptyTasks": last.outcome.empty,
        "messages": last.messages,
        "expired": last.expired,
        "diverted": last.diverted,
        "forwarded": last.forwarded,
    }


def waited(sent: str | None, now: datetime) -> float | None:
    """Seconds since a message was sent, by its header; None where that cannot be known."""
    try:
        return (
            None
            if sent is None
            else max(0.0, round((now - parse_wire_time(sent)).total_seconds(), 3))
        )
    except BadWireTime:
        return None
