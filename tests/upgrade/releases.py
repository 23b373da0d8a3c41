"""Earlier releases of the package, built from the repository's history."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

from compat.environments import build_wheel

ROOT = Path(__file__).parents[2]
# the last commit whose state tables have version 3
VERSION_3 = "c1e1ab612488d4fd5d3c0e7a13e3012ff374a688"


def unpack_release(commit: str, folder: Path) -> Path:
    """
    Build the wheel of a commit and unpack it; return the folder for PYTHONPATH.

    The clone must have the commit: a shallow one gets it by `git fetch --unshallow`.
    """
    tree = folder / "tree"
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as archived:
        archived.extractall(tree, filter="data")
    wheel = build_wheel(folder / "wheel", root=tree)
    package = folder / "package"
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(package)  # noqa: S202 - ours
    return package


def start_program(
    package: Path | None, arguments: str, log: Path, *, program: str = "program.py"
) -> subprocess.Popen[bytes]:
    """
    Start a program of this folder with a release, in a session of its own.

    `package` is a folder of `unpack_release`; None: the package of this tree.
    """
    place = str(package or ROOT)
    environment = os.environ | {"PYTHONPATH": place, "PYSPARK_PYTHON": sys.executable}
    # `python -m`, by which Spark starts its workers, looks in the current folder first
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), arguments],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
