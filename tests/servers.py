"""
The servers that tests run on: PostgreSQL always, SQL Server where there is one; and what was run.

SQLQ_TEST_SQLSERVER names a SQL Server by a url; `none` keeps from starting one. Where it is not
set and a Docker engine answers, one is started from Microsoft's image for the time of the run.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from contextlib import closing, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import docker
import pytest

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VARIABLE = "SQLQ_TEST_SQLSERVER"  # a url, sqlserver://…
IMAGE = "mcr.microsoft.com/mssql/server:2022-CU26-ubuntu-22.04"
ONLY = "one_database"  # the marker of tests that no other database can run

ran: dict[str, str] = {}  # dialect → the server's own words for what it is
left_out: Counter[str] = Counter()  # tests of one database that was not there, or not meant


@cache
def databases() -> list[str]:
    """The dialects that the shared tests are run with; a Docker engine has a second to answer."""
    if named := os.environ.get(VARIABLE):
        return ["postgresql"] if named == "none" else ["postgresql", "sqlserver"]
    try:
        docker.from_env(timeout=1).ping()
    except (docker.errors.DockerException, OSError):
        return ["postgresql"]
    return ["postgresql", "sqlserver"]


@contextmanager
def sqlserver() -> Iterator[str]:
    """Give the url of a SQL Server's database, and note which server it is."""
    if named := os.environ.get(VARIABLE):
        ran["sqlserver"] = f"{version(named)}, named by {VARIABLE}"
        yield named
        return
    with _container() as url:
        ran["sqlserver"] = f"{version(url)}, in a container of {IMAGE}"
        yield url


@contextmanager
def _container() -> Iterator[str]:
    """Start one whose license its user has accepted by letting tests start it."""
    from testcontainers.community.mssql import SqlServerContainer  # noqa: PLC0415 - slow, seldom

    password = f"aA1-{secrets.token_urlsafe(18)}"
    container = SqlServerContainer(IMAGE, username="sa", password=password)
    with container.with_env("MSSQL_MEMORY_LIMIT_MB", "2048"):
        host, port = container.get_container_host_ip(), container.get_exposed_port(1433)
        server = f"sqlserver://sa:{quote(password, safe='')}@{host}:{port}"
        asked(f"{server}/master?trustServerCertificate=yes", "CREATE DATABASE sqlq_test")
        yield f"{server}/sqlq_test?trustServerCertificate=yes"


def version(url: str) -> str:
    """What a SQL Server says it is, in one line."""
    return " ".join(str(asked(url, "SELECT @@VERSION")).split("\n")[0].split())


def asked(url: str, text: str) -> Any:
    """The first value that a statement gives, by whichever driver is there."""
    connection = drivers.connect(Target.parse(url), "tests", 30)[1]
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute(text)
        return cursor.fetchone()[0] if cursor.description else None


def sorted_out(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run, and those that are marked for a database other than the one they would get."""
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker(ONLY)
        given = getattr(item, "callspec", None)
        dialect = given.params.get("dialect") if given else None
        if mark is None or dialect in {None, mark.args[0]}:
            kept.append(item)
            continue
        name, reason = mark.args
        left_out[f"of {name} alone, not run with {dialect}: {reason}"] += 1
        out.append(item)
    return kept, out


def only(dialect: str, reason: str) -> pytest.MarkDecorator:
    """Mark a test, or one of its cases, as one that no other database can run."""
    return getattr(pytest.mark, ONLY)(dialect, reason)  # type: ignore[no-any-return]


def closing_lines() -> list[str]:
    """Which servers ran, and how many tests were left out, and why: the last lines of a run."""
    none = "no test asked for one"
    if "sqlserver" not in databases():
        none = f"{VARIABLE} names none and no Docker engine answers; its T-SQL was parsed only"
    return [
        f"PostgreSQL: {ran.get('postgresql', 'no test asked for one')}",
        f"SQL Server: {ran.get('sqlserver', f'none ran, for {none}')}",
        *(f"{number} tests {reason}" for reason, number in sorted(left_out.items())),
    ]
