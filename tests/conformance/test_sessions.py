"""Sessions of workers: one leaves its connection to the next, and never a broken one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from waiting import until

from sqlq_spark.database import sessions
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import QueueNotFound
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection

    from .conftest import Bench


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a process that keeps nothing yet; close what it kept."""
    kept = sessions.Idle()
    monkeypatch.setattr(sessions, "idle", kept)
    monkeypatch.setattr(sessions, "IDLE", 600.0)  # none is closed in the middle of a test
    yield
    for connection, timer in list(kept._kept.values()):  # noqa: SLF001 - they must end with the test
        timer.cancel()
        connection.close()


def mine(bench: Bench) -> str:
    """What the names of these tests' sessions have in common."""
    return f"{bench.name} own"


def worker(bench: Bench, name: str = "task", **raw: str) -> Session:
    """Begin a session as a worker does."""
    return StateSession(bench.source(**raw), f"{mine(bench)} {name}", worker=True)


def connection(session: Session) -> Connection:
    """Use a session as a worker does."""
    with session:
        return session.run_with_retries(lambda connection: connection)


def settled(bench: Bench) -> int:
    """How many sessions stay, when those that are ending have ended."""
    until(lambda: bench.dotnet.sessions(mine(bench)) <= kept())
    return bench.dotnet.sessions(mine(bench))


def kept() -> int:
    """How many connections this process keeps."""
    return len(sessions.idle._kept)  # noqa: SLF001 - what a user never sees


def test_a_session_takes_the_connection_of_the_one_before(bench: Bench) -> None:
    """It need not connect; the DBA sees its own name while its transaction is open."""
    first = connection(worker(bench, "first"))

    with worker(bench, "second") as session:
        second = session.open()
        assert second is first
        assert second.application == f"sqlqueue {mine(bench)} second"


def test_two_sessions_at_once_have_two_connections(bench: Bench) -> None:
    """One of them is kept, the other closed."""
    with worker(bench) as one, worker(bench) as other:
        assert one.open() is not other.open()

    assert settled(bench) == kept() == 1


@pytest.mark.parametrize(
    "raw", [{"stateSchema": "another"}, {"queryTimeout": "7s"}, {"password": "another"}]
)
def test_a_session_with_other_options_has_a_connection_of_its_own(
    bench: Bench, raw: dict[str, str]
) -> None:
    """What it was opened with would be wrong for it."""
    first = connection(worker(bench))

    assert sessions.idle.take(worker(bench, **raw)._key) is None  # noqa: SLF001
    assert sessions.idle.take(worker(bench)._key) is first  # noqa: SLF001


def test_a_session_that_failed_leaves_nothing(bench: Bench) -> None:
    """Whatever it had begun is undone with its connection."""
    session = worker(bench)

    with pytest.raises(ZeroDivisionError), session:
        session.run_with_retries(lambda connection: connection.rows("version")[0][0] / 0)

    assert settled(bench) == 0


def test_an_error_comes_without_the_frames_of_its_attempts(bench: Bench) -> None:
    """Spark prints every frame, and the sentence after them: who reads it should come to it."""
    queue = QueueAddress("not there", None)

    with pytest.raises(QueueNotFound) as caught, worker(bench) as session:
        session.run_with_retries(lambda connection: connection.rows("top", tables={"queue": queue}))

    assert [each.name for each in caught.traceback][1:] == ["run_with_retries"]


def test_a_kept_connection_that_died_is_replaced(bench: Bench) -> None:
    """Its next user does not notice."""
    dead = connection(worker(bench))
    bench.dotnet.kill(mine(bench))

    with worker(bench) as session:
        assert session.run_with_retries(lambda alive: alive.rows("version"))
        assert session.open() is not dead


def test_a_connection_that_no_one_takes_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has nothing to do holds no session of the database for long."""
    first = connection(worker(bench))
    assert settled(bench) == kept() == 1

    monkeypatch.setattr(sessions, "IDLE", 0.2)
    assert connection(worker(bench)) is first

    until(kept, 0)
    assert settled(bench) == 0


def test_other_sessions_keep_nothing(bench: Bench) -> None:
    """A command and a driver end theirs at once."""
    connection(StateSession(bench.source(), f"{mine(bench)} command"))

    assert settled(bench) == 0
