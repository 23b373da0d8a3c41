"""
Work that goes on one statement at a time: a thread for each process, let through gate by gate.

A process stops before each statement. Whoever steps it says whether it goes on, dies there, finds
its connection cut, or commits and loses the answer. A statement that waits for a lock is left
waiting, and counts as a step of its own when another's commit lets it go.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from recorded_connection import RecordedConnection

from sqlq_spark import database
from sqlq_spark.database import undo_all
from sqlq_spark.errors import ConnectionLost, SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from receipt_moves import Move

    from sqlq_spark.database import Connection

# go on; die before the statement; die after the commit; lose the connection; lose commit's answer
Order = Literal["go", "die", "late", "cut", "mute"]
FIGURES: Counter[str] = Counter()

# These wait for no one and change nothing that others see. So a stop before them shows nothing.
QUICK = {
    *("begin", "version", "clock", "columns"),
    *("peek", "sample", "outcome", "receipts", "receipt_pages"),
    *("chunks", "chunk", "chunk_pages", "discard_abandoned", "delete_old_sinks"),
}
LONGEST = 60.0  # seconds that one statement may take
GLANCE = 0.01  # seconds before a statement that has not answered is looked at

_HERE = threading.local()


class Killed(BaseException):
    """The process is dead. The package must not catch this."""


class Work:
    """The work of one process, in a thread that stops before each statement."""

    at = ""  # the statement before which the work has stopped
    site = ("", 0)  # file and line of the code that runs this statement
    pid = 0  # the server's process id for its session
    order: Order = "go"
    blocked = done = dead = committed = False
    result: Any = None
    error: BaseException | None = None
    # what a model makes of it: the move of its commit, the driver and the task that it works for
    move: Move | None = None
    driver: Any = None
    slot: tuple[int, int] | None = None
    on_commit: Callable[[dict[Any, Any]], None] | None = None  # gets the receipts that are gone
    on_end: Callable[[], None] | None = None

    def __init__(self, stage: Stage, name: str, call: Callable[[], Any], **more: Any) -> None:
        """Begin, and stop before the first statement."""
        self.stage, self.name, self.call = stage, name, call
        vars(self).update(more)
        self.passed: Counter[str] = Counter()  # statements
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

    def gate(self, statement: str, pid: int, site: tuple[str, int]) -> Order:
        self.at, self.pid, self.site = statement, pid, site
        self.passed[statement] += 1
        self.here.release()
        self.go.acquire()
        return self.order

    def step(self, order: Order = "go") -> None:
        """Let the work pass one gate, and wait until it is at the next one, ends, or is blocked."""
        if self.blocked and self.pid not in self.stage.waiting():
            self.look()
        if self.done or (self.blocked and order == "go"):
            return
        FIGURES["steps"] += 1
        self.dead = self.dead or order in {"die", "late"}
        self.order = order
        if self.blocked:
            self.stage.terminate(self.pid)
        else:
            self.go.release()
        self.look()
        assert not (self.dead and self.blocked), f"{self.name} lives on"

    def look(self) -> None:
        """Wait until the work is at a gate, has ended, or waits for a lock."""
        until = time.monotonic() + LONGEST
        while not self.here.acquire(timeout=GLANCE):
            assert time.monotonic() < until, f"{self.name} hangs at {self.at}"
            if self.pid in self.stage.waiting():
                FIGURES["waits for a lock"] += 1
                self.blocked = True
                return
        self.blocked = False
        expected(self.error, SqlQueueError)


def expected(error: BaseException | None, *kinds: type[BaseException]) -> None:
    """Raise an error unless it is one of these kinds. A killed process may have any."""
    if error is not None and not isinstance(error, (*kinds, Killed)):
        raise error


# functions that lock a table and ask whose it is, for whoever uses it
ASKING = {"lock_table", "look", "check_locked", "lock_and_check", "use", "use_delayed"}


class Stage:
    """The sessions of all processes, which are used again, and a view of the server's locks."""

    def __init__(self, desk: psycopg.Connection[Any], connect: Callable[..., Connection]) -> None:
        self.desk = desk
        self.connect = connect  # the dialect's own
        self.passed = {*QUICK}  # statements without a gate
        self.free: list[Gated] = []
        self.made = 0

    def stir(self, works: list[Work]) -> None:
        blocked = [work for work in works if work.blocked]
        waiting = self.waiting() if blocked else ()
        for work in blocked:
            if work.pid not in waiting:
                work.look()

    def terminate(self, pid: int) -> None:
        """End a session as a DBA or a broken network does, and wait until it is gone."""
        self.desk.execute("SELECT pg_terminate_backend(%s)", [pid])
        gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
        while self.desk.execute(gone, [pid]).rowcount:
            time.sleep(0.001)
        FIGURES["sessions ended by the server"] += 1

    def waiting(self) -> set[int]:
        return {pid for (pid,) in self.desk.execute("SELECT pid FROM pg_locks WHERE NOT granted")}

    def open(
        self,
        url: str,
        *,
        application: str,
        timeout: float,
        state: str,
        credential: str | None = None,
    ) -> Gated:
        """
        Replace the dialect's `connect`.

        Give a session that another process has left, or a new one.
        """
        if self.free:
            return self.free.pop()
        self.made += 1
        name = f"stage {id(self)} {self.made}"
        inner = self.connect(
            url, application=name, timeout=timeout, state=state, credential=credential
        )
        # the driver connects twice, and its first session may not be gone yet
        text = """
            SELECT pid FROM pg_stat_activity
             WHERE application_name = %s ORDER BY backend_start DESC LIMIT 1"""
        ((pid,),) = self.desk.execute(text, [name]).fetchall()
        del application
        return Gated(inner, pid, self)

    def close(self) -> None:
        for gated in self.free:
            gated.inner.close()


class Gated(RecordedConnection):
    """A connection whose statements stop at the gate of the process that uses it."""

    def __init__(self, inner: Connection, pid: int, stage: Stage) -> None:
        super().__init__(inner)
        self.pid, self.stage = pid, stage
        self.lost = False

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        work: Work | None = getattr(_HERE, "work", None)
        order = "go" if work is None else self.stop(work, statement)
        try:
            found = call()
        except ConnectionLost:
            self.lost = True
            if work is not None and work.dead:
                raise Killed from None
            raise
        if statement == "commit" and work is not None:
            work.committed = True
            if order == "late":
                raise Killed
            if order == "mute":  # the session itself is sound, and another process may use it
                reason = "the answer was lost"
                raise ConnectionLost(statement=statement, reason=reason)
        return found

    def stop(self, work: Work, statement: str) -> Order:
        """
        Let a process stop at its gate.

        It dies or loses its connection there, if the test says so.
        """
        if work.dead:  # a dead process runs no more statements
            raise Killed
        if statement in self.stage.passed:
            return "go"
        code = sys._getframe(3)  # noqa: SLF001 - who runs the statement
        while code.f_code.co_name in ASKING and code.f_back is not None:
            code = code.f_back  # the caller, which uses the table
        order = work.gate(statement, self.pid, (code.f_code.co_filename, code.f_lineno))
        if order in {"go", "mute"} or (order == "late" and statement == "commit"):
            return order
        # The server would undo it too. Then another process can use the session.
        self.lost = not undo_all(self.inner)
        if order == "cut":
            reason = "the connection was cut"
            raise ConnectionLost(statement=statement, reason=reason)
        raise Killed

    def close(self) -> None:
        if self.lost:
            self.inner.close()
            return
        assert self.inner.work is database.Work.NONE, "a transaction is left open"
        self.stage.free.append(self)

    def undo(self) -> bool:
        """Undo without a gate, because it changes nothing that others see."""
        self.lost = not self.inner.undo()
        return not self.lost
