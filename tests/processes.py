"""Processes of this machine, as /proc shows them; of one that has ended there is nothing to see."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

MIB = 1 << 20
GONE = (FileNotFoundError, ProcessLookupError)


def below(pid: int) -> list[int]:
    """All processes below one, parents before children."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(*GONE):
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]
            parents.setdefault(int(parent), []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]


def command(pid: int) -> str:
    """The command line of a process; empty where it is gone."""
    with suppress(*GONE):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def memory(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def peak(pid: int) -> float:
    """The most bytes that were resident."""
    with suppress(*GONE):
        found = re.search(
            r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
        )
        return 1024.0 * int(found[1]) if found else 0.0
    return 0.0


def files(pid: int) -> list[str]:
    """Its open files and sockets, as Linux names them."""
    found = []
    with suppress(*GONE):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(*GONE):
                found.append(str(link.readlink()))
    return found


def send(pid: int, sign: signal.Signals) -> bool:
    """Signal a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, sign)
        return True
    return False


def members(session: int) -> set[int]:
    """The running processes of a session; none without /proc."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            if os.getsid(int(place.name)) == session and state != "Z":
                found.add(int(place.name))
    return found


def kill_session(process: subprocess.Popen[Any]) -> None:
    """End all processes of a session at once; stopped first, so that none sees another die."""
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for pid in members(process.pid):
            send(pid, sign)
    process.wait()


def inheriting(variable: str) -> dict[int, str]:
    """The processes with `NAME=value` in their environment, and their command lines."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(variable) in (place / "environ").read_bytes():
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(place.name)] = line
    return found


def naming(path: Path) -> list[str]:
    """The command lines that name a path, as that of a PostgreSQL whose data is there."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(path) in line]
