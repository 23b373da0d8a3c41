"""
A run of `sqlqueue selftest`: its place on a server, what each check sees there, and the clean-up.

A run makes schemas, roles and logins whose names begin with its mark. It drops them at its end, and
those that a killed run has left. Each check has a queue of its own, and returns what it saw. It
raises `Failed` if that is not what was promised, and `NotChecked` if the login may not look.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from sqlq_spark import errors
from sqlq_spark.admin import checks, inspect, plans
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.statements import Statements
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import names_of
from sqlq_spark.receive import driver
from sqlq_spark.receive import task as tasks
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import dispatch, insert, sender
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import NO_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from concurrent.futures import Future

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.offset import Offset

MARK = "sqlqueue_selftest_"
LONGEST = 3600  # seconds of a run: older names are of one that was killed
PAUSE = 0.5  # seconds in which what does not have to wait is done
WAIT = 60.0  # seconds after which what must not wait has waited
ATTEMPTS = 5  # to drop what a run has made
MAKE = ("CREATE in the database", "CREATE SCHEMA")  # a right, as each database names it


class Failed(Exception):
    """A check saw something else than was promised."""

    outcome = "failed"


class NotChecked(Exception):
    """A check was not possible; why."""

    outcome = "not checked"


@dataclass(frozen=True)
class Result:
    """What became of one check; `outcome` is passed, failed or not checked."""

    check: str
    promise: str
    outcome: str
    seen: str
    seconds: float
    figures: dict[str, Any]


def expect(**seen: tuple[object, object]) -> str:
    """Return what was seen, each beside what was promised; raise it if one is not as promised."""
    text = ", ".join(f"{name.replace('_', ' ')}: {found}" for name, (found, _) in seen.items())
    wrong = [f"{name} {promised}" for name, (found, promised) in seen.items() if found != promised]
    if wrong:
        raise Failed(f"{text}; promised: {', '.join(wrong)}")
    return text


Check: TypeAlias = "Callable[[Bench], str]"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One check's queue, and its sessions, which end with the check."""

    given: Mapping[str, str]  # options that say where the database is
    mark: str  # the schema of the queues; it begins the names of all that the run makes
    state: str  # schema of the state tables
    name: str  # of the queue
    facts: dict[str, Any]  # what the server says of itself; `may …` is a right of the login
    stack: ExitStack
    figures: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> QueueAddress:
        return QueueAddress(name, self.mark)

    @property
    def queue(self) -> QueueAddress:
        return self.table(self.name)

    def print(self, table: QueueAddress) -> str:
        return names_of(self.given["url"]).print_address(table)

    def source(self, **more: str) -> SourceOptions:
        return SourceOptions.parse({**self._texts(), "maxConcurrency": "1", **more})

    def sink(self, **more: str) -> SinkOptions:
        return SinkOptions.parse({**self._texts(), **more})

    def _texts(self) -> dict[str, str]:
        return {**self.given, "stateSchema": self.state, "queue": self.print(self.queue)}

    def session(self) -> Session:
        return self.stack.enter_context(Session(self.source(), "selftest"))

    def open(self) -> Connection:
        return self.session().open()

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        """Run something in a thread of its own."""
        return self.stack.enter_context(ThreadPoolExecutor(1)).submit(work)

    def at_once(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - of the work
        """Return what something gives beside open transactions, for which it must not wait."""
        return self.beside(work).result(WAIT)

    def waiting(self, work: Callable[[], Any]) -> tuple[Future[Any], bool]:
        """Run something beside, and return whether it waits, for a lock."""
        running = self.beside(work)
        time.sleep(PAUSE)
        return running, not running.done()

    def lacks(self, *rights: str) -> bool:
        """Whether the login has none of some rights, of those that the server knows."""
        known = {self.facts.get(f"may {each}") for each in rights} - {None}
        return bool(known) and known <= {"0", "false"}

    def need(self, *rights: str) -> None:
        if self.lacks(*rights):
            raise NotChecked(f"this login has no right {' or '.join(rights)}")

    def as_login(self, role: str) -> Bench:
        """Make a login in a role; return the same bench with its sessions."""
        connection, login = self.open(), f"{role}_login"
        password = f"aA1-{secrets.token_urlsafe(18)}"
        quoted = map(connection.names.quote_name, (login, role))
        words = dict(zip(("login", "role"), quoted, strict=True), password=f"'{password}'")
        text = Statements.load(connection.names.dialect)["script_login"]
        plans.run(connection, text, {}, **words)
        parts = urlsplit(self.given["url"])
        place = f"{login}:{password}@{parts.netloc.rpartition('@')[2]}"
        query = re.sub(r"(?i)(?:^|&)(?:user|password|authentication)=[^&]*", "", parts.query)
        url = parts._replace(netloc=place, query=query.removeprefix("&")).geturl()
        given = {name: text for name, text in self.given.items() if name != "credentials"}
        return replace(self, given={**given, "url": url})

    def fill(self, messages: int, headers: str = "{}", **more: pa.Array) -> None:
        """Put equal messages into the queue, in a transaction."""
        rows = insert.rows_to_store([headers] * messages, pa.chunked_array([[b"x"] * messages]))
        for name, column in more.items():
            rows = rows.append_column(name, column)
        with transaction(connection := self.open(), timeout=WAIT):
            connection.load(self.queue, rows)

    def count(self) -> int:
        with transaction(connection := self.open(), timeout=WAIT):
            return inspect.depth(connection, self.queue).messages

    def task(self, messages: int = 1 << 20, size: int = 1 << 40) -> tasks.Task:
        """Give a task over the whole queue that leaves no receipt."""
        place: dict[str, Any] = {"batch": 1, "task": 0, "first": 0, "stop": 2**31 - 1}
        most: dict[str, Any] = {"messages": messages, "bytes": size, "options": self.source()}
        return tasks.Task(queue=self.queue, stream=None, **place, **most)

    def receive(self, task: tasks.Task, connection: Connection | None = None) -> pa.Table:
        return tasks.receive(connection or self.open(), task, timeout=WAIT, origin=NO_STREAM)

    def stream(self, **more: str) -> tuple[driver.StreamDriver, Offset, tasks.Task]:
        """Begin a stream; return its driver, and its first batch with the one task."""
        made = driver.StreamDriver(self.source(**more), time.monotonic, checks.at_start)
        self.stack.callback(made.close)
        (task,) = made.tasks(end := made.latest(INITIAL))
        return made, end, task

    def send(
        self,
        *bodies: bytes,
        session: Session | None = None,
        headers: str = "{}",
        **more: Any,  # noqa: ANN401
    ) -> None:
        """Send messages exactly once, for a sink of its own; `more` are columns and options."""
        chunk = self.chunk(*bodies, headers=headers)
        for name in [*more]:
            if not isinstance(more[name], str):
                chunk = chunk.append_column(name, more.pop(name))
        staged = dispatch.stage(self.session(), [chunk], sink=secrets.token_hex(8), batch=0)
        send = partial(dispatch.dispatch, staged=[staged], options=self.sink(**more))
        (session or self.session()).run_with_retries(send)

    def chunk(self, *bodies: bytes, headers: str = "{}") -> pa.Table:
        columns = [None] * len(bodies), [headers] * len(bodies), [*bodies], [None] * len(bodies)
        return pa.table([*columns], schema=sender.CHUNK_ROW)


def before_commit(
    connection: Connection, work: Callable[[], object], *, lose: bool = False
) -> None:
    """Do something before the next commit; or after it, and lose the commit's answer."""
    rows = connection.rows

    def paused(statement: Any, **more: Any) -> Any:  # noqa: ANN401
        if statement == "commit":
            del vars(connection)["rows"]
            if lose:
                rows("commit")
            work()
            if lose:
                raise errors.ConnectionLost(statement="commit", reason="its answer was lost")
        return rows(statement, **more)

    vars(connection)["rows"] = paused


class Cut(Session):
    """A session whose first connection is ended by another session, at a moment."""

    def __init__(self, bench: Bench, moment: str) -> None:
        super().__init__(bench.source(), "selftest")
        self.numbers: list[int] = []  # of its connections
        self.moment, self._desk = moment, bench.open()
        bench.stack.callback(self.close)

    def _connect(self) -> Connection:
        connection = super()._connect()
        known: dict[str, str] = dict(connection.rows("selftest_facts"))
        self.numbers.append(int(known["session"]))
        if len(self.numbers) == 1 and self.moment != "in a statement":
            before_commit(connection, self.end, lose=self.moment == "after a commit")
        return connection

    def end(self) -> None:
        self._desk.rows("selftest_end", session=self.numbers[0])
        time.sleep(PAUSE)


# ---------------------------------------------------------------- a run


def run(given: Mapping[str, str], chosen: Sequence[Check]) -> Generator[Result, None, None]:
    """
    Run checks, one after the other, in schemas of their own.

    `given` are the options url, credentials and queryTimeout.
    """
    now, names = int(time.time()), names_of(given["url"])
    mark = f"{MARK}{now:08x}_{secrets.token_hex(2)}"
    with ExitStack() as stack:
        logging.disable(logging.WARNING)  # of what is made to happen
        stack.callback(logging.disable, logging.NOTSET)
        state = f"{mark}_state"
        bench = Bench(given=given, mark=mark, state=state, name="q", facts={}, stack=stack)
        connection = bench.open()
        bench.facts.update(connection.rows("selftest_facts"))
        bench.facts["driver"] = type(connection._raw).__module__  # noqa: SLF001 - of no statement
        with suppress(Exception):  # what another login has left
            drop(connection, MARK, f"{MARK}{now - LONGEST:08x}")
        try:
            if not bench.lacks(*MAKE):
                # on SQL Server those whom its roles trust own it
                owner = " AUTHORIZATION dbo" if names.dialect == "sqlserver" else ""
                plans.run(connection, f"CREATE SCHEMA {names.quote_name(mark)}{owner}")
                schema.install(connection, timeout=WAIT)
                schema.create_queue(connection, bench.table("error"), timeout=WAIT)
            yield from (run_check(check, bench) for check in chosen)
        finally:
            with Session(bench.source(), "selftest") as session:
                drop(session.open(), mark, f"{mark}~")


def run_check(check: Check, bench: Bench) -> Result:
    """Run one check with a queue of its own; an error is what it saw."""
    found: dict[str, Any] = {}
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            its = replace(bench, name=check.__name__, stack=stack, figures=found)
            if not bench.lacks(*MAKE):
                connection = its.open()
                schema.create_queue(connection, its.queue, timeout=WAIT)
                schema.create_delayed(connection, its.queue, timeout=WAIT)
            elif check.__name__ != "facts":
                bench.need(*MAKE)
            outcome, seen = "passed", check(its)
    except errors.Cancelled:
        raise
    except (Failed, NotChecked) as reason:
        outcome, seen = reason.outcome, str(reason)
    except Exception as error:  # noqa: BLE001 - the next check runs all the same
        lacks = isinstance(error, errors.RightMissing) or "permission" in str(error)  # of a driver
        outcome = "not checked" if lacks else "failed"
        seen = f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - started, 3)
    return Result(check.__name__, str(check.__doc__), outcome, seen, seconds, found)


def drop(connection: Connection, lowest: str, highest: str) -> None:
    """Drop what runs have made, by its names; a login is kept by a session that is just ending."""
    for attempt in range(ATTEMPTS):
        remains = connection.rows("selftest_remains", lowest=lowest, highest=highest)
        time.sleep(attempt * PAUSE if remains else 0)
        for (text,) in remains:
            try:
                plans.run(connection, text)
            except Exception:
                if attempt == ATTEMPTS - 1:
                    raise
