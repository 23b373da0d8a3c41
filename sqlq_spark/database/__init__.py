"""
The seam between the package and its databases.

A dialect is a package beside this module. It has a `Connection`, the SQL files of the statements,
and everything else in which one database differs from another. The statements have the same names
for every database: see statements.py. The rest of the package uses a `Connection` by these names
and imports no driver.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from sqlq_spark.database.names import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import Names, QueueAddress

Value: TypeAlias = "str | int | float | bool | bytes | None"
Row: TypeAlias = "tuple[Any, ...]"


class Connection(Protocol):
    """
    One session with a database.

    `tables` fill the braces of a statement and are quoted here; `values` are bound.
    Every method raises a `DatabaseFailure` that says which statement failed and how to fix it.
    The failure undoes the transaction; between `savepoint` and `release`, the work since then.
    """

    names: Names  # how this database writes names
    lacks: frozenset[StatementName]  # statements that it has no use for; callers ask
    server: str  # the url without secrets
    state: str  # the schema of the state tables
    application: str  # what the DBA sees while a transaction is open

    def run(
        self,
        statement: StatementName,
        *,
        tables: dict[str, QueueAddress] | None = None,
        **values: Value,
    ) -> None:
        """Execute a statement for its effect."""

    def rows(
        self,
        statement: StatementName,
        *,
        tables: dict[str, QueueAddress] | None = None,
        **values: Value,
    ) -> list[Row]:
        """Execute a statement and return its rows."""

    def arrow(
        self,
        statement: StatementName,
        *,
        tables: dict[str, QueueAddress],
        **numbers: int | list[int],
    ) -> pa.Table:
        """Execute a statement and return its rows in columns; a uuid is 16 bytes."""

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """Insert rows in bulk, in the transaction that is open; columns go by name."""

    def store(self, table: str, rows: pa.Table) -> None:
        """Insert the pages of one payload into a state table; nothing is done for no rows."""

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """Return a queue's columns in lower case → type; empty where the table is absent."""

    def patience(self, seconds: float | None) -> None:
        """Set how long the open transaction waits for a lock; None restores its own limit."""

    def printed(self, address: QueueAddress) -> str:
        """The whole address for people, which `names.parse_queue` reads."""

    def canonical(self, address: QueueAddress) -> str:
        """The whole address as it stands in messages, which `parsed` reads."""

    def parsed(self, text: str) -> QueueAddress:
        """Read an address from a message, which is untrusted."""

    def identities(self, addresses: Sequence[QueueAddress]) -> list[Hashable]:
        """Return a value for each address; the values of two spellings of one table are equal."""

    def close(self) -> None:
        """End the session; the server undoes what was not committed."""


class Dialect(Protocol):
    """What the package of one kind of database exports."""

    TOKENS: Mapping[str, Callable[[str], str]]  # option `credentials` → password for a url

    def connect(self, url: str, *, application: str, timeout: float, state: str) -> Connection:
        """Open a session; `timeout` limits each statement and wait of a transaction, in seconds."""

    def fill_names(
        self, text: str, state: str, tables: dict[str, QueueAddress], **words: str
    ) -> str:
        """Put quoted names into the braces of a statement; connects to nothing."""


def dialect_named(name: str) -> Dialect:
    """Import a dialect with its driver."""
    return cast("Dialect", import_module(f"{__name__}.{name}"))


def of(url: str) -> Dialect:
    """The dialect that speaks to a url, imported with its driver."""
    return dialect_named(names_of(url).dialect)


@contextmanager
def transaction(connection: Connection, *, timeout: float) -> Iterator[None]:
    """
    Commit what the block did, or undo all of it.

    Timeouts and the application's name hold for this transaction only; `timeout` is in seconds.
    """
    connection.run("begin")
    try:
        milliseconds = str(int(timeout * 1000))
        connection.rows("timeouts", milliseconds=milliseconds, application=connection.application)
        yield
    except BaseException:
        rollback(connection)
        raise
    connection.run("commit")


@contextmanager
def attempt(connection: Connection) -> Iterator[None]:
    """
    Run the block in the open transaction; a failure undoes only the block.

    Raises:
        DatabaseFailure: of the block. The transaction goes on, except after ConnectionLost.
    """
    connection.run("savepoint")
    yield
    connection.run("release")


def load_checked(connection: Connection, queue: QueueAddress, rows: pa.Table) -> None:
    """Insert rows in bulk; checks that the table defers to the commit fail here."""
    connection.load(queue, rows)
    if "check_deferred" not in connection.lacks:
        connection.run("check_deferred")


def rollback(connection: Connection) -> None:
    """Undo the open transaction; close a connection that cannot, which undoes it too."""
    try:
        connection.run("rollback")
    except Exception:  # noqa: BLE001 - the caller's error is the one to raise
        connection.close()


def read_clock(connection: Connection) -> datetime:
    """Return the database's time, in UTC."""
    found: datetime = connection.rows("clock")[0][0]
    return found.replace(tzinfo=UTC)
