"""
The seam between the package and its databases.

A dialect is a module beside this one with a `.sql` file of the same name: whole statements, each
under a name.
The names and their order are the same for every database; a missing or stray one fails on load.
The rest of the package speaks to a `Connection` by those names and never sees a driver.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from sqlq_spark.wire.address import QueueAddress

Value: TypeAlias = "str | int | float | bool | bytes | None"
Row: TypeAlias = "tuple[Any, ...]"

# the url's scheme → the dialect's module
SCHEMES = {"postgresql": "postgresql", "postgres": "postgresql", "sqlserver": "sqlserver"}
# a dialect's SQL files, one for each concern
FILES = (
    "transactions",
    "schema",
    "peek",
    "receive",
    "receipts",
    "staging",
    "subscriptions",
    "delayed",
    "browse",
    "checks",
    "rights",
)
EXAMPLES = "postgresql://user@host:5432/database or sqlserver://user@host:1433/database"


@dataclass(frozen=True, slots=True)
class Destination:
    """A table that messages are to go to, as the database knows it."""

    identity: int  # while it exists
    catalog: str | None
    here: bool  # in the database of the connection
    schema: str
    table: str
    missing: str | None  # the first column that it lacks
    may_insert: bool
    owner: str
    same_owner: bool  # as the queue that is read
    settled: bool  # once it is locked, no untrusted owner can put another table in its place
    plain: bool  # an INSERT runs nothing that would have to be looked at
    code: str | None = None  # else the first thing of an untrusted owner that it would run
    locks: str | None = None  # what this transaction locks under the same name; None: not asked


class Connection(Protocol):
    """
    One session with a database.

    `tables` fill the braces of a statement and are quoted here; `values` are bound.
    Every method raises a `DatabaseFailure` that says which statement failed and how to fix it.
    The transaction is then undone; from the statement `savepoint` to `release`, what came since.
    """

    server: str  # where it leads to, without secrets
    state: str  # the schema of the state tables
    application: str  # what the DBA sees while a transaction is open

    def run(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> None:
        """Execute a statement for its effect."""

    def rows(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> list[Row]:
        """Execute a statement and return its rows."""

    def arrow(
        self, statement: str, *, tables: dict[str, QueueAddress], **numbers: int | list[int]
    ) -> pa.Table:
        """Execute a statement and return its rows in columns; a uuid is 16 bytes."""

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """Insert rows in bulk, in the transaction that is open; columns go by name."""

    def store(self, table: str, rows: pa.Table) -> None:
        """Insert the pages of one payload into a state table; nothing is done for no rows."""

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """A queue's columns in lower case → type; empty where the table is absent."""

    def destinations(
        self, queues: Sequence[QueueAddress], columns: Sequence[str], source: QueueAddress | None
    ) -> dict[QueueAddress, Destination]:
        """
        What is known of tables that messages are to go to; fails for none of them.

        `columns` are those that each must have, `source` is the queue that is read, if one is.
        """

    def locks(self, found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
        """By identity: whether this transaction has locked it, and what else of the same name."""

    def patience(self, seconds: float | None) -> None:
        """Wait so long for locks, in the transaction that is open; None: as long as it said."""

    def printed(self, address: QueueAddress) -> str:
        """The canonical address, as it stands in messages."""

    def parsed(self, text: str) -> QueueAddress:
        """An address as it stands in messages, where anyone may have written it."""

    def close(self) -> None:
        """End the session; what was not committed is undone."""


class Dialect(Protocol):
    """What one kind of database brings: how to connect, and how names are read and written."""

    def connect(self, url: str, *, application: str, timeout: float, state: str) -> Connection:
        """Open a session; `timeout` seconds bound every statement and wait of a transaction."""

    def printed(self, address: QueueAddress) -> str:
        """The canonical address, as it stands in messages."""


def kind(url: str) -> str:
    """
    The name of the dialect that speaks to a url.

    Raises:
        BadOption: no dialect speaks this scheme.
    """
    scheme, colon, _ = url.partition("://")
    try:
        return SCHEMES[scheme.lower()]
    except KeyError:
        found = f"{scheme}://…" if colon else "…"  # never the text itself: it may hold a password
        raise BadOption("url", found, EXAMPLES) from None


def of(url: str) -> Dialect:
    """The dialect that speaks to a url, imported with its driver."""
    return cast("Dialect", import_module(f"{__name__}.{kind(url)}"))


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
    Do the block, in the transaction that is open, or undo the block alone.

    Raises:
        DatabaseFailure: the block was undone and the transaction goes on; not after ConnectionLost.
    """
    connection.run("savepoint")
    yield
    connection.run("release")


def rollback(connection: Connection) -> None:
    """Undo the open transaction; a connection that cannot is closed, which undoes it as well."""
    try:
        connection.run("rollback")
    except Exception:  # noqa: BLE001 - the caller's error is the one to tell
        connection.close()


def sql(dialect: str, name: str) -> str:
    """One of a dialect's SQL files, with its comments."""
    return files(__name__).joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8")


class Statements(dict[str, str]):
    """The statements of one dialect by name, comments stripped."""

    @classmethod
    def load(cls, dialect: str) -> Self:
        """Read `<dialect>.sql`; its names, and their order, must be those of the first dialect."""
        statements, model = cls.read(dialect), cls.read(next(iter(SCHEMES.values())))
        for found, expected in zip_longest(statements, model):
            if found != expected:
                message = f"{dialect}.sql: statement {found} stands where {expected} belongs"
                raise RuntimeError(message)
        return statements

    @classmethod
    def read(cls, dialect: str) -> Self:
        """Split a dialect's SQL files, in the order of FILES, at their `-- name:` lines."""
        text = "\n".join(sql(dialect, name) for name in FILES)
        _, *parts = re.split(r"^-- name: *(\w+) *$", text, flags=re.MULTILINE)
        bare = [re.sub(r"^ *--.*\n?", "", part, flags=re.MULTILINE).strip() for part in parts[1::2]]
        return cls(zip(parts[::2], bare, strict=True))
