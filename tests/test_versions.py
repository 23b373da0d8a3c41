"""Versions of Python, pyspark and pyarrow that are too old get one sentence, in every way in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructType

from sqlq_spark import versions
from sqlq_spark.datasource import sized

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
SENTENCES = [
    "sqlq_spark needs pyarrow 18.0 or newer, but found 17.0.0. Run: pip install 'pyarrow>=18.0'",
    "sqlq_spark needs pyspark 4.0 or newer, but found 3.5.9. Run: pip install 'pyspark>=4.0'",
]


def test_the_versions_are_those_of_the_project() -> None:
    """Each bound is a lower one, of one version."""
    project = PROJECT["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    bounds = dict(each.split(">=") for each in needed)

    stated = {name: bounds[name] for name in ("pyspark", "pyarrow")}
    assert {"Python": project["requires-python"].removeprefix(">="), **stated} == versions.OLDEST
    versions.check("pyspark", "pyarrow")


def test_an_older_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of the package says it, before anything that such a Python cannot read."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))

    with pytest.raises(ImportError) as refused:
        versions.check()

    assert str(refused.value).startswith("sqlq_spark needs Python 3.11 or newer, but found 3.10.13")


def run(program: str) -> list[str]:
    """Run Python in a process of its own; the lines that it printed."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_each_entry_names_the_version_that_is_too_old() -> None:
    """Spark finds the format, which then says why it fails; Spark 3 has no data sources at all."""
    said = run(
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

    assert [text.partition(", and use")[0] for text in said] == ["sqlqueue", *SENTENCES]


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
    reader = made({"url": "postgresql://u@h:1/d", "queue": "q"}).streamReader(
        StructType().add("seq", LongType())
    )

    assert reader.options.concurrency == 80
