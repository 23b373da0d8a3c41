"""
The tasks of a batch, from its offset alone: a replay has nothing else.

An offset comes out of a checkpoint, which may be older than the options, or not ours at all, and
its plan may come out of a state table, which others may write: its shape is checked, and its queues
are read as untrusted addresses are. A queue that the options do not name is not received from. A
task of it hands out the receipt that is there; without one it leaves an empty receipt, so that it
stays empty when it is done again, also after the options name its queue again.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlq_spark.errors import BadPlan
from sqlq_spark.receive.task import CEILING, Task

if TYPE_CHECKING:
    from sqlq_spark.options import SourceOptions


KINDS = {"queue": str, "messages": int, "share": int, "bytes": int, "bounds": list}
LONGEST = 4 << 20  # characters of a plan
MOST_TASKS = 10_000  # of a batch
LOWEST, HIGHEST = -(2**63), 2**63 - 1  # of a bigint


def plan_of(text: str, stream: str | None, batch: int) -> list[dict[str, Any]]:
    """
    A plan as the stream's row keeps it.

    Raises:
        BadPlan: it is none.
    """
    if len(text) > LONGEST:
        raise BadPlan(stream, batch, f"it has {len(text)} characters, and {LONGEST} are the most")
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPlan(stream, batch, "it is no JSON") from None
    check(plan, stream, batch)
    found: list[dict[str, Any]] = plan
    return found


def check(plan: Any, stream: str | None, batch: int) -> None:  # noqa: ANN401 - of JSON
    """
    Make sure that a plan has the shape of one.

    Raises:
        BadPlan.
    """
    if type(plan) is not list:
        raise BadPlan(stream, batch, "it is no list")
    for at, part in enumerate(plan):
        if fault := fault_of(part):
            raise BadPlan(stream, batch, f"its part {at} {fault}")
    tasks = sum(len(part["bounds"]) - 1 for part in plan)
    if tasks > MOST_TASKS:
        raise BadPlan(stream, batch, f"it has {tasks} tasks, and {MOST_TASKS} are the most")


def fault_of(part: Any) -> str:  # noqa: ANN401 - of JSON
    """What is wrong with the part of one queue; empty where nothing is."""
    if type(part) is not dict or part.keys() != KINDS.keys():
        return f"has not the keys {', '.join(KINDS)}"
    for name, kind in KINDS.items():
        if type(part[name]) is not kind:
            return f"has a wrong {name}"
    bounds = part["bounds"]
    if not all(0 < part[name] <= HIGHEST for name in ("messages", "share", "bytes")):
        return "has numbers that none can have"
    if len(bounds) < 2 or any(type(each) is not int for each in bounds):  # noqa: PLR2004
        return "has wrong bounds"
    rising = all(first < stop for first, stop in pairwise(bounds))
    return "" if rising and bounds[0] >= LOWEST and bounds[-1] <= HIGHEST else "has wrong bounds"


def tasks_of(end: dict[str, Any], options: SourceOptions) -> list[Task]:
    """
    The tasks of the batch that ends at an offset, numbered over all its queues.

    Raises:
        BadAddress: a queue that cannot be one.
        BadPlan: a plan that is none.
    """
    check(end["plan"], end["stream"], end["batch"])
    ceilings = shared(end["plan"], options.max_bytes)
    allowed = options.allowed
    found: list[Task] = []
    for part, ceiling in zip(end["plan"], ceilings, strict=True):
        queue = options.naming.parse_queue(part["queue"])
        messages, share = part["messages"], part["share"]
        found += [
            Task(
                queue=queue,
                stream=end["stream"] or "",
                batch=end["batch"],
                task=len(found) + at,
                first=first,
                stop=stop,
                messages=max(1, min(share, messages - at * share)),
                bytes=ceiling,
                bytes_each=part["bytes"],
                largest=options.max_message_bytes,
                errors=options.error_address,
                allowed=allowed,
                receipts=end["stream"] is not None,
                receives=options.naming.print_address(queue) in options.names,
                body_string=options.include_body_string,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for at, (first, stop) in enumerate(pairwise(part["bounds"]))
        ]
    return found


def shared(plan: list[dict[str, Any]], most: int | None) -> list[int]:
    """
    The bytes that each task of a queue may take, at least one.

    The batch's limit is shared among the queues by what their messages were thought to weigh.
    """
    weights = [max(1, part["messages"] * part["bytes"]) for part in plan]
    return [
        max(1, min(CEILING, most * weight // sum(weights) // (len(part["bounds"]) - 1)))
        if most is not None
        else CEILING
        for part, weight in zip(plan, weights, strict=True)
    ]
