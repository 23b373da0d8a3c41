"""
What another login made in the database, and nobody named: it does not run.

A login that may create in `public` defines what our statements call, for better matching types.
Each of these functions raises, so a statement that finds one by its search path fails. `mallory`
owns tables with code that writes into `loot` who ran it. Commands and streams find them.
"""

from __future__ import annotations

import re
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cli.calls import CALLS, filled, prepare
from cli.conftest import run
from cli.database import own_database
from proxy import relayed

from sqlq_spark.admin import checks
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.statements import Statements
from sqlq_spark.errors import SubscriptionsRefused
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.send.subscriptions import Subscription, check_table, list_subscriptions, unsubscribe
from sqlq_spark.wire.postgresql import POSTGRESQL

from .conftest import make_login
from .streams import Stream, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    known = Statements.load("postgresql")
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
    """Define the functions and operators of our statements for many types; how many."""
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
    """Receive as a stream with all that it may have; how many messages came."""
    queue, errors, start, got = '"shop"."Shop.Orders"', '"shop"."error"', INITIAL, 0
    with closing(Stream(place, url, queue, errorQueue=errors, delayedDelivery="true")) as stream:
        while stream.plan() != start:
            start = stream.end
            bodies = stream.receive()
            assert stream.receive() == bodies  # the second time the receipt is handed out
            got += len(bodies)
    return got


def sent(place: Place, url: str) -> int:
    """Send a batch exactly once; how many were dispatched."""
    routing = {"subscriptionTable": '"shop"."Subscriptions"'}
    return Writer(place, url, '"shop"."Shop.Orders"', **routing).send(b"x", 0, delay="00:00:01")


def test_no_function_or_operator_of_another_login_runs(
    place: Place, ready: dict[str, str], intruder: psycopg.Connection[Any], run: Run
) -> None:
    """In no command, in a stream, in a sink, nor while a session begins; a superuser uses them."""
    assert trap(intruder) > 10_000
    with pytest.raises(psycopg.errors.RaiseException, match=RAN):
        place.sql("SELECT cardinality(ARRAY[1::bigint])")  # they would run

    assert (streamed(place, place.url), sent(place, place.url)) == (3, 1)
    for name, call in CALLS.items():
        ended = run(*name.split(), *filled(call, ready), "--json")
        assert ended.code in {0, 1}, (name, ended)
        assert RAN not in str(ended), name


def test_behind_a_pooler_that_takes_no_settings_of_a_session_none_runs(
    place: Place, ready: dict[str, str], intruder: psycopg.Connection[Any]
) -> None:
    """Each transaction sets the path; what the driver asks as it connects is left to the login."""
    assert ready
    trap(intruder, without=OF_DRIVER)

    with relayed(place.url, options=False) as (url, relay):
        assert (streamed(place, url), sent(place, url)) == (3, 1)
    assert relay.refused == 1


def test_the_script_of_a_dba_runs_none_either(
    place: Place, intruder: psycopg.Connection[Any], run: Run
) -> None:
    """A superuser runs it, so a function of another login would make that one a superuser."""
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
    text = run("script", '"shop"."Shop.Orders"', *words, *roles).out
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
DELAYED = 'CREATE TABLE {0}."{1}.Delayed" (headers text NOT NULL, body bytea, due timestamptz)'
DELAYED_VIEW = (
    """CREATE VIEW {0}."good.Delayed" AS SELECT '{{}}'::text AS headers, NULL::bytea AS body, """
    "now() AS due WHERE {0}.steal()"
)


@pytest.fixture
def mallory(tenant: Tenants) -> Tenant:
    """Give an attacker with a schema of its own, and code there."""
    made = tenant("Mallory")
    made.sql(SPY.format(made.login))
    return made


@pytest.fixture
def good(mallory: Tenant, place: Place) -> str:
    """Give a queue of the attacker's without any code, which a stream reads."""
    mallory.sql(QUEUE.format(mallory.login, "good"))
    name = f'"{mallory.login}"."good"'
    add_stream(mallory, place, name)
    return name


def add_stream(reader: Tenant, place: Place, queue: str) -> None:
    """Add a row of a stream, as any reader may."""
    columns = f'"{place.state}".stream (stream, queue, driver)'
    reader.sql(f"INSERT INTO {columns} VALUES (%s, %s, 'd')", queue, queue)


def loot(tenant: Tenant) -> list[str]:
    """Who ran the attacker's code."""
    return [who for (who,) in tenant.sql(f"SELECT who FROM {tenant.login}.loot")]


def test_queues_and_delayed_messages_that_run_code_are_not_read(
    run: Run, place: Place, mallory: Tenant, good: str
) -> None:
    """stats, doctor and report say why; who names the queue reads it."""
    for name in ("trap", "sound"):
        mallory.sql(QUEUE.format(mallory.login, name))
    mallory.sql(TRAP.format(mallory.login))
    mallory.sql(DELAYED_VIEW.format(mallory.login))
    mallory.sql(DELAYED.format(mallory.login, "sound"))
    mallory.sql(f"INSERT INTO {mallory.login}.\"sound.Delayed\" VALUES ('{{}}', NULL, now())")

    (look,) = run("stats", "--json").objects
    run("report", "--json")
    add_stream(mallory, place, '"a')  # no address
    doctor = run("doctor", "--json").objects

    assert loot(mallory) == []
    names = {f'"{mallory.login}"."{name}"': name for name in ("good", "trap", "sound")}
    found = {names[each["queue"]]: each for each in look["queues"] if each["queue"] in names}
    assert {name: (its["read"], its["delayed"], its["state"]) for name, its in found.items()} == {
        "good": (True, None, "delayed not read"),
        "trap": (False, None, "not read"),
        "sound": (True, 1, "ok"),
    }
    assert any("a view" in each["found"] for each in look["problems"])
    reasons = {each["where"]: (each["name"], each["found"]) for each in doctor}
    assert reasons['"a'][0] == "no_address"
    name, reason = reasons[f'"{mallory.login}"."trap"']
    assert (name, "it could run code of its owner" in reason) == ("not_read", True)
    for name in (good, f'"{mallory.login}"."trap"'):
        run("stats", name)
        assert loot(mallory) != []
        mallory.sql(f"TRUNCATE {mallory.login}.loot")


def test_state_tables_of_an_untrusted_owner_are_not_read(
    run: Run, place: Place, mallory: Tenant
) -> None:
    """`doctor` and `retire` name their schema; it runs no code, and keeps no queue."""
    queue = f'"{place.schema}"."gone"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"gone"'))
    text = "CREATE VIEW {0}.{1} AS SELECT 1 AS version WHERE {0}.steal()"
    for table in ("version", "stream", "receipt", "receipt_page", "staging_page", "trail"):
        mallory.sql(text.format(mallory.login, table))
        mallory.sql(f"GRANT ALL ON {mallory.login}.{table} TO PUBLIC")

    found = run("doctor", "--json", own=False).objects
    (retired,) = run("retire", queue, "--yes", "--json", own=False).objects

    assert loot(mallory) == []
    (unread,) = [each["found"] for each in found if each["name"] == "state_unread"]
    assert mallory.login in unread
    assert f"belongs to {mallory.login}; " in unread
    assert retired["dropped"] == [queue]
    assert retired["unread"] == [mallory.login]


# what an owner can put in place of the transport's table, {0} is its schema and {1} the table
SUBSCRIPTIONS = {
    "view": "CREATE VIEW {1} AS SELECT 'q'::text AS queueaddress, 'e'::text AS endpoint, "
    "'Shop.Placed'::text AS topic WHERE {0}.steal(); GRANT ALL ON {1} TO PUBLIC",
    "policy": "CREATE TABLE {1} (queueaddress text, endpoint text, topic text);"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); ALTER TABLE {1} ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY p ON {1} USING ({0}.steal());"
    "GRANT SELECT (topic, endpoint, queueaddress) ON {1} TO PUBLIC",
    "none": "CREATE TABLE {1} (queueaddress varchar(200) NOT NULL, endpoint varchar(200) NOT NULL,"
    "topic varchar(200) NOT NULL, PRIMARY KEY (endpoint, topic));"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); GRANT SELECT ON {1} TO PUBLIC",
}


def publish(place: Place, url: str, table: str) -> list[Subscription]:
    """Read the subscriptions as a publisher does."""
    given = {"url": url, "queue": "x", "stateSchema": place.state, "subscriptionTable": table}
    options = SinkOptions.parse(given)
    with Session(options, "test") as session, transaction(session.open(), timeout=30):
        return list_subscriptions(session.open(), options.subscription_address)


@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
def test_subscriptions_that_run_code_are_not_read(
    run: Run, place: Place, tenant: Tenants, mallory: Tenant, kind: str
) -> None:
    """Neither by a stream's start, nor by a publisher or a command; those that run nothing are."""
    shop, table = tenant("Shop"), f'"{place.schema}"."SubscriptionRouting"'
    add_stream(shop, place, shop.queue)
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {mallory.login}')
    mallory.sql(SUBSCRIPTIONS[kind].format(mallory.login, table))
    if kind == "none":
        view = f'"{place.schema}".all_subscriptions'
        place.sql(f"CREATE VIEW {view} AS SELECT * FROM {table}; GRANT SELECT ON {view} TO PUBLIC")
        expected = [Subscription("Shop.Placed", "e", "q")]
        assert publish(place, shop.url, table) == publish(place, shop.url, view) == expected
        return
    shop.sql(f"SELECT topic, endpoint, queueaddress FROM {table}")
    assert loot(mallory) == [shop.login]
    place.sql(f"TRUNCATE {mallory.login}.loot")

    given = {"url": shop.url, "queue": shop.queue, "stateSchema": place.state}
    with Session(options := SourceOptions.parse(given), "test") as session:
        checks.at_start(session.open(), options)
        with pytest.raises(SubscriptionsRefused):
            publish(place, shop.url, table)
        with pytest.raises(SubscriptionsRefused):
            check_table(session.open(), POSTGRESQL.parse_address(table))
        with pytest.raises(SubscriptionsRefused):
            unsubscribe(session.open(), POSTGRESQL.parse_address(table), "Shop.Placed", "e")
    named = [run("doctor", "--json", *more).objects for more in ([shop.queue], [])]

    assert loot(mallory) == []
    if kind == "view":  # a superuser has no policies
        for found in named:
            (refused,) = [each for each in found if each["name"] == "subscribers_refused"]
            assert refused["where"] == table
