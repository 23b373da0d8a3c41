"""The tables: made as the transport makes them, again without harm; told when they do not fit."""

from __future__ import annotations

from functools import partial

import pytest

from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import QueueNotFound, StateNotInstalled, StateTooNew
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT, Bench

HOSTILE = [
    "Shop.Orders",
    "with space",
    'quo"te',
    "apo'strophe",
    "semi;colon",
    'x"; DROP TABLE orders; --',
    "line\nbreak",
    "tab\tand\\slash",
    "🚀 rocket",
    "per%cent %s %(name)s",
    "$1 :batch ?",
    "{state}",
    "{queue} {errors}",
    "/* comment */ --",
    "SELECT",
    "ünï",
    "table_sequence_schema",
    "x" * 55,
]


def test_everything_installs_again_without_harm(bench: Bench) -> None:
    """What the tables hold stays."""
    stream = bench.new_stream()

    schema.install(bench.desk, timeout=TIMEOUT)
    schema.create_queue(bench.desk, bench.queue, timeout=TIMEOUT)

    assert bench.dotnet.state_rows("stream", "stream") == [(stream,)]
    assert bench.dotnet.state_rows("version", "version") == [(schema.VERSION,)]


def test_installers_at_once_do_not_disturb_one_another(bare: Bench) -> None:
    """The second waits for the first."""
    queue = QueueAddress("new", bare.dotnet.schema)

    def work(name: str) -> None:
        connection = bare.open(name)
        schema.install(connection, timeout=TIMEOUT)
        schema.create_queue(connection, queue, timeout=TIMEOUT)

    for done in [bare.thread(partial(work, f"installer {at}")) for at in range(4)]:
        done.result(timeout=TIMEOUT)

    assert bare.dotnet.state_rows("version", "version") == [(schema.VERSION,)]
    assert bare.dotnet.rows(queue) == []


def test_a_queue_of_ours_is_a_queue_of_the_endpoint(bench: Bench) -> None:
    """Column for column; the endpoint's installer finds nothing to do; it sends and receives."""
    ours = QueueAddress("ours", bench.dotnet.schema)

    schema.create_queue(bench.desk, ours, timeout=TIMEOUT)

    bench.dotnet.create(ours)
    assert bench.desk.columns(ours) == bench.desk.columns(bench.queue)
    sent = bench.dotnet.send(ours, body=b"x")
    got = bench.dotnet.receive(ours)
    assert got is not None
    assert got.id == sent


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(bench: Bench, name: str) -> None:
    """It is created, found, received from and read as it is spelled; nothing else is touched."""
    queue = QueueAddress(name, bench.dotnet.schema)
    bench.dotnet.send(bench.queue, body=b"bystander")

    schema.create_queue(bench.desk, queue, timeout=TIMEOUT)

    assert set(bench.desk.columns(queue)) == bench.dotnet.dba.shapes.columns
    bench.dotnet.send(queue, body=b"x")
    assert [row.body for row in bench.dotnet.rows(queue)] == [b"x"]
    rows = bench.receive(bench.task(bench.new_stream(), queue=queue))
    assert rows["body"].to_pylist() == [b"x"]
    assert bench.dotnet.rows(queue) == []
    assert bench.bodies() == [b"bystander"]


def test_state_tables_that_are_absent_are_told_with_the_command(bare: Bench) -> None:
    """Before anything is received."""
    with (
        Session(bare.source(), "x") as session,
        pytest.raises(StateNotInstalled) as caught,
    ):
        session.open()

    assert str(caught.value).startswith(
        f"the state tables were not found in schema {bare.dotnet.state} of "
    )
    assert "Run `sqlqueue install` once" in str(caught.value)


def test_state_tables_of_a_newer_release_are_left_alone(bench: Bench) -> None:
    """An older one and an empty version ask for the installer."""
    bench.dotnet.dba.change("version", version=99)

    with Session(bench.source(), "x") as session, pytest.raises(StateTooNew) as caught:
        session.open()

    assert str(caught.value) == (
        f"the state tables in schema {bench.dotnet.state} have version 99, but "
        f"this release supports {schema.VERSION}. Upgrade sqlq-spark here."
    )
    bench.dotnet.dba.forget("version")
    with Session(bench.source(), "x") as session, pytest.raises(StateNotInstalled):
        session.open()


def test_a_check_that_failed_is_made_again(bench: Bench) -> None:
    """A session that was refused must not go on with the connection it had opened for the check."""
    bench.dotnet.dba.change("version", version=99)
    with Session(bench.source(), "x") as session:
        with pytest.raises(StateTooNew):
            session.open()

        with pytest.raises(StateTooNew):
            session.open()


@pytest.mark.parametrize("state", ["My State", 'quo"te', "sql.queue", "semi;colon", "{queue}"])
def test_a_state_schema_may_have_any_name(bare: Bench, state: str) -> None:
    """It is quoted like a queue."""
    state = f"{bare.dotnet.state[-6:]} {state}"
    options = bare.source(stateSchema=state)
    try:
        with Session(options, "install", state=False) as session:
            schema.install(session.open(), timeout=TIMEOUT)

        with Session(options, "x") as session:
            assert session.open().rows("version") == [(schema.VERSION,)]
    finally:
        bare.dotnet.dba.drop_schema(state)


def test_an_absent_queue_is_told_by_its_canonical_address(bench: Bench) -> None:
    """With the command that makes it."""
    absent = QueueAddress("absent", bench.dotnet.schema)

    with pytest.raises(QueueNotFound) as caught:
        bench.desk.rows("top", tables={"queue": absent})

    assert str(caught.value).startswith(f"queue {bench.address('absent')} was not found in ")
    assert bench.desk.columns(absent) == {}
