"""
Turn a driver's error into the package's error, with the SQL that fixes the problem.

What an error means is decided by the SQLSTATE and the server's error number: see numbers.py. pyodbc
reports both. mssql-python reports neither of them, but its own phrase for the SQLSTATE, and the
server's sentence. For these, PHRASES has the SQLSTATE, and numbers.py finds the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.database import Place
from sqlq_spark.database.sqlserver.numbers import ERRORS_BY_NUMBER, number_of
from sqlq_spark.options.names import STATE
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Sequence

# phrase of mssql-python → SQLSTATE, for the SQLSTATEs that are used here
PHRASES = {
    "Connection not open": "08003",
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
    "Function sequence error": "HYT00",  # reported if a statement times out after its first rows
}

BROKEN = "08S01"  # the SQLSTATE of a connection that broke
STATES: dict[str, type[errors.DatabaseFailure]] = {
    **dict.fromkeys((BROKEN, "08003", "08007"), errors.ConnectionLost),
    **dict.fromkeys(("HYT00", "HYT01"), errors.TimedOut),
    "40001": errors.Deadlock,
    "42S02": errors.QueueNotFound,
}
# kinds of error that the number alone decides, whatever the SQLSTATE is
PASSING_KINDS = {
    *(errors.ConnectionLost, errors.ReadOnly, errors.Deadlock, errors.TimedOut),
    *(errors.LockTimedOut, errors.ServerShort, errors.LogFull),
}
# Texts of a driver that knows no reason for a failure. If a statement times out in the middle of
# its result, the error has such a text.
NO_REASON = ("The driver did not supply an error!", "Unknown DDBC error")
# Classes of SQLSTATEs for a wrong message or table: another attempt would fail too. They are used
# only if the error's number is unknown, because ODBC gives the state 42000 to nearly every error of
# the server.
LASTING_STATES = ("21", "22", "23", "42", "44")

# Numbers for an unknown syntax, function or table: the compatibility level may be too low.
MAYBE_OLD = {102, 156, 195, 208, 319}
LEAST_LEVEL = 130
RAISE_LEVEL = (
    "on SQL Server 2016 or later with: "
    f"ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = {LEAST_LEVEL}"
)
LOGIN_FAILED = 18456

LISTENER = (
    "The server is a standby, or its database is read-only. Name the listener of the availability "
    "group or of the failover group as the host in the url. It leads to the primary."
)
DUPLICATES = {2601, 2627}  # numbers for a key that exists already
TRIGGERED = {3609, 3616, 3930, 3998}  # numbers for a transaction that a trigger has ended
# number → the fix; {0} is the queue, {1} the queue's table, {2} a constraint or trigger
FIXES = {
    331: "no due message can be moved into {0}, because its table has an enabled trigger. .NET "
    "endpoints cannot move it either. Disable it: ALTER TABLE {1} DISABLE TRIGGER [its name]",
    332: "no due message can be moved into {0}, because of that foreign key. .NET endpoints cannot "
    "move it either. Drop it: ALTER TABLE {1} DROP CONSTRAINT {2}, or on the table that refers "
    "to {1}",
    333: "no due message can be moved into {0}, because of that CHECK. .NET endpoints cannot move "
    "it either. Disable it: ALTER TABLE {1} NOCHECK CONSTRAINT {2}",
    334: "the table of {0} has a trigger on DELETE, so nothing can be received from it; "
    "`sqlqueue doctor` prints the statement that disables it",
    51901: "column Headers of {0} is a varchar, which would store question marks: "
    "ALTER TABLE {1} ALTER COLUMN Headers nvarchar(max) NOT NULL",
    **dict.fromkeys(
        DUPLICATES,
        "if that index is on RowVersion, the identity of {0} is behind its highest RowVersion, as "
        "after a copy of rows. `sqlqueue doctor` prints the DBCC CHECKIDENT that sets it",
    ),
    1101: "a DBA must add space to the filegroup",
    1105: "a DBA must add space to the filegroup",
    8622: "RowVersion has no index; `sqlqueue doctor` prints the statement that creates it",
    9002: "a DBA must back up or grow the transaction log; log_reuse_wait_desc in "
    "sys.databases shows what fills it",
    40544: "a DBA must raise the database's maximum size, or delete data",
}
IN_TRIGGER = (
    "a trigger on the table of {0} ended the transaction. .NET endpoints cannot send to it either. "
    "Fix the trigger, or disable it: ALTER TABLE {1} DISABLE TRIGGER {2}"
)

# statement → the rights that it needs on its table; all other statements need SELECT
NEEDED_RIGHTS = {
    **dict.fromkeys(("weigh", "receive", "take", "move_due"), "SELECT, DELETE"),
    **dict.fromkeys(("purge", "purge_range", "purge_expired", "unsubscribe"), "SELECT, DELETE"),
    "divert_large": "INSERT",
    **dict.fromkeys(("subscribed", "subscribe"), "SELECT, INSERT, UPDATE"),
    "load": "INSERT",
    "peek": "SELECT (RowVersion)",
}
DENIED = re.compile(
    r"The ([A-Z ]+) permission was denied on the (?:column '.*' of the )?object "
    r"'(.*)', database '.*', schema '(.*)'"
)
FOUND_CONSTRAINT = re.compile(r"Found [a-z ]+ '(.*)'")
OF_SERVER = {"check_server", "blockers"}
DENIED_IN_DATABASE = re.compile(r"([A-Z][A-Z ]+) permission denied in database")
NO_ACCESS = re.compile(
    r'The server principal "(.*)" is not able to access the database "(.*)" under'
)
# The server's sentences if a right to create, alter or drop is missing. Such statements need more
# than a right on one table.
DENIED_DDL = re.compile(r".*does not exist or you do not have|User does not have permission")


@dataclass(frozen=True, slots=True)
class Failure:
    """The facts of a driver's error, without an object of the driver."""

    number: int | None
    state: str  # SQLSTATE; empty if the driver reports none
    text: str  # the sentence of the server or of the driver
    first_only: bool = False  # whether the driver reports only one of several errors
    in_trigger: bool = False  # whether an error in a trigger ended the transaction

    @property
    def code(self) -> str:
        return str(self.number) if self.number is not None else self.state or "?"


def read_error(error: Exception, secret: str = "") -> Failure:
    """Read an error of either driver. If its text contains `secret`, that part is replaced."""
    phrase = str(getattr(error, "driver_error", ""))
    if phrase:
        text = str(getattr(error, "ddbc_error", "") or phrase)
        state = PHRASES.get(phrase, "")
    elif len(error.args) > 1:
        state, text = map(str, error.args[:2])
    else:
        text = str(error)
        # mssql-python raises a plain RuntimeError if the connection breaks inside a large value
        state = BROKEN if isinstance(error, RuntimeError) else ""
    first = re.split(r" \((-?\d+)\) \(SQL\w+\)", text, maxsplit=1)
    sentence = " ".join(re.sub(r"^(?:\[[^\[\]]*\] ?)+", "", first[0]).split())
    if secret:
        sentence = sentence.replace(secret, "…")
    number = int(first[1]) if len(first) > 1 and first[1] != "0" else number_of(sentence)
    # the sentences of 245, 2601, 2627 and 2628 quote a value of a row
    sentence = re.sub(r"(value:?) '.*'|(key value is) \(.*\)", cut_value, sentence)
    sentence = sentence.removesuffix(".")
    all_numbers = {int(digits) for digits in re.findall(r" \((\d+)\) \(SQL\w+\)", text)}
    in_trigger = number in TRIGGERED or not all_numbers.isdisjoint(TRIGGERED)
    return Failure(number, state, sentence, first_only=bool(phrase), in_trigger=in_trigger)


def cut_value(found: re.Match[str]) -> str:
    """Return the words before a value without the value."""
    return f"{found[1] or found[2]} …"


def connection_error(
    server: str, failure: Failure, *, by_token: bool = False, has_password: bool = True
) -> errors.DatabaseFailure:
    """
    Return the error for a connection that failed.

    Args:
        server: the url without secrets.
        failure: what the driver reported.
        by_token: whether the login was by a token of Microsoft Entra ID.
        has_password: False if the login needs a password, and nothing gave one.
    """
    kind = ERRORS_BY_NUMBER.get(failure.number)
    if kind not in {errors.ConnectionLost, errors.ReadOnly, errors.DatabaseNotFound}:
        if kind is errors.LoginRefused or failure.state == "28000":
            # If the server cannot open the database, it sends 4060 and then 18456. A driver may
            # report only 18456. During a failover the server may also refuse a valid token.
            is_last = failure.first_only and failure.number in {None, LOGIN_FAILED}
            unclear = is_last or (by_token and failure.number == LOGIN_FAILED)
            kind = errors.LoginUnclear if unclear else errors.LoginRefused
            if not has_password:
                kind = errors.PasswordMissing
        else:
            kind = STATES.get(failure.state)
            kind = kind if kind is errors.ConnectionLost else errors.NotReachable
    return Place(server=server).error(kind, failure.text, fix=LISTENER)


def statement_error(
    failure: Failure,
    place: Place,
    *,
    took: float = 0.0,
    level: int = 0,
    triggers: Sequence[str] = (),
) -> errors.DatabaseFailure:
    """
    Return the error of a statement.

    Args:
        failure: what the driver reported.
        place: the statement, and the table because of which it failed.
        took: seconds until the statement failed.
        level: the database's compatibility level. It is 0 if it was not read.
        triggers: quoted names of the table's triggers, if one of them ended the transaction.
    """
    kind = ERRORS_BY_NUMBER.get(failure.number)
    if kind not in PASSING_KINDS and kind is not errors.RightMissing:
        kind = STATES.get(failure.state, kind)
    if kind is None and failure.text.endswith(NO_REASON) and took >= place.seconds:
        kind = errors.TimedOut
    if kind is errors.LockTimedOut:
        place = replace(place, seconds=place.lock_seconds)
    if kind in {errors.ServerShort, errors.LogFull} and place.statement == "commit":
        # nobody knows whether the commit was carried out, as after a lost connection
        return place.error(errors.ConnectionLost, failure.text)
    if kind is errors.RightMissing:
        return missing_right(failure.text, place)
    # below LEAST_LEVEL the database does not know OPENJSON and other functions
    is_old = 0 < level < LEAST_LEVEL and kind is not errors.QueueNotFound
    if kind not in PASSING_KINDS and (is_old or "openjson" in failure.text.lower()):
        return errors.DatabaseTooOld(
            server=place.server,
            found=level,
            needed=LEAST_LEVEL,
            reason="messages are sent as JSON",
            fix=RAISE_LEVEL,
        )
    if kind is None:
        lasting = failure.state.startswith(LASTING_STATES)
        kind = errors.StatementRefused if lasting else errors.StatementFailed
    reason = with_fix(failure, place, triggers)
    return place.error(kind, reason, code=failure.code, fix=LISTENER)


def missing_right(text: str, place: Place) -> errors.DatabaseFailure:
    denied = DENIED.search(text)
    if denied:
        schema = denied[3]
    else:
        queue_schema = place.queue and SQLSERVER.qualify(place.queue).schema
        schema = queue_schema or place.state
    is_other = place.statement in OF_SERVER or any(
        words.match(text) for words in (DENIED_IN_DATABASE, NO_ACCESS, DENIED_DDL)
    )
    # the server may hide a schema's tables, so the schema's name shows whether it has state tables
    is_state = schema in {place.state, STATE} or schema.startswith(f"{STATE}_")
    if is_state and not is_other:
        fix = errors.StateRightMissing.fix_of(schema, "")
        return place.error(errors.StateRightMissing, text, fix=fix)
    return place.error(errors.RightMissing, text, fix=missing_grant(text, place))


def with_fix(failure: Failure, place: Place, triggers: Sequence[str]) -> str:
    fix = IN_TRIGGER if failure.in_trigger else FIXES.get(failure.number or 0)
    is_of_state = place.queue is None and (failure.in_trigger or failure.number in DUPLICATES)
    if fix is None or is_of_state:
        return failure.text
    constraint = FOUND_CONSTRAINT.search(failure.text)
    named = [SQLSERVER.quote_name(constraint[1])] if constraint else triggers
    table = SQLSERVER.quote_address(place.queue) if place.queue else place.target
    return f"{failure.text}; {fix.format(place.target, table, ', '.join(named) or '[its name]')}"


def missing_grant(text: str, place: Place) -> str:
    """Return the missing GRANT, by the server's sentence or by the rights of the statement."""
    if place.statement in OF_SERVER:
        # only Azure raises this, and there a session cannot change its database, so there is no USE
        return "in master: ALTER SERVER ROLE ##MS_ServerStateReader## ADD MEMBER the_login"
    queue = place.queue
    right = NEEDED_RIGHTS.get(place.statement, "SELECT")
    use = f"USE {SQLSERVER.quote_name(queue.catalog)}; " if queue and queue.catalog else ""
    # a GRANT cannot name a database, so the name has none
    table = SQLSERVER.quote_address(replace(queue, catalog=None)) if queue else place.target
    if denied := DENIED.search(text):
        table = f"{SQLSERVER.quote_name(denied[3])}.{SQLSERVER.quote_name(denied[2])}"
        # `peek` needs a right on one column, but the server's sentence names the whole table
        right = right if place.statement == "peek" else denied[1]
    elif denied := DENIED_IN_DATABASE.search(text):
        return f"{use}GRANT {denied[1]} TO the_user"
    elif no_access := NO_ACCESS.match(text):
        login, database = map(SQLSERVER.quote_name, no_access.groups())
        return f"USE {database}; CREATE USER {login} FOR LOGIN {login}"
    elif DENIED_DDL.match(text):
        return "a login that is a member of db_owner, if the name is right"
    return f"{use}GRANT {right} ON {table} TO the_user"
