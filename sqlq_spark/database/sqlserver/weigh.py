"""
How far one `receive` goes: the rows of a range were weighed, and are cut at the size of a step.

A row that is committed after the weighing comes unweighed. So a step has a limit for the number of
rows and one for each row, and their product is bounded like the sum of the weighed rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.database import Row

# From 5,000 locks on, SQL Server may lock the table. It may count a lock for each page of a large
# value; a page holds 8,000 bytes, and a byte of headers counts for two.
MOST_LOCKS, PAGE = 4000, 4000


@dataclass(frozen=True, slots=True)
class Step:
    """The limits of one `receive`; the names are those of its parameters."""

    stop: int  # of the range
    messages: int  # at most
    largest: int  # bytes of one message, at most


def cut_step(rows: Iterable[Row], *, most: int, largest: int) -> Step | None:
    """
    Return how far to receive.

    Args:
        rows: seq and bytes of messages, by seq; none is larger than `largest`.
        most: bytes of the step, but one message at least.
        largest: bytes of one message.

    Returns:
        Limits that let the weighed rows through. Whatever was committed since, the step has at most
        `most` plus `largest` bytes. None: nothing waits.
    """
    count = total = locks = heaviest = stop = 0
    for seq, size in rows:
        locks += 1 + size // PAGE
        heaviest = max(heaviest, size)
        full = total >= most or locks > MOST_LOCKS or (count + 1) * heaviest > most + largest
        if count and full:
            break
        count, total, stop = count + 1, total + size, seq + 1
    return Step(stop, count, min(largest, (most + largest) // count)) if count else None
