"""What is measured, as values: samples of a line, their median, and ratios of line to line."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COLD = 5  # small batches of a stream that do not count: code is loaded and compiled


@dataclass(frozen=True)
class Figure:
    """All samples of one line."""

    values: Sequence[float]  # never empty

    @property
    def median(self) -> float:
        """The middle of all samples."""
        return median(self.values)

    @property
    def p99(self) -> float:
        """The value that one sample in a hundred exceeds; with few samples, near the highest."""
        return (
            quantiles(self.values, n=100, method="inclusive")[98]
            if len(self.values) > 1
            else self.values[0]
        )


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A bound on the ratio of a line to another line, or, for latency, on its p99 itself."""

    of: str | None  # the other line; None: the p99, in the line's own unit
    issue3: float | None = None
    issue4: float | None = None
    most: bool = False  # the ratio is to be at most this, else at least

    @property
    def bounds(self) -> dict[str, float]:
        """The bound that each issue sets."""
        return {
            issue: bound
            for issue, bound in (("3", self.issue3), ("4", self.issue4))
            if bound is not None
        }

    def met(self, value: float, bound: float) -> bool:
        """Tell whether a value keeps the bound."""
        return value <= bound if self.most else value >= bound

    def value(self, figure: Figure, others: Mapping[str, Figure]) -> float | None:
        """Compute median over median, or take the p99; None where the other line was not run."""
        if self.of is None:
            return figure.p99
        other = others.get(self.of)
        return figure.median / other.median if other else None


def steady_rate(progress: Sequence[Any], messages: int) -> float:
    """
    Compute the rate of a stream once it runs.

    Args:
        progress: what `recentProgress` of an ended query holds.
        messages: how many the query should have received; another number is an error.

    Returns:
        Messages/s over all batches with rows but the first, by their whole duration.
    """
    batches = [batch for batch in progress if batch.numInputRows]
    received = sum(batch.numInputRows for batch in batches)
    if received != messages or len(batches) < 2:
        message = (
            f"the stream was to receive {messages} messages in 2 batches or more, "
            f"got {received} in {len(batches)}"
        )
        raise RuntimeError(message)
    seconds = sum(batch.durationMs["triggerExecution"] for batch in batches[1:]) / 1000
    return float(sum(batch.numInputRows for batch in batches[1:]) / seconds)


def durations(progress: Sequence[Any]) -> list[float]:
    """Take the whole duration of each batch with rows, in ms, but for the first few."""
    batches = [batch for batch in progress if batch.numInputRows]
    return [float(batch.durationMs["triggerExecution"]) for batch in batches[_COLD:]]
