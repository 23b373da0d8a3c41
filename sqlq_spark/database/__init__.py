"""
The seam between the package and its databases.

A dialect is a package beside this module, with the name that its `Names` have. It exports what
`Dialect` lists and extends `Connection`. It has the SQL files that statements.py lists, with the
same statements as every other dialect, and all else in which one database differs from another.
What is known of it before a connection is in wire/<dialect>.py. `LISTED` in wire/dialects.py is the
only list that names it. The rest of the package uses a `Connection` by these names and imports no
driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, cast

from sqlq_spark import errors
from sqlq_spark.options.connection import ZONE, Trusted
from sqlq_spark.options.names import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from sqlq_spark.database.results import Result
    from sqlq_spark.database.statements import StatementName, Statements
    from sqlq_spark.wire.address import Names, QueueAddress

R = TypeVar("R")
Access: TypeAlias = Literal["read", "insert", "delete"]  # to a table
# how a table is used → what keeps it as it is
LOCKS: dict[Access, StatementName] = {
    "read": "lock_read",
    "insert": "lock_insert",
    "delete": "lock_delete",
}
Value: TypeAlias = "str | int | float | bool | bytes | None"
Tables: TypeAlias = "dict[str, QueueAddress]"  # by their names in a statement
# failures after which the whole transaction may run again
TRANSIENT = (
    errors.ConnectionLost,
    errors.Deadlock,
    errors.DestinationChanged,
    errors.LockTimedOut,
    errors.ReceiptExists,
    errors.ServerShort,
)


SUPPRESSED = "an error was suppressed in a transaction, which was undone because of it"


class Work(Enum):
    """What a session has open, so what a failure undoes."""

    NONE = "nothing"
    TRANSACTION = "the transaction"
    SAVEPOINT = "the work since the savepoint"


# statement → what is open after it
OPENS: dict[str, Work] = {
    "begin": Work.TRANSACTION,
    "savepoint": Work.SAVEPOINT,
    "release": Work.TRANSACTION,
    "commit": Work.NONE,
    "rollback": Work.NONE,
}


class TransactionUndone(Exception):
    """
    A failure in an attempt ended the whole transaction. The session lives.

    It is no error of the package, so that no code in the transaction takes it for one and goes on.
    `transaction` raises the failure instead.
    """

    def __init__(self, failure: errors.DatabaseFailure) -> None:
        super().__init__()
        self.failure = failure


class Connection(ABC):
    """
    One session with a database.

    `tables` fill the braces of a statement and are quoted here; `values` are bound.
    Every method raises a `DatabaseFailure` that says which statement failed and how to fix it.
    A failure undoes what is open, see `undo`: the work since the savepoint, or the transaction.
    """

    names: ClassVar[Names]  # how this database writes names
    lacks: ClassVar[frozenset[StatementName]]  # statements that it has no use for; callers ask
    shapes: ClassVar[Mapping[str, str]]  # that a queue's table may have → what gives it one
    most_moved: ClassVar[int]  # bytes of messages that one statement moves to another table

    def __init__(
        self,
        raw: Any,  # noqa: ANN401 - of a driver
        *,
        server: str,
        state: str,
        timeout: float,
        application: str,
    ) -> None:
        self._raw = raw
        self.server = server  # the url without secrets
        self.state = state  # the schema of the state tables
        self.application = application  # what the DBA sees while a transaction is open
        self.timeout = timeout  # seconds for each statement and wait of a transaction
        self.lock_timeout = timeout  # seconds for each wait for a lock, in the open transaction
        self.checked_queues: set[QueueAddress] = set()  # whose columns have the transport's types
        self.work = Work.NONE
        self.trusted = Trusted()  # whose tables it uses
        self.seqs_skipped = 0  # by the open transaction, see collisions.py
        # what the open transaction does last: looks once more at tables that no lock keeps
        self.before_commit: list[Callable[[], None]] = []
        # How a transaction commits: it is given what commits. A selftest acts beside a commit here.
        self.around_commit: Callable[[Callable[[], None]], None] = commit_at_once

    @abstractmethod
    def _read(
        self, statement: StatementName, tables: Tables, values: Mapping[str, Value]
    ) -> Result:
        """Execute a statement and return its columns; all its results must have the same."""

    def rows(
        self,
        statement: StatementName,
        row_type: type[R],
        *,
        tables: Tables | None = None,
        **values: Value,
    ) -> list[R]:
        """Execute a statement and return its rows; the fields of `row_type` are its columns."""
        return self._read(statement, tables or {}, values).rows(statement, row_type)

    def row(
        self,
        statement: StatementName,
        row_type: type[R],
        *,
        tables: Tables | None = None,
        **values: Value,
    ) -> R | None:
        """Execute a statement that returns one row at most."""
        rows = self._read(statement, tables or {}, values).rows(statement, row_type)
        return rows[0] if rows else None

    def values(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> list[Any]:
        """Execute a statement that returns one column."""
        return self._read(statement, tables or {}, values).values(statement)

    def value(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> Any:  # noqa: ANN401 - of any column
        """Execute a statement that returns one column of one row at most; None: there is no row."""
        found = self._read(statement, tables or {}, values).values(statement)
        return found[0] if found else None

    def run(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> None:
        """Execute a statement whose result is of no use."""
        self._read(statement, tables or {}, values)

    @abstractmethod
    def arrow(self, statement: StatementName, *, tables: Tables, **values: int | str) -> pa.Table:
        """Execute a statement and return its rows in columns; a uuid is 16 bytes."""

    @abstractmethod
    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """Insert rows in bulk, in the transaction that is open; columns go by name."""

    @abstractmethod
    def store(self, table: str, rows: pa.Table) -> None:
        """Insert the pages of one payload into a state table; nothing is done for no rows."""

    @abstractmethod
    def stored_bytes(self, texts: pa.Array) -> pa.Array:
        """Return how many bytes the server stores of each text in a column of headers."""

    @abstractmethod
    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """Return a queue's columns in lower case → type; empty where the table is absent."""

    @abstractmethod
    def run_script(self, text: str) -> list[Any]:
        """Run statements as the tool of a DBA does; return the first column of any rows."""

    def run_batch(self, text: str) -> list[Any]:
        """As `run_script`, for a text with names of others, in which no line ends a batch."""
        return self.run_script(text)

    @abstractmethod
    def script_databases(self, prefix: str) -> dict[str, tuple[str, str]]:
        """
        Return databases for the selftest: collation → name, which begins so, and its script.

        The collations are those of `names.collations` that the server knows.
        """

    @abstractmethod
    def explain(self, tables: Tables) -> list[str]:
        """
        Compile each statement without running it; return what is wrong with the plan of which.

        The session is of no other use then.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session; the server undoes what was not committed."""

    @abstractmethod
    def _undo(self, work: Work) -> Work | None:
        """Undo on the server what is open; return what is open then. None: the session is lost."""

    def undo(self) -> bool:
        """
        Undo the work since the savepoint, or else the transaction, or nothing.

        This is the one place that undoes: after a failure of a statement, and after any other
        error in the block of `transaction` or `attempt`. Where an error has ended the whole
        transaction, nothing is open afterwards.

        Returns:
            Whether the session lives. The server undoes everything of one that is lost.
        """
        left = self._undo(self.work)
        self.work = Work.NONE if left is None else left
        return left is not None

    def begin(self) -> None:
        """Begin a transaction, with the connection's time limit and name."""
        milliseconds = int(self.timeout * 1000)
        self.run("begin", milliseconds=milliseconds, application=self.application)
        self.lock_timeout = self.timeout

    def set_lock_timeout(self, seconds: float | None) -> None:
        """Set how long the open transaction waits for a lock; None restores its own limit."""
        limit = self.timeout if seconds is None else seconds
        self.run("set_lock_timeout", milliseconds=str(max(1, int(limit * 1000))))
        self.lock_timeout = limit

    def whole(self, address: QueueAddress) -> QueueAddress:
        """Return an address with its schema, and with its database where the names have one."""
        return self.names.qualify(address)

    def printed(self, address: QueueAddress) -> str:
        """Return the whole address for people, which `names.parse_queue` reads."""
        return self.names.print_address(self.whole(address))

    def canonical(self, address: QueueAddress) -> str:
        """Return the whole address as messages contain it, which `names.parse_address` reads."""
        return self.names.canonical_address(self.whole(address))

    def _place(self, statement: str, queue: QueueAddress | None, role: str = "") -> Place:
        return Place(
            statement=statement,
            server=self.server,
            state=self.state,
            queue=queue,
            target=self.state if queue is None else self.printed(queue),
            role=role,
            seconds=self.timeout,
            lock_seconds=self.lock_timeout,
            columns=self.names.queue_columns,
        )

    def identities(self, addresses: Sequence[QueueAddress]) -> list[Hashable]:
        """Return a value for each address; the values of two spellings of one table are equal."""
        return [self.whole(each) for each in addresses]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class StateSchema:
    """A schema with state tables."""

    schema: str
    may_enter: bool  # this login, and read the version
    roles: str  # that may enter it


STATE_TABLE = "a state table"
NEW_QUEUE = "a queue that is created"
ANY_OTHER = "any other statement"

# the kind of an error by its code, and the statement or its table → what the error means there; a
# kind without a row means itself
MEANINGS: dict[tuple[type[errors.DatabaseFailure], str], type[errors.DatabaseFailure]] = {
    (errors.QueueNotFound, STATE_TABLE): errors.StateNotInstalled,
    (errors.QueueNotFound, NEW_QUEUE): errors.StatementRefused,
    (errors.NotAQueue, STATE_TABLE): errors.StatementRefused,
    (errors.ReceiptExists, "begin_receipt"): errors.ReceiptExists,
    (errors.ReceiptExists, ANY_OTHER): errors.StatementRefused,
    (errors.TimeZoneNotFound, "endpoint_zone"): errors.TimeZoneNotFound,
    (errors.TimeZoneNotFound, ANY_OTHER): errors.StatementRefused,
    (errors.DatabaseNotFound, "connect"): errors.DatabaseNotFound,
    (errors.DatabaseNotFound, ANY_OTHER): errors.StatementRefused,
    (errors.LoginRefused, "connect"): errors.LoginRefused,
    (errors.LoginRefused, ANY_OTHER): errors.StatementRefused,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a driver's error came. A dialect finds its class by the codes of its database."""

    statement: str = "connect"
    server: str
    state: str = ""  # schema of the state tables
    queue: QueueAddress | None = None  # None: the statement uses state tables only
    target: str = ""  # the queue for people, or the schema of the state tables
    role: str = ""  # of the queue in the statement
    seconds: float = 0  # that a statement may take
    lock_seconds: float = 0  # that it may wait for a lock
    columns: str = ""  # that a queue has

    @property
    def creates(self) -> bool:
        return self.statement.startswith("create")

    def error(
        self, kind: type[errors.DatabaseFailure], reason: str, *, code: str = "", fix: str = ""
    ) -> errors.DatabaseFailure:
        """Return what `kind` means for this statement, with the facts that its text names."""
        facts = self.facts() | {"reason": reason, "code": code, "fix": fix}
        scope = self.row_of(kind)
        meaning = kind if scope is None else MEANINGS[kind, scope]
        return meaning.from_facts(facts)

    def row_of(self, kind: type[errors.DatabaseFailure]) -> str | None:
        """Return which row of MEANINGS holds for `kind` here: the nearest one, or none."""
        scopes = [self.statement]
        if self.queue is None:
            scopes.append(STATE_TABLE)
        elif self.creates:
            scopes.append(NEW_QUEUE)
        scopes.append(ANY_OTHER)
        return next((scope for scope in scopes if (kind, scope) in MEANINGS), None)

    def facts(self) -> dict[str, Any]:
        """Return the facts of an error that are known before the server answers."""
        return {
            "statement": self.statement,
            "seconds": self.seconds,
            "server": self.server,
            "schema": self.state,
            "queue": self.target,
            "table": self.target,
            "columns": self.columns,
        }


class Dialect(Protocol):
    """What the package of one kind of database exports."""

    LACKS: frozenset[StatementName]  # statements that it has no use for; callers ask a connection
    STATEMENTS: Statements  # all others
    TOKENS: Mapping[str, Callable[[str], str]]  # option `credentials` → a token for a url

    def connect(
        self,
        url: str,
        *,
        application: str,
        timeout: float,
        state: str,
        credential: str | None = None,
    ) -> Connection:
        """
        Open a session.

        Args:
            url: of this kind of database, with the login.
            application: what the DBA sees between transactions, where the driver takes a name.
            timeout: seconds to wait for the server, and for each statement.
            state: schema of the state tables.
            credential: what the option `credentials` gave for this attempt: a password or a token.

        Raises:
            BadOption: the url cannot be read, or has another login beside the credential.
            DatabaseFailure: in the server's words; or the server is too old, or not verified.
            MissingDriver: no driver can be used on this machine.
        """

    def fill_names(self, text: str, state: str, tables: Tables, **words: str) -> str:
        """Put quoted names into the braces of a statement; connects to nothing."""

    def join_script(self, parts: Iterable[str]) -> str:
        """Return the script of some texts, each ended as the tool of a DBA needs it."""


def dialect_named(name: str) -> Dialect:
    """Import a dialect with its driver."""
    return cast("Dialect", import_module(f"{__name__}.{name}"))


def dialect_of(url: str) -> Dialect:
    """The dialect that speaks to a url, imported with its driver."""
    return dialect_named(names_of(url).dialect)


@contextmanager
def transaction(connection: Connection, *, timeout: float | None = None) -> Iterator[None]:
    """
    Commit what the block did, or undo all of it.

    Timeouts and the application's name hold for this transaction only; `timeout` is in seconds, by
    default the connection's.
    """
    own = connection.timeout
    connection.before_commit.clear()
    connection.seqs_skipped = 0
    try:
        connection.timeout = own if timeout is None else timeout
        connection.begin()
        yield
        for look_again in connection.before_commit:
            look_again()
        assert connection.work is not Work.NONE, SUPPRESSED  # noqa: S101
    except BaseException as error:
        # a failure of a statement has undone it already
        if connection.work is not Work.NONE and not undo_all(connection):
            connection.close()  # the server undoes it then
        if isinstance(error, TransactionUndone):
            raise error.failure from None
        raise
    else:
        connection.around_commit(partial(connection.run, "commit"))
    finally:
        connection.timeout = own


def commit_at_once(commit: Callable[[], None]) -> None:
    """Commit, and do nothing beside it."""
    commit()


def undo_all(connection: Connection) -> bool:
    """Undo the open transaction; False: the session is lost."""
    is_alive = True
    while is_alive and connection.work is not Work.NONE:
        is_alive = connection.undo()
    return is_alive


@contextmanager
def attempt(connection: Connection) -> Iterator[None]:
    """
    Run the block; an error in it undoes only the block, and the transaction goes on.

    Raises:
        TransactionUndone: the server undid the whole transaction, as some databases do after an
            error in a trigger.
    """
    connection.run("savepoint")
    try:
        yield
    except BaseException as error:
        # a failure of a statement has undone the block already
        if connection.work is Work.SAVEPOINT and not connection.undo():
            connection.close()
        is_undone = connection.work is Work.NONE and not isinstance(error, errors.ConnectionLost)
        if is_undone and isinstance(error, errors.DatabaseFailure):
            raise TransactionUndone(error) from None
        raise
    connection.run("release")


def check_types(connection: Connection, queue: QueueAddress) -> None:
    """
    Make sure that the columns of a queue have the transport's types, in the open transaction.

    Called where a queue's rows are first read or deleted: some other types can be read, and mean
    something else. A table that is absent is left to the statement that reads it.

    Raises:
        NotAQueue.
    """
    name = connection.names.quote_address(queue)
    faults = connection.values("wrong_types", tables={"queue": queue}, table_name=name)
    if faults:
        reason = "; ".join(faults)
        columns = connection.names.queue_columns
        raise errors.NotAQueue(queue=connection.printed(queue), reason=reason, columns=columns)


def check_types_once(connection: Connection, queue: QueueAddress) -> None:
    """Check a queue's types as `check_types`, once for each connection: tasks come often."""
    if queue not in connection.checked_queues:
        check_types(connection, queue)
        connection.checked_queues.add(queue)


def lock_table(
    connection: Connection, queue: QueueAddress, how: Access, *, role: str = "queue"
) -> None:
    """
    Keep a table as it is until the commit, if it can; fails if it is absent or locked.

    `role` is its name in the statements that use it, for the rights that an error asks for.
    """
    if LOCKS[how] in connection.lacks:
        return
    try:
        connection.run(LOCKS[how], tables={"queue": queue, role: queue})
    except errors.StatementRefused as error:
        raise errors.NotAQueue(
            queue=connection.printed(queue),
            reason=error.reason,
            columns=connection.names.queue_columns,
        ) from None


def load_checked(connection: Connection, queue: QueueAddress, rows: pa.Table) -> None:
    """Insert rows in bulk; checks that the table defers to the commit fail here."""
    connection.load(queue, rows)
    if "check_deferred" not in connection.lacks:
        connection.run("check_deferred")


def read_clock(connection: Connection) -> datetime:
    """Return the database's time, in UTC."""
    found: datetime = connection.value("clock")
    return found.replace(tzinfo=UTC)


def endpoint_zone(connection: Connection, option: str | None) -> str:
    """
    Return the time zone of the .NET endpoints' sessions, in which PostgreSQL computes due times.

    On PostgreSQL a due time is a timestamptz. The transport makes it of the server's UTC clock, as
    a local time of its session's zone, and compares it in the same way. So it is right only in
    that zone: that of the option, or that of a session without settings of its own.
    On SQL Server a due time is a datetime in UTC, whatever the zone.

    Raises:
        BadOption: the server knows no zone of the option, endpointTimeZone.
        MissingOption: this session's own zone hides the server's.
    """
    if "endpoint_zone" in connection.lacks:
        return "UTC"
    try:
        zone: str | None = connection.value("endpoint_zone", zone=option)
    except errors.TimeZoneNotFound:
        if option is None:
            raise
        raise errors.BadOption(option="endpointTimeZone", found=option, expected=ZONE) from None
    if zone is None:
        raise errors.MissingOption(
            option="endpointTimeZone",
            example=f"{ZONE}; this session cannot read the server's own zone, because PGTZ or the "
            "options of the url set another one",
        )
    return zone


# ---------------------------------------------------------------- which addresses name one queue
# On SQL Server one queue has several spellings: with and without its database, and in any case
# where the database's collation ignores case. Only the server can compare them. Text that is equal
# to a queue's own address is not looked up.


def find_same(connection: Connection, queue: QueueAddress, texts: Iterable[str]) -> set[str]:
    """Return which addresses out of messages, untrusted, name a queue; one look for all."""
    parsed: dict[str, QueueAddress] = {}
    for text in texts:
        try:
            parsed[text] = connection.names.parse_address(text)
        except errors.BadAddress:
            continue
    own, *others = connection.identities([queue, *parsed.values()])
    return {text for text, each in zip(parsed, others, strict=True) if each == own}


def unite(
    connection: Connection, addresses: Iterable[QueueAddress]
) -> dict[QueueAddress, QueueAddress]:
    """Return for each address the first one that names the same queue, with its schema."""
    distinct = list(dict.fromkeys(addresses))
    first: dict[object, QueueAddress] = {}
    return {
        each: first.setdefault(identity, connection.names.qualify(each))
        for each, identity in zip(distinct, connection.identities(distinct), strict=True)
    }
