"""Tenants: ordinary logins, each with a queue and the roles that `sqlqueue script` makes for it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.dba import as_login
from conftest import Database

from sqlq_spark.admin.script import Roles, endpoint, write_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    Login = Callable[..., str]
    Tenants = Callable[..., "Tenant"]


def make_login(place: Place, name: str, *rights: str) -> str:
    """Make an ordinary login with roles, and rights ON something; give its url."""
    place.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    for right in rights:
        place.sql(f"GRANT {right} TO {name}")
    return as_login(place.superuser, name, "secret").url


def drop_roles(place: Place, *names: str) -> None:
    """Drop roles with all that belongs to them."""
    for name in names:
        place.sql(f"DROP OWNED BY {name} CASCADE")
        place.sql(f"DROP ROLE {name}")


@dataclass(frozen=True)
class Tenant(Database):
    """An ordinary login that may receive from, send to and operate one queue."""

    login: str  # also the schema that belongs to the login
    reader: str  # its roles
    sender: str
    url: str  # logs in as this login
    queue: str  # a canonical address; the table belongs to the superuser, as after a DBA's script
    connection: psycopg.Connection[tuple[Any, ...]]  # a session of this login, in autocommit


@pytest.fixture
def tenant(place: Place) -> Iterator[Tenants]:
    """Give a function that makes a tenant with a queue in the place's schema."""
    made: list[Tenant] = []

    def make(queue: str, *, error: str | None = None, delayed: bool = False) -> Tenant:
        login = f"tenant_{secrets.token_hex(4)}"
        reader, sender = f"{login}_r", f"{login}_s"
        address = f'"{place.schema}"."{queue}"'
        errors = f'"{place.schema}"."{error}"' if error else None
        text = write_script(
            endpoint(place.superuser, address, error=errors),
            state=place.state,
            roles=Roles(reader=reader, sender=sender),
            delayed=delayed,
        )
        place.sql(text)
        url = make_login(place, login, reader, sender)
        place.sql(f"CREATE SCHEMA {login} AUTHORIZATION {login}")
        connection = psycopg.connect(url, autocommit=True)
        made.append(Tenant(login, reader, sender, url, address, connection))
        return made[-1]

    yield make
    for each in made:
        each.connection.close()
        drop_roles(place, each.login, each.reader, each.sender)


@pytest.fixture
def login(place: Place) -> Iterator[Login]:
    """Give a function that makes a login with some roles and rights, and returns its url."""
    made: list[str] = []

    def make(*rights: str) -> str:
        made.append(f"login_{secrets.token_hex(4)}")
        return make_login(place, made[-1], *rights)

    yield make
    drop_roles(place, *made)
