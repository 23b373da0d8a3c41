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

RAMP_UP = 5  # after more successes than this in a row, one more task
RAMP_DOWN = 7  # after more failures than this in a row, one task less

# What makes one more task worth its start: this many messages, or this many bytes of them.
MESSAGES_PER_TASK = 1000
BYTES_PER_TASK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in one queue, as far as it decides how much a batch asks for."""

    messages: int  # counted up to the limit
    bytes_each: float  # of a message on average, > 0
    most_tasks: int | None = None  # that may read the queue at a time, >= 1; None: no limit

    @property
    def tasks_worth(self) -> float:
        """How many tasks these messages are worth. Each task has at least one message."""
        by_bytes = min(self.messages, self.messages * self.bytes_each / BYTES_PER_TASK)
        return max(self.messages / MESSAGES_PER_TASK, by_bytes)


@dataclass(frozen=True, slots=True)
class Quota:
    """What the next batch asks of a queue. Each of its tasks has a message to look for."""

    messages: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """How many tasks may run now, and the receives in a row since (as in version 2.1)."""

    tasks: int  # it begins with the most
    successes: int = 0  # receives with messages, in a row
    failures: int = 0  # receives without messages, in a row

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


def quotas(
    backlogs: Sequence[Backlog],
    options: SourceOptions,
    ramp: Ramp,
    *,
    waited: float,
    turn: int,
) -> list[Quota | None]:
    """
    Return what the next batch asks of each queue.

    Args:
        backlogs: of the stream's queues, always in the same order.
        options: with the limits of the whole batch.
        ramp: where the stream stands.
        waited: seconds since messages were first seen waiting. Too few messages are waited for.
        turn: the batch's number. Where not every queue can have something, they take turns by it.

    Returns:
        One entry for each queue. A quota has at least one message and one task. Together the
        quotas keep the limits, but they have more tasks than allowed if more queues are asked. An
        entry is None if nothing waits there, or if it is another queue's turn. All are None if too
        little waits.
    """
    waiting = sum(backlog.messages for backlog in backlogs)
    if waiting < (options.min_messages or 1) and waited < options.max_trigger_delay:
        return [None] * len(backlogs)
    if options.max_bytes is None:
        wanted = [backlog.messages for backlog in backlogs]
    else:
        wanted = _fit_in_turns(options.max_bytes, backlogs, turn)
    counts = share_fairly(wanted, options.max_messages, turn=turn)
    asked = [
        replace(backlog, messages=count) for backlog, count in zip(backlogs, counts, strict=True)
    ]
    tasks = apportion(
        [backlog.tasks_worth for backlog in asked],
        [_most_tasks(backlog) for backlog in asked],
        tasks=min(ramp.tasks, options.concurrency),
    )
    return [
        Quota(count, number) if count else None for count, number in zip(counts, tasks, strict=True)
    ]


def _most_tasks(asked: Backlog) -> int:
    """Return how many tasks may share what is asked of a queue; 0: nothing is asked of it."""
    most = asked.messages if asked.most_tasks is None else asked.most_tasks
    return min(asked.messages, max(1, int(asked.tasks_worth)), most)


def share_fairly(wants: Sequence[int], limit: int, *, turn: int) -> list[int]:
    """
    Share something out by water filling: what each wants, or a share as large as any other's.

    `turn` says who, counted around, is the first to get one of the pieces that are left over.

    Returns:
        A share for each, none above its want. Together they are the limit, or all wants if those
        are less.
    """
    level = 0
    left = limit
    for satisfied, want in enumerate(sorted(wants)):
        others = len(wants) - satisfied
        level = min(want, left // others)
        if level < want:
            break
        left -= want
    shares = [min(want, level) for want in wants]
    rest = limit - sum(shares)
    unsatisfied = [place for place in _around(len(wants), turn) if wants[place] > level]
    for place in unsatisfied[:rest]:
        shares[place] += 1
    return shares


def apportion(weights: Sequence[float], most: Sequence[int], *, tasks: int) -> list[int]:
    """
    Share tasks among queues by weight: the method of highest averages (D'Hondt).

    Returns:
        One count for each queue, within its `most`. It is one at least where `most` is, even if
        these are more than `tasks`.
    """
    shares = [min(limit, 1) for limit in most]
    averages = [(-weights[place] / 2, place) for place, limit in enumerate(most) if limit > 1]
    heapify(averages)
    for _ in range(tasks - sum(shares)):
        if not averages:
            break
        _, place = heappop(averages)
        shares[place] += 1
        if shares[place] < most[place]:
            heappush(averages, (-weights[place] / (shares[place] + 1), place))
    return shares


def _around(queues: int, turn: int) -> list[int]:
    """Return the places of the queues, beginning with the one whose turn it is."""
    return [(turn + place) % queues for place in range(queues)]


def _fit_in_turns(limit: int, backlogs: Sequence[Backlog], turn: int) -> list[int]:
    """
    Count the messages of each queue that the bytes of a batch can hold.

    A queue is heavy if its share is less than one of its messages. It leaves its share to the
    others until it is its turn. Then it has one message, and the others share the rest. So a limit
    below the size of one message does not stop the stream, and a heavy message does not stop its
    queue.
    """
    counts = _fit_bytes(limit, backlogs, turn)
    is_heavy = [
        count == 0 and backlog.messages > 0 for backlog, count in zip(backlogs, counts, strict=True)
    ]
    if not any(is_heavy):
        return counts
    first = next(place for place in _around(len(backlogs), turn) if backlogs[place].messages)
    if is_heavy[first]:
        limit -= math.ceil(min(backlogs[first].bytes_each, limit))
    light = [
        replace(backlog, messages=0) if heavy else backlog
        for backlog, heavy in zip(backlogs, is_heavy, strict=True)
    ]
    counts = _fit_bytes(limit, light, turn)
    if is_heavy[first]:
        counts[first] += 1
    return counts


def _fit_bytes(limit: int, backlogs: Sequence[Backlog], turn: int) -> list[int]:
    """Count the messages of each queue that fit into its fair share of the bytes."""
    # what is beyond the limit makes no difference, and may be beyond all numbers
    wants = [
        math.ceil(min(backlog.messages * backlog.bytes_each, limit + 1)) for backlog in backlogs
    ]
    shares = share_fairly(wants, limit, turn=turn)
    counts = []
    for backlog, want, share in zip(backlogs, wants, shares, strict=True):
        if share == want:
            counts.append(backlog.messages)
        else:
            counts.append(min(backlog.messages, int(share // backlog.bytes_each)))
    return counts
