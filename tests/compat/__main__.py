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

from processes import kill_session
from waiting import until

from sqlq_spark.testing import embedded

from .environments import MATRIX, ROOT, Environment, build_wheel, make

MODES = ("classic", "connect")
PATIENCE = 900.0  # seconds for the first case, which may fetch the jar of Iceberg
# environments of which the second goes on with the checkpoint of the first
HANDOVERS = [("spark-4.1", "spark-4.2"), ("spark-4.2", "spark-4.1")]


@dataclass(kw_only=True)
class Run:
    """The suite in one environment and mode, with a schema of its own."""

    killed: Environment  # runs the process that is killed
    environment: Environment  # runs all other cases, usually the same
    mode: str
    url: str
    folder: Path
    cases: list[str]
    about: dict[str, str] = field(default_factory=dict)  # versions
    seconds: dict[str, float] = field(default_factory=dict)  # of each case
    failed: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its environment, or both."""
        first, second = self.killed.name, self.environment.name
        return first if first == second else f"{first}>{second[-3:]}"

    def note(self, case: str, seconds: float, error: str | None = None) -> None:
        """Record a case, and print it."""
        self.seconds[case] = seconds
        self.failed += [case] if error else []
        word = f"FAILED\n{error}" if error else "ok"
        say(f"{self.name:10} {self.mode:8} {case:36} {seconds:6.1f} s  {word}")

    def go(self) -> Run:
        """Run all cases; an error of one does not keep the other environments from running."""
        self.folder.mkdir()
        began = time.monotonic()
        try:
            self._install()
            self._receive_until_killed()
            self.note("receive_until_killed", time.monotonic() - began)
            self._suite()
        except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError) as error:
            self.note("run", time.monotonic() - began, f"{error}\n{self._log()}")
        return self

    def _install(self) -> None:
        """Create state tables and a queue by the wheel's own command, and read their figures."""
        orders = f'"{self.folder.name}"."orders"'
        state = ["--state-schema", self.folder.name]
        for words in (["install", *state], ["create", orders], ["stats", orders, *state]):
            command = [str(self.environment.program.with_name("sqlqueue")), *words]
            subprocess.run(command, env=self._variables(), capture_output=True, check=True)

    def _receive_until_killed(self) -> None:
        """Start the first case, and kill its processes when its sink waits."""
        reached = self.folder / "killed" / "reached"
        with self._started(self.killed, first=True) as process:
            try:
                until(
                    lambda: reached.exists() or process.poll() is not None,
                    seconds=PATIENCE,
                    told=self._log,
                )
                assert process.poll() is None, "the first case ended"
            finally:
                kill_session(process)

    def _suite(self) -> None:
        with self._started(self.environment, first=False) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    said = json.loads(line)
                    self.about |= said.pop("about", {})
                    self.note(**said)
        assert self.about, "the suite did not start"

    def _started(self, where: Environment, *, first: bool) -> subprocess.Popen[str]:
        job = {
            "url": self.url,
            "schema": self.folder.name,
            "folder": str(self.folder),
            "connect": self.mode == "connect",
            "first": first,
            "only": self.cases,
        }
        with (self.folder / "log").open("w", encoding="utf-8") as log:
            return subprocess.Popen(
                [str(where.program), "-m", "compat.cases", json.dumps(job)],
                cwd=self.folder,
                env=self._variables(),
                stdout=log if first else subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _log(self) -> str:
        log = self.folder / "log"
        return log.read_text(encoding="utf-8")[-3000:] if log.exists() else ""

    def _variables(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
        return kept | {"PYTHONPATH": str(ROOT / "tests"), "SQLQUEUE_URL": self.url}


def main() -> int:
    """Run what the command line names; returns 1 if a case failed."""
    given = arguments()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = (given.folder or scratch / "environments").absolute()
        url = given.url or stack.enter_context(embedded.server(tcp=True)).url
        wheel = build_wheel(scratch / "wheel")
        made = {each.name: each for each in MATRIX if each.name in given.only}
        for name, each in made.items():
            began = time.monotonic()
            made[name] = replace(each, folder=folder / name)
            make(made[name], wheel)
            say(f"{name:10} {'install':45} {time.monotonic() - began:6.1f} s  ok")
        wanted = [(name, name, mode, given.cases) for name in made for mode in given.modes]
        wanted += [(*each, "classic", ["killed"]) for each in HANDOVERS if {*each} <= made.keys()]
        runs = [
            Run(
                killed=made[first],
                environment=made[second],
                mode=mode,
                url=url,
                folder=scratch / f"compat_{secrets.token_hex(4)}",
                cases=cases,
            ).go()
            for first, second, mode, cases in wanted
        ]
    report(runs)
    return int(any(each.failed for each in runs))


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


def report(runs: list[Run]) -> None:
    """Print the summary as a table of Markdown."""
    columns = ["environment", "session", "Python", "pyspark", "pyarrow", "numpy", "cases", "failed"]
    say(f"\n| {' | '.join([*columns, 'seconds'])} |\n{'|---' * 9}|")
    for each in runs:
        versions = [each.about.get(name, "?") for name in ("python", "pyspark", "pyarrow", "numpy")]
        counts = [len(each.seconds), len(each.failed), round(sum(each.seconds.values()))]
        say(f"| {' | '.join([each.name, each.mode, *versions, *map(str, counts)])} |")


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
