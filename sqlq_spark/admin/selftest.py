"""
Runs `sqlqueue selftest`: makes a place on a server, runs the checks in it, and cleans up.

A run makes schemas, roles and logins whose names begin with a mark, and drops them at its end. At
its start it drops those that killed runs have left.

Each check has a queue of its own, to which it sends and from which it receives as the package does.
A check is a function whose docstring is the promise that it checks. It yields each value that it
saw, with the value that was promised.
"""

from __future__ import annotations

import logging
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import product, starmap
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import stamina

from sqlq_spark import errors
from sqlq_spark.admin import doctor, state_tables
from sqlq_spark.admin.receipts import return_receipt
from sqlq_spark.admin.script import ROLE_RIGHTS, Endpoint, Roles, write_script
from sqlq_spark.database import dialect_named, find_same, schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.names import names_of, with_login
from sqlq_spark.receive import batch, driver
from sqlq_spark.receive import task as tasks
from sqlq_spark.send import dispatch, insert, sender, subscriptions
from sqlq_spark.wire.address import QueueAddress, delayed_of
from sqlq_spark.wire.headers import FORWARD_DESTINATION, MESSAGE_ID, dumps
from sqlq_spark.wire.rows import NO_SPARK_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from sqlq_spark.database import Connection

# What a check yields: tuples of what it looked at, the value that it saw and, if there is one, the
# promised value.
Seen: TypeAlias = "Iterator[tuple[Any, ...]]"
Check: TypeAlias = "Callable[[Bench], Seen]"

MARK = "sqlqueue_selftest_"
# A run takes less time than this. A mark contains the time of its run, so a mark that is older
# belongs to a run that was killed.
LONGEST = 3600  # seconds
# Work that does not have to wait for a lock is done within this time.
PAUSE = 0.5  # seconds
# Work that is not done after this time has waited for a lock.
WAIT = 60.0  # seconds
# How many messages a check sends before it looks at the plans of statements. Half of them are
# delayed. In a smaller table a scan would be cheaper than an index.
FILLED = 40_000
# How many messages the check of locks sends. Each body fills two pages.
LARGE_ROWS = 20_000
LARGE = secrets.token_bytes(8500)
# How many messages `figures` sends.
MEASURED = 100_000


@dataclass(frozen=True, slots=True)
class ServerFact:
    """A fact about a server, or whether this login has a right: `true` or `false`."""

    name: str
    value: str | None  # None if the server does not say it


@dataclass(frozen=True, slots=True)
class StatementCost:
    """What a server has measured of one plan of a statement."""

    statement: str
    executions: int
    cpu: int  # microseconds
    elapsed: int  # microseconds
    reads: int  # pages
    max_grant_kb: int
    max_used_grant_kb: int
    max_spills: int  # pages


@dataclass(frozen=True)
class Bench:
    """One check's queue, and its sessions, which end with the check."""

    given: dict[str, Any]  # options that say where the database is
    queue: QueueAddress  # its schema also has the state tables; its name is the mark of the run
    figures: dict[str, Any]  # for the report
    stack: ExitStack

    def table(self, name: str) -> QueueAddress:
        return replace(self.queue, table=name)

    def create(self, name: str) -> Bench:
        """Create a queue, and the state tables if they are missing; return the queue's bench."""
        bench = replace(self, queue=self.table(name))
        connection = self.open()
        schema.install(connection)
        schema.create_queue(connection, bench.queue, body_string="BodyString" in name)
        schema.create_delayed(connection, bench.queue)
        return bench

    def options(self, kind: Any, **more: str) -> Any:  # noqa: ANN401 - of a source or a sink
        queue = names_of(self.given["url"]).print_address(self.queue)
        return kind.parse({**self.given, "stateSchema": self.queue.schema, "queue": queue, **more})

    def session(self) -> Session:
        return self.stack.enter_context(Session(self.options(SourceOptions), "selftest"))

    def open(self) -> Connection:
        return self.session().open()

    def as_login(self, role: str) -> Bench:
        """Make a login in a role; return a bench on the same queue whose sessions use the login."""
        connection = self.open()
        login = f"{role}_login"
        password = f"aA1-{secrets.token_urlsafe(18)}"
        text = dialect_named(connection.names.dialect).STATEMENTS["script_login"]
        connection.run_script(text.format(login=login, role=role, password=password))
        url = connection.names.by_password(self.given["url"])
        given = {name: text for name, text in self.given.items() if name != "credentials"}
        return replace(self, given={**given, "url": with_login(url, login, password)})

    def beside(self, work: Callable[..., Any], *args: Any) -> Future[Any]:  # noqa: ANN401
        """Start some work in a thread. After PAUSE it is done, or it waits for a lock."""
        running = self.stack.enter_context(ThreadPoolExecutor(1)).submit(work, *args)
        wait([running], PAUSE)
        return running

    def send(self, bodies: list[bytes], session: Session | None = None, /, **more: Any) -> None:  # noqa: ANN401
        """Send messages, by default exactly once. `more` has columns as lists, and options."""
        columns = {name: more.pop(name) for name in [*more] if isinstance(more[name], list)}
        options, session = self.options(SinkOptions, **more), session or self.session()
        frame = pa.table({"body": bodies, **columns}).to_batches()
        chunks = sender.Sender(options=options, partition=0).chunks(frame)
        if options.delivery == "atLeastOnce":
            insert.send_now(session, chunks, options)
            return
        staged = dispatch.stage(self.session(), chunks, sink=secrets.token_hex(8), sink_batch=0)
        session.run_with_retries(partial(dispatch.dispatch, staged=[staged], options=options))

    def batches(self, **more: str) -> Iterator[batch.Task]:
        """Begin a stream; yield the task of each batch, then acknowledge, until nothing waits."""
        options = self.options(SourceOptions, maxConcurrency="1", **more)
        stream = driver.StreamDriver(options, time.monotonic, doctor.at_start)
        self.stack.callback(stream.close)
        end = batch.INITIAL
        while (following := stream.latest(end)) != end:
            end = following
            yield from stream.tasks(end)

    def receive(self, task: batch.Task, connection: Connection | None = None) -> pa.Table:
        return tasks.receive(connection or self.open(), task, spark_batch=NO_SPARK_BATCH).rows


def at_commit(connection: Connection, work: Callable[[], Any], *, after: bool = False) -> list[Any]:
    """
    From now on, run `work` before each commit of a connection.

    If `after`, commit, run `work`, and then commit once more.

    Returns:
        The list to which each run of `work` adds its result.
    """
    results: list[Any] = []

    def commit_beside_work(commit: Callable[[], None]) -> None:
        if after:
            commit()
        results.append(work())
        time.sleep(PAUSE)  # until a session that was ended is gone
        commit()

    connection.around_commit = commit_beside_work
    return results


def run_checks(
    given: dict[str, Any], chosen: Sequence[Check]
) -> Generator[dict[str, Any], None, None]:
    """Run checks, one after the other, in schemas of their own; yield the result of each."""
    now = int(time.time())
    mark = f"{MARK}{now:08x}_{secrets.token_hex(2)}"
    bench = Bench(given, QueueAddress("q", mark), {}, ExitStack())
    with bench.stack as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # the checks provoke warnings on purpose
        with suppress(Exception):  # this login may not drop what another login has left
            drop_remains(bench.open(), MARK, f"{MARK}{now - LONGEST:08x}")
        stack.callback(lambda: drop_remains(bench.open(), mark, f"{mark}~"))
        yield from (run_check(check, bench) for check in chosen)


def run_check(check: Check, bench: Bench) -> dict[str, Any]:
    """
    Run one check with a queue of its own.

    An error that the check raises becomes the value that it saw.
    """
    name = check.__name__
    started = time.monotonic()
    seen: list[str] = []
    its_bench = replace(bench, stack=ExitStack(), figures={})
    result: dict[str, Any] = {"check": name, "promise": check.__doc__, "outcome": "passed"}
    try:
        with its_bench.stack:
            place = its_bench if check is facts else its_bench.create(name)
            for what, found, *promised in check(place):
                seen.append(f"{what}: {plain_value(found)}")
                if promised and promised != [found]:
                    result["outcome"] = "failed"
                    seen[-1] += f" (promised: {plain_value(promised[0])})"
    except errors.Cancelled:
        raise
    except Exception as error:  # noqa: BLE001 - the next check runs all the same
        # if a right is missing, the error may be of this package or of the database driver
        lacks = isinstance(error, errors.RightMissing) or "permission" in str(error)
        if result["outcome"] == "passed":
            result["outcome"] = "not checked" if lacks else "failed"
        seen.append(f"{type(error).__name__}: {error}")
    seconds = round(time.monotonic() - started, 3)
    return result | {"seen": "; ".join(seen), "seconds": seconds, "figures": its_bench.figures}


def plain_value(value: object) -> str:
    """Return a value as people write it, without the notation of Python."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case bytes():
            return value.decode(errors="replace")
        case list() | tuple():
            return ", ".join(map(plain_value, value)) or "none"
        case set():
            return plain_value(sorted(map(plain_value, value)))
    return str(value)


def drop_remains(connection: Connection, lowest: str, highest: str) -> None:
    """
    Drop everything that runs have made and whose name is between `lowest` and `highest`.

    A failed drop is tried again, because a login cannot be dropped before its last session has
    ended.
    """
    for attempt in stamina.retry_context(on=Exception, attempts=5, wait_initial=PAUSE):
        with attempt:
            for text in connection.values("selftest_remains", lowest=lowest, highest=highest):
                connection.run_batch(text)


def facts_of(connection: Connection) -> dict[str, str | None]:
    """Return what a server says about itself, by name."""
    return {fact.name: fact.value for fact in connection.rows("selftest_facts", ServerFact)}


def facts(bench: Bench) -> Seen:
    """The server says what it is and what the login may do, has no error, and stores any text."""
    connection = bench.open()
    bench.figures.update(facts_of(connection))
    bench.figures["driver"] = type(connection._raw).__module__  # noqa: SLF001 - not for a statement
    yield "version", " ".join(bench.figures["version"].split())
    if "server_encoding" in bench.figures:
        yield "encoding", bench.figures["server_encoding"], "UTF8"
    yield "errors", [each.found for each in doctor.of_server(connection) if each.rank == 0], []


def statements(bench: Bench) -> Seen:
    """Each statement compiles in each shape of a table, and reads no queue as a whole."""
    connection, events = bench.open(), bench.table("subscriptions")
    schema.create_subscriptions(connection, events)
    shapes = {"as created": "SELECT 1", **connection.shapes}
    for shape, text in shapes.items():
        its, bad = bench.create(f"plans {shape}"), bench.create(f"errors {shape}")
        for each in (its, bad):
            connection.run_script(text.format(queue=connection.names.quote_address(each.queue)))
        its.send([b"x"] * FILLED, delay=[None, 1] * (FILLED // 2))
        tables = {"queue": its.queue, "table": its.queue, "errors": bad.queue}
        tables |= {"delayed": delayed_of(its.queue), "subscriptions": events}
        yield shape, bench.open().explain(tables), []


def new_sinks(bench: Bench) -> Seen:
    """A second session on a new sink waits, and sends nothing again."""

    def enter(connection: Connection) -> bool:
        with transaction(connection):
            dispatch.lock_exclusive(connection, "new")
            return dispatch.advance(connection, "new", 0)

    gave = at_commit(one := bench.open(), lambda: bench.beside(enter, bench.open()))
    yield "first", enter(one), True
    yield "again", gave[0].result(WAIT), False


def new_task(bench: Bench) -> Seen:
    """A second attempt and the acknowledgement wait for the first; a later one gets nothing."""
    bench.send([b"x"] * 5)
    task = next(batches := bench.batches())
    # The session of the second attempt is opened now, because a slow login would come too late.
    others = (bench.receive, task, bench.open()), (next, batches, None)
    gave = at_commit(connection := bench.open(), lambda: [*starmap(bench.beside, others)])
    yield "received", bench.receive(task, connection).num_rows, 5
    second, acknowledged = gave[0]
    yield "second", type(second.exception(WAIT)).__name__, "ReceiptExists"
    acknowledged.result(WAIT)
    yield "receipts", state_tables.list_receipts(connection, stream=task.stream), []
    yield "later", type(bench.beside(bench.receive, task).exception(WAIT)).__name__, "StaleTask"


def round_trip(bench: Bench) -> Seen:
    """Messages come as they were sent, and again from the receipt; the server compares names."""
    connection, upper = bench.open(), bench.table(bench.queue.table.upper())
    own, other = map(connection.canonical, (bench.queue, upper))
    same = {own, other} if connection.columns(upper) else {own}
    yield "same", find_same(connection, bench.queue, [own, other]), same
    yield "database", connection.whole(bench.queue).catalog, facts_of(connection).get("database")
    bodies = [b"", bytes(range(256)), b"x" * 1_000_000]
    headers = dumps({MESSAGE_ID: "ü 🚀 \x01 /", "empty": ""})
    bench.send(bodies, headers=[headers] * 3, asReceived="true")
    task = next(bench.batches())
    got, again = bench.receive(task), bench.receive(task)
    yield "equal bodies", got["body"].to_pylist() == bodies, True
    yield "equal headers", {*got["headers"].to_pylist()} == {headers}, True
    yield "again", again.equals(got), True


def cut_connection(bench: Bench) -> Seen:
    """A send or receive whose connection is cut, at any moment, loses and repeats no message."""
    bodies, moments = [b"1", b"2", b"3"], ("in a statement", "before a commit", "after a commit")
    for moment, cut in product(moments, ("send", "receive")):
        session, holder = bench.session(), bench.open()
        work: Any = partial(bench.send, bodies, session)
        if cut == "receive":  # receive the messages of the send that was cut before
            task = next(bench.batches())
            yield f"sent, cut {moment}", task.messages, len(bodies)
            work = partial(session.run_with_retries, partial(bench.receive, task))
        connection = session.open()
        number = facts_of(connection)["session"]
        end = partial(bench.open().run, "selftest_end", session=number)
        if "commit" in moment:
            at_commit(connection, end, after="after" in moment)
        with transaction(holder):
            holder.run("lock_queue", tables={"queue": bench.queue})  # the work waits for this lock
            running = bench.beside(work)
            if "statement" in moment:
                end()
        got = running.result(WAIT)
        yield f"{cut} cut {moment}, connected again", session.open() is not connection, True
        if cut == "receive":
            yield f"received, cut {moment}", got["body"].to_pylist(), bodies


def locks(bench: Bench) -> Seen:
    """Statements over many large messages lock rows, not the table: others work beside them."""
    connection = (session := bench.session()).open()

    def look() -> list[Any]:
        bench.beside(bench.send, [b"x"]).result(WAIT)
        got = bench.beside(bench.receive, next(bench.batches())).result(WAIT)
        return [got.num_rows, *connection.values("selftest_locks", tables={"queue": bench.queue})]

    gave = at_commit(connection, look)
    bench.send([LARGE] * LARGE_ROWS, session)
    # A receipt would hold at most 64 MiB, so this task has none.
    task = replace(next(bench.batches()), stream=None, messages=LARGE_ROWS, bytes=1 << 40)
    yield "received", bench.receive(task, connection).num_rows, LARGE_ROWS
    yield "received beside, and locks of the table", gave, [[1], [1]]


def roles(bench: Bench) -> Seen:
    """After one run of the printed script each role does all of its work."""
    connection, mark, topics = bench.open(), bench.queue.schema, ["Shop.Event"]
    team = replace(bench, queue=replace(bench.queue, schema=f"{mark}_team"))
    queue, bad, events = team.queue, team.table("error"), team.table("events")
    made = {use: f"{mark}_{use}" for use in ROLE_RIGHTS}
    text = write_script(
        Endpoint([queue], [bad]),
        state=str(queue.schema),
        subscriptions=events,
        roles=Roles(**made),
        delayed=True,
        database=facts_of(connection).get("database"),
        dialect=connection.names.dialect,
    )
    connection.run_script(text)
    reader, writer, operator, producer = map(team.as_login, made.values())
    desk, write = operator.open(), connection.names.print_address
    try:
        subscriptions.subscribe(desk, events, endpoint="Lake", queue=queue, topics=topics)
        producer.send([b"produced"], delivery="atLeastOnce")
        writer.send([b"sent"])
        writer.send([b"event"], topics=[topics], subscriptionTable=write(events))
        writer.send([b"delayed"], delay=[1])
        writer.send([b"bad"], headers=[dumps({FORWARD_DESTINATION: "nowhere"})])
        batches = reader.batches(delayedDelivery="true", errorQueue=write(bad))
        got = reader.receive(next(batches))["body"].to_pylist()
        yield "received", sorted(got), [b"delayed", b"event", b"produced", b"sent"]
        producer.send([b"x"] * 2, delivery="atLeastOnce")
        reader.receive(task := next(batches))
        with transaction(desk):
            yield "returned", return_receipt(desk, task.key, queue), 2
        yield "purged", driver.purge(desk, [queue]), 2
        yield "trail", len(state_tables.read_trail(desk, entries=10)), 1
    except errors.RightMissing as error:
        yield "refused", str(error), "nothing"


def databases(bench: Bench) -> Seen:
    """The package works in databases of other collations, with row versions and without."""
    scripts = bench.open().script_databases(str(bench.queue.schema))
    for collation in bench.open().names.collations:
        if collation not in scripts:
            yield collation, "not checked: this server does not know it"
            continue
        name, text = scripts[collation]
        bench.open().run_script(text)
        url = urlsplit(bench.given["url"])._replace(path=f"/{name}").geturl()
        bench.figures[collation] = results = [
            *run_checks({**bench.given, "url": url}, IN_EACH_DATABASE)
        ]
        yield collation, [each["check"] for each in results if each["outcome"] == "failed"], []


def figures(bench: Bench) -> Seen:
    """1 kB messages are sent exactly once and received with receipts. The report has the rates."""
    connection, started = bench.open(), time.monotonic()
    bench.send([b"x" * 1000] * MEASURED)
    sent = time.monotonic()
    got = sum(bench.receive(task, connection).num_rows for task in bench.batches())
    seconds = sent - started, time.monotonic() - sent
    yield "messages", got, MEASURED
    yield "sent and received each second", [f"{MEASURED / each:,.0f}" for each in seconds]
    if "selftest_costs" not in connection.lacks:
        costs = connection.rows("selftest_costs", StatementCost, schema_name=bench.queue.schema)
        bench.figures["statements"] = [astuple(cost) for cost in costs]


CHECKS = (  # the cheapest first
    *(facts, statements, new_sinks, new_task, round_trip, cut_connection, locks, roles, databases),
    figures,
)
IN_EACH_DATABASE = facts, statements, new_sinks, new_task, round_trip, locks
