"""
How many messages the next micro-batch asks for: pure arithmetic on backlog, limits and past.

A stream may read several queues. They share what a batch may hold by water filling, so that a
queue with a million messages does not keep the others waiting.

The number of tasks starts as in the transport's version 3: one for all pending work, up to the
maximum. It adapts as the transport's version 2.1 did, by counting the receives with and without
messages. Source: the SQL Server transport's documentation, "Concurrency".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.options import SourceOptions

RAMP_UP = 5  # over so many successes in a row: one task more
RAMP_DOWN = 7  # over so many failures in a row: one task less

# What makes a further task worth its start: so many messages, or so much of them.
MESSAGES_PER_TASK = 1000
BYTES_PER_TASK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a peek found in one queue."""

    messages: int  # waiting, counted up to the limit
    bytes_each: float  # what one weighs on average, > 0
    most_tasks: int | None = None  # that may read it at a time, >= 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next batch asks of a queue; each of its tasks has a message to look for."""

    messages: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """How many tasks may run now, and the receives in a row that led to it (version 2.1)."""

    tasks: int  # begin with the most
    successes: int = 0
    failures: int = 0

    def after(self, *, tasks: int, empty: int, options: SourceOptions) -> Ramp:
        """
        Move by the batch that was just acknowledged. Each of its tasks is one receive.

        The receives with messages count first. So one empty task in every batch is enough to end
        the increase.

        Args:
            tasks: of the batch.
            empty: how many of them received nothing.
            options: with the limits of the number of tasks.
        """
        least = options.min_concurrency
        most = options.concurrency
        allowed = min(max(self.tasks, least), most)
        successes = self.successes
        failures = self.failures
        for _ in range(tasks - empty):
            failures = 0
            successes += 1
            if successes > RAMP_UP and allowed < most:
                allowed += 1
                successes = 0
        for _ in range(empty):
            successes = 0
            failures += 1
            if failures > RAMP_DOWN and allowed > least:
                allowed -= 1
        return Ramp(allowed, successes, failures)


def plans(
    backlogs: Sequence[Backlog],
    options: SourceOptions,
    ramp: Ramp,
    *,
    waited: float,
    turn: int,
) -> list[Plan | None]:
    """
    Say what the next batch asks of each queue.

    Args:
        backlogs: of the stream's queues, always in the same order.
        options: with the limits of the whole batch.
        ramp: where the stream stands.
        waited: seconds since messages were first seen waiting; too few are waited for.
        turn: the batch's number; where not every queue can have something, they take turns by it.

    Returns:
        One entry for each queue. A plan has at least one message and one task. Together the plans
        keep the limits, but they have more tasks than allowed if more queues are asked. An entry
        is None if nothing waits there, or if it is another queue's turn. All are None if too
        little waits.
    """
    waiting = sum(backlog.messages for backlog in backlogs)
    if waiting < (options.min_messages or 1) and waited < options.max_trigger_delay:
        return [None] * len(backlogs)
    if options.max_bytes is None:
        wants = [backlog.messages for backlog in backlogs]
    else:
        wants = _fit_in_turns(options.max_bytes, backlogs, turn)
    counts = share_fairly(wants, options.max_messages, turn=turn)
    asked = [replace(each, messages=count) for each, count in zip(backlogs, counts, strict=True)]
    worth = [_worth(each) for each in asked]
    most = [
        min(each.messages, max(1, int(tasks)), each.most_tasks or each.messages)
        for each, tasks in zip(asked, worth, strict=True)
    ]
    tasks = apportion(worth, most, tasks=min(ramp.tasks, options.concurrency))
    return [Plan(count, each) if count else None for count, each in zip(counts, tasks, strict=True)]


def share_fairly(wants: Sequence[int], limit: int, *, turn: int) -> list[int]:
    """
    Share something out by water filling: what each wants, or a share as large as any other's.

    `turn` says who, counted around, is the first to get one of the pieces that are left over.

    Returns:
        A share for each, none above its want; together the limit, unless the wants are less.
    """
    level, left = 0, limit
    for satisfied, want in enumerate(sorted(wants)):
        others = len(wants) - satisfied
        level = min(want, left // others)
        if level < want:
            break
        left -= want
    shares = [min(want, level) for want in wants]
    rest = limit - sum(shares)
    more = [at for at in _around(len(wants), turn) if wants[at] > level]
    for at in more[:rest]:
        shares[at] += 1
    return shares


def apportion(weights: Sequence[float], most: Sequence[int], *, tasks: int) -> list[int]:
    """
    Share tasks among queues by weight: the method of highest averages (D'Hondt).

    Returns:
        One count for each, within its `most`; one at least where `most` is, also if these are more
        than `tasks`.
    """
    shares = [min(each, 1) for each in most]
    next_ = [(-weights[at] / 2, at) for at, each in enumerate(most) if each > 1]
    heapify(next_)
    for _ in range(tasks - sum(shares)):
        if not next_:
            break
        _, at = heappop(next_)
        shares[at] += 1
        if shares[at] < most[at]:
            heappush(next_, (-weights[at] / (shares[at] + 1), at))
    return shares


def _around(queues: int, turn: int) -> list[int]:
    """The places of the queues, beginning with the one whose turn it is."""
    return [(turn + at) % queues for at in range(queues)]


def _fit_in_turns(limit: int, backlogs: Sequence[Backlog], turn: int) -> list[int]:
    """
    Count the messages of each queue that the bytes of a batch can hold.

    A queue whose share is less than one message leaves it to the others, until it is its turn. Then
    it has one message, and the others share the rest. So a limit below the weight of one message
    does not stop the stream, and a heavy message does not stop its queue.
    """
    counts = _fit_bytes(limit, backlogs, turn)
    heavy = [each.messages > count == 0 for each, count in zip(backlogs, counts, strict=True)]
    if not any(heavy):
        return counts
    first = next(at for at in _around(len(backlogs), turn) if backlogs[at].messages)
    if heavy[first]:
        limit -= math.ceil(min(backlogs[first].bytes_each, limit))
    light = [
        replace(each, messages=0) if out else each
        for each, out in zip(backlogs, heavy, strict=True)
    ]
    counts = _fit_bytes(limit, light, turn)
    counts[first] += heavy[first]
    return counts


def _fit_bytes(limit: int, backlogs: Sequence[Backlog], turn: int) -> list[int]:
    """Count the messages of each queue that fit into its fair share of the bytes."""
    # what is beyond the limit makes no difference, and may be beyond all numbers
    wants = [math.ceil(min(each.messages * each.bytes_each, limit + 1)) for each in backlogs]
    shares = share_fairly(wants, limit, turn=turn)
    return [
        each.messages if share == want else min(each.messages, int(share // each.bytes_each))
        for each, want, share in zip(backlogs, wants, shares, strict=True)
    ]


def _worth(asked: Backlog) -> float:
    """Count the tasks that so many messages are worth; each has at least one message."""
    by_bytes = min(asked.messages, asked.messages * asked.bytes_each / BYTES_PER_TASK)
    return max(asked.messages / MESSAGES_PER_TASK, by_bytes)
