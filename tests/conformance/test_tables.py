"""Tables that another release, or a DBA, made otherwise: columns go by name, and only by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from servers import only

from sqlq_spark.admin import checks, problems
from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.database import schema, transaction
from sqlq_spark.errors import NotAQueue, StatementRefused
from sqlq_spark.receive import browse, receipts
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send import insert
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench
from .shapes import cases
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from sqlq_spark.wire.address import QueueAddress


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
    """It is planned, received from, diverted into, returned to, browsed, sent to and purged."""
    dotnet = bench.dotnet
    alter(bench, dotnet.dba.shapes.otherwise[otherwise])
    sent = dotnet.send(bench.queue, '{"a":"b"}', b"good", lives=3_600_000)
    dotnet.send(bench.queue, "[]", b"poison")
    dotnet.send(bench.queue, body=b"gone", lives=-1)

    shown = browsed(bench, bench.queue)
    loop = bench.loop(errorQueue=bench.desk.printed(bench.errors), maxConcurrency="1")
    end, (rows,) = bench.batch(loop)
    with transaction(bench.desk, timeout=TIMEOUT):
        receipt = str(end.stream), end.batch, 0
        returned = receipts.return_(bench.desk, receipt, bench.queue)
    dispatch(bench, stage(bench, chunk(b"ours", lives=-1)))

    assert [row["body"] for row in shown] == [b"good", b"poison", b"gone"]
    assert shown[0]["id"] == sent.bytes
    assert rows["body"].to_pylist() == [b"good"]
    assert rows["headers"].to_pylist() == ['{"a":"b"}']
    assert rows["expires"].to_pylist() == [shown[0]["expires"]]
    assert [row.body for row in dotnet.rows(bench.errors)] == [b"poison"]
    assert returned == 1
    assert bench.bodies() == [b"good", b"ours"]
    assert dotnet.rows(bench.queue)[0].id == sent
    assert list(purge_expired(bench.desk, bench.queue)) == [1]
    got = dotnet.receive(bench.queue)
    assert got is not None
    assert got.body == b"good"


def test_the_doctor_has_nothing_against_a_table_that_works(bare: Bench) -> None:
    """Wider columns, more of them and another order are no fault."""
    shapes = bare.dotnet.dba.shapes
    for name, text in shapes.otherwise.items():
        alter(bare, shapes.plain)
        bare.dotnet.dba.expires_index(bare.queue, there=bare.dotnet.dialect == "sqlserver")
        alter(bare, text)

        found = checks.of_any_queue(bare.desk, bare.queue)

        assert found == [], name


@pytest.mark.parametrize("how", cases("no_queue"))
def test_a_table_that_is_no_queue_is_refused(bench: Bench, how: str) -> None:
    """Names in quotes and capitals are other names, to endpoints too; nothing is taken from it."""
    bench.dotnet.send(bench.queue)
    alter(bench, bench.dotnet.dba.shapes.no_queue[how])

    with pytest.raises(NotAQueue, match="is not a queue: "):
        bench.loop().latest(INITIAL)
    with pytest.raises(NotAQueue):
        bench.receive(bench.task(None))
    with pytest.raises(NotAQueue):
        browsed(bench, bench.queue)


def test_nothing_is_sent_to_a_table_that_is_no_queue(bare: Bench) -> None:
    """A message may name any table of the database as its destination."""
    names = ["id", "expires", "headers", "body"]
    for name in names:
        bare.dotnet.dba.rename(bare.queue, name, "other")
        with bare.session("sink") as session, pytest.raises(NotAQueue) as caught:
            insert.send_now(session, [chunk(b"x")], bare.sink(delivery="atLeastOnce"))
        bare.dotnet.dba.rename(bare.queue, "other", name)

        assert f"is not a queue: it has no column {name}" in str(caught.value)
    assert bare.seqs() == []


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


def make(bench: Bench, kind: str) -> QueueAddress:
    """Make a table of a kind."""
    bench.dotnet.dba.run(KINDS[kind].format(bench.dotnet.schema, COLUMNS))
    return bench.beside("odd")


@only("postgresql", "kinds of tables that the other has not")
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_is_no_plain_table_is_found(bare: Bench, kind: str) -> None:
    """A row's place is known within one table only, and a foreign one has commits of its own."""
    odd = make(bare, kind)

    found = {each.name: each for each in problems.of_table(bare.desk, odd)}
    if kind == "a foreign table":
        bare.dotnet.dba.run(f"DROP FOREIGN DATA WRAPPER {bare.dotnet.schema} CASCADE")

    assert found["table_kind"].severity == "error"
    assert f"it is {kind}" in found["table_kind"].found


@only("postgresql", "kinds of tables that the other has not")
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "a foreign table"])
def test_a_stream_on_what_is_no_plain_table_ends_at_once(bench: Bench, kind: str) -> None:
    """Before anything is received."""
    make(bench, kind)
    loop = bench.loop(queue=bench.address("odd"))

    with pytest.raises(NotAQueue, match=f"it is {kind}"):
        bench.batch(loop)


@only("postgresql", "kinds of tables that the other has not")
@pytest.mark.parametrize("kind", ["of partitions", "with a child"])
def test_a_stream_moves_nothing_from_what_is_no_plain_table(bench: Bench, kind: str) -> None:
    """A row is found by its place in one table: another could be moved before it is due."""
    name = bench.dotnet.dba.quoted(schema.delayed_of(bench.queue))
    made = f"CREATE TABLE {name} (id uuid, headers text, body bytea, due timestamptz NOT NULL)"
    child = f"CREATE TABLE {bench.dotnet.schema}.child () INHERITS ({name})"
    bench.dotnet.dba.run(f"DROP TABLE IF EXISTS {name}")
    bench.dotnet.dba.run(
        f"{made} PARTITION BY HASH (due)" if kind == "of partitions" else f"{made}; {child}"
    )

    with pytest.raises(NotAQueue, match="several partitions or descendants"):
        bench.batch(bench.loop(delayedDelivery="true"))


@only("postgresql", "policies that COPY is refused under")
def test_row_security_is_found_and_no_grant_is_asked_for(bench: Bench) -> None:
    """The error has the server's words; the doctor's fix works."""
    state, everything = bench.dotnet.state, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"
    with bench.login("SELECT, INSERT, UPDATE, DELETE") as (login, connection):
        role = login.name
        bench.dotnet.dba.run(
            f"GRANT USAGE ON SCHEMA {state}, {bench.dotnet.schema} TO {role};"
            f"GRANT {everything} {state} TO {role};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {bench.dotnet.schema} TO {role}"
        )
        bench.dotnet.dba.on(bench.queue, "ALTER TABLE {queue} ENABLE ROW LEVEL SECURITY")
        staged = stage(bench, chunk(b"1"))
        with pytest.raises(StatementRefused, match="row-level security"):
            dispatch(bench, staged, connection=connection)

        (found,) = checks.of_any_queue(connection, bench.queue)
        assert (found.name, found.severity) == ("row_security", "error")
        bench.dotnet.dba.run(found.fix)
        assert dispatch(bench, staged, connection=connection) == 1
