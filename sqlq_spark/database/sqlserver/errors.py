"""
A driver's error → the package's error, with the SQL that fixes the problem.

pyodbc reports SQLSTATE and the server's error number. mssql-python reports neither. It has its own
phrase for the SQLSTATE, and the server's sentence. The number is found by that sentence; see
`numbers`, which also says what each number means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.database.sqlserver.numbers import KINDS, OLD_LEVEL, Kind, number_of
from sqlq_spark.options.names import STATE
from sqlq_spark.wire.address import SQLSERVER

if TYPE_CHECKING:
    from sqlq_spark.wire.address import QueueAddress

# mssql-python's phrase → SQLSTATE, for those that are used here
PHRASES = {
    "Client unable to establish connection": "08001",
    "Connection not open": "08003",
    "Server rejected the connection": "08004",
    "Connection failure during transaction": "08007",
    "Communication link failure": "08S01",
    "Invalid authorization specification": "28000",
    "Serialization failure": "40001",
    "Base table or view not found": "42S02",
    "Column not found": "42S22",
    "Integrity constraint violation": "23000",
    "String data, right-truncated": "22001",
    "Numeric value out of range": "22003",
    "Datetime field overflow": "22008",
    "Invalid character value for cast specification": "22018",
    "Syntax error or access violation": "42000",
    "Timeout expired": "HYT00",
    "Query timeout expired": "HYT00",
    "Connection timeout expired": "HYT01",
    "Function sequence error": "HYT00",  # of a statement that times out behind its first rows
}

BROKEN = "08S01"  # the SQLSTATE of a connection that broke
LOST_STATES = {BROKEN, "08003", "08007"}
TIMEOUT_STATES = {"HYT00", "HYT01"}
# SQLSTATEs of a wrong message or table: another attempt would fail as well. They count only for
# numbers that are not known, because ODBC reports nearly every number of the server as 42000.
LASTING_STATES = ("21", "22", "23", "42", "44")

# numbers for a function that the database's level lacks, and for a table that is not there
MAYBE_OLD = {OLD_LEVEL, 156, 195, 208, 319}
LEAST_LEVEL = 130
LOGIN_FAILED = 18456

LISTENER = (
    "The server is a standby, or its database is read-only. Name the listener of the availability "
    "group or of the failover group as the host in the url. It leads to the primary."
)
FIXES = {
    331: "no due message can be moved into {0}, because its table has an enabled trigger. .NET "
    "endpoints cannot move it either. Disable the trigger: DISABLE TRIGGER [its name] ON {1}",
    332: "no due message can be moved into {0}, because of that foreign key. .NET endpoints cannot "
    "move it either. Drop it: ALTER TABLE {1} DROP CONSTRAINT {2}, or on the table that refers "
    "to {1}",
    333: "no due message can be moved into {0}, because of that CHECK. .NET endpoints cannot move "
    "it either. Disable it: ALTER TABLE {1} NOCHECK CONSTRAINT {2}",
    334: "the table of {0} has a trigger on DELETE, so nothing can be received from it; "
    "`sqlqueue doctor` prints the statement that disables it",
    51901: "column Headers of {0} is a varchar, which would store question marks: "
    "ALTER TABLE {1} ALTER COLUMN Headers nvarchar(max) NOT NULL",
    1101: "a DBA must add space to the filegroup",
    1105: "a DBA must add space to the filegroup",
    8622: "RowVersion has no index; `sqlqueue doctor` prints the statement that creates it",
    9002: "a DBA must back up or grow the transaction log; log_reuse_wait_desc in "
    "sys.databases shows what fills it",
    40544: "a DBA must raise the database's maximum size, or delete data",
}

DELETES = (
    *("weigh", "receive", "take", "purge", "purge_range", "purge_expired"),
    *("unsubscribe", "move_due"),
)
# statement → the rights that it needs on its table; others need SELECT
RIGHTS = {
    **dict.fromkeys(DELETES, "SELECT, DELETE"),
    "divert_large": "INSERT",
    "subscribe": "SELECT, INSERT, UPDATE",
    "load": "INSERT",
}
DENIED = re.compile(
    r"The ([A-Z ]+) permission was denied on the (?:column '.*' of the )?object "
    r"'(.*)', database '.*', schema '(.*)'"
)
FOUND_CONSTRAINT = re.compile(r"Found [a-z ]+ '(.*)'")
OF_SERVER = {"check_server", "blockers"}
# what they need on Azure, in the database master
SERVER_STATE = "ALTER SERVER ROLE ##MS_ServerStateReader## ADD MEMBER the_login"
DENIED_IN_DATABASE = re.compile(r"([A-Z][A-Z ]+) permission denied in database")


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, without the driver."""

    number: int | None
    state: str  # SQLSTATE; empty where the driver reports none
    text: str  # the server's, or the driver's, sentence
    first_only: bool = False  # whether the driver reports only one error of several

    @property
    def kind(self) -> Kind | None:
        return KINDS.get(self.number)

    @property
    def code(self) -> str:
        return str(self.number) if self.number is not None else self.state or "?"


def read_error(error: Exception, secret: str = "") -> Failure:
    """Read an error of either driver; `secret` must not be shown."""
    phrase = str(getattr(error, "driver_error", ""))
    if phrase:
        text, state = str(getattr(error, "ddbc_error", "") or phrase), PHRASES.get(phrase, "")
    elif len(error.args) > 1:
        state, text = map(str, error.args[:2])
    else:
        # mssql-python raises a bare RuntimeError where a large value breaks off
        state, text = BROKEN if isinstance(error, RuntimeError) else "", str(error)
    first = re.split(r" \((-?\d+)\) \(SQL\w+\)", text, maxsplit=1)
    sentence = " ".join(re.sub(r"^(?:\[[^\[\]]*\] ?)+", "", first[0]).split())
    if secret:
        sentence = sentence.replace(secret, "…")
    number = int(first[1]) if len(first) > 1 and first[1] != "0" else number_of(sentence)
    return Failure(number, state, sentence, first_only=bool(phrase))


def connection_error(server: str, failure: Failure) -> errors.DatabaseFailure:
    match failure.kind:
        case Kind.LOST:
            return errors.ConnectionLost(statement="connect", reason=failure.text)
        case Kind.READ_ONLY:
            return errors.ReadOnly(statement="connect", reason=failure.text, fix=LISTENER)
        case Kind.NO_DATABASE:
            return errors.DatabaseNotFound(server=server, reason=failure.text)
    if failure.kind is Kind.REFUSED or failure.state == "28000":
        # for a database that it cannot open, the server sends 4060 and then 18456
        unclear = failure.first_only and failure.number in {None, LOGIN_FAILED}
        kind = errors.LoginUnclear if unclear else errors.LoginRefused
        return kind(server=server, reason=failure.text)
    if failure.state in LOST_STATES:
        return errors.ConnectionLost(statement="connect", reason=failure.text)
    return errors.NotReachable(server=server, reason=failure.text)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a statement failed."""

    statement: str
    target: str  # the queue for people, or the schema of the state tables
    queue: QueueAddress | None  # None: the statement uses state tables only
    state: str  # schema of the state tables
    server: str
    seconds: float
    level: int = 0  # compatibility level of the database; 0 where it was not read

    @property
    def table(self) -> str:
        """The target in SQL."""
        queue = self.queue
        return SQLSERVER.quote_address(queue) if queue else SQLSERVER.quote_name(self.state)


def statement_error(failure: Failure, place: Place) -> errors.DatabaseFailure:
    return (
        passing_error(failure, place)
        or missing_right(failure, place)
        or missing_object(failure, place)
        or other_error(failure, place)
    )


def passing_error(failure: Failure, place: Place) -> errors.DatabaseFailure | None:
    """Return the error for a lost session, a wait or a shortage; None for other errors."""
    statement, text, kind = place.statement, failure.text, failure.kind
    short = kind in {Kind.SHORTAGE, Kind.LOG_FULL}
    if kind is Kind.READ_ONLY:
        return errors.ReadOnly(statement=statement, reason=text, fix=LISTENER)
    if (
        kind is Kind.LOST
        or failure.state in LOST_STATES
        or (short and statement == "commit")  # whether it was carried out is not known
    ):
        return errors.ConnectionLost(statement=statement, reason=text)
    if kind is Kind.DEADLOCK or failure.state == "40001":
        return errors.Deadlock(statement=statement, reason=text)
    if kind is Kind.LOCK_TIMEOUT:
        return errors.LockTimedOut(statement=statement, seconds=place.seconds, reason=text)
    if short:
        shortage = errors.LogFull if kind is Kind.LOG_FULL else errors.ServerShort
        return shortage(statement=statement, code=failure.code, reason=with_fix(failure, place))
    if kind is Kind.TIMEOUT or failure.state in TIMEOUT_STATES:
        return errors.TimedOut(statement=statement, seconds=place.seconds, reason=text)
    return None


def missing_right(failure: Failure, place: Place) -> errors.RightMissing | None:
    if failure.kind is not Kind.RIGHT:
        return None
    denied = DENIED.search(failure.text)
    own = place.queue and SQLSERVER.qualify(place.queue).schema
    schema = denied[3] if denied else own or place.state
    is_other = place.statement in OF_SERVER or DENIED_IN_DATABASE.search(failure.text)
    # the server may not show tables: `script` names state schemas so
    is_state = schema in {place.state, STATE} or schema.startswith(f"{STATE}_")
    if is_state and not is_other:
        fix = errors.StateRightMissing.fix_of(schema, "")
        return errors.StateRightMissing(statement=place.statement, reason=failure.text, fix=fix)
    return errors.RightMissing(
        statement=place.statement, reason=failure.text, fix=missing_grant(failure.text, place)
    )


def missing_object(failure: Failure, place: Place) -> errors.DatabaseFailure | None:
    no_table = failure.kind is Kind.NO_TABLE or (
        failure.number is None and failure.state == "42S02"
    )
    # functions that the database's level lacks
    maybe_old = failure.number in MAYBE_OLD and failure.kind is not Kind.NO_TABLE
    if "openjson" in failure.text.lower() or (maybe_old and 0 < place.level < LEAST_LEVEL):
        return errors.DatabaseTooOld(server=place.server, found=place.level, needed=LEAST_LEVEL)
    if no_table and place.queue is None:
        return errors.StateNotInstalled(schema=place.target, server=place.server)
    if no_table and not place.statement.startswith("create"):
        return errors.QueueNotFound(queue=place.target, server=place.server)
    if failure.kind is Kind.NO_SCHEMA:
        return errors.SchemaNotFound(table=place.target, server=place.server, reason=failure.text)
    if failure.kind is Kind.NO_COLUMN and place.queue is not None:
        return errors.NotAQueue(queue=place.target, reason=failure.text)
    return None


def other_error(failure: Failure, place: Place) -> errors.DatabaseFailure:
    if failure.kind is Kind.DUPLICATE and place.statement == "begin_receipt":
        return errors.ReceiptExists(statement=place.statement, reason=failure.text)
    lasting = failure.state.startswith(LASTING_STATES) or failure.kind is not None
    kind = errors.StatementRefused if lasting else errors.StatementFailed
    return kind(statement=place.statement, code=failure.code, reason=with_fix(failure, place))


def with_fix(failure: Failure, place: Place) -> str:
    fix = FIXES.get(failure.number or 0)
    if fix is None:
        return failure.text
    found = FOUND_CONSTRAINT.search(failure.text)
    constraint = SQLSERVER.quote_name(found[1]) if found else "[its name]"
    return f"{failure.text}; {fix.format(place.target, place.table, constraint)}"


def missing_grant(text: str, place: Place) -> str:
    """Return the GRANT that is missing, by the server's sentence or by the statement's needs."""
    if place.statement in OF_SERVER:
        return SERVER_STATE
    database = place.queue and place.queue.catalog
    use = f"USE {SQLSERVER.quote_name(database)}; " if database else ""  # GRANT takes no database
    if found := DENIED.search(text):
        table, schema = map(SQLSERVER.quote_name, found.groups()[1:])
        return f"{use}GRANT {found[1]} ON {schema}.{table} TO the_user"
    if found := DENIED_IN_DATABASE.search(text):
        return f"{use}GRANT {found[1]} TO the_user"
    here = place.queue and replace(place.queue, catalog=None)
    table = SQLSERVER.quote_address(here) if here else place.table
    return f"{use}GRANT {RIGHTS.get(place.statement, 'SELECT')} ON {table} TO the_user"
