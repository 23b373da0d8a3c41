"""
A login that may create in `public` defines what our statements call, for better matching types.

Without a search path of its own a session finds these functions and operators there, and they run
with the rights of the login whose session it is. Each of them raises, so a statement that reaches
one fails.
"""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from bench.postgresql import uri
from cli.conftest import run
from cli.database import STREAM, received
from conftest import Place
from proxy import relayed

from sqlq_spark.admin.script import Roles, endpoint, script
from sqlq_spark.database.statements import Statements
from sqlq_spark.receive.offset import INITIAL

from .conftest import make_login
from .streams import Stream, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run"]  # the fixture

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
def place(server: str) -> Iterator[Place]:
    """Give a place in a database of its own, for what is put into its schema `public`."""
    name = f"hostile_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as dba:
        dba.execute(f"CREATE DATABASE {name}".encode())
        url = uri(server, name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA shop")
            yield Place(url=url, schema="shop", state="sqlqueue", connection=connection)
        # whole, and then its roles: to drop thousands of objects one by one takes too many locks
        dba.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        made = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)"
        for (role,) in dba.execute(made, [f"{name}_"]).fetchall():
            dba.execute(f"DROP ROLE {role}".encode())


@pytest.fixture
def login(place: Place) -> str:
    """Give the url of an ordinary login that owns what a stream and the commands use."""
    database = place.connection.info.dbname
    rights = ("ALL ON SCHEMA shop", f"CREATE ON DATABASE {database}")
    return make_login(place, f"{database}_stream", *rights)


@pytest.fixture
def mallory(place: Place) -> Iterator[psycopg.Connection[Any]]:
    """Give the session of a login that may create in `public`, as every one could before 15."""
    name = f"{place.connection.info.dbname}_mallory"
    url = make_login(place, name, "CREATE ON SCHEMA public")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def trap(mallory: psycopg.Connection[Any], *, without: frozenset[str] = frozenset()) -> int:
    """Define the functions and operators of our statements for many types; how many."""
    called = sorted({*WORDS.findall(texts())} - without)
    arities = mallory.execute(
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
    known = {sign for (sign,) in mallory.execute("SELECT oprname FROM pg_operator").fetchall()}
    for place, sign in enumerate(sorted({*SIGNS.findall(texts())} & known - without)):
        for left, right in product(PAIRED, repeat=2):
            result = left if sign in {"||", "+", "-", "*", "/"} else "boolean"
            function = f"public.sign_{place}"
            made += [
                f"CREATE FUNCTION {function}({left}, {right}) RETURNS {result} "
                + body.replace("%L", f"'{sign}'"),
                OPERATOR.format(sign, left, right, function),
            ]
    with mallory.transaction():
        mallory.execute(";\n".join(made).encode())
    return len(made)


def commands(place: Place) -> list[tuple[str, ...]]:
    """One call of each command that speaks to a database, in an order in which they succeed."""
    orders, error = '"shop"."Shop.Orders"', '"shop"."error"'
    state = ("--state-schema", place.state)
    table = ("--subscription-table", '"shop"."SubscriptionRouting"')
    return [
        ("create", '"shop"."Other"', "--delayed", "--body-string"),
        ("install", *state),
        ("stats", orders, *state),
        ("browse", orders),
        ("browse", orders, "--json"),
        ("doctor", orders, error, *state),
        ("move-due", orders),
        ("receipts", "list", *state),
        ("receipts", "return", "--stream", STREAM, "--yes", *state),
        ("retry", error, "--all", "--yes"),
        ("purge-expired", orders),
        ("subscribers", *table),
        ("subscribe", "Shop.Placed", "--endpoint", "Lake", "--queue", orders, *table),
        ("unsubscribe", "Shop.Placed", "--endpoint", "Lake", "--yes", *table),
        ("retire", '"shop"."Other"', "--yes", *table, *state),
        ("purge", orders, "--yes"),
    ]


def prepared(place: Place, url: str, run: Any) -> None:
    """Make queues with messages of each kind, before anything is defined in `public`."""
    orders, error, at = '"shop"."Shop.Orders"', '"shop"."error"', ("--url", url)
    assert run("install", "--state-schema", place.state, *at)[0] == 0
    assert run("create", orders, "--delayed", *at)[0] == 0
    assert run("create", error, *at)[0] == 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            'CREATE TABLE shop."SubscriptionRouting" (QueueAddress varchar(200) NOT NULL, Endpoint '
            "varchar(200) NOT NULL, Topic varchar(200) NOT NULL, PRIMARY KEY (Endpoint, Topic))"
        )
        for headers in ("{}", "poison", '{"NServiceBus.TimeSent":"2026-01-01 00:00:00:000000 Z"}'):
            put = f"INSERT INTO {orders} VALUES (gen_random_uuid(), NULL, %s, 'x')"
            connection.execute(put.encode(), [headers])
        put = f"INSERT INTO {orders} VALUES (gen_random_uuid(), now(), '{{}}', 'x')"
        connection.execute(put.encode())
        failed = '{"NServiceBus.FailedQ":"\\"shop\\".\\"Shop.Orders\\""}'
        put = f"INSERT INTO {error} VALUES (gen_random_uuid(), NULL, %s, 'x')"
        connection.execute(put.encode(), [failed])
    text = '{"body": "1"}\n{"body": "2", "delay": "00:00:00"}'
    assert run("send", orders, *at, stdin=text)[0] == 0


def streamed(place: Place, url: str) -> int:
    """Receive as a stream with all that it may have; how many messages came."""
    queue, errors, start, got = '"shop"."Shop.Orders"', '"shop"."error"', INITIAL, 0
    stream = Stream(place, url, queue, errorQueue=errors, delayedDelivery="true")
    with closing(stream):
        while stream.plan() != start:
            start = stream.end
            bodies = stream.receive()
            assert stream.receive() == bodies  # the second time the receipt is handed out
            got += len(bodies)
    return got


def sent(place: Place, url: str) -> int:
    """Send a batch exactly once; how many were dispatched."""
    routing = {"subscriptionTable": '"shop"."SubscriptionRouting"'}
    return Writer(place, url, '"shop"."Shop.Orders"', **routing).send(b"x", 0, delay="00:00:01")


@pytest.mark.parametrize("who", ["login", "superuser"])
def test_no_function_or_operator_of_another_login_runs(
    place: Place, login: str, mallory: psycopg.Connection[Any], run: Any, who: str
) -> None:
    """In no command, in a stream, in a sink, nor while a session begins."""
    url = login if who == "login" else place.url
    prepared(place, url, run)
    traps = trap(mallory)
    with pytest.raises(psycopg.errors.RaiseException, match=RAN):
        place.sql("SELECT cardinality(ARRAY[1::bigint])")  # they would run

    received_at_first = streamed(place, url)
    dispatched = sent(place, url)
    received(Place(url=url, schema="shop", state=place.state, connection=mallory), messages=1)
    ends = {words: run(*words, "--url", url) for words in commands(place)}

    assert traps > 10_000
    assert (received_at_first, dispatched) == (4, 1)
    assert {words: end for words, end in ends.items() if end[0] not in {0, 1, 4}} == {}
    assert RAN not in str(ends)


def test_behind_a_pooler_that_takes_no_settings_of_a_session_none_runs(
    place: Place, login: str, mallory: psycopg.Connection[Any], run: Any
) -> None:
    """
    Each transaction sets the path.

    What the driver asks while it connects is left to the login's own path, see docs/security.md.
    """
    prepared(place, login, run)
    trap(mallory, without=OF_DRIVER)

    with relayed(login, options=False) as (url, relay):
        assert streamed(place, url) == 4
        assert sent(place, url) == 1
    assert relay.refused == 1


def test_the_script_of_a_dba_runs_none_either(
    place: Place, mallory: psycopg.Connection[Any]
) -> None:
    """A superuser runs it, so a function of another login would make that one a superuser."""
    text = script(
        endpoint(place.url, '"shop"."Shop.Orders"', error='"shop"."error"'),
        state=place.state,
        roles=Roles(
            **{
                each: f"{place.connection.info.dbname}_{each}"
                for each in ("reader", "sender", "operator")
            }
        ),
        body_string=True,
        delayed=True,
    )
    trap(mallory)

    for _ in range(2):
        place.connection.execute(text.encode())

    first = next(line for line in text.splitlines() if not line.startswith("--"))
    assert "SET LOCAL search_path = pg_catalog, pg_temp;" in first
    assert len(place.sql("SELECT version FROM sqlqueue.version")) == 1
