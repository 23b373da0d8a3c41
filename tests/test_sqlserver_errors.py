"""What the errors of SQL Server's drivers become, as each driver raises them."""

from __future__ import annotations

import pickle

import pytest

from sqlq_spark import errors
from sqlq_spark.database.sqlserver import errors as sqlserver_errors

SECRET = "hush-#1"  # noqa: S105 - of no one


class Odbc(Exception):
    """An error as pyodbc raises it: SQLSTATE, and a text that ends with the number."""


class Mssql(Exception):
    """An error as mssql-python raises it: its phrase for the SQLSTATE, the server's sentence."""

    def __init__(self, phrase: str, sentence: str) -> None:
        super().__init__(f"Driver Error: {phrase}; DDBC Error: {sentence}")
        self.driver_error, self.ddbc_error = phrase, sentence


def odbc(state: str, number: int, sentence: str) -> Odbc:
    """One of pyodbc."""
    prefix = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return Odbc(state, f"{prefix}{sentence} ({number}) (SQLExecDirectW)")


def mssql(phrase: str, sentence: str) -> Mssql:
    """One of mssql-python."""
    return Mssql(phrase, f"[Microsoft][SQL Server]{sentence}")


DENIED = "The SELECT permission was denied on the object 'orders', database 'shop', schema 'dbo'."
DENIED_COLUMN = DENIED.replace("the object", "the column 'Body' of the object")
VICTIM = (
    "Transaction (Process ID 61) was deadlocked on lock resources with another process and has "
    "been chosen as the deadlock victim. Rerun the transaction."
)
FULL = "The transaction log for database 'shop' is full due to 'LOG_BACKUP'."
BUSY = "The service is currently busy. Retry the request after 10 seconds. Incident ID: 1. Code: 2"
GONE = (
    "Database 'shop' on server 'x' is not currently available. Please retry the connection later."
)
HINTS = "Query processor could not produce a query plan because of the hints defined in this query."
SHORT = "Resource ID : 1. The request limit for the database is 90 and has been reached."

TRIGGER = (
    "The target table 'message' of the DML statement cannot have any enabled triggers if the "
    "statement contains an OUTPUT clause without INTO clause."
)

# what mssql-python says for a SQLSTATE
PHRASES = {
    "42S02": "Base table or view not found",
    "42S22": "Column not found",
    "42000": "Syntax error or access violation",
    "40001": "Serialization failure",
    "HYT00": "Timeout expired",
    "23000": "Integrity constraint violation",
    "08S01": "Communication link failure",
    "HY000": "General error",
    "25000": "Invalid transaction state",
}
# what we make of a server's sentence, with its SQLSTATE and number before it
SAID = {
    errors.QueueNotFound: ["42S02 208 Invalid object name 'dbo.orders'."],
    errors.NotAQueue: ["42S22 207 Invalid column name 'Headers'."],
    errors.BodyStringMissing: ["42S22 207 Invalid column name 'BodyString'."],
    errors.RightMissing: [
        f"42000 229 {DENIED}",
        f"42000 230 {DENIED_COLUMN}",
        "42000 262 CREATE TABLE permission denied in database 'shop'.",
    ],
    errors.Deadlock: [
        f"40001 1205 {VICTIM}",
        "42000 51003 sp_getapplock returned -3",
    ],
    errors.LockTimedOut: [
        "HYT00 1222 Lock request time out period exceeded.",
        "42000 1222 Lock request time out period exceeded.",
        "42000 51001 sp_getapplock returned -1",
    ],
    errors.TimedOut: ["HYT00 0 Query timeout expired"],
    errors.LogFull: [f"42000 9002 {FULL}"],
    errors.StatementFailed: ["42000 1105 Could not allocate space for object 'x'."],
    errors.DatabaseTooOld: ["42S02 208 Invalid object name 'OPENJSON'."],
    errors.StatementRefused: [
        f"42000 8622 {HINTS}",
        f"42000 334 {TRIGGER}",
        "42000 2628 String or binary data would be truncated in table 'x', column 'y'.",
        "23000 515 Cannot insert the value NULL into column 'x', table 'y'; INSERT fails.",
        '23000 547 The INSERT statement conflicted with the CHECK constraint "x".',
        "42000 51901 characters of Headers do not fit",
        "23000 2627 Violation of PRIMARY KEY constraint 'x'.",
    ],
    errors.ConnectionLost: [
        "08S01 10054 TCP Provider: An existing connection was forcibly closed by the remote host.",
        "08S01 0 Communication link failure",
        "HY000 596 Cannot continue the execution because the session is in the kill state.",
        "42000 40197 The service has encountered an error processing your request. Code 4815",
        f"42000 40501 {BUSY}",
        f"42000 40613 {GONE}",
        f"42000 10928 {SHORT}",
        f"42000 10929 {SHORT}",
        "42000 49918 Not enough resources to process request. Please retry your request later.",
        "42000 49919 Cannot process create or update request. Too many operations in progress.",
        "42000 49920 Cannot process request. Too many operations in progress for subscription.",
        "25000 3902 The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.",
        "42000 51900 the transaction is gone",
    ],
}
CASES = [(*said.split(" ", 2), kind) for kind, sentences in SAID.items() for said in sentences]


def place(statement: str = "receive", *, state: bool = False) -> sqlserver_errors.Place:
    """Where a statement failed."""
    return sqlserver_errors.Place(
        statement=statement,
        target="sqlqueue" if state else "orders@[dbo]",
        table="[sqlqueue]" if state else "[dbo].[orders]",
        is_state=state,
        server="sqlserver://db:1433/shop",
        seconds=30,
    )


@pytest.mark.parametrize(("state", "number", "sentence", "kind"), CASES)
def test_an_error_is_the_same_by_either_driver(
    state: str, number: str, sentence: str, kind: type[errors.DatabaseFailure]
) -> None:
    """By the number where a driver reports it, by the server's sentence where not."""
    for raised in (odbc(state, int(number), sentence), mssql(PHRASES[state], sentence)):
        said = sqlserver_errors.read_error(raised)
        found = sqlserver_errors.statement_error(said, place())

        assert type(found) is kind
        assert said.text == sentence
        assert str(pickle.loads(pickle.dumps(found))) == str(found)  # noqa: S301 - our own


def test_an_error_contains_its_fix() -> None:
    """The GRANT, the log, the index, the level of the database."""

    def told(state: str, number: int, sentence: str, statement: str = "receive") -> str:
        said = sqlserver_errors.read_error(odbc(state, number, sentence))
        return str(sqlserver_errors.statement_error(said, place(statement)))

    assert "GRANT SELECT ON [dbo].[orders] TO the_user" in told("42000", 229, DENIED)
    denied = "CREATE TABLE permission denied in database 'shop'."
    assert "GRANT CREATE TABLE TO the_user" in told("42000", 262, denied, "create_queue")
    assert "GRANT SELECT, DELETE ON [dbo].[orders] TO the_user" in told("42000", 229, "Verboten.")
    assert "log_reuse_wait_desc" in told("42000", 9002, FULL)
    assert "COMPATIBILITY_LEVEL = 130" in told("42S02", 208, "Invalid object name 'OPENJSON'.")
    assert "sqlqueue doctor" in told("42000", 8622, HINTS)
    assert told("42000", 334, TRIGGER).endswith(
        "the table of orders@[dbo] has a trigger, so nothing can be received from it: "
        "DISABLE TRIGGER ALL ON [dbo].[orders]"
    )
    assert "ALTER TABLE [dbo].[orders] ALTER COLUMN Headers nvarchar(max) NOT NULL" in told(
        "42000", 51901, "characters of Headers do not fit"
    )


def test_a_missing_state_table_is_told_as_such() -> None:
    """A statement about no queue."""
    said = sqlserver_errors.read_error(
        odbc("42S02", 208, "Invalid object name 'sqlqueue.version'.")
    )

    found = sqlserver_errors.statement_error(said, place("version", state=True))

    assert type(found) is errors.StateNotInstalled


def test_a_missing_schema_is_told_as_such() -> None:
    """Whoever made it may have made it under another name."""
    sentence = (
        'The specified schema name "sales" either does not exist or you do not have permission '
        "to use it."
    )
    for raised in (odbc("42000", 2760, sentence), mssql("Syntax error", sentence)):
        found = sqlserver_errors.statement_error(
            sqlserver_errors.read_error(raised), place("create_queue")
        )

        assert type(found) is errors.SchemaNotFound
        assert sentence in str(found)


def test_a_queues_name_cannot_pass_for_an_error() -> None:
    """The sentence counts from its beginning."""
    name = "Lock request time out period exceeded (1222) [x]"
    sentence = f"Invalid object name 'dbo.{name}'."

    said = sqlserver_errors.read_error(mssql("Base table or view not found", sentence))

    assert said.number == 208
    assert said.text == sentence


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (odbc("28000", 18456, "Login failed for user 'bo'."), errors.LoginRefused),
        (
            mssql("Invalid authorization specification", "Login failed for user 'bo'."),
            errors.LoginRefused,
        ),
        (
            odbc("42000", 4060, 'Cannot open database "x" requested by the login.'),
            errors.DatabaseNotFound,
        ),
        (
            mssql("Syntax error", 'Cannot open database "x" requested by the login.'),
            errors.DatabaseNotFound,
        ),
        (odbc("HYT00", 0, "Login timeout expired"), errors.NotReachable),
        (
            Mssql("Client unable to establish connection", "TCP Provider: Error code 0x2749"),
            errors.NotReachable,
        ),
        (odbc("08001", 10061, "TCP Provider: refused"), errors.NotReachable),
        (odbc("08S01", 104, "TCP Provider: reset"), errors.ConnectionLost),
        (odbc("42000", 40613, GONE), errors.ConnectionLost),
        (mssql("Syntax error", GONE), errors.ConnectionLost),
    ],
)
def test_only_a_server_that_is_there_is_worth_another_try(
    raised: Exception, kind: type[errors.DatabaseFailure]
) -> None:
    """A wrong url, login or database is told at once."""
    found = sqlserver_errors.connection_error("sqlserver://db", sqlserver_errors.read_error(raised))

    assert type(found) is kind


def test_a_password_in_a_drivers_text_is_blotted_out() -> None:
    """Whatever made the driver repeat its connection string."""
    raised = Odbc("HY000", f"[HY000] cannot use PWD={SECRET} (0) (SQLDriverConnect)")

    assert sqlserver_errors.read_error(raised, (SECRET, "")).text == "cannot use PWD=…"
