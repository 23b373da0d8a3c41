"""
How much the next micro-batch asks for: pure arithmetic on the backlog, the limits and the past.

It starts as the transport's version 3 does, with a task for all pending work up to the maximum, and
adapts as its version 2.1 did, by counting receives that yielded something and receives that did
not. Source: DESIGN.md part 4; the SQL Server transport's documentation, "Concurrency".
"""

from dataclasses import dataclass, replace
from typing import Final

RAMP_UP: Final = 5  # over so many successes in a row: one task more
RAMP_DOWN: Final = 7  # over so many failures in a row: one task less

# What makes a further task worth its start: so many messages, or so much of them.
MESSAGES_PER_TASK: Final = 1000
BYTES_PER_TASK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What the reader's options allow."""

    messages: int  # in one batch, >= 1
    bytes: int | None  # in one batch, >= 1
    min_messages: int | None  # worth a batch before `max_delay` is over
    max_delay: float  # seconds
    concurrency: int  # tasks of one batch, >= 1


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a peek found."""

    messages: int  # waiting, counted up to the limit
    bytes_each: float  # what one weighs on average, > 0
    waited: float  # seconds since messages were first seen waiting and `min_messages` not reached


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a batch."""

    tasks: int
    empty: int  # tasks that got nothing
    got: int  # messages taken from the queue, expired and diverted among them


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next batch asks for; each of its tasks gets at least one message to look for."""

    messages: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Ramp:
    """How many tasks may run now, and the receives in a row that led there (version 2.1)."""

    tasks: int  # begin with `Limits.concurrency`
    successes: int = 0
    failures: int = 0

    def after(self, outcome: Outcome, concurrency: int) -> "Ramp":
        """
        Move by what a batch did; each of its tasks is one receive.

        The successes count first: one empty task in every batch is enough to end the climb.

        Args:
            outcome: the batch that was just acknowledged.
            concurrency: the most tasks there may be, >= 1.
        """
        ramp = replace(self, tasks=min(max(self.tasks, 1), concurrency))
        for _ in range(outcome.tasks - outcome.empty):
            ramp = _succeeded(ramp, concurrency)
        for _ in range(outcome.empty):
            ramp = _failed(ramp)
        return ramp


def plan(backlog: Backlog, limits: Limits, ramp: Ramp) -> Plan | None:
    """
    Say what the next batch asks for.

    Returns:
        At least one message and one task, within all limits; or None: nothing waits, or not yet
        enough of it.
    """
    if backlog.messages < 1 or _too_early(backlog, limits):
        return None
    messages = _messages(backlog, limits)
    tasks = min(ramp.tasks, limits.concurrency, _worthwhile(messages, backlog.bytes_each))
    return Plan(messages, max(tasks, 1))


def share(messages: int, *, tasks: int) -> list[int]:
    """
    Share a batch among its tasks, as evenly as whole messages allow.

    Args:
        messages: how many in the batch, >= 0.
        tasks: how many tasks, > 0.

    Returns:
        One count for each task, the larger ones first; they add up to `messages`.
    """
    each, rest = divmod(messages, tasks)
    return [each + (at < rest) for at in range(tasks)]


def _succeeded(ramp: Ramp, concurrency: int) -> Ramp:
    successes = ramp.successes + 1
    if successes > RAMP_UP and ramp.tasks < concurrency:
        return Ramp(ramp.tasks + 1)
    return Ramp(ramp.tasks, successes=successes)


def _failed(ramp: Ramp) -> Ramp:
    failures = ramp.failures + 1
    fewer = failures > RAMP_DOWN and ramp.tasks > 1
    return Ramp(ramp.tasks - fewer, failures=failures)


def _too_early(backlog: Backlog, limits: Limits) -> bool:
    """Is it better to wait for more? The count stops at the limit, so no more can be awaited."""
    enough = min(limits.min_messages or 1, limits.messages)
    return backlog.messages < enough and backlog.waited < limits.max_delay


def _messages(backlog: Backlog, limits: Limits) -> int:
    most = min(backlog.messages, limits.messages)
    if limits.bytes is None:
        return most
    # A limit below the weight of one message must not stop the stream.
    return max(1, int(min(most, limits.bytes // backlog.bytes_each)))


def _worthwhile(messages: int, bytes_each: float) -> int:
    """How many tasks so many messages are worth; each has at least one of them."""
    by_bytes = min(messages, messages * bytes_each / BYTES_PER_TASK)
    return max(1, messages // MESSAGES_PER_TASK, int(by_bytes))
