"""The environments of the compatibility run, from oldest to newest, and how one is built."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
# in the environment that is there: an isolated one would fetch the backend
_BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
_PARTS = ["sqlq_spark", "pyspark_sqlqueue.py", "LICENSE", "README.md", "pyproject.toml"]
_PARTS += ["setup.cfg"]
_LATEST = "3.13"


def lower_bounds() -> tuple[str, ...]:
    """Each dependency of the wheel at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tuple(each.replace(">=", "==") for each in project["dependencies"])


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One combination of versions."""

    name: str
    python: str
    pins: tuple[str, ...] = ()  # all others as the resolver chooses
    like: str = ""
    folder: Path = field(default=Path())

    @property
    def program(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


# pandas comes with Spark Connect, which the extra pipelines contains; Spark 4.0 and 4.1 were
# released before pandas 3
MATRIX = (
    Environment(
        name="oldest",
        python="3.11",
        pins=("pyspark[connect]==4.0.0", "pandas==2.2.*", *lower_bounds()),
        like="each dependency at its lower bound",
    ),
    Environment(
        name="dbr-17.3",
        python="3.12",
        pins=("pyspark[connect]==4.0.*", "pyarrow==19.0.*", "numpy==2.1.*", "pandas==2.2.*"),
        like="libraries about as in Databricks Runtime 17.3 LTS",
    ),
    Environment(
        name="spark-4.1",
        python="3.12",
        pins=("pyspark[pipelines]==4.1.*", "pyarrow==21.*", "numpy==2.1.*", "pandas==2.2.*"),
        like="libraries about as in Databricks Runtime 18",
    ),
    Environment(
        name="spark-4.2",
        python="3.12",
        pins=("pyspark[pipelines]==4.2.*", "pyarrow==21.*", "numpy==2.1.*", "pandas==2.2.*"),
        like="libraries about as in Databricks Runtime 18",
    ),
    Environment(
        name="newest",
        python=_LATEST,
        pins=("pyspark[pipelines]>=4.3",),
        like="the newest release of everything",
    ),
)


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the tree."""
    tree = folder / "tree"
    for name in _PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    run(sys.executable, "-c", _BUILD, str(folder), cwd=tree)
    [wheel] = folder.glob("*.whl")
    return wheel


def make(environment: Environment, wheel: Path) -> None:
    """Make an environment, or use that of an earlier run, and install the wheel into it."""
    uv, python = shutil.which("uv"), interpreter(environment.python)
    program = str(environment.program)
    venv = [uv, "venv", "--quiet", "--python", python] if uv else [python, "-m", "venv"]
    pip = [uv, "pip", "install", "--python", program] if uv else [program, "-m", "pip", "install"]
    # the wheel of an earlier run has the same version
    again = ["--reinstall-package", "sqlq-spark"] if uv else ["--force-reinstall", "--no-deps"]
    if not environment.program.exists():
        run(*venv, str(environment.folder))
    run(*pip, "--quiet", *environment.pins, str(wheel))
    run(*pip, "--quiet", *again, str(wheel))


def interpreter(version: str) -> str:
    """
    Find a Python of this version on PATH or among those of pyenv; the caller's runs without it.

    A shim of pyenv for a version that is not chosen fails, and uv would stop at it.
    """
    known = [shutil.which(f"python{version}"), sys.executable]
    known += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for program in filter(None, known):
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return program
    return sys.executable


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a program to its end."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r"://[^/@]*@", "://…@", done.stderr[-3000:])
        raise RuntimeError(f"{command[0]} {command[1]} failed: {said}")
