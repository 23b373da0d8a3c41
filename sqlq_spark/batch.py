"""
The tasks of a batch, from its offset alone: a replay has nothing else.

An offset comes out of a checkpoint, which may be older than the options, or not ours at all: the
queues that it names are read as addresses from strangers are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlq_spark import dialects
from sqlq_spark.options import NAMED
from sqlq_spark.receive import CEILING, Task

if TYPE_CHECKING:
    from sqlq_spark.options import SourceOptions


def tasks_of(end: dict[str, Any], options: SourceOptions) -> list[Task]:
    """
    The tasks of the batch that ends at an offset, numbered over all its queues.

    Raises:
        BadAddress: a queue that cannot be one.
    """
    ceilings = shared(end["plan"], options.max_bytes)
    allowed = options.allowed
    found: list[Task] = []
    for part, ceiling in zip(end["plan"], ceilings, strict=True):
        queue = NAMED[dialects.kind(options.url)](part["queue"])
        messages, share = part["messages"], part["share"]
        found += [
            Task(
                queue=queue,
                reader=end["reader"] or "",
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
                receipts=end["reader"] is not None,
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
