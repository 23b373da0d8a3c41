"""
A driver that this machine can load, and a server for it.

mssql-python contains Microsoft's ODBC driver, which needs libltdl, a loader of libraries. Without
it a compiler makes one of a few lines. pyodbc also needs unixODBC, which is unpacked from Debian's
package without installing it, and gets the ODBC driver of mssql-python here.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import subprocess
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.database.sqlserver import connection, drivers

from .server import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database.sqlserver.connection import Connection

    from .server import Script

LTDL, ODBC = "libltdl.so.7", "libodbc.so.2"
# libltdl in C: the functions that these libraries use
SOURCE = """
#include <dlfcn.h>
int lt_dlinit(void) { return 0; }
int lt_dlexit(void) { return 0; }
int lt_dlsetsearchpath(const char *path) { return 0; }
void *lt_dlopen(const char *file) { return dlopen(file, RTLD_NOW); }
void *lt_dlsym(void *library, const char *name) { return dlsym(library, name); }
int lt_dlclose(void *library) { return dlclose(library); }
const char *lt_dlerror(void) { return dlerror(); }
"""


def is_loaded(file: str | Path, mode: int = ctypes.RTLD_GLOBAL) -> bool:
    """Whether a library is in this process now."""
    try:
        return bool(ctypes.CDLL(str(file), mode=mode))
    except OSError:
        return False


def load(library: str, commands: str) -> None:
    """Make a library in a folder of its own, unless it is there."""
    with TemporaryDirectory() as folder:
        if not is_loaded(library):
            Path(folder, "ltdl.c").write_text(SOURCE)
            subprocess.run(["sh", "-ec", commands], cwd=folder, check=True, capture_output=True)
            assert any(is_loaded(found) for found in Path(folder).rglob(library)), library


def odbc_driver() -> Path:
    """Return the ODBC driver of mssql-python that can be loaded."""
    spec = find_spec("mssql_python_odbc")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    found = (file for place in places for file in Path(place).rglob("libmsodbcsql*"))
    # loaded locally, because its functions have the same names as those of unixODBC
    return next(file for file in found if is_loaded(file, ctypes.RTLD_LOCAL))


# this runs before all tests, because mssql-python tries to load its driver only once
with suppress(OSError, subprocess.SubprocessError):
    load(LTDL, f"cc -shared -fPIC -Wl,-soname,{LTDL} -o {LTDL} ltdl.c -ldl")


@pytest.fixture(scope="module", params=[drivers.MSSQL_PYTHON, drivers.PYODBC])
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give the name of a driver in its turn. Skip one that this machine cannot load."""
    folder, name = tmp_path_factory.mktemp("libraries"), request.param
    with pytest.MonkeyPatch.context() as patch:
        try:
            settings = f"[{drivers.ODBC[0]}]\nDriver={odbc_driver()}\n"
            if name == drivers.PYODBC:
                load(ODBC, "apt-get download libodbc2; dpkg-deb -x libodbc2_*.deb .")
                (folder / "odbcinst.ini").write_text(settings)
                patch.setenv("ODBCSYSINI", str(folder))
                drivers.pyodbc(drivers.ODBC)
            else:
                drivers.mssql_python()
        except (OSError, subprocess.SubprocessError, StopIteration, drivers.NotHere) as error:
            pytest.skip(f"{name} cannot be loaded: {error!r}")
        yield name


@pytest.fixture(scope="session")
def process() -> Iterator[Script]:
    """Give a server for all tests of this folder."""
    with Process(ctx=multiprocessing.get_context("spawn")) as running:
        yield running.Script()  # type: ignore[attr-defined]


@pytest.fixture
def script(process: Script) -> Script:
    """Give the answers of the server, for the test to fill in."""
    process.clear()
    return process


@pytest.fixture
def url(driver: str, script: Script) -> str:
    """Give the server's url, with the driver."""
    port = script.count("port")
    return f"sqlserver://bo:hush@127.0.0.1:{port}/shop?encrypt=no&driver={driver}"


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Connection]]:
    """Open sessions with a timeout in seconds, which end with the test."""
    with ExitStack() as stack:

        def connected(timeout: float = 30) -> Connection:
            made = connection.connect(url, application="tests", timeout=timeout, state="sqlqueue")
            return stack.enter_context(closing(made))

        yield connected
