"""The Python workers of this process's Spark, and the most memory that each has held."""

from __future__ import annotations

import os
import re
from pathlib import Path


def peak() -> float:
    """The highest VmHWM of a Python worker, in bytes: what was resident, shared pages too."""
    return max(_bytes(status, "VmHWM") for status in _workers())


def _workers() -> list[str]:
    """The status of each process below this one that runs Spark's Python."""
    statuses = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            statuses[int(path.parent.name)] = path.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
    return [
        status
        for process, status in statuses.items()
        if _below(process, statuses) and "pyspark.daemon" in _command(process)
    ]


def _below(process: int, statuses: dict[int, str]) -> bool:
    while process in statuses:
        process = int(re.findall(r"^PPid:\s+(\d+)", statuses[process], re.MULTILINE)[0])
        if process == os.getpid():
            return True
    return False


def _command(process: int) -> str:
    path = Path(f"/proc/{process}/cmdline")
    return path.read_text().replace("\0", " ") if path.exists() else ""


def _bytes(status: str, name: str) -> float:
    """A size of a process, which Linux tells in kB of 1024 bytes; 0 for one that has ended."""
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return 1024.0 * int(found[1]) if found else 0.0
