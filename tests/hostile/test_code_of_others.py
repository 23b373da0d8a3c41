"""
Code that another login made in the database does not run, unless someone names it.

A login that may create in `public` defines what our statements call, for better matching types.
Each of these functions raises, so a statement that finds one by its search path fails. `mallory`
owns tables with code of its own.
"""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cli.calls import CALLS, filled, prepare
from cli.commands import without_psql
from cli.conftest import run
from cli.database import own_database
from proxy import relayed
from recorded_connection import RecordedConnection

from sqlq_spark.admin import doctor, stats
from sqlq_spark.database import transaction
from sqlq_spark.database.postgresql.rows import STATEMENTS
from sqlq_spark.database.sessions import Session
from sqlq_spark.datasource.write import look_ahead
from sqlq_spark.errors import StateOfOther, TableRefused
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.send.subscriptions import (
    Subscription,
    check_subscription_table,
    list_subscriptions,
    unsubscribe,
)
from sqlq_spark.wire.postgresql import POSTGRESQL

from .conftest import make_login
from .streams import Stream, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.commands import Run
    from conftest import Place

    from .conftest import Tenant, Tenants

__all__ = ["run"]  # the fixture


@pytest.fixture
def place(server: str) -> Iterator[Place]:
    """Give a place in a database of its own, for what is put into its schema `public`."""
    with own_database(server, "shop") as made:
        yield made


# ---------------------------------------------------------------- functions and operators

TYPES = [
    *("smallint", "integer", "bigint", "double precision", "numeric", "text", "varchar", "bpchar"),
    *("name", '"char"', "bytea", "uuid", "boolean", "timestamp", "timestamptz", "interval", "json"),
    *("oid", "regclass", "regproc", "bigint[]", "integer[]", "text[]", "name[]", "bit"),
]
PAIRED = [
    *("integer", "bigint", "double precision", "text", "varchar", "name", '"char"', "bytea"),
    *("uuid", "boolean", "timestamp", "timestamptz", "interval", "regproc", "bigint[]"),
]
POOLS = {0: TYPES, 1: TYPES, 2: PAIRED, 3: ["integer", "bigint", "text", "boolean"]}
WORDS = re.compile(r"\b([a-z_0-9]+)\s*\(")
SIGNS = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
OPERATOR = "CREATE OPERATOR public.{} (LEFTARG = {}, RIGHTARG = {}, FUNCTION = {})"
RAN = "a function of another login ran"
# what the driver asks the catalogue while it connects
OF_DRIVER = frozenset({"version", "<>", "!="})
DRIVERS = "SELECT version() FROM pg_type WHERE typreceive != 0 OR typreceive::text != '' = '' "


def texts() -> str:
    """All statements, without what is quoted in them."""
    known = STATEMENTS
    return "\n".join([DRIVERS, *(re.sub(r"'[^']*'", "''", text) for text in known.values())])


@pytest.fixture
def ready(place: Place, run: Run) -> dict[str, str]:
    """Make messages of each kind, before anything is defined in `public`."""
    words = prepare(place)
    late = '{"body": "3", "timeToBeReceived": "00:00:00"}'
    text = f'{{"body": "1"}}\n{{"body": "2", "delay": "00:00:00"}}\n{late}'
    assert run("send", words["QUEUE"], stdin=text).code == 0
    return words


@pytest.fixture
def intruder(place: Place) -> Iterator[psycopg.Connection[Any]]:
    """Give the session of a login that may create in `public`, as every one could before 15."""
    name = f"{place.connection.info.dbname}_mallory"
    url = make_login(place, name, "CREATE ON SCHEMA public")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def trap(intruder: psycopg.Connection[Any], *, without: frozenset[str] = frozenset()) -> int:
    """Define the functions and operators of our statements for many types. Return how many."""
    called = sorted({*WORDS.findall(texts())} - without)
    arities = intruder.execute(
        "SELECT DISTINCT proname, pronargs - generate_series(0, pronargdefaults) "
        "FROM pg_catalog.pg_proc WHERE proname = ANY (%s)",
        [called],
    ).fetchall()
    body = f"LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION '{RAN}: %', %L; END$$"
    made = []
    for name, arity in arities:
        for types in product(POOLS.get(arity, ()), repeat=arity):
            given = ", ".join(types)
            made.append(
                f'CREATE FUNCTION public."{name}"({given}) RETURNS {types[0] if types else "text"} '
                + body.replace("%L", f"'{name}'")
            )
    known = {sign for (sign,) in intruder.execute("SELECT oprname FROM pg_operator").fetchall()}
    for place, sign in enumerate(sorted({*SIGNS.findall(texts())} & known - without)):
        for left, right in product(PAIRED, repeat=2):
            result = left if sign in {"||", "+", "-", "*", "/"} else "boolean"
            function = f"public.sign_{place}"
            made += [
                f"CREATE FUNCTION {function}({left}, {right}) RETURNS {result} "
                + body.replace("%L", f"'{sign}'"),
                OPERATOR.format(sign, left, right, function),
            ]
    with intruder.transaction():
        intruder.execute(";\n".join(made).encode())
    return len(made)


def streamed(place: Place, url: str) -> int:
    """Receive as a stream with all its options. Return how many messages came."""
    queue, errors, start, got = '"shop"."Shop.Orders"', '"shop"."error"', INITIAL, 0
    with closing(Stream(place, url, queue, errorQueue=errors, delayedDelivery="true")) as stream:
        while stream.plan() != start:
            start = stream.end
            bodies = stream.receive()
            assert stream.receive() == bodies  # the second time the receipt is handed out
            got += len(bodies)
    return got


def sent(place: Place, url: str) -> int:
    """Send a batch exactly once. Return how many messages were dispatched."""
    routing = {"subscriptionTable": '"shop"."Subscriptions"'}
    return Writer(place, url, '"shop"."Shop.Orders"', **routing).send(b"x", 0, delay="00:00:01")


def test_no_function_or_operator_of_another_login_runs(
    place: Place, ready: dict[str, str], intruder: psycopg.Connection[Any], run: Run
) -> None:
    """
    A superuser runs all commands, a stream and a sink, and each begins a session.

    None of them runs the planted code.
    """
    assert trap(intruder) > 10_000
    with pytest.raises(psycopg.errors.RaiseException, match=RAN):
        place.sql("SELECT cardinality(ARRAY[1::bigint])")  # they would run

    assert (streamed(place, place.superuser), sent(place, place.superuser)) == (3, 1)
    for name, call in CALLS.items():
        ended = run(*name.split(), *filled(call, ready), "--json")
        assert ended.code in {0, 1}, (name, ended)
        assert RAN not in str(ended), name


def test_behind_a_pooler_that_takes_no_settings_of_a_session_none_runs(
    place: Place, ready: dict[str, str], intruder: psycopg.Connection[Any]
) -> None:
    """Each transaction sets the search path. What the driver asks as it connects is not covered."""
    assert ready
    trap(intruder, without=OF_DRIVER)

    with relayed(place.superuser, options=False) as (url, relay):
        assert (streamed(place, url), sent(place, url)) == (3, 1)
    assert relay.refused == 1


def test_the_script_of_a_dba_runs_none_either(
    place: Place, intruder: psycopg.Connection[Any], run: Run
) -> None:
    """A superuser runs the script, so a function of another login would get all rights."""
    name = place.connection.info.dbname
    roles = [
        word
        for each in ("reader", "sender", "operator")
        for word in (f"--{each}", f"{name}_{each}")
    ]
    words = (
        "--error",
        '"shop"."error"',
        "--body-string",
        "--delayed",
        "--state-schema",
        "sqlqueue",
    )
    text = without_psql(run("script", '"shop"."Shop.Orders"', *words, *roles).out)
    trap(intruder)

    for _ in range(2):
        place.connection.execute(text.encode())

    first = next(line for line in text.splitlines() if not line.startswith("--"))
    assert "SET LOCAL search_path = pg_catalog, pg_temp;" in first
    assert len(place.sql("SELECT version FROM sqlqueue.version")) == 1


# ---------------------------------------------------------------- tables

SPY = """
CREATE TABLE {0}.loot (who text);
GRANT USAGE ON SCHEMA {0} TO PUBLIC;
GRANT INSERT ON {0}.loot TO PUBLIC;
CREATE FUNCTION {0}.steal() RETURNS boolean LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO {0}.loot VALUES (current_user); RETURN true; END$$
"""
QUEUE = (
    "CREATE TABLE {0}.{1} (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, "
    "body bytea, seq serial UNIQUE)"
)
TRAP = """
CREATE FUNCTION {0}.code() RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM {0}.steal(); RETURN 1; END$$;
INSERT INTO {0}.trap (id, headers) VALUES (gen_random_uuid(), '{{}}');
CREATE INDEX ON {0}.trap (({0}.code()));
TRUNCATE {0}.loot; GRANT EXECUTE ON FUNCTION {0}.code() TO PUBLIC
"""
DELAYED_VIEW = (
    """CREATE VIEW {0}."good.Delayed" AS SELECT '{{}}'::text AS headers, NULL::bytea AS body, """
    "now() AS due WHERE {1}.steal()"
)


@pytest.fixture
def mallory(tenant: Tenants) -> Tenant:
    """Give an attacker with a schema of its own, and code there."""
    made = tenant("Mallory")
    made.sql(SPY.format(made.login))
    return made


def add_stream(reader: Tenant, place: Place, queue: str) -> None:
    """Add a row of a stream, as any reader may."""
    columns = f'"{place.state}".stream (stream, queue, driver)'
    reader.sql(f"INSERT INTO {columns} VALUES (%s, %s, 'd')", queue, queue)


def loot(tenant: Tenant) -> list[str]:
    """Return the logins that ran the attacker's code."""
    return [who for (who,) in tenant.sql(f"SELECT who FROM {tenant.login}.loot")]


def test_tables_of_others_are_listed_and_not_read(run: Run, place: Place, mallory: Tenant) -> None:
    """Reports name the owner and the setting. With `--trust` the tables are read."""
    login = mallory.login
    for name in ("trap", "sound"):
        mallory.sql(QUEUE.format(login, name))
    mallory.sql(TRAP.format(login))
    add_stream(mallory, place, f'"{login}"."trap"')
    add_stream(mallory, place, '"a')  # no address

    (look,) = run("stats", "--json").objects
    run("report", "--json")
    doctor = run("doctor", "--json").objects

    assert loot(mallory) == []
    for name in ("trap", "sound"):
        (its,) = [each for each in look["queues"] if each["queue"] == f'"{login}"."{name}"']
        assert (its["read"], its["state"]) == (False, "not read")
    (reason,) = [each["found"] for each in look["problems"] if each["where"].endswith('"trap"')]
    assert f"belongs to {login}" in reason
    assert f"set trustedOwners to {login}" in reason
    reasons = {each["where"]: (each["name"], each["found"]) for each in doctor}
    assert reasons['"a'][0] == "no_address"
    name, found = reasons[f'"{login}"."trap"']
    assert (name, f"set trustedOwners to {login}" in found) == ("not_read", True)
    for words in (["--trust", login], [f'"{login}"."trap"', "--trust", login]):
        run("stats", *words)
        assert loot(mallory) != []
        mallory.sql(f"TRUNCATE {login}.loot")


class Counting(RecordedConnection):
    """Counts statements."""

    statements = 0

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run it."""
        del statement
        object.__setattr__(self, "statements", self.statements + 1)
        return call()


def test_a_look_costs_the_same_with_many_tables_of_others(place: Place, mallory: Tenant) -> None:
    """No statement is run for one of them."""
    options = DatabaseOptions.parse({"url": place.url, "stateSchema": place.state})
    counts = []
    with Session(options, "stats") as session:
        for some in ("a", "b"):
            for each in range(9):
                mallory.sql(QUEUE.format(mallory.login, f"{some}{each}"))
            counted = Counting(session.open())
            look = stats.take_look(counted, (), options)
            assert len([each for each in look.queues if each.state == "not read"]) >= 9
            counts.append(counted.statements)

    assert counts[0] == counts[1]


@pytest.mark.parametrize("command", ["stats", "report", "retire"])
def test_a_view_beside_a_queue_is_not_its_table_of_delayed_messages(
    run: Run, place: Place, mallory: Tenant, command: str
) -> None:
    """Any login that may create there can give a view that name. A named queue is still read."""
    queue = f'"{place.schema}"."good"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"good"'))
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {mallory.login}')
    view = DELAYED_VIEW.format(f'"{place.schema}"', mallory.login)
    mallory.sql(view)
    words = {"stats": ["--json"], "report": ["--json"]}.get(
        command, ["--yes", "--discard-messages"]
    )

    ended = run(command, queue, *words)

    assert loot(mallory) == []
    if command == "retire":
        assert (ended.code, "good.Delayed" in str(ended)) == (3, True)
        return
    (look,) = ended.objects
    (its,) = look["queues"]
    assert (its["read"], its["delayed"], its["state"]) == (True, None, "delayed not read")


def test_state_tables_of_an_untrusted_owner_are_not_read(
    run: Run, place: Place, mallory: Tenant
) -> None:
    """`doctor` and `retire` name their schema, and run none of its code."""
    queue = f'"{place.schema}"."gone"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"gone"'))
    make_state(mallory, mallory.login)

    found = run("doctor", "--json", own=False).objects
    (retired,) = run("retire", queue, "--yes", "--json", own=False).objects

    assert loot(mallory) == []
    (unread,) = [each["found"] for each in found if each["name"] == "state_unread"]
    assert f"the schema belongs to {mallory.login}" in unread
    assert f"set trustedOwners to {mallory.login}" in unread
    assert retired["dropped"] == [queue]
    assert retired["unread"] == [mallory.login]


def make_state(attacker: Tenant, state: str) -> None:
    """Let the attacker make views that look like state tables."""
    text = "CREATE VIEW {0}.{1} AS SELECT 3 AS version WHERE {2}.steal()"
    for table in ("version", "stream", "receipt", "receipt_page", "staging_page", "trail"):
        attacker.sql(text.format(state, table, attacker.login))
        attacker.sql(f"GRANT ALL ON {state}.{table} TO PUBLIC")
    attacker.sql(f"GRANT USAGE ON SCHEMA {state} TO PUBLIC")


def test_a_state_schema_under_the_default_name_is_no_trap(
    run: Run, place: Place, mallory: Tenant
) -> None:
    """A login that may create schemas made it first. No start of a session reads it."""
    place.sql("DROP SCHEMA IF EXISTS sqlqueue CASCADE")
    database = place.connection.info.dbname
    place.sql(f"GRANT CREATE ON DATABASE {database} TO {mallory.login}")
    mallory.sql("CREATE SCHEMA sqlqueue")
    make_state(mallory, "sqlqueue")
    queue = f'"{place.schema}"."mine"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"mine"'))
    place.sql(f"INSERT INTO {queue} (id, headers) VALUES (gen_random_uuid(), '{{}}')")
    given = {"url": place.superuser, "queue": queue}

    for work in (
        StreamDriver(SourceOptions.parse(given), lambda: 0.0, doctor.at_start).freeze,
        lambda: look_ahead(SinkOptions.parse(given)),
    ):
        with pytest.raises(StateOfOther, match=f"belongs to {mallory.login}"):
            work()
    for words in (
        *("stats", "doctor", "receipts list", "trail", "install"),
        *(f"purge {queue} --yes", f"stats {queue}"),
    ):
        ended = run(*words.split(), own=False)
        assert "version" not in str(ended.objects if "--json" in words else "")
    run("report", "--json", own=False)

    assert loot(mallory) == []
    assert place.sql(f"SELECT count(*) FROM {queue}") == [(0,)]


# what an owner can put in place of the transport's table, {0} is its schema and {1} the table
SUBSCRIPTIONS = {
    "view": "CREATE VIEW {1} AS SELECT 'q'::text AS queueaddress, 'e'::text AS endpoint, "
    "'Shop.Placed'::text AS topic WHERE {0}.steal(); GRANT ALL ON {1} TO PUBLIC",
    "policy": "CREATE TABLE {1} (queueaddress text, endpoint text, topic text);"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); ALTER TABLE {1} ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY p ON {1} USING ({0}.steal());"
    "GRANT SELECT, DELETE ON {1} TO PUBLIC",
    "none": "CREATE TABLE {1} (queueaddress varchar(200) NOT NULL, endpoint varchar(200) NOT NULL,"
    "topic varchar(200) NOT NULL, PRIMARY KEY (endpoint, topic));"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); GRANT SELECT, DELETE ON {1} TO PUBLIC",
}


def publish(place: Place, url: str, table: str) -> list[Subscription]:
    """Read the subscriptions as a publisher does."""
    given = {"url": url, "queue": "x", "stateSchema": place.state, "subscriptionTable": table}
    options = SinkOptions.parse(given)
    with Session(options, "test") as session, transaction(session.open(), timeout=30):
        return list_subscriptions(session.open(), options.subscription_address)


@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
def test_subscriptions_of_others_are_not_read(
    run: Run, place: Place, tenant: Tenants, mallory: Tenant, kind: str
) -> None:
    """A stream's start, a publisher and a command read the table only if an option names it."""
    shop, table = tenant("Shop"), f'"{place.schema}"."SubscriptionRouting"'
    add_stream(shop, place, shop.queue)
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {mallory.login}')
    mallory.sql(SUBSCRIPTIONS[kind].format(mallory.login, table))
    address = POSTGRESQL.parse_address(table)

    given = {"url": shop.url, "queue": shop.queue, "stateSchema": place.state}
    with Session(options := SourceOptions.parse(given), "test") as session:
        doctor.at_start(session.open(), options)
        for work in (
            partial(check_subscription_table, session.open(), address),
            partial(unsubscribe, session.open(), address, "Shop.Placed", "e"),
            partial(publish, place, place.superuser, table),
        ):
            with pytest.raises(TableRefused):
                work()
    named = [run("doctor", "--json", *more).objects for more in ([shop.queue], [])]

    assert loot(mallory) == []
    for found in named:
        (refused,) = [each for each in found if each["name"] == "subscribers_refused"]
        assert refused["where"] == table
    if kind == "none":
        assert publish(place, shop.url, table) == [Subscription("Shop.Placed", "e", "q")]
