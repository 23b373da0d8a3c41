"""State tables that the logins of a team share: what goes on, and what is refused."""

from __future__ import annotations

import json
import logging
import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from sqlq_spark.admin.script import endpoint, script
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import BadPlan, DispatchLogAhead, StateOfOther, TimedOut
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import task as receive
from sqlq_spark.send.dispatch import lock_exclusive

from .streams import PUT, TIMEOUT, Stream, Writer, bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .conftest import Login, Tenant, Tenants


@pytest.fixture
def shop(place: Place, tenant: Tenants) -> Tenant:
    """Give a tenant in whose queue an order waits."""
    made = tenant("Shop")
    place.sql(PUT.format(made.queue), b"order")
    return made


@pytest.fixture
def stream(place: Place, shop: Tenant) -> Stream:
    """Give the shop's stream."""
    return Stream(place, shop.url, shop.queue)


def plan(*queues: str, **more: object) -> str:
    """A plan with a task for each queue."""
    part = {"messages": 9, "share": 9, "bytes": 9, "bounds": [0, 9], "partitions": [0]}
    return json.dumps([{"queue": queue, **part, **more} for queue in queues])


# ---------------------------------------------------------------- plans, whoever wrote them


def test_a_stored_plan_receives_only_from_queues_that_the_options_name(
    place: Place, shop: Tenant, stream: Stream
) -> None:
    """The batch is empty, and stays so when it is done again."""
    payroll = f'"{place.schema}"."payroll"'
    place.sql(f"CREATE TABLE {payroll} (LIKE {shop.queue} INCLUDING ALL)")
    place.sql(PUT.format(payroll), b"salaries")
    place.sql(f"GRANT SELECT, DELETE, UPDATE ON {payroll} TO {shop.login}")
    assert stream.batch() == [b"order"]

    wrong = plan(payroll, shop.queue)
    place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

    place.sql(PUT.format(shop.queue), b"second")
    assert stream.batch() == stream.receive() == [b"second"]
    assert bodies(place, payroll) == [b"salaries"]
    rows = f'SELECT task, messages FROM "{place.state}".receipt ORDER BY task'
    assert place.sql(rows) == [(0, 0), (1, 1)]


def test_a_stored_plan_that_cannot_be_read_is_a_clear_error(place: Place, stream: Stream) -> None:
    """It names the stream and the batch."""
    stream.batch()
    parts = (plan("q", bounds=[1]), plan("q", bytes="9"), plan("q", x=1))
    for wrong in ("{}", "[1]", "[" * 100_000, *parts):
        place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

        with pytest.raises(BadPlan, match=f"the plan of batch 2 of stream {stream.name}"):
            stream.plan()


def test_a_dispatch_log_that_is_ahead_is_an_error(place: Place, shop: Tenant) -> None:
    """A new batch is not dropped as one that was sent; a replay of the one before still is."""
    writer = Writer(place, shop.url, shop.queue)
    writer.send(b"first", 4)
    assert writer.send(b"replay", 3) == 0

    place.sql(f'UPDATE "{place.state}".dispatch_log SET batch = 9000000000')

    with pytest.raises(DispatchLogAhead, match=r"app:billing is at batch 5, .* 9000000000"):
        writer.send(b"second", 5)
    assert bodies(place, shop.queue) == [b"order", b"first"]


def test_no_lock_that_a_login_without_rights_can_take_delays_anyone(
    place: Place, shop: Tenant, login: Login, stream: Stream
) -> None:
    """A task and a dispatch take no advisory lock, whose key any login could read in pg_locks."""
    writer = Writer(place, shop.url, shop.queue)
    stream.plan()
    (task,) = stream.loop.tasks(stream.end)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with StateSession(stream.options, "x") as session:
        connection = session.open()
        with transaction(connection, timeout=TIMEOUT):
            receive.fence(connection, task)
            lock_exclusive(connection, "app:billing")
            assert place.sql(held) == [(0,)]

    with psycopg.connect(login(), autocommit=True) as attacker:
        for key in (f"{stream.name}/1/0", f"{stream.name}/0", "sink app:billing"):
            attacker.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])

        assert stream.receive() == [b"order"]
        assert writer.send(b"sent", 1) == 1


# ---------------------------------------------------------------- who shares


def test_a_stream_and_a_sink_go_on_under_another_login_of_their_role(
    place: Place, shop: Tenant, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch is received and sent once, whoever does it; the log names who began the sink."""
    colleague = login(shop.reader, shop.sender)
    large = secrets.token_bytes(1 << 20)  # its receipt and its chunk are in pages
    place.sql(PUT.format(shop.queue), large)
    first = Stream(place, shop.url, shop.queue)
    assert first.batch() == [b"order", large]
    second = Stream(place, colleague, shop.queue, end=first.end)
    assert second.receive() == [b"order", large]
    place.sql(PUT.format(shop.queue), b"third")
    assert second.batch() == [b"third"]
    third = Stream(place, shop.url, shop.queue, end=second.end)
    assert third.receive() == [b"third"]
    assert third.plan() == second.end
    rows = f'SELECT count(*), max(login) FROM "{place.state}".stream'
    assert place.sql(rows) == [(1, shop.login)]

    own, other = (Writer(place, url, shop.queue) for url in (shop.url, colleague))
    assert own.send(b"first", 0) == 1
    with caplog.at_level(logging.INFO, "sqlq_spark"):
        assert other.send(b"again", 0) == 0
    assert f"batch 0: was sent before; login {shop.login} began this sink" in caplog.text
    staged = other.stage(large, 1)
    assert own.dispatch(staged) == 1
    assert other.dispatch(staged) == 0
    assert bodies(place, shop.queue) == [b"first", large]
    assert place.sql(f'SELECT login, batch FROM "{place.state}".dispatch_log') == [(shop.login, 1)]


def test_a_session_of_another_login_is_not_ended_but_named(
    place: Place, shop: Tenant, login: Login
) -> None:
    """The server hides what it waits for. The error has the statement with which a DBA ends it."""
    stream = Stream(place, shop.url, shop.queue, queryTimeout="1s")
    stream.batch()
    colleague, name = login(shop.reader), f"sqlqueue {stream.name} 1/0"
    with psycopg.connect(colleague, application_name=name) as other:
        other.execute(f'SELECT FROM "{place.state}".stream FOR SHARE'.encode())
        idle = psycopg.connect(colleague, application_name=name)  # holds nothing
        with idle, pytest.raises(TimedOut) as caught:
            stream.plan()

        assert str(caught.value).count("of login") == 1
        assert (
            f"session {other.info.backend_pid} of login {other.info.user} holds rows of the same "
            "stream or sink: if its process hangs, a DBA can end it with "
            f"SELECT pg_terminate_backend({other.info.backend_pid})"
        ) in str(caught.value)
        assert other.execute("SELECT 1").fetchone() == (1,)
    stream.plan()


# ---------------------------------------------------------------- install and script


TRAP = """
CREATE FUNCTION {schema}.take() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN EXECUTE 'ALTER ROLE {login} SUPERUSER'; RETURN new; END$$;
CREATE TRIGGER trap BEFORE INSERT ON {schema}.version EXECUTE FUNCTION {schema}.take()
"""
OWNED = "{schema}.version OWNER TO {login}"


@pytest.fixture
def squatter(place: Place, login: Login) -> Iterator[psycopg.Connection[Any]]:
    """Give a session of a login that may make schemas, and has made the one of the state tables."""
    database = place.sql("SELECT quote_ident(current_database())")[0][0]
    url = login(f"CREATE ON DATABASE {database}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.state)))
        yield connection


def install(place: Place, url: str = "") -> None:
    """Install, as a superuser or another login."""
    given = {"url": url or place.url, "queue": "q", "stateSchema": place.state}
    options = SourceOptions.parse(given)
    with Session(options, "install") as session:
        schema.install(session.open())


def refused(place: Place, match: str) -> None:
    """Make sure that neither an install nor the printed script does anything."""
    with pytest.raises(StateOfOther, match=match):
        install(place)
    with pytest.raises(psycopg.errors.RaiseException, match="nothing is installed in schema"):
        place.sql(script(endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state))
    place.connection.rollback()
    assert place.sql("SELECT to_regclass(%s)", f'"{place.schema}"."Shop"') == [(None,)]


def test_nothing_is_installed_in_a_schema_of_another_and_no_code_of_its_owner_runs(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """Without tables, too; the error names the schema's owner and the trigger."""
    login = squatter.info.user
    refused(place, f"belongs to {login}")
    text = "CREATE TABLE {schema}.version (version integer PRIMARY KEY);" + TRAP
    squatter.execute(text.format(schema=place.state, login=login).encode())

    refused(place, f"(?s)belongs to {login}.*trigger trap")

    assert place.sql("SELECT rolsuper FROM pg_roles WHERE rolname = %s", login) == [(False,)]


@pytest.mark.parametrize(
    "text", [TRAP, f"ALTER TABLE {OWNED}", "ALTER SCHEMA {schema} OWNER TO {login}"]
)
def test_install_and_script_refuse_tables_that_run_code(
    place: Place, login: Login, text: str
) -> None:
    """Their own, too; what only uses them is no fault: a monitor's view, a sequence, a key."""
    install(place)
    place.sql(f"""
        CREATE VIEW {place.schema}.monitor AS SELECT stream FROM {place.state}.stream;
        CREATE TABLE {place.schema}.known (v int REFERENCES {place.state}.version);
        CREATE SEQUENCE {place.state}.numbers
    """)
    install(place)
    place.sql(script(endpoint(place.url, f'"{place.schema}"."Sound"'), state=place.state))
    name = psycopg.conninfo.conninfo_to_dict(login())["user"]
    place.sql(text.format(schema=place.state, login=name))

    refused(place, "")


def test_an_install_beside_tables_of_another_login_trusts_the_owner_of_the_database(
    place: Place, login: Login
) -> None:
    """It changes nothing, and raises for any other owner."""
    reader = login()
    owner, name = (psycopg.conninfo.conninfo_to_dict(url)["user"] for url in (login(), reader))
    install(place)
    for (table,) in place.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s", place.state):
        place.sql(f'ALTER TABLE "{place.state}".{table} OWNER TO {owner}')
    place.sql(f'ALTER SCHEMA "{place.state}" OWNER TO {owner}')
    place.sql(f'GRANT USAGE ON SCHEMA "{place.state}" TO {name}')
    place.sql(f'GRANT SELECT ON "{place.state}".version TO {name}')
    ((database, before),) = place.sql(
        "SELECT quote_ident(datname), pg_get_userbyid(datdba) FROM pg_database"
        " WHERE datname = current_database()"
    )

    with pytest.raises(StateOfOther, match=f"the schema belongs to {owner}"):
        install(place, reader)
    place.sql(f"ALTER DATABASE {database} OWNER TO {owner}")
    try:
        install(place, reader)
    finally:
        place.sql(f"ALTER DATABASE {database} OWNER TO {before}")
