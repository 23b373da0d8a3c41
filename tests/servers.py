"""
The servers that tests run on: PostgreSQL always, SQL Server where there is one.

SQLQ_TEST_SQLSERVER names a SQL Server by a url; `none` keeps from starting one. Where it is not
set and a Docker engine answers, one is started from Microsoft's image for the time of the run.
As a program, this file creates the database that the variable names.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote

import docker
import pytest
import stamina

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "SQLQ_TEST_SQLSERVER"  # a url, sqlserver://…
IMAGE = "mcr.microsoft.com/mssql/server:2022-CU26-ubuntu-22.04"
ONLY = "one_database"  # the marker of tests that no other database can run


@cache
def has_sqlserver() -> bool:
    """Return whether there is a SQL Server, or a Docker engine, which has a second to answer."""
    if named := os.environ.get(VARIABLE):
        return named != "none"
    try:
        docker.from_env(timeout=1).ping()
    except (docker.errors.DockerException, OSError):
        return False
    return True


@contextmanager
def sqlserver() -> Iterator[str]:
    """Give the url of a SQL Server's database. Tests that start one accept its license."""
    if named := os.environ.get(VARIABLE):
        yield named
        return
    from testcontainers.community.mssql import SqlServerContainer  # noqa: PLC0415 - slow, seldom

    password = f"aA1-{secrets.token_urlsafe(18)}"
    container = SqlServerContainer(IMAGE, username="sa", password=password)
    with container.with_env("MSSQL_MEMORY_LIMIT_MB", "2048"):
        host, port = container.get_container_host_ip(), container.get_exposed_port(1433)
        server = f"sqlserver://sa:{quote(password, safe='')}@{host}:{port}"
        url = f"{server}/sqlq_test?trustServerCertificate=yes"
        create_database(url)
        yield url


def create_database(url: str) -> None:
    """Create the database of a url if it is missing, on a server that may still be starting."""
    target = Target.parse(url)
    # No driver says by a type that a server is starting: also its logins are refused for a while.
    for attempt in stamina.retry_context(on=Exception, attempts=None, timeout=120, wait_max=5):
        with attempt:
            master = replace(target, database="master")
            connection = drivers.open_session(master, "tests", 30)[1]
            with closing(connection), closing(connection.cursor()) as cursor:
                name = target.database
                cursor.execute(f"IF DB_ID(N'{name}') IS NULL CREATE DATABASE [{name}]")


def of_another(item: pytest.Item) -> bool:
    """Return whether a test is marked for another database than the given one."""
    mark = item.get_closest_marker(ONLY)
    given = getattr(item, "callspec", None)
    dialect = given.params.get("dialect") if given else None
    return mark is not None and dialect not in {None, *mark.args[0]}


def only(dialect: str, reason: str) -> pytest.MarkDecorator:
    """Mark a test, or one of its cases, as one that no other database can run."""
    return among((dialect,), reason)


def among(dialects: tuple[str, ...], reason: str) -> pytest.MarkDecorator:
    """Mark a test, or one of its cases, as one that only these databases can run."""
    return getattr(pytest.mark, ONLY)(dialects, reason)  # type: ignore[no-any-return]


if __name__ == "__main__":
    create_database(os.environ[VARIABLE])
