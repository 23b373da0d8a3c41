"""
`python -m tests.bench`: run the lines in rounds, print a table of figures and ratios, write JSON.

Rounds go A B C, A B C, …, so that a slow minute of the machine falls on all lines alike. The first
round warms up and is thrown away; in it a short line runs several times, for the JVM compiles what
it runs often: JDBC's plain read went from 36k/s over 112k/s to 230k/s in its first three runs. A
line that fails says so, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sqlq_spark.testing import embedded

from .figures import Figure
from .lines import LINES, Line
from .stand import BATCHES, CORES, stand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .stand import Stand

_WARM_UP = 5.0  # seconds at least for each line, making ready included
_PACKAGES = ("sqlq_spark", "pyspark", "psycopg", "mssql-python", "pyodbc", "pyarrow")


def main() -> int:
    """Run what the command line asks for; 1 when a line failed, not when an aim was missed."""
    asked = _arguments()
    chosen = [line for line in LINES if line.name.startswith(tuple(asked.only))]
    console = Console(width=None if sys.stdout.isatty() else 180)
    with _server(asked.url) as url, stand(url, asked.messages) as bench:
        about = _about(bench, asked.rounds)
        samples, failures = _measure(bench, chosen, asked.rounds, console)
    figures = {name: Figure(values) for name, values in samples.items() if values}
    console.print(_table(chosen, figures, failures, about))
    if asked.json:
        report = about | {"lines": [_report(line, figures, failures) for line in chosen]}
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = ", ".join(line.name for line in LINES)
    parser.add_argument("--messages", type=int, default=100_000, help="in one batch")
    parser.add_argument("--rounds", type=int, default=5, help="after a warm-up")
    parser.add_argument("--only", nargs="+", default=[""], help=f"beginnings of: {names}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--url", help="a PostgreSQL or SQL Server to make a database on")
    return parser.parse_args()


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with embedded.server(tcp=True) as server:
        yield server.url


def _measure(
    bench: Stand, lines: Sequence[Line], rounds: int, console: Console
) -> tuple[dict[str, list[float]], dict[str, str]]:
    samples: dict[str, list[float]] = {line.name: [] for line in lines}
    failures: dict[str, str] = {}
    for at in range(rounds + 1):
        for line in lines:
            if line.name in failures:
                continue
            try:
                values = _run(bench, line) if at else _warm_up(bench, line)
                middle = f"{Figure(values).median:12,.0f} {line.unit}"
            except Exception as error:  # noqa: BLE001 the other lines are still worth having
                failures[line.name] = f"{type(error).__name__}: {error}"
                console.print(f"{line.name} failed: {failures[line.name]}", markup=False)
                continue
            if at:
                samples[line.name] += values
            console.print(f"round {at or 'warm-up'}  {line.name:20} {middle}")
    return samples, failures


def _run(bench: Stand, line: Line) -> Sequence[float]:
    line.ready(bench)
    return line.run(bench)


def _warm_up(bench: Stand, line: Line) -> Sequence[float]:
    start = time.perf_counter()
    while True:
        values = _run(bench, line)
        if time.perf_counter() - start > _WARM_UP:
            return values


def _about(bench: Stand, rounds: int) -> dict[str, object]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "messages": bench.messages,
        "batches": BATCHES,
        "rounds": rounds,
        "cores": {"machine": os.cpu_count(), "spark": CORES},
        "load": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            "jdbc": bench.database.jar,
            **{name: _version(name) for name in _PACKAGES},
        },
        "server": bench.database.settings(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _table(
    lines: Sequence[Line],
    figures: Mapping[str, Figure],
    failures: Mapping[str, str],
    about: Mapping[str, object],
) -> Table:
    title = f"{about['messages']:,} messages of 1.2 kB, median of {about['rounds']} rounds"
    table = Table("line", "what", title=title)
    for name in ("median", "min - max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("ratio to other lines, and the aims")
    for line in lines:
        if figure := figures.get(line.name):
            spread = f"{min(figure.values):,.0f} - {max(figure.values):,.0f}"
            numbers = (f"{figure.median:,.0f}", spread, line.unit)
            ratios = "\n".join(_ratio(line, other, figures) for other in line.aims)
            table.add_row(line.name, line.says, *numbers, ratios)
        else:
            reason = failures.get(line.name, "no round counted").splitlines()[0]
            text = escape(f"failed: {reason[:80]}")
            table.add_row(line.name, line.says, "-", "-", line.unit, text)
    return table


def _value(line: Line, other: str, figures: Mapping[str, Figure]) -> float | None:
    """Median over median, or the p99; None where the other line was not run."""
    if other == "p99":
        return figures[line.name].p99
    return figures[line.name].median / figures[other].median if other in figures else None


def _ratio(line: Line, other: str, figures: Mapping[str, Figure]) -> str:
    value, aim = _value(line, other, figures), line.aims[other]
    if value is None:
        return f"- of {other}, which was not run"
    sign, met = ("≤", value <= aim) if line.unit == "ms" else ("≥", value >= aim)
    verdict = "[green]met[/]" if met else "[red]missed[/]"
    text = f"p99 {value:,.0f}" if other == "p99" else f"{value:.2f} of {other}"
    return f"{text} ({sign} {aim:g} {verdict})"


def _report(
    line: Line, figures: Mapping[str, Figure], failures: Mapping[str, str]
) -> dict[str, object]:
    figure = figures.get(line.name)
    if figure is None:
        return {"name": line.name, "failed": failures.get(line.name)}
    ratios = {other: _value(line, other, figures) for other in line.aims}
    return {"name": line.name, "unit": line.unit, **figure.report, "ratios": ratios}


if __name__ == "__main__":
    sys.exit(main())
