"""Tables that are no queue of their own: found by the doctor, refused by a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from servers import only

from sqlq_spark.admin import checks, problems
from sqlq_spark.database import schema
from sqlq_spark.errors import NotAQueue, StatementRefused
from sqlq_spark.wire.address import QueueAddress

from .test_checks import login
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from .conftest import Bench

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
    return QueueAddress("odd", bench.dotnet.schema)


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
    with login(bench, "SELECT, INSERT, UPDATE, DELETE") as (role, connection):
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
