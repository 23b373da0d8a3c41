"""
Whether the package works on a server, seen on that server: the checks of `sqlqueue selftest`.

A run makes schemas, roles and logins whose names begin with its mark. It drops them at its end, and
those that a run which was killed has left. Each check has a queue of its own, and returns what it
saw. It raises `Failed` if that is not what was promised, `NotChecked` if the login may not look.
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from sqlq_spark import errors
from sqlq_spark.admin import checks, inspect, plans
from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.database import dialect_named, find_same, schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.statements import Statements
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import names_of
from sqlq_spark.receive import receipts
from sqlq_spark.receive import task as tasks
from sqlq_spark.receive.driver import StreamDriver, purge
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import dispatch, subscriptions
from sqlq_spark.send.insert import rows_to_store, send_now
from sqlq_spark.send.sender import CHUNK_ROW, CHUNK_TOPICS, Sender
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, MESSAGE_ID, dumps
from sqlq_spark.wire.rows import NO_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from concurrent.futures import Future

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.offset import Offset
    from sqlq_spark.wire.address import Names

MARK = "sqlqueue_selftest_"
LONGEST = 3600  # seconds of a run; older names are of one that was killed
PAUSE = 0.5  # seconds in which what does not have to wait is done
WAIT = 60.0  # seconds after which what must not wait has waited
FILLED = 5000  # messages before plans are made: of fewer a scan may be cheaper
EXPIRED = 2000  # messages that two sessions delete beside each other
LARGE_ROWS, LARGE_BYTES = 20_000, 8500  # of the check of locks: a body has two pages
MEASURED, MEASURED_BYTES = 100_000, 1000
# locks on a table that still let others lock single rows
ROW_LOCKS = {"AccessShareLock", "RowShareLock", "RowExclusiveLock", "IS", "IX", "Sch-S"}
COLLATIONS = (
    *("Latin1_General_100_CS_AS", "Latin1_General_100_BIN2", "Turkish_100_CI_AS"),
    "Latin1_General_100_CI_AS_SC_UTF8",
)
MAKE = ("CREATE in the database", "CREATE SCHEMA")
SEE = ("VIEW SERVER STATE", "VIEW DATABASE STATE")


class Failed(Exception):
    """A check saw something else than was promised."""


class NotChecked(Exception):
    """A check was not possible; why."""


@dataclass(frozen=True)
class Result:
    """What became of one check; `outcome` is passed, failed or not checked."""

    check: str
    promise: str
    outcome: str
    seen: str
    seconds: float
    figures: dict[str, Any]


def dialect_of(given: Mapping[str, str]) -> Names:
    return names_of(given["url"])


def expect(promised: object, seen: str) -> str:
    """Return what was seen, or raise it if it is not as promised."""
    if not promised:
        raise Failed(seen)
    return seen


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One check's queue, and its sessions, which end with the check."""

    given: Mapping[str, str]  # options that say where the database is
    mark: str  # the schema of the queues; it begins the names of all that the run makes
    name: str  # of the queue
    facts: dict[str, Any]  # what the server says of itself; `may …` is a right of the login
    stack: ExitStack
    state: str  # schema of the state tables
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> QueueAddress:
        return QueueAddress(self.name, self.mark)

    @property
    def error_queue(self) -> QueueAddress:
        return QueueAddress("error", self.mark)

    @property
    def tables(self) -> dict[str, QueueAddress]:
        return {"queue": self.queue}

    def source(self, **more: str) -> SourceOptions:
        return SourceOptions.parse({**self._texts(), "maxConcurrency": "1", **more})

    def sink(self, **more: str) -> SinkOptions:
        return SinkOptions.parse({**self._texts(), **more})

    def _texts(self) -> dict[str, str]:
        return {**self.given, "stateSchema": self.state, "queue": self.print(self.queue)}

    def print(self, table: QueueAddress) -> str:
        return dialect_of(self.given).print_address(table)

    def session(self) -> Session:
        return self.stack.enter_context(Session(self.source(), "selftest"))

    def open(self) -> Connection:
        return self.session().open()

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        """Run something in a thread of its own."""
        return self.stack.enter_context(ThreadPoolExecutor(1)).submit(work)

    def lacks(self, *rights: str) -> bool:
        """Whether the login has none of some rights, of those that the server knows."""
        known = {self.facts.get(f"may {each}") for each in rights} - {None}
        return bool(known) and known <= {"0", "false"}

    def need(self, *rights: str) -> None:
        if self.lacks(*rights):
            raise NotChecked(f"this login has no right {' or '.join(rights)}")

    def as_login(self, connection: Connection, login: str, role: str) -> Bench:
        """Make a login in a role; the same bench with its sessions."""
        password = f"aA1-{secrets.token_urlsafe(18)}"
        names = connection.names
        text = dialect_named(names.dialect).fill_names(
            Statements.load(names.dialect)["script_login"],
            self.state,
            {},
            login=names.quote_name(login),
            role=names.quote_name(role),
            password=f"'{password}'",
        )
        plans.run(connection, text)
        parts = urlsplit(self.given["url"])
        place = parts.netloc.rpartition("@")[2]
        url = parts._replace(netloc=f"{login}:{password}@{place}").geturl()
        given = {name: text for name, text in self.given.items() if name != "credentials"}
        return replace(self, given={**given, "url": url})

    def fill(self, messages: int, body: bytes = b"x", headers: str = "{}", **more: Any) -> None:
        """Put equal messages into the queue, in a transaction."""
        connection = self.open()
        rows = rows_to_store([headers] * messages, pa.chunked_array([[body] * messages]))
        for name, column in more.items():
            rows = rows.append_column(name, column)
        with transaction(connection, timeout=WAIT):
            connection.load(self.queue, rows)

    def count(self) -> int:
        connection = self.open()
        with transaction(connection, timeout=WAIT):
            return inspect.depth(connection, self.queue).messages

    def task(self, **limits: Any) -> tasks.Task:
        """Give a task over the whole queue that leaves no receipt."""
        whole = {"queue": self.queue, "stream": None, "batch": 1, "task": 0, "first": 0}
        most = {"stop": 2**31 - 1, "messages": 1 << 20, "options": self.source()}
        return tasks.Task(**{**whole, **most, **limits})

    def receive(self, task: tasks.Task, connection: Connection | None = None) -> pa.Table:
        return tasks.receive(connection or self.open(), task, timeout=WAIT, origin=NO_STREAM)

    def driver(self, **more: str) -> StreamDriver:
        driver = StreamDriver(self.source(**more), time.monotonic, checks.at_start)
        self.stack.callback(driver.close)
        return driver

    def plan(self, **more: str) -> tuple[StreamDriver, Offset, tasks.Task]:
        """Begin a stream; return its driver, its first batch, and the one task of that."""
        driver = self.driver(**more)
        end = driver.latest(INITIAL)
        (task,) = driver.tasks(end)
        return driver, end, task

    def chunk(self, *bodies: bytes, headers: str = "{}") -> pa.Table:
        empty, texts = [None] * len(bodies), [headers] * len(bodies)
        return pa.table([empty, texts, [*bodies], empty], schema=CHUNK_ROW)

    def send(self, sink: str, chunk: pa.Table, session: Session | None = None, **more: str) -> int:
        """Send a chunk exactly once, as the batch 0 of a sink; return how many now."""
        session = session or self.session()
        staged = dispatch.stage(session, [chunk], sink=sink, batch=0)
        send = partial(dispatch.dispatch, staged=[staged], options=self.sink(**more))
        return session.run_with_retries(send)

    @contextmanager
    def holding(self, messages: int) -> Iterator[None]:
        """Lock the lowest messages while the block runs, as another consumer does."""
        connection = self.open()
        connection.rows("begin")
        try:
            tasks.take(connection, self.task(messages=messages))
            yield
        finally:
            connection.rows("rollback")


def before_commit(connection: Connection, work: Callable[[], object], *, lose: bool = False) -> None:
    """Do something before the next commit; or after it, and lose the commit's answer."""
    rows = connection.rows

    def paused(statement: Any, **more: Any) -> Any:
        if statement != "commit":
            return rows(statement, **more)
        del vars(connection)["rows"]
        if lose:
            rows("commit")
        work()
        if lose:
            raise errors.ConnectionLost(statement="commit", reason="the selftest lost the answer")
        return rows("commit")

    vars(connection)["rows"] = paused


# ---------------------------------------------------------------- 1. the server


def facts(bench: Bench) -> str:
    """The server says what it is, and what the login may do."""
    bench.figures.update(bench.facts)
    return " ".join(str(bench.facts["version"]).split())


# ---------------------------------------------------------------- 2. plans


def statements(bench: Bench) -> str:
    """Each statement compiles in each shape of a table, and reads no queue as a whole."""
    bench.need("SHOWPLAN")
    compiled, faults = 0, []
    for at, shape in enumerate(plans.SHAPES[dialect_of(bench.given).dialect]):
        its, connection = replace(bench, name=f"shape {at}"), bench.open()
        tables = {**its.tables, "table": its.queue, "delayed": schema.delayed_of(its.queue)}
        tables["errors"] = QueueAddress(f"errors {at}", bench.mark)
        tables["subscriptions"] = QueueAddress("subscriptions", bench.mark)
        schema.create_subscriptions(connection, tables["subscriptions"], timeout=WAIT)
        schema.create_delayed(connection, its.queue, timeout=WAIT)
        for role in ("queue", "errors"):
            schema.create_queue(connection, tables[role], timeout=WAIT)
            plans.reshape(connection, {"queue": tables[role]}, shape)
        its.fill(FILLED)
        count, found = plans.find_faults(connection, tables)
        compiled, faults = compiled + count, [*faults, *(f"{each} ({shape})" for each in found)]
    bench.figures["faults"] = faults
    return expect(not faults, "; ".join(faults) or f"{compiled} statements compiled")


# ---------------------------------------------------------------- 3. two sessions


def locked_rows(bench: Bench) -> str:
    """A receive passes over messages that another session has locked, and a peek waits for none."""
    bench.fill(10)
    with bench.holding(3):
        peek = bench.beside(partial(bench.open().rows, "top", tables=bench.tables))
        highest = peek.result(WAIT)[0][1]
        got = bench.beside(partial(bench.receive, bench.task())).result(WAIT).num_rows
    return expect(highest and got == 7, f"{got} of 7 free messages were received beside 3")


def fence(bench: Bench) -> str:
    """An acknowledgement waits for a running task, and a later attempt receives nothing."""
    bench.fill(5)
    driver, end, task = bench.plan()
    connection = bench.open()
    with transaction(connection, timeout=WAIT):
        tasks.fence(connection, task)
        ended = bench.beside(partial(driver.acknowledge, end))
        time.sleep(PAUSE)
        waited = not ended.done()
    ended.result(WAIT)
    late = bench.beside(partial(bench.receive, task)).exception(WAIT)
    left = bench.count()
    seen = f"it {'waited' if waited else 'did not wait'}, then {type(late).__name__}, {left} left"
    return expect(waited and isinstance(late, errors.StaleTask) and left == 5, seen)


def new_sinks(bench: Bench) -> str:
    """A new sink waits for no other; a second session on it waits, and sends nothing again."""

    def enter(sink: str, meanwhile: Callable[[], object] = lambda: None) -> bool:
        connection = bench.open()
        with transaction(connection, timeout=WAIT):
            dispatch.lock_exclusive(connection, sink)
            entered = dispatch.advance(connection, sink, 0)
            meanwhile()
        return entered

    same: list[Future[bool]] = []
    other: list[bool] = []

    def meanwhile() -> None:
        same.append(bench.beside(partial(enter, "one")))
        other.append(bench.beside(partial(enter, "two")).result(WAIT))
        time.sleep(PAUSE)
        other.append(not same[0].done())

    first, second = enter("one", meanwhile), same[0].result(WAIT)
    seen = f"entered {first}, beside it {other[0]}, waited {other[1]}, entered again {second}"
    return expect(first and all(other) and not second, seen)


def new_task(bench: Bench) -> str:
    """The second of two attempts of a task waits, and then hands out what the first one took."""
    bench.fill(5)
    _, _, task = bench.plan()
    connection, second = bench.open(), []

    def meanwhile() -> None:
        second.append(bench.beside(partial(bench.receive, task)))
        time.sleep(PAUSE)
        second.append(second[0].done())

    before_commit(connection, meanwhile)
    first = bench.receive(task, connection)
    failed, done = second[0].exception(WAIT), second[1]
    same = bench.receive(task).equals(first)
    seen = f"{first.num_rows} received; waited {not done}, then {type(failed).__name__}, same {same}"
    good = isinstance(failed, errors.ReceiptExists) and same and not done
    return expect(good and first.num_rows == 5, seen)


def purge_beside_receive(bench: Bench) -> str:
    """Expired messages are deleted by a receive and a purge at once, without a deadlock."""
    bench.fill(EXPIRED, expires=pa.array([datetime(2020, 1, 1)] * EXPIRED, pa.timestamp("us")))
    one, other = bench.open(), bench.open()

    def receive() -> None:
        for _ in range(EXPIRED // 20):
            bench.receive(bench.task(messages=20), one)

    def delete() -> None:
        for _ in range(EXPIRED // 20):
            with transaction(other, timeout=WAIT):
                other.rows("purge_expired", tables=bench.tables, messages=20)

    failed = [bench.beside(work) for work in (receive, delete)]
    deadlocks = sum(isinstance(each.exception(WAIT), errors.Deadlock) for each in failed)
    left = bench.count()
    return expect(not deadlocks and not left, f"{deadlocks} deadlocks, {left} messages left")


def identity(bench: Bench) -> str:
    """An address names its database, and the server decides which spellings are one queue."""
    connection = bench.open()
    own = connection.canonical(bench.queue)
    upper = connection.canonical(replace(bench.queue, table=bench.name.upper()))
    catalog = connection.whole(bench.queue).catalog
    has_catalog = connection.names.dialect == "sqlserver"
    named = catalog == (bench.facts["database"] if has_catalog else None)
    same = {own, upper} if bench.facts["ignores_case"] == "1" else {own}
    found = find_same(connection, bench.queue, [own, upper])
    bench.fill(1, headers=dumps({FORWARD_DESTINATION: own}))
    here = bench.receive(bench.task()).num_rows
    seen = f"database {catalog}, {len(found)} of {len(same)} spellings, received here: {here}"
    return expect(named and found == same and here == 1, seen)


def round_trip(bench: Bench) -> str:
    """Any headers and bodies are received as they were sent, and once more from the receipt."""
    bodies = [b"", bytes(range(256)), b"x" * 1_000_000]
    headers = dumps({MESSAGE_ID: "ü 🚀 \x01 /", "empty": ""})
    bench.send("round trip", bench.chunk(*bodies, headers=headers))
    _, _, task = bench.plan()
    sent = [{"headers": headers, "body": body} for body in bodies]
    for got in (bench.receive(task), bench.receive(task)):
        expect(got.select(["headers", "body"]).to_pylist() == sent, "another message came back")
    return f"{len(bodies)} messages, twice"


# ---------------------------------------------------------------- 4. a connection that breaks


class CutSession(Session):
    """A session whose first connection is prepared, to be cut."""

    def __init__(self, bench: Bench, prepare: Callable[[Connection], object]) -> None:
        super().__init__(bench.source(), "selftest")
        self.opened, self._prepare = 0, prepare
        bench.stack.callback(self.close)

    def _connect(self) -> Connection:
        connection = super()._connect()
        self.opened += 1
        if self.opened == 1:
            self._prepare(connection)
        return connection


def cut_connection(bench: Bench) -> str:
    """A connection that is cut in a statement, or before or after a commit, costs no message."""
    bench.need("ALTER ANY CONNECTION", "KILL DATABASE CONNECTION")
    desk, seen = bench.open(), []
    for moment in ("before a commit", "after a commit", "in a statement"):
        numbers: list[int] = []

        def end(numbers: list[int] = numbers) -> None:
            desk.rows("selftest_end", session=numbers[-1])
            time.sleep(PAUSE)

        def prepare(connection: Connection, moment: str = moment, end: Any = end) -> None:
            numbers.append(int(dict(connection.rows("selftest_facts"))["session"]))
            if moment != "in a statement":
                before_commit(connection, end, lose=moment == "after a commit")

        bench.fill(5)
        _, _, task = bench.plan()
        session = CutSession(bench, prepare)
        work = partial(tasks.receive, task=task, timeout=WAIT, origin=NO_STREAM)
        with ExitStack() as held:
            if moment == "in a statement":
                holder = bench.open()
                held.enter_context(transaction(holder, timeout=WAIT))
                receipts.lock_stream(holder, task.key[0])
            running = bench.beside(partial(session.run_with_retries, work))
            if moment == "in a statement":
                time.sleep(PAUSE)
                end()
        got = running.result(WAIT)
        again, other = bench.receive(task), CutSession(bench, prepare)
        bench.send(moment, bench.chunk(b"1", b"2"), other)
        sent = bench.receive(bench.task()).num_rows
        good = session.opened == 2 and got.num_rows == 5 and again.equals(got) and sent == 2
        expect(good, f"{moment}: {session.opened} sessions, {got.num_rows} received, {sent} sent")
    return "each message was received and sent once"


# ---------------------------------------------------------------- 5. locks


def row_locks(bench: Bench) -> str:
    """Statements over many large messages lock rows, not the table, so others work beside them."""
    one, modes, body = bench.open(), set(), secrets.token_bytes(LARGE_BYTES)
    part = rows_to_store(["{}"] * 1000, pa.chunked_array([[body] * 1000]))
    may_look = not bench.lacks(*SEE)

    def look() -> set[str]:
        found = one.rows("selftest_locks", tables=bench.tables) if may_look else []
        return {mode for (mode,) in found}

    with transaction(one, timeout=WAIT):
        for _ in range(LARGE_ROWS // 1000):
            one.load(bench.queue, part)
        modes = look()
        bench.beside(partial(bench.fill, 1)).result(WAIT)
    with transaction(one, timeout=WAIT):
        took = tasks.take(one, bench.task(messages=LARGE_ROWS, bytes=1 << 40)).num_rows
        modes |= look()
        beside = bench.beside(partial(bench.receive, bench.task())).result(WAIT).num_rows
    seen = f"{took} taken, {beside} beside; locks on the table: {', '.join(sorted(modes)) or '?'}"
    return expect(took == LARGE_ROWS and beside == 1 and modes <= ROW_LOCKS, seen)


# ---------------------------------------------------------------- 6. --roles


def roles(bench: Bench) -> str:
    """After one run of the printed script each role does all of its work, and no more."""
    for right in ("CREATEROLE", "ALTER ANY ROLE", "ALTER ANY LOGIN"):
        bench.need(right)
    uses = ("reader", "sender", "operator", "producer")
    made = {use: f"{bench.mark}_{use}" for use in uses}
    table, names = QueueAddress("events", bench.mark), dialect_of(bench.given)
    errors_name, team = bench.print(bench.error_queue), replace(bench, state=f"{bench.mark}_team")
    its = endpoint(bench.given["url"], bench.print(bench.queue), error=errors_name, delayed=True)
    connection = bench.open()
    plans.run(
        connection,
        script(
            its,
            state=team.state,
            subscriptions=table,
            roles=Roles(**made),
            delayed=True,
            dialect=names.dialect,
        ),
    )
    users = {use: team.as_login(connection, f"{role}_login", role) for use, role in made.items()}
    try:
        return work_of_a_team(bench, users, table)
    except (errors.RightMissing, errors.StateRightMissing) as error:
        raise Failed(str(error)) from None


def work_of_a_team(bench: Bench, users: dict[str, Bench], table: QueueAddress) -> str:
    reader, sender, operator, producer = users.values()
    desk, queue = operator.open(), bench.queue
    subscriptions.subscribe(
        desk, table, topics=["Shop.Event"], endpoint="Lake", queue=queue, timeout=WAIT
    )
    send_now(producer.session(), [bench.chunk(b"produced")], producer.sink(delivery="atLeastOnce"))
    sender.send("commands", bench.chunk(b"sent"))
    topics = pa.array([["Shop.Event"]], CHUNK_TOPICS.type)
    event = bench.chunk(b"event").append_column(CHUNK_TOPICS, topics)
    sender.send("events", event, subscriptionTable=bench.print(table))
    delay = pa.array([1], pa.int64())
    sender.send("delays", bench.chunk(b"delayed").append_column("delay", delay))
    sender.open().rows("top", tables=bench.tables)
    bench.fill(1, headers="[]")
    driver, end, task = reader.plan(delayedDelivery="true", errorQueue=bench.print(bench.error_queue))
    got = {*reader.receive(task)["body"].to_pylist()}
    driver.acknowledge(end)
    bench.fill(2)
    (task,) = driver.tasks(driver.latest(end))
    reader.receive(task)
    with transaction(desk, timeout=WAIT):
        returned = receipts.return_(desk, task.key, queue)
    purged = purge(desk, [queue], timeout=WAIT)
    trail = len(desk.rows("trail", entries=10, queue_name=None))
    refused = 0
    for user in users.values():
        try:
            schema.create_queue(user.open(), replace(queue, table="x"), timeout=WAIT)
        except (errors.RightMissing, errors.SchemaNotFound):
            refused += 1
    seen = f"received {sorted(got)}, returned {returned}, purged {purged}, trail {trail}"
    good = got == {b"produced", b"sent", b"event", b"delayed"} and returned == purged == 2
    return expect(good and trail and refused == len(users), f"{seen}, CREATE refused {refused}")


# ---------------------------------------------------------------- 7. --databases


def databases(bench: Bench) -> str:
    """The package works in databases of other collations, with row versions and without."""
    if dialect_of(bench.given).dialect != "sqlserver":
        raise NotChecked("it is for SQL Server")
    bench.need("CREATE ANY DATABASE")
    connection, seen = bench.open(), []
    for at, collation in enumerate(COLLATIONS):
        name = f"{bench.mark}_{at}"
        try:
            plans.run(connection, f"CREATE DATABASE [{name}] COLLATE {collation}")
        except Exception as error:  # noqa: BLE001 - of a driver; SQL Server 2017 knows no UTF-8
            seen.append(f"{collation}: not checked, {error}")
            continue
        switch = f"ALTER DATABASE [{name}] SET READ_COMMITTED_SNAPSHOT {'ON' if at % 2 else 'OFF'}"
        plans.run(connection, switch)
        url = urlsplit(bench.given["url"])._replace(path=f"/{name}").geturl()
        results = [*run({**bench.given, "url": url}, IN_EACH_DATABASE)]
        bench.figures[collation] = [asdict(each) for each in results]
        bad = [f"{each.check} {each.seen}" for each in results if each.outcome == "failed"]
        seen.append(f"{collation}: {'; '.join(bad) or 'good'}")
        expect(not bad, seen[-1])
    return "; ".join(seen)


# ---------------------------------------------------------------- 8. figures


def figures(bench: Bench) -> str:
    """Messages of 1 kB are sent exactly once, and received with receipts, in the time they need."""
    body = [b"x" * MEASURED_BYTES] * MEASURED
    batches = pa.table({"body": body}).to_batches(max_chunksize=10_000)
    session, times = bench.session(), [time.monotonic()]
    chunks = Sender(options=bench.sink(), partition=0).chunks(batches)
    staged = dispatch.stage(session, chunks, sink="figures", batch=0)
    times.append(time.monotonic())
    dispatch.dispatch(session.open(), [staged], bench.sink())
    times.append(time.monotonic())
    driver, got, start = bench.driver(), 0, INITIAL
    while (end := driver.latest(start)) != start:
        got += sum(bench.receive(task).num_rows for task in driver.tasks(end))
        start = end
    times.append(time.monotonic())
    steps = [after - before for before, after in pairwise(times)]
    bench.figures["seconds"] = dict(zip(("stage", "dispatch", "receive"), steps, strict=True))
    if "selftest_costs" not in session.open().lacks and not bench.lacks(*SEE):
        bench.figures["statements"] = session.open().rows("selftest_costs", mark=bench.mark)
    sent, received = MEASURED / (steps[0] + steps[1]), got / steps[2]
    return expect(got == MEASURED, f"{sent:,.0f} sent and {received:,.0f} received each second")


# ---------------------------------------------------------------- all of them

CHECKS = (
    *(facts, statements, locked_rows, fence, new_sinks, new_task, purge_beside_receive),
    *(identity, round_trip, cut_connection, row_locks, roles, databases, figures),
)
ASKED = {"roles", "databases"}  # checks that a flag asks for
IN_EACH_DATABASE = {
    *("facts", "statements", "locked_rows", "new_sinks", "new_task", "identity", "round_trip"),
}


def run(given: Mapping[str, str], chosen: Collection[str]) -> Iterator[Result]:
    """
    Run the checks of these names, one after the other, in schemas of their own.

    Args:
        given: the options url, credentials and queryTimeout.
        chosen: names of CHECKS.
    """
    now = int(time.time())
    mark, names = f"{MARK}{now:08x}_{secrets.token_hex(2)}", dialect_of(given)
    with ExitStack() as stack:
        bench = Bench(given=given, mark=mark, name="q", facts={}, stack=stack, state=f"{mark}_state")
        connection = bench.open()
        bench.facts.update(connection.rows("selftest_facts"))
        drop(connection, MARK, f"{MARK}{now - LONGEST:08x}")
        try:
            if not bench.lacks(*MAKE):
                plans.run(connection, f"CREATE SCHEMA {names.quote_name(mark)}")
                schema.install(connection, timeout=WAIT)
                schema.create_queue(connection, bench.error_queue, timeout=WAIT)
            for check in CHECKS:
                if check.__name__ in chosen:
                    yield run_check(check, bench)
        finally:
            with Session(bench.source(), "selftest") as session:
                drop(session.open(), mark, f"{mark}~")


def run_check(check: Callable[[Bench], str], bench: Bench) -> Result:
    """Run one check with a queue of its own; an error is what it saw."""
    name, started = check.__name__, time.monotonic()
    with ExitStack() as stack:
        its = replace(bench, name=name, stack=stack, figures={})
        try:
            if check is not facts:
                bench.need(*MAKE)
                schema.create_queue(its.open(), its.queue, timeout=WAIT)
                schema.create_delayed(its.open(), its.queue, timeout=WAIT)
            outcome, seen = "passed", check(its)
        except errors.Cancelled:
            raise
        except (NotChecked, errors.RightMissing) as reason:
            outcome, seen = "not checked", str(reason)
        except Exception as error:  # noqa: BLE001 - the next check runs all the same
            outcome, seen = "failed", str(error)
            if not isinstance(error, Failed):
                seen = f"{type(error).__name__}: {seen}"
    seconds = round(time.monotonic() - started, 3)
    promise = " ".join((check.__doc__ or "").split())
    return Result(name, promise, outcome, seen, seconds, its.figures)


def drop(connection: Connection, lowest: str, highest: str) -> None:
    """Drop what runs have made, by its names; a login may have a session that is just ending."""
    for attempt in range(5):
        time.sleep(attempt * PAUSE)
        for (text,) in connection.rows("selftest_remains", lowest=lowest, highest=highest):
            try:
                plans.run(connection, text)
            except Exception:  # noqa: BLE001
                if attempt == 4:
                    raise
        if not connection.rows("selftest_remains", lowest=lowest, highest=highest): return
