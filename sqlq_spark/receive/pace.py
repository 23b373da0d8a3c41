"""
How many messages and tasks the next micro-batch gives to each queue.

This is pure arithmetic. It uses the backlogs, the limits, and how many tasks of past batches
received nothing.

A stream may read several queues. They share the limits of a batch by water filling: each queue gets
an equal share, and what a queue does not need goes to the others. So a queue with a million
messages does not keep the others waiting.

The number of tasks starts as in the transport's version 3: as many as the pending work needs, up to
the maximum. It then adapts as in the transport's version 2.1, by counting the receives with and
without messages. Source: the SQL Server transport's documentation, "Concurrency".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.options import SourceOptions

RAMP_UP = 5  # after more than 5 successes in a row, there is one more task
RAMP_DOWN = 7  # after more than 7 failures in a row, there is one task less

MOST_GROWTH = 4  # how many times as large as usual a batch may be

# A task is worth its start for this many messages, or for messages of this many bytes.
MESSAGES_PER_TASK = 1000
BYTES_PER_TASK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in one queue: the facts that decide how much a batch asks of it."""

    messages: int  # how many wait, counted up to the limit of a batch
    bytes_each: float  # the mean size of a message, > 0
    # how many tasks may read the queue at a time, >= 1; None if there is no limit
    most_tasks: int | None = None

    @property
    def tasks_worth(self) -> float:
        """How many tasks the waiting messages are worth. Each task has at least one message."""
        by_bytes = min(self.messages, self.messages * self.bytes_each / BYTES_PER_TASK)
        return max(self.messages / MESSAGES_PER_TASK, by_bytes)


@dataclass(frozen=True, slots=True)
class Quota:
    """What the next batch asks of a queue. It asks for no more tasks than messages."""

    messages: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """How many tasks may run now, and how many receives in a row had messages or none."""

    tasks: int  # at the start, as many as the options allow
    successes: int = 0  # how many receives in a row had messages
    failures: int = 0  # how many receives in a row had none

    def after(self, *, tasks: int, empty: int, options: SourceOptions) -> Ramp:
        """
        Count the batch that was just acknowledged. Each of its tasks is one receive.

        The receives with messages are counted before those without. So after a batch with an empty
        task, the count of successes begins at 0 again.

        Args:
            tasks: how many tasks of the batch left a receipt.
            empty: how many of these tasks received nothing.
            options: the stream's options. They limit the number of tasks.
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
        backlogs: what waits in each of the stream's queues, always in the same order.
        options: the stream's options. They limit the whole batch.
        ramp: how many tasks may run now.
        waited: seconds since messages were first seen waiting. If fewer than minMessages wait, the
            batch waits until this is maxTriggerDelay.
        turn: the batch's number. If not every queue can have a message, the queues take turns by
            this number.

    Returns:
        One entry for each queue. A quota has at least one message and one task. Together the quotas
        keep the limits, with one exception: if more queues have a quota than tasks are allowed,
        each of these queues still gets one task. An entry is None if nothing waits in its queue, or
        if it is another queue's turn. All entries are None if too few messages wait.
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


def next_growth(options: SourceOptions, *, planned: int) -> int:
    """
    Return how many times as large as usual the batch after a planned one may be.

    A micro-batch costs Spark the same time whatever its size. So while more messages wait than a
    batch holds, the next one is twice as large, up to MOST_GROWTH. Then it is as usual again.

    Args:
        options: the options of the planned batch, with its growth.
        planned: how many messages it asks for.
    """
    if not options.may_grow or planned < options.max_messages:
        return 1
    return min(2 * options.growth, MOST_GROWTH)


def _most_tasks(asked: Backlog) -> int:
    """Return how many tasks may share the messages asked of a queue: 0 if none are asked."""
    most = asked.messages if asked.most_tasks is None else asked.most_tasks
    return min(asked.messages, max(1, int(asked.tasks_worth)), most)


def share_fairly(wants: Sequence[int], limit: int, *, turn: int) -> list[int]:
    """
    Share a number, the `limit`, by water filling.

    A place that wants less than an equal share gets what it wants. The other places get equal
    shares of the rest. If the division leaves a remainder, as many of these places get 1 more. The
    first of them is the place number `turn`, and after the last place comes the first one.

    Returns:
        The share of each place, which is not more than it wants. The sum of the shares is the
        limit, or the sum of the wants if that is less.
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
        How many tasks each queue gets, up to its number in `most`. A queue gets at least one task
        unless that number is 0, even if all queues together then get more than `tasks`.
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

    A queue is heavy if its share of the bytes is smaller than one of its messages. It gets nothing
    until it is its turn, and the other queues share all bytes. When it is its turn, it gets one
    message, and the others share the rest. So even a limit below the size of one message does not
    stop a queue or the stream.
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
    # a want above the limit makes no difference, and without this cut it may be infinite
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
