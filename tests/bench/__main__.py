"""
`python -m tests.bench` runs the lines in rounds, and prints figures and ratios to other lines.

The rounds run the lines in the order A B C, A B C, …, so that a slow minute of the machine affects
all lines. The first round warms up and does not count. In it a short line runs several times,
because the JVM compiles code that runs often. JDBC's plain read took 36k/s, 112k/s and 230k/s in
its first three runs. If a line fails, its error is printed, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from .lines import AIMS, GROWTH, LINES, Line
from .stand import stand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .stand import Stand

    Samples = Mapping[str, list[float]]

_WARM_UP = 5.0  # seconds that each line warms up at least; its preparation counts too
_PACKAGES = ("sqlq_spark", "pyspark", "psycopg", "pyarrow")


def main() -> int:
    """Run the lines of the command line; return 1 if one failed, but not if it missed an aim."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = ", ".join(line.name for line in (*LINES, *GROWTH))
    parser.add_argument("--messages", type=int, default=100_000, help="in one batch")
    parser.add_argument("--rounds", type=int, default=5, help="after a warm-up")
    parser.add_argument("--only", nargs="+", help=f"beginnings of: {names}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--url", help="a PostgreSQL server to make a database on")
    asked = parser.parse_args()
    lines = LINES
    if asked.only:
        lines = tuple(x for x in (*LINES, *GROWTH) if x.name.startswith(tuple(asked.only)))
    with stand(asked.url, asked.messages) as bench:
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "messages": asked.messages,
            "rounds": asked.rounds,
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in _PACKAGES},
            "server": dict(bench.database.ask(bench.database.settings)),
        }
        samples, failures = _measure(bench, lines, asked.rounds)
    _print(f"{asked.messages:,} messages of 1.2 kB, median of {asked.rounds} rounds")
    for line in lines:
        _print(f"{line.name:20} {_result(line, samples, failures)}")
    if asked.json:
        report = about | {"lines": [_report(line, samples, failures) for line in lines]}
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failures else 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _measure(bench: Stand, lines: Sequence[Line], rounds: int) -> tuple[Samples, dict[str, str]]:
    samples: dict[str, list[float]] = {line.name: [] for line in lines}
    failures: dict[str, str] = {}
    for number in range(rounds + 1):
        for line in lines:
            if line.name in failures:
                continue
            try:
                values = _run(bench, line) if number else _warm_up(bench, line)
                middle = f"{median(values):12,.0f} {line.unit}"
            except Exception as error:  # noqa: BLE001 - the other lines can still be measured
                failures[line.name] = f"{type(error).__name__}: {error}"
                _print(f"{line.name} failed: {failures[line.name]}")
                continue
            if number:
                samples[line.name] += values
            _print(f"round {number or 'warm-up'}  {line.name:20} {middle}")
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


def _value(line: Line, other: str, samples: Samples) -> float | None:
    """Return the ratio of two medians, or the p99; None: the other line was not run."""
    values = samples[line.name]
    if other == "p99":  # the values are doubled, because a single value has no quantiles
        return quantiles([*values, *values], n=100, method="inclusive")[98]
    return median(values) / median(samples[other]) if samples.get(other) else None


def _result(line: Line, samples: Samples, failures: Mapping[str, str]) -> str:
    values = samples[line.name]
    if not values:
        return f"failed: {failures.get(line.name, 'no round counted').splitlines()[0]}"
    text = f"{median(values):10,.0f} {line.unit:10} {min(values):9,.0f} - {max(values):9,.0f}"
    aims = AIMS.get(line.name, {})
    if line.name.startswith("latency") and "p99" not in aims:
        text += f"  p99 {_value(line, 'p99', samples):,.0f}"
    for other, aim in aims.items():
        if value := _value(line, other, samples):
            sign, met = ("≤", value <= aim) if line.unit == "ms" else ("≥", value >= aim)
            text += f"  {other} {value:.2f} ({sign} {aim:g} {'met' if met else 'missed'})"
    return text


def _report(line: Line, samples: Samples, failures: Mapping[str, str]) -> dict[str, Any]:
    values = samples[line.name]
    if not values:
        return {"name": line.name, "failed": failures.get(line.name)}
    ends = {"median": median(values), "min": min(values), "max": max(values)}
    return {
        "name": line.name,
        "unit": line.unit,
        **{name: round(value, 3) for name, value in ends.items()},
        "values": [round(value, 3) for value in values],
        "ratios": {other: _value(line, other, samples) for other in AIMS.get(line.name, {})},
    }


if __name__ == "__main__":
    sys.exit(main())
