"""Processes of this machine, as /proc shows them. One that has ended has nothing to show."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

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
    """The command line of a process, or nothing if it has ended."""
    with suppress(*GONE):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def memory(pid: int) -> float:
    """Resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def private_memory(pid: int) -> float:
    """Resident memory of a process in MiB, without what it shares; 0 if it has ended."""
    with suppress(*GONE):
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / MIB
    return 0.0


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has used, in seconds; None if it has ended."""
    with suppress(*GONE):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return None


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


def kill_session(process: subprocess.Popen[Any]) -> None:
    """End all processes of a session at once. They are stopped first, so none sees another end."""
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pid = int(place.name)
                if (
                    os.getsid(pid) == process.pid
                    and "\nState:\tZ" not in (place / "status").read_text()
                ):
                    os.kill(pid, sign)
    process.wait()


def inheriting(variable: str) -> dict[int, str]:
    """The processes with `NAME=value` in their environment, and their command lines."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.fsencode(variable) in (place / "environ").read_bytes():
                found[int(place.name)] = command(int(place.name))
    return found


def naming(path: Path) -> list[str]:
    """The command lines that name a path, as that of a PostgreSQL whose data is there does."""
    pids = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    return [line for line in map(command, pids) if str(path) in line]
