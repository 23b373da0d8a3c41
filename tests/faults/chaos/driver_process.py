"""The driver process as its tormentor sees it: started, watched by its status file, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_COME_UP = 300.0  # seconds that a driver may need on a busy machine


class Driving:
    """One driver after the other, on the same orders."""

    def __init__(self, orders: dict[str, Any], folder: Path) -> None:
        """
        Begin; nothing runs yet.

        Args:
            orders: for the streamer; paths of its files are added.
            folder: for those files and the log.
        """
        names = ("status", "drain", "finish", "numbers")
        self.orders = orders | {name: str(folder / name) for name in names}
        self.log = folder / "driver.log"
        self.starts = 0
        self.seen: set[int] = set()  # all processes that were ever below a driver
        self._process: subprocess.Popen[str] | None = None
        self._read = 0

    # ------------------------------------------------------------ its life

    def start(self) -> None:
        """Start one, and wait until its first query runs or is refused."""
        with self.log.open("a", encoding="utf-8") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos.driver", json.dumps(self.orders)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.starts += 1
        end = time.monotonic() + _COME_UP
        while not self._said("started", "failed"):
            if time.monotonic() > end or not self.alive:
                raise TimeoutError(f"no driver came up, see {self.log}")
            time.sleep(0.1)

    @property
    def alive(self) -> bool:
        """Whether there is one."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the driver's Python."""
        if self._process is None:
            raise ValueError("no driver was started")
        return self._process.pid

    @property
    def java(self) -> int | None:
        """The process id of its JVM."""
        events = [each for each in self.events() if each["event"] == "session"]
        return int(events[-1]["java"]) if events and events[-1]["pid"] == self.pid else None

    def below(self) -> list[int]:
        """All processes below it."""
        found = descendants(self.pid) if self._process is not None else []
        self.seen |= set(found)
        return found

    def kill(self, *, spared: bool) -> list[int]:
        """
        Kill it and its JVM at once.

        Args:
            spared: its Python workers may live on until they notice.

        Returns:
            Who got the signal.
        """
        java, below = self.java, self.below()
        victims = [self.pid, *([java] if spared and java else [] if spared else below)]
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another die
            for pid in victims:
                send(pid, sign)
        if self._process is not None:
            self._process.wait(_COME_UP)
        return victims

    def end(self) -> None:
        """Leave nothing of any driver behind."""
        if self.alive:
            self.kill(spared=False)
        for pid in self.seen:
            if ours(pid):
                send(pid, signal.SIGKILL)

    # ------------------------------------------------------------ what it says

    def events(self) -> list[dict[str, Any]]:
        """All that was said so far, the last line only when it is whole."""
        path = Path(self.orders["status"])
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def news(self) -> list[dict[str, Any]]:
        """What was said since the last call."""
        events = self.events()
        new, self._read = events[self._read :], len(events)
        return new

    def order(self, name: str) -> None:
        """Make one of the files that the driver watches."""
        Path(self.orders[name]).touch()

    def _said(self, *events: str) -> bool:
        return any(each["pid"] == self.pid and each["event"] in events for each in self.events())


def send(pid: int, sign: signal.Signals) -> bool:
    """Signal a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, sign)
        return True
    return False


def ours(pid: int) -> bool:
    """Whether a process is a Java or a Python of Spark; a number may have gone to someone else."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    below, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        below += level
    return below
