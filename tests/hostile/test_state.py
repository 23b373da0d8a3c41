"""State tables that the logins of a team share: what goes on, and what is refused."""

from __future__ import annotations

import json
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from waiting import until

from sqlq_spark.admin import inspect
from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import (
    BadPlan,
    DispatchLogAhead,
    StateOfOther,
    TimedOut,
)
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import receipts
from sqlq_spark.receive import task as receive
from sqlq_spark.send.dispatch import advance, lock_exclusive

from .conftest import drop_roles
from .streams import PUT, TIMEOUT, Stream, Writer, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from sqlq_spark.database import Connection

    from .conftest import Login, Tenant, Tenants

    Streams = Callable[..., Stream]


@pytest.fixture
def streams(place: Place) -> Iterator[Streams]:
    """Give what makes streams, which end with the test."""
    made: list[Stream] = []

    def make(url: str, queue: str, **more: Any) -> Stream:
        made.append(Stream(place, url, queue, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def shop(place: Place, tenants: Tenants) -> Tenant:
    """Give a tenant in whose queue an order waits."""
    made = tenants.tenant("Shop")
    place.sql(PUT.format(made.queue), b"order")
    return made


@pytest.fixture
def stream(shop: Tenant, streams: Streams) -> Stream:
    """Give the shop's stream."""
    return streams(shop.url, shop.queue)


@pytest.fixture
def writer(place: Place, shop: Tenant) -> Writer:
    """Give the shop's writer, into its own queue, where nothing waits any more."""
    place.sql(f"DELETE FROM {shop.queue}")
    return Writer(place, shop.url, shop.queue)


@pytest.fixture
def payroll(place: Place, shop: Tenant) -> str:
    """Give a queue with a message that the shop may receive, and that it does not read."""
    queue = f'"{place.schema}"."payroll"'
    place.sql(f"CREATE TABLE {queue} (LIKE {shop.queue} INCLUDING ALL)")
    place.sql(PUT.format(queue), b"salaries")
    place.sql(f"GRANT SELECT, DELETE, UPDATE ON {queue} TO {shop.login}")
    return queue


def plan(*queues: str, **more: object) -> str:
    """A plan with a task for each queue."""
    part = {"messages": 9, "share": 9, "bytes": 9, "bounds": [0, 9], "partitions": [0]}
    return json.dumps([{"queue": queue, **part, **more} for queue in queues])


# ---------------------------------------------------------------- plans, whoever wrote them


def test_a_stored_plan_receives_only_from_queues_that_the_options_name(
    place: Place, shop: Tenant, stream: Stream, payroll: str
) -> None:
    """The batch is empty, and stays so when it is done again."""
    assert stream.batch() == [b"order"]

    wrong = plan(payroll, shop.queue)
    place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

    place.sql(PUT.format(shop.queue), b"second")
    assert stream.batch() == stream.receive() == [b"second"]
    assert bodies(place, payroll) == [b"salaries"]
    rows = f'SELECT task, messages FROM "{place.state}".receipt ORDER BY task'
    assert place.sql(rows) == [(0, 0), (1, 1)]


def test_a_queue_that_the_options_name_no_more_hands_out_its_receipt(
    place: Place, tenants: Tenants, shop: Tenant, streams: Streams
) -> None:
    """What was received before the options changed is not lost."""
    more = tenants.tenant("More")
    place.sql(f"GRANT {more.reader} TO {shop.login}")
    place.sql(PUT.format(more.queue), b"more")
    before = streams(shop.url, shop.queue, more=more.queue)
    expected = before.batch()
    assert sorted(expected) == [b"more", b"order"]

    after = streams(shop.url, shop.queue, end=before.end)

    assert after.receive() == expected


@pytest.mark.parametrize(
    "wrong",
    ["[", "{}", "[1]", "[" * 100_000, plan("q", bounds=[1]), plan("q", bytes="9"), plan("q", x=1)],
)
def test_a_stored_plan_that_cannot_be_read_is_a_clear_error(
    place: Place, stream: Stream, wrong: str
) -> None:
    """It names the stream and the batch."""
    stream.batch()
    place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

    with pytest.raises(BadPlan, match=f"the plan of batch 2 of stream {stream.name}"):
        stream.plan()


def test_a_dispatch_log_that_is_ahead_is_an_error(
    place: Place, shop: Tenant, writer: Writer
) -> None:
    """A new batch is not dropped as one that was sent; a replay of the one before still is."""
    writer.send(b"first", 4)
    assert writer.send(b"replay", 3) == 0

    place.sql(f'UPDATE "{place.state}".dispatch_log SET batch = 9000000000')

    with pytest.raises(DispatchLogAhead, match=r"app:billing is at batch 5, .* 9000000000"):
        writer.send(b"second", 5)
    assert bodies(place, shop.queue) == [b"first"]


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


def test_a_stream_goes_on_under_another_login_of_its_role(
    place: Place, shop: Tenant, login: Login, stream: Stream, streams: Streams
) -> None:
    """Each batch is received once, whoever runs its tasks or acknowledges it."""
    colleague = login(shop.reader, shop.sender)
    large = secrets.token_bytes(1 << 20)  # its receipt is in pages
    place.sql(PUT.format(shop.queue), large)
    assert stream.batch() == [b"order", large]

    second = streams(colleague, shop.queue, end=stream.end)
    assert second.receive() == [b"order", large]
    place.sql(PUT.format(shop.queue), b"third")
    assert second.batch() == [b"third"]

    third = streams(shop.url, shop.queue, end=second.end)
    assert third.receive() == [b"third"]
    assert third.plan() == second.end
    assert place.sql(f'SELECT count(*) FROM "{place.state}".receipt') == [(0,)]
    rows = f'SELECT count(*), max(login) FROM "{place.state}".stream'
    assert place.sql(rows) == [(1, shop.login)]


def test_a_sink_goes_on_under_another_login_of_its_role(
    place: Place,
    shop: Tenant,
    login: Login,
    writer: Writer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each batch is sent once, whoever staged it or sends it; the log names who began the sink."""
    colleague = login(shop.reader, shop.sender)
    large = secrets.token_bytes(1 << 20)
    second = Writer(place, colleague, shop.queue)

    assert writer.send(b"first", 0) == 1
    with caplog.at_level(logging.INFO, "sqlq_spark"):
        assert second.send(b"again", 0) == 0
    assert f"batch 0: was sent before; login {shop.login} began this sink" in caplog.text
    staged = second.stage(large, 1)
    assert writer.dispatch(staged) == 1
    assert second.dispatch(staged) == 0

    assert bodies(place, shop.queue) == [b"first", large]
    assert place.sql(f'SELECT login, batch FROM "{place.state}".dispatch_log') == [(shop.login, 1)]


def test_a_session_of_another_login_is_not_ended_but_named(
    place: Place, shop: Tenant, login: Login, streams: Streams
) -> None:
    """The server hides what it waits for. The error has the statement with which a DBA ends it."""
    stream = streams(shop.url, shop.queue, queryTimeout="1s")
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


def test_two_logins_of_a_role_make_one_row_for_a_new_sink(
    place: Place, shop: Tenant, login: Login
) -> None:
    """At once: the second waits for the first, and finds its row."""
    writers = [Writer(place, url, shop.queue) for url in (shop.url, login(shop.sender))]
    sessions = [StateSession(each.options, f"at once {at}") for at, each in enumerate(writers)]
    first, second = (session.open() for session in sessions)

    def enter(connection: Connection) -> bool:
        lock_exclusive(connection, "app:billing")
        return advance(connection, "app:billing", 0)

    def enter_second() -> bool:
        with transaction(second, timeout=TIMEOUT):
            return enter(second)

    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event = %s"
    with ThreadPoolExecutor(1) as pool:
        with transaction(first, timeout=TIMEOUT):
            assert enter(first)
            other = pool.submit(enter_second)
            until(lambda: place.sql(waits, "sqlqueue at once 1", "transactionid") == [(1,)])
        assert other.result() is False
    for session in sessions:
        session.close()

    assert place.sql(f'SELECT login FROM "{place.state}".dispatch_log') == [(shop.login,)]


def test_an_operator_sees_all_receipts_and_returns_them(
    place: Place, shop: Tenant, login: Login, stream: Stream
) -> None:
    """Of every login; the list names the one that wrote it."""
    stream.batch()
    name = f"{shop.login}_o"
    roles = Roles(reader=shop.reader, sender=shop.sender, operator=name)
    place.sql(script(endpoint(place.url, shop.queue), state=place.state, roles=roles))
    try:
        given = {"url": login(name), "queue": shop.queue, "stateSchema": place.state}
        options = SourceOptions.parse(given)
        with StateSession(options, "operator") as session:
            connection = session.open()
            (found,) = inspect.receipts(connection)
            with transaction(connection, timeout=TIMEOUT):
                receipts.return_(connection, found.key, options.address)
    finally:
        drop_roles(place, name)

    assert found.login == shop.login
    assert bodies(place, shop.queue) == [b"order"]


def test_one_login_installs_receives_and_sends(
    place: Place, login: Login, streams: Streams
) -> None:
    """The owner of the tables needs no other right."""
    database = place.sql("SELECT quote_ident(current_database())")[0][0]
    url = login(f"CREATE ON DATABASE {database}", f'ALL ON SCHEMA "{place.schema}"')
    queue = f'"{place.schema}".mine'
    options = SourceOptions.parse({"url": url, "queue": queue, "stateSchema": place.state})
    with Session(options, "install") as session:
        for _ in range(2):
            schema.install(session.open())
            schema.create_queue(session.open(), options.address)

    assert Writer(place, url, queue).send(b"sent", 0) == 1
    stream = streams(url, queue)
    assert stream.batch() == [b"sent"]
    assert stream.plan() is stream.end


# ---------------------------------------------------------------- install and script


TRAP = """
CREATE FUNCTION {schema}.take() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN EXECUTE 'ALTER ROLE {login} SUPERUSER'; RETURN new; END$$;
CREATE TRIGGER trap BEFORE INSERT ON {schema}.version EXECUTE FUNCTION {schema}.take()
"""
FUNCTION = "CREATE FUNCTION {schema}.f() RETURNS int LANGUAGE sql AS 'SELECT 9';"


@pytest.fixture
def squatter(place: Place, login: Login) -> Iterator[psycopg.Connection[Any]]:
    """Give a session of a login that may make schemas, and has made the one of the state tables."""
    database = place.sql("SELECT quote_ident(current_database())")[0][0]
    url = login(f"CREATE ON DATABASE {database}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.state)))
        yield connection


def trap(place: Place, connection: psycopg.Connection[Any]) -> None:
    """Make a table of versions whose trigger makes its owner a superuser."""
    named = {"schema": f'"{place.state}"', "login": connection.info.user}
    text = "CREATE TABLE {schema}.version (version integer PRIMARY KEY);" + TRAP
    connection.execute(text.format(**named).encode())


def superuser(place: Place, connection: psycopg.Connection[Any]) -> bool:
    """Whether the session's login has become one."""
    asked = "SELECT rolsuper FROM pg_roles WHERE rolname = %s"
    return bool(place.sql(asked, connection.info.user)[0][0])


def install(place: Place, url: str = "") -> None:
    """Install, as a superuser or another login."""
    given = {"url": url or place.url, "queue": "q", "stateSchema": place.state}
    options = SourceOptions.parse(given)
    with Session(options, "install") as session:
        schema.install(session.open())


def test_install_refuses_a_schema_of_another_and_runs_no_code_of_its_owner(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """
    The error names the owner of the schema and the trigger.

    Without tables, too: the schema's owner could drop and replace what is made in it.
    """
    with pytest.raises(StateOfOther, match=f"belongs to {squatter.info.user}"):
        install(place)
    trap(place, squatter)

    with pytest.raises(StateOfOther) as caught:
        install(place)

    assert f"belongs to {squatter.info.user}" in str(caught.value)
    assert "has the trigger trap" in str(caught.value)
    assert not superuser(place, squatter)


def test_a_printed_script_runs_no_code_of_who_made_the_schema_before(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """It ends, and nothing of it was done."""
    trap(place, squatter)
    text = script(endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state)

    with pytest.raises(psycopg.errors.RaiseException, match="nothing is installed in schema"):
        place.sql(text)
    place.connection.rollback()

    assert not superuser(place, squatter)
    assert place.sql("SELECT to_regclass(%s)", f'"{place.schema}"."Shop"') == [(None,)]


@pytest.mark.parametrize(
    "text",
    [
        TRAP,
        "CREATE RULE r AS ON INSERT TO {schema}.version DO ALSO NOTHING",
        f"{FUNCTION} ALTER TABLE {{schema}}.version ALTER version SET DEFAULT {{schema}}.f()",
        f"{FUNCTION} ALTER TABLE {{schema}}.version ADD CHECK ({{schema}}.f() > version)",
        f"{FUNCTION} CREATE POLICY p ON {{schema}}.version USING ({{schema}}.f() > version)",
        f"{FUNCTION} CREATE INDEX ON {{schema}}.version ((version + {{schema}}.f()))",
        "CREATE DOMAIN {schema}.d AS int; ALTER TABLE {schema}.version ADD extra {schema}.d",
        "DROP TABLE {schema}.version; CREATE VIEW {schema}.version AS SELECT 2 AS version",
        "CREATE VIEW {schema}.more AS SELECT 2 AS version",
        "ALTER TABLE {schema}.version OWNER TO {login}",
        "ALTER SCHEMA {schema} OWNER TO {login}",
    ],
)
def test_install_and_script_refuse_tables_that_run_code(
    place: Place, login: Login, text: str
) -> None:
    """Their own, too: someone with a right on them may have put it there."""
    name = psycopg.conninfo.conninfo_to_dict(login())["user"]
    install(place)
    place.sql(text.format(schema=f'"{place.state}"', login=name))

    with pytest.raises(StateOfOther):
        install(place)
    with pytest.raises(psycopg.errors.RaiseException, match="nothing is installed in schema"):
        place.sql(script(endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state))
    place.connection.rollback()


def test_what_only_uses_the_state_tables_is_no_fault(place: Place) -> None:
    """A view of a monitor, a sequence and a foreign key elsewhere run nothing in them."""
    install(place)
    place.sql(f'CREATE VIEW "{place.schema}".monitor AS SELECT stream FROM "{place.state}".stream')
    place.sql(f'CREATE TABLE "{place.schema}".known (v int REFERENCES "{place.state}".version)')
    place.sql(f'CREATE SEQUENCE "{place.state}".numbers')

    install(place)

    place.sql(script(endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state))


@pytest.mark.parametrize("trusted", [True, False])
def test_an_install_beside_tables_of_another_login_trusts_the_owner_of_the_database(
    place: Place, login: Login, *, trusted: bool
) -> None:
    """It changes nothing, and raises for any other owner."""
    owner, reader = login(), login()
    names = [psycopg.conninfo.conninfo_to_dict(url)["user"] for url in (owner, reader)]
    install(place)
    for (table,) in place.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s", place.state):
        place.sql(f'ALTER TABLE "{place.state}".{table} OWNER TO {names[0]}')
    place.sql(f'ALTER SCHEMA "{place.state}" OWNER TO {names[0]}')
    place.sql(f'GRANT USAGE ON SCHEMA "{place.state}" TO {names[1]}')
    place.sql(f'GRANT SELECT ON "{place.state}".version TO {names[1]}')
    ((database, before),) = place.sql(
        "SELECT quote_ident(datname), pg_get_userbyid(datdba) FROM pg_database"
        " WHERE datname = current_database()"
    )
    try:
        if trusted:
            place.sql(f"ALTER DATABASE {database} OWNER TO {names[0]}")
            install(place, reader)
        else:
            with pytest.raises(StateOfOther, match=f"the schema belongs to {names[0]}"):
                install(place, reader)
    finally:
        place.sql(f"ALTER DATABASE {database} OWNER TO {before}")
