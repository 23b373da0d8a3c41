"""
A Spark job in a process session of its own: Python, the JVM and its workers, killed at once.

The JVM's Python workers make a process group of their own, but stay in the session; so a kill goes
to the session's members, one by one. The job reads a pipe of ours and ends itself when that closes:
should we be killed, nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlq_spark.errors import SqlQueueError

if TYPE_CHECKING:
    from sqlq_spark.demo.job import Order


class JobFailed(SqlQueueError):
    """A Spark job of the demo ended early."""

    template = "the demo's job {0!r} failed: {2}; all that Spark said is in {1}"

    def __init__(self, job: str, log: str, end: str) -> None:
        super().__init__(job, log, end)


class Job:
    """A job at work; leaving the block kills what is left of it."""

    def __init__(self, order: Order, *, url: str, log: Path, temporary: Path) -> None:
        """
        Start it.

        Args:
            order: what to do.
            url: of the database; goes through the environment, for it holds a password.
            log: a file that what Spark says is added to.
            temporary: for files that a killed JVM leaves behind.
        """
        self.order = order
        self.log = log
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        flags = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData"
        environ = {
            "PYSPARK_PYTHON": sys.executable,  # else workers run the first python3 of PATH
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LAUNCHER_OPTS": flags,
            "SPARK_LOCAL_IP": "127.0.0.1",  # a machine's own name need not have an address
            "SQLQUEUE_URL": url,
            "TMPDIR": str(temporary),
        }
        with log.open("ab") as spoken:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sqlq_spark.demo.job", order.text],
                env={**os.environ, **environ},
                cwd=temporary,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=spoken,
                start_new_session=True,  # Ctrl-C reaches the owner only
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for mypy
        for line in self._process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # half a line of a killed job
                self._events.put(json.loads(line))
        self._events.put(None)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """
        Wait for the next event; an empty one when none came in time, None at the job's end.

        Raises:
            JobFailed: it ended, and not well.
        """
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return {}
        if event is None and self._process.wait():
            raise JobFailed(self.order.job, str(self.log), last_error(self.log))
        return event

    def kill(self) -> int:
        """Kill every process of the session, at once and without a word; returns how many."""
        killed: set[int] = set()
        if self._process.poll() is None:  # all there is to do where there is no /proc
            with contextlib.suppress(ProcessLookupError, PermissionError):
                killed = members(self._process.pid)
                os.killpg(self._process.pid, signal.SIGKILL)
        while left := members(self._process.pid):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= left
            time.sleep(0.01)
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return len(killed)


def members(session: int) -> set[int]:
    """The processes of a session that still run; none where there is no /proc."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(place.name)) == session and not _zombie(place):
                found.add(int(place.name))
    return found


def _zombie(place: Path) -> bool:
    return place.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"


def last_error(log: Path) -> str:
    """The line of a log that is most likely to tell what went wrong."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|sqlq_spark)\b.*: ", line)
    ]
    return (telling or lines or ["it said nothing"])[-1][:500]
