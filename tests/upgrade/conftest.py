"""A database as the release of version 3 left it, with its checkpoints."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.dba import as_login
from conftest import Database

from .make_state import LOGIN, PASSWORD, ROLES, STATE
from .releases import VERSION_3, unpack_release

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class OldState(Database):
    """A database of its own with the fixture's tables; the roles have names of their own."""

    url: str  # for the login that ran the old release, and is a member of its roles
    superuser: str
    connection: psycopg.Connection[tuple[Any, ...]]
    roles: dict[str, str]  # a role's name in the fixture → its name here
    folder: Path  # has the checkpoints of the jobs, and what they received

    @property
    def sent(self) -> dict[str, list[str]]:
        """The ids of the messages that were sent, by job."""
        ids: dict[str, list[str]] = json.loads((STATE / "sent.json").read_text())
        return ids

    def landed(self, job: str) -> list[str]:
        """Return the ids that a job has received, in all of its batches."""
        files = (self.folder / job / "landed").glob("*.json")
        return sorted(message for file in files for message in json.loads(file.read_text()))

    def ids(self, queue: str) -> list[str]:
        """Return the ids of the messages in a queue."""
        rows = self.sql(f"SELECT headers::json ->> 'NServiceBus.MessageId' FROM {queue}")
        return sorted(row[0] for row in rows)


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Give the url of an empty database, which is dropped after the test."""
    name = f"upgrade_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield re.sub(r"(//[^/]*/)[^?]*", rf"\g<1>{name}", server)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def load_state(url: str, names: dict[str, str]) -> None:
    """Load the fixture; roles and the login get other names, because roles belong to a server."""
    text = (STATE / "state.sql").read_text()
    for name, other in names.items():
        text = re.sub(rf"\b{name}\b", other, text)
    with psycopg.connect(url, autocommit=True) as connection:
        for name, other in names.items():
            kind = f"LOGIN PASSWORD '{PASSWORD}'" if name == LOGIN else "NOLOGIN"
            connection.execute(f"CREATE ROLE {other} {kind}")
        connection.execute(
            f"GRANT {names[ROLES['reader']]}, {names[ROLES['sender']]} TO {names[LOGIN]}"
        )
        connection.execute(text)


@pytest.fixture
def old_state(server: str, tmp_path: Path) -> Iterator[OldState]:
    """Give the database and the checkpoints of the fixture."""
    suffix = secrets.token_hex(4)
    names = {name: f"{name}_{suffix}" for name in (LOGIN, *ROLES.values())}
    for job in ("receive", "relay"):
        shutil.copytree(STATE / job, tmp_path / job)
    with new_database(server) as superuser:
        load_state(superuser, names)
        url = as_login(superuser, names[LOGIN], PASSWORD).url
        with psycopg.connect(superuser, autocommit=True) as connection:
            yield OldState(
                url=url, superuser=superuser, connection=connection, roles=names, folder=tmp_path
            )
    with psycopg.connect(server, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"DROP ROLE {name}")


@pytest.fixture(scope="session")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the release of version 3, once in a run."""
    return unpack_release(VERSION_3, tmp_path_factory.mktemp("release"))
