"""
The shared libraries that the drivers need, where a machine lacks them. Nothing is installed.

mssql-python contains Microsoft's ODBC driver, which needs libltdl, a loader of libraries. Without
it a compiler makes one of a few lines. pyodbc also needs unixODBC, which is unpacked from Debian's
package, and gets the ODBC driver of mssql-python here.
"""

from __future__ import annotations

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

LTDL, ODBC = "libltdl.so.7", "libodbc.so.2"
PACKAGES = {LTDL: "libltdl7", ODBC: "libodbc2"}  # of Debian
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
NAMED = "ODBC Driver 18 for SQL Server"


class NotLoaded(Exception):
    """A library is not on this machine, and cannot be brought there."""


def load_ltdl(folder: Path) -> None:
    """
    Load what mssql-python needs into this process, before its first connection.

    Args:
        folder: where it is made.

    Raises:
        NotLoaded: with the reason.
    """
    if in_process(Path(LTDL)):
        return
    try:
        compile_ltdl(folder)
    except NotLoaded:
        load(LTDL, folder)


def load_odbc(folder: Path) -> None:
    """Load what pyodbc needs besides; see `load_ltdl`."""
    load(ODBC, folder)


def load(file: str, folder: Path) -> None:
    """Load a library of the machine, or of a package."""
    if not in_process(Path(file)):
        unpack(PACKAGES[file], folder)
        if not any(in_process(found) for found in folder.rglob(file)):
            raise NotLoaded(f"{PACKAGES[file]} has no {file} for this machine")


def compile_ltdl(folder: Path) -> None:
    """Compile a libltdl and load it."""
    source = folder / "ltdl.c"
    source.write_text(SOURCE)
    options = ["-shared", "-fPIC", f"-Wl,-soname,{LTDL}", "-o", LTDL]
    try:
        run(["cc", *options, source.name, "-ldl"], folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotLoaded(f"no compiler makes a {LTDL}: {error}") from None
    if not in_process(folder / LTDL):
        raise NotLoaded(f"the compiled {LTDL} cannot be loaded")


def in_process(file: Path, mode: int = ctypes.RTLD_GLOBAL) -> bool:
    """Whether a library is loaded now."""
    try:
        ctypes.CDLL(str(file), mode=mode)
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


def odbc_driver() -> Path:
    """Return the ODBC driver of mssql-python, which can be loaded."""
    spec = find_spec("mssql_python_odbc")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [file for place in places for file in Path(place).rglob("libmsodbcsql*")]
    # locally: its functions have the names of those of unixODBC
    usable = next((file for file in found if in_process(file, ctypes.RTLD_LOCAL)), None)
    if usable is None:
        raise NotLoaded("mssql_python_odbc has no ODBC driver that can be loaded")
    return usable


def odbc_settings() -> str:
    """Return an odbcinst.ini that names this ODBC driver."""
    return f"[{NAMED}]\nDriver={odbc_driver()}\n"
