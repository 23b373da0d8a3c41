"""
The values of a batch: its offset, its plan, its tasks, and what a task has received.

Nothing here asks a database. An offset is read from a checkpoint, and a plan may be read from a
state table. Others may write to checkpoints and state tables, so this module checks each offset and
each plan. The addresses of queues in a plan are untrusted too.

The JSON form of an offset has one constant order of keys, because Spark compares the text:

    {"v":1,"stream":"<uuid>","batch":12,
     "plan":[{"queue":…,"messages":…,"share":…,"bytes":…,"bounds":[…],"partitions":[…]}]}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from sqlq_spark.errors import BadOffset, BadPlan
from sqlq_spark.options.fields import INT64
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress
    from sqlq_spark.wire.header_columns import Headers

# A task takes about this many bytes of headers and bodies. Other messages wait for the next batch.
CEILING = 64 << 20
# One statement of a task takes about this many bytes.
STEP = 16 << 20
# The cost of a task's transaction, as a number of bytes that could be received in the same time.
# Measured: a transaction without messages takes 5 to 8 ms, which is the time to receive 1 MiB.
TRANSACTION = 1 << 20
MOST_TASKS = 10_000  # how many tasks a batch may have
LONGEST_PLAN = 4 << 20  # characters of a stored plan
LONGEST_VALUE = 40  # characters of a value in an error
LONGEST_NUMBER = 128  # bits of a number in an error; Python refuses to print very long numbers

OFFSET_VERSION = 1
OFFSET_KEYS = ("v", "stream", "batch", "plan")  # in this order
STREAM_ID = re.compile("[!-~]{1,36}")  # a UUID
# the keys of a queue's part of a plan, in order, and the type of each value
QUEUE_PLAN_TYPES = {
    "queue": str,
    "messages": int,
    "share": int,
    "bytes": int,
    "bounds": list,
    "partitions": list,
}
LISTS = ("bounds", "partitions")


# ---------------------------------------------------------------- what is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlan:
    """What a batch receives from one queue. Task i receives seqs in [bounds[i], bounds[i+1])."""

    queue: str  # the canonical address
    messages: int  # how many all tasks together may receive
    share: int  # how many messages each task may receive
    bytes: int  # the expected size of one message
    bounds: tuple[int, ...]
    partitions: tuple[int, ...] = ()  # Spark's partition of each task, see deal_to_partitions

    @property
    def tasks(self) -> int:
        return len(self.bounds) - 1

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in QUEUE_PLAN_TYPES}
        return values | {name: list(values[name]) for name in LISTS}


BatchPlan: TypeAlias = tuple[QueuePlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The end of a batch: which stream, which batch, and what that batch receives."""

    stream: str | None  # None if transactionMode is none, or if nothing was planned yet
    batch: int
    plan: BatchPlan = ()

    @classmethod
    def parse(cls, value: Any) -> Self:  # noqa: ANN401 - of JSON
        """Read an offset that Spark hands over. Raises BadOffset, BadPlan."""
        if not isinstance(value, dict) or "v" not in value:
            raise BadOffset(reason="it is not an offset of the format sqlqueue")
        version = value["v"]
        if type(version) is not int or version != OFFSET_VERSION:
            raise BadOffset(
                reason=f"its version is {show(version)}, and this release reads version "
                f"{OFFSET_VERSION}"
            )
        if value.keys() != set(OFFSET_KEYS):
            raise BadOffset(reason=f"its keys are not {', '.join(OFFSET_KEYS)}")
        stream = value["stream"]
        batch = value["batch"]
        if stream is not None and not (type(stream) is str and STREAM_ID.fullmatch(stream)):
            raise BadOffset(reason=f"its stream is {show(stream)}: expected a UUID")
        if type(batch) is not int or not 0 <= batch <= INT64:
            raise BadOffset(
                reason=f"its batch is {show(batch)}: expected a whole number from 0 to {INT64}"
            )
        return cls(stream=stream, batch=batch, plan=check_plan(value["plan"], stream, batch))

    def to_json(self) -> dict[str, Any]:
        plan = [queue_plan.to_json() for queue_plan in self.plan]
        return {"v": OFFSET_VERSION, "stream": self.stream, "batch": self.batch, "plan": plan}

    @property
    def tasks(self) -> int:
        return sum(queue_plan.tasks for queue_plan in self.plan)


INITIAL = Offset(stream=None, batch=0)


# ---------------------------------------------------------------- what is received

ReceiptKey: TypeAlias = tuple[str, int, int]  # stream, batch and task


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What one task of a batch receives, and from where."""

    queue: QueueAddress
    stream: str | None  # None if transactionMode is none: then the task leaves no receipt
    batch: int
    task: int  # the number of the task in the batch
    first: int  # the range of seqs is [first, stop)
    stop: int
    messages: int  # how many the task may take
    bytes: int = CEILING  # how many the task may take; its first message may have more
    bytes_each: float = 1024.0  # the expected size of one message
    receives: bool = True  # False if the options do not name the queue
    options: SourceOptions = field(repr=False)  # one object for all tasks of a batch

    @property
    def name(self) -> str:
        """The name of the task in errors, and for a DBA who looks at the server's sessions."""
        return f"{self.stream or 'without receipts'} {self.batch}/{self.task}"

    @property
    def key(self) -> ReceiptKey:
        """The stream, batch and task that identify the task's receipt."""
        assert self.stream is not None, "a task of transactionMode=none has no receipt"  # noqa: S101
        return self.stream, self.batch, self.task


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task delivers, and what became of the other messages that it took."""

    rows: pa.Table  # what is delivered, with the columns of QUEUE_ROW
    expired: int = 0  # messages that were dropped
    diverted: int = 0  # messages that went to the error queue
    forwarded: int = 0  # messages that went to other queues
    # the headers of each of `record_batches(rows)`, if they are parsed already
    headers: list[Headers] | None = None


# ---------------------------------------------------------------- plans as text


def read_plan(text: str, stream: str | None, batch: int) -> BatchPlan:
    """Read a plan from the text in the stream's row. Raises BadPlan."""
    if len(text) > LONGEST_PLAN:
        reason = f"it has {len(text)} characters, and {LONGEST_PLAN} are the most"
        raise BadPlan(stream=stream, batch=batch, reason=reason)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPlan(stream=stream, batch=batch, reason="it is not JSON") from None
    return check_plan(value, stream, batch)


def write_plan(plan: BatchPlan) -> str:
    return json.dumps([queue_plan.to_json() for queue_plan in plan])


def check_plan(value: Any, stream: str | None, batch: int) -> BatchPlan:  # noqa: ANN401 - of JSON
    """Check that JSON has the shape of a plan, and return the plan. Raises BadPlan."""
    if fault := find_fault(value):
        raise BadPlan(stream=stream, batch=batch, reason=fault)
    return tuple(QueuePlan(**part | {name: tuple(part[name]) for name in LISTS}) for part in value)


def find_fault(value: Any) -> str | None:  # noqa: ANN401 - of JSON
    """Return what is wrong with a plan. Return None if it is correct."""
    if type(value) is not list:
        return "it is not a list"
    for place, part in enumerate(value):
        if fault := find_fault_of_part(part):
            return f"its part {place} {fault}"
    tasks = sum(len(part["partitions"]) for part in value)
    return f"it has {tasks} tasks, and {MOST_TASKS} are the most" if tasks > MOST_TASKS else None


def find_fault_of_part(part: Any) -> str | None:  # noqa: ANN401 - of JSON
    if type(part) is not dict or part.keys() != QUEUE_PLAN_TYPES.keys():
        return f"has not the keys {', '.join(QUEUE_PLAN_TYPES)}"
    for name, kind in QUEUE_PLAN_TYPES.items():
        if type(part[name]) is not kind:
            return f"has a wrong {name}"
    if not all(0 < part[name] <= INT64 for name in ("messages", "share", "bytes")):
        return "has numbers out of range"
    if not are_bounds(part["bounds"]):
        return "has wrong bounds"
    partitions = part["partitions"]
    are_numbers = all(type(number) is int for number in partitions)
    if not are_numbers or len(partitions) != len(part["bounds"]) - 1:
        return "has wrong partitions"
    return None


def are_bounds(bounds: list[Any]) -> bool:
    """Whether these are bounds of ranges: at least two possible seqs, in ascending order."""
    if len(bounds) < 2 or any(type(bound) is not int for bound in bounds):  # noqa: PLR2004
        return False
    is_rising = all(first < stop for first, stop in pairwise(bounds))
    return is_rising and bounds[0] >= LOWEST_SEQ and bounds[-1] <= HIGHEST_SEQ


def show(value: Any) -> str:  # noqa: ANN401 - of JSON
    """Return a value of JSON for an error, on one line. A long text is cut."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return ascii(value[:LONGEST_VALUE])
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    return str(value)


# ---------------------------------------------------------------- from a plan to tasks


def tasks_of(end: Offset, options: SourceOptions) -> list[Task]:
    """
    Make the tasks of the batch that ends at an offset, numbered over all its queues.

    When Spark runs a batch again, it gives only the offset, and the options may have changed since.
    If the options no longer name a queue of the batch, nothing new is received from this queue. A
    task of the queue still hands out its receipt if it has left one. If not, it writes an empty
    receipt. Because of that, a later run of the task receives nothing either, even if the options
    name the queue again by then.

    Raises BadAddress.
    """
    known = dict(zip(options.names, options.addresses, strict=True))
    ceilings = share_bytes(end.plan, options.max_bytes)
    tasks: list[Task] = []
    for queue_plan, ceiling in zip(end.plan, ceilings, strict=True):
        # an address that the options do not name is untrusted
        queue = known.get(queue_plan.queue) or options.naming.parse_queue(queue_plan.queue)
        for place, (first, stop) in enumerate(pairwise(queue_plan.bounds)):
            left = queue_plan.messages - place * queue_plan.share
            tasks.append(
                Task(
                    queue=queue,
                    stream=end.stream,
                    batch=end.batch,
                    task=len(tasks),
                    first=first,
                    stop=stop,
                    messages=max(1, min(queue_plan.share, left)),
                    bytes=ceiling,
                    bytes_each=queue_plan.bytes,
                    receives=queue_plan.queue in known,
                    options=options,
                )
            )
    return tasks


def share_bytes(plan: BatchPlan, most: int | None) -> list[int]:
    """
    Share the bytes of a batch among its queues by their expected weight.

    Returns, for each queue, how many bytes each of its tasks may take. It is at least 1 byte: a
    task takes one message, whatever its size.
    """
    if most is None:
        return [CEILING] * len(plan)
    weights = [max(1, queue_plan.messages * queue_plan.bytes) for queue_plan in plan]
    total = sum(weights)
    return [
        max(1, min(CEILING, most * weight // total // queue_plan.tasks))
        for queue_plan, weight in zip(plan, weights, strict=True)
    ]


def deal_to_partitions(plan: Sequence[QueuePlan], most: int) -> BatchPlan:
    """
    Deal the tasks of a plan to at most `most` partitions of Spark, so that none is empty.

    A partition runs its tasks one after the other. The heaviest tasks are dealt first, each to the
    partition that has the least weight so far. The result is stored in the plan, so a batch that
    runs again has the same partitions, even with other options or another number of cores. Some
    sinks need that, because they number messages by partition.
    """
    weights = [
        TRANSACTION + min(CEILING, queue_plan.share * queue_plan.bytes)
        for queue_plan in plan
        for _ in range(queue_plan.tasks)
    ]
    loads = [(0, partition) for partition in range(min(most, len(weights)))]
    partitions = [0] * len(weights)
    for task in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        load, partition = heappop(loads)
        partitions[task] = partition
        heappush(loads, (load + weights[task], partition))
    dealt = iter(partitions)
    return tuple(
        replace(queue_plan, partitions=tuple(islice(dealt, queue_plan.tasks)))
        for queue_plan in plan
    )


def group_by_partition(end: Offset, tasks: Sequence[Task]) -> list[list[Task]]:
    """Return the tasks of each partition of Spark, as the plan of the batch assigns them."""
    partitions = [partition for queue_plan in end.plan for partition in queue_plan.partitions]
    groups: dict[int, list[Task]] = {}
    for partition, task in zip(partitions, tasks, strict=True):
        groups.setdefault(partition, []).append(task)
    return [groups[partition] for partition in sorted(groups)]
