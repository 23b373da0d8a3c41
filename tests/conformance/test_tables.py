"""Tables that are made as the transport makes them, or otherwise, and logins with few rights."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin import doctor, queue_checks, return_to_source
from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.database import migrations, schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.receive import browse
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.due import Mover
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import subscriptions
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
    """Columns and indexes are equal, also where a name has no room for the suffix."""
    bare.dotnet.create_delayed(bare.delayed_table)

    for table in ("ours", "x" * 55):
        queue = bare.table_beside(table)
        for _ in range(2):
            schema.create_queue(bare.connection, queue)
            schema.create_delayed(bare.connection, queue)
        delayed = delayed_of(queue)

        assert bare.dotnet.catalog(queue) == bare.dotnet.catalog(bare.queue) != []
        assert bare.dotnet.catalog(delayed) == bare.dotnet.catalog(bare.delayed_table) != []


def test_installers_at_once_do_not_disturb_one_another(bare: Bench) -> None:
    """Each waits for the one before. A column is added once, also to a table with rows."""
    new, body_string = bare.table_beside("new"), bare.dotnet.has_body_string
    bare.dotnet.dba.do("own", bare.queue)
    bare.dotnet.send(bare.queue, body=b"before")

    def work(name: str) -> None:
        connection = bare.open_connection(name)
        schema.install(connection)
        for queue in (new, bare.queue):
            schema.create_queue(connection, queue, body_string=body_string)

    for done in [bare.run_in_thread(partial(work, f"installer {at}")) for at in range(4)]:
        done.result(timeout=TIMEOUT)

    assert bare.dotnet.state_rows("version", "version") == [(migrations.STATE_VERSION,)]
    for queue in (new, bare.queue):
        assert ("bodystring" in bare.connection.columns(queue)) == body_string
    assert bare.waiting_bodies() == [b"before"]
    assert bare.dotnet.receive(bare.queue) is not None


def test_an_install_gives_up_behind_another(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DBA's script may hold the tables. A later install succeeds."""
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.3)
    connection = bare.connection
    with transaction(connection, timeout=TIMEOUT):
        connection.run("install_schema")
        connection.run("install_state")

        with pytest.raises(errors.InstallBlocked) as caught:
            schema.install(bare.open_connection("installer"))

    assert f"nothing was installed in schema {bare.dotnet.state}" in str(caught.value)
    schema.install(bare.open_connection("installer"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(bench: Bench, name: str) -> None:
    """A queue, endpoint, topic and table of subscriptions have it, and everything works."""
    queue, table = bench.table_beside(name), bench.table_beside((name + "s")[1:])
    printed, topic = bench.address(name), name.replace(";", "").replace(",", "").strip()
    bench.dotnet.send(bench.error_queue, body=b"bystander")
    bench.dotnet.dba.do("own", bench.queue)  # a header may only name a table of its queue's owner
    with pytest.raises(errors.QueueNotFound):
        dispatch(bench, stage(bench, chunk(b"x", queue=printed), sink="absent"))

    schema.create_queue(bench.connection, queue)
    schema.create_delayed(bench.connection, queue)
    subscriptions.subscribe(bench.connection, table, topics=[topic], endpoint=name, queue=queue)
    frame = {
        "body": [b"sent", b"published", b"delayed"],
        "queue": [printed, None, printed],
        "topics": [None, [topic], None],
        "delay": [None, None, 0],
    }
    raw: dict[str, Any] = {"subscriptionTable": bench.connection.printed(table)}
    sender = Sender(options=bench.sink_options(queue=None, **raw), partition=0)
    dispatch(bench, stage(bench, *sender.chunks([pa.RecordBatch.from_pydict(frame)])), **raw)
    bench.dotnet.send(bench.queue, dumps({FORWARD_DESTINATION: printed}), b"forwarded")
    bench.receive(bench.task(bench.new_stream(), error_address=bench.error_queue))
    Mover(queue, bench.source_options()).move(bench.connection)

    assert bench.dotnet.subscribers(table, topic) == [printed]
    rows = bench.receive(bench.task(bench.new_stream(), queue=queue))
    assert sorted(bodies(rows)) == [b"delayed", b"forwarded", b"published", b"sent"]
    assert bench.waiting_bodies(queue) == bench.waiting_bodies() == []
    assert bench.waiting_bodies(bench.error_queue) == [b"bystander"]


def test_absent_state_tables_are_an_error_that_has_the_command(bare: Bench) -> None:
    """
    The error comes before anything is received.

    Tables without a version may be of any release, so they raise it too.
    """
    said = f"not found in schema {bare.dotnet.state} .*`sqlqueue install`"
    with (
        StateSession(bare.source_options(), "x") as session,
        pytest.raises(errors.StateNotInstalled, match=said),
    ):
        session.open()
    schema.install(bare.connection)
    bare.dotnet.dba.forget("version")
    with (
        StateSession(bare.source_options(), "x") as session,
        pytest.raises(errors.StateNotInstalled),
    ):
        session.open()

    (found,) = doctor.of_state(bare.connection)
    bare.dotnet.dba.run(found.fix)

    assert (found.name, found.severity) == ("state", "error")
    assert doctor.of_state(bare.connection) == []


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
    """Streams, installs and the doctor check the version. The error says what to do."""
    bench.dotnet.dba.change("version", version=version)
    said = f"have version {version}, but this release supports {migrations.STATE_VERSION}"

    with StateSession(bench.source_options(), "x") as session:
        for _ in range(2):  # the second time too: the first connection must not be used again
            with pytest.raises(error, match=f"{said}. {fix}"):
                session.open()
    with pytest.raises(error):
        schema.install(bench.connection)
    (found,) = doctor.of_state(bench.connection)

    assert (found.name, found.severity) == ("state", "error")
    assert said in found.found


def test_a_state_schema_may_have_any_name(bare: Bench) -> None:
    """Its name is quoted like that of a queue."""
    state = bare.dotnet.state[-6:] + " a.b;q\"uo'te{queue}$do$%s"
    options = bare.source_options(stateSchema=state)
    try:
        with Session(options, "install") as session:
            schema.install(session.open())

        with StateSession(options, "x") as session:
            assert session.open().value("version") == migrations.STATE_VERSION
    finally:
        bare.dotnet.dba.drop_schema(state)


# ----- tables that another release, or a DBA, made otherwise ----------------------------------


def alter(bench: Bench, text: str) -> None:
    """Run statements of the DBA on both queues."""
    for queue in (bench.queue, bench.error_queue):
        bench.dotnet.dba.on(queue, text)


def browsed(bench: Bench, queue: QueueAddress) -> list[dict[str, Any]]:
    """What a browse shows of a queue."""
    return [
        row
        for _, first, stop in browse.split_queues(bench.connection, [queue], count=2)
        for page in browse.read_pages(bench.connection, queue, first, stop, narrow=False)
        for row in page.to_pylist()
    ]


@pytest.mark.parametrize("otherwise", cases("otherwise"))
def test_a_table_that_was_made_otherwise_is_a_queue(bench: Bench, otherwise: str) -> None:
    """It can be browsed, received from, returned to and sent to. The doctor reports nothing."""
    dotnet = bench.dotnet
    alter(bench, dotnet.dba.shapes.otherwise[otherwise])
    assert doctor.of_any_queue(bench.connection, bench.queue) == []
    sent = dotnet.send(bench.queue, '{"a":"b"}', b"good", lives=3_600_000)
    dotnet.send(bench.queue, "[]", b"poison")
    dotnet.send(bench.queue, body=b"gone", lives=-1)

    shown = browsed(bench, bench.queue)
    loop = bench.stream_driver(errorQueue=bench.address("error"), maxConcurrency="1")
    end, (rows,) = bench.run_batch(loop)
    bench.return_receipt(str(end.stream))
    dispatch(bench, stage(bench, chunk(b"ours", lives=-1)))

    assert [row["body"] for row in shown] == [b"good", b"poison", b"gone"]
    assert rows.to_pylist() == [shown[0]]
    assert (shown[0]["id"], shown[0]["headers"]) == (sent.bytes, '{"a":"b"}')
    assert bench.waiting_bodies(bench.error_queue) == [b"poison"]
    assert bench.waiting_bodies() == [b"good", b"ours"]
    assert dotnet.rows(bench.queue)[0].id == sent
    assert list(purge_expired(bench.connection, bench.queue)) == [1]
    got = dotnet.receive(bench.queue)
    assert (got and got.body) == b"good"


@only("postgresql", "column types that it can cast")
def test_a_body_of_text_and_an_expiry_of_days_are_read(bench: Bench) -> None:
    """Other programs make such queues. The values are the same."""
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
    _, (rows,) = bench.run_batch(bench.stream_driver(maxConcurrency="1"))

    assert doctor.of_any_queue(bench.connection, bench.queue) == []
    expected = [("ü".encode(), datetime(2999, 12, 31)), (b"b", None), (b"c", None)]  # noqa: DTZ001
    assert [(row["body"], row["expires"]) for row in rows.to_pylist()] == expected
    assert [(row["body"], row["expires"]) for row in shown[:3]] == expected


@only("postgresql", "types that only this one has")
def test_a_domain_counts_as_its_base_type(bench: Bench) -> None:
    """The owner of the table has chosen the domain."""
    bench.dotnet.dba.on(
        bench.queue,
        "CREATE DOMAIN {refuse} AS text;ALTER TABLE {queue} ALTER COLUMN headers TYPE {refuse}",
    )
    bench.dotnet.send(bench.queue, body=b"1")

    assert doctor.of_any_queue(bench.connection, bench.queue) == []
    assert bodies(bench.receive(bench.task(None))) == [b"1"]


@only("postgresql", "column types that it can cast")
def test_an_expiry_of_days_is_never_too_early(bench: Bench) -> None:
    """A sent message lives until the end of its day. A returned one keeps its expiry."""
    alter(bench, "ALTER TABLE {queue} ALTER COLUMN Expires TYPE date")
    dispatch(bench, stage(bench, chunk(b"ours", lives=60_000)))
    (before,) = bench.dotnet.rows(bench.queue)
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream))
    bench.return_receipt(stream)

    assert bodies(rows) == [b"ours"]
    (after,) = bench.dotnet.rows(bench.queue)
    assert (after.id, after.expires) == (before.id, before.expires)


@pytest.mark.parametrize("how", cases("no_queue"))
def test_a_table_that_is_no_queue_is_refused(bench: Bench, how: str) -> None:
    """Quoted names with capitals are other names, to endpoints too. Nothing is taken from it."""
    bench.dotnet.send(bench.queue, lives=-1)
    alter(bench, bench.dotnet.dba.shapes.no_queue[how])
    queue, connection = bench.queue, bench.connection
    before = bench.dotnet.dba.count(queue)

    for work in (
        lambda: bench.stream_driver().latest(INITIAL),
        lambda: bench.stream_driver(purgeOnStartup="true").latest(INITIAL),
        lambda: bench.receive(bench.task(None)),
        lambda: browsed(bench, queue),
        lambda: list(purge_expired(connection, queue)),
        lambda: return_to_source.plan_return(connection, queue, return_to_source.Choice()),
        lambda: bench.stream_driver(
            queue=bench.address("error"), errorQueue=bench.queue_address
        ).latest(INITIAL),
    ):
        with pytest.raises(errors.NotAQueue, match="is not a queue: "):
            work()
    if "seq" not in how:  # a sender needs no seq
        with pytest.raises(errors.NotAQueue, match="is not a queue: "):
            dispatch(bench, stage(bench, chunk(b"ours")))

    assert bench.dotnet.dba.count(queue) == before


@only("postgresql", "types that only this one has")
def test_a_stream_names_the_column_its_type_and_the_right_one(bench: Bench) -> None:
    """The error lists all wrong columns, in the order of the table."""
    bench.dotnet.dba.on(
        bench.queue,
        "ALTER TABLE {queue} ALTER COLUMN expires TYPE timestamptz, ALTER COLUMN id TYPE text",
    )

    with pytest.raises(errors.NotAQueue) as caught:
        bench.stream_driver().latest(INITIAL)

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
    """The place of a row is unique within one table only. Delayed messages are not moved either."""
    bench.dotnet.dba.run(KINDS[kind].format(bench.dotnet.schema, COLUMNS))
    odd = bench.table_beside("odd")

    found = {each.name: each for each in queue_checks.of_table(bench.connection, odd)}["table_kind"]
    if kind == "a foreign table":
        bench.dotnet.dba.run(f"DROP FOREIGN DATA WRAPPER {bench.dotnet.schema} CASCADE")
        return
    refused: tuple[type[errors.DatabaseFailure], str] = (errors.NotAQueue, f"it is {kind}")
    if kind == "a view":
        refused = errors.TableRefused, "it is no ordinary table"
    elif kind == "a materialized view":  # the server has no lock on one
        refused = errors.NotAQueue, "not supported for materialized views"
    with pytest.raises(refused[0], match=refused[1]):
        bench.run_batch(bench.stream_driver(queue=bench.address("odd")))
    if "partitions" in kind:
        bench.dotnet.dba.on(odd, 'ALTER TABLE {queue} RENAME TO "orders.Delayed"')
        bench.dotnet.dba.on(bench.delayed_table, "ALTER TABLE {queue} ADD COLUMN due timestamptz")
        with pytest.raises(errors.NotAQueue, match="several partitions or descendants"):
            bench.run_batch(bench.stream_driver(delayedDelivery="true"))

    assert found.severity == "error"
    assert f"it is {kind}" in found.found


@only("postgresql", "policies that COPY is refused under")
def test_row_security_is_found_and_no_grant_is_asked_for(bench: Bench) -> None:
    """The error has the server's words, and the doctor's fix works."""
    state, queues = bench.dotnet.state, bench.dotnet.schema
    with bench.login_with_rights("SELECT, INSERT, UPDATE, DELETE") as (login, connection):
        bench.dotnet.dba.enlist(login)
        bench.dotnet.dba.run(
            f"GRANT USAGE ON SCHEMA {state} TO {login.name};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {queues} TO {login.name}"
        )
        bench.dotnet.dba.on(bench.queue, "ALTER TABLE {queue} ENABLE ROW LEVEL SECURITY")
        staged = stage(bench, chunk(b"1"))
        with pytest.raises(errors.StatementRefused, match="row-level security"):
            dispatch(bench, staged, connection=connection)

        (found,) = doctor.of_any_queue(connection, bench.queue)
        assert (found.name, found.severity) == ("row_security", "error")
        bench.dotnet.dba.run(found.fix)
        assert dispatch(bench, staged, connection=connection) == 1


# ----- rights ---------------------------------------------------------------------------------


def work(bench: Bench, source: QueueAddress, login: Login) -> None:
    """Do all that a service does: move, plan, receive, divert, browse, ack, delay, dispatch."""
    queue, delayed = bench.connection.printed(source), bench.connection.printed(delayed_of(source))
    raw = {"queue": queue, "errorQueue": bench.address("error"), "url": login.url}
    options = bench.source_options(**raw, delayedDelivery="true")
    to = {"queue": bench.queue_address, "delayedQueue": delayed, "url": login.url}
    loop = StreamDriver(options, Clock(), doctor.at_start)
    try:
        end = loop.latest(INITIAL)
        with StateSession(options, "service") as session:
            connection = session.open()
            for task in loop.tasks(end):
                receive(connection, task, spark_batch=SparkBatch())
            assert browse.split_queues(connection, [source], count=2) == []
            out = chunk(b"out", lives=1000), delayed_chunk({"delay": 0})
            staged = send.stage(session, out, sink=login.name, sink_batch=0)
            send.dispatch(connection, [staged], bench.sink_options(**to))
        loop.latest(end)
    finally:
        loop.close()


def test_errors_of_missing_rights_have_the_grants_that_fix_them(bench: Bench) -> None:
    """
    The login starts without rights, and each error has the next GRANT.

    An error on a state schema has none, because the schema may be another team's.
    """
    dba = bench.dotnet.dba
    # a name that could be taken for words of an error's text
    source = bench.create_queue("sequence schema")
    dba.do("own", source)
    schema.create_delayed(bench.connection, source)
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
        # a table that this login may not see counts as absent
        except errors.DatabaseFailure as error:
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
    assert len(bench.waiting_bodies(bench.error_queue)) == 1
    assert len(bench.waiting_bodies()) >= 1
