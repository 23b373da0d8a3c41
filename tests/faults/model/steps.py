"""
Work that goes on one statement at a time: a thread for each process, let through gate by gate.

A process stops before each statement. Whoever steps it says whether it goes on, dies there, finds
its connection cut, or commits and loses the answer. A statement that waits for a lock is left
waiting, and counts as a step of its own when another's commit lets it go.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from recorded_connection import RecordedConnection

from sqlq_spark.errors import ConnectionLost, SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from sqlq_spark.database import Connection

# go on; die before the statement; die after the commit; lose the connection; lose commit's answer
Order = Literal["go", "die", "late", "cut", "mute"]
FIGURES: Counter[str] = Counter()

# These wait for no one and change nothing that others see: no moment between them is a new one.
UNGATED = {
    *("begin", "timeouts", "rollback", "version", "clock", "columns"),
    *("peek", "sample", "outcome", "receipts", "receipt_pages"),
    *("chunks", "chunk", "chunk_pages", "discard_abandoned", "delete_old_sinks"),
}
LONGEST = 60.0  # seconds that one statement may take
GLANCE = 0.01  # seconds before a statement that has not answered is looked at

_HERE = threading.local()


class Killed(BaseException):
    """The process is dead; nothing of it may catch this."""


class Work:
    """What one process does, in a thread that stops before each statement."""

    def __init__(self, stage: Stage, name: str, call: Callable[[], Any]) -> None:
        """Begin, and stop before the first statement."""
        self.stage, self.name, self.call = stage, name, call
        self.at: str | None = None  # the statement before which it stands
        self.pid = 0  # of its session with the server
        self.order: Order = "go"
        self.blocked = self.done = self.dead = self.committed = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.go, self.here = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()
        self.look()

    def _run(self) -> None:
        _HERE.work = self
        try:
            self.result = self.call()
        except BaseException as error:  # noqa: BLE001 - kept for whoever steps
            self.error = error
        self.done = True
        self.here.release()

    def gate(self, statement: str, pid: int) -> Order:
        """Stop here; called in the thread of the process."""
        self.at, self.pid = statement, pid
        self.here.release()
        self.go.acquire()
        if self.order == "die" or (self.order == "late" and statement != "commit"):
            raise Killed
        return self.order

    def step(self, order: Order = "go") -> None:
        """Let it through one gate, and wait until it stands at the next, ends, or is blocked."""
        if self.blocked and self.pid not in self.stage.waiting():
            self.look()
        stays = self.blocked and order == "go"
        if self.done or stays:
            return
        FIGURES["steps"] += 1
        self.dead = self.dead or order in {"die", "late"}
        self.order = order
        if self.blocked:
            self.stage.terminate(self.pid)
        if not self.blocked:
            self.go.release()
        self.look()
        if self.dead and not self.done:  # it got its lock, and a gate further, before it was cut
            self.order = "die"
            self.go.release()
            self.look()
        assert not (self.dead and self.blocked), f"{self.name} lives on"

    def look(self) -> None:
        """Wait until it stands at a gate, has ended, or waits for a lock."""
        until = time.monotonic() + LONGEST
        while not self.here.acquire(timeout=GLANCE):
            assert time.monotonic() < until, f"{self.name} hangs at {self.at}"
            if self.pid in self.stage.waiting():
                FIGURES["waits for a lock"] += not self.blocked
                self.blocked = True
                return
        self.blocked = False
        if self.done and self.error is not None and not isinstance(self.error, SqlQueueError):
            assert isinstance(self.error, Killed), repr(self.error)


@dataclass
class Stage:
    """Where work is done: sessions that are used again, and an eye on the server's locks."""

    desk: psycopg.Connection[tuple[Any, ...]]
    connect: Callable[..., Connection]  # the dialect's own
    works: list[Work] = field(default_factory=list)
    _free: list[Gated] = field(default_factory=list)
    _made: int = 0

    def start(self, name: str, call: Callable[[], Any]) -> Work:
        """Start a process."""
        work = Work(self, name, call)
        self.works.append(work)
        return work

    def stir(self) -> None:
        """See who has got the lock that it waited for, and drop who is done."""
        if any(work.blocked for work in self.works):
            waiting = self.waiting()
            for work in self.works:
                if work.blocked and work.pid not in waiting:
                    work.look()
        self.works = [work for work in self.works if not work.done]

    def terminate(self, pid: int) -> None:
        """End a session as a DBA, or a broken network, does; it is gone after."""
        self.desk.execute("SELECT pg_terminate_backend(%s)", [pid])
        gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
        while self.desk.execute(gone, [pid]).rowcount:
            time.sleep(0.001)
        FIGURES["sessions ended by the server"] += 1

    def waiting(self) -> set[int]:
        """The sessions that wait for a lock that they have not got."""
        return {pid for (pid,) in self.desk.execute("SELECT pid FROM pg_locks WHERE NOT granted")}

    def open(self, url: str, *, application: str, timeout: float, state: str) -> Gated:
        """Stand in for the dialect's `connect`: a session that another process has left, or new."""
        if self._free:
            gated = self._free.pop()
            gated.application = application
            return gated
        self._made += 1
        name = f"stage {id(self)} {self._made}"
        inner = self.connect(url, application=name, timeout=timeout, state=state)
        # the driver connects twice, and its first session may not be gone yet
        text = """
            SELECT pid FROM pg_stat_activity
             WHERE application_name = %s ORDER BY backend_start DESC LIMIT 1"""
        row = self.desk.execute(text, [name]).fetchone()
        assert row is not None
        return Gated(inner, row[0], self, application)

    def keep(self, gated: Gated) -> None:
        """Take back a session that has no transaction open."""
        assert gated not in self._free
        self._free.append(gated)

    def close(self) -> None:
        """End all sessions."""
        for gated in self._free:
            gated.inner.close()
        self._free.clear()


class Gated(RecordedConnection):
    """A connection whose statements stop at the gate of the process that uses it."""

    def __init__(self, inner: Connection, pid: int, stage: Stage, application: str) -> None:
        super().__init__(inner)
        self.pid, self.stage, self.application = pid, stage, application
        self.lost = self.begun = False

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection."""
        work: Work | None = getattr(_HERE, "work", None)
        gated = work is not None and statement not in UNGATED
        order = work.gate(statement, self.pid) if work is not None and gated else "go"
        if order == "cut":  # the server undoes what was begun; another process may use the session
            self.undo()
            reason = "the connection was cut"
            raise ConnectionLost(statement=statement, reason=reason)
        try:
            found = call()
        except ConnectionLost:
            self.lost = True
            if work is not None and work.dead:
                raise Killed from None
            raise
        self.begun = statement == "begin" or (
            self.begun and statement not in {"commit", "rollback"}
        )
        if statement == "commit" and work is not None:
            work.committed = True
            if order == "late":
                raise Killed
            if order == "mute":  # the session itself is sound, and another process may use it
                reason = "the answer was lost"
                raise ConnectionLost(statement=statement, reason=reason)
        return found

    def close(self) -> None:
        """Leave the session to the next process, unless it is broken; end what was begun."""
        if self.lost:
            self.inner.close()
        else:
            self.undo()
            self.stage.keep(self)

    def undo(self) -> None:
        """Undo what was begun."""
        if self.begun:
            self.inner.rows("rollback")
            self.begun = False
