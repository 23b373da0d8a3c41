"""What the errors of SQL Server's drivers become, as each driver raises them."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace

import pytest
from tds.messages import MESSAGES, Row

from sqlq_spark import errors
from sqlq_spark.database import Place
from sqlq_spark.database.sqlserver import errors as sqlserver_errors
from sqlq_spark.database.sqlserver import numbers
from sqlq_spark.database.sqlserver.drivers import Incomplete, check_complete
from sqlq_spark.wire.address import QueueAddress

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
VICTIM = (
    "Transaction (Process ID 61) was deadlocked on lock resources with another process and has "
    "been chosen as the deadlock victim. Rerun the transaction."
)
FULL = "The transaction log for database 'shop' is full due to 'LOG_BACKUP'."
GONE = (
    "Database 'shop' on server 'x' is not currently available. Please retry the connection later."
)
HINTS = "Query processor could not produce a query plan because of the hints defined in this query."
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
# what we make of a driver's own sentence, or of one with a certain name; SQLSTATE and number first
SAID = {
    errors.DatabaseTooOld: ["42S02 208 Invalid object name 'OPENJSON'."],
    errors.TimedOut: ["HYT00 0 Query timeout expired"],
    errors.ConnectionLost: [
        "08S01 10054 TCP Provider: An existing connection was forcibly closed by the remote host.",
        "08S01 0 Communication link failure",
    ],
}
CASES = [(*said.split(" ", 2), kind) for kind, sentences in SAID.items() for said in sentences]
TEXTS = {row.number: row.message.text for row in MESSAGES}


def place(statement: str = "receive", *, state: bool = False) -> Place:
    """Where a statement failed."""
    return Place(
        statement=statement,
        target="sqlqueue" if state else "orders@[dbo]",
        queue=None if state else QueueAddress("orders", "dbo"),
        state="sqlqueue",
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


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: str(row.number))
def test_a_number_means_the_same_by_either_driver(row: Row) -> None:
    """SQLSTATE 42000, which ODBC has for nearly all of them, does not make them lasting."""
    sentence = " ".join(row.message.text.split())
    for raised in (odbc("42000", row.number, sentence), mssql(PHRASES["42000"], sentence)):
        said = sqlserver_errors.read_error(raised)
        found = sqlserver_errors.statement_error(said, place())

        assert said.text == sentence
        assert type(found) is row.statement
        assert str(pickle.loads(pickle.dumps(found))) == str(found)  # noqa: S301 - our own


def test_every_number_has_a_text_that_it_alone_begins() -> None:
    """No row of the table is untested, and no pattern takes another row's text."""
    tested = {number for number, words in numbers.SENTENCES.items() if words != numbers.NO_MESSAGE}
    assert tested == set(TEXTS)

    taken = {
        number: {other for other, text in TEXTS.items() if re.match(words, text)} - {number}
        for number, words in numbers.SENTENCES.items()
    }
    ambiguous = {number: others for number, others in taken.items() if others}
    assert ambiguous == {
        40143: {40197},  # the same text; both are lost connections
        40197: {40143},
        18456: {18401, 18487, 18488},  # behind these in the table
    }


OF_STATE = "The INSERT permission was denied on the object 'receipt', database 'shop', schema '{}'."


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [("sqlqueue", OF_STATE), ("sqlqueue", "Verboten."), ("sqlqueue_b", OF_STATE)],
)
def test_no_error_has_a_grant_on_a_state_schema(schema: str, sentence: str) -> None:
    """Neither on that of the options, nor where a queue is named in that of another team."""
    said = sqlserver_errors.read_error(odbc("42000", 229, sentence.format(schema)))

    found = sqlserver_errors.statement_error(said, place(state=schema == "sqlqueue"))

    assert type(found) is errors.StateRightMissing
    assert "GRANT" not in str(found)
    assert f"to your team's schema instead of {schema}, or ask for membership" in str(found)


def test_an_error_contains_its_fix() -> None:
    """The GRANT, the log, the index, the level of the database."""

    def told(state: str, number: int, sentence: str, statement: str = "receive") -> str:
        said = sqlserver_errors.read_error(odbc(state, number, sentence))
        return str(sqlserver_errors.statement_error(said, place(statement)))

    assert "GRANT SELECT ON [dbo].[orders] TO the_user" in told("42000", 229, DENIED)
    elsewhere = replace(place(), queue=QueueAddress("orders", "dbo", "shop"))
    for sentence, right in ((DENIED, "SELECT"), ("Verboten.", "SELECT, DELETE")):
        assert sqlserver_errors.missing_grant(sentence, elsewhere) == (
            f"USE [shop]; GRANT {right} ON [dbo].[orders] TO the_user"
        )
    denied = "CREATE TABLE permission denied in database 'shop'."
    assert "GRANT CREATE TABLE TO the_user" in told("42000", 262, denied, "create_queue")
    assert "GRANT SELECT, DELETE ON [dbo].[orders] TO the_user" in told("42000", 229, "Verboten.")
    assert "log_reuse_wait_desc" in told("42000", 9002, FULL)
    assert "COMPATIBILITY_LEVEL = 130" in told("42S02", 208, "Invalid object name 'OPENJSON'.")
    assert "sqlqueue doctor" in told("42000", 8622, HINTS)
    assert told("42000", 334, TRIGGER).endswith(
        "the table of orders@[dbo] has a trigger on DELETE, so nothing can be received from it; "
        "`sqlqueue doctor` prints the statement that disables it"
    )
    assert "ALTER TABLE [dbo].[orders] DISABLE TRIGGER [its name]" in told("42000", 331, TEXTS[331])
    assert "ALTER TABLE [dbo].[orders] DROP CONSTRAINT [FK_audit]" in told("42000", 332, TEXTS[332])
    assert "ALTER TABLE [dbo].[orders] NOCHECK CONSTRAINT [CK_size]" in told(
        "42000", 333, TEXTS[333]
    )
    assert "filegroup" in told("42000", 1101, TEXTS[1101])
    assert "listener" in told("25000", 3906, TEXTS[3906])
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
            errors.LoginUnclear,
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
        (odbc("42000", 18401, TEXTS[18401]), errors.ConnectionLost),
        (mssql("Invalid authorization specification", TEXTS[18401]), errors.ConnectionLost),
        (odbc("42000", 976, TEXTS[976]), errors.ReadOnly),
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

    assert sqlserver_errors.read_error(raised, SECRET).text == "cannot use PWD=…"


def test_a_shortage_at_the_commit_is_a_lost_connection() -> None:
    """Whether the commit was carried out is not known, and the next attempt finds out."""
    for number in (701, 9002):
        said = sqlserver_errors.read_error(odbc("42000", number, TEXTS[number]))

        assert (
            type(sqlserver_errors.statement_error(said, place("commit"))) is errors.ConnectionLost
        )


def test_a_runtime_error_of_a_driver_is_a_lost_connection() -> None:
    """mssql-python raises it inside a large value, with a text of its own."""
    raised = RuntimeError("Error fetching LOB for column 2, cType=-2, loop=3, SQLGetData return=-1")

    said = sqlserver_errors.read_error(raised)

    assert type(sqlserver_errors.statement_error(said, place())) is errors.ConnectionLost


class Cursor:
    """A cursor with the messages that a driver left there."""

    def __init__(self, *states: str) -> None:
        self.messages = [(state, "said so") for state in states]


def test_a_note_of_the_driver_is_no_fault() -> None:
    """PRINT and changed settings are of class 01; a broken connection is not."""
    check_complete(Cursor())
    check_complete(Cursor("[01000] (0)", "[01S02] (0)", "[00000] (0)"))

    with pytest.raises(Incomplete) as raised:
        check_complete(Cursor("[01000] (0)", "[08S01] (10054)"))

    found = sqlserver_errors.statement_error(sqlserver_errors.read_error(raised.value), place())
    assert type(found) is errors.ConnectionLost
    assert "said so" in str(found)
