"""
What `sqlqueue selftest` checks on a server, the cheapest first. A docstring is the promise.

Messages that are received and sent here are the package's own work, in its own transactions.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from sqlq_spark import errors
from sqlq_spark.admin import plans, selftest
from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.admin.selftest import WAIT, Cut, Failed, NotChecked, before_commit, expect
from sqlq_spark.database import find_same, schema, transaction
from sqlq_spark.options.names import names_of
from sqlq_spark.receive import driver, receipts
from sqlq_spark.receive import task as tasks
from sqlq_spark.send import dispatch, insert, sender, subscriptions
from sqlq_spark.wire.headers import FORWARD_DESTINATION, MESSAGE_ID, dumps
from sqlq_spark.wire.rows import NO_STREAM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.selftest import Bench
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

FILLED = 5000  # messages before plans are made: of fewer a scan may be cheaper
EXPIRED = 2000  # messages that two sessions delete beside each other
LARGE_ROWS, LARGE = 20_000, secrets.token_bytes(8500)  # of the check of locks: bodies of two pages
MEASURED = 100_000  # messages of the figures
PAST = datetime(2020, 1, 1, tzinfo=UTC)
# locks on a table that still let others lock single rows
ROW_LOCKS = {"AccessShareLock", "RowShareLock", "RowExclusiveLock", "IS", "IX", "Sch-S"}
COLLATIONS = (
    *("Latin1_General_100_CS_AS", "Latin1_General_100_BIN2", "Turkish_100_CI_AS"),
    "Latin1_General_100_CI_AS_SC_UTF8",
)
SEE = ("VIEW SERVER STATE", "VIEW DATABASE STATE")  # rights of which one is needed
CUT = ("ALTER ANY CONNECTION", "KILL DATABASE CONNECTION")
USES = ("reader", "sender", "operator", "producer")

# ---------------------------------------------------------------- the server and the plans


def facts(bench: Bench) -> str:
    """The server says what it is, and what the login may do."""
    bench.figures.update(bench.facts)
    return " ".join(str(bench.facts["version"]).split())


def statements(bench: Bench) -> str:
    """Each statement compiles in each shape of a table, and reads no queue as a whole."""
    bench.need("SHOWPLAN")
    connection, faults = bench.open(), bench.figures
    names, events = connection.names, bench.table("subscriptions")
    schema.create_subscriptions(connection, events, timeout=WAIT)
    for shape, text in plans.SHAPES[names.dialect].items():
        its, bad = replace(bench, name=f"plans {shape}"), bench.table(f"errors {shape}")
        schema.create_delayed(connection, its.queue, timeout=WAIT)
        for queue in (its.queue, bad):
            schema.create_queue(connection, queue, timeout=WAIT)
            plans.run(connection, text, {"queue": queue})
        its.fill(FILLED)
        delayed, rows = schema.delayed_of(its.queue), bench.chunk(*[b"x"] * FILLED)
        due = pa.array([PAST] * FILLED, pa.timestamp("us", "UTC"))
        connection.load(delayed, rows.select(["headers", "body"]).append_column("due", due))
        tables = {"queue": its.queue, "table": its.queue, "errors": bad, "delayed": delayed}
        faults[shape] = plans.find_faults(connection, {**tables, "subscriptions": events})
    found = [f"{each} ({shape})" for shape, its in faults.items() for each in its]
    return expect(faults=(found, []))


# ---------------------------------------------------------------- two sessions


def locked_rows(bench: Bench) -> str:
    """A receive passes over messages that another session has locked, and a peek waits for none."""
    bench.fill(10)
    holder, peek = bench.open(), bench.open()
    with transaction(holder, timeout=WAIT):
        held = tasks.take(holder, bench.task(3)).num_rows
        bench.at_once(partial(peek.rows, "top", tables={"queue": bench.queue}))
        got = bench.at_once(partial(bench.receive, bench.task())).num_rows
    return expect(locked=(held, 3), received=(got, 7))


def fence(bench: Bench) -> str:
    """An acknowledgement waits for a running task, and a later attempt receives nothing."""
    bench.fill(5)
    stream, end, task = bench.stream()
    with transaction(connection := bench.open(), timeout=WAIT):
        tasks.fence(connection, task)
        ended, waited = bench.waiting(partial(stream.acknowledge, end))
    ended.result(WAIT)
    late = type(bench.beside(partial(bench.receive, task)).exception(WAIT)).__name__
    return expect(waited=(waited, True), then=(late, "StaleTask"), left=(bench.count(), 5))


def new_sinks(bench: Bench) -> str:
    """A new sink waits for no other. A second session on it waits, and sends nothing again."""

    def enter(sink: str, connection: Connection) -> bool:
        dispatch.lock_exclusive(connection, sink)
        return dispatch.advance(connection, sink, 0)

    def commit(sink: str) -> bool:
        with transaction(connection := bench.open(), timeout=WAIT):
            return enter(sink, connection)

    with transaction(one := bench.open(), timeout=WAIT):
        first = enter("one", one)
        other = bench.at_once(partial(commit, "two"))
        again, waited = bench.waiting(partial(commit, "one"))
    sent = (first, True), (other, True), (again.result(WAIT), False)
    return expect(first=sent[0], other=sent[1], waited=(waited, True), again=sent[2])


def new_task(bench: Bench) -> str:
    """The second of two attempts of a task waits, and then hands out what the first one took."""
    bench.fill(5)
    _, _, task = bench.stream()
    second: list[Any] = []
    work = partial(bench.waiting, partial(bench.receive, task))
    before_commit(connection := bench.open(), lambda: second.extend(work()))
    got = bench.receive(task, connection)
    kind, same = type(second[0].exception(WAIT)).__name__, bench.receive(task).equals(got)
    seen = {"waited": (second[1], True), "then": (kind, "ReceiptExists"), "same": (same, True)}
    return expect(received=(got.num_rows, 5), **seen)


def purge_beside_receive(bench: Bench) -> str:
    """Expired messages are deleted by a receive and a purge at once, without a deadlock."""
    bench.fill(EXPIRED, expires=pa.array([PAST] * EXPIRED, pa.timestamp("us")))
    one, other = bench.open(), bench.open()

    def receive() -> None:
        for _ in range(EXPIRED // 20):
            bench.receive(bench.task(20), one)

    def delete() -> None:
        for _ in range(EXPIRED // 20):
            with transaction(other, timeout=WAIT):
                other.rows("purge_expired", tables={"queue": bench.queue}, messages=20)

    running = [bench.beside(receive), bench.beside(delete)]
    failed = [error for each in running if (error := each.exception(WAIT))]
    return expect(failed=(failed, []), left=(bench.count(), 0))


# ---------------------------------------------------------------- one session


def identity(bench: Bench) -> str:
    """An address names its database, and the server decides which spellings are one queue."""
    connection = bench.open()
    own = connection.canonical(bench.queue)
    upper = connection.canonical(replace(bench.queue, table=bench.name.upper()))
    same = {own, upper} if bench.facts["ignores_case"] == "1" else {own}
    database = bench.facts["database"] if connection.names.dialect == "sqlserver" else None
    bench.fill(1, headers=dumps({FORWARD_DESTINATION: own}))
    return expect(
        database=(connection.whole(bench.queue).catalog, database),
        same=(find_same(connection, bench.queue, [own, upper]), same),
        here=(bench.receive(bench.task()).num_rows, 1),
    )


def round_trip(bench: Bench) -> str:
    """Any headers and bodies are received as they were sent, and once more from the receipt."""
    bodies = [b"", bytes(range(256)), b"x" * 1_000_000]
    headers = dumps({MESSAGE_ID: "ü 🚀 \x01 /", "empty": ""})
    bench.send(*bodies, headers=headers)
    _, _, task = bench.stream()
    got, again = bench.receive(task), bench.receive(task)
    equal = got["body"].to_pylist() == bodies and {*got["headers"].to_pylist()} == {headers}
    return expect(equal=(equal, True), again=(again.equals(got), True))


def cut_connection(bench: Bench) -> str:
    """A connection that is cut in a statement, or before or after a commit, costs no message."""
    bench.need(*CUT)
    for moment in ("before a commit", "after a commit", "in a statement"):
        bench.fill(5)
        (_, _, task), holder = bench.stream(), bench.open()
        session, other = Cut(bench, moment), Cut(bench, moment)
        work = partial(tasks.receive, task=task, timeout=WAIT, origin=NO_STREAM)
        with transaction(holder, timeout=WAIT):
            if moment == "in a statement":
                receipts.lock_stream(holder, task.key[0])  # the task waits for it
            running, _ = bench.waiting(partial(session.run_with_retries, work))
            if moment == "in a statement":
                session.end()
        got = running.result(WAIT)
        same = bench.receive(task).equals(got)
        bench.send(b"1", b"2", session=other)
        seen = {"received": (got.num_rows, 5), "same": (same, True)}
        sent, sessions = bench.receive(bench.task()).num_rows, [*session.numbers, *other.numbers]
        opened = 3 if moment == "in a statement" else 4
        expect(**seen, sent=(sent, 2), sessions=(len(sessions), opened), cut=(moment, moment))
    return "each message was received and sent once"


def row_locks(bench: Bench) -> str:
    """Statements over many large messages lock rows, not the table, so others work beside them."""
    one, modes = bench.open(), set[str]()

    def look() -> None:
        if not bench.lacks(*SEE):
            found = one.rows("selftest_locks", tables={"queue": bench.queue})
            modes.update(mode for (mode,) in found)

    with transaction(one, timeout=WAIT):
        for _ in range(LARGE_ROWS // 1000):
            part = insert.rows_to_store(["{}"] * 1000, pa.chunked_array([[LARGE] * 1000]))
            one.load(bench.queue, part)
        look()
        bench.at_once(partial(bench.fill, 1))
    with transaction(one, timeout=WAIT):
        took = tasks.take(one, bench.task(LARGE_ROWS)).num_rows
        look()
        got = bench.at_once(partial(bench.receive, bench.task())).num_rows
    locks = sorted(modes - ROW_LOCKS)
    return expect(taken=(took, LARGE_ROWS), beside=(got, 1), locks_of_the_table=(locks, []))


# ---------------------------------------------------------------- roles, databases, figures


def roles(bench: Bench) -> str:
    """After one run of the printed script each role does all of its work, and no more."""
    bench.need("CREATEROLE", "ALTER ANY ROLE")
    dialect, bad = names_of(bench.given["url"]).dialect, bench.print(bench.table("error"))
    events, team = bench.table("events"), replace(bench, state=f"{bench.mark}_team")
    its = endpoint(bench.given["url"], bench.print(bench.queue), error=bad, delayed=True)
    named = {use: f"{bench.mark}_{use}" for use in USES}
    more: dict[str, Any] = {"subscriptions": events, "roles": Roles(**named), "delayed": True}
    plans.run(bench.open(), script(its, state=team.state, dialect=dialect, **more))
    users = [team.as_login(role) for role in named.values()]
    try:
        seen = work_as_team(bench, users, events)
    except errors.RightMissing as error:
        raise Failed(str(error)) from None
    refused = 0
    for user in users:
        try:
            schema.create_queue(user.open(), bench.table("x"), timeout=WAIT)
        except (errors.RightMissing, errors.SchemaNotFound):
            refused += 1
    return expect(**seen, CREATE_refused=(refused, len(users)))


def work_as_team(
    bench: Bench, users: Sequence[Bench], events: QueueAddress
) -> dict[str, tuple[object, object]]:
    reader, writer, operator, producer = users
    desk, queue, table = operator.open(), bench.queue, bench.print(events)
    its: dict[str, Any] = {"endpoint": "Lake", "queue": queue, "timeout": WAIT}
    subscriptions.subscribe(desk, events, topics=["Shop.Event"], **its)
    once = producer.sink(delivery="atLeastOnce")
    insert.send_now(producer.session(), [bench.chunk(b"produced")], once)
    writer.send(b"sent")
    topics = pa.array([["Shop.Event"]], sender.CHUNK_TOPICS.type)
    writer.send(b"event", topics=topics, subscriptionTable=table)
    writer.send(b"delayed", delay=pa.array([1], pa.int64()))
    writer.open().rows("top", tables={"queue": queue})
    bench.fill(1, headers="[]")
    bad = bench.print(bench.table("error"))
    stream, end, task = reader.stream(delayedDelivery="true", errorQueue=bad)
    got = {*reader.receive(task)["body"].to_pylist()}
    bench.fill(2)
    (task,) = stream.tasks(stream.latest(end))
    reader.receive(task)
    with transaction(desk, timeout=WAIT):
        returned = receipts.return_(desk, task.key, queue)
    purged = driver.purge(desk, [queue], timeout=WAIT)
    trail = len(desk.rows("trail", entries=10, queue_name=None))
    sent = {b"produced", b"sent", b"event", b"delayed"}
    seen = {"received": (got, sent), "returned": (returned, 2)}
    return {**seen, "purged": (purged, 2), "trail": (trail, 1)}


def databases(bench: Bench) -> str:
    """The package works in databases of other collations, with row versions and without."""
    if names_of(bench.given["url"]).dialect != "sqlserver":
        raise NotChecked("it is for SQL Server")
    bench.need("CREATE ANY DATABASE")
    connection = bench.open()
    seen: dict[str, tuple[object, object]] = {}
    for at, collation in enumerate(COLLATIONS):
        name, versions = f"{bench.mark}_{at}", ("OFF", "ON")[at % 2]
        try:
            plans.run(connection, f"CREATE DATABASE [{name}] COLLATE {collation}")
        except Exception as error:  # noqa: BLE001 - of a driver; before 2019 there is no UTF-8
            bench.figures[collation] = f"not checked: {error}"
            continue
        plans.run(connection, f"ALTER DATABASE [{name}] SET READ_COMMITTED_SNAPSHOT {versions}")
        url = urlsplit(bench.given["url"])._replace(path=f"/{name}").geturl()
        results = [*selftest.run({**bench.given, "url": url}, IN_EACH_DATABASE)]
        bench.figures[collation] = [asdict(each) for each in results]
        bad = [f"{each.check}: {each.seen}" for each in results if each.outcome == "failed"]
        seen[collation] = bad, []
    return expect(**seen)


def figures(bench: Bench) -> str:
    """Messages of 1 kB are sent exactly once, and received with receipts, in a time to report."""
    bodies = pa.table({"body": [b"x" * 1000] * MEASURED}).to_batches(10_000)
    session, options, times = bench.session(), bench.sink(), [time.monotonic()]
    chunks = sender.Sender(options=options, partition=0).chunks(bodies)
    staged = dispatch.stage(session, chunks, sink="figures", batch=0)
    times.append(time.monotonic())
    dispatch.dispatch(connection := session.open(), [staged], options)
    times.append(time.monotonic())
    stream, end, task = bench.stream()
    got = bench.receive(task).num_rows
    while (following := stream.latest(end)) != end:
        got += sum(bench.receive(task).num_rows for task in stream.tasks(following))
        end = following
    times.append(time.monotonic())
    steps = [after - before for before, after in pairwise(times)]
    bench.figures["seconds"] = dict(zip(("stage", "dispatch", "receive"), steps, strict=True))
    if "selftest_costs" not in connection.lacks and not bench.lacks(*SEE):
        bench.figures["statements"] = connection.rows("selftest_costs", schema_name=bench.mark)
    rates = (
        f"{MEASURED / (steps[0] + steps[1]):,.0f} sent, {got / steps[2]:,.0f} received each second"
    )
    return expect(messages=(got, MEASURED), rates=(rates, rates))


# ---------------------------------------------------------------- all of them

CHECKS = (
    *(facts, statements, locked_rows, fence, new_sinks, new_task, purge_beside_receive),
    *(identity, round_trip, cut_connection, row_locks, roles, databases, figures),
)
IN_EACH_DATABASE = facts, statements, locked_rows, new_sinks, new_task, identity, round_trip
