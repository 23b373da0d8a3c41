"""
`python -m tests.compat`: the same short suite in environments from oldest to newest.

The wheel is built once. Each environment has it with other versions of Spark and of its
dependencies, and runs the suite in a classic session and over Spark Connect. The environments are
below `--folder`, where the next run uses them again. Each case prints a line with its seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from processes import kill_session

from sqlq_spark.testing import embedded

from .environments import MATRIX, ROOT, Environment, build_wheel, make

MODES = ("classic", "connect")
PATIENCE = 600.0  # seconds for the first case
LONGEST = 3600  # seconds of one environment in one mode
# environments of which the second goes on with the checkpoint of the first
HANDOVERS = [("spark-4.1", "spark-4.2"), ("spark-4.2", "spark-4.1")]


@dataclass
class Result:
    """The result of one environment in one mode."""

    environment: str
    mode: str
    about: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # of each case
    errors: dict[str, str] = field(default_factory=dict)

    def note(self, case: str, seconds: float, error: str | None = None) -> None:
        """Record a case, and print it."""
        self.seconds[case] = round(seconds, 1)
        if error:
            self.errors[case] = error
        word = "FAILED" if error else "ok"
        say(f"{self.environment:10} {self.mode:8} {case:36} {seconds:6.1f} s  {word}")
        if error:
            say(error)


def main() -> int:
    """Run what the command line names; returns 1 if a case failed."""
    given = arguments()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = given.folder or scratch / "environments"
        url = given.url or stack.enter_context(embedded.server(tcp=True)).url
        wheel = build_wheel(scratch / "wheel")
        chosen = [each for each in MATRIX if each.name in given.only]
        made = {each.name: installed(each, folder, wheel) for each in chosen}
        runs = [
            Run(each, each, mode, url, scratch).go(given.cases)
            for each in made.values()
            for mode in given.modes
        ]
        runs += [
            Run(made[first], made[second], "classic", url, scratch).go(["killed"])
            for first, second in HANDOVERS
            if {first, second} <= made.keys()
        ]
    report(runs)
    return int(any(each.errors for each in runs))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    names = [each.name for each in MATRIX]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--cases", nargs="+", default=[""], metavar="CASE", help="beginnings")
    parser.add_argument("--folder", type=Path, help="where the environments are kept")
    parser.add_argument("--url", help="a PostgreSQL to use instead of a private one")
    return parser.parse_args()


def installed(environment: Environment, folder: Path, wheel: Path) -> Environment:
    """Make an environment, and print how long that took."""
    began = time.monotonic()
    made = replace(environment, folder=folder.absolute() / environment.name)
    make(made, wheel)
    say(f"{made.name:10} {'install':45} {time.monotonic() - began:6.1f} s  ok")
    return made


class Run:
    """The suite in one environment and mode, with a schema of its own."""

    def __init__(
        self, first: Environment, second: Environment, mode: str, url: str, scratch: Path
    ) -> None:
        """
        Begin.

        Args:
            first: where the process runs that is killed.
            second: where all other cases run, usually the same.
            mode: classic or connect.
            url: of the database.
            scratch: a folder for all runs.
        """
        self.first, self.second, self.mode = first, second, mode
        name = first.name if first == second else f"{first.name}>{second.name[-3:]}"
        self.result = Result(name, mode)
        self.schema = f"compat_{secrets.token_hex(4)}"
        self.folder = scratch / self.schema
        self.folder.mkdir()
        self.url = url
        self.job = {
            "url": url,
            "schema": self.schema,
            "folder": str(self.folder),
            "connect": mode == "connect",
        }

    def go(self, cases: list[str]) -> Result:
        """Run all cases."""
        try:
            self._timed("command_line", self._install)
            self._timed("receive_until_killed", self._killed)
            self._suite(cases)
        except Exception as error:  # noqa: BLE001 - the other environments run too
            self.result.note("run", 0.0, f"{type(error).__name__}: {error}")
        return self.result

    def _timed(self, case: str, work: Any) -> None:
        began = time.monotonic()
        work()
        self.result.note(case, time.monotonic() - began)

    def _install(self) -> None:
        """Create state tables and a queue by the wheel's own command, and read their figures."""
        orders, state = f'"{self.schema}"."orders"', ["--state-schema", self.schema]
        for words in (["install", *state], ["create", orders], ["stats", orders, *state]):
            done = subprocess.run(
                [str(self.second.command), *words],
                env=self._environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"sqlqueue {words[0]}: {done.stderr[-2000:]}{done.stdout}")

    def _killed(self) -> None:
        """Start the first case, and kill its processes when its sink waits."""
        reached = self.folder / "killed" / "reached"
        end = time.monotonic() + PATIENCE
        with self._start(self.first, first=True) as process:
            try:
                while not reached.exists():
                    if process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"the first case ended: {self._log('first')}")
                    time.sleep(0.1)
            finally:
                kill_session(process)

    def _suite(self, cases: list[str]) -> None:
        with self._start(self.second, first=False, only=cases) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                said = json.loads(line)
                self.result.about |= said.pop("about", {})
                self.result.note(**said)
            process.wait(LONGEST)
        if not self.result.about:
            raise RuntimeError(f"the suite did not start: {self._log('suite')}")

    def _start(self, where: Environment, *, first: bool, **more: Any) -> subprocess.Popen[str]:
        job = self.job | {"first": first, "only": [""]} | more
        log = (self.folder / ("first.log" if first else "suite.log")).open("w", encoding="utf-8")
        with log:
            return subprocess.Popen(
                [str(where.program), "-m", "compat.suite", json.dumps(job)],
                cwd=self.folder,
                env=self._environment(),
                stdout=log if first else subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")[-3000:]

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
        return kept | {"PYTHONPATH": str(ROOT / "tests"), "SQLQUEUE_URL": self.url}


def report(runs: list[Result]) -> None:
    """Print the summary as a table of Markdown."""
    rows = [
        "| environment | session | Python | pyspark | pyarrow | numpy | cases | failed | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in runs:
        versions = [each.about.get(name, "?") for name in ("python", "pyspark", "pyarrow", "numpy")]
        counts = [len(each.seconds), len(each.errors), round(sum(each.seconds.values()))]
        cells = [each.environment, each.mode, *versions, *map(str, counts)]
        rows.append(f"| {' | '.join(cells)} |")
    say("\n" + "\n".join(rows) + "\n")


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
