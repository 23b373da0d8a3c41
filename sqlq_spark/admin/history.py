"""
Reads the output of `sqlqueue stats --watch --json`: backlog and flow of queues over time.

The file is untrusted: a line that is not such a look raises an error that names the line. At most
MOST points of each queue are kept. In a longer file neighbours are merged, and rates averaged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlq_spark.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 400  # points of a queue; a chart has no more pixels to show


class BadHistory(BadInput):
    """A line of a history cannot be read."""

    template = (
        "line {0} of the history is not a look at queues ({1}): expected output of "
        "`sqlqueue stats --watch --json`"
    )

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)


@dataclass(frozen=True, slots=True)
class Point:
    """A queue at one moment, or during a short time."""

    at: datetime
    messages: float
    incoming: float | None  # messages per second since the previous point
    outgoing: float | None


class Unfit(ValueError):
    """The reason why a line is not a look."""


def read(lines: Iterable[bytes]) -> dict[str, list[Point]]:
    """
    Read lines into the points of each queue, by canonical address, ordered by time.

    Raises:
        BadHistory.
    """
    found: dict[str, list[Point]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            for queue, point in points(json.loads(line)):
                found.setdefault(queue, []).append(point)
                if len(found[queue]) >= 2 * MOST * 8:
                    found[queue] = thin_out(found[queue], MOST * 8)
        except (ValueError, RecursionError) as error:
            raise BadHistory(number, str(error)[:200]) from None
    return {
        queue: thin_out(sorted(each, key=lambda point: point.at), MOST)
        for queue, each in found.items()
    }


def points(look: object) -> Iterable[tuple[str, Point]]:
    """The points of one line, by queue."""
    queues = look.get("queues") if isinstance(look, dict) else None
    if not isinstance(look, dict) or not isinstance(queues, list):
        raise Unfit("it has no queues")
    at = datetime.fromisoformat(str(look.get("at")))
    if at.tzinfo is None:
        raise Unfit("its time has no zone")
    for each in queues:
        if not isinstance(each, dict) or not isinstance(each.get("queue"), str):
            raise Unfit("a queue has no name")
        flow = (number(each, name) for name in ("inPerSecond", "outPerSecond"))
        yield each["queue"], Point(at, number(each, "messages") or 0.0, *flow)


def number(each: dict[str, Any], name: str) -> float | None:
    """A number of a queue, at least 0."""
    value = each.get(name)
    if value is None:
        return None
    if type(value) not in {int, float} or not math.isfinite(value) or not 0 <= value < 1e18:  # noqa: PLR2004
        raise Unfit(f"{name} is {str(value)[:40]}")
    return float(value)


def thin_out(found: list[Point], most: int) -> list[Point]:
    """Merge neighbours into at most `most` points, each at the time of its last one."""
    if len(found) <= most:
        return found
    step = -(-len(found) // most)
    groups = [found[at : at + step] for at in range(0, len(found), step)]
    return [
        Point(
            group[-1].at,
            group[-1].messages,
            mean([each.incoming for each in group]),
            mean([each.outgoing for each in group]),
        )
        for group in groups
    ]


def mean(values: list[float | None]) -> float | None:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
