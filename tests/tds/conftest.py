"""
A driver that this machine can load, and a server for it.

`opened` is the driver, `script` holds the answers that the test prepares, `connect` opens a session
of the package with the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.connection import Connection
from sqlq_spark.database.sqlserver.connection import connect as connect_sqlserver

from . import libraries
from .server import Script, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .server import Server


class Connect(Protocol):
    """Opens a session of the package."""

    def __call__(self) -> Connection:
        """Connect to the server of the test."""


@pytest.fixture(scope="session", params=[drivers.MSSQL_PYTHON, drivers.PYODBC])
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give the name of a driver in its turn; skip one that this machine cannot load."""
    folder = tmp_path_factory.mktemp("libraries")
    with pytest.MonkeyPatch.context() as patch:
        try:
            libraries.load_ltdl(folder)
            if request.param == drivers.PYODBC:
                libraries.load_odbc(folder)
                (folder / "odbcinst.ini").write_text(libraries.odbc_settings())
                patch.setenv("ODBCSYSINI", str(folder))
                drivers.pyodbc(drivers.ODBC)
            else:
                drivers.mssql_python()
        except (libraries.NotLoaded, drivers.NotHere) as error:
            pytest.skip(f"{request.param} cannot be loaded: {error}")
        yield request.param


@pytest.fixture
def script() -> Script:
    """Give the answers of the server, for the test to fill in."""
    return Script()


@pytest.fixture
def server(script: Script) -> Iterator[Server]:
    """Give a server that answers as the script says."""
    with serving(script) as running:
        yield running


@pytest.fixture
def url(driver: str, server: Server) -> str:
    """Give the server's url, with the driver."""
    return f"sqlserver://bo:hush@127.0.0.1:{server.port}/shop?encrypt=no&driver={driver}"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Open sessions, which end with the test."""
    made: list[Connection] = []

    def connected() -> Connection:
        made.append(connect_sqlserver(url, application="tests", timeout=30, state="sqlqueue"))
        return made[-1]

    yield connected
    for each in made:
        each.close()
