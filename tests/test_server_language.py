"""
The errors of a PostgreSQL that speaks German, beside those of one that speaks English.

The server's sentences are in the language of lc_messages. Classes and fixes are the same, and no
sentence has a text of a row.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pyarrow as pa
import pytest
from german import find_programs, german_server

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.postgresql.connection import Connection, connect
from sqlq_spark.database.schema import create_queue, install
from sqlq_spark.wire.address import QueueAddress, delayed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# what .ci/run sets: there the packages with the German server are installed
NEEDED = "SQLQ_TEST_GERMAN"
PROGRAMS = find_programs()
pytestmark = pytest.mark.skipif(
    PROGRAMS is None and NEEDED not in os.environ,
    reason="no PostgreSQL with German messages: apt-get install postgresql locales",
)

SECRET = "geheim-7f3a"  # noqa: S105 - in headers and bodies
SCHEMA = "Läden"
MADE = """
CREATE ROLE {login} LOGIN PASSWORD '{login}';
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
CREATE SCHEMA "Läden"; GRANT USAGE ON SCHEMA "Läden" TO {login};
CREATE TABLE "Läden".thin (id uuid); GRANT ALL ON "Läden".thin TO {login};
CREATE SCHEMA "Zu"; CREATE TABLE "Zu".orders (LIKE pg_catalog.pg_class);
CREATE SCHEMA "Sicher"; GRANT USAGE ON SCHEMA "Sicher" TO {login};
CREATE TABLE "Sicher".version (); CREATE TABLE "Sicher".receipt_page ();
CREATE TABLE "Sicher".staging_page (); CREATE TABLE "Sicher".dispatch_log ();
"""
QUEUE = """
CREATE TABLE "Läden".{name} (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), expires timestamp,
    headers text NOT NULL DEFAULT '', body bytea, seq serial UNIQUE {more});
"""
RIGHTS = """
GRANT ALL ON "Läden".{name} TO {login}; GRANT USAGE ON SEQUENCE "Läden".{name}_seq_seq TO {login};
"""
# queue → what its table has more, whether the login may use it, and statements
QUEUES: dict[str, tuple[str, bool, str]] = {
    "plain": ("", True, ""),
    "closed": ("", False, ""),
    "numbered": ("", False, "GRANT ALL ON {queue} TO {login}"),
    "checked": (f", CHECK (headers <> '{SECRET}')", True, ""),
    "cast": (", CHECK (headers::int > 0)", True, ""),
    "json": (", CHECK (headers::json IS NOT NULL)", True, ""),
    "indexed": (", UNIQUE (headers)", True, f"INSERT INTO {{queue}} (headers) VALUES ('{SECRET}')"),
    "behind": ("", True, "INSERT INTO {queue} (seq) SELECT generate_series(1, 50)"),
    "hidden": ("", True, "ALTER TABLE {queue} ENABLE ROW LEVEL SECURITY"),
    "exploding": (
        "",
        True,
        """CREATE FUNCTION "Läden".explode() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO "Läden".nowhere VALUES (1); RETURN NULL; END';
        CREATE TRIGGER explode AFTER INSERT ON {queue} EXECUTE FUNCTION "Läden".explode()""",
    ),
}


@dataclass(frozen=True)
class Stand:
    """A server, and a login in a database of its own there."""

    dba: psycopg.Connection[Any]
    url: str  # the url of the login
    login: str


@contextmanager
def stand(server: str) -> Iterator[Stand]:
    """Give the queues in a database of their own."""
    name = f"lang_{secrets.token_hex(4)}"
    own = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    at = urlsplit(own)
    url = urlunsplit(at._replace(netloc=f"{name}:{name}@{at.netloc.rpartition('@')[2]}"))
    with psycopg.connect(server, autocommit=True) as dba:
        dba.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0".encode())
        try:
            with psycopg.connect(own, autocommit=True) as inside:
                inside.execute(MADE.format(login=name).encode())
                for queue, (more, is_allowed, then) in QUEUES.items():
                    words = {"name": queue, "more": more, "login": name}
                    words["queue"] = f'"{SCHEMA}".{queue}'
                    inside.execute(QUEUE.format(**words).encode())
                    if is_allowed:
                        inside.execute(RIGHTS.format(**words).encode())
                    inside.execute(then.format(**words).encode())
                yield Stand(inside, url, name)
        finally:
            dba.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
            dba.execute(f"DROP ROLE {name}".encode())


@pytest.fixture(scope="module")
def stands(server: str) -> Iterator[tuple[Stand, Stand]]:
    """Give an English server and a German one."""
    assert PROGRAMS is not None, "apt-get install postgresql locales"
    with german_server(PROGRAMS) as german, stand(server) as first, stand(german) as second:
        yield first, second


def address(name: str, schema: str = SCHEMA) -> QueueAddress:
    """The address of a queue."""
    return QueueAddress(name, schema)


def load(name: str, schema: str = SCHEMA) -> Callable[[Connection], None]:
    """Send a message, as a write does it."""
    row = pa.table({"headers": [SECRET], "body": [SECRET.encode()]})

    def run(connection: Connection) -> None:
        connection.load(address(name, schema), row)

    return run


def run(statement: Any, name: str = "", schema: str = SCHEMA, **values: Any) -> Any:
    """Run a statement on a queue, or on state tables."""
    tables = {"queue": address(name, schema)} if name else {}

    def work(connection: Connection) -> None:
        connection.run(statement, tables=tables, **values)

    return work


def move_due(name: str) -> Callable[[Connection], None]:
    """Move what is due into a queue that has no table of delayed messages."""
    tables = {"delayed": delayed_of(address(name)), "queue": address(name)}
    return lambda connection: connection.run(
        "move_due", tables=tables, zone="UTC", messages=1, renamed=False
    )


def work_in_other_state(connection: Connection) -> None:
    connection.state = "Sicher"
    connection.run("version")


ROLES = ("queue", "errors", "delayed", "subscriptions")  # words in braces that stand for tables


def make_queue(schema: str) -> Callable[[Connection], object]:
    """Create a queue as the command does."""
    return lambda connection: create_queue(connection, address("neu", schema))


# a failure → what raises it, and the class of the error; each on both servers
CASES: dict[str, tuple[Callable[[Connection], Any], type[errors.DatabaseFailure]]] = {
    "a CHECK refuses a message": (load("checked"), errors.StatementRefused),
    "a CHECK cannot convert headers": (load("cast"), errors.StatementRefused),
    "a CHECK reads headers as JSON": (load("json"), errors.StatementRefused),
    "a unique index on headers": (load("indexed"), errors.StatementRefused),
    "a taken seq": (load("behind"), errors.StatementRefused),
    "a policy": (load("hidden"), errors.StatementRefused),
    "a trigger misses a table": (load("exploding"), errors.StatementRefused),
    "no right to send": (load("closed"), errors.RightMissing),
    "no right on a sequence": (load("numbered"), errors.RightMissing),
    "no right to enter a schema": (load("orders", "Zu"), errors.RightMissing),
    "no right to receive": (run("purge", "closed"), errors.RightMissing),
    "no right to read in a schema": (run("purge", "orders", "Zu"), errors.RightMissing),
    "no right to create a queue": (make_queue("public"), errors.RightMissing),
    "no right to create a schema": (install, errors.RightMissing),
    "another's table is altered": (run("add_body_string", "plain"), errors.RightMissing),
    "no right for a script": (
        lambda connection: connection.run_script("CREATE SCHEMA neu"),
        errors.RightMissing,
    ),
    "no right to explain": (
        lambda connection: connection.explain(dict.fromkeys(ROLES, address("closed"))),
        errors.RightMissing,
    ),
    "another team's state": (work_in_other_state, errors.StateRightMissing),
    "no queue to send to": (load("nowhere"), errors.QueueNotFound),
    "no queue to read": (run("purge", "nowhere"), errors.QueueNotFound),
    "no schema to read in": (run("purge", "nowhere", "Nie"), errors.QueueNotFound),
    "no table of delayed messages": (move_due("plain"), errors.QueueNotFound),
    "no schema to create in": (run("create_queue", "neu", "Nie"), errors.SchemaNotFound),
    "no column": (load("thin"), errors.NotAQueue),
    "no state tables": (run("streams"), errors.StateNotInstalled),
    "no time zone": (run("endpoint_zone", zone="Mars/Olymp"), errors.TimeZoneNotFound),
}


def failure(stand: Stand, work: Callable[[Connection], Any]) -> errors.DatabaseFailure:
    """The error of some work in a session of the login."""
    connection = connect(stand.url, application="test", timeout=20, state="sqlqueue")
    with closing(connection), pytest.raises(errors.DatabaseFailure) as raised:
        work(connection)
    return raised.value


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_the_same_in_each_language(stands: tuple[Stand, Stand], name: str) -> None:
    """Its class and its fix come from the SQLSTATE, the statement and the catalogue."""
    work, kind = CASES[name]
    english, german = (failure(each, work) for each in stands)

    assert type(english) is type(german) is kind
    for fact in set(kind.fields()) - {"reason", "server"}:
        first, second = (
            str(vars(error)[fact]).replace(stand.login, "LOGIN")
            for error, stand in zip((english, german), stands, strict=True)
        )
        assert first == second, fact
    for error in (english, german):
        assert SECRET not in str(error) + repr(vars(error))
        assert SECRET.encode().hex() not in str(error)


def test_the_servers_speak_two_languages(stands: tuple[Stand, Stand]) -> None:
    """Otherwise the other tests would compare English with English."""
    english, german = (str(failure(each, load("checked"))) for each in stands)

    assert "violates check constraint" in english
    assert "verletzt Check-Constraint" in german


# what is wrong in a url → the class for an English server
REFUSED = {
    "password": errors.LoginRefused,
    "login": errors.LoginRefused,
    "database": errors.DatabaseNotFound,
    "connections": errors.ServerShort,
}


def wrong_url(stand: Stand, wrong: str) -> str:
    """A url that leads to no session."""
    login = stand.login
    if wrong == "connections":
        stand.dba.execute(f"ALTER ROLE {login} CONNECTION LIMIT 0".encode())
    return {
        "password": stand.url.replace(f":{login}@", ":falsch@"),
        "login": stand.url.replace(f"//{login}:", "//niemand:"),
        "database": urlunsplit(urlsplit(stand.url)._replace(path="/nirgends")),
        "connections": stand.url,
    }[wrong]


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_connection_that_is_refused_in_other_words(
    stands: tuple[Stand, Stand], wrong: str
) -> None:
    """The driver gives only words: the error names each possible cause."""
    kinds = []
    for stand in stands:
        with pytest.raises(errors.DatabaseFailure) as raised:
            connect(wrong_url(stand, wrong), application="test", timeout=20, state="sqlqueue")
        stand.dba.execute(f"ALTER ROLE {stand.login} CONNECTION LIMIT -1".encode())
        kinds.append(type(raised.value))

    assert kinds == [REFUSED[wrong], errors.ConnectionUnclear]
    assert "check user, password, database, host and port" in str(raised.value)


def test_a_lock_that_is_not_released_is_a_time_limit(stands: tuple[Stand, Stand]) -> None:
    """The error is the same, whatever the server's language is."""
    for stand in stands:
        first, second = (
            connect(stand.url, application="test", timeout=20, state="sqlqueue") for _ in range(2)
        )
        with closing(first), closing(second), transaction(first):
            first.run("install_lock", state_name="r")
            with pytest.raises(errors.TimedOut), transaction(second, timeout=0.2):
                second.run("install_lock", state_name="r")
