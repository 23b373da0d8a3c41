"""
Tenants: ordinary logins, each with the roles that `sqlqueue script` makes for its own queue.

A tenant's roles, login and queues are its own. All tenants of a test share the state tables.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.dba import as_login

from sqlq_spark.admin.script import Roles, endpoint, script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    Login = Callable[..., str]


def make_login(place: Place, name: str, *rights: str) -> str:
    """Make an ordinary login with roles, and rights ON something; give its url."""
    place.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    for right in rights:
        place.sql(f"GRANT {right} TO {name}")
    return as_login(place.url, name, "secret").url


def drop_roles(place: Place, *names: str) -> None:
    """Drop roles with all that belongs to them."""
    for name in names:
        place.sql(f"DROP OWNED BY {name} CASCADE")
        place.sql(f"DROP ROLE {name}")


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """An ordinary login that may receive from, send to and operate one queue."""

    login: str  # also the schema that belongs to the login
    reader: str  # its roles
    sender: str
    url: str  # as this login
    queue: str  # a canonical address; the table belongs to the superuser, as after a DBA's script
    connection: psycopg.Connection[tuple[Any, ...]]  # of this login, in autocommit

    def sql(self, text: str, *args: object) -> list[tuple[Any, ...]]:
        """Run one statement as this login and return its rows, if it has any."""
        cursor = self.connection.execute(text.encode(), args or None)
        return [] if cursor.description is None else cursor.fetchall()


class Tenants:
    """Makes tenants in one place, and removes them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.made: list[Tenant] = []

    def tenant(self, queue: str, *, error: str | None = None, delayed: bool = False) -> Tenant:
        """
        Make a tenant with a queue of that table name in the place's schema.

        Args:
            queue: its table's name.
            error: table name of its error queue.
            delayed: whether it has a table of delayed messages.
        """
        place, login = self.place, f"tenant_{secrets.token_hex(4)}"
        reader, sender = f"{login}_r", f"{login}_s"
        address = f'"{place.schema}"."{queue}"'
        errors = f'"{place.schema}"."{error}"' if error else None
        text = script(
            endpoint(place.url, address, error=errors),
            state=place.state,
            roles=Roles(reader=reader, sender=sender),
            delayed=delayed,
        )
        place.sql(text)
        url = make_login(place, login, reader, sender)
        place.sql(f"CREATE SCHEMA {login} AUTHORIZATION {login}")
        tenant = Tenant(
            login=login,
            reader=reader,
            sender=sender,
            url=url,
            queue=address,
            connection=psycopg.connect(url, autocommit=True),
        )
        self.made.append(tenant)
        return tenant

    def remove(self) -> None:
        """Drop what was made for the tenants; their queues go with the place."""
        for tenant in self.made:
            tenant.connection.close()
            drop_roles(self.place, tenant.login, tenant.reader, tenant.sender)


@pytest.fixture
def tenants(place: Place) -> Iterator[Tenants]:
    """Give the place's tenants; none is made yet."""
    made = Tenants(place)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def login(place: Place) -> Iterator[Login]:
    """Give what makes a login with some roles and rights; it gives the login's url."""
    made: list[str] = []

    def make(*rights: str) -> str:
        made.append(f"login_{secrets.token_hex(4)}")
        return make_login(place, made[-1], *rights)

    try:
        yield make
    finally:
        drop_roles(place, *made)
