"""
The harms of chaos: each strikes once, at a session, a process, the server or its disk.

A database's session is struck at its backend, or at a Python process that speaks to it. What is
frozen hangs longer than a statement may take: when it goes on, its session is gone, its task
perhaps too. That nothing is lost at any statement is shown by test_failpoints.py.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import processes
import psycopg
from waiting import until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from random import Random

    from sqlq_spark.testing import embedded

BACK = 60.0  # seconds in which a server must answer again
QUERY_TIMEOUT = 3.0  # seconds, of the streams
# what strikes, and how often it is drawn
HARMS = {
    "backend terminated": 16,  # pg_terminate_backend, as a DBA or a failover does
    "worker killed": 12,  # a Python of Spark: of tasks, the source, a sink
    "backend frozen": 5,
    "worker frozen": 5,
    "backend killed": 4,  # the server ends all sessions and recovers from its log
    "server crashed": 3,  # immediate stop, and start
    "disk full": 3,  # a log that cannot grow ends the server
    "driver killed": 2,  # with JVM and workers at once
    "JVM killed": 2,  # with the driver's Python; workers, frozen ones too, live on for a while
}
BUSY = """
SELECT pid FROM pg_stat_activity
 WHERE application_name LIKE 'sqlqueue %' ORDER BY state = 'active' DESC, random() LIMIT 1
"""


@dataclass
class Ground:
    """The server of a run."""

    server: embedded.Server
    disk: Path | None  # a tmpfs of our own, or None

    def ask(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run a statement in a session of its own, and again while the server comes back."""

        def rows() -> list[list[tuple[Any, ...]]]:
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self.server.url, autocommit=True) as connection,
            ):
                cursor = connection.execute(text.encode(), args or None)
                return [[] if cursor.description is None else cursor.fetchall()]
            return []

        return until(rows, seconds=BACK)[0]

    def revive(self) -> None:
        """Start the server where it is down, and wait until it answers."""
        path = self.server.place / "data" / "postmaster.pid"
        lines = path.read_text().split() if path.exists() else []
        if not (lines and processes.command(int(lines[0]))):
            self.server.start()
        self.ask("SELECT")


@dataclass
class Scene:
    """What may be struck, and what goes on later."""

    ground: Ground
    rng: Random
    driver: subprocess.Popen[bytes] | None = None
    frozen: list[tuple[float, int]] = field(default_factory=list)  # thaw when, whom

    def strike(self, name: str) -> bool:
        """Do a harm, and return whether it hit anything."""
        match name.split():
            case ["backend", how]:
                return any(self.hit(pid, how) for (pid,) in self.ground.ask(BUSY))
            case ["worker", how]:
                pids = [pid for pid in self.below() if " -m pyspark" in processes.command(pid)]
                return bool(pids) and self.hit(self.rng.choice(pids), how)
            case ["server", _]:
                self.ground.server.stop("immediate")
                time.sleep(self.rng.choice([0.0, 0.5, 2.0]))
            case ["disk", _]:
                self.fill(self.rng.uniform(1.0, 4.0))
            case [what, _]:
                self.kill(workers=what == "driver")
        self.ground.revive()
        return True

    def hit(self, pid: int, how: str) -> bool:
        if how == "terminated":
            return self.ground.ask("SELECT pg_terminate_backend(%s)", pid) == [(True,)]
        if how == "frozen":
            seconds = self.rng.uniform(QUERY_TIMEOUT + 0.5, QUERY_TIMEOUT * 2)
            self.frozen.append((time.monotonic() + seconds, pid))
        return processes.send(pid, signal.SIGSTOP if how == "frozen" else signal.SIGKILL)

    def thaw(self, *, everyone: bool = False) -> None:
        for each in list(self.frozen):
            if everyone or each[0] <= time.monotonic():
                processes.send(each[1], signal.SIGCONT)
                self.frozen.remove(each)

    def below(self) -> list[int]:
        return [] if self.driver is None else processes.below(self.driver.pid)

    def dump(self) -> None:
        """Let the JVM write its threads to its log."""
        for pid in self.below():
            if "deploy.SparkSubmit" in processes.command(pid):
                processes.send(pid, signal.SIGQUIT)
        time.sleep(1)

    def fill(self, seconds: float) -> None:
        assert self.ground.disk is not None
        ballast = self.ground.disk / "ballast"
        try:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
            time.sleep(seconds)
        finally:
            ballast.unlink()

    def kill(self, *, workers: bool) -> None:
        """
        Kill the driver and its JVM at once.

        With `workers` all Python processes below it are killed too.
        """
        if self.driver is None:
            return
        below = self.below()
        java = [pid for pid in below if "deploy.SparkSubmit" in processes.command(pid)]
        victims = [self.driver.pid, *(below if workers else java)]
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another die
            for pid in victims:
                processes.send(pid, sign)
        self.driver.wait()
