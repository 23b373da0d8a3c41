"""What the real drivers make of an error, and what the package makes of that."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from sqlq_spark import errors
from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.errors import read_error
from sqlq_spark.database.sqlserver.numbers import KINDS
from sqlq_spark.database.sqlserver.url import Target
from sqlq_spark.wire.address import QueueAddress

from . import tokens
from .messages import MESSAGES
from .server import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sqlq_spark.database import Row
    from sqlq_spark.database.sqlserver.connection import Connection

    from . import messages
    from .conftest import Connect
    from .stage import Stage

QUEUE = QueueAddress("orders")
COLUMNS = tokens.columns(("seq", "int"), ("body", "binary"))
WHOLE = tokens.row(tokens.number(1), tokens.large(b"x" * 9000))
END_OF_VALUE = struct.pack("<I", 0)
# of a result: before its columns, after a whole row, inside a large value
PLACES = {
    "before any result": b"",
    "in mid-result": COLUMNS + WHOLE,
    "in mid-value": COLUMNS
    + WHOLE
    + tokens.row(
        tokens.number(2), tokens.large_start(tokens.UNKNOWN_LENGTH, b"y" * 9000) + END_OF_VALUE
    ),
}
BROKEN_VALUE = COLUMNS + WHOLE + tokens.row(tokens.number(2), tokens.large_start(90_000, b"y" * 99))
SMALL_ROWS = tokens.columns(("seq", "int")) + b"".join(
    tokens.row(tokens.number(each)) for each in range(5000)
)
DATABASE_CLOSED = tokens.Message(
    4060, 'Cannot open database "shop" requested by the login. The login failed.', 11
)
LOGIN_FAILED = tokens.Message(18456, "Login failed for user 'bo'.", 14)


def read_rows(session: Connection) -> list[Row]:
    """Run a statement about a queue that returns rows."""
    return session.rows("take", tables={"queue": QUEUE}, seqs="[1]")


def read_arrow(session: Connection) -> pa.Table:
    """Run the same statement; its rows come in columns."""
    return session.arrow("take", tables={"queue": QUEUE}, seqs=[1])


READS = [read_rows, read_arrow]


def failed(row: messages.Row, before: bytes = b"") -> Answer:
    """Return an answer that ends with an error."""
    return Answer(before + tokens.error(row.message), failed=True)


def failure_of(action: Callable[[], object]) -> type[BaseException] | None:
    """Return the class of what an action raises; None for no error."""
    try:
        action()
    except errors.DatabaseFailure as error:
        return type(error)
    return None


def test_a_driver_reports_the_servers_sentence(driver: str, url: str, script: Stage) -> None:
    """With its number (pyodbc), or so that the number is found by the sentence (mssql-python)."""
    loaded, raw = drivers.connect(Target.parse(url), "tests", 30)
    for row in MESSAGES:
        script.answers({"statement": failed(row)})

        with pytest.raises(loaded.errors) as raised:
            raw.cursor().execute("statement")

        found = read_error(raised.value)
        assert found.text == " ".join(row.message.text.split())
        assert KINDS.get(found.number) is KINDS[row.number]
        assert found.number == row.number or driver == drivers.MSSQL_PYTHON
    raw.close()


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("place", PLACES)
def test_an_error_is_classified_wherever_it_comes(
    place: str, read: Callable[[Connection], object], connect: Connect, script: Stage
) -> None:
    """Before a result, after some rows, and inside a large value."""
    session = connect()
    found = {}
    for row in MESSAGES:
        script.answers({"sqlqueue:take": failed(row, PLACES[place])})
        found[row.number] = failure_of(lambda: read(session))

    assert found == {row.number: row.statement for row in MESSAGES}


def test_an_answer_without_an_error_is_read_whole(connect: Connect, script: Stage) -> None:
    """The server of these tests sends rows that both drivers can read."""
    script.answers({"sqlqueue:take": Answer(COLUMNS + WHOLE)})
    session = connect()

    assert read_rows(session) == [(1, b"x" * 9000)]
    assert read_arrow(session).to_pylist() == [{"seq": 1, "body": b"x" * 9000}]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="before any result"),
        pytest.param(COLUMNS, id="before any row"),
        pytest.param(COLUMNS + WHOLE * 2, id="between rows"),
        pytest.param(SMALL_ROWS, id="between small rows"),
        pytest.param(COLUMNS + WHOLE * 2 + b"\xd1\x04", id="in mid-row"),
        pytest.param(BROKEN_VALUE, id="in mid-value"),
    ],
)
def test_a_connection_that_breaks_is_lost(
    sent: bytes, read: Callable[[Connection], object], connect: Connect, script: Stage
) -> None:
    """
    Whole rows before the break are not taken for all rows.

    mssql-python fetches small rows in blocks, and raises nothing if the connection breaks in one.
    """
    script.answers({"sqlqueue:take": Answer(sent, cut=True)})
    session = connect()

    with pytest.raises(errors.ConnectionLost):
        read(session)


@pytest.mark.parametrize("read", READS)
def test_a_value_that_is_too_short_is_a_lost_connection(
    read: Callable[[Connection], object], connect: Connect, script: Stage
) -> None:
    """mssql-python raises a bare RuntimeError there, without the error that follows the value."""
    script.answers({"sqlqueue:take": failed(MESSAGES[0], BROKEN_VALUE + END_OF_VALUE)})
    session = connect()

    with pytest.raises(errors.ConnectionLost):
        read(session)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("sent", [b"", SMALL_ROWS], ids=["before any result", "behind rows"])
def test_a_statement_that_stalls_times_out(
    sent: bytes, read: Callable[[Connection], object], connect: Connect, script: Stage
) -> None:
    """The session goes on. mssql-python has its own words behind the first rows."""
    session = connect(timeout=0.5)
    script.answers({"sqlqueue:take": Answer(sent, stalls=True)})

    with pytest.raises(errors.TimedOut):
        read(session)

    script.answers({"sqlqueue:take": Answer(COLUMNS + WHOLE)})
    assert read_rows(session) == [(1, b"x" * 9000)]


@pytest.mark.parametrize("read", READS)
def test_a_value_that_stalls_ends_the_statement(
    driver: str, read: Callable[[Connection], object], connect: Connect, script: Stage
) -> None:
    """By a timeout, or by the bare RuntimeError of mssql-python, which is a lost connection."""
    session = connect(timeout=0.5)
    script.answers({"sqlqueue:take": Answer(BROKEN_VALUE, stalls=True)})

    bare = driver == drivers.MSSQL_PYTHON and read is read_rows
    with pytest.raises(errors.ConnectionLost if bare else errors.TimedOut):
        read(session)


def test_a_statement_is_one_request(connect: Connect, script: Stage) -> None:
    """It also gives up what the driver prepared for the one before."""
    script.answers({"sqlqueue:take": Answer(COLUMNS + WHOLE)})
    session = connect()
    read_rows(session)
    before = script.requests
    for each in range(10):
        session.rows("take", tables={"queue": QueueAddress(f"orders{each}")}, seqs="[1]")
        read_arrow(session)

    assert script.requests - before == 20


def test_an_error_in_another_language_has_its_number(
    driver: str, connect: Connect, script: Stage
) -> None:
    """Before the login the server speaks its own language; mssql-python reports only a sentence."""
    script.logins(tokens.error(tokens.Message(40613, "Die Datenbank ist nicht da.", 17)))

    numbered = driver == drivers.PYODBC
    assert failure_of(connect) is (errors.ConnectionLost if numbered else errors.NotReachable)


def test_an_error_at_the_login_is_classified(driver: str, connect: Connect, script: Stage) -> None:
    """A server that starts, recovers or is busy is not a wrong login."""
    found = {}
    for row in MESSAGES:
        script.logins(tokens.error(row.message))
        found[row.number] = failure_of(connect)

    expected: dict[int, type[errors.DatabaseFailure]] = {row.number: row.login for row in MESSAGES}
    if driver == drivers.MSSQL_PYTHON:
        expected[LOGIN_FAILED.number] = errors.LoginUnclear
    assert found == expected


def test_a_database_that_cannot_be_opened_is_no_wrong_password(
    driver: str, connect: Connect, script: Stage
) -> None:
    """The server sends 4060 and 18456; mssql-python reports 18456 only."""
    script.logins(tokens.error(DATABASE_CLOSED) + tokens.error(LOGIN_FAILED))

    found = failure_of(connect)

    unclear = driver == drivers.MSSQL_PYTHON
    assert found is (errors.LoginUnclear if unclear else errors.DatabaseNotFound)


def test_a_login_that_breaks_off_is_a_lost_connection(connect: Connect, script: Stage) -> None:
    """The server was there, and stopped."""
    script.logins(b"")

    assert failure_of(connect) is errors.ConnectionLost
