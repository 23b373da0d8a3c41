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
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.submit import started

from sqlq_spark.testing import embedded

from .environments import MATRIX, ROOT, Environment, build_wheel, make

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from jobs.submit import Running

MODES = ("classic", "connect")
# The second environment goes on with the checkpoint of the first. Last: the kinds of session.
HANDOVERS = [
    ("dbr-17.3", "spark-4.1", "classic"),
    ("spark-4.1", "dbr-17.3", "classic"),
    ("spark-4.1", "spark-4.2", "classic"),
    ("spark-4.2", "spark-4.1", "classic"),
    ("dbr-17.3", "newest", "classic>connect"),
    ("newest", "dbr-17.3", "connect>classic"),
]


def run(killed: Environment, other: Environment, job: dict[str, Any], url: str) -> bool:
    """
    Run the suite in a database of its own; an error does not keep others from running.

    `killed` runs the process that is killed, `other` all other cases; usually it is the same.

    Returns:
        Whether all is well.
    """
    place = Path(job["folder"])
    place.mkdir()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYSPARK")}
    environ = kept | {"PYTHONPATH": str(ROOT / "tests"), "SQLQUEUE_URL": url}

    def suite(where: Environment, **more: object) -> AbstractContextManager[Running]:
        words = [str(where.program), "-m", "compat.cases", json.dumps(job | more)]
        return started(words, place, environ)

    try:
        for words in (["install"], ["create", "orders", "--error", "error"], ["stats", "orders"]):
            command = [str(other.program.with_name("sqlqueue")), *words]
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=True)
        with suite(killed, only=None, connect=job["modes"].startswith("connect")) as running:
            running.until((place / "killed" / "reached").exists)
        with suite(other, connect=job["modes"].endswith("connect")) as running:
            code = running.process.wait()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        say(f"{job['name']} FAILED {error}")
        return False
    say(running.read("out") + (running.read("log")[-3000:] if code else ""))
    return code == 0


def main() -> int:
    """Run what the command line names; returns 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    names = [each.name for each in MATRIX]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--cases", nargs="+", default=[""], metavar="CASE", help="beginnings")
    parser.add_argument("--folder", type=Path, help="where the environments are kept")
    given = parser.parse_args()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = (given.folder or scratch / "environments").absolute()
        server = stack.enter_context(embedded.run_server(tcp=True))
        wheel = build_wheel(scratch / "wheel")
        made = {x.name: replace(x, folder=folder / x.name) for x in MATRIX if x.name in given.only}
        for each in made.values():
            make(each, wheel)
        runs = [(name, name, mode, given.cases) for name in made for mode in given.modes]
        runs += [(*each, ["killed"]) for each in HANDOVERS if {*each[:2]} <= made.keys()]
        well = []
        for at, (one, two, modes, cases) in enumerate(runs):
            name = f"{one if one == two else f'{one}>{two}':10} {modes:8}"
            job = {"name": name, "folder": str(scratch / f"run{at}"), "only": cases, "modes": modes}
            url = server.create_database(f"run{at}")
            well.append(run(made[one], made[two], job, url))
    say(f"{len(well)} runs, {well.count(False)} failed")
    return int(not all(well))


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
