"""The environments of the compatibility run, from oldest to newest, and how one is built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# builds in this environment, because an isolated build would download setuptools
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PARTS = ["pyspark_sqlqueue.py", "LICENSE", "README.md", "pyproject.toml", "setup.cfg"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOWER_BOUNDS = [each.replace(">=", "==") for each in PROJECT["dependencies"]]
# pandas comes with Spark Connect, which the extra pipelines contains; Spark 4.0 and 4.1 were
# released before pandas 3
LIBRARIES = ["numpy==2.1.*", "pandas==2.2.*"]


@dataclass(frozen=True)
class Environment:
    """One combination of versions."""

    name: str
    python: str
    pins: list[str]  # requirements for pip, which chooses all other versions
    folder: Path = Path()

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "python"


MATRIX = (
    # each dependency at its lower bound
    Environment("oldest", "3.11", ["pyspark[connect]==4.0.0", "pandas==2.2.*", *LOWER_BOUNDS]),
    # about as in Databricks Runtime 17.3 LTS
    Environment("dbr-17.3", "3.12", ["pyspark[connect]==4.0.*", "pyarrow==19.0.*", *LIBRARIES]),
    # libraries about as in Databricks Runtime 18, which has Spark 4.1
    *(
        Environment(
            f"spark-{spark}",
            "3.12",
            [f"pyspark[pipelines]=={spark}.*", "pyarrow==21.*", *LIBRARIES],
        )
        for spark in ("4.1", "4.2")
    ),
    # the newest release of everything
    Environment("newest", "3.13", ["pyspark[pipelines]>=4.3"]),
)


def build_wheel(folder: Path, root: Path = ROOT) -> Path:
    """Build the wheel from a copy of a tree."""
    tree, ignored = folder / "tree", shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "sqlq_spark", tree / "sqlq_spark", ignore=ignored)
    for name in PARTS:
        shutil.copy(root / name, tree / name)
    run(sys.executable, "-c", BUILD, str(folder), cwd=tree)
    [wheel] = folder.glob("*.whl")
    return wheel


def make(environment: Environment, wheel: Path) -> None:
    """Make an environment, or use that of an earlier run, and install the wheel into it."""
    program = str(environment.program)
    if not environment.program.exists():
        run(interpreter(environment.python), "-m", "venv", str(environment.folder))
    pip = [program, "-m", "pip", "install", "--quiet"]
    run(*pip, *environment.pins, str(wheel))
    # the wheel of an earlier run has the same version
    run(*pip, "--force-reinstall", "--no-deps", str(wheel))


def interpreter(version: str) -> str:
    """Find a Python on PATH or among those of pyenv, whose shims may fail; or take the caller's."""
    known = [shutil.which(f"python{version}"), sys.executable]
    known += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for program in filter(None, known):
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return program
    return sys.executable


def run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r"://[^/@]*@", "://…@", done.stderr[-3000:])
        raise RuntimeError(f"{command[0]} {command[1]} failed: {said}")
