"""Which messages of a browse are wanted: a range of seqs, and some of the queues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Collection

LOWEST, HIGHEST = -(1 << 63), 1 << 63  # seqs are bigint; the second is behind them


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A half-open range of seqs, and the canonical addresses of queues; None: all queues."""

    first: int = LOWEST
    stop: int = HIGHEST
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
