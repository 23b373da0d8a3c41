"""
The oldest versions of Python, pyspark and pyarrow that this package works with.

pip compares versions when it installs. A cluster can put the package beside others without pip, so
the format compares them again, and says what to change.
This module can be read by every Python 3 and imports nothing that may be absent.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module

from sqlq_spark.errors import UnsupportedVersion

OLDEST_PYTHON = (3, 11)
# The same as in pyproject.toml; a test compares them.
OLDEST = {"pyspark": "4.0", "pyarrow": "18.0"}


def numbers(version: str) -> tuple[int, ...]:
    """Give the numbers a version begins with: (4, 0) of `4.0.0.dev1`."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


def check(*packages: str) -> None:
    """
    Compare what is installed with what is needed.

    Raises:
        UnsupportedVersion: Python or one of these packages is too old.
        ImportError: one of them is absent.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise UnsupportedVersion(
            "Python",
            ".".join(map(str, sys.version_info[:3])),
            ".".join(map(str, OLDEST_PYTHON)),
        )
    for package in packages:
        found = str(import_module(package).__version__)
        if numbers(found) < numbers(OLDEST[package]):
            raise UnsupportedVersion(package, found, OLDEST[package])
