"""Which messages of a browse are wanted: a range of seqs, and some of the queues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from sqlq_spark.wire.rows import HIGHEST_SEQ, LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Collection

STOP = HIGHEST_SEQ + 1  # behind all seqs


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A half-open range of seqs, and the canonical addresses of queues; None: all queues."""

    first: int = LOWEST_SEQ
    stop: int = STOP
    queues: frozenset[str] | None = None

    def within(self, first: int, stop: int) -> Self:
        """Narrow to another half-open range of seqs too."""
        return replace(self, first=max(self.first, first), stop=min(self.stop, stop))

    def among(self, queues: Collection[str]) -> Self:
        """Narrow to other queues too."""
        both = frozenset(queues) if self.queues is None else self.queues & frozenset(queues)
        return replace(self, queues=both)

    def includes(self, queue: str) -> bool:
        """Whether the queue of this canonical address is wanted."""
        return self.queues is None or queue in self.queues


ALL = Selection()
