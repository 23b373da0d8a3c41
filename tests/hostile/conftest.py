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
from psycopg import sql

from sqlq_spark.admin.endpoint import endpoint
from sqlq_spark.admin.script import Roles, script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place


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
        place.connection.execute(text.encode())
        name = sql.Identifier(login)
        for each in (
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(name),
            sql.SQL("GRANT {}, {} TO {}").format(*map(sql.Identifier, (reader, sender)), name),
            sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(name, name),
        ):
            place.connection.execute(each)
        url = as_login(place.url, login, "secret").url
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
            for role in (tenant.login, tenant.reader, tenant.sender):
                name = sql.Identifier(role)
                self.place.connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
                self.place.connection.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.fixture
def tenants(place: Place) -> Iterator[Tenants]:
    """Give the place's tenants; none is made yet."""
    made = Tenants(place)
    try:
        yield made
    finally:
        made.remove()
