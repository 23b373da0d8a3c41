"""What the real drivers make of an error, and what the package makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqlq_spark import errors
from sqlq_spark.database.sqlserver import connection, drivers
from sqlq_spark.wire.address import QueueAddress

from .messages import OPENING, STATEMENT, TEXTS
from .server import COLUMNS, END_OF_VALUE, SEQ, error, row

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from sqlq_spark.database import Row
    from sqlq_spark.database.sqlserver.connection import Connection

    from .server import Script

    Connect = Callable[..., Connection]

QUEUE = QueueAddress("orders")
WHOLE = COLUMNS + row(1, b"x" * 9000)
UNKNOWN = 0xFFFFFFFFFFFFFFFE  # the length of a value that is sent in chunks
IN_VALUE = WHOLE + row(2, b"y" * 9000, UNKNOWN) + END_OF_VALUE
BROKEN_VALUE = WHOLE + row(2, b"y" * 99, 90_000)
SMALL_ROWS = SEQ + b"".join(map(row, range(5000)))
VICTIM = error(1205, TEXTS[1205])


def read_rows(session: Connection) -> list[Row]:
    """Run a statement about a queue that returns rows."""
    return session.rows("take", tables={"queue": QUEUE}, seqs="[1]")


def read_arrow(session: Connection) -> pa.Table:
    """Run the same statement; its rows come in columns."""
    return session.arrow("take", tables={"queue": QUEUE}, seqs=[1])


def failure_of(action: Callable[[], object]) -> type[BaseException] | None:
    """Return the class of what an action raises; None for no error."""
    try:
        action()
    except errors.DatabaseFailure as failure:
        return type(failure)
    return None


def test_every_error_of_the_server_is_classified(connect: Connect, script: Script) -> None:
    """By its number (pyodbc), or by its sentence (mssql-python)."""
    session, found = connect(), {}
    for number, text in TEXTS.items():
        script.prepare(error(number, text), "failed")
        found[number] = failure_of(lambda: read_rows(session))

    assert found == STATEMENT


def test_an_error_at_the_login_is_classified(driver: str, connect: Connect, script: Script) -> None:
    """No wrong login is reported where the server may come back."""

    def refused(refusal: bytes) -> type[BaseException] | None:
        script.refuse(refusal)
        return failure_of(connect)

    numbered = driver == drivers.PYODBC
    found = {number: refused(error(number, text)) for number, text in TEXTS.items()}
    two = refused(error(4060, TEXTS[4060]) + error(18456, TEXTS[18456]))
    german = refused(
        error(40613, "Die Datenbank ist nicht da.")
    )  # before the session is in English

    assert refused(b"") is errors.ConnectionLost
    assert german is (errors.ConnectionLost if numbered else errors.NotReachable)
    # mssql-python reports the second error only
    assert two is (errors.DatabaseNotFound if numbered else errors.LoginUnclear)
    assert found == OPENING | ({} if numbered else {18456: errors.LoginUnclear})


def test_a_closed_port_is_not_reachable(driver: str) -> None:
    """The error names the server, and no password."""
    url = f"sqlserver://bo:hush@127.0.0.1:1/shop?driver={driver}"
    with pytest.raises(errors.NotReachable, match=r"sqlserver://127\.0\.0\.1:1/shop") as found:
        connection.connect(url, application="test", timeout=1, state="sqlqueue")

    assert "hush" not in f"{found.value} {found.value.__cause__}"


ANSWERS = {
    "error in mid-result": (WHOLE + VICTIM, "failed", errors.Deadlock),
    "error in mid-value": (IN_VALUE + VICTIM, "failed", errors.Deadlock),
    # whole rows before a break are not all rows; mssql-python may raise nothing between small rows
    "break before any result": (b"", "cut", errors.ConnectionLost),
    "break before any row": (COLUMNS, "cut", errors.ConnectionLost),
    "break between rows": (WHOLE + row(1, b"x"), "cut", errors.ConnectionLost),
    "break between small rows": (SMALL_ROWS, "cut", errors.ConnectionLost),
    "break in mid-row": (WHOLE + b"\xd1\x04", "cut", errors.ConnectionLost),
    "break in mid-value": (BROKEN_VALUE, "cut", errors.ConnectionLost),
    # mssql-python raises a bare RuntimeError there, without the error that follows the value
    "short value": (BROKEN_VALUE + END_OF_VALUE + VICTIM, "failed", errors.ConnectionLost),
    "stall before any result": (b"", "stalls", errors.TimedOut),
    "stall behind rows": (SMALL_ROWS, "stalls", errors.TimedOut),
    "stall in mid-value": (BROKEN_VALUE, "stalls", errors.TimedOut),
}


@pytest.mark.parametrize("read", [read_rows, read_arrow])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_breaks_off_is_an_error(
    answer: str,
    read: Callable[[Connection], object],
    driver: str,
    connect: Connect,
    script: Script,
) -> None:
    """Wherever it breaks; after a timeout the session goes on."""
    sent, ends, expected = ANSWERS[answer]
    if answer == "stall in mid-value" and driver == drivers.MSSQL_PYTHON and read is read_rows:
        expected = errors.ConnectionLost  # its bare RuntimeError
    session = connect(timeout=0.5 if ends == "stalls" else 30)
    script.prepare(sent, ends)

    assert failure_of(lambda: read(session)) is expected

    if expected is errors.TimedOut and "value" not in answer:
        script.prepare(WHOLE)
        assert read_rows(session) == [(1, b"x" * 9000)]


def test_a_statement_is_one_request_and_its_answer_is_read_whole(
    connect: Connect, script: Script
) -> None:
    """The request also gives up what the driver prepared for the statement before."""
    script.prepare(WHOLE)
    session = connect()
    read_rows(session)
    before = script.count("calls")
    for each in range(10):
        queue = QueueAddress(f"orders{each}")
        found = session.rows("take", tables={"queue": queue}, seqs="[1]")
        table = read_arrow(session)

    assert script.count("calls") - before == 20
    assert found == [(1, b"x" * 9000)]
    assert table.to_pylist() == [{"seq": 1, "body": b"x" * 9000}]
