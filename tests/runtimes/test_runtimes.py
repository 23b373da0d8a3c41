"""
Databricks Runtimes: each has every name and parameter of pyspark that the package uses.

Their API is that of the wheels of databricks-connect, 3 MB each, which are fetched from PyPI and
read as text; nothing of them is installed or run.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .api import Api, installed
from .check import missing
from .uses import sources

if TYPE_CHECKING:
    from pathlib import Path

RUNTIMES = ["17.3", "18.0", "18.3", "19.3"]


def wheel(version: str, cache: Path) -> Path:
    """The newest wheel of a runtime, from the cache, or from PyPI."""
    folder = cache / version
    if not list(folder.glob("*.whl")):
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        wanted = ["--python-version", "3.12", f"databricks-connect=={version}.*"]
        subprocess.run([sys.executable, "-m", "pip", *words, *wanted], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.parametrize("version", RUNTIMES)
def test_the_runtime_has_what_the_package_uses(version: str, pytestconfig: pytest.Config) -> None:
    """By name and parameter; what is detected instead is listed with its alternative."""
    cache = pytestconfig.cache
    assert cache is not None

    api = Api(wheel(version, cache.mkdir("databricks-connect")))

    assert api.has("pyspark.sql.datasource", "DataSourceStreamReader")
    assert missing(api, sources()) == []


def test_the_installed_pyspark_has_it_too() -> None:
    """And so the test can tell: what it collects is not nothing."""
    found = sources()

    assert {each.path.name for each in found} >= {"stream.py", "expressions.py", "streams.py"}
    assert len({use.name for each in found for use in each.uses}) > 200
    assert {own.method.name for each in found for own in each.overrides} >= {"latestOffset", "read"}
    assert [line for line in missing(installed(), found) if "pyspark.dbutils" not in line] == []
