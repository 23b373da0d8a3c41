"""
One environment's part of the compatibility run: `python suite.py '{"url": …}'`.

It prints a line of JSON for each case, and goes on after one that failed. The first case of all
runs alone, in a process that its starter kills.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from compat import cases
from compat.stage import Stage

PACKAGES = ("pyspark", "pyarrow", "numpy", "adbc-driver-postgresql", "orjson", "stamina")


def main(job: dict[str, Any]) -> int:
    """Run the first case, or all others; 1 when one failed."""
    folder = Path(job["folder"])
    stage = Stage(url=job["url"], schema=job["schema"], folder=folder, connect=job["connect"])
    if job["first"]:
        cases.FIRST(stage)
        return 1  # it is killed before
    began = time.monotonic()
    stage.session()
    say(case="session", seconds=time.monotonic() - began, about=about())
    wanted = [each for each in cases.CASES if each.__name__.startswith(tuple(job["only"]))]
    return max([run(each.__name__, stage) for each in wanted], default=0)


def run(name: str, stage: Stage) -> int:
    """Run one case and print what happened; 1 when it failed."""
    began, error = time.monotonic(), None
    try:
        getattr(cases, name)(stage)
    except Exception:  # noqa: BLE001 - whatever it is, the other cases run too
        error = traceback.format_exc()
    say(case=name, seconds=time.monotonic() - began, error=error)
    return int(error is not None)


def about() -> dict[str, str]:
    """The versions that run here."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def say(**what: Any) -> None:
    """Print one line for the starter."""
    print(json.dumps(what), flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
