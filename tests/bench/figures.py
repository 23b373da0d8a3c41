"""What is measured, as values: the samples of a line, their median, and rates of streams."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        several = [*self.values, *self.values]  # of a single one there are no quantiles
        return quantiles(several, n=100, method="inclusive")[98]

    @property
    def report(self) -> dict[str, Any]:
        """As the files of figures have it."""
        ends = {"median": self.median, "min": min(self.values), "max": max(self.values)}
        rounded = {name: round(value, 3) for name, value in ends.items()}
        return {**rounded, "values": [round(value, 3) for value in self.values]}


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
