"""
The two Python drivers for SQL Server, behind one interface: mssql-python and pyodbc.

mssql-python contains Microsoft's ODBC driver and can return Arrow. pyodbc needs unixODBC and "ODBC
Driver 18 for SQL Server" (or 17) on the machine. The first connect imports the driver. Other
modules do not ask which driver is used, but what its cursor can do.

PostgreSQL has a limit for idle transactions, idle_in_transaction_session_timeout. SQL Server has no
such limit. So a timer of this process, the watchdog, runs beside each transaction. If no statement
has run for as long as the limit, the watchdog ends the session, and the server undoes the
transaction.

In two cases the watchdog does not help:

- The whole process stands still. Then the watchdog stands still too.
- A statement runs. The watchdog leaves it to the driver's timeout for statements. If a fetch of
  mssql-python hangs, no thread can end it, because the fetch holds Python's global lock.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlq_spark.database.sqlserver.url import Target
from sqlq_spark.database.tokens import azure_token
from sqlq_spark.errors import BadOption, MissingDriver
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlq_spark.database import Value

MSSQL_PYTHON, PYODBC = "mssql-python", "pyodbc"
# the first of these drivers that is installed is used
ODBC = ("ODBC Driver 18 for SQL Server", "ODBC Driver 17 for SQL Server")

ODBC_PROVIDER = "msodbcsql18"  # mssql-python's name for Microsoft's ODBC driver
PROVIDER_VARIABLE = "MSSQL_PYTHON_NATIVE_PROVIDER"  # the user's choice of another driver

# the connection attribute SQL_COPT_SS_ACCESS_TOKEN of Microsoft's ODBC driver
ACCESS_TOKEN = 1256
# the scope of tokens for SQL Server; national clouds have other scopes
AZURE_SCOPE = "https://database.windows.net/.default"

# words in the error of a driver that lacks shared libraries
NOT_LOADED = ("Failed to load the driver", "Can't open lib", "Data source name not found")
# the SQLSTATE of an error in a message; SQLSTATEs of the classes 00 and 01 are no errors
FAULT = re.compile(r"\[(?!0[01])(\w{5})\]")


INSTALL = (
    "Run in the folder of the clone: pip install '.[sqlserver]' (from a wheel: "
    "pip install '<file of the wheel>[sqlserver]') for mssql-python, which needs the system's "
    "libltdl and libgssapi-krb5. Or use pyodbc, with unixODBC and Microsoft's ODBC Driver 18 for "
    "SQL Server"
)


class NotHere(Exception):
    """A driver cannot be used on this machine."""


class Incomplete(Exception):
    """A result ended early, but the driver raised no error. `args` are the SQLSTATE and a text."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """One way to connect."""

    open: Callable[[Target, str, int], Any]  # (target, application, seconds) → connection
    errors: tuple[type[Exception], ...]  # the errors that the driver raises
    # sets on a cursor the types of values before they are bound
    set_types: Callable[[Any, Sequence[Value]], None] = lambda *_: None


def open_session(target: Target, application: str, seconds: int) -> tuple[Driver, Any]:
    """
    Connect with the driver that the url names, or with the first that this machine can load.

    Raises:
        MissingDriver: this machine can load none of the drivers.
        Exception: one of `Driver.errors`, which `errors.read_error` reads.
    """
    missing: list[str] = []
    for name, load in candidates(target):
        try:
            driver = load()
        except NotHere as error:
            missing.append(f"{name}: {error}")
            continue
        try:
            return driver, driver.open(target, application, seconds)
        except driver.errors as error:
            part = next((text for text in NOT_LOADED if text in str(error)), None)
            if part is None:
                raise
            missing.append(f"{name}: {part}")
    raise MissingDriver(database=SQLSERVER.database, found="; ".join(missing), fix=INSTALL)


def candidates(target: Target) -> Iterator[tuple[str, Callable[[], Driver]]]:
    """
    Yield the drivers to try: name → function that loads it.

    pyodbc comes first, because it also reports an error's number if the login's language is not
    English.
    """
    asked = target.driver
    if not asked and target.authentication == "ActiveDirectoryDefault":
        asked = MSSQL_PYTHON  # the ODBC driver does not know this authentication
    wanted = asked.lower()
    if wanted in {"", PYODBC}:
        yield PYODBC, lambda: pyodbc(ODBC)
    elif wanted.startswith("odbc driver "):
        yield PYODBC, lambda: pyodbc((asked,))
    elif wanted != MSSQL_PYTHON:
        raise BadOption(
            option="url, parameter driver",
            found=asked[:60],
            expected=f"{MSSQL_PYTHON}, {PYODBC} or {ODBC[0]}",
        )
    if wanted in {"", MSSQL_PYTHON}:
        yield MSSQL_PYTHON, mssql_python


def mssql_python() -> Driver:
    """
    Load mssql-python without its pool, which would keep transactions open.

    mssql-python has two native drivers: Microsoft's ODBC driver, and a new one that will become the
    default. The new one was not tested with this package, so the ODBC driver is chosen here, unless
    the variable MSSQL_PYTHON_NATIVE_PROVIDER is set. The choice cannot change after the first
    connection of the process. Older versions have only the ODBC driver.
    """
    module = import_driver("mssql_python")
    raised = import_driver("mssql_python.exceptions")
    module.pooling(enabled=False)
    if hasattr(module, "native_provider") and not os.environ.get(PROVIDER_VARIABLE):
        module.native_provider = ODBC_PROVIDER
    errors = (raised.Exception, raised.ConnectionStringParseError, RuntimeError, Incomplete)

    def open_(target: Target, _: str, seconds: int) -> Any:  # noqa: ANN401 - of the driver
        attributes = attributes_before(target)
        text = target.connection_string()
        return module.connect(text, autocommit=True, timeout=seconds, attrs_before=attributes)

    return Driver(open=open_, errors=errors)


def pyodbc(names: tuple[str, ...]) -> Driver:
    """Load pyodbc, with the first of some ODBC drivers that is installed."""
    module = import_driver("pyodbc")
    module.pooling = False
    installed = set(module.drivers())
    name = next((name for name in names if name in installed), None)
    if name is None:
        raise NotHere(f"the machine has no {' or '.join(names)}")

    def open_(target: Target, application: str, seconds: int) -> Any:  # noqa: ANN401
        attributes = attributes_before(target)
        text = target.connection_string(Driver=name, APP=application[:128])
        return module.connect(text, autocommit=True, timeout=seconds, attrs_before=attributes)

    # The types with their sizes; 0 means (max). Without a size, a text of more than 2,000
    # characters is sent as ntext, which a database refuses if its collation has supplementary
    # characters or UTF-8.
    sizes: dict[type, Any] = {
        str: (module.SQL_WVARCHAR, 0, 0),
        bytes: (module.SQL_VARBINARY, 0, 0),
    }

    def set_types(cursor: Any, values: Sequence[Value]) -> None:  # noqa: ANN401
        cursor.setinputsizes([sizes.get(type(value)) for value in values])

    return Driver(open=open_, errors=(module.Error, Incomplete), set_types=set_types)


def attributes_before(target: Target) -> dict[int, bytes]:
    """
    Return the attributes that both drivers set before they log in: the token, for the ODBC driver.

    The parameter `token_provider` of mssql-python is not used: it logs the text of a provider's
    error, which may hold a secret, and it asks for tokens of one cloud only.
    """
    if not target.token:
        return {}
    token = target.token.encode("utf-16-le")
    return {ACCESS_TOKEN: struct.pack("<I", len(token)) + token}


def entra_token(url: str) -> str:
    """Return a token of Microsoft Entra ID. The token names its user, so the url must not."""
    if Target.parse(url).user:
        expected = "no user in the url or as an option, because a token names its own"
        raise BadOption(option="credentials", found="azure", expected=expected)
    return azure_token(AZURE_SCOPE)


TOKENS: dict[str, Callable[[str], str]] = {"azure": entra_token}


def check_complete(cursor: Any) -> None:  # noqa: ANN401
    """
    Raise Incomplete if a driver has not fetched all rows.

    mssql-python fetches rows in blocks. If the connection breaks between two rows, mssql-python
    returns the rows before the break and raises no error. It only adds a message to its cursor.
    """
    for state, text in getattr(cursor, "messages", None) or ():
        fault = FAULT.match(state)
        if fault is not None:
            raise Incomplete(fault[1], text)


def import_driver(name: str) -> Any:  # noqa: ANN401 - a module without types
    """Import a driver's module. Raise NotHere if the module or its shared library is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotHere(str(error)) from None


# ---------------------------------------------------------------- idle transactions


class Watchdog:
    """Ends one session if its transaction is idle for too long. Threads may share a watchdog."""

    def __init__(
        self, end: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._end = end  # closes the session; called only while no statement runs
        self._clock = clock
        self._turn = threading.Lock()  # held by the thread that uses the session
        self._timer: threading.Timer | None = None
        # seconds for which the open transaction may be idle; None if no transaction is open
        self._limit: float | None = None
        self._rested = clock()  # when the last statement ended
        self.ended: float | None = None  # the limit that was reached, if the session was ended

    @contextmanager
    def statement(self) -> Iterator[None]:
        """Stop the watchdog while a statement runs, for which the driver has a timeout."""
        with self._turn:
            try:
                yield
            finally:
                self._rested = self._clock()

    def watch(self, limit: float | None) -> None:
        """Set how long the transaction may be idle. `limit` is None if no transaction is open."""
        with self._turn:
            if limit == self._limit:
                return
            self._limit = limit
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if limit is not None:
                self._start(limit)

    def look(self) -> None:
        """End the session if it was idle too long. If not, look again at the end of the limit."""
        with self._turn:
            limit = self._limit
            if limit is None or self.ended is not None:
                return
            left = self._rested + limit - self._clock()
            if left > 0:
                self._start(left)
                return
            self.ended = limit
            self._end()

    def _start(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.look)
        self._timer.daemon = True
        self._timer.start()
