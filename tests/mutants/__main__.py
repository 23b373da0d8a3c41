"""
`python -m tests.mutants` checks that a test fails for each fault of the lists.

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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from . import ROOT, Fault
from .drawn import DRAWN
from .history import HISTORY

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "_build")
SHOWN = 25  # last lines of a run that are printed if a fault survives
# modification times: each version of a file gets a new one, so that Python compiles it again
times = count(1_000_000_000)


def say(text: str) -> None:
    """Print at once, from any thread."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_tests(copy: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Run tests in a copy. All processes that they start import the copy too."""
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, "--hypothesis-seed=0", *options, *(f"tests/{each}" for each in tests)],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy)},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def write(path: Path, text: str) -> None:
    """Write a version of a file."""
    path.write_text(text, encoding="utf-8")
    stamp = next(times)
    os.utime(path, (stamp, stamp))


def is_caught(fault: Fault, copies: SimpleQueue[Path]) -> bool:
    """Apply a fault to a copy, run its tests, and undo it."""
    copy, start = copies.get(), time.monotonic()
    path = copy / fault.path
    before = path.read_text(encoding="utf-8")
    try:
        write(path, str(fault.apply(before)))
        code, output = run_tests(copy, fault.tests, "-x")
    finally:
        write(path, before)
        copies.put(copy)
    failed = re.findall(r"^FAILED tests/([^\s[]+)", output, re.MULTILINE)
    named = [each for each in failed if each in fault.tests]
    caught = code == 1 and bool(named)
    what = f"caught by {', '.join(named)}" if caught else f"IT SURVIVED (pytest ended with {code})"
    say(f"{time.monotonic() - start:6.1f} s  {fault.id}: {what}")
    if not caught:
        say("\n".join(output.splitlines()[-SHOWN:]))
    return caught


def main() -> int:
    """Run the lists."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these faults")
    parser.add_argument("--jobs", type=int, default=2, help="copies that run at the same time")
    parser.add_argument("--check", action="store_true", help="only whether each can be applied")
    given = parser.parse_args()
    faults = [x for x in (*HISTORY, *DRAWN) if given.only is None or x.id in given.only]
    texts = {each.path: (ROOT / each.path).read_text(encoding="utf-8") for each in faults}
    unfit = [each.id for each in faults if each.apply(texts[each.path]) is None]
    say(f"{len(faults)} faults; cannot be applied: {', '.join(unfit) or 'none'}")
    if given.check or unfit:
        return bool(unfit)

    with TemporaryDirectory(prefix="sqlq-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            copies.put(Path(shutil.copytree(ROOT, Path(folder, str(number)), ignore=LEFT_OUT)))
        tests = sorted({test for each in faults for test in each.tests})
        code, output = run_tests(Path(folder, "0"), tests, f"-n{given.jobs}")
        say(f"{len(tests)} tests without a fault: exit {code}")
        if code != 0:
            say(output)
            return 1
        with ThreadPoolExecutor(given.jobs) as pool:
            caught = [*pool.map(partial(is_caught, copies=copies), faults)]
    survivors = [each.id for each, good in zip(faults, caught, strict=True) if not good]
    say(f"not caught: {', '.join(survivors) or 'none'}")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
