"""What is published: a wheel of the package alone, and a source distribution that builds it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from sqlq_spark import __version__

ROOT = Path(__file__).parent.parent
NOT_OURS = ("__pycache__", "*.pyc", ".*", "*.egg-info", "build", "dist", "spark-warehouse")
PARTS = ("pyspark_sqlqueue.py", "sqlq_spark")
PAPERS = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg")
# in the environment that is there: an isolated one would fetch the backend
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[-1])"


def run(kind: str, tree: Path, folder: Path) -> None:
    """Build one kind of distribution."""
    command = [sys.executable, "-c", BUILD.format(kind), str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a wheel that is built from the source distribution of a copy of the tree."""
    tree, folder = (tmp_path_factory.mktemp(name) for name in ("tree", "dist"))
    for name in (*PARTS, *PAPERS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*NOT_OURS))
        else:
            shutil.copy(ROOT / name, tree / name)
    run("sdist", tree, folder)
    [sources] = folder.glob("*.tar.gz")
    with tarfile.open(sources) as files:
        files.extractall(folder, filter="data")
    run("wheel", folder / sources.name.removesuffix(".tar.gz"), folder)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as files:
        return {name: files.read(name) for name in files.namelist()}


def ours(*names: str) -> set[str]:
    """The files of the tree below some names, as they are called in a distribution."""
    paths = [path for name in names for path in ((ROOT / name).rglob("*"), [ROOT / name])]
    return {
        path.relative_to(ROOT).as_posix()
        for group in paths
        for path in group
        if path.is_file() and not any(path.match(each) for each in NOT_OURS[1:])
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    """Statements and the mark of typing with it; no test, no job."""
    found = {name for name in wheel if ".dist-info/" not in name}

    assert found == ours("sqlq_spark", "pyspark_sqlqueue.py")
    assert "sqlq_spark/database/sqlserver/receive.sql" in found
    assert "sqlq_spark/py.typed" in found


def test_the_metadata_are_the_projects(wheel: dict[str, bytes]) -> None:
    """Name, version, license, readme, the command and the plugin of pytest."""
    texts = {name.partition(".dist-info/")[2]: text.decode() for name, text in wheel.items()}
    found = message_from_string(texts["METADATA"])

    assert (found["Name"], found["Version"]) == ("sqlq-spark", __version__)
    assert found.get_all("License-File") == ["LICENSE"]
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text("utf-8").strip()
    assert "sqlqueue = sqlq_spark.cli.main:main" in texts["entry_points.txt"]
    plugin = "sqlq_spark.testing.plugin"
    assert f"[pytest11]\n{plugin} = {plugin}\n" in texts["entry_points.txt"]
