"""
A Spark job in its own process session, so that Python, the JVM and its workers can be killed.

The JVM's Python workers create their own process group, but stay in the session. A kill therefore
goes to each process of the session. The job reads a pipe and ends when the pipe closes, so that no
process stays if this process is killed.
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

    template = "the demo's job {job!r} failed: {end}. Spark's log is in {log}"


class Job:
    """A running job; leaving the block kills its processes."""

    def __init__(self, order: Order, *, url: str, log: Path, temporary: Path) -> None:
        """
        Start it.

        Args:
            order: what to do.
            url: of the database; passed in the environment, because it has a password.
            log: the file to which Spark's log is added.
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
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sqlq_spark.demo.job", order.text],
                env={**os.environ, **environ},
                cwd=temporary,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
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
        Wait for the next event. Returns {} if none came in time, and None at the job's end.

        Raises:
            JobFailed: it ended with an error.
        """
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return {}
        if event is None and self._process.wait():
            raise JobFailed(job=self.order.job, log=str(self.log), end=last_error(self.log))
        return event

    def kill(self) -> int:
        """Kill every process of the session with SIGKILL; returns how many."""
        killed: set[int] = set()
        if self._process.poll() is None:  # without /proc only the process group is killed
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
    """The running processes of a session; none without /proc."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(place.name)) == session and not _zombie(place):
                found.add(int(place.name))
    return found


def _zombie(place: Path) -> bool:
    return place.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"


def last_error(log: Path) -> str:
    """The line of a log that most likely describes the error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|sqlq_spark)\b.*: ", line)]
    return (errors or lines or ["without a message"])[-1][:500]
