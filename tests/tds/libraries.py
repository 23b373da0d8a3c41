"""
The shared libraries that the drivers need, where a machine lacks them.

mssql-python contains Microsoft's ODBC driver, which needs libltdl. pyodbc needs unixODBC, and gets
the ODBC driver of mssql-python here. On Debian the packages are unpacked into a folder and loaded
from there, so that nothing is installed.

The ODBC driver needs libltdl only to configure data sources, which no connection does. Without the
package, a compiler makes a library with the same functions, and nothing in them.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
from importlib.util import find_spec
from pathlib import Path

LTDL, ODBC = "libltdl.so.7", "libodbc.so.2"
PACKAGES = {LTDL: "libltdl7", ODBC: "libodbc2"}  # of Debian
FUNCTIONS = ("close", "error", "exit", "init", "open", "setsearchpath", "sym")  # lt_dl…
NAMED = "ODBC Driver 18 for SQL Server"


class NotLoaded(Exception):
    """A library is not on this machine, and cannot be brought there."""


def load_ltdl(folder: Path) -> None:
    """
    Load what mssql-python needs into this process.

    Args:
        folder: where packages are unpacked.

    Raises:
        NotLoaded: with the reason.
    """
    try:
        load(LTDL, folder)
    except NotLoaded as error:
        compile_ltdl(folder, str(error))


def load_odbc(folder: Path) -> None:
    """Load what pyodbc needs besides; see `load_ltdl`."""
    load(ODBC, folder)


def load(file: str, folder: Path) -> None:
    """Load a library of the machine, or of a package."""
    if not in_process(Path(file)):
        unpack(PACKAGES[file], folder)
        if not any(in_process(found) for found in folder.rglob(file)):
            raise NotLoaded(f"{PACKAGES[file]} has no {file} for this machine")


def compile_ltdl(folder: Path, reason: str) -> None:
    """Make a library whose functions do nothing, and load it."""
    source = folder / "ltdl.c"
    source.write_text("".join(f"void *lt_dl{name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    options = ["-shared", "-fPIC", f"-Wl,-soname,{LTDL}", "-o", LTDL]
    try:
        run(["cc", *options, source.name], folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotLoaded(f"{reason}; no compiler makes one: {error}") from None
    if not in_process(folder / LTDL):
        raise NotLoaded(f"{reason}; the compiled one cannot be loaded")


def in_process(file: Path) -> bool:
    """Whether a library is loaded now."""
    try:
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def unpack(package: str, folder: Path) -> None:
    """Fetch a package of Debian and unpack it, without installing it."""
    try:
        run(["apt-get", "download", package], folder)
        for file in folder.glob(f"{package}_*.deb"):
            run(["dpkg-deb", "-x", file.name, "."], folder)
    except OSError as error:
        raise NotLoaded(f"{package} is missing, and there is no {error.filename}") from None
    except subprocess.CalledProcessError as error:
        raise NotLoaded(f"{package} is missing: {error.stderr.strip()}") from None


def run(command: list[str], folder: Path) -> None:
    """Run a program in a folder."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120)


def odbc_settings() -> str:
    """Return an odbcinst.ini that names the ODBC driver of mssql-python."""
    spec = find_spec("mssql_python_odbc")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    machine = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = [
        file
        for place in places
        for file in Path(place).glob(f"libs/linux/debian_ubuntu/{machine}/lib/libmsodbcsql*")
    ]
    if not found:
        raise NotLoaded("mssql_python_odbc contains no ODBC driver for this machine")
    return f"[{NAMED}]\nDriver={found[0]}\n"
