"""
The oldest versions of Python, pyspark, pyarrow and Java that this package works with.

pip checks versions when it installs. A cluster can load sqlq_spark without pip, so the data source
checks the versions again. This module can be imported by every Python 3, and it imports no package
that may be missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata

from sqlq_spark.errors import MissingPackage, SqlQueueError, UnsupportedVersion

# These are the versions in pyproject.toml. A test compares them.
OLDEST = {"Python": "3.11", "pyspark": "4.0", "pyarrow": "18.0"}
OLDEST_JAVA = 17


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (4, 0) of `4.0.0.dev1`."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


def check_versions(*packages: str) -> None:
    """
    Compare the versions of Python and of `packages` with OLDEST.

    Raises:
        UnsupportedVersion: Python or one of the packages is too old.
        MissingPackage: one of the packages is missing.
    """
    versions = {"Python": ".".join(map(str, sys.version_info[:3]))}
    for package in packages:
        # Do not import a package to read its version. To import pyarrow takes 0.2 s, and not every
        # process of Spark needs it.
        loaded = sys.modules.get(package)
        try:
            versions[package] = str(loaded.__version__) if loaded else metadata.version(package)
        except metadata.PackageNotFoundError:
            raise MissingPackage(package=package, extra="spark") from None
    for what, version in versions.items():
        needed = OLDEST[what]
        fix = f"Run: pip install '{what}>={needed}'"
        if what == "pyspark":
            fix += ", and use a cluster with Spark 4 (Databricks Runtime 17.3 LTS or newer)"
        elif what == "Python":
            fix = f"Run it with Python {needed} or newer"
        if numbers(version) < numbers(needed):
            raise UnsupportedVersion(what=what, found=version, needed=needed, fix=fix)


class NoJava(SqlQueueError):
    """Java is missing or too old for Spark."""

    found: str
    template = (
        f"Spark needs Java {OLDEST_JAVA} or newer, but {{found}}. Install it with "
        "`apt install openjdk-17-jre-headless`, or from https://adoptium.net"
    )


def check_java() -> None:
    """
    Look for the Java that Spark would start.

    Raises:
        NoJava: Java is missing, or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        raise NoJava(
            found=f"JAVA_HOME is {home}, without bin/java" if home else "there is none on PATH"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        raise NoJava(found=f"{java} does not run")
    if int(found[1]) < OLDEST_JAVA:
        raise NoJava(found=f"{java} is version {found[1]}")
