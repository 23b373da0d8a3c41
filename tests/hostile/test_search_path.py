"""
A login that may create in `public` defines what our statements call, for better matching types.

Each of these functions raises, so a statement that finds one by its search path fails.
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

from sqlq_spark.database.statements import Statements
from sqlq_spark.receive.offset import INITIAL

from .conftest import make_login
from .streams import Stream, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.commands import Run
    from conftest import Place

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
    with own_database(server, "shop") as made:
        yield made


@pytest.fixture
def ready(place: Place, run: Run) -> dict[str, str]:
    """Make messages of each kind, before anything is defined in `public`."""
    words = prepare(place)
    late = '{"body": "3", "timeToBeReceived": "00:00:00"}'
    text = f'{{"body": "1"}}\n{{"body": "2", "delay": "00:00:00"}}\n{late}'
    assert run("send", words["QUEUE"], stdin=text).code == 0
    return words


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
    place: Place, ready: dict[str, str], mallory: psycopg.Connection[Any], run: Run
) -> None:
    """In no command, in a stream, in a sink, nor while a session begins; a superuser uses them."""
    assert trap(mallory) > 10_000
    with pytest.raises(psycopg.errors.RaiseException, match=RAN):
        place.sql("SELECT cardinality(ARRAY[1::bigint])")  # they would run

    assert (streamed(place, place.url), sent(place, place.url)) == (3, 1)
    for name, call in CALLS.items():
        ended = run(*name.split(), *filled(call, ready), "--json")
        assert ended.code in {0, 1}, (name, ended)
        assert RAN not in str(ended), name


def test_behind_a_pooler_that_takes_no_settings_of_a_session_none_runs(
    place: Place, ready: dict[str, str], mallory: psycopg.Connection[Any]
) -> None:
    """Each transaction sets the path; what the driver asks as it connects is left to the login."""
    assert ready
    trap(mallory, without=OF_DRIVER)

    with relayed(place.url, options=False) as (url, relay):
        assert (streamed(place, url), sent(place, url)) == (3, 1)
    assert relay.refused == 1


def test_the_script_of_a_dba_runs_none_either(
    place: Place, mallory: psycopg.Connection[Any], run: Run
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
    trap(mallory)

    for _ in range(2):
        place.connection.execute(text.encode())

    first = next(line for line in text.splitlines() if not line.startswith("--"))
    assert "SET LOCAL search_path = pg_catalog, pg_temp;" in first
    assert len(place.sql("SELECT version FROM sqlqueue.version")) == 1
