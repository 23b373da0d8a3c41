"""
The fixtures of all suites, each made from the one before: server, place, dotnet; and Spark.

SQLQ_TEST_POSTGRES names a server by a libpq URI; without it an embedded one is started.
Tests that ask for a `dialect` are also run against a SQL Server, where servers.py finds one.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import servers
import shared_classes
from conformance.dba import as_login
from conformance.transport import PostgreSQL
from conformance.transports import TRANSPORTS
from hypothesis import HealthCheck, settings
from psycopg import sql

from sqlq_spark.testing.queues import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.transport import DotNet
    from pyspark.sql import SparkSession
    from spark.stand import Queue

# Spark's workers otherwise run the first python3 of PATH; both are read when the JVM starts.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# A test's query runs a few times: the second compiler and a parallel collector cost a fifth of the
# processor time of tests/spark and give nothing back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
if archive := os.environ.get(shared_classes.VARIABLE):
    shared_classes.use(Path(archive).absolute())
# A shell ignores Ctrl-C for what it starts in the background, and all its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A machine's own name need not have an address.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# By default hypothesis fails a slow example, which on a busy machine is no fault of the code.
settings.register_profile("slow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slow")


class Database:
    """Base of classes with a connection that commits each statement."""

    connection: psycopg.Connection[tuple[Any, ...]]

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows of the last, if it has any."""
        cursor = self.connection.execute(text.encode(), args or None)
        while cursor.nextset():
            pass
        return [] if cursor.description is None else cursor.fetchall()


@dataclass(frozen=True, kw_only=True)
class Place(Database):
    """A test's own corner of the database."""

    url: str  # for an ordinary login, by which our sessions and the endpoints connect
    superuser: str  # the url of a superuser, as which `sql` runs
    schema: str  # a schema for queues, which exists
    state: str  # the name of a schema for state tables; a test that needs it creates it
    connection: psycopg.Connection[tuple[Any, ...]]

    @property
    def dotnet(self) -> DotNet:
        """An endpoint there, and its DBA."""
        return PostgreSQL.at(self)


@pytest.fixture(scope="session")
def server(sqlqueue_server: str) -> str:
    """Give the url of a PostgreSQL database, over TCP, for JDBC needs it."""
    # Our own server needs no fsync: tests kill processes, but never the machine.
    if VARIABLE not in os.environ:
        with psycopg.connect(sqlqueue_server, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
    return sqlqueue_server


@pytest.fixture(scope="session")
def sqlserver_server() -> Iterator[str]:
    """Give the url of a SQL Server's database."""
    with servers.sqlserver() as url:
        yield url


RUN = [name for name in TRANSPORTS if name != "sqlserver" or servers.has_sqlserver()]


@pytest.fixture(params=RUN)
def dialect(request: pytest.FixtureRequest) -> str:
    """Name the database that a shared test is run with."""
    name: str = request.param
    return name


ORDINARY = "sqlq_tests"  # the login of our sessions; it owns what it creates, and no database
PASSWORD = "aB3-9f2c71d0e6"  # noqa: S105 - of that login; a text that is nowhere else
RIGHTS = """
DO $$BEGIN CREATE ROLE {0} LOGIN PASSWORD '{3}';
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END$$;
GRANT pg_monitor, pg_signal_backend TO {0};
GRANT CREATE ON DATABASE {1} TO {0};
GRANT USAGE, CREATE ON SCHEMA {2}, public TO {0};
ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO {0};
ALTER DEFAULT PRIVILEGES GRANT USAGE, SELECT ON SEQUENCES TO {0};
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {0}
"""


def ordinary_login(connection: psycopg.Connection[Any], url: str, schema: str) -> str:
    """Give the url of a login without a superuser's rights, which may use and create tables."""
    database = sql.Identifier(connection.info.dbname).as_string(connection)
    name = sql.Identifier(schema).as_string(connection)
    connection.execute(RIGHTS.format(ORDINARY, database, name, PASSWORD).encode())
    return as_login(url, ORDINARY, PASSWORD).url


@contextmanager
def placed(server: str) -> Iterator[Place]:
    """Give a new schema for queues and a name for the state tables; both are dropped after."""
    schema, state = (f"{kind}_{secrets.token_hex(6)}" for kind in ("test", "state"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        url = ordinary_login(connection, server, schema)
        yield Place(url=url, superuser=server, schema=schema, state=state, connection=connection)

    # A new connection: the test may have broken its own. Sessions left behind must not hang us.
    dropped = sql.SQL("DROP SCHEMA IF EXISTS {}, {} CASCADE")
    with psycopg.connect(server, autocommit=True, options="-c lock_timeout=60s") as connection:
        connection.execute(dropped.format(sql.Identifier(schema), sql.Identifier(state)))


@pytest.fixture
def place(server: str) -> Iterator[Place]:
    """Give a new place to one test."""
    with placed(server) as made:
        yield made


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue with its state tables, to the tests by process."""
    from spark.stand import Queue  # noqa: PLC0415 - it imports this module

    return Queue(place, "orders").prepared()


@pytest.fixture
def dotnet(request: pytest.FixtureRequest, dialect: str) -> Iterator[DotNet]:
    """Give an endpoint in a place of its own."""
    with TRANSPORTS[dialect].placed(request) as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a local session of two cores with Delta; the first one ever fetches its jars."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and not every test's
    from spark.driver import SMALL, with_delta  # noqa: PLC0415

    settings: dict[str, bool | float | int | str | None] = {
        **SMALL,
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    builder = SparkSession.builder.master("local[2]").appName("sqlq-tests").config(map=settings)
    session = with_delta(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of databases that this run does not use."""
    out = {item for item in items if servers.of_another(item)}
    config.hook.pytest_deselected(items=[*out])
    items[:] = [item for item in items if item not in out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers were used."""
    none = f"none: {servers.VARIABLE} names none and no Docker engine answers; T-SQL is parsed only"
    used = {
        "PostgreSQL": f"named by {VARIABLE}" if os.environ.get(VARIABLE) else "embedded",
        "SQL Server": "run" if servers.has_sqlserver() else none,
    }
    terminalreporter.section("servers")
    for name, what in used.items():
        terminalreporter.write_line(f"{name}: {what}")
