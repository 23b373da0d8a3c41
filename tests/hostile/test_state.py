"""State tables that the logins of a team share, and those of two teams, which share nothing."""

from __future__ import annotations

import json
import logging
import re
import secrets
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cli.commands import without_psql
from cli.database import own_database
from typer.testing import CliRunner

from sqlq_spark import errors
from sqlq_spark.admin.script import endpoint, write_script
from sqlq_spark.cli import main
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.receipts import read_fence
from sqlq_spark.send.dispatch import lock_exclusive
from sqlq_spark.wire.rows import SparkBatch

from .conftest import make_login
from .streams import PUT, TIMEOUT, Stream, Writer, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

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


@contextmanager
def open_transactions(stream: Stream) -> Iterator[None]:
    """Hold what a task and a dispatch hold before they commit."""
    stream.plan()
    (task,) = stream.loop.tasks(stream.end)
    with StateSession(stream.options, "holds") as session:
        holder = session.open()
        with transaction(holder, timeout=TIMEOUT):
            stream_id, *_ = task.key
            read_fence(holder, stream_id, SparkBatch(), holder.printed(task.queue))
            lock_exclusive(holder, Writer.sink)
            yield


def plan(*queues: str, **more: object) -> str:
    """A plan with a task for each queue."""
    part = {"messages": 9, "share": 9, "bytes": 9, "bounds": [0, 9], "partitions": [0]}
    return json.dumps([{"queue": queue, **part, **more} for queue in queues])


# ---------------------------------------------------------------- plans, whoever wrote them


def test_a_stored_plan_receives_only_from_queues_that_the_options_name(
    place: Place, shop: Tenant, stream: Stream
) -> None:
    """A task of another queue receives nothing, also when its batch is done again."""
    payroll = f'"{place.schema}"."payroll"'
    place.sql(f"CREATE TABLE {payroll} (LIKE {shop.queue} INCLUDING ALL)")
    place.sql(PUT.format(payroll), b"salaries")
    place.sql(f"GRANT SELECT, DELETE, UPDATE ON {payroll} TO {shop.login}")
    assert stream.batch() == [b"order"]

    wrong = plan(payroll, shop.queue)
    place.sql(f'UPDATE "{place.state}".stream SET stored_plan = %s, plan_batch = 2', wrong)

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
        place.sql(f'UPDATE "{place.state}".stream SET stored_plan = %s, plan_batch = 2', wrong)

        with pytest.raises(errors.BadPlan, match=f"the plan of batch 2 of stream {stream.name}"):
            stream.plan()


def test_a_dispatch_log_that_is_ahead_is_an_error(place: Place, shop: Tenant) -> None:
    """A new batch is not skipped as sent before. A replay of the last one still is."""
    writer = Writer(place, shop.url, shop.queue)
    writer.send(b"first", 4)
    assert writer.send(b"replay", 3) == 0

    place.sql(f'UPDATE "{place.state}".dispatch_log SET sink_batch = 9000000000')

    with pytest.raises(errors.DispatchLogAhead, match=r"app:billing is at batch 5, .* 9000000000"):
        writer.send(b"second", 5)
    assert bodies(place, shop.queue) == [b"order", b"first"]


def test_no_lock_that_a_login_without_rights_can_take_delays_anyone(
    place: Place, shop: Tenant, login: Login, stream: Stream
) -> None:
    """A task and a dispatch take no advisory lock, whose key any login could read in pg_locks."""
    writer = Writer(place, shop.url, shop.queue)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with open_transactions(stream):
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
    assert Stream(place, shop.url, shop.queue, end=second.end).receive() == [b"third"]

    own, other = (Writer(place, url, shop.queue) for url in (shop.url, colleague))
    assert own.send(b"first", 0) == 1
    with caplog.at_level(logging.INFO, "sqlq_spark"):
        assert other.send(b"again", 0) == 0
    assert f"batch 0: was sent before; login {shop.login} began this sink" in caplog.text
    staged = other.stage(large, 1)
    assert own.dispatch(staged) == 1
    assert other.dispatch(staged) == 0
    assert bodies(place, shop.queue) == [b"first", large]


def test_a_session_of_another_login_is_not_ended_but_named(
    place: Place, shop: Tenant, login: Login
) -> None:
    """The server hides what that session does. The error has the statement that ends it."""
    stream = Stream(place, shop.url, shop.queue, queryTimeout="1s")
    stream.batch()
    colleague, name = login(shop.reader), f"sqlqueue {stream.name} 1/0"
    with psycopg.connect(colleague, application_name=name) as other:
        other.execute(f'SELECT FROM "{place.state}".stream FOR SHARE'.encode())
        idle = psycopg.connect(colleague, application_name=name)  # holds nothing
        with idle, pytest.raises(errors.TimedOut) as caught:
            stream.plan()

        assert str(caught.value).count("of login") == 1
        assert (
            f"session {other.info.backend_pid} of login {other.info.user} holds rows of the same "
            "stream or sink: if its process hangs, a DBA can end it with "
            f"SELECT pg_terminate_backend({other.info.backend_pid})"
        ) in str(caught.value)
        assert other.execute("SELECT 1").fetchone() == (1,)


# ---------------------------------------------------------------- install and script


TRAP = """
CREATE FUNCTION {schema}.take() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN EXECUTE 'ALTER ROLE {login} SUPERUSER'; RETURN new; END$$;
CREATE TRIGGER trap BEFORE INSERT ON {schema}.version EXECUTE FUNCTION {schema}.take()
"""
OWNED = "{schema}.version OWNER TO {login}"


def install(place: Place, url: str = "", *, named: bool = True) -> None:
    """Install as a superuser or another login. Without `named` no option names the schema."""
    given = {"url": url or place.superuser, "queue": "q", "stateSchema": place.state}
    options = SourceOptions.parse(given)
    if not named:
        options = replace(options, given=options.given - {"stateschema"})
    with Session(options, "install") as session:
        schema.install(session.open())


def refused(place: Place, match: str) -> None:
    """Make sure that neither an install nor the printed script does anything."""
    with pytest.raises(errors.StateOfOther, match=match):
        install(place)
    with pytest.raises(psycopg.errors.RaiseException, match="nothing is installed in schema"):
        place.sql(
            write_script(endpoint(place.superuser, f'"{place.schema}"."Shop"'), state=place.state)
        )
    place.connection.rollback()
    assert place.sql("SELECT to_regclass(%s)", f'"{place.schema}"."Shop"') == [(None,)]


def test_nothing_is_installed_in_a_schema_of_another_and_no_code_of_its_owner_runs(
    place: Place, login: Login
) -> None:
    """An empty schema is refused too. The error names the schema's owner and the trigger."""
    ((database,),) = place.sql("SELECT quote_ident(current_database())")
    with psycopg.connect(login(f"CREATE ON DATABASE {database}"), autocommit=True) as squatter:
        name = squatter.info.user
        squatter.execute(f"CREATE SCHEMA {place.state}".encode())
        refused(place, f"belongs to {name}")
        text = "CREATE TABLE {schema}.version (version integer PRIMARY KEY);" + TRAP
        squatter.execute(text.format(schema=place.state, login=name).encode())

    refused(place, f"(?s)belongs to {name}.*trigger trap")

    assert place.sql("SELECT rolsuper FROM pg_roles WHERE rolname = %s", name) == [(False,)]


@pytest.mark.parametrize(
    "text",
    [
        f"{TRAP}; ALTER FUNCTION {{schema}}.take() OWNER TO {{login}}",
        f"ALTER TABLE {OWNED}",
        "ALTER SCHEMA {schema} OWNER TO {login}",
        "CREATE VIEW {schema}.monitor AS SELECT '{login}'",
    ],
)
def test_install_and_script_refuse_tables_that_run_code(
    place: Place, login: Login, text: str
) -> None:
    """A view elsewhere, a sequence, a key and a plain trigger of a superuser are allowed."""
    install(place)
    place.sql(f"""
        CREATE VIEW {place.schema}.monitor AS SELECT stream FROM {place.state}.stream;
        CREATE TABLE {place.schema}.known (v int REFERENCES {place.state}.version);
        CREATE SEQUENCE {place.state}.numbers;
        CREATE FUNCTION {place.schema}.seen() RETURNS trigger LANGUAGE plpgsql
            AS $$BEGIN RETURN NEW; END$$;
        CREATE TRIGGER seen BEFORE INSERT ON {place.state}.trail
            FOR EACH ROW EXECUTE FUNCTION {place.schema}.seen()
    """)
    install(place)
    place.sql(
        write_script(endpoint(place.superuser, f'"{place.schema}"."Sound"'), state=place.state)
    )
    name = psycopg.conninfo.conninfo_to_dict(login())["user"]
    place.sql(text.format(schema=place.state, login=name))

    refused(place, "are not used")


def test_an_install_beside_tables_of_another_login_trusts_the_owner_of_the_database(
    place: Place, login: Login
) -> None:
    """It raises for any other owner, unless an option names the schema."""
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

    with pytest.raises(errors.StateOfOther, match=f"the schema belongs to {owner}"):
        install(place, reader, named=False)
    install(place, reader)
    place.sql(f"ALTER DATABASE {database} OWNER TO {owner}")
    try:
        install(place, reader, named=False)
    finally:
        place.sql(f"ALTER DATABASE {database} OWNER TO {before}")


# ---------------------------------------------------------------- two teams, each with --domain

TABLES = """
SELECT c.oid::regclass::text
  FROM pg_class AS c
 WHERE c.relnamespace = %s::text::regnamespace AND c.relkind = 'r'
 ORDER BY c.relname
"""
MODES = ("ACCESS EXCLUSIVE", "ROW EXCLUSIVE", "ACCESS SHARE")
# What a login may try on another team's table. The statements need different rights.
ATTACKS = (
    "SELECT count(*) FROM {0}",
    "DELETE FROM {0}",
    "INSERT INTO {0} DEFAULT VALUES",
    "TRUNCATE {0}",
    "LOCK TABLE {0} IN ACCESS SHARE MODE",
    "ALTER TABLE {0} ADD COLUMN x int",
    "GRANT SELECT ON {0} TO PUBLIC",
)


@dataclass(frozen=True)
class Team:
    """A team of one login, with a queue that belongs to the superuser, as after a DBA's script."""

    name: str
    place: Place  # with its state schema
    url: str  # logs in as the team's login
    queue: str
    connection: psycopg.Connection[Any]  # a session of the team's login

    @property
    def state(self) -> str:
        """Its state schema."""
        return self.place.state

    def stream(self, **raw: Any) -> Stream:
        """Begin a stream of its queue, or go on with one."""
        return Stream(self.place, self.url, self.queue, errorQueue=f"{self.name}_error", **raw)

    def writer(self, **raw: str) -> Writer:
        """Give its writer into its queue."""
        return Writer(self.place, self.url, self.queue, **raw)

    def refuses(self, text: str) -> None:
        """Make sure that its login may not run a statement."""
        refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
        with refused, self.connection.transaction():
            self.connection.execute(text.encode())


@pytest.fixture
def teams(server: str) -> Iterator[tuple[Team, Team]]:
    """Give two teams in a database of their own, each with a message."""
    with own_database(server) as made, ExitStack() as stack:
        found = []
        for letter in "ab":
            name = f"{made.connection.info.dbname}_{letter}"
            made.sql(printed(name))
            login = make_login(made, name, f"{name}_reader", f"{name}_sender")
            connection = stack.enter_context(psycopg.connect(login, autocommit=True))
            place, queue = replace(made, state=f"sqlqueue_{name}"), f'"public"."{name}"'
            found.append(Team(name, place, login, queue, connection))
            made.sql(PUT.format(queue), b"order")
        yield found[0], found[1]


def printed(name: str, *more: str) -> str:
    """Print the script for a team's queue, which has the team's name."""
    words = ("script", name, "--error", f"{name}_error", "--delayed", "--domain", name, *more)
    result = CliRunner().invoke(main.app, words)
    assert result.exit_code == 0, result.output
    return without_psql(result.stdout)


def busy(team: Team) -> Stream:
    """Give a team rows in its state tables: a receipt, a sink, and a staged chunk."""
    stream = team.stream()
    assert stream.batch() == [b"order"]
    assert team.writer().send(b"sent", 1) == 1
    team.writer().stage(b"staged", 2)
    return stream


def rows(team: Team) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a team's tables, as the superuser sees them."""
    names = [name for (name,) in team.place.sql(TABLES, team.state)]
    assert len(names) > 5
    return {name: team.place.sql(f"SELECT * FROM {name}") for name in (*names, team.queue)}


def test_a_team_can_do_nothing_with_the_tables_of_another(teams: tuple[Team, Team]) -> None:
    """The server refuses every statement on the state tables, the schema, and the roles."""
    a, b = teams
    busy(b)
    before = rows(b)
    a.place.sql("ANALYZE")

    for table in before:
        for attack in ATTACKS:
            a.refuses(attack.format(table))
    a.refuses(f"CREATE TABLE {b.state}.extra (x int)")
    a.refuses(f"CREATE FUNCTION {b.state}.extra() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    a.refuses(f"DROP SCHEMA {b.state} CASCADE")
    for role in ("reader", "sender"):
        a.refuses(f"SET ROLE {b.name}_{role}")
        a.refuses(f"GRANT {b.name}_{role} TO {a.name}")
    seen = "SELECT * FROM pg_stats WHERE schemaname = %s OR tablename = %s"
    assert a.connection.execute(seen, [b.state, b.name]).fetchall() == []
    assert rows(b) == before


def test_no_option_or_command_leads_a_team_to_the_state_of_another(
    teams: tuple[Team, Team],
) -> None:
    """Nothing changes. An error has no GRANT, and names the roles of the team that one may ask."""
    a, b = teams
    theirs = busy(b)
    before = rows(b)
    receipt, state = f'"{b.state}"."receipt"', {"stateSchema": b.state}

    for work in (
        a.stream(**state).plan,
        a.stream(**state, end=theirs.end).receive,
        lambda: a.writer(**state).send(b"x", 2),
        Stream(a.place, a.url, receipt).plan,
        lambda: Writer(a.place, a.url, receipt).send(b"x", 2),
    ):
        with pytest.raises(
            errors.StateRightMissing, match=rf"\({b.name}_reader, {b.name}_sender\)"
        ) as no:
            work()
        assert "GRANT" not in str(no.value)
    with pytest.raises(errors.NotAQueue):
        Stream(a.place, a.url, a.queue, errorQueue=receipt).plan()
    with pytest.raises(errors.StreamNotFound):
        a.stream(end=theirs.end).receive()
    with pytest.raises(errors.RightMissing, match=f'GRANT .* ON "public"."{b.name}"'):
        Stream(a.place, a.url, b.queue).plan()
    result = CliRunner().invoke(main.app, ["doctor", "--json"], env={"SQLQUEUE_URL": a.url})
    found = map(json.loads, result.stdout.splitlines())
    unread = [each["found"].split()[2] for each in found if each["name"] == "state_unread"]
    assert unread == [b.state]
    stream = f"--stream {theirs.name} --yes"
    for line in (
        *("receipts list", f"receipts return {stream}", f"receipts drop {stream}", "trail"),
        *("install", "doctor", f"doctor {receipt}"),
    ):
        words = [*line.split(), "--state-schema", b.state]
        result = CliRunner().invoke(main.app, words, env={"SQLQUEUE_URL": a.url})
        said = f"{result.output}{result.exception}"
        assert (result.exit_code, b.state in said) == (1, True), line
        assert not re.search(rf"GRANT.*{b.state}", said), line
    assert rows(b) == before


def uncommitted(a: Team) -> AbstractContextManager[None]:
    """Hold what a team's task and dispatch hold."""
    return open_transactions(a.stream())


@contextmanager
def strongest_locks(a: Team) -> Iterator[None]:
    """Hold the strongest lock that a team's login can take on each table."""
    names = [name for (name,) in a.place.sql(TABLES, a.state)]
    held: list[str] = []
    with psycopg.connect(a.url) as session, session.transaction():
        for name, mode in product((*names, a.queue), MODES):
            with suppress(psycopg.errors.InsufficientPrivilege), session.transaction():
                session.execute(f"LOCK TABLE {name} IN {mode} MODE".encode())
                held.append(mode)
        assert held.count("ACCESS EXCLUSIVE") > 2
        yield


@pytest.mark.parametrize("hold", [uncommitted, strongest_locks])
def test_no_lock_of_a_team_makes_another_wait(
    teams: tuple[Team, Team], hold: Callable[[Team], AbstractContextManager[None]]
) -> None:
    """Streams and writes of the other team go on, although both teams use one txnAppId."""
    a, b = teams
    stream = b.stream()

    with hold(a):
        assert stream.batch() == [b"order"]
        b.place.sql(PUT.format(b.queue), b"second")
        assert stream.batch() == [b"second"]
        assert b.writer().send(b"sent", 7) == 1

    assert bodies(b.place, b.queue) == [b"sent"]
