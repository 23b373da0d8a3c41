"""Checks the Java that Spark needs, before Spark starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from sqlq_spark.errors import SqlQueueError

OLDEST_JAVA = 17


class NoJava(SqlQueueError):
    """Java is missing or too old for Spark."""

    template = (
        f"Spark needs Java {OLDEST_JAVA} or newer, but {{found}}. Install it with "
        "`apt install openjdk-17-jre-headless`, or from https://adoptium.net"
    )


def check_java() -> None:
    """
    Look for the Java that Spark would start.

    Raises:
        NoJava: there is none, or it is too old.
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
