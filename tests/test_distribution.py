"""What is published: the wheel, and the oldest versions that it works with."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructType

from sqlq_spark import __version__, versions
from sqlq_spark.datasource import sized

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# builds in this environment, because an isolated build would download setuptools
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[-1])"


def run(program: str, *words: str, folder: Path = ROOT) -> list[str]:
    """Run Python in a process of its own. Return the lines that it printed."""
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """It has statements and py.typed, and no test and no job."""
    tree, folder = tmp_path / "tree", tmp_path / "dist"
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    shutil.copytree(ROOT / "sqlq_spark", tree / "sqlq_spark", ignore=ignored)
    for name in ("pyspark_sqlqueue.py", "LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copy(ROOT / name, tree)
    ours = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    run(BUILD.format("sdist"), str(folder), folder=tree)
    [sources] = folder.glob("*.tar.gz")
    with tarfile.open(sources) as files:
        files.extractall(folder, filter="data")
    tree = folder / sources.name.removesuffix(".tar.gz")
    run(BUILD.format("wheel"), str(folder), folder=tree)
    [path] = folder.glob("*.whl")
    with zipfile.ZipFile(path) as files:
        texts = {name.partition(".dist-info/")[2]: files.read(name) for name in files.namelist()}
        found = {name for name in files.namelist() if ".dist-info/" not in name}

    assert found == {name for name in ours if name.startswith(("sqlq_spark/", "pyspark_sqlqueue"))}
    assert {"sqlq_spark/database/sqlserver/receive.sql", "sqlq_spark/py.typed"} <= found
    assert path.name.startswith(f"sqlq_spark-{__version__}-")
    points = texts["entry_points.txt"].decode()
    assert "sqlqueue = sqlq_spark.cli.main:main" in points
    plugin = "sqlq_spark.testing.plugin"
    assert f"[pytest11]\n{plugin} = {plugin}\n" in points


def test_the_oldest_versions_are_those_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of the package names an older Python."""
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]
    bounds = dict(each.split(">=") for each in needed)
    stated = {name: bounds[name] for name in ("pyspark", "pyarrow")}
    assert {"Python": PROJECT["requires-python"].removeprefix(">="), **stated} == versions.OLDEST
    versions.check_versions("pyspark", "pyarrow")

    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(ImportError, match=r"needs Python 3\.11 or newer, but found 3\.10\.13\. "):
        versions.check_versions()


def test_each_entry_names_the_version_that_is_too_old() -> None:
    """Spark finds the format, which then says why it fails; Spark 3 has no data sources at all."""
    name, arrow, spark = run(
        "import pyarrow; pyarrow.__version__ = '17.0.0'\n"
        "from pyspark_sqlqueue import DefaultSource\n"
        "print(DefaultSource.name())\n"
        "try: DefaultSource({})\n"
        "except ImportError as error: print(error)\n"
        "import sys, types, sqlq_spark\n"
        "sys.modules['pyspark'] = types.ModuleType('pyspark')\n"
        "sys.modules['pyspark'].__version__ = '3.5.9'\n"
        "try: sqlq_spark.register(None)\n"
        "except ImportError as error: print(error)\n"
    )

    assert name == "sqlqueue"
    assert "pyarrow 18.0 or newer, but found 17.0.0. Run: pip install 'pyarrow>=18.0'" in arrow
    assert "pyspark 4.0 or newer, but found 3.5.9. Run: pip install 'pyspark>=4.0', and" in spark


def test_spark_finds_the_format_without_what_only_readers_and_writers_need() -> None:
    """Each query starts a process to find the format; the command line needs no pyspark."""
    said = run(
        "import sys\n"
        "from pyspark.sql.datasource import DataSource\n"
        "from pyspark_sqlqueue import DefaultSource\n"
        "DefaultSource({'url': 'postgresql://u@h:1/d', 'queue': 'q'}).schema()\n"
        "print(*{'pyarrow', 'numpy', 'stamina', 'sqlq_spark.receive.task'} & {*sys.modules})\n"
        "from pyspark.sql.types import LongType, StructType\n"
        "from sqlq_spark.datasource.stream import StreamReader\n"
        "from sqlq_spark.datasource.write import StreamWriter\n"
        "print('pandas' in sys.modules)\n"
        "sys.modules['pyspark'] = None\n"
        "import sqlq_spark.cli.main\n"
    )

    assert said == ["", "False"]


def test_the_cores_that_register_saw_reach_the_driver() -> None:
    """Spark pickles the format's class; the number travels in it."""
    made = cloudpickle.loads(cloudpickle.dumps(sized(80)))  # type: ignore[no-untyped-call]
    source = made({"url": "postgresql://u@h:1/d", "queue": "q"})

    assert source.streamReader(StructType().add("seq", LongType())).options.concurrency == 80
