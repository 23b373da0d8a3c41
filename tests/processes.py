"""Processes of this machine, found by what they inherited and by their command lines."""

import contextlib
import os
import subprocess
from pathlib import Path

PROC = Path("/proc")


def inheriting(variable: str) -> dict[int, str]:
    """The processes with `NAME=value` in their environment, and their command lines."""
    found = {}
    for place in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.fsencode(variable) in (place / "environ").read_bytes():
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(place.name)] = line
    return found


def naming(path: Path) -> list[str]:
    """The command lines that name a path, as that of a PostgreSQL whose data is there."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(path) in line]
