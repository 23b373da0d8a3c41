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
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # the backend changes argv
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from a copy of the tree; gives the folder where they are."""
    tree, folder = (tmp_path_factory.mktemp(name) for name in ("tree", "dist"))
    for name in (*PARTS, *PAPERS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*NOT_OURS))
        else:
            shutil.copy(ROOT / name, tree / name)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def ours(*names: str) -> set[str]:
    """The files of the tree below some names, as they are called in a distribution."""
    paths = [path for name in names for path in ((ROOT / name).rglob("*"), [ROOT / name])]
    return {
        path.relative_to(ROOT).as_posix()
        for group in paths
        for path in group
        if path.is_file() and not any(path.match(each) for each in NOT_OURS[1:])
    }


def wheel(built: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """Statements and the mark of typing with it; no test, no job."""
    found = {name for name in wheel(built) if ".dist-info/" not in name}

    assert found == ours("sqlq_spark", "pyspark_sqlqueue.py")
    assert "sqlq_spark/database/sqlserver/receive.sql" in found
    assert "sqlq_spark/py.typed" in found


def test_the_source_distribution_holds_what_the_wheel_is_built_from(built: Path) -> None:
    """And its papers."""
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as files:
        found = {name.partition("/")[2] for name in files.getnames()}

    assert ours(*PARTS) | {*PAPERS} <= found
    assert [name for name in found if name.endswith(".pyc")] == []


def test_the_metadata_are_the_projects(built: Path) -> None:
    """Name, version, license, readme, the command and the plugin of pytest."""
    texts = {name.partition(".dist-info/")[2]: text.decode() for name, text in wheel(built).items()}
    found = message_from_string(texts["METADATA"])

    assert (found["Name"], found["Version"]) == ("sqlq-spark", __version__)
    assert found.get_all("License-File") == ["LICENSE"]
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text("utf-8").strip()
    assert "sqlqueue = sqlq_spark.cli.main:main" in texts["entry_points.txt"]
    plugin = "sqlq_spark.testing.plugin"
    assert f"[pytest11]\n{plugin} = {plugin}\n" in texts["entry_points.txt"]
