"""
`python -m tests.bench.growth`: how source and sink grow, as charts.

Measures how the rates change with tasks, backlog, bodies and queues, and what each message costs
the server; draws an SVG for each from figures.json, which keeps the points of earlier runs. So a
long measurement can be done in parts: a run replaces only the points that it measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from sqlq_spark.testing import embedded

from . import charts, limits, postgresql, scaling
from .figures import Figure
from .scaling import Point, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_FOLDER = Path("docs/growth")
_ROUNDS = 3
_SIZES = {"100B": 100, "1kB": 1_000, "10kB": 10_000, "1MB": 1_000_000}

PARTS: dict[str, Callable[[str, Trial], Iterable[Point]]] = {
    "tasks-2-cores": partial(scaling.tasks, 2),
    "tasks-8-cores": partial(scaling.tasks, 8),
    "backlog-small": partial(scaling.backlog, (10_000, 1_000_000)),
    "backlog-large": partial(scaling.backlog, (10_000_000,)),
    **{
        f"bodies-{kind}-{said}": partial(scaling.bodies, kind, size)
        for kind in ("orders", "random")
        for said, size in _SIZES.items()
    },
    "queues": scaling.queues,
    "limits": limits.limits,
}


def main() -> int:
    """Measure what the command line asks for, keep it, and draw all charts."""
    asked = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="growth")) if asked.quick else _FOLDER
    trial = Trial(rounds=1 if asked.quick else _ROUNDS, quick=asked.quick)
    points = {point.place: point for point in _kept(folder)}
    with embedded.server(tcp=True) as server:
        about = _about(server.url)
        for name, part in PARTS.items():
            if name.startswith(tuple(asked.only)):
                for point in _printed(part(server.url, trial)):
                    points[point.place] = point
                    _keep(folder, sorted(points.values(), key=lambda each: each.place), about)
    for path in charts.draw(_kept(folder), folder):
        print(path)  # noqa: T201
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    names = ", ".join(PARTS)
    parser.add_argument("--only", nargs="+", default=[""], help=f"beginnings of: {names}")
    parser.add_argument("--quick", action="store_true", help="one round, small sizes; kept apart")
    return parser.parse_args()


def _printed(points: Iterable[Point]) -> Iterable[Point]:
    for point in points:
        said = ", ".join(f"{each.median:,.1f} {unit}" for unit, each in point.figures.items())
        print(f"{point.chart}, {point.line}, {point.x:g}: {said}", flush=True)  # noqa: T201
        yield point


def _about(url: str) -> dict[str, object]:
    with psycopg.connect(url) as connection:
        settings = postgresql.PostgreSQL(url, connection).settings()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "server": settings,
    }


def _kept(folder: Path) -> list[Point]:
    path = folder / "figures.json"
    kept = json.loads(path.read_text())["points"] if path.exists() else []
    return [Point(**each | {"figures": _figures(each["figures"])}) for each in kept]


def _figures(reports: dict[str, dict[str, Any]]) -> dict[str, Figure]:
    return {unit: Figure(report["values"]) for unit, report in reports.items()}


def _keep(folder: Path, points: Sequence[Point], about: dict[str, object]) -> None:
    report = {"about": about, "points": [_report(point) for point in points]}
    (folder / "figures.json").write_text(json.dumps(report, indent=1) + "\n")


def _report(point: Point) -> dict[str, Any]:
    figures = {unit: each.report for unit, each in point.figures.items()}
    return {"chart": point.chart, "line": point.line, "x": point.x, "figures": figures}


if __name__ == "__main__":
    sys.exit(main())
