"""What the real drivers make of an error, and what sessions of the package make of that."""

from __future__ import annotations

import importlib
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import stamina
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import Work, attempt, sessions, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.sqlserver import connection, drivers
from sqlq_spark.database.sqlserver.url import Target
from sqlq_spark.options.source import SourceOptions
from sqlq_spark.wire.address import QueueAddress

from .messages import OPENING, STATEMENT, TEXTS
from .server import COLUMNS, END_OF_VALUE, SEQ, error, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from sqlq_spark.database import Connection

    from .server import Script

    Connect = Callable[..., Connection]
    Run = Callable[..., list["Taken"]]

QUEUE = QueueAddress("orders")
WHOLE = COLUMNS + row(1, b"x" * 9000)
UNKNOWN = 0xFFFFFFFFFFFFFFFE  # the length of a value that is sent in chunks
IN_VALUE = WHOLE + row(2, b"y" * 9000, UNKNOWN) + END_OF_VALUE
BROKEN_VALUE = WHOLE + row(2, b"y" * 99, 90_000)
SMALL_ROWS = SEQ + b"".join(map(row, range(5000)))
SEVEN = SEQ + row(7)
VICTIM = error(1205, TEXTS[1205])


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of the server's answer."""

    seq: int
    body: bytes = b""


def errors_of(*numbers: int) -> bytes:
    return b"".join(error(number, TEXTS[number]) for number in numbers)


def read_rows(session: Connection) -> list[Taken]:
    """Run a statement about a queue that returns rows."""
    return session.rows("take", Taken, tables={"queue": QUEUE}, chosen="[[1]]")


def read_arrow(session: Connection) -> pa.Table:
    """Run the same statement, with its rows in columns."""
    return session.arrow("take", tables={"queue": QUEUE}, chosen="[[1]]")


def failure_of(action: Callable[[], object]) -> type[BaseException] | None:
    """Return the class of the error that an action raises, or None."""
    try:
        action()
    except errors.DatabaseFailure as failure:
        return type(failure)
    return None


def test_every_error_of_the_server_is_classified(connect: Connect, script: Script) -> None:
    """Pyodbc gives the number of the error, and mssql-python gives its sentence."""
    session, found = connect(), {}
    for number in TEXTS:
        script.prepare(errors_of(number), "failed")
        found[number] = failure_of(lambda: read_rows(session))

    assert found == STATEMENT


def test_an_error_at_the_login_is_classified(driver: str, connect: Connect, script: Script) -> None:
    """If the server may come back, the error does not say that the login is wrong."""

    def refused(refusal: bytes) -> type[BaseException] | None:
        script.refuse(refusal)
        return failure_of(connect)

    numbered = driver == drivers.PYODBC
    found = {number: refused(errors_of(number)) for number in TEXTS}
    two = refused(errors_of(4060, 18456))

    assert refused(b"") is errors.ConnectionLost
    # mssql-python reports only the second error
    assert two is (errors.DatabaseNotFound if numbered else errors.LoginUnclear)
    assert found == OPENING | ({} if numbered else {18456: errors.LoginUnclear})


@pytest.mark.parametrize("version", [SimpleNamespace(native_provider="new"), SimpleNamespace()])
def test_mssql_python_keeps_microsofts_driver(
    version: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default may be another one. A version without a choice is left as it is."""
    names = ("Exception", "ConnectionStringParseError")
    raised = SimpleNamespace(**dict.fromkeys(names, ValueError))
    version.pooling = dict
    before = hasattr(version, "native_provider")
    modules = {"mssql_python": version, "mssql_python.exceptions": raised}
    monkeypatch.setattr(drivers, "import_driver", modules.__getitem__)
    monkeypatch.delenv(drivers.PROVIDER_VARIABLE, raising=False)

    drivers.mssql_python()

    assert getattr(version, "native_provider", None) == (drivers.ODBC_PROVIDER if before else None)


def test_the_choice_of_the_native_driver_is_ours(driver: str, connect: Connect) -> None:
    """The package chooses before the first connection, after which the choice cannot change."""
    connect()

    info = importlib.import_module("mssql_python").get_native_provider_info()
    expected = (drivers.ODBC_PROVIDER, "property")
    assert driver == drivers.PYODBC or (info["id"], info["source"]) == expected


# ---------------------------------------------------------------- the option `credentials`


def test_a_token_logs_in_instead_of_a_user(
    driver: str, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """It is whole in what the driver sends, and in no line that a driver or the package logs."""
    token = "eyJ0eXAi" * 400
    # this server has no TLS, without which `with_credential` makes no target with a token
    target = Target(
        host="127.0.0.1", port=script.count("port"), encrypt="no", driver=driver, token=token
    )
    caplog.set_level("DEBUG", "")

    _, raw = drivers.open_session(target, "tests", 30)
    raw.close()

    assert token.encode("utf-16-le") in script.login()
    assert "eyJ0eXAi" not in caplog.text


def test_no_error_of_a_refused_token_shows_it(driver: str, script: Script) -> None:
    """The error counts as temporary, because a server may refuse a token during a failover."""
    token = "eyJ0eXAi"  # noqa: S105 - of no one
    script.refuse(error(18456, f"Login failed for user '{token}'."))
    target = Target(
        host="127.0.0.1", port=script.count("port"), encrypt="no", driver=driver, token=token
    )

    with pytest.raises(errors.LoginUnclear) as caught:
        connection.open_driver(target, "tests", 30)

    assert token not in str(caught.value)


def test_a_function_gives_a_password_at_each_login(
    url: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session asks for another one until the server accepts it."""
    given = iter(["first", "second", "third"])
    monkeypatch.setattr(sessions, "ask_credential", lambda *_: next(given))
    options = SourceOptions.parse(
        {"url": url.replace(":hush@", "@"), "queue": "orders", "credentials": "login:password"}
    )
    script.refuse(errors_of(18456), errors_of(18456))

    with stamina.set_testing(testing=True, attempts=5, cap=True), Session(options, "t") as session:
        session.run_with_retries(lambda _: None)

    assert disguised("third") in script.login()
    assert disguised("hush") not in script.login()


def disguised(password: str) -> bytes:
    """Return a password as a login has it: half bytes exchanged, then XOR."""
    halves = [(byte << 4 & 0xF0) | byte >> 4 for byte in password.encode("utf-16-le")]
    return bytes(byte ^ 0xA5 for byte in halves)


# ---------------------------------------------------------------- answers that break off


ANSWERS = {
    "error in mid-result": (WHOLE + VICTIM, "failed", errors.Deadlock),
    "error in mid-value": (IN_VALUE + VICTIM, "failed", errors.Deadlock),
    # the result is incomplete, although whole rows came before the break; if the rows are small,
    # mssql-python may raise no error
    "break before any result": (b"", "cut", errors.ConnectionLost),
    "break between small rows": (SMALL_ROWS, "cut", errors.ConnectionLost),
    "break in mid-row": (WHOLE + b"\xd1\x04", "cut", errors.ConnectionLost),
    "break in mid-value": (BROKEN_VALUE, "cut", errors.ConnectionLost),
    # mssql-python raises a bare RuntimeError, and does not report the error that follows the value
    "short value": (BROKEN_VALUE + END_OF_VALUE + VICTIM, "failed", errors.ConnectionLost),
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
    """The answer breaks off at different places. After a timeout the session goes on."""
    sent, ends, expected = ANSWERS[answer]
    if answer == "stall in mid-value" and driver == drivers.MSSQL_PYTHON and read is read_rows:
        expected = errors.ConnectionLost  # its bare RuntimeError
    session = connect(timeout=0.5 if ends == "stalls" else 30)
    script.prepare(sent, ends)

    assert failure_of(lambda: read(session)) is expected

    if expected is errors.TimedOut and "value" not in answer:
        script.prepare(WHOLE)
        assert read_rows(session) == [Taken(1, b"x" * 9000)]


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
        taken = session.rows("take", Taken, tables={"queue": queue}, chosen="[[1]]")
        table = read_arrow(session)

    assert script.count("calls") - before == 20
    assert taken == [Taken(1, b"x" * 9000)]
    assert table.to_pylist() == [{"seq": 1, "body": b"x" * 9000}]


def test_a_transaction_of_one_statement_is_four_requests(connect: Connect, script: Script) -> None:
    """They begin, execute, give up what the driver prepared, and commit."""
    script.prepare(SEVEN)
    session = connect()
    for _ in range(2):
        before = script.count("requests")
        with transaction(session):
            read_rows(session)

    assert script.count("requests") - before == 4


# ---------------------------------------------------------------- errors in an attempt


def fail_in_an_attempt(session: Connection) -> None:
    """Catch an error of an attempt in its transaction, and go on."""
    with transaction(session), suppress(errors.DatabaseFailure), attempt(session):
        read_rows(session)


def test_an_error_that_ends_the_transaction_is_raised_as_it_is(
    connect: Connect, script: Script
) -> None:
    """The session lives, so it is no lost connection; nothing may go on in the transaction."""
    session = connect()
    script.prepare(errors_of(3616), "failed")
    script.end_transactions()

    with pytest.raises(errors.StatementRefused, match="raised during trigger execution"):
        fail_in_an_attempt(session)

    assert session.work is Work.NONE
    script.prepare(SEVEN)
    with transaction(session):
        assert read_rows(session) == [Taken(7)]
    assert script.count("connections") == 1


def test_an_error_that_ends_no_transaction_undoes_the_attempt_alone(
    connect: Connect, script: Script
) -> None:
    """The transaction goes on."""
    session = connect()
    script.prepare(errors_of(2627), "failed")
    with transaction(session):
        with suppress(errors.StatementRefused), attempt(session):
            read_rows(session)
        assert session.work is Work.TRANSACTION
        script.prepare(SEVEN)
        assert read_rows(session) == [Taken(7)]


def test_a_deadlock_in_an_attempt_runs_the_transaction_again(run: Run, script: Script) -> None:
    """The session stays the same."""
    script.end_transactions()
    script.prepare(errors_of(1205), "failed")

    assert run(is_attempt=True) == [Taken(7)]
    assert script.count("connections") == 1


# ---------------------------------------------------------------- sessions across a failover


@pytest.fixture
def run(url: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a transaction, with retries but no pauses. Its first attempt meets what is prepared."""
    monkeypatch.setattr(sessions, "reached_urls", set())
    options = SourceOptions.parse({"url": url, "queue": "orders"})

    def once(is_attempt: bool, opened: Connection) -> list[Taken]:  # noqa: FBT001
        with transaction(opened, timeout=30), ExitStack() as stack:
            if is_attempt:
                stack.enter_context(attempt(opened))
            try:
                return read_rows(opened)
            finally:
                script.prepare(SEVEN)

    with (
        stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True),
        sessions.Session(options, "tests") as session,
    ):
        yield lambda *, is_attempt=False: session.run_with_retries(partial(once, is_attempt))


@pytest.mark.parametrize("numbers", [(4060, 18456), (18401,), (983, 4060), ()])
def test_a_failover_is_waited_for(numbers: tuple[int, ...], run: Run, script: Script) -> None:
    """The server was reached before, ends the session, and refuses the next two logins."""
    run()
    script.prepare(SEQ, "cut")
    script.refuse(errors_of(*numbers), errors_of(*numbers))

    assert run() == [Taken(7)]
    assert script.count("connections") == 4


def test_a_wrong_url_is_not_waited_for(run: Run, script: Script) -> None:
    """A server that was never reached refuses the login once; 18401 says that it is there."""
    for number in (4060, 18456):
        script.refuse(errors_of(number))
        with pytest.raises((errors.DatabaseNotFound, errors.LoginRefused)):
            run()
    assert script.count("connections") == 2

    script.refuse(errors_of(18401))
    run()
    assert script.count("connections") == 4


@pytest.mark.parametrize("number", [1205, 1222, 8645, 9002, 976])
def test_a_shortage_runs_the_transaction_again(number: int, run: Run, script: Script) -> None:
    """The server rolled back, and the session goes on. After 976, of a standby, it does not."""
    script.prepare(errors_of(number), "failed")

    assert run() == [Taken(7)]
    assert script.count("connections") == (2 if number == 976 else 1)


def test_a_transaction_that_is_idle_for_too_long_ends_with_its_session(
    connect: Connect, script: Script
) -> None:
    """The next statement is a lost connection. After a commit no timer runs."""
    script.prepare(SEVEN)
    session, threads = connect(), threading.active_count()
    with transaction(session, timeout=30):
        read_rows(session)
        assert threading.active_count() == threads + 1
    until(lambda: threading.active_count() == threads)

    def stand_still() -> None:
        with transaction(session, timeout=0.2):
            assert read_rows(session) == [Taken(7)]
            until(lambda: script.count("open") == 0)
            read_rows(session)

    with pytest.raises(errors.ConnectionLost, match=r"idle for 0.2 s \(queryTimeout\)"):
        stand_still()


def test_the_limit_counts_from_the_end_of_the_last_statement() -> None:
    """A statement that runs is not ended, however long it takes; it has a timeout of its own."""
    now, ended = [0.0], []
    watchdog = drivers.Watchdog(lambda: ended.append(now[0]), clock=lambda: now[0])
    watchdog.watch(1000)
    with watchdog.statement():
        looking = threading.Thread(target=watchdog.look)
        now[0] = 5000
        looking.start()
    looking.join()
    for now[0] in (5999, 6000, 6000):
        watchdog.look()
    watchdog.watch(None)

    assert ended == [6000]
