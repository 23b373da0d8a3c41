"""State tables that tenants share: what one of them can do to another's streams, and cannot."""

from __future__ import annotations

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.dba import as_login
from psycopg import sql
from waiting import until

from sqlq_spark.admin import inspect
from sqlq_spark.admin.endpoint import endpoint
from sqlq_spark.admin.script import Roles, script
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadPlan, DispatchLogAhead, DispatchLogOfOther, StateOfOther
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import receipts
from sqlq_spark.receive import task as receive
from sqlq_spark.send import dispatch_log

from .streams import PUT, TIMEOUT, Stream, Writer, bodies, forged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from .conftest import Tenant, Tenants

    Login = Callable[..., str]

KEPT = ("stream", "task", "receipt", "receipt_page", "staging", "staging_page", "dispatch_log")


@pytest.fixture
def login(place: Place) -> Iterator[Login]:
    """Give what makes a login with some roles, and rights on the database; it gives its url."""
    made: list[str] = []

    def make(*roles: str, database: str = "") -> str:
        name = f"login_{secrets.token_hex(4)}"
        texts = [f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"]
        texts += [f"GRANT {role} TO {name}" for role in roles]
        if database:
            at = place.sql("SELECT quote_ident(current_database())")[0][0]
            texts.append(f"GRANT {database} ON DATABASE {at} TO {name}")
        for text in texts:
            place.sql(text)
        made.append(name)
        return as_login(place.url, name, "secret").url

    try:
        yield make
    finally:
        for name in made:
            place.sql(f"DROP OWNED BY {name} CASCADE")
            place.sql(f"DROP ROLE {name}")


@pytest.fixture
def streams(place: Place) -> Iterator[Callable[..., Stream]]:
    """Give what makes streams, which end with the test."""
    made: list[Stream] = []

    def make(url: str, queue: str, **more: Any) -> Stream:
        made.append(Stream(place, url, queue, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def payroll(place: Place, tenant: Tenant) -> str:
    """Make a queue with a message that this tenant alone may receive, and that it does not read."""
    queue = f'"{place.schema}".payroll'
    place.sql(f"CREATE TABLE {queue} (LIKE {tenant.queue} INCLUDING ALL)")
    place.sql(PUT.format(queue), b"salaries")
    place.sql(f"GRANT SELECT, DELETE, UPDATE ON {queue} TO {tenant.login}")
    return queue


def plan(queue: str, **more: object) -> str:
    """A plan of one task that receives from a queue."""
    part = {"queue": queue, "messages": 9, "share": 9, "bytes": 9, "bounds": [0, 9]}
    return json.dumps([part | more])


# ---------------------------------------------------------------- one tenant against another


def test_a_tenant_cannot_set_another_tenants_plan(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """The stream's login may receive from Payroll, and the one who sets the plan may not."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    queue = payroll(place, shop)
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.batch()
    text = f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = acked_batch + 2'

    mallory.sql(text, plan('"' + place.schema + '"."payroll"'))

    place.sql(PUT.format(shop.queue), b"second")
    assert stream.batch() == [b"second"]
    assert bodies(place, queue) == [b"salaries"]


def test_a_stored_plan_receives_only_from_queues_that_the_options_name(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """Whoever wrote it; the batch is empty, and stays so when it is done again."""
    shop = tenants.tenant("Shop")
    queue = payroll(place, shop)
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    assert stream.batch() == [b"order"]
    wrong = plan('"' + place.schema + '"."payroll"')[:-1] + ", " + plan(shop.queue)[1:]

    place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

    place.sql(PUT.format(shop.queue), b"second")
    assert stream.batch() == [b"second"]
    assert stream.receive() == [b"second"]
    assert bodies(place, queue) == [b"salaries"]
    assert place.sql(f'SELECT task, messages FROM "{place.state}".receipt ORDER BY task') == [
        (0, 0),
        (1, 1),
    ]


def test_a_queue_that_the_options_name_no_more_hands_out_its_receipt(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """What was received before the options changed is not lost."""
    shop, more = tenants.tenant("Shop"), tenants.tenant("More")
    place.sql(f"GRANT {more.reader} TO {shop.login}")
    for each in (shop, more):
        place.sql(PUT.format(each.queue), each.login.encode())
    before = streams(shop.url, shop.queue, more=more.queue)
    expected = before.batch()
    assert sorted(expected) == sorted([shop.login.encode(), more.login.encode()])

    after = streams(shop.url, shop.queue, end=before.end)

    assert after.receive() == expected


@pytest.mark.parametrize(
    "wrong",
    ["[", "{}", "[1]", "[" * 100_000, plan("q", bounds=[1]), plan("q", bytes="9"), plan("q", x=1)],
)
def test_a_stored_plan_that_is_none_is_a_clear_error(
    place: Place, tenants: Tenants, streams: Callable[..., Stream], wrong: str
) -> None:
    """It names the stream and the batch."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.batch()
    place.sql(f'UPDATE "{place.state}".stream SET plan = %s, plan_batch = 2', wrong)

    with pytest.raises(BadPlan, match=f"the plan of batch 2 of stream {stream.name}"):
        stream.plan()


def test_a_tenant_cannot_replace_another_tenants_receipt(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """Neither change it, nor delete it and put another in its place."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.batch()
    table = f'"{place.state}".receipt'

    mallory.sql(f"DELETE FROM {table}")
    forge(mallory, table, stream, batch=1)

    assert stream.receive() == [b"order"]


def test_a_tenant_cannot_put_a_receipt_into_another_tenants_stream(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """Nor make it fail, by being first with a key; the stream's id is no secret."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.plan()

    forge(mallory, f'"{place.state}".receipt', stream, batch=1)

    assert stream.receive() == [b"order"]
    assert stream.receive() == [b"order"]


def test_a_receipt_that_is_forged_by_the_streams_own_login_is_handed_out(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """So what keeps the other tests' forgeries out is whose rows they are, and not their form."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.plan()

    forge(shop, f'"{place.state}".receipt', stream, batch=1)

    assert stream.receive() == [b"forged"]


def forge(by: Tenant, table: str, stream: Stream, *, batch: int) -> None:
    """Put a receipt of an attacker's into a stream."""
    columns = "stream, batch, task, queue, messages, expired, diverted, forwarded, bytes"
    by.sql(
        f"INSERT INTO {table} ({columns}, unpacked, payload) "
        "VALUES (%s, %s, 0, 'q', 1, 0, 0, 0, 6, %s, %s)",
        stream.name,
        batch,
        *forged(b"forged"),
    )


def test_a_tenants_rows_do_not_reach_the_streams_of_who_sees_all_rows(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """A superuser, or the tables' owner: it sees them, and its streams take only its own."""
    mallory = tenants.tenant("Mallory")
    queue = f'"{place.schema}".own'
    place.sql(f"CREATE TABLE {queue} (LIKE {mallory.queue} INCLUDING ALL)")
    place.sql(PUT.format(queue), b"order")
    stream = streams(place.url, queue)
    stream.plan()

    rows = f'"{place.state}".stream (stream, queue, driver)'
    mallory.sql(f"INSERT INTO {rows} VALUES (%s, 'q', 'd')", stream.name)
    forge(mallory, f'"{place.state}".receipt', stream, batch=1)
    log = f'"{place.state}".dispatch_log (sink, batch, messages)'
    mallory.sql(f"INSERT INTO {log} VALUES ('app:billing', 9000000000, 0)")

    assert stream.receive() == [b"order"]
    assert Writer(place, place.url, queue).send(b"sent", 1) == 1


def test_a_tenant_cannot_change_what_another_has_staged(place: Place, tenants: Tenants) -> None:
    """Neither its messages, nor where they go."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    writer = Writer(place, shop.url, shop.queue)
    staged = writer.stage(b"order", 1)
    table = f'"{place.state}".staging'

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.sql(f"UPDATE {table} SET payload = ''")
    mallory.sql(f"DELETE FROM {table}")

    assert writer.dispatch(staged) == 1
    assert bodies(place, shop.queue) == [b"order"]


def test_a_tenant_cannot_have_another_tenants_batch_taken_for_sent(
    place: Place, tenants: Tenants
) -> None:
    """By a row of the dispatch log, before there is one or after."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    log = f'"{place.state}".dispatch_log'
    writer = Writer(place, shop.url, shop.queue)
    mallory.sql(f"INSERT INTO {log} (sink, batch, messages) VALUES ('app:billing', 9000000000, 0)")

    assert writer.send(b"first", 1) == 1
    mallory.sql(f"UPDATE {log} SET batch = 9000000000")
    assert writer.send(b"second", 2) == 1

    assert bodies(place, shop.queue) == [b"first", b"second"]


def test_a_dispatch_log_that_is_ahead_is_an_error(place: Place, tenants: Tenants) -> None:
    """A new batch is not dropped as one that was sent; a replay of the one before still is."""
    shop = tenants.tenant("Shop")
    writer = Writer(place, shop.url, shop.queue)
    writer.send(b"first", 4)
    assert writer.send(b"replay", 3) == 0

    place.sql(f'UPDATE "{place.state}".dispatch_log SET batch = 9000000000')

    with pytest.raises(DispatchLogAhead, match=r"app:billing is at batch 5, .* 9000000000"):
        writer.send(b"second", 5)
    assert bodies(place, shop.queue) == [b"first"]


def test_a_tenant_sees_nothing_of_another(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """No row of any state table; and it cannot put one in another's name."""
    shop, mallory = tenants.tenant("Shop"), tenants.tenant("Mallory")
    place.sql(PUT.format(shop.queue), secrets.token_bytes(1 << 20))
    streams(shop.url, shop.queue).batch()
    Writer(place, shop.url, shop.queue).stage(secrets.token_bytes(1 << 20), 1)

    for table in KEPT:
        count = f'SELECT count(*) > 0 FROM "{place.state}".{table}'
        assert place.sql(count) == shop.sql(count) == [(True,)], table
        assert mallory.sql(count) == [(False,)], table
    log = f'"{place.state}".dispatch_log (sink, login)'
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.sql(f"INSERT INTO {log} VALUES ('x', %s)", shop.login)


# ---------------------------------------------------------------- locks


def test_locks_that_anyone_may_take_hold_no_one_up(
    place: Place, tenants: Tenants, login: Login, streams: Callable[..., Stream]
) -> None:
    """Keys that are made of a session's application_name, by a login without any right."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    stream, writer = streams(shop.url, shop.queue), Writer(place, shop.url, shop.queue)
    stream.plan()

    with psycopg.connect(login(), autocommit=True) as attacker:
        for key in (f"{stream.name}/1/0", f"{stream.name}/0", "sink app:billing"):
            attacker.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])

        assert stream.receive() == [b"order"]
        assert writer.send(b"sent", 1) == 1


def test_a_task_and_a_dispatch_hold_no_advisory_lock(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """Whose key any login could read in pg_locks, and take for the next attempt."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.plan()
    (task,) = stream.loop.tasks(stream.end)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with Session(stream.options, "x") as session:
        connection = session.open()
        with transaction(connection, timeout=TIMEOUT):
            receive.fence(connection, task)
            dispatch_log.lock(connection, "app:billing")

            assert place.sql(held) == [(0,)]


# ---------------------------------------------------------------- who shares


def test_a_stream_goes_on_under_another_login_of_its_role(
    place: Place, tenants: Tenants, login: Login, streams: Callable[..., Stream]
) -> None:
    """Each batch is received once, whoever runs its tasks or acknowledges it."""
    shop = tenants.tenant("Shop")
    colleague = login(shop.reader, shop.sender)
    large = secrets.token_bytes(1 << 20)  # its receipt is in pages
    for body in (b"first", large):
        place.sql(PUT.format(shop.queue), body)
    first = streams(shop.url, shop.queue)
    assert first.batch() == [b"first", large]

    second = streams(colleague, shop.queue, end=first.end)
    assert second.receive() == [b"first", large]
    place.sql(PUT.format(shop.queue), b"third")
    assert second.batch() == [b"third"]

    third = streams(shop.url, shop.queue, end=second.end)
    assert third.receive() == [b"third"]
    assert third.plan() == second.end
    assert place.sql(f'SELECT count(*) FROM "{place.state}".receipt') == [(0,)]
    assert place.sql(f'SELECT count(*), max(login) FROM "{place.state}".stream') == [
        (1, shop.login)
    ]


def test_a_sink_goes_on_under_another_login_of_its_role(
    place: Place, tenants: Tenants, login: Login
) -> None:
    """Each batch is sent once, whoever staged it or sends it."""
    shop = tenants.tenant("Shop")
    colleague = login(shop.reader, shop.sender)
    large = secrets.token_bytes(1 << 20)
    first = Writer(place, shop.url, shop.queue)
    second = Writer(place, colleague, shop.queue)

    assert first.send(b"first", 0) == 1
    assert second.send(b"again", 0) == 0
    staged = second.stage(large, 1)
    assert first.dispatch(staged) == 1
    assert second.dispatch(staged) == 0

    assert bodies(place, shop.queue) == [b"first", large]
    assert place.sql(f'SELECT login, batch FROM "{place.state}".dispatch_log') == [(shop.login, 1)]


def test_two_logins_of_a_role_make_one_row_for_a_new_sink(
    place: Place, tenants: Tenants, login: Login
) -> None:
    """At once: the second waits for the first, and finds its row."""
    shop = tenants.tenant("Shop")
    writers = [Writer(place, url, shop.queue) for url in (shop.url, login(shop.sender))]
    sessions = [Session(each.options, f"at once {at}") for at, each in enumerate(writers)]
    first, second = (session.open() for session in sessions)

    def enter() -> bool:
        with transaction(second, timeout=TIMEOUT):
            return dispatch_log.enter(second, "app:billing", 0)

    waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event = %s"
    with ThreadPoolExecutor(1) as pool:
        with transaction(first, timeout=TIMEOUT):
            assert dispatch_log.enter(first, "app:billing", 0)
            other = pool.submit(enter)
            until(lambda: place.sql(waits, "sqlqueue at once 1", "relation") == [(1,)])
        assert other.result() is False
    for session in sessions:
        session.close()

    assert place.sql(f'SELECT login FROM "{place.state}".dispatch_log') == [(shop.login,)]


def test_a_superusers_rows_are_not_shared(
    place: Place, tenants: Tenants, streams: Callable[..., Stream]
) -> None:
    """Who may do all counts as a member of every role."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    streams(place.url, shop.queue).batch()

    assert shop.sql(f'SELECT count(*) FROM "{place.state}".stream') == [(0,)]


def test_who_sees_all_rows_does_not_go_on_with_a_sink_of_another_of_its_kind(
    place: Place, tenants: Tenants, login: Login
) -> None:
    """It could not tell which rows to believe, and a batch might be sent twice."""
    shop = tenants.tenant("Shop")
    other = login()
    name = other.split("//")[1].split(":")[0]
    place.sql(f"ALTER ROLE {name} SUPERUSER")
    assert Writer(place, other, shop.queue).send(b"first", 0) == 1

    with pytest.raises(DispatchLogOfOther, match=f"sink app:billing belongs to login {name}"):
        Writer(place, place.url, shop.queue).send(b"again", 0)
    assert bodies(place, shop.queue) == [b"first"]


def test_an_operator_sees_all_receipts_and_returns_them(
    place: Place, tenants: Tenants, login: Login, streams: Callable[..., Stream]
) -> None:
    """Of every login, by the name of the stream and of the login that made it."""
    shop = tenants.tenant("Shop")
    place.sql(PUT.format(shop.queue), b"order")
    stream = streams(shop.url, shop.queue)
    stream.batch()
    name = f"{shop.login}_o"
    text = script(
        endpoint(place.url, shop.queue),
        state=place.state,
        roles=Roles(reader=shop.reader, sender=shop.sender, operator=name),
    )
    place.connection.execute(text.encode())
    try:
        options = SourceOptions.parse(
            {"url": login(name), "queue": shop.queue, "stateSchema": place.state}
        )
        with Session(options, "operator") as session:
            connection = session.open()
            (found,) = inspect.receipts(connection)
            with transaction(connection, timeout=TIMEOUT):
                receipts.return_(connection, *found.key, options.address, login=found.login)
    finally:
        place.sql(f"DROP OWNED BY {name} CASCADE")
        place.sql(f"DROP ROLE {name}")

    assert found.login == shop.login
    assert bodies(place, shop.queue) == [b"order"]


def test_one_login_for_everything_works_as_before(
    place: Place, login: Login, streams: Callable[..., Stream]
) -> None:
    """It installs, receives and sends; nothing is kept apart from the owner of the tables."""
    url = login(database="CREATE")
    name = url.split("//")[1].split(":")[0]
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {name}')
    queue = f'"{place.schema}".mine'
    options = SourceOptions.parse({"url": url, "queue": queue, "stateSchema": place.state})
    with Session(options, "install", state=False) as session:
        for _ in range(2):
            schema.install(session.open(), timeout=TIMEOUT)
            schema.create_queue(session.open(), options.address, timeout=TIMEOUT)

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
    with psycopg.connect(login(database="CREATE"), autocommit=True) as connection:
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


def installed(place: Place) -> None:
    """Install, as a superuser."""
    options = SourceOptions.parse({"url": place.url, "queue": "q", "stateSchema": place.state})
    with Session(options, "install", state=False) as session:
        schema.install(session.open(), timeout=TIMEOUT)


def test_install_runs_no_code_of_who_made_the_schema_before(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """It says whose the schema and the tables are."""
    trap(place, squatter)

    with pytest.raises(StateOfOther) as caught:
        installed(place)

    assert f"belongs to {squatter.info.user}" in str(caught.value)
    assert "has the trigger trap" in str(caught.value)
    assert not superuser(place, squatter)


def test_a_printed_script_runs_no_code_of_who_made_the_schema_before(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """It ends, and nothing of it was done."""
    trap(place, squatter)
    text = script(endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state)

    with pytest.raises(psycopg.errors.RaiseException, match="nothing is installed: "):
        place.connection.execute(text.encode())
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
        "DROP TABLE {schema}.version; CREATE VIEW {schema}.version AS SELECT 3 AS version",
    ],
)
def test_install_refuses_tables_that_run_code(place: Place, text: str) -> None:
    """Its own, too: someone with a right on them may have put it there."""
    installed(place)
    named = {"schema": f'"{place.state}"', "login": "nobody"}
    place.connection.execute(text.format(**named).encode())

    with pytest.raises(StateOfOther):
        installed(place)


def test_a_schema_of_another_without_tables_is_refused_as_well(
    place: Place, squatter: psycopg.Connection[Any]
) -> None:
    """Its owner could drop and replace what is made in it."""
    with pytest.raises(StateOfOther, match=f"belongs to {squatter.info.user}"):
        installed(place)


def test_the_tables_of_a_script_belong_to_no_login(place: Place, login: Login) -> None:
    """With --installer; a role that a login is a member of is refused."""
    owner = f"{place.state}_owner"
    roles = Roles(
        reader=f"{place.state}_r",
        sender=f"{place.state}_s",
        installer=f"{place.state}_i",
        owner=owner,
    )
    text = script(
        endpoint(place.url, f'"{place.schema}"."Shop"'), state=place.state, roles=roles
    ).encode()
    try:
        for _ in range(2):
            place.connection.execute(text)
        owners = place.sql(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = %s", place.state
        )
        login(owner)

        assert owners == [(owner,)]
        with pytest.raises(psycopg.errors.RaiseException, match="has a login as a member"):
            place.connection.execute(text)
    finally:
        place.connection.rollback()
        for each in (roles.reader, roles.sender, roles.installer, owner):
            place.sql(f"DROP OWNED BY {each} CASCADE")
            place.sql(f"DROP ROLE {each}")
