"""
The harms: each strikes once, at a session, a process, the server or its disk.

A session is struck in the middle of a statement drawn by lot, at either end: the database's backend
or the Python process that speaks to it.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import processes
import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .driver_process import Driving
    from .server import Ground

QUERY_TIMEOUT = 3.0  # seconds, of the streams

# Who a session belongs to, and statements worth dying in; None: any.
_SESSIONS: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "task": (
        "^sqlqueue [0-9a-f-]{36} ",
        ("fence", "find_receipt", "begin_receipt", "receive", "load", "commit", None),
    ),
    "source": (
        "^sqlqueue driver ",
        (
            *("lock_stream", "outcome", "acknowledge", "delete_receipts", "peek", "sample"),
            *("store_plan", "begin", "timeouts", "commit", None),
        ),
    ),
    "sink": ("^sqlqueue (sink|abort) ", ("sink_open", "stage", "discard", "commit", None)),
    "dispatch": (
        "^sqlqueue dispatch ",
        ("sink_close", "advance", "settle", "chunk", "load", "discard", "commit", None),
    ),
}
_SEE = """
SELECT pid, client_port, application_name, query
  FROM pg_stat_activity
 WHERE application_name ~ %s AND (query LIKE %s OR %s) AND state <> 'idle'
 LIMIT 1
"""
_ANY = """
SELECT pid, client_port, application_name, query
  FROM pg_stat_activity
 WHERE application_name LIKE 'sqlqueue %'
 ORDER BY random()
 LIMIT 1
"""


class Target(NamedTuple):
    """A session of ours, caught at work."""

    backend: int  # process id
    port: int  # of the client
    application: str
    query: str

    def __str__(self) -> str:
        """Name the session and its statement."""
        return f"{self.application.removeprefix('sqlqueue ')} at {self.query[:40].split(' */')[0]}"


@dataclass
class Scene:
    """What may be struck, and what goes on later."""

    ground: Ground
    driving: Driving
    rng: Random
    kinds: tuple[str, ...]  # of sessions that there are
    frozen: list[tuple[float, int]] = field(default_factory=list)  # thaw when, whom

    def freeze(self, pid: int) -> float | None:
        """Stop a process for longer than a statement may take; for how long, in seconds."""
        seconds = self.rng.uniform(QUERY_TIMEOUT + 0.5, QUERY_TIMEOUT * 2)
        if not processes.send(pid, signal.SIGSTOP):
            return None
        self.frozen.append((time.monotonic() + seconds, pid))
        return seconds

    def thaw(self, *, everyone: bool = False) -> None:
        """Let those go on whose time has come."""
        now = time.monotonic()
        for each in list(self.frozen):
            if everyone or each[0] <= now:
                processes.send(each[1], signal.SIGCONT)
                self.frozen.remove(each)

    def target(self, seconds: float = 1.0) -> Target | None:
        """Wait for a session of a kind and in a statement drawn by lot; at last take any."""
        pattern, statements = _SESSIONS[self.rng.choice(self.kinds)]
        statement = self.rng.choice(statements)
        end = time.monotonic() + seconds
        with (
            suppress(psycopg.OperationalError),  # the server may be coming back
            psycopg.connect(self.ground.server.url, autocommit=True) as connection,
        ):
            while (now := time.monotonic()) < end:
                anyone = statement is None or now > end - seconds / 2
                like = f"%/* sqlqueue:{statement} */%"
                row = connection.execute(_SEE, [pattern, like, anyone]).fetchone()
                if row is not None:
                    return Target(*row)
                time.sleep(0.001)
            row = connection.execute(_ANY).fetchone()
            return None if row is None else Target(*row)
        return None

    def client(self, target: Target) -> int | None:
        """The process at the other end of a session: whoever below the driver has its socket."""
        wanted = f"socket:[{_inode(target.port)}]"
        for pid in self.driving.below():
            if wanted in processes.files(pid):
                return pid
        return None


def _inode(port: int) -> str | None:
    """The socket of a local port."""
    for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port:
            return fields[9]
    return None


# ---------------------------------------------------------------- the database's side


def backend_terminated(scene: Scene) -> str | None:
    """pg_terminate_backend, as a DBA or a failover does."""
    target = scene.target()
    if target is None:
        return None
    scene.ground.ask("SELECT pg_terminate_backend(%s)", target.backend)
    return str(target)


def backend_killed(scene: Scene) -> str | None:
    """SIGKILL of a backend: the server ends all sessions and recovers from its log."""
    target = scene.target()
    return str(target) if target and processes.send(target.backend, signal.SIGKILL) else None


def backend_frozen(scene: Scene) -> str | None:
    """A backend that hangs longer than a statement may take."""
    target = scene.target()
    seconds = None if target is None else scene.freeze(target.backend)
    return None if seconds is None else f"{target} for {seconds:.1f} s"


def server_crashed(scene: Scene) -> str | None:
    """Immediate stop of the whole server, and its start."""
    scene.target(0.3)
    scene.ground.server.stop("immediate")
    pause = scene.rng.choice([0.0, 0.5, 2.0])
    time.sleep(pause)
    scene.ground.revive()
    return f"down for {pause} s"


def disk_full(scene: Scene) -> str | None:
    """No room for the server for some seconds; a log that cannot grow ends it."""
    ballast = scene.ground.fill()
    seconds = scene.rng.uniform(1.0, 4.0)
    try:
        time.sleep(seconds)
    finally:
        ballast.unlink()
    scene.ground.revive()
    return f"for {seconds:.1f} s"


# ---------------------------------------------------------------- Spark's side


def worker_killed(scene: Scene) -> str | None:
    """SIGKILL of the Python process behind a session: of a task, of the source, of a sink."""
    target = scene.target()
    pid = None if target is None else scene.client(target)
    return f"{pid}, {target}" if pid and processes.send(pid, signal.SIGKILL) else None


def worker_frozen(scene: Scene) -> str | None:
    """A Python process that hangs: when it goes on, its session is gone, its task perhaps too."""
    target = scene.target()
    pid = None if target is None else scene.client(target)
    seconds = None if pid is None else scene.freeze(pid)
    return None if seconds is None else f"{pid}, {target} for {seconds:.1f} s"


def java_killed(scene: Scene) -> str | None:
    """SIGKILL of the JVM and the driver's Python; workers, frozen ones too, live on for a while."""
    target = scene.target()
    return f"{len(scene.driving.kill(workers=False))} processes, {target}"


def driver_killed(scene: Scene) -> str | None:
    """SIGKILL of driver, JVM and workers at once."""
    target = scene.target()
    return f"{len(scene.driving.kill(workers=True))} processes, {target}"


# what strikes, and how often it is drawn
HARMS: dict[str, tuple[Callable[[Scene], str | None], int]] = {
    "backend terminated": (backend_terminated, 16),
    "worker killed": (worker_killed, 12),
    "backend frozen": (backend_frozen, 5),
    "worker frozen": (worker_frozen, 5),
    "backend killed": (backend_killed, 4),
    "server crashed": (server_crashed, 3),
    "disk full": (disk_full, 3),
    "driver killed": (driver_killed, 2),
    "JVM killed": (java_killed, 2),
}
