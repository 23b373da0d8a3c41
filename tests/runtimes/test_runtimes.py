"""
Databricks Runtimes: each has every name and parameter of pyspark that the package uses.

Their API is that of the wheels of databricks-connect, 3 MB each, which are fetched from PyPI. mypy
checks the package against their text; nothing of them is installed or run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# mypy reports this name, because the wheel has a module `delta` without types
KNOWN = "configure_spark_with_delta_pip"


def unpacked(version: str, cache: Path) -> Path:
    """The newest wheel of a runtime, unpacked: from the cache, or from PyPI."""
    folder = cache / version
    if not (folder / "pyspark").is_dir():
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
        wanted = ["--python-version", "3.12", f"databricks-connect=={version}.*"]
        subprocess.run([sys.executable, "-m", "pip", *words, *wanted], check=True)
        (found,) = folder.glob("*.whl")
        with zipfile.ZipFile(found) as wheel:
            wheel.extractall(folder)
    return folder


@pytest.mark.parametrize("version", ["17.3", "18.0", "18.3", "19.3"])
def test_the_runtime_has_what_the_package_uses(version: str, pytestconfig: pytest.Config) -> None:
    """Names and parameters are compared by mypy. `spark_api` looks for what a runtime may lack."""
    assert pytestconfig.cache is not None
    folder = unpacked(version, pytestconfig.cache.mkdir("databricks-connect"))
    words = ["--follow-imports=silent", "--no-warn-unused-ignores", f"--cache-dir={folder}/mypy"]

    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "-p", "sqlq_spark", "-m", "pyspark_sqlqueue"],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "checked 1" in done.stdout, done.stdout + done.stderr
    ours = [line for line in done.stdout.splitlines() if line.startswith(("sqlq_spark", "pyspark"))]
    assert [line for line in ours if KNOWN not in line] == []
