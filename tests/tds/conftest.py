"""
A driver that this machine can load, and a server for it.

`driver` is its name, `script` takes the answers that the test prepares, `connect` opens a session
of the package with the server.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import pytest

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.connection import Connection
from sqlq_spark.database.sqlserver.connection import connect as connect_sqlserver

from . import libraries
from .stage import staged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .stage import Stage


# before any test of this process: mssql-python tries to load its driver only once
unloadable = ""
with TemporaryDirectory() as made:
    try:
        libraries.load_ltdl(Path(made))
    except libraries.NotLoaded as failure:
        unloadable = str(failure)


class Connect(Protocol):
    """Opens a session of the package."""

    def __call__(self, *, timeout: float = 30) -> Connection:
        """Connect to the server of the test; `timeout` is in seconds."""


@pytest.fixture(scope="module", params=[drivers.MSSQL_PYTHON, drivers.PYODBC])
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give the name of a driver in its turn; skip one that this machine cannot load."""
    folder = tmp_path_factory.mktemp("libraries")
    with pytest.MonkeyPatch.context() as patch:
        try:
            if unloadable:
                raise libraries.NotLoaded(unloadable)  # noqa: TRY301 - as the others
            settings = libraries.odbc_settings()
            if request.param == drivers.PYODBC:
                libraries.load_odbc(folder)
                (folder / "odbcinst.ini").write_text(settings)
                patch.setenv("ODBCSYSINI", str(folder))
                drivers.pyodbc(drivers.ODBC)
            else:
                drivers.mssql_python()
        except (libraries.NotLoaded, drivers.NotHere) as error:
            pytest.skip(f"{request.param} cannot be loaded: {error}")
        yield request.param


@pytest.fixture(scope="session")
def process() -> Iterator[Stage]:
    """Give a server for all tests of this folder."""
    with staged() as running:
        yield running


@pytest.fixture
def script(process: Stage) -> Stage:
    """Give the answers of the server, for the test to fill in."""
    process.clear()
    return process


@pytest.fixture
def url(driver: str, script: Stage) -> str:
    """Give the server's url, with the driver."""
    return f"sqlserver://bo:hush@127.0.0.1:{script.port}/shop?encrypt=no&driver={driver}"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Open sessions, which end with the test."""
    made: list[Connection] = []

    def connected(*, timeout: float = 30) -> Connection:
        made.append(connect_sqlserver(url, application="tests", timeout=timeout, state="sqlqueue"))
        return made[-1]

    yield connected
    for each in made:
        each.close()
