"""
Does a test fail for each fault of the list? `python -m tests.mutants` says so.

The tests run in copies of the tree, so the tree itself is not changed. First they must pass without
a fault. A fault is caught if one of its tests fails. An error before or after a test is no catch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from . import ROOT, Fault
from .drawn import DRAWN
from .history import HISTORY

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 600  # seconds for the tests of one fault
SHOWN = 25  # last lines of a run that are printed if a fault survives
console = Console(highlight=False, markup=False, soft_wrap=True)
times = count(1_000_000_000)  # each version of a file has its own, so that Python compiles it


@dataclass(frozen=True)
class Run:
    """What a run of pytest said."""

    code: int
    failed: list[str]  # node ids
    output: str
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What became of a fault."""

    fault: Fault
    problem: str  # empty: it was caught
    tests: list[str]
    seconds: float = 0.0


def copy_tree(into: Path) -> Path:
    """Copy the files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    return into


def run_tests(copy: Path, tests: Sequence[str], *options: str, limit: float = LONGEST) -> Run:
    """Run tests in a copy; all processes that they start import the copy too."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--tb=short"]
    command += ["--hypothesis-seed=0"]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *options, *(f"tests/{each}" for each in tests)],
            cwd=copy,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return Run(-1, [], f"no end after {limit:.0f} s", time.monotonic() - began)
    failed = re.findall(r"^FAILED tests/(\S+)", done.stdout, re.MULTILINE)
    return Run(done.returncode, failed, done.stdout, time.monotonic() - began)


def write(path: Path, text: str) -> None:
    """Write a version of a file."""
    path.write_text(text, encoding="utf-8")
    stamp = next(times)
    os.utime(path, (stamp, stamp))


def check_fault(fault: Fault, copies: SimpleQueue[Path]) -> Verdict:
    """Apply a fault to a copy, run its tests, and undo it."""
    copy = copies.get()
    path = copy / fault.path
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    after = fault.apply(before)
    if after is None:
        copies.put(copy)
        verdict = Verdict(fault, "it cannot be applied", [])
        print_line(verdict)
        return verdict
    try:
        write(path, after)
        run = run_tests(copy, fault.tests, "-x")
    finally:
        write(path, before)
        copies.put(copy)
    named = [each for each in run.failed if each.partition("[")[0] in fault.tests]
    problem = "" if run.code == 1 and named else f"it survived (pytest ended with {run.code})"
    verdict = Verdict(fault, problem, named, run.seconds)
    print_line(verdict)
    if problem:
        console.print("\n".join(run.output.splitlines()[-SHOWN:]))
    return verdict


def print_line(verdict: Verdict) -> None:
    """Print what became of a fault."""
    caught = ", ".join(each.partition("[")[0].rpartition("::")[2] for each in verdict.tests)
    what = verdict.problem.upper() or f"caught by {caught}"
    console.print(f"{verdict.seconds:6.1f} s  {verdict.fault.id}: {what}")


def print_table(verdicts: Sequence[Verdict]) -> None:
    """Print how many faults of each package were caught, and in which test files."""
    console.print("\n| Package | History | Drawn | Caught | By tests of |\n|---|---|---|---|---|")
    for package in sorted({each.fault.package for each in verdicts}):
        own = [each for each in verdicts if each.fault.package == package]
        kinds = Counter("history" if each.fault.fixed else "drawn" for each in own)
        caught = sum(not each.problem for each in own)
        files = sorted({test.partition("::")[0] for each in own for test in each.tests})
        figures = f"{kinds['history']} | {kinds['drawn']} | {caught} | {', '.join(files)}"
        console.print(f"| {package} | {figures} |")


def main() -> int:
    """Run the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults")
    parser.add_argument("--jobs", type=int, default=2, help="copies that run at the same time")
    parser.add_argument("--check", action="store_true", help="only whether each can be applied")
    given = parser.parse_args()
    faults = [*HISTORY, *DRAWN]
    if given.only is not None:
        faults = [each for each in faults if each.id in given.only]
    if given.check:
        unfit = [
            each.id for each in faults if each.apply((ROOT / each.path).read_text("utf-8")) is None
        ]
        console.print(f"{len(faults)} faults; cannot be applied: {', '.join(unfit) or 'none'}")
        return bool(unfit)

    began = time.monotonic()
    with TemporaryDirectory(prefix="sqlq-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        made = [copy_tree(Path(folder, str(number))) for number in range(given.jobs)]
        tests = sorted({test for each in faults for test in each.tests})
        clean = run_tests(made[0], tests, f"-n{given.jobs}", limit=4 * LONGEST)
        console.print(
            f"{clean.seconds:6.1f} s  {len(tests)} tests without a fault: exit {clean.code}"
        )
        if clean.code != 0:
            console.print(clean.output)
            return 1
        for copy in made:
            copies.put(copy)
        with ThreadPoolExecutor(given.jobs) as pool:
            verdicts = [*pool.map(partial(check_fault, copies=copies), faults)]
    print_table(verdicts)
    survivors = [each.fault.id for each in verdicts if each.problem]
    console.print(
        f"\n{time.monotonic() - began:.0f} s; not caught: {', '.join(survivors) or 'none'}"
    )
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
