"""Sessions across a failover and while a transaction stands still, through the real drivers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import stamina
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import sessions, transaction
from sqlq_spark.database.sqlserver.drivers import Watchdog
from sqlq_spark.options.source import SourceOptions
from sqlq_spark.wire.address import QueueAddress

from .messages import TEXTS
from .server import SEQ, error, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection, Row

    from .server import Script

ROWS = SEQ + row(7)


def errors_of(*numbers: int) -> bytes:
    return b"".join(error(number, TEXTS[number]) for number in numbers)


@pytest.fixture
def session(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[sessions.Session]:
    """Give a session that has connected to nothing yet; it retries without pauses."""
    monkeypatch.setattr(sessions, "reached", set())
    options = SourceOptions.parse({"url": url, "queue": "orders"})
    with (
        stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True),
        sessions.Session(options, "tests") as made,
    ):
        yield made


def take(connection: Connection) -> list[Row]:
    return connection.rows("take", tables={"queue": QueueAddress("orders")}, seqs="[1]")


def take_in_transaction(connection: Connection) -> list[Row]:
    connection.rows("begin")
    found = take(connection)
    connection.rows("commit")
    return found


def recovers(session: sessions.Session, script: Script) -> list[Row]:
    """Run a transaction whose second attempt gets an answer."""

    def attempt(connection: Connection) -> list[Row]:
        try:
            return take_in_transaction(connection)
        finally:
            script.prepare(ROWS)

    return session.run_with_retries(attempt)


@pytest.mark.parametrize("numbers", [(4060, 18456), (4060,), (18401,), (983, 4060), (40613,), ()])
def test_a_failover_is_waited_for(
    numbers: tuple[int, ...], session: sessions.Session, script: Script
) -> None:
    """The server was reached before, ends the session, and refuses the next two logins."""
    session.run_with_retries(take_in_transaction)
    script.prepare(SEQ, "cut")
    script.refuse(errors_of(*numbers), errors_of(*numbers))

    assert recovers(session, script) == [(7,)]
    assert script.count("connections") == 4


@pytest.mark.parametrize(("number", "connections"), [(4060, 1), (18456, 1), (18487, 1), (18401, 2)])
def test_a_first_login_is_tried_again_only_if_the_server_recovers(
    number: int, connections: int, session: sessions.Session, script: Script
) -> None:
    """A wrong url is told at once; 18401 says that the server is there."""
    script.refuse(errors_of(number))
    script.prepare(ROWS)

    try:
        session.run_with_retries(take_in_transaction)
    except (errors.DatabaseNotFound, errors.LoginRefused):
        assert connections == 1

    assert script.count("connections") == connections


@pytest.mark.parametrize(
    "number", [701, 802, 1101, 1105, 1204, 1205, 1222, 8645, 8651, 9002, 40544]
)
def test_a_shortage_runs_the_transaction_again(
    number: int, session: sessions.Session, script: Script
) -> None:
    """In the same session: the server rolled back, and lost nothing."""
    script.prepare(errors_of(number), "failed")

    assert recovers(session, script) == [(7,)]
    assert script.count("connections") == 1


@pytest.mark.parametrize("number", [976, 978, 3906])
def test_a_standby_is_left_for_the_primary(
    number: int, session: sessions.Session, script: Script
) -> None:
    """Each attempt connects again, and the error says how to reach the primary."""
    script.prepare(errors_of(number), "failed")

    with pytest.raises(errors.ReadOnly, match="listener"):
        session.run_with_retries(take_in_transaction)

    assert script.count("connections") == sessions.ATTEMPTS


# ---------------------------------------------------------------- idle transactions


def test_a_transaction_that_is_idle_for_too_long_ends_with_its_session(
    connect: Callable[..., Connection], script: Script
) -> None:
    """The server sees the connection go; the next statement is a lost connection."""
    script.prepare(ROWS)
    session = connect()

    def stand_still() -> None:
        with transaction(session, timeout=0.2):
            assert take(session) == [(7,)]
            until(lambda: script.count("open") == 0)
            take(session)

    with pytest.raises(errors.ConnectionLost, match=r"idle for 0.2 s \(queryTimeout\)"):
        stand_still()


def test_a_session_without_a_transaction_is_not_watched(
    connect: Callable[..., Connection], script: Script
) -> None:
    """After the commit, and after an error, no timer runs."""
    session = connect()
    before = threading.active_count()

    for ends in ("whole", "cut"):
        script.prepare(ROWS, ends)
        try:
            with transaction(session, timeout=30):
                take(session)
                assert threading.active_count() == before + 1
        except errors.ConnectionLost:
            assert ends == "cut"
        until(lambda: threading.active_count() == before)


def test_the_limit_counts_from_the_end_of_the_last_statement() -> None:
    """A statement that runs is not ended, however long it takes; it has a timeout of its own."""
    now, ended = [0.0], []
    watchdog = Watchdog(lambda: ended.append(now[0]), clock=lambda: now[0])
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
