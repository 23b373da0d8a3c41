"""
Draws the growth charts as SVG: the medians of the points as lines, their spread as bars.

The same points give the same file: no date, no chance in the ids. Texts stay texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import EngFormatter, NullFormatter, NullLocator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from .scaling import Point

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sqlq_spark",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
}
_COLOURS = ("#1b6ca8", "#c2571a", "#3a7d44", "#7a4fa3")
_MARKERS = "osD^"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    figure: str  # which of a point's figures
    label: str  # of the y axis, with its unit
    log: bool = False
    limit: float | None = None  # a value not to exceed


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One file."""

    name: str
    label: str  # of the x axis, with its unit
    unit: str = ""  # at the marks of the x axis, with a prefix of a thousand or a million
    log: int = 10  # base of the x axis
    panels: tuple[Panel, ...]


_RATE = Panel(figure="messages/s", label="messages/s")
_RATE_LOG = Panel(figure="messages/s", label="messages/s", log=True)

CHARTS = (
    Chart(name="tasks", label="receive tasks of a batch (maxConcurrency)", log=2, panels=(_RATE,)),
    Chart(
        name="backlog",
        label="messages waiting",
        panels=(_RATE_LOG, Panel(figure="peek ms", label="latestOffset, ms")),
    ),
    Chart(
        name="bodies",
        label="body, bytes",
        unit="B",
        panels=(
            _RATE_LOG,
            Panel(figure="MB/s", label="headers and bodies, MB/s"),
            Panel(figure="peak MB", label="peak of a Python worker, MB", limit=400),
        ),
    ),
    Chart(name="queues", label="queues that one DataFrame is sent to", panels=(_RATE,)),
)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draw each chart that has points; returns the files."""
    drawn = []
    for chart in CHARTS:
        own = [point for point in points if point.chart == chart.name]
        if own:
            drawn.append(folder / f"{chart.name}.svg")
            _draw(chart, own, drawn[-1])
    return drawn


def _draw(chart: Chart, points: Sequence[Point], path: Path) -> None:
    with rc_context(_STYLE):
        sheet = Sheet(figsize=(4.2 * len(chart.panels) + 1.2, 3.6), layout="constrained")
        grid = sheet.subplots(1, len(chart.panels), squeeze=False)
        for panel, axes in zip(chart.panels, grid[0], strict=True):
            _panel(chart, panel, axes, points)
        grid[0][0].legend()
        sheet.savefig(path, format="svg", metadata={"Date": None})


def _panel(chart: Chart, panel: Panel, axes: Axes, points: Sequence[Point]) -> None:
    axes.set_xscale("log", base=chart.log)
    for at, line in enumerate(dict.fromkeys(point.line for point in points)):
        own = [point for point in points if point.line == line and panel.figure in point.figures]
        _line(axes, panel.figure, sorted(own, key=lambda point: point.x), line, at)
    if panel.limit is not None:
        axes.axhline(panel.limit, color="#555555", linewidth=1, linestyle=(0, (4, 3)))
    if panel.log:
        _whole_decades(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=" "))
    marks = sorted({point.x for point in points})
    said = EngFormatter(unit=chart.unit, sep=" ")
    axes.set_xticks(marks, [said(mark).strip() for mark in marks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(chart.label)
    axes.set_ylabel(panel.label)


def _whole_decades(axes: Axes) -> None:
    """Let a logarithmic axis begin and end at a power of ten: each of its marks has a number."""
    lowest, highest = axes.dataLim.intervaly
    axes.set_yscale("log")
    axes.set_ylim(10 ** floor(log10(lowest)), 10 ** ceil(log10(highest)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _line(axes: Axes, figure: str, points: Sequence[Point], name: str, at: int) -> None:
    samples = [point.figures[figure] for point in points]
    middles = [each.median for each in samples]
    below = [each.median - min(each.values) for each in samples]
    above = [max(each.values) - each.median for each in samples]
    axes.errorbar(
        [point.x for point in points],
        middles,
        yerr=[below, above],
        label=name,
        color=_COLOURS[at % len(_COLOURS)],
        marker=_MARKERS[at % len(_MARKERS)],
        markersize=5,
        linewidth=1.5,
        capsize=3,
    )
