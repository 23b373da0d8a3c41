"""
A driver's error → the package's error, with the SQL that fixes the problem.

pyodbc reports SQLSTATE and the server's error number. mssql-python reports neither. It has its own
phrase for the SQLSTATE, and the server's sentence. The number is found by that sentence, which is
English because our sessions ask for English. Statements of ours throw the numbers from 51000.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlq_spark import errors
from sqlq_spark.wire.address import bracketed

OLD_LEVEL = 102  # the number of a syntax that the database does not know

# the server's sentence → its number, where a driver leaves that out
SENTENCES = (
    (r"Invalid object name", 208),
    (r"Invalid column name", 207),
    (r"The [A-Z ]+ permission was denied on the object", 229),
    (r"The [A-Z ]+ permission was denied on the column", 230),
    (r"[A-Z ]+ permission denied in database", 262),
    (r"[A-Z ]+ permission was denied on object 'server'", 300),
    (r"Transaction \(Process ID \d+\) was deadlocked", 1205),
    (r"Lock request time out period exceeded", 1222),
    (r"The transaction log for database .* is full", 9002),
    (r"Violation of (?:PRIMARY|UNIQUE) KEY constraint", 2627),
    (r"Cannot insert duplicate key row", 2601),
    (r"Cannot insert the value NULL into column", 515),
    (r"The [A-Z ]+ statement conflicted with the", 547),
    (r"String or binary data would be truncated", 2628),
    (r"The target table .* of the DML statement cannot have any enabled triggers", 334),
    (r"Could not allocate space for object", 1105),
    (r"Incorrect syntax near", OLD_LEVEL),
    (r"Cannot obtain a LOCK resource", 1204),
    (r"The specified schema name .* either does not exist or", 2760),
    (r"There is already an object named", 2714),
    (r"Query processor could not produce a query plan because of the hints", 8622),
    (r"The COMMIT TRANSACTION request has no corresponding", 3902),
    (r"Login failed for user", 18456),
    (r"Cannot open database", 4060),
    (r"The service has encountered an error processing your request", 40197),
    (r"The service is currently busy", 40501),
    (r"Database .* on server .* is not currently available", 40613),
    (r"Resource ID ?: ?\d+", 10928),
    (r"Cannot process .*request", 49919),
    (r"Not enough resources to process request", 49918),
    (r"Cannot continue the execution because the session is in the kill state", 596),
    (r"SHUTDOWN is in progress", 6005),
    (r"sp_getapplock returned -1$", 51001),
    (r"sp_getapplock returned -2$", 51002),
    (r"sp_getapplock returned -3$", 51003),
    (r"the transaction is gone", 51900),
    (r"characters of Headers do not fit", 51901),
)
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
}

# fmt: off
MISSING_TABLE = {208}
MISSING_COLUMN = {207}
MISSING_SCHEMA = {2760}
RIGHTS_MISSING = {229, 230, 262, 297, 300}
DEADLOCKS = {1205, 51003}
LOCK_TIMEOUTS = {1222, 51001}
TIMEOUTS = {-2, 51002}
LOG_FULL = {9002}
REFUSED = {18452, 18456, 18487, 18488}
NO_DATABASE = {911, 4060}
# the server ended the session, or accepts none now: throttled, moved, restarted
LOST = {
    64, 121, 233, 596, 6005, 10053, 10054, 10060, 17142,
    10928, 10929, 40197, 40501, 40613, 49918, 49919, 49920,
    3902, 51900,  # the transaction is gone, and the server had reported no error
}
# fmt: on
LOST_STATES = {"08S01", "08003", "08007"}
TIMEOUT_STATES = {"HYT00", "HYT01"}
# SQLSTATEs of a wrong message or table: another attempt would fail as well …
LASTING_STATES = ("21", "22", "23", "42", "44")
# … except for these numbers, of a server that is short of a resource
SHORT = {701, 802, 1105, 1204, 8645, 8651, 9002}

# numbers for a function that the database's level lacks, and for a table that is not there
MAYBE_OLD = {OLD_LEVEL, 156, 195, 208, 319}
LEAST_LEVEL = 130

FIXES = {
    334: "the table of {0} has a trigger, so nothing can be received from it: "
    "DISABLE TRIGGER ALL ON {1}",
    51901: "column Headers of {0} is a varchar, which would store question marks: "
    "ALTER TABLE {1} ALTER COLUMN Headers nvarchar(max) NOT NULL",
    1105: "a DBA must add space to the filegroup",
    8622: "RowVersion has no index; `sqlqueue doctor` prints the statement that creates it",
    9002: "a DBA must back up or grow the transaction log; log_reuse_wait_desc in "
    "sys.databases shows what fills it",
}

RIGHTS = {
    "weigh": "SELECT, DELETE",
    "weigh_body_string": "SELECT, DELETE",
    "receive": "SELECT, DELETE",
    "receive_body_string": "SELECT, DELETE",
    "take": "SELECT, DELETE",
    "purge": "SELECT, DELETE",
    "purge_expired": "SELECT, DELETE",
    "find_large": "SELECT",
    "find_large_body_string": "SELECT",
    "divert_large": "INSERT",
    "subscribe": "SELECT, INSERT, UPDATE",
    "unsubscribe": "SELECT, DELETE",
    "move_due": "SELECT, DELETE",
    "load": "INSERT",
}
DENIED = re.compile(
    r"The ([A-Z ]+) permission was denied on the (?:column '.*' of the )?object "
    r"'(.*)', database '.*', schema '(.*)'"
)
# what check_server needs on Azure, in the database master
SERVER_STATE = "ALTER SERVER ROLE ##MS_ServerStateReader## ADD MEMBER the_login"
DENIED_IN_DATABASE = re.compile(r"([A-Z][A-Z ]+) permission denied in database")


@dataclass(frozen=True, slots=True)
class Failure:
    """A driver's error, without the driver."""

    number: int | None
    state: str  # SQLSTATE; empty where the driver reports none
    text: str  # the server's, or the driver's, sentence

    @property
    def code(self) -> str:
        """Return the number, or the SQLSTATE, for an error text."""
        return str(self.number) if self.number is not None else self.state or "?"


def read_error(error: Exception, secrets: tuple[str, ...] = ()) -> Failure:
    """
    Read an error of either driver.

    Args:
        error: as it was raised.
        secrets: texts that must not be shown.
    """
    phrase = str(getattr(error, "driver_error", ""))
    if phrase:
        text, state = str(getattr(error, "ddbc_error", "") or phrase), PHRASES.get(phrase, "")
    elif len(error.args) > 1:
        state, text = map(str, error.args[:2])
    else:
        state, text = "", str(error)
    first = re.split(r" \((-?\d+)\) \(SQL\w+\)", text, maxsplit=1)
    sentence = " ".join(re.sub(r"^(?:\[[^\[\]]*\] ?)+", "", first[0]).split())
    for secret in secrets:
        sentence = sentence.replace(secret, "…") if secret else sentence
    number = int(first[1]) if len(first) > 1 and first[1] != "0" else number_of(sentence)
    return Failure(number, state, sentence)


def number_of(text: str) -> int | None:
    """Return the number of an English sentence of the server."""
    return next((number for words, number in SENTENCES if re.match(words, text)), None)


def connection_error(server: str, failure: Failure) -> errors.DatabaseFailure:
    """Return the error for a connection that failed."""
    if failure.number in REFUSED or failure.state == "28000":
        return errors.LoginRefused(server, failure.text)
    if failure.number in NO_DATABASE:
        return errors.DatabaseNotFound(server, failure.text)
    if failure.number in LOST or failure.state in LOST_STATES:
        return errors.ConnectionLost("connect", failure.text)
    return errors.NotReachable(server, failure.text)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a statement failed."""

    statement: str
    target: str  # a queue's canonical address, or the schema of the state tables
    table: str  # the same in SQL
    is_state: bool
    server: str
    seconds: float
    level: int = 0  # compatibility level of the database; 0 where it was not read


def statement_error(failure: Failure, place: Place) -> errors.DatabaseFailure:
    """Return the error for a statement that failed."""
    statement, number = place.statement, failure.number
    if number in LOST or failure.state in LOST_STATES:
        return errors.ConnectionLost(statement, failure.text)
    if number in DEADLOCKS or failure.state == "40001":
        return errors.Deadlock(statement, failure.text)
    if number in LOCK_TIMEOUTS:
        return errors.LockTimedOut(statement, place.seconds, failure.text)
    if number in TIMEOUTS or failure.state in TIMEOUT_STATES:
        return errors.TimedOut(statement, place.seconds, failure.text)
    if number in RIGHTS_MISSING:
        return errors.RightMissing(statement, failure.text, missing_grant(failure.text, place))
    return missing_object(failure, place) or other_error(failure, place)


def missing_object(failure: Failure, place: Place) -> errors.DatabaseFailure | None:
    """Return the error for a table, column or schema that is not there; None for other errors."""
    if too_old(failure, place):
        return errors.DatabaseTooOld(place.server, place.level, LEAST_LEVEL)
    no_table = failure.number in MISSING_TABLE or (
        failure.number is None and failure.state == "42S02"
    )
    if no_table and place.is_state:
        return errors.StateNotInstalled(place.target, place.server)
    if no_table and not place.statement.startswith("create"):
        return errors.QueueNotFound(place.target, place.server)
    if failure.number in MISSING_SCHEMA:
        return errors.SchemaNotFound(place.target, place.server, failure.text)
    return None if place.is_state else missing_column(failure, place)


def missing_column(failure: Failure, place: Place) -> errors.DatabaseFailure | None:
    """Return the error for a queue's column that is not there; None for other errors."""
    if failure.number not in MISSING_COLUMN:
        return None
    if "bodystring" in failure.text.lower():
        alter = f"ALTER TABLE {place.table} ADD BodyString AS CAST(Body AS nvarchar(max))"
        return errors.BodyStringMissing(place.target, alter)
    return errors.NotAQueue(place.target, failure.text)


def too_old(failure: Failure, place: Place) -> bool:
    """Whether the database's level lacks functions that the statements use."""
    if "openjson" in failure.text.lower():
        return True
    return failure.number in MAYBE_OLD - MISSING_TABLE and 0 < place.level < LEAST_LEVEL


def other_error(failure: Failure, place: Place) -> errors.StatementFailed:
    """Return the error for any other failure, with its fix where one is known."""
    fix = FIXES.get(failure.number or 0)
    text = (
        failure.text if fix is None else f"{failure.text}; {fix.format(place.target, place.table)}"
    )
    lasting = failure.state.startswith(LASTING_STATES) and failure.number not in SHORT
    if failure.number in LOG_FULL:
        return errors.LogFull(place.statement, failure.code, text)
    kind = errors.StatementRefused if lasting else errors.StatementFailed
    return kind(place.statement, failure.code, text)


def missing_grant(text: str, place: Place) -> str:
    """Return the GRANT that is missing, by the server's sentence or by the statement's needs."""
    if place.statement == "check_server":
        return SERVER_STATE
    if found := DENIED.search(text):
        right, table, schema = found.groups()
        return f"GRANT {right} ON {bracketed(schema)}.{bracketed(table)} TO the_user"
    if found := DENIED_IN_DATABASE.search(text):
        return f"GRANT {found[1]} TO the_user"
    if place.is_state:
        return f"GRANT SELECT, INSERT, UPDATE, DELETE ON SCHEMA::{place.table} TO the_user"
    return f"GRANT {RIGHTS.get(place.statement, 'SELECT')} ON {place.table} TO the_user"
