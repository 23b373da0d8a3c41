"""What is published: a wheel of the package alone, and a source distribution that builds it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

from sqlq_spark import __version__

ROOT = Path(__file__).parent.parent
NOT_OURS = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
# in the environment that is there: an isolated one would fetch the backend
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[-1])"


def build(kind: str, tree: Path, folder: Path) -> None:
    """Build one kind of distribution."""
    command = [sys.executable, "-c", BUILD.format(kind), str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """Built from the source distribution: statements and the mark of typing, no test, no job."""
    tree, folder = tmp_path / "tree", tmp_path / "dist"
    shutil.copytree(ROOT / "sqlq_spark", tree / "sqlq_spark", ignore=NOT_OURS)
    for name in ("pyspark_sqlqueue.py", "LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, tree)
    ours = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    build("sdist", tree, folder)
    [sources] = folder.glob("*.tar.gz")
    with tarfile.open(sources) as files:
        files.extractall(folder, filter="data")
    build("wheel", folder / sources.name.removesuffix(".tar.gz"), folder)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as files:
        texts = {name.partition(".dist-info/")[2]: files.read(name) for name in files.namelist()}
        found = {name for name in files.namelist() if ".dist-info/" not in name}

    assert found == {name for name in ours if name.startswith(("sqlq_spark/", "pyspark_sqlqueue"))}
    assert {"sqlq_spark/database/sqlserver/receive.sql", "sqlq_spark/py.typed"} <= found
    metadata = message_from_string(texts["METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("sqlq-spark", __version__)
    assert metadata.get_all("License-File") == ["LICENSE"]
    points = texts["entry_points.txt"].decode()
    assert "sqlqueue = sqlq_spark.cli.main:main" in points
    plugin = "sqlq_spark.testing.plugin"
    assert f"[pytest11]\n{plugin} = {plugin}\n" in points
