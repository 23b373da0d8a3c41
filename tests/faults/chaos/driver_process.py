"""The driver process as the harness sees it: started, watched by its status file, killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import processes

_ROOT = Path(__file__).resolve().parents[3]
_COME_UP = 300.0  # seconds that a driver may need on a busy machine


class Driving:
    """One driver after the other, on the same orders."""

    def __init__(self, orders: dict[str, Any], folder: Path) -> None:
        """
        Begin; nothing runs yet.

        Args:
            orders: for the driver; paths of its files are added.
            folder: for those files and the log.
        """
        names = ("status", "drain", "finish", "numbers")
        self.orders = orders | {name: str(folder / name) for name in names}
        self.log = folder / "driver.log"
        self.starts = 0
        self.seen: set[int] = set()  # all processes that were ever below a driver
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    def start(self) -> None:
        """Start one, and wait until its first query runs or is refused."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos.driver", json.dumps(self.orders)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1
        end = time.monotonic() + _COME_UP
        while not self._own("started", "failed"):
            if time.monotonic() > end or not self.alive:
                raise TimeoutError(f"no driver started, see {self.log}")
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

    def below(self) -> list[int]:
        """All processes below it."""
        found = processes.below(self.pid)
        self.seen |= set(found)
        return found

    def kill(self, *, workers: bool) -> list[int]:
        """
        Kill it and its JVM at once; returns which processes got the signal.

        Args:
            workers: its Python workers too; else they live on until they see the JVM's end.
        """
        java, below = [int(each["java"]) for each in self._own("session")], self.below()
        victims = [self.pid, *(below if workers else java)]
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another die
            for pid in victims:
                processes.send(pid, sign)
        assert self._process is not None
        self._process.wait(_COME_UP)
        return victims

    def end(self) -> None:
        """Leave nothing of any driver behind."""
        if self.alive:
            self.kill(workers=True)
        for pid in self.seen:
            if "pyspark" in processes.command(pid):  # its number may be another process's by now
                processes.send(pid, signal.SIGKILL)

    # ------------------------------------------------------------ its status file

    def events(self) -> list[dict[str, Any]]:
        """All events so far, the last line only when it is whole."""
        path = Path(self.orders["status"])
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def news(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        events = self.events()
        new, self._read = events[self._read :], len(events)
        return new

    def order(self, name: str) -> None:
        """Make one of the files that the driver watches."""
        Path(self.orders[name]).touch()

    def _own(self, *names: str) -> list[dict[str, Any]]:
        """Events of the driver that runs now."""
        events = self.events()
        return [each for each in events if each["pid"] == self.pid and each["event"] in names]
