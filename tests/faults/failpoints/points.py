"""
The points where a process dies: before each statement, and after each commit.

A point's name is `receive 1.0/before:fence`: what was done, and the statement that was not run,
with a running number where it comes again; `after:commit` is a commit whose answer is lost.
After any other statement is before the next. `sites` reads from the package's code which statements
there are, so that one that nothing strikes is found.

A process that is to be killed is forked by one that has imported everything and has no connection:
about 50 ms, most of it for the connection.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import traceback
from collections import Counter
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from recorded_connection import METHODS, RecordedConnection

import sqlq_spark
from sqlq_spark import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection as Pipe
    from types import FrameType

PACKAGE = Path(sqlq_spark.__file__).parent

# packages whose modules speak to a connection, beside `database`, which makes it
SPEAKING = ("receive", "send", "admin", "cli")

# Modules and functions whose statements are not struck, and why.
ELSEWHERE = {
    "receive.browse": "reads only",
    "admin.checks": "reads only",
    "admin.problems": "reads only",
    "database.trust._locks": "reads only, where a schema's owner is not trusted",
    "database.read_clock": "reads only",
    "database.set_lock_timeout": "changes only how long locks are waited for",
    "database.rollback": "runs only after a failure, and where it fails the session is closed",
    "database.trust.find_code": "reads only, where an INSERT runs code",
    "database.trust.find_state_faults": "reads only",
    "database.trust.isolate": "changes only how long locks are waited for",
    "admin.inspect": "reads only",
    "cli.endpoints": "what it takes is meant to be lost",
    "cli.queues": "reads only",
    "send.dispatch.last_sent": "reads only",
    "send.throttle": "reads only",
    "database.schema": "touches no message",
    "receive.driver._freeze": "reads only",
    "admin.purge": "what it takes is meant to be lost",
    "receive.driver._check_owner": "reads only",
    "receive.receipts.is_passed_over": "reads only",
    "receive.driver.purge": "what it takes is meant to be lost",
    "admin.report": "reads only",
    "send.subscriptions.check_table": "reads only",
    "send.subscriptions.refuse_code": "reads only",
    "send.subscriptions.subscribe": "touches no message",
    "admin.watch": "reads only",
    "admin.plans": "works on tables of its own",
    "admin.selftest": "works on tables of its own",
    "demo": "works on tables of its own",
}


# ---------------------------------------------------------------- the code


class Site(NamedTuple):
    """A place in the package's code where a statement is run."""

    module: str
    function: str
    statement: str
    first: int  # of its lines
    last: int

    @property
    def owners(self) -> tuple[str, str]:
        """Its module and its function."""
        return self.module, f"{self.module}.{self.function}"

    def __str__(self) -> str:
        """Say where it is."""
        return f"{self.module}.{self.function}:{self.statement}"


def module(path: Path) -> str:
    """A module's name inside the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def sources() -> dict[str, str]:
    """The modules that speak to a connection, by name."""
    paths = [*PACKAGE.glob("*.py"), *(PACKAGE / "database").glob("*.py")]
    paths += [each for name in SPEAKING for each in (PACKAGE / name).rglob("*.py")]
    texts = {module(path): path.read_text(encoding="utf-8") for path in paths}
    return {name: text for name, text in texts.items() if "Connection" in text}


def sites(texts: dict[str, str]) -> list[Site]:
    """All places where a statement is run, but those that are accounted for ELSEWHERE."""
    found = [site for name, text in texts.items() for site in calls(name, ast.parse(text))]
    stale = ELSEWHERE.keys() - {name for site in found for name in site.owners}
    assert not stale, f"ELSEWHERE names what is no more: {stale}"
    return [site for site in found if ELSEWHERE.keys().isdisjoint(site.owners)]


def calls(name: str, tree: ast.Module) -> Iterator[Site]:
    """Calls of a connection's methods; one that names no statement goes by the method."""
    owners: dict[ast.Call, str] = {}
    for function in ast.walk(tree):  # outer functions come before inner ones
        if isinstance(function, ast.FunctionDef):
            found = (node for node in ast.walk(function) if isinstance(node, ast.Call))
            owners |= dict.fromkeys(found, function.name)
    for call, owner in owners.items():
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method in METHODS:
            match call.args:
                case [ast.Constant(value=str(statement)), *_]:
                    pass
                case _:
                    statement = method
            yield Site(name, owner, statement, call.lineno, call.end_lineno or call.lineno)


def untouched(found: list[Site], struck: Iterable[Point]) -> list[str]:
    """Where no kill fell."""
    lines = {(point.module, point.line) for point in struck}
    return [
        str(site)
        for site in found
        if not any((site.module, line) in lines for line in range(site.first, site.last + 1))
    ]


# ---------------------------------------------------------------- the kill


class Point(NamedTuple):
    """Where a deed was struck."""

    deed: str
    moment: str  # before or after
    statement: str
    number: int
    module: str
    line: int
    commits: int  # of the deed that went through

    @property
    def kind(self) -> Point:
        """The same point of any deed of its kind: `receive 1.0` and `receive 2.1` are one."""
        return self._replace(deed=self.deed.partition(" ")[0], commits=0)

    def __str__(self) -> str:
        """Its name."""
        number = f" {self.number}" if self.number > 1 else ""
        return f"{self.deed}/{self.moment}:{self.statement}{number}"


class Strike:
    """Kills this process at the first point of a deed that is not known yet."""

    def __init__(self, order: Order, answer: int) -> None:
        self.order = order
        self.answer = answer  # a pipe: where it died
        self.passed: Counter[tuple[str, str]] = Counter()

    def passing(self, moment: str, statement: str, code: FrameType) -> None:
        """Come to a point; `code` is what runs the statement."""
        self.passed[moment, statement] += 1
        point = Point(
            self.order.deed,
            moment,
            statement,
            self.passed[moment, statement],
            module(Path(code.f_code.co_filename)),
            code.f_lineno,
            self.passed["after", "commit"],
        )
        if point.kind not in self.order.known:
            os.write(self.answer, json.dumps(point).encode())
            os.kill(os.getpid(), signal.SIGKILL)


class Watched(RecordedConnection):
    """A connection that shows a strike each statement."""

    strike: ClassVar[Strike | None] = None

    def __init__(self, inner: Any, name: str) -> None:
        super().__init__(inner)
        self.name = name  # of the session, on the server

    @property
    def application(self) -> str:
        """The same name, also while a transaction is open."""
        return self.name

    @application.setter
    def application(self, _: str) -> None:
        """Keep the name: by it the sessions of the dead are found."""

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection."""
        code, strike = sys._getframe(2), Watched.strike  # noqa: SLF001 - who runs the statement
        if strike is not None:
            strike.passing("before", statement, code)
        done = call()
        if strike is not None and statement == "commit":
            strike.passing("after", statement, code)
        return done


def watching(url: str, mark: str) -> Callable[..., Watched]:
    """Give what connects to `url`; the sessions' names begin with `mark`."""
    connect, number = database.of(url).connect, count()

    def watched(url: str, *, application: str, timeout: float, state: str) -> Watched:
        del application
        name = f"{mark}-{os.getpid()}-{next(number)}."
        return Watched(connect(url, application=name, timeout=timeout, state=state), name)

    return watched


# ---------------------------------------------------------------- processes to kill


class Order(NamedTuple):
    """What is to be done, and not to be finished."""

    deed: str
    known: frozenset[Point]  # the points of this kind of deed that were struck before
    work: Callable[..., Any]


@contextmanager
def forge() -> Iterator[Callable[[Order], Point | None]]:
    """Give what makes a process for an order; it returns where that one died, None if it lived."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def run(order: Order) -> Point | None:
        ours.send(order)
        code, said = ours.recv()
        assert code in {0, -signal.SIGKILL}, said
        assert (code == 0) == (said == ""), said
        return Point(*json.loads(said)) if said else None

    try:
        yield run
    finally:
        ours.close()
        process.join()


def serve(orders: Pipe) -> None:
    """Fork a process for each order that comes in, and answer how it ended."""
    database.of("postgresql://")  # its driver is imported once
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os._exit(do(order, write))
        os.close(write)
        with os.fdopen(read) as said:
            text = said.read()
        _, status = os.waitpid(pid, 0)
        orders.send((os.waitstatus_to_exitcode(status), text))


def do(order: Order, said: int) -> int:
    """Do the work, to be killed in the middle of it; the exit code of one that lives."""
    try:
        Watched.strike = Strike(order, said)
        order.work()
    except BaseException:  # noqa: BLE001 - the parent raises it
        os.write(said, traceback.format_exc().encode())
        return 1
    return 0
