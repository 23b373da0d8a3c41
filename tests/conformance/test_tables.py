"""Tables: made as the transport makes them, or otherwise; and logins that have few rights."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin import checks, failed_messages, problems
from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.receive import browse
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import subscriptions
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.address import delayed_of
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps
from sqlq_spark.wire.rows import SparkBatch

from .conftest import TIMEOUT, Bench, Clock, bodies
from .test_delayed import chunk as delayed_chunk
from .test_send import chunk, dispatch, stage
from .transports import cases

if TYPE_CHECKING:
    from sqlq_spark.wire.address import QueueAddress

    from .dba import Login


HOSTILE = [
    "Shop.Orders SELECT",
    """'x"; DROP TABLE orders; -- /* comment */""",
    "line\nbreak\ttab\\slash ü 🚀",
    "per%cent %s %(name)s $1 :batch ? {state} {queue}",
    "table_sequence_schema",
    "x" * 55,
]


def test_our_tables_are_the_ones_that_an_endpoint_makes(bare: Bench) -> None:
    """Column for column and index for index; also where a name has no room for the suffix."""
    bare.dotnet.create_delayed(bare.delayed)

    for table in ("ours", "x" * 55):
        queue = bare.beside(table)
        for _ in range(2):
            schema.create_queue(bare.desk, queue)
            schema.create_delayed(bare.desk, queue)
        delayed = delayed_of(queue)

        assert bare.dotnet.catalog(queue) == bare.dotnet.catalog(bare.queue) != []
        assert bare.dotnet.catalog(delayed) == bare.dotnet.catalog(bare.delayed) != []


def test_installers_at_once_do_not_disturb_one_another(bare: Bench) -> None:
    """The second waits for the first; a column is made once, in a table that has rows too."""
    new, body_string = bare.beside("new"), bare.dotnet.has_body_string
    bare.dotnet.dba.do("own", bare.queue)
    bare.dotnet.send(bare.queue, body=b"before")

    def work(name: str) -> None:
        connection = bare.open(name)
        schema.install(connection)
        for queue in (new, bare.queue):
            schema.create_queue(connection, queue, body_string=body_string)

    for done in [bare.thread(partial(work, f"installer {at}")) for at in range(4)]:
        done.result(timeout=TIMEOUT)

    assert bare.dotnet.state_rows("version", "version") == [(schema.VERSION,)]
    for queue in (new, bare.queue):
        assert ("bodystring" in bare.desk.columns(queue)) == body_string
    assert bare.bodies() == [b"before"]
    assert bare.dotnet.receive(bare.queue) is not None


def test_an_install_gives_up_behind_another(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a DBA's script does, which takes none of our locks; a later install succeeds."""
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.3)
    desk = bare.desk
    with transaction(desk, timeout=TIMEOUT):
        desk.run("install_schema")
        desk.run("install_state")

        with pytest.raises(errors.InstallBlocked) as caught:
            schema.install(bare.open("installer"))

    assert f"nothing was installed in schema {bare.dotnet.state}" in str(caught.value)
    schema.install(bare.open("installer"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(bench: Bench, name: str) -> None:
    """Of queue, endpoint, topic and table of subscriptions, for all that can be done to a queue."""
    queue, table = bench.beside(name), bench.beside((name + "s")[1:])
    printed, topic = bench.address(name), name.replace(";", "").replace(",", "").strip()
    bench.dotnet.send(bench.errors, body=b"bystander")
    bench.dotnet.dba.do("own", bench.queue)  # a header leads to tables of the same owner
    with pytest.raises(errors.QueueNotFound):
        dispatch(bench, stage(bench, chunk(b"x", queue=printed), sink="absent"))

    schema.create_queue(bench.desk, queue)
    schema.create_delayed(bench.desk, queue)
    subscriptions.subscribe(bench.desk, table, topics=[topic], endpoint=name, queue=queue)
    frame = {
        "body": [b"sent", b"published", b"delayed"],
        "queue": [printed, None, printed],
        "topics": [None, [topic], None],
        "delay": [None, None, 0],
    }
    raw: dict[str, Any] = {"subscriptionTable": bench.desk.printed(table)}
    sender = Sender(options=bench.sink(queue=None, **raw), partition=0)
    dispatch(bench, stage(bench, *sender.chunks([pa.RecordBatch.from_pydict(frame)])), **raw)
    bench.dotnet.send(bench.queue, dumps({FORWARD_DESTINATION: printed}), b"forwarded")
    bench.receive(bench.task(bench.new_stream(), error_address=bench.errors))
    Mover(queue, bench.source()).move(bench.desk)

    assert bench.dotnet.subscribers(table, topic) == [printed]
    rows = bench.receive(bench.task(bench.new_stream(), queue=queue))
    assert sorted(bodies(rows)) == [b"delayed", b"forwarded", b"published", b"sent"]
    assert bench.bodies(queue) == bench.bodies() == []
    assert bench.bodies(bench.errors) == [b"bystander"]


def test_absent_state_tables_are_an_error_that_has_the_command(bare: Bench) -> None:
    """Before anything is received. Those without a version may be of any release: it is found."""
    said = f"not found in schema {bare.dotnet.state} .*`sqlqueue install`"
    with (
        StateSession(bare.source(), "x") as session,
        pytest.raises(errors.StateNotInstalled, match=said),
    ):
        session.open()
    schema.install(bare.desk)
    bare.dotnet.dba.forget("version")
    with StateSession(bare.source(), "x") as session, pytest.raises(errors.StateNotInstalled):
        session.open()

    (found,) = checks.of_state(bare.desk)
    bare.dotnet.dba.run(found.fix)

    assert (found.name, found.severity) == ("state", "error")
    assert checks.of_state(bare.desk) == []


@pytest.mark.parametrize(
    ("version", "error", "fix"),
    [
        (99, errors.StateTooNew, "Upgrade sqlq-spark"),
        (1, errors.StateTooOld, "Stop the queries .* receipt and staging are empty"),
    ],
)
def test_state_tables_of_another_release_are_left_alone(
    bench: Bench, version: int, error: type[Exception], fix: str
) -> None:
    """Streams check at each try, installs and the doctor too. The error says what to do."""
    bench.dotnet.dba.change("version", version=version)
    said = f"have version {version}, but this release supports {schema.VERSION}"

    with StateSession(bench.source(), "x") as session:
        for _ in range(2):  # not with the connection that was opened for the check
            with pytest.raises(error, match=f"{said}. {fix}"):
                session.open()
    with pytest.raises(error):
        schema.install(bench.desk)
    (found,) = checks.of_state(bench.desk)

    assert (found.name, found.severity) == ("state", "error")
    assert said in found.found


def test_a_state_schema_may_have_any_name(bare: Bench) -> None:
    """It is quoted like a queue."""
    state = bare.dotnet.state[-6:] + " a.b;q\"uo'te{queue}$do$%s"
    options = bare.source(stateSchema=state)
    try:
        with Session(options, "install") as session:
            schema.install(session.open())

        with StateSession(options, "x") as session:
            assert session.open().value("version") == schema.VERSION
    finally:
        bare.dotnet.dba.drop_schema(state)


# ----- tables that another release, or a DBA, made otherwise ----------------------------------


def alter(bench: Bench, text: str) -> None:
    """Run statements of the DBA on both queues."""
    for queue in (bench.queue, bench.errors):
        bench.dotnet.dba.on(queue, text)


def browsed(bench: Bench, queue: QueueAddress) -> list[dict[str, Any]]:
    """What a browse shows of a queue."""
    return [
        row
        for _, first, stop in browse.parts(bench.desk, [queue], parts=2)
        for page in browse.pages(bench.desk, queue, first, stop, narrow=False)
        for row in page.to_pylist()
    ]


@pytest.mark.parametrize("otherwise", cases("otherwise"))
def test_a_table_that_was_made_otherwise_is_a_queue(bench: Bench, otherwise: str) -> None:
    """The doctor has nothing against it; it is browsed, received from, returned and sent to."""
    dotnet = bench.dotnet
    alter(bench, dotnet.dba.shapes.otherwise[otherwise])
    assert checks.of_any_queue(bench.desk, bench.queue) == []
    sent = dotnet.send(bench.queue, '{"a":"b"}', b"good", lives=3_600_000)
    dotnet.send(bench.queue, "[]", b"poison")
    dotnet.send(bench.queue, body=b"gone", lives=-1)

    shown = browsed(bench, bench.queue)
    loop = bench.loop(errorQueue=bench.address("error"), maxConcurrency="1")
    end, (rows,) = bench.batch(loop)
    bench.return_(str(end.stream))
    dispatch(bench, stage(bench, chunk(b"ours", lives=-1)))

    assert [row["body"] for row in shown] == [b"good", b"poison", b"gone"]
    assert rows.to_pylist() == [shown[0]]
    assert (shown[0]["id"], shown[0]["headers"]) == (sent.bytes, '{"a":"b"}')
    assert bench.bodies(bench.errors) == [b"poison"]
    assert bench.bodies() == [b"good", b"ours"]
    assert dotnet.rows(bench.queue)[0].id == sent
    assert list(purge_expired(bench.desk, bench.queue)) == [1]
    got = dotnet.receive(bench.queue)
    assert (got and got.body) == b"good"


@only("postgresql", "column types that it can cast")
def test_a_body_of_text_and_an_expiry_of_days_are_read(bench: Bench) -> None:
    """Other makers of queues have them; the values are the same."""
    alter(
        bench,
        "ALTER TABLE {queue} ALTER COLUMN Expires TYPE date, ALTER COLUMN Body TYPE text"
        " USING encode(Body, 'escape')",
    )
    bench.dotnet.dba.on(
        bench.queue,
        "INSERT INTO {queue} (id, expires, headers, body) VALUES"
        " (gen_random_uuid(), '2999-12-31', '{}', 'ü'), (gen_random_uuid(), 'infinity', '{}', 'b'),"
        " (gen_random_uuid(), '5000000-01-01', '{}', 'c'),"
        " (gen_random_uuid(), '2020-01-01', '{}', 'gone')",
    )

    shown = browsed(bench, bench.queue)
    _, (rows,) = bench.batch(bench.loop(maxConcurrency="1"))

    assert checks.of_any_queue(bench.desk, bench.queue) == []
    expected = [("ü".encode(), datetime(2999, 12, 31)), (b"b", None), (b"c", None)]  # noqa: DTZ001
    assert [(row["body"], row["expires"]) for row in rows.to_pylist()] == expected
    assert [(row["body"], row["expires"]) for row in shown[:3]] == expected


@only("postgresql", "types that only this one has")
def test_a_domain_counts_as_its_base_type(bench: Bench) -> None:
    """The owner of the table chose it."""
    bench.dotnet.dba.on(
        bench.queue,
        "CREATE DOMAIN {refuse} AS text;ALTER TABLE {queue} ALTER COLUMN headers TYPE {refuse}",
    )
    bench.dotnet.send(bench.queue, body=b"1")

    assert checks.of_any_queue(bench.desk, bench.queue) == []
    assert bodies(bench.receive(bench.task(None))) == [b"1"]


@only("postgresql", "column types that it can cast")
def test_an_expiry_of_days_is_never_too_early(bench: Bench) -> None:
    """What is sent lives until the end of its day; what is returned keeps its expiry."""
    alter(bench, "ALTER TABLE {queue} ALTER COLUMN Expires TYPE date")
    dispatch(bench, stage(bench, chunk(b"ours", lives=60_000)))
    (before,) = bench.dotnet.rows(bench.queue)
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream))
    bench.return_(stream)

    assert bodies(rows) == [b"ours"]
    (after,) = bench.dotnet.rows(bench.queue)
    assert (after.id, after.expires) == (before.id, before.expires)


@pytest.mark.parametrize("how", cases("no_queue"))
def test_a_table_that_is_no_queue_is_refused(bench: Bench, how: str) -> None:
    """Names in quotes and capitals are other names, to endpoints too; nothing is taken from it."""
    bench.dotnet.send(bench.queue, lives=-1)
    alter(bench, bench.dotnet.dba.shapes.no_queue[how])
    queue, desk = bench.queue, bench.desk
    before = bench.dotnet.dba.count(queue)

    for work in (
        lambda: bench.loop().latest(INITIAL),
        lambda: bench.loop(purgeOnStartup="true").latest(INITIAL),
        lambda: bench.receive(bench.task(None)),
        lambda: browsed(bench, queue),
        lambda: list(purge_expired(desk, queue)),
        lambda: failed_messages.plan(desk, queue, failed_messages.Choice()),
        lambda: bench.loop(queue=bench.address("error"), errorQueue=bench.printed).latest(INITIAL),
    ):
        with pytest.raises(errors.NotAQueue, match="is not a queue: "):
            work()
    if "seq" not in how:  # a sender needs none
        with pytest.raises(errors.NotAQueue, match="is not a queue: "):
            dispatch(bench, stage(bench, chunk(b"ours")))

    assert bench.dotnet.dba.count(queue) == before


@only("postgresql", "types that only this one has")
def test_a_stream_names_the_column_its_type_and_the_right_one(bench: Bench) -> None:
    """Of all columns at once, in the order of the table."""
    bench.dotnet.dba.on(
        bench.queue,
        "ALTER TABLE {queue} ALTER COLUMN expires TYPE timestamptz, ALTER COLUMN id TYPE text",
    )

    with pytest.raises(errors.NotAQueue) as caught:
        bench.loop().latest(INITIAL)

    assert (
        "is not a queue: column id is text: expected uuid; "
        "column expires is timestamp with time zone: expected timestamp. "
    ) in str(caught.value)


# ----- tables that are no queue of their own --------------------------------------------------


COLUMNS = "id uuid, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE"
KINDS = {
    "a view": "CREATE TABLE {0}.kept ({1}); CREATE VIEW {0}.odd AS SELECT * FROM {0}.kept",
    "a materialized view": (
        "CREATE TABLE {0}.kept ({1});CREATE MATERIALIZED VIEW {0}.odd AS SELECT * FROM {0}.kept"
    ),
    "a table of several partitions": "CREATE TABLE {0}.odd ({1}) PARTITION BY HASH (seq)",
    "a table of several partitions or descendants": (
        "CREATE TABLE {0}.odd ({1}); CREATE TABLE {0}.child () INHERITS ({0}.odd)"
    ),
    "a foreign table": (
        "CREATE FOREIGN DATA WRAPPER {0}; CREATE SERVER {0} FOREIGN DATA WRAPPER {0};"
        "CREATE FOREIGN TABLE {0}.odd (headers text) SERVER {0}"
    ),
}


@only("postgresql", "kinds of tables that the other has not")
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_is_no_plain_table_is_found_and_ends_a_stream(bench: Bench, kind: str) -> None:
    """A row's place is known within one table only; delayed messages are not moved from one."""
    bench.dotnet.dba.run(KINDS[kind].format(bench.dotnet.schema, COLUMNS))
    odd = bench.beside("odd")

    found = {each.name: each for each in problems.of_table(bench.desk, odd)}["table_kind"]
    if kind == "a foreign table":
        bench.dotnet.dba.run(f"DROP FOREIGN DATA WRAPPER {bench.dotnet.schema} CASCADE")
        return
    refused: tuple[type[errors.DatabaseFailure], str] = (errors.NotAQueue, f"it is {kind}")
    if kind == "a view":
        refused = errors.TableRefused, "it is no ordinary table"
    elif kind == "a materialized view":  # which the server locks for nobody
        refused = errors.NotAQueue, "not supported for materialized views"
    with pytest.raises(refused[0], match=refused[1]):
        bench.batch(bench.loop(queue=bench.address("odd")))
    if "partitions" in kind:
        bench.dotnet.dba.on(odd, 'ALTER TABLE {queue} RENAME TO "orders.Delayed"')
        bench.dotnet.dba.on(bench.delayed, "ALTER TABLE {queue} ADD COLUMN due timestamptz")
        with pytest.raises(errors.NotAQueue, match="several partitions or descendants"):
            bench.batch(bench.loop(delayedDelivery="true"))

    assert found.severity == "error"
    assert f"it is {kind}" in found.found


@only("postgresql", "policies that COPY is refused under")
def test_row_security_is_found_and_no_grant_is_asked_for(bench: Bench) -> None:
    """The error has the server's words; the doctor's fix works."""
    state, queues = bench.dotnet.state, bench.dotnet.schema
    with bench.login("SELECT, INSERT, UPDATE, DELETE") as (login, connection):
        bench.dotnet.dba.enlist(login)
        bench.dotnet.dba.run(
            f"GRANT USAGE ON SCHEMA {state} TO {login.name};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {queues} TO {login.name}"
        )
        bench.dotnet.dba.on(bench.queue, "ALTER TABLE {queue} ENABLE ROW LEVEL SECURITY")
        staged = stage(bench, chunk(b"1"))
        with pytest.raises(errors.StatementRefused, match="row-level security"):
            dispatch(bench, staged, connection=connection)

        (found,) = checks.of_any_queue(connection, bench.queue)
        assert (found.name, found.severity) == ("row_security", "error")
        bench.dotnet.dba.run(found.fix)
        assert dispatch(bench, staged, connection=connection) == 1


# ----- rights ---------------------------------------------------------------------------------


def work(bench: Bench, source: QueueAddress, login: Login) -> None:
    """Do all that a service does: move, plan, receive, divert, browse, ack, delay, dispatch."""
    queue, delayed = bench.desk.printed(source), bench.desk.printed(delayed_of(source))
    raw = {"queue": queue, "errorQueue": bench.address("error"), "url": login.url}
    options = bench.source(**raw, delayedDelivery="true")
    to = {"queue": bench.printed, "delayedQueue": delayed, "url": login.url}
    loop = StreamDriver(options, Clock(), checks.at_start)
    try:
        end = loop.latest(INITIAL)
        with StateSession(options, "service") as session:
            connection = session.open()
            for task in loop.tasks(end):
                receive(connection, task, spark_batch=SparkBatch())
            assert browse.parts(connection, [source], parts=2) == []
            out = chunk(b"out", lives=1000), delayed_chunk({"delay": 0})
            staged = send.stage(session, out, sink=login.name, batch=0)
            send.dispatch(connection, [staged], bench.sink(**to))
        loop.latest(end)
    finally:
        loop.close()


def test_errors_of_missing_rights_have_the_grants_that_fix_them(bench: Bench) -> None:
    """From none to all, but for those on a state schema, which may be another team's."""
    dba = bench.dotnet.dba
    source = bench.another("sequence schema")  # it may pass for words of the server's sentence
    dba.do("own", source)
    schema.create_delayed(bench.desk, source)
    bench.dotnet.send(source)
    bench.dotnet.send(source, "[]")
    bench.dotnet.store(delayed_of(source), "", b"", delay=-3600)
    state = [each for each in dba.shapes.rights if each.startswith("state")]
    asked: list[str] = []  # to be let into the state schema
    granted: list[str] = []
    login = dba.login()

    def give(right: str) -> None:
        words = {"schema": bench.dotnet.schema, "state": bench.dotnet.state, "role": login.name}
        dba.run(dba.shapes.rights[right].format(**words))

    while "done" not in granted:
        try:
            work(bench, source, login)
            granted.append("done")
        except errors.StateRightMissing as error:
            asked.append(str(error))
            give(state.pop(0))
        except errors.RightMissing as error:
            granted.append(str(error).rpartition("A DBA can fix this with: ")[2])
            dba.run(granted[-1].replace("the_user", login.name))
        except errors.DatabaseFailure as error:  # what one may not see is not there for this login
            granted.append(str(error))
            give("sight")
        assert len(granted) < 20
    bench.dotnet.kill("sqlqueue service")
    bench.close()
    dba.drop_login(login)

    assert len(set(granted)) == len(granted) > 3
    assert state == []
    said = f"stateSchema to your team's schema instead of {bench.dotnet.state}, or ask"
    assert all(said in each and "GRANT" not in each for each in asked)
    assert len(bench.bodies(bench.errors)) == 1
    assert len(bench.bodies()) >= 1
