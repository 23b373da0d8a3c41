"""The tables: made as the transport makes them, and again without harm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from servers import only

from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import (
    InstallBlocked,
    QueueNotFound,
    StateNotInstalled,
    StateTooNew,
    StateTooOld,
)
from sqlq_spark.send import subscriptions
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.headers import FORWARD_DESTINATION, dumps

from .conftest import TIMEOUT, Bench, bodies
from .test_send import chunk, dispatch, stage

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
    """What the tables hold stays; a queue of the endpoint is left as it is."""
    stream, before = bench.new_stream(), bench.dotnet.catalog(bench.queue)
    bench.dotnet.send(bench.queue, body=b"waits")

    schema.install(bench.desk)
    schema.create_queue(bench.desk, bench.queue)

    assert bench.dotnet.state_rows("stream", "stream") == [(stream,)]
    assert bench.dotnet.state_rows("version", "version") == [(schema.VERSION,)]
    assert bench.dotnet.catalog(bench.queue) == before
    assert bench.bodies() == [b"waits"]


def test_a_queue_of_our_installer_is_the_one_that_an_endpoint_makes(bare: Bench) -> None:
    """Column for column and index for index."""
    ours = bare.beside("ours")

    schema.create_queue(bare.desk, ours)

    assert bare.dotnet.catalog(ours) == bare.dotnet.catalog(bare.queue) != []


def test_installers_at_once_do_not_disturb_one_another(bare: Bench) -> None:
    """The second waits for the first."""
    queue = bare.beside("new")

    def work(name: str) -> None:
        connection = bare.open(name)
        schema.install(connection)
        schema.create_queue(connection, queue)

    for done in [bare.thread(partial(work, f"installer {at}")) for at in range(4)]:
        done.result(timeout=TIMEOUT)

    assert bare.dotnet.state_rows("version", "version") == [(schema.VERSION,)]
    assert bare.dotnet.rows(queue) == []


@only("postgresql", "locks of tables")
def test_the_column_body_string_is_made_once_and_under_the_lock(bench: Bench) -> None:
    """In a new table and in one that has rows, by two installers at once; the endpoint goes on."""
    new = bench.beside("new")
    bench.dotnet.send(bench.queue, body=b"before")

    def work() -> None:
        connection = bench.open("installer")
        for queue in (new, bench.queue):
            schema.create_queue(connection, queue, body_string=True)

    for done in [bench.thread(work) for _ in range(3)]:
        done.result(timeout=TIMEOUT)

    for queue in (new, bench.queue):
        assert bench.desk.columns(queue)["bodystring"] in {"text", "nvarchar"}
    assert bench.bodies() == [b"before"]
    assert bench.dotnet.receive(bench.queue) is not None


def test_an_install_gives_up_while_another_session_creates_the_tables(
    bare: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a DBA's script does, which takes none of our locks; a later install succeeds."""
    monkeypatch.setattr(schema, "LOCK_WAIT", 0.3)
    desk = bare.desk
    with transaction(desk, timeout=TIMEOUT):
        desk.rows("install_schema")
        desk.rows("install_state")

        with pytest.raises(InstallBlocked) as caught:
            schema.install(bare.open("installer"))

    assert f"nothing was installed in schema {bare.dotnet.state}" in str(caught.value)
    assert "for longer than 0.3 s" in str(caught.value)
    schema.install(bare.open("installer"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_only_a_name(bench: Bench, name: str) -> None:
    """Of queue, endpoint, topic and table of subscriptions, for all that can be done to a queue."""
    queue = bench.beside(name)
    table = bench.beside((name + "s")[1:])
    printed, topic = bench.address(name), name.replace(";", "").replace(",", "").strip()
    bench.dotnet.send(bench.errors, body=b"bystander")
    with pytest.raises(QueueNotFound):
        dispatch(bench, stage(bench, chunk(b"x", queue=printed), sink="absent"))

    schema.create_queue(bench.desk, queue)
    schema.create_delayed(bench.desk, queue)
    names: dict[str, Any] = {"topics": [topic], "endpoint": name, "queue": queue}
    subscriptions.subscribe(bench.desk, table, **names)
    frame = {
        "body": [b"sent", b"published", b"delayed"],
        "queue": [printed, None, printed],
        "topics": [None, [topic], None],
        "delay": [None, None, 0],
    }
    raw: dict[str, Any] = {"subscriptionTable": bench.desk.printed(table)}
    by_rows = replace(bench.sink(**raw), address=None)  # the option would override the column
    sender = Sender(options=by_rows, partition=0)
    dispatch(bench, stage(bench, *sender.chunks([pa.RecordBatch.from_pydict(frame)])), **raw)
    bench.dotnet.send(bench.queue, dumps({FORWARD_DESTINATION: printed}), b"forwarded")
    bench.receive(bench.task(bench.new_stream(), error_address=bench.errors))
    Mover(queue, bench.source()).move(bench.desk)

    assert set(bench.desk.columns(queue)) == bench.dotnet.dba.shapes.columns
    assert bench.dotnet.subscribers(table, topic) == [printed]
    rows = bench.receive(bench.task(bench.new_stream(), queue=queue))
    assert sorted(bodies(rows)) == [b"delayed", b"forwarded", b"published", b"sent"]
    assert bench.bodies(queue) == bench.bodies() == []
    assert bench.bodies(bench.errors) == [b"bystander"]


def test_the_error_of_absent_state_tables_has_the_command(bare: Bench) -> None:
    """Before anything is received."""
    with StateSession(bare.source(), "x") as session, pytest.raises(StateNotInstalled) as caught:
        session.open()

    where = f"the state tables were not found in schema {bare.dotnet.state} of "
    assert str(caught.value).startswith(where)
    assert "Run `sqlqueue install` once" in str(caught.value)


@pytest.mark.parametrize(("version", "error"), [(99, StateTooNew), (1, StateTooOld)])
def test_state_tables_of_another_release_are_left_alone(
    bench: Bench, version: int, error: type[StateTooNew | StateTooOld]
) -> None:
    """Streams check at each try, and an install does too. The error says what to do."""
    bench.dotnet.dba.change("version", version=version)

    with StateSession(bench.source(), "x") as session:
        for _ in range(2):  # not with the connection that was opened for the check
            with pytest.raises(error) as caught:
                session.open()
    with pytest.raises(error):
        schema.install(bench.desk)

    fix = "Upgrade sqlq-spark here."
    if error is StateTooOld:
        fix = (
            "Stop the queries that use them, and see that the tables receipt and staging are empty."
            " Then drop the schema and run `sqlqueue install`, or the script of `sqlqueue script`."
            " If receipt or staging is not empty, its messages would be lost."
        )
    assert str(caught.value) == (
        f"the state tables in schema {bench.dotnet.state} have version {version}, but "
        f"this release supports {schema.VERSION}. {fix}"
    )


def test_state_tables_without_a_version_are_not_used(bench: Bench) -> None:
    """Nobody knows which release they are of."""
    bench.dotnet.dba.forget("version")

    with StateSession(bench.source(), "x") as session, pytest.raises(StateNotInstalled):
        session.open()


@pytest.mark.parametrize("state", ["a b", "q\"uo'te", "a.b", "semi;colon", "{queue}", "$do$", "%s"])
def test_a_state_schema_may_have_any_name(bare: Bench, state: str) -> None:
    """It is quoted like a queue."""
    state = f"{bare.dotnet.state[-6:]} {state}"
    options = bare.source(stateSchema=state)
    try:
        with Session(options, "install") as session:
            schema.install(session.open())

        with StateSession(options, "x") as session:
            assert session.open().rows("version") == [(schema.VERSION,)]
    finally:
        bare.dotnet.dba.drop_schema(state)
