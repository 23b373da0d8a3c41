"""The errors of SQL Server's drivers as each driver raises them, and what they become."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tds.messages import TEXTS

from sqlq_spark import errors
from sqlq_spark.database import Place, sessions
from sqlq_spark.database.sqlserver import connection, drivers, numbers
from sqlq_spark.database.sqlserver.drivers import Incomplete, check_complete
from sqlq_spark.database.sqlserver.errors import (
    connection_error,
    read_error,
    statement_error,
)
from sqlq_spark.wire.address import QueueAddress

PLACE = Place(
    statement="receive",
    target="orders@[dbo]",
    queue=QueueAddress("orders", "dbo"),
    state="sqlqueue",
    server="sqlserver://db:1433/shop",
    seconds=30,
)
OF_STATE = replace(PLACE, target="sqlqueue", queue=None)


class Mssql(Exception):
    """An error of mssql-python: its phrase for the SQLSTATE, and the server's sentence."""

    def __init__(self, phrase: str, sentence: str) -> None:
        super().__init__(f"Driver Error: {phrase}; DDBC Error: {sentence}")
        self.driver_error, self.ddbc_error = phrase, f"[Microsoft][SQL Server]{sentence}"


def odbc(state: str, number: int, sentence: str) -> Exception:
    """An error of pyodbc: the SQLSTATE, and a text that ends with the number."""
    prefix = f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return Exception(state, f"{prefix}{sentence} ({number}) (SQLExecDirectW)")


def failure(number: int, sentence: str = "", place: Place = PLACE) -> errors.DatabaseFailure:
    """What an error of pyodbc becomes during a statement."""
    said = read_error(odbc("42000", number, sentence or TEXTS[number]))
    return statement_error(said, place, triggers=["[audit]", "[it's]"])


def test_every_number_has_a_text() -> None:
    """No row of the table is untested."""
    tested = {number for number, words in numbers.SENTENCES.items() if words != numbers.NO_MESSAGE}

    assert tested == set(TEXTS)


@pytest.mark.parametrize(
    ("raised", "during", "opening"),
    [
        (odbc("HYT00", 0, "timeout expired"), "TimedOut", "NotReachable"),
        (Mssql("Timeout expired", "timeout"), "TimedOut", "NotReachable"),
        (odbc("HY000", 10054, "forcibly closed"), "ConnectionLost", "ConnectionLost"),
        (Mssql("Communication link failure", ""), "ConnectionLost", "ConnectionLost"),
        (odbc("08001", 10061, "refused"), "StatementFailed", "NotReachable"),
        (odbc("28000", 0, "Anmeldung"), "StatementFailed", "LoginRefused"),
        (odbc("42S02", 208, "Invalid object name 'OPENJSON'."), "DatabaseTooOld", "NotReachable"),
    ],
)
def test_an_error_without_a_known_number_is_known_by_its_state(
    raised: Exception, during: str, opening: str
) -> None:
    """Errors of the network are in the driver's own words, or in another language."""
    said = read_error(raised)

    assert type(statement_error(said, PLACE)).__name__ == during
    assert type(connection_error("sqlserver://db", said)).__name__ == opening


DENIED = "The INSERT permission was denied on the object 'receipt', database 'shop', schema '{}'."


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [("sqlqueue", DENIED), ("sqlqueue", "Verboten."), ("sqlqueue_b", DENIED)],
)
def test_no_error_has_a_grant_on_a_state_schema(schema: str, sentence: str) -> None:
    """The schema is that of the options, or a queue is named in the schema of another team."""
    place = OF_STATE if schema == "sqlqueue" else PLACE
    found = failure(229, sentence.format(schema), place)

    assert type(found) is errors.StateRightMissing
    assert "GRANT" not in str(found)
    assert f"to your team's schema instead of {schema}, or ask for membership" in str(found)


@pytest.mark.parametrize(
    ("number", "sentence", "fix"),
    [
        (229, "", "GRANT SELECT ON [dbo].[orders] TO the_user"),
        (229, "Verboten.", "GRANT SELECT, DELETE ON [dbo].[orders] TO the_user"),
        (262, "", "GRANT CREATE TABLE TO the_user"),
        (9002, "", "log_reuse_wait_desc"),
        (208, "Invalid object name 'OPENJSON'.", "COMPATIBILITY_LEVEL = 130"),
        (8622, "", "sqlqueue doctor"),
        (334, "", "the table of orders@[dbo] has a trigger on DELETE, so nothing can be received"),
        (331, "", "ALTER TABLE [dbo].[orders] DISABLE TRIGGER [its name]"),
        (332, "", "ALTER TABLE [dbo].[orders] DROP CONSTRAINT [FK_audit]"),
        (333, "", "ALTER TABLE [dbo].[orders] NOCHECK CONSTRAINT [CK_size]"),
        (1101, "", "filegroup"),
        (3906, "", "listener"),
        (3616, "", "ALTER TABLE [dbo].[orders] DISABLE TRIGGER [audit], [it's]"),
        (916, "", "USE [billing]; CREATE USER [bo] FOR LOGIN [bo]"),
        *((number, "", "a member of db_owner") for number in (1088, 3701, 4902, 15151, 15247)),
        (51901, "", "ALTER TABLE [dbo].[orders] ALTER COLUMN Headers nvarchar(max) NOT NULL"),
    ],
)
def test_an_error_contains_its_fix(number: int, sentence: str, fix: str) -> None:
    """The fix is a GRANT, or names the log, the index, or the compatibility level."""
    assert fix in str(failure(number, sentence))


def test_the_error_of_a_trigger_names_it_behind_its_own_sentence() -> None:
    """One driver reports both errors in one text."""
    both = f"[x]not today (50000) (SQLExecDirectW); [x]{TEXTS[3609]} (3609) (SQLExecDirectW)"
    found = statement_error(read_error(Exception("42000", both)), PLACE, triggers=["[audit]"])

    assert type(found) is errors.StatementRefused
    assert str(found).startswith("receive failed with error 50000: not today; a trigger on the ")
    assert str(found).endswith("DISABLE TRIGGER [audit]")


@pytest.mark.parametrize("number", TEXTS)
def test_no_full_stop_is_repeated(number: int) -> None:
    """The server's sentences end with one, and go on in ours."""
    said = read_error(Mssql("General error", TEXTS[number]))

    for error in (failure(number), connection_error("sqlserver://db", said)):
        assert not re.search(r"\.[.:;,)]", str(error))


def test_the_error_of_a_lock_has_the_seconds_of_its_limit() -> None:
    """A destination is waited for shorter than a statement may take."""
    assert "took longer than 0.5 s" in str(failure(1222, place=replace(PLACE, lock_seconds=0.5)))


@pytest.mark.parametrize(
    "raised",
    [
        Exception("HY000", "The driver did not supply an error!"),
        Mssql("An error occurred with SQLSTATE code: ", "Unknown DDBC error"),
    ],
)
def test_a_failure_without_an_error_is_a_timeout_if_its_time_was_over(raised: Exception) -> None:
    """A result may stall in the middle. Before the time is over, the failure may be anything."""
    said = read_error(raised)
    found = [type(statement_error(said, PLACE, took=took)) for took in (31.0, 1.0)]

    assert found == [errors.TimedOut, errors.StatementFailed]


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("db/shop?authentication=ActiveDirectoryMsi", errors.LoginUnclear),
        ("db/shop?authentication=SqlPassword", errors.LoginRefused),
        ("bo:secret@db/shop", errors.LoginRefused),
        ("bo@db/shop", errors.PasswordMissing),
    ],
)
def test_a_token_may_be_refused_during_a_failover(
    rest: str, expected: type[errors.LoginRefused], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has reached the url waits then; a password is wrong or missing."""

    def refuse(*_: object) -> None:
        raise odbc("28000", 18456, TEXTS[18456])

    monkeypatch.setattr(drivers, "open_session", refuse)

    with pytest.raises(errors.LoginRefused) as caught:
        connection.connect(f"sqlserver://{rest}", application="test", timeout=1, state="sqlqueue")
    assert type(caught.value) is expected
    assert isinstance(caught.value, sessions.ABSENT) == (expected is errors.LoginUnclear)


def test_a_queues_name_cannot_pass_for_an_error() -> None:
    """A sentence is recognised only by its beginning, where no name stands."""
    name = "Lock request time out period exceeded (1222) [x]"
    said = read_error(Mssql("Base table or view not found", f"Invalid object name 'dbo.{name}'."))

    assert said.number == 208


@pytest.mark.parametrize("number", [245, 2601, 2627, 2628])
def test_no_error_quotes_the_value_of_a_row(number: int) -> None:
    """The server's sentence quotes it."""
    sentence = {
        245: "Conversion failed when converting the varchar value 'secret' to data type int.",
        2601: "Cannot insert duplicate key row in object 'dbo.q' with unique index 'u'. "
        "The duplicate key value is (secret, (1)).",
        2627: "Violation of UNIQUE KEY constraint 'u'. Cannot insert duplicate key in object "
        "'dbo.q'. The duplicate key value is (secret).",
        2628: "… would be truncated in table 'shop.dbo.q', column 'c'. Truncated value: 'secret'.",
    }[number]

    assert "secret" in sentence
    assert "secret" not in str(failure(number, sentence))


def test_the_place_of_a_statement_changes_what_its_error_is() -> None:
    """Places are a state table, another database, and a commit, which may have taken place."""
    elsewhere = replace(PLACE, queue=QueueAddress("orders", "dbo", "shop"))
    absent = failure(208, "Invalid object name 'sqlqueue.version'.", OF_STATE)
    at_commit = [failure(n, place=replace(PLACE, statement="commit")) for n in (701, 9002)]

    grant = "USE [shop]; GRANT SELECT, DELETE ON [dbo].[orders] TO the_user"
    assert grant in str(failure(229, "Verboten.", elsewhere))
    assert type(absent) is errors.StateNotInstalled
    assert {type(each) for each in at_commit} == {errors.ConnectionLost}


def test_a_password_in_a_drivers_text_is_blotted_out() -> None:
    """A driver may repeat its connection string."""
    raised = Exception("HY000", "[HY000] cannot use PWD=hush-#1 (0) (SQLDriverConnect)")

    assert read_error(raised, "hush-#1").text == "cannot use PWD=…"


def test_a_note_of_the_driver_is_no_fault() -> None:
    """PRINT and changed settings are of class 01; a broken connection is not."""
    notes = [("[01000] (0)", "said so"), ("[01S02] (0)", ""), ("[00000] (0)", "")]
    check_complete(SimpleNamespace(messages=notes))

    with pytest.raises(Incomplete) as raised:
        check_complete(SimpleNamespace(messages=[*notes, ("[08S01] (10054)", "gone")]))

    found = statement_error(read_error(raised.value), PLACE)
    assert type(found) is errors.ConnectionLost
    assert "gone" in str(found)
