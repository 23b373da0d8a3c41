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

    Connect = Callable[..., Connection]
    Run = Callable[..., list[Row]]

ROWS = SEQ + row(7)


def errors_of(*numbers: int) -> bytes:
    return b"".join(error(number, TEXTS[number]) for number in numbers)


def take(connection: Connection) -> list[Row]:
    return connection.rows("take", tables={"queue": QueueAddress("orders")}, seqs="[1]")


@pytest.fixture
def run(url: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a transaction, retried without pauses; its first attempt meets what is prepared."""
    monkeypatch.setattr(sessions, "reached", set())
    options = SourceOptions.parse({"url": url, "queue": "orders"})

    def once(connection: Connection) -> list[Row]:
        with transaction(connection, timeout=30):
            try:
                return take(connection)
            finally:
                script.prepare(ROWS)

    with (
        stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True),
        sessions.Session(options, "tests") as session,
    ):
        yield lambda: session.run_with_retries(once)


@pytest.mark.parametrize("numbers", [(4060, 18456), (4060,), (18401,), (983, 4060), (40613,), ()])
def test_a_failover_is_waited_for(numbers: tuple[int, ...], run: Run, script: Script) -> None:
    """The server was reached before, ends the session, and refuses the next two logins."""
    run()
    script.prepare(SEQ, "cut")
    script.refuse(errors_of(*numbers), errors_of(*numbers))

    assert run() == [(7,)]
    assert script.count("connections") == 4


def test_a_wrong_url_is_not_waited_for(run: Run, script: Script) -> None:
    """A server that was never reached refuses the login once; 18401 says that it is there."""
    for number in (4060, 18456, 18487):
        script.refuse(errors_of(number))
        with pytest.raises((errors.DatabaseNotFound, errors.LoginRefused)):
            run()
    assert script.count("connections") == 3

    script.refuse(errors_of(18401))
    run()
    assert script.count("connections") == 5


@pytest.mark.parametrize(
    "number", [701, 802, 1101, 1105, 1204, 1205, 1222, 8645, 8651, 9002, 40544, 976, 978, 3906]
)
def test_a_shortage_runs_the_transaction_again(number: int, run: Run, script: Script) -> None:
    """In the same session: the server rolled back. From a standby (976 on) in another one."""
    script.prepare(errors_of(number), "failed")

    assert run() == [(7,)]
    assert script.count("connections") == (2 if number in {976, 978, 3906} else 1)


def test_a_transaction_that_is_idle_for_too_long_ends_with_its_session(
    connect: Connect, script: Script
) -> None:
    """The next statement is a lost connection. After a commit no timer runs."""
    script.prepare(ROWS)
    session, threads = connect(), threading.active_count()
    with transaction(session, timeout=30):
        take(session)
        assert threading.active_count() == threads + 1
    until(lambda: threading.active_count() == threads)

    def stand_still() -> None:
        with transaction(session, timeout=0.2):
            assert take(session) == [(7,)]
            until(lambda: script.count("open") == 0)
            take(session)

    with pytest.raises(errors.ConnectionLost, match=r"idle for 0.2 s \(queryTimeout\)"):
        stand_still()


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
