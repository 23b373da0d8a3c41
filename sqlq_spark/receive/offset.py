"""
Offsets and plans as values, and the tasks of a batch.

An offset comes out of a checkpoint, and a plan may come out of a state table. Others may write to
both, so all of it is checked once, here. A queue's address is read as an untrusted one.

The JSON form has one constant order of keys, because Spark compares the text:

    {"v":1,"stream":"<uuid>","batch":12,
     "plan":[{"queue":…,"messages":…,"share":…,"bytes":…,"bounds":[…],"partitions":[…]}]}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from sqlq_spark.errors import BadOffset, BadPlan
from sqlq_spark.options.fields import INT64
from sqlq_spark.receive.receipts import CEILING
from sqlq_spark.receive.task import Task
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.options import SourceOptions


VERSION = 1
KEYS = ("v", "stream", "batch", "plan")  # of an offset, in order
KINDS = {
    "queue": str,
    "messages": int,
    "share": int,
    "bytes": int,
    "bounds": list,
    "partitions": list,
}
STREAM = re.compile("[!-~]{1,36}")  # the id of a stream, a UUID
LONGEST = 4 << 20  # characters of a stored plan
LONGEST_SHOWN = 40  # characters of a value in an error
LONGEST_NUMBER = 128  # bits of a number in an error
MOST_TASKS = 10_000  # of a batch
# Measured: a transaction without messages takes 5 to 8 ms, in which 1 MiB is received.
TRANSACTION = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """What a batch receives from one queue. Task i receives seq in [bounds i, bounds i+1)."""

    queue: str  # the canonical address
    messages: int  # at most, of all tasks
    share: int  # messages of each task, at most
    bytes: int  # expected, of one message
    bounds: tuple[int, ...]
    partitions: tuple[int, ...] = ()  # Spark's, of each task; see share_out

    @property
    def tasks(self) -> int:
        return len(self.bounds) - 1

    def to_json(self) -> dict[str, Any]:
        lists = {"bounds": list(self.bounds), "partitions": list(self.partitions)}
        return {name: getattr(self, name) for name in KINDS} | lists


BatchPlan: TypeAlias = tuple[QueuePlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The end of a batch: which stream, which batch, and what that batch receives."""

    stream: str | None  # None: transactionMode=none, or nothing was planned yet
    batch: int
    plan: BatchPlan = ()

    @classmethod
    def parse(cls, found: Any) -> Self:  # noqa: ANN401 - of JSON
        """Read what Spark hands over. Raises BadOffset, BadPlan."""
        if not isinstance(found, dict) or "v" not in found:
            raise BadOffset(reason="it is not an offset of the format sqlqueue")
        if type(found["v"]) is not int or found["v"] != VERSION:
            raise BadOffset(
                reason=f"its version is {show(found['v'])}, and this release reads version "
                f"{VERSION}"
            )
        if found.keys() != set(KEYS):
            raise BadOffset(reason=f"its keys are not {', '.join(KEYS)}")
        stream, batch = found["stream"], found["batch"]
        if stream is not None and not (type(stream) is str and STREAM.fullmatch(stream)):
            raise BadOffset(reason=f"its stream is {show(stream)}: expected a UUID")
        if type(batch) is not int or not 0 <= batch <= INT64:
            raise BadOffset(
                reason=f"its batch is {show(batch)}: expected a whole number from 0 to {INT64}"
            )
        return cls(stream=stream, batch=batch, plan=parse_plan(found["plan"], stream, batch))

    def to_json(self) -> dict[str, Any]:
        plan = [part.to_json() for part in self.plan]
        return {"v": VERSION, "stream": self.stream, "batch": self.batch, "plan": plan}

    @property
    def tasks(self) -> int:
        return sum(part.tasks for part in self.plan)


INITIAL = Offset(stream=None, batch=0)


def show(found: Any) -> str:  # noqa: ANN401 - of JSON
    """Return a value of JSON for an error, on one line: a long one by its beginning or size."""
    if isinstance(found, dict | list):
        return "an object" if isinstance(found, dict) else "a list"
    if isinstance(found, str):
        return ascii(found[:LONGEST_SHOWN])
    if isinstance(found, int) and found.bit_length() > LONGEST_NUMBER:  # Python cannot print it
        return f"a number of {found.bit_length()} bits"
    return str(found)


# ---------------------------------------------------------------- plans


def read_plan(text: str, stream: str | None, batch: int) -> BatchPlan:
    """Read a plan as the stream's row keeps it. Raises BadPlan."""
    if len(text) > LONGEST:
        reason = f"it has {len(text)} characters, and {LONGEST} are the most"
        raise BadPlan(stream=stream, batch=batch, reason=reason)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPlan(stream=stream, batch=batch, reason="it is not JSON") from None
    return parse_plan(found, stream, batch)


def write_plan(plan: BatchPlan) -> str:
    return json.dumps([part.to_json() for part in plan])


def parse_plan(found: Any, stream: str | None, batch: int) -> BatchPlan:  # noqa: ANN401 - of JSON
    """Check that JSON has the shape of a plan, and make it a value. Raises BadPlan."""
    if fault := find_fault(found):
        raise BadPlan(stream=stream, batch=batch, reason=fault)
    lists = ("bounds", "partitions")
    return tuple(QueuePlan(**part | {name: tuple(part[name]) for name in lists}) for part in found)


def find_fault(found: Any) -> str | None:  # noqa: ANN401 - of JSON
    """Say what is wrong with a plan."""
    if type(found) is not list:
        return "it is not a list"
    for at, part in enumerate(found):
        if fault := find_fault_of_part(part):
            return f"its part {at} {fault}"
    tasks = sum(len(part["partitions"]) for part in found)
    return f"it has {tasks} tasks, and {MOST_TASKS} are the most" if tasks > MOST_TASKS else None


def find_fault_of_part(part: Any) -> str | None:  # noqa: ANN401 - of JSON
    if type(part) is not dict or part.keys() != KINDS.keys():
        return f"has not the keys {', '.join(KINDS)}"
    for name, kind in KINDS.items():
        if type(part[name]) is not kind:
            return f"has a wrong {name}"
    if not all(0 < part[name] <= INT64 for name in ("messages", "share", "bytes")):
        return "has numbers out of range"
    if not are_bounds(part["bounds"]):
        return "has wrong bounds"
    dealt = part["partitions"]
    right = len(dealt) == len(part["bounds"]) - 1 and all(type(each) is int for each in dealt)
    return None if right else "has wrong partitions"


def are_bounds(bounds: list[Any]) -> bool:
    """Check that bounds are numbers of the database, at least two, and that they rise."""
    if len(bounds) < 2 or any(type(each) is not int for each in bounds):  # noqa: PLR2004
        return False
    rising = all(first < stop for first, stop in pairwise(bounds))
    return rising and bounds[0] >= LOWEST_SEQ and bounds[-1] <= HIGHEST_SEQ


# ---------------------------------------------------------------- tasks


def tasks_of(end: Offset, options: SourceOptions) -> list[Task]:
    """
    Make the tasks of the batch that ends at an offset, numbered over all its queues.

    A replay has nothing but the offset. The options may have changed since: from a queue that they
    do not name any more, nothing is received. A task of such a queue hands out the receipt that is
    there. Without one it writes an empty receipt, so it stays empty when Spark runs it again, also
    if the options name its queue again. Raises BadAddress.
    """
    known = dict(zip(options.names, options.addresses, strict=True))
    found: list[Task] = []
    for part, ceiling in zip(end.plan, share_bytes(end.plan, options.max_bytes), strict=True):
        queue = known.get(part.queue) or options.naming.parse_queue(part.queue)  # untrusted
        found += [
            Task(
                queue=queue,
                stream=end.stream,
                batch=end.batch,
                task=len(found) + at,
                first=first,
                stop=stop,
                messages=max(1, min(part.share, part.messages - at * part.share)),
                bytes=ceiling,
                bytes_each=part.bytes,
                receives=part.queue in known,
                options=options,
            )
            for at, (first, stop) in enumerate(pairwise(part.bounds))
        ]
    return found


def share_bytes(plan: BatchPlan, most: int | None) -> list[int]:
    """Share a batch's bytes among its queues by expected weight: of each task, at least one."""
    if most is None:
        return [CEILING] * len(plan)
    weights = [max(1, part.messages * part.bytes) for part in plan]
    total = sum(weights)
    return [
        max(1, min(CEILING, most * weight // total // part.tasks))
        for part, weight in zip(plan, weights, strict=True)
    ]


def share_out(plan: Sequence[QueuePlan], most: int) -> BatchPlan:
    """
    Deal the tasks of a plan to at most so many partitions of Spark, each of which has one.

    A partition runs its tasks one after the other. The heaviest tasks are dealt first, each to the
    partition that has least. The plan keeps what was dealt: a sink may number messages by
    partition, and a batch may run again with other options or cores.
    """
    weights = [
        TRANSACTION + min(CEILING, part.share * part.bytes)
        for part in plan
        for _ in range(part.tasks)
    ]
    loads = [(0, number) for number in range(min(most, len(weights)))]
    dealt = [0] * len(weights)
    for task in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        load, dealt[task] = heappop(loads)
        heappush(loads, (load + weights[task], dealt[task]))
    numbers = iter(dealt)
    return tuple(replace(part, partitions=tuple(islice(numbers, part.tasks))) for part in plan)


def by_partition(end: Offset, tasks: Sequence[Task]) -> list[list[Task]]:
    """Give the tasks of each partition of Spark, as the plan of their batch deals them."""
    dealt: dict[int, list[Task]] = {}
    numbers = (number for part in end.plan for number in part.partitions)
    for number, task in zip(numbers, tasks, strict=True):
        dealt.setdefault(number, []).append(task)
    return [dealt[number] for number in sorted(dealt)]
