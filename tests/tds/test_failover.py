"""Sessions across a failover, through the real drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import stamina

from sqlq_spark import errors
from sqlq_spark.database import sessions
from sqlq_spark.options.source import SourceOptions
from sqlq_spark.wire.address import QueueAddress

from . import tokens
from .messages import MESSAGES
from .server import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection, Row

    from .stage import Stage

TEXTS = {row.number: tokens.error(row.message) for row in MESSAGES}
COLUMNS = tokens.columns(("seq", "int"))
ROWS = COLUMNS + tokens.row(tokens.number(7))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Retry as often as usual, without the pauses, in a process that has reached no server."""
    monkeypatch.setattr(sessions, "reached", set())
    with stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True):
        yield


@pytest.fixture
def session(url: str) -> Iterator[sessions.Session]:
    """Give a session that has connected to nothing yet."""
    options = SourceOptions.parse({"url": url, "queue": "orders"})
    with sessions.Session(options, "tests") as made:
        yield made


def take(connection: Connection) -> list[Row]:
    """Run one transaction."""
    connection.rows("begin")
    found = connection.rows("take", tables={"queue": QueueAddress("orders")}, seqs="[1]")
    connection.rows("commit")
    return found


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(TEXTS[4060] + TEXTS[18456], id="4060 and 18456"),
        pytest.param(TEXTS[4060], id="4060"),
        pytest.param(TEXTS[18401], id="18401"),
        pytest.param(TEXTS[983] + TEXTS[4060], id="983 and 4060"),
        pytest.param(TEXTS[40613], id="40613"),
        pytest.param(b"", id="hangs up"),
    ],
)
def test_a_failover_is_waited_for(refusal: bytes, session: sessions.Session, script: Stage) -> None:
    """The server was reached before, ends the session, and refuses the next two logins."""
    session.run_with_retries(take)
    script.answers({"sqlqueue:take": Answer(COLUMNS, cut=True)})
    script.logins(refusal, refusal)

    def restored(connection: Connection) -> list[Row]:
        try:
            return take(connection)
        finally:
            script.answers({"sqlqueue:take": Answer(ROWS)})

    assert session.run_with_retries(restored) == [(7,)]
    assert script.connections == 4


@pytest.mark.parametrize("number", [4060, 18456, 18487])
def test_a_wrong_url_is_not_waited_for(
    number: int, session: sessions.Session, script: Stage
) -> None:
    """A server that was never reached refuses the login once."""
    script.logins(TEXTS[number])

    with pytest.raises((errors.DatabaseNotFound, errors.LoginRefused)):
        session.run_with_retries(take)

    assert script.connections == 1


def test_a_server_that_recovers_is_waited_for(session: sessions.Session, script: Stage) -> None:
    """Also by the first session, because 18401 says that the server is there."""
    script.logins(TEXTS[18401])

    session.run_with_retries(take)

    assert script.connections == 2


@pytest.mark.parametrize(
    "number", [701, 802, 1101, 1105, 1204, 1205, 1222, 8645, 8651, 9002, 40544]
)
def test_a_shortage_runs_the_transaction_again(
    number: int, session: sessions.Session, script: Stage
) -> None:
    """In the same session: the server rolled back, and lost nothing."""
    script.answers({"sqlqueue:take": Answer(TEXTS[number], failed=True)})

    def eased(connection: Connection) -> list[Row]:
        try:
            return take(connection)
        finally:
            script.answers({"sqlqueue:take": Answer(ROWS)})

    assert session.run_with_retries(eased) == [(7,)]
    assert script.connections == 1


@pytest.mark.parametrize("number", [976, 978, 3906])
def test_a_standby_is_left_for_the_primary(
    number: int, session: sessions.Session, script: Stage
) -> None:
    """Each attempt connects again, and the error says how to reach the primary."""
    script.answers({"sqlqueue:take": Answer(TEXTS[number], failed=True)})

    with pytest.raises(errors.ReadOnly, match="listener"):
        session.run_with_retries(take)

    assert script.connections == sessions.ATTEMPTS
