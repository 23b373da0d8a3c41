"""
The checks of first_contact.py: what matters most on a real server, each seen on that server.

A check works on a queue of its own and says what it expected and what it saw. It holds for every
database. Texts that only one database understands are in TEXTS.
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recorded_connection import RecordedConnection
from waiting import until

from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.database import find_same, schema, transaction
from sqlq_spark.errors import Deadlock, RightMissing, SchemaNotFound, StaleTask
from sqlq_spark.receive import task as tasks
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import FORWARD_DESTINATION, MESSAGE_ID, dumps

from .conftest import TIMEOUT, Bench
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .dotnet import DotNet

WAIT = 30.0  # seconds after which something that must not wait has waited
MANY, MOST = 6000, 2000  # messages that wait, and of one statement
EXPIRED = 2000  # messages that two sessions delete beside each other

# {text}: a table, as SQL names it, inside a literal
TEXTS: dict[str, dict[str, str]] = {
    "postgresql": {
        "database": "SELECT current_database()",
        "locks": """
            SELECT DISTINCT mode FROM pg_locks
             WHERE locktype = 'relation' AND relation = '{text}'::regclass""",
        "same_case": "SELECT 0",
        "row_versions": "SELECT 'always'",
        "expire": "UPDATE {queue} SET Expires = now() AT TIME ZONE 'UTC' - interval '1 day'",
        "admit": "GRANT {role} TO {login}",
        "drop_role": "DROP OWNED BY {role} CASCADE;DROP ROLE {role}",
    },
    "sqlserver": {
        "database": "SELECT DB_NAME()",
        "locks": """
            SELECT DISTINCT request_mode FROM sys.dm_tran_locks
             WHERE resource_type = N'OBJECT' AND resource_database_id = DB_ID()
               AND resource_associated_entity_id = OBJECT_ID(N'{text}', N'U')""",
        "same_case": """
            SELECT CASE WHEN N'a' COLLATE DATABASE_DEFAULT = N'A' COLLATE DATABASE_DEFAULT
                        THEN 1 ELSE 0 END""",
        "row_versions": """
            SELECT CASE is_read_committed_snapshot_on WHEN 1 THEN N'on' ELSE N'off' END
              FROM sys.databases WHERE name = DB_NAME()""",
        "expire": "UPDATE {queue} SET Expires = DATEADD(day, -1, GETUTCDATE())",
        "admit": "ALTER ROLE {role} ADD MEMBER {login}",
        "drop_role": "DROP ROLE {role}",
    },
}
# locks on a table that still let others lock single rows
ROW_LOCKS = {"AccessShareLock", "RowShareLock", "RowExclusiveLock", "IS", "IX", "Sch-S"}


@dataclass(frozen=True)
class Seen:
    """What a check expected and what it saw."""

    expected: str
    seen: str
    ok: bool


def said(bench: Bench, name: str, **words: str) -> list[Any]:
    """Run one of the TEXTS on the queue; gives the first column."""
    quoted = bench.dotnet.dba.quoted(bench.queue)
    text = TEXTS[bench.dotnet.dialect][name]
    text = text.format(queue=quoted, text=quoted.replace("'", "''"), **words)
    return [row[0] for part in text.split(";") for row in bench.dotnet.execute(part)]


def emptied(bench: Bench, messages: int) -> None:
    """Put so many messages into the queue, and nothing else."""
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.dba.fill(bench.queue, 1, messages + 1)


def locked_rows(bench: Bench) -> Seen:
    """A receive passes over rows that another session has locked."""
    emptied(bench, 10)
    with bench.dotnet.hold(bench.queue, bench.seqs()[:3]):
        got = bench.thread(lambda: bench.receive(bench.task(None), bench.open("passes")))
        rows = got.result(WAIT).num_rows
    return Seen("7 of 10 received, 3 locked rows left", f"{rows} received", rows == 7)


def fence(bench: Bench) -> Seen:
    """An acknowledgement waits for a running task, and a later attempt receives nothing."""
    emptied(bench, 5)
    stream = bench.new_stream()
    bench.plan(stream, 1)
    one, other = bench.open("task"), bench.open("ack")
    with transaction(one, timeout=TIMEOUT):
        tasks.fence(one, bench.task(stream))
        ended = bench.thread(lambda: bench.ack(stream, 1, other))
        until(lambda: ended.done() or bench.dotnet.waiting(f"{bench.name} ack"), seconds=WAIT)
        waited = not ended.done()
    ended.result(WAIT)
    try:
        bench.receive(bench.task(stream))
        stale = False
    except StaleTask:
        stale = True
    left = len(bench.seqs())
    seen = f"it {'waited' if waited else 'did not wait'}, StaleTask: {stale}, {left} of 5 left"
    return Seen("it waited, StaleTask: True, 5 of 5 left", seen, waited and stale and left == 5)


def escalation(bench: Bench) -> Seen:
    """A statement that takes 2,000 rows locks rows only, so that others receive beside it."""
    emptied(bench, MANY)
    connection = bench.open("takes")
    with transaction(connection, timeout=TIMEOUT):
        task = bench.task(None, messages=MOST)
        taken = tasks.take(connection, task).num_rows
        modes = set(said(bench, "locks"))
        with bench.dotnet.apart() as other:
            row = bench.thread(lambda: other.receive(bench.queue)).result(WAIT)
        beside = row is not None and json.loads(row.body or b"")["number"] > MOST
    text = f"{taken} taken, locks on the table: {', '.join(sorted(modes))}; beside it: {beside}"
    ok = taken == MOST and beside and modes <= ROW_LOCKS
    return Seen(f"{MOST} taken, IX or IS on the table; beside it: True", text, ok)


def purge_beside_receive(bench: Bench) -> Seen:
    """Expired messages are deleted by a receive and a purge at once, without a deadlock."""
    emptied(bench, EXPIRED)
    said(bench, "expire")
    one, other = bench.open("receives"), bench.open("purges")

    def receive() -> None:
        for _ in range(EXPIRED // 20):
            bench.receive(bench.task(None, messages=20), one)

    def purge() -> None:
        while any(purge_expired(other, bench.queue, batch=20)):
            pass

    deadlocks = 0
    for work in [bench.thread(receive), bench.thread(purge)]:
        try:
            work.result(WAIT * 4)
        except Deadlock:
            deadlocks += 1
    return Seen("0 deadlocks", f"{deadlocks} deadlocks", deadlocks == 0)


class Pausing(RecordedConnection):
    """Does something before its first commit, while its transaction is open."""

    def __init__(self, inner: Any, work: Callable[[], object]) -> None:
        super().__init__(inner)
        self.work: Callable[[], object] | None = work

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection."""
        work, commits = self.work, statement == "commit"
        if work is not None and commits:
            self.work = None
            work()
        return call()


def two_sinks(bench: Bench) -> Seen:
    """A new sink does not wait for another new sink that has not committed."""
    emptied(bench, 0)
    first, second = (stage(bench, chunk(b"x"), sink=f"sink {at}") for at in (1, 2))
    other = bench.open("second")

    def meanwhile() -> None:
        bench.thread(lambda: dispatch(bench, second, connection=other)).result(WAIT)

    dispatch(bench, first, connection=Pausing(bench.open("first"), meanwhile))
    sent = len(bench.seqs())
    return Seen("2 sent, the second before the first", f"{sent} sent", sent == 2)


def identity(bench: Bench) -> Seen:
    """An address names its database, and the server decides which spellings are one queue."""
    emptied(bench, 0)
    own = bench.dotnet.transport.address(bench.queue.table)
    upper = bench.dotnet.transport.address(bench.queue.table.upper())
    same = {own, upper} if said(bench, "same_case")[0] else {own}
    found = find_same(bench.desk, bench.queue, [own, upper])
    bench.dotnet.send(bench.queue, dumps({FORWARD_DESTINATION: own}))
    bench.receive(bench.task(None))
    left, canonical = len(bench.seqs()), bench.desk.canonical(bench.queue)
    return Seen(
        f"{own}; same: {sorted(same)}; 0 inserted again",
        f"{canonical}; same: {sorted(found)}; {left} inserted again",
        canonical == own and found == same and left == 0,
    )


def row_versions(bench: Bench) -> Seen:
    """A peek waits for no row that is locked, whether the database reads row versions or not."""
    emptied(bench, 10)
    kind = said(bench, "row_versions")[0]
    with bench.dotnet.hold(bench.queue, bench.seqs()[:3]):
        first, last = bench.thread(
            lambda: bench.open("peeks").rows("top", tables={"queue": bench.queue})[0]
        ).result(WAIT)
    return Seen("no wait", f"no wait (seq {first} to {last}); row versions: {kind}", last >= first)


def empty_body(bench: Bench) -> Seen:
    """Zero bytes stay zero bytes, sent and received, and never become null."""
    emptied(bench, 0)
    dispatch(bench, stage(bench, chunk(b""), sink="empty"))
    stored = bench.bodies()
    stream = bench.new_stream()
    got = [bench.receive(bench.task(stream))["body"].to_pylist() for _ in range(2)]
    seen = f"stored {stored}, received {got[0]}, again {got[1]}"
    return Seen("[b''] three times", seen, stored == got[0] == got[1] == [b""])


def both_ways(bench: Bench) -> Seen:
    """What the transport's statements insert is received as it is, and the reverse."""
    emptied(bench, 0)
    headers, body = dumps({MESSAGE_ID: "ü 🚀 \x01 /", "empty": ""}), bytes(range(256))
    bench.dotnet.send(bench.queue, headers, body)
    got = bench.receive(bench.task(None)).to_pylist()[0]
    dispatch(bench, stage(bench, chunk(body, headers=headers), sink="both ways"))
    back = bench.dotnet.receive(bench.queue)
    ours = (got["headers"], got["body"]) == (headers, body)
    theirs = back is not None and (back.headers, back.body) == (headers, body)
    return Seen("equal both ways", f"received equal: {ours}, sent equal: {theirs}", ours and theirs)


def rights(bench: Bench) -> Seen:
    """A login in the reader's role of the printed script receives, and creates no table."""
    with _reader(bench) as (url, state, queue):
        bench.dotnet.send(queue)
        with bench.session("reader", url=url, stateSchema=state) as session:
            got = bench.receive(replace(bench.task(None), queue=queue), session.open()).num_rows
            try:
                schema.create_queue(session.open(), replace(queue, table="x"), timeout=TIMEOUT)
                refused = False
            except (RightMissing, SchemaNotFound):
                refused = True
    seen = f"{got} received, CREATE TABLE refused: {refused}"
    return Seen("1 received, CREATE TABLE refused: True", seen, got == 1 and refused)


def run_script(dotnet: DotNet, text: str) -> None:
    """Run a printed script as psql or sqlcmd does."""
    if dotnet.dialect == "postgresql":
        dotnet.connection.execute(text.encode())
        return
    for batch in filter(str.strip, text.split("\nGO\n")):
        dotnet.execute(batch)


@contextmanager
def _reader(bench: Bench) -> Iterator[tuple[str, str, QueueAddress]]:
    """Run the script, and give the url of a reader, the state schema and the queue."""
    dotnet, mark = bench.dotnet, secrets.token_hex(4)
    state, queue = f"state_{mark}", QueueAddress(f"queue {mark}", bench.dotnet.schema)
    roles = Roles(reader=f"reader_{mark}", sender=f"sender_{mark}")
    made = endpoint(dotnet.url, bench.desk.names.print_address(queue))
    text = script(made, state=state, roles=roles, dialect=dotnet.dialect)
    login = dotnet.dba.login()
    try:
        run_script(dotnet, text)
        said(bench, "admit", role=roles.reader, login=login.name)
        yield login.url, state, queue
    finally:
        bench.dotnet.kill(f"{bench.name} reader")
        dotnet.dba.drop_login(login)
        dotnet.dba.drop_schema(state)
        for role in filter(None, (roles.reader, roles.sender)):
            said(bench, "drop_role", role=role)


CHECKS = (
    *(locked_rows, fence, escalation, purge_beside_receive, two_sinks),
    *(identity, row_versions, empty_body, both_ways, rights),
)
