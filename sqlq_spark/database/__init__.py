"""
The interface between the package and its databases.

The rest of the package calls only the methods of `Connection`, and imports no driver. A dialect is
a package in this folder that does what this interface asks, for one kind of database:

- Its folder has the name `Names.dialect`. It exports what the protocol `Dialect` lists, and has a
  subclass of `Connection`.
- It has the SQL files that statements.py lists. A statement has the same name in every dialect. A
  dialect lists in LACKS the statements that it does not have.
- All other differences between the databases are in the dialect too, except what must be known
  before a connection is opened. That is in wire/<dialect>.py.

`LISTED` in wire/dialects.py is the only list of all dialects.
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
Access: TypeAlias = Literal["read", "insert", "delete"]  # how a table is used
# how a table is used → the statement that locks its definition until the commit
LOCKS: dict[Access, StatementName] = {
    "read": "lock_read",
    "insert": "lock_insert",
    "delete": "lock_delete",
}
Value: TypeAlias = "str | int | float | bool | bytes | None"
Tables: TypeAlias = "dict[str, QueueAddress]"  # the name in a statement's braces → the table
# failures after which the caller can run the whole transaction again
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
    """The work that a session has open. A failure undoes it."""

    NONE = "nothing"
    TRANSACTION = "the transaction"
    SAVEPOINT = "the work since the savepoint"


# statement → the work that is open after it
OPENS: dict[str, Work] = {
    "begin": Work.TRANSACTION,
    "savepoint": Work.SAVEPOINT,
    "release": Work.TRANSACTION,
    "commit": Work.NONE,
    "rollback": Work.NONE,
}


class TransactionUndone(Exception):
    """
    A failure inside of `attempt` ended the whole transaction, but the session is still usable.

    This class does not derive from the package's errors, because code in the transaction could
    catch them and go on. `transaction` catches this exception and raises the failure that caused
    it.
    """

    def __init__(self, failure: errors.DatabaseFailure) -> None:
        super().__init__()
        self.failure = failure


class Connection(ABC):
    """
    One session with a database.

    The names of `tables` are quoted and put into the braces of a statement. `values` are bound as
    parameters. Every method raises a `DatabaseFailure` that says which statement failed and how to
    fix it. A failure also undoes the open work: what was done since the savepoint or, without a
    savepoint, the whole transaction. See `undo`.
    """

    names: ClassVar[Names]  # how this database writes names
    lacks: ClassVar[frozenset[StatementName]]  # statements this database lacks; callers ask first
    shapes: ClassVar[Mapping[str, str]]  # a shape of a queue's table → the SQL that makes it
    most_moved: ClassVar[int]  # how many bytes of messages one statement moves to another table

    def __init__(
        self,
        raw: Any,  # noqa: ANN401 - a driver's connection
        *,
        server: str,
        state: str,
        timeout: float,
        application: str,
    ) -> None:
        self._raw = raw
        self.server = server  # the url without secrets
        self.state = state  # the schema of the state tables
        self.application = application  # the name that a DBA sees while a transaction is open
        self.timeout = timeout  # seconds that a statement, or a wait for a lock, may take
        self.lock_timeout = timeout  # seconds that the open transaction waits for a lock
        self.checked_queues: set[QueueAddress] = set()  # see `check_types_once`
        self.work = Work.NONE
        self.trusted = Trusted()  # the owners whose tables this session uses
        self.seqs_skipped = 0  # how many seqs the open transaction has skipped: see collisions.py
        # functions called before the commit, which look again at tables that could not be locked
        self.before_commit: list[Callable[[], None]] = []
        # `transaction` calls this function with one argument: the function that commits. A selftest
        # puts another function here, which also does other work before or after the commit.
        self.around_commit: Callable[[Callable[[], None]], None] = commit_at_once

    @abstractmethod
    def _read(
        self, statement: StatementName, tables: Tables, values: Mapping[str, Value]
    ) -> Result:
        """Execute a statement and return its columns. All its results must have the same ones."""

    def rows(
        self,
        statement: StatementName,
        row_type: type[R],
        *,
        tables: Tables | None = None,
        **values: Value,
    ) -> list[R]:
        """Execute a statement and return its rows. `row_type` has a field for each column."""
        return self._read(statement, tables or {}, values).rows(statement, row_type)

    def row(
        self,
        statement: StatementName,
        row_type: type[R],
        *,
        tables: Tables | None = None,
        **values: Value,
    ) -> R | None:
        """Execute a statement that returns at most one row. Return None if there is no row."""
        rows = self._read(statement, tables or {}, values).rows(statement, row_type)
        return rows[0] if rows else None

    def values(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> list[Any]:
        """Execute a statement that returns one column, and return the values of that column."""
        return self._read(statement, tables or {}, values).values(statement)

    def value(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> Any:  # noqa: ANN401 - a column of any type
        """Execute a statement that returns one value. Return None if there is no row, or a null."""
        column = self._read(statement, tables or {}, values).values(statement)
        return column[0] if column else None

    def run(
        self, statement: StatementName, *, tables: Tables | None = None, **values: Value
    ) -> None:
        """Execute a statement and ignore its result."""
        self._read(statement, tables or {}, values)

    @abstractmethod
    def arrow(self, statement: StatementName, *, tables: Tables, **values: int | str) -> pa.Table:
        """Execute a statement and return its rows as an Arrow table. A uuid is 16 bytes."""

    @abstractmethod
    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """Insert rows in bulk, in the open transaction. Columns are matched by their names."""

    @abstractmethod
    def store(self, table: str, rows: pa.Table) -> None:
        """Insert the pages of one payload into a state table. Do nothing if there are no pages."""

    @abstractmethod
    def stored_bytes(self, texts: pa.Array) -> pa.Array:
        """Return how many bytes the server needs to store each text of a headers column."""

    @abstractmethod
    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """Return a queue's columns: name in lower case → type. Empty if the table is absent."""

    @abstractmethod
    def run_script(self, text: str) -> list[Any]:
        """Run a script as a DBA's tool does. Return the first column of all rows it returns."""

    def run_batch(self, text: str) -> list[Any]:
        """
        Run a text as one batch, without splitting it at lines `GO`.

        A name that a user chose may contain such a line.
        """
        return self.run_script(text)

    @abstractmethod
    def script_databases(self, prefix: str) -> dict[str, tuple[str, str]]:
        """
        Return the databases that the selftest needs: collation → (name, script that creates it).

        Each name begins with `prefix`. There is one database for each of `names.collations` that
        the server knows.
        """

    @abstractmethod
    def explain(self, tables: Tables) -> list[str]:
        """
        Compile each statement without running it, and return what is wrong with the server's plans.

        Afterwards the session cannot be used for anything else.
        """

    @abstractmethod
    def close(self) -> None:
        """End the session. The server undoes what was not committed."""

    @abstractmethod
    def _undo(self, work: Work) -> Work | None:
        """Undo `work` on the server. Return what is open then, or None if the session is lost."""

    def undo(self) -> bool:
        """
        Undo the work since the savepoint. If there is no savepoint, undo the transaction.

        Only this method undoes work: after a statement failed, and after any other error in the
        block of `transaction` or `attempt`. If the server has already ended the whole transaction,
        nothing is open afterwards.

        Returns:
            Whether the session can still be used. If it is lost, the server undoes everything.
        """
        left = self._undo(self.work)
        self.work = Work.NONE if left is None else left
        return left is not None

    def begin(self) -> None:
        """Begin a transaction with the connection's time limit and application name."""
        milliseconds = int(self.timeout * 1000)
        self.run("begin", milliseconds=milliseconds, application=self.application)
        self.lock_timeout = self.timeout

    def set_lock_timeout(self, seconds: float | None) -> None:
        """Set how long the open transaction waits for a lock. None restores the usual limit."""
        limit = self.timeout if seconds is None else seconds
        self.run("set_lock_timeout", milliseconds=str(max(1, int(limit * 1000))))
        self.lock_timeout = limit

    def whole(self, address: QueueAddress) -> QueueAddress:
        """Return an address with its schema, and with its database if addresses can name one."""
        return self.names.qualify(address)

    def printed(self, address: QueueAddress) -> str:
        """Return the whole address as people read it. `names.parse_queue` can parse it."""
        return self.names.print_address(self.whole(address))

    def canonical(self, address: QueueAddress) -> str:
        """Return the whole address as messages contain it. `names.parse_address` can parse it."""
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
        """Return a value for each address. Two spellings of the same table have equal values."""
        return [self.whole(address) for address in addresses]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class StateSchema:
    """A schema with state tables."""

    schema: str
    may_enter: bool  # whether this login may use the schema and read the version of its tables
    roles: str  # the roles that may use the schema


STATE_TABLE = "a state table"
NEW_QUEUE = "a queue that is created"
ANY_OTHER = "any other statement"

# What the kind of an error means for a statement or for a table of it: (kind, statement or table) →
# meaning. The kind comes from the error's code. If a kind has no entry here, it means itself.
MEANINGS: dict[tuple[type[errors.DatabaseFailure], str], type[errors.DatabaseFailure]] = {
    (errors.QueueNotFound, STATE_TABLE): errors.StateNotInstalled,
    (errors.QueueNotFound, NEW_QUEUE): errors.StatementRefused,
    (errors.NotAQueue, STATE_TABLE): errors.StateChanged,
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
    """
    Where a driver raised an error.

    A dialect finds the kind of the error by a code of its database. `error` makes the package's
    error of that kind.
    """

    statement: str = "connect"
    server: str
    state: str = ""  # schema of the state tables
    queue: QueueAddress | None = None  # None if the statement uses state tables only
    target: str = ""  # the queue as people read it, or the schema of the state tables
    role: str = ""  # the queue's name in the statement's braces
    seconds: float = 0  # how long the statement may take
    lock_seconds: float = 0  # how long the statement may wait for a lock
    columns: str = ""  # the columns of a queue, for an error's text

    @property
    def creates(self) -> bool:
        return self.statement.startswith("create")

    def error(
        self, kind: type[errors.DatabaseFailure], reason: str, *, code: str = "", fix: str = ""
    ) -> errors.DatabaseFailure:
        """Return the error that `kind` means for this statement, with its facts."""
        facts = self.facts() | {"reason": reason, "code": code, "fix": fix}
        scope = self.row_of(kind)
        meaning = kind if scope is None else MEANINGS[kind, scope]
        return meaning.from_facts(facts)

    def row_of(self, kind: type[errors.DatabaseFailure]) -> str | None:
        """Return the statement or table by which MEANINGS has `kind`, as specific as possible."""
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

    LACKS: frozenset[StatementName]  # statements that this database does not need: see `lacks`
    STATEMENTS: Statements  # all other statements
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
            url: a url of this kind of database, with the login.
            application: the name that a DBA sees between transactions, if the driver can set it.
            timeout: seconds to wait for the server, and for each statement.
            state: schema of the state tables.
            credential: the password or token that the option `credentials` gave for this attempt.

        Raises:
            BadOption: the url cannot be read, or has another login beside the credential.
            DatabaseFailure: the server refused the session, is too old, or was not verified.
            MissingDriver: no driver can be used on this machine.
        """

    def fill_names(self, text: str, state: str, tables: Tables, **words: str) -> str:
        """Put quoted names into the braces of a statement, without a connection."""

    def join_script(self, parts: Iterable[str]) -> str:
        """Join texts to one script. Each text ends as a DBA's tool needs it."""


def dialect_named(name: str) -> Dialect:
    """Import the dialect of this name, with its driver."""
    return cast("Dialect", import_module(f"{__name__}.{name}"))


def dialect_of(url: str) -> Dialect:
    """Import the dialect for a url, with its driver."""
    return dialect_named(names_of(url).dialect)


@contextmanager
def transaction(connection: Connection, *, timeout: float | None = None) -> Iterator[None]:
    """
    Commit what the block did, or undo all of it.

    `timeout` is in seconds, and holds for this transaction only. If it is None, the connection's
    own timeout holds.
    """
    usual_timeout = connection.timeout
    connection.before_commit.clear()
    connection.seqs_skipped = 0
    try:
        connection.timeout = usual_timeout if timeout is None else timeout
        connection.begin()
        yield
        for look_again in connection.before_commit:
            look_again()
        assert connection.work is not Work.NONE, SUPPRESSED  # noqa: S101
    except BaseException as error:
        # after a failed statement nothing is open, because `undo` has already run
        if connection.work is not Work.NONE and not undo_all(connection):
            connection.close()  # then the server undoes the transaction
        if isinstance(error, TransactionUndone):
            raise error.failure from None
        raise
    else:
        connection.around_commit(partial(connection.run, "commit"))
    finally:
        connection.timeout = usual_timeout


def commit_at_once(commit: Callable[[], None]) -> None:
    """Commit, and do nothing else."""
    commit()


def undo_all(connection: Connection) -> bool:
    """Undo the open transaction. Return False if the session is lost."""
    is_alive = True
    while is_alive and connection.work is not Work.NONE:
        is_alive = connection.undo()
    return is_alive


@contextmanager
def attempt(connection: Connection) -> Iterator[None]:
    """
    Run the block in a savepoint, so that an error in the block undoes only the block.

    The caller may catch the error and go on in the same transaction.

    Raises:
        TransactionUndone: the server undid the whole transaction. SQL Server does so after an error
            in a trigger.
    """
    connection.run("savepoint")
    try:
        yield
    except BaseException as error:
        # after a failed statement no savepoint is open, because `undo` has already run
        if connection.work is Work.SAVEPOINT and not connection.undo():
            connection.close()
        is_undone = connection.work is Work.NONE and not isinstance(error, errors.ConnectionLost)
        if is_undone and isinstance(error, errors.DatabaseFailure):
            raise TransactionUndone(error) from None
        raise
    connection.run("release")


def check_types(connection: Connection, queue: QueueAddress) -> None:
    """
    Check, in the open transaction, that a queue's columns have the transport's types.

    This is called before a queue's rows are read or deleted for the first time. A column of another
    type may be read without an error, but its values would mean something else. If the table is
    absent, the statement that reads the table later raises the error.

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
    """Call `check_types` once for each connection and queue. Tasks often reuse a connection."""
    if queue not in connection.checked_queues:
        check_types(connection, queue)
        connection.checked_queues.add(queue)


def lock_table(
    connection: Connection, queue: QueueAddress, how: Access, *, role: str = "queue"
) -> None:
    """
    Lock a table so that nobody changes its definition before the commit.

    If the database has no such lock, nothing is done. This fails if the table is absent, or if
    another session holds a lock on it that conflicts. `role` is the name that the later statements
    have for the table in their braces. An error names the rights that those statements need.
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
    """Insert rows in bulk. Run the table's deferred checks now, not at the commit."""
    connection.load(queue, rows)
    if "check_deferred" not in connection.lacks:
        connection.run("check_deferred")


def read_clock(connection: Connection) -> datetime:
    """Return the database's time, in UTC."""
    now: datetime = connection.value("clock")
    return now.replace(tzinfo=UTC)


def endpoint_zone(connection: Connection, option: str | None) -> str:
    """
    Return the time zone of the .NET endpoints' sessions, which PostgreSQL needs for due times.

    There a due time is a timestamptz. The transport takes the UTC time of the server's clock, and
    stores it as if it were a local time in the zone of its session. It compares due times in the
    same way. So due times must be computed in that zone here too. The zone is the option
    endpointTimeZone. If it is not set, it is the zone of a session that sets none. On SQL Server a
    due time is a datetime in UTC, and the zone does not matter.

    Raises:
        BadOption: the server does not know the zone of the option endpointTimeZone.
        MissingOption: this session sets a zone, so the server's default zone cannot be read.
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
# Only the server can compare addresses. On SQL Server one queue may be written with or without its
# database, and in upper or lower case if the database's collation ignores case.


def find_same(connection: Connection, queue: QueueAddress, texts: Iterable[str]) -> set[str]:
    """
    Return which of the texts name the queue.

    One statement asks the server for all texts. They come from messages, so they are untrusted.
    """
    parsed: dict[str, QueueAddress] = {}
    for text in texts:
        try:
            parsed[text] = connection.names.parse_address(text)
        except errors.BadAddress:
            continue
    wanted, *identities = connection.identities([queue, *parsed.values()])
    return {text for text, identity in zip(parsed, identities, strict=True) if identity == wanted}


def unite(
    connection: Connection, addresses: Iterable[QueueAddress]
) -> dict[QueueAddress, QueueAddress]:
    """Return, for each address, the first of `addresses` for the same queue, with its schema."""
    distinct = list(dict.fromkeys(addresses))
    first: dict[object, QueueAddress] = {}
    return {
        address: first.setdefault(identity, connection.names.qualify(address))
        for address, identity in zip(distinct, connection.identities(distinct), strict=True)
    }
