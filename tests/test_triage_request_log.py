"""What the ledger says of a return: begun here, sent, given up; asking changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.stand import Queue

from sqlq_spark.jobs.triage.request_log import GIVEN_UP, OPEN, SENT, UNKNOWN, RequestLog

if TYPE_CHECKING:
    from conftest import Place


@pytest.fixture
def ledger(place: Place) -> RequestLog:
    """Give a ledger that knows nothing."""
    queue = Queue(place, "orders")
    queue.install()
    return RequestLog(
        lambda request: {**queue.options, "txnAppId": f"triage:{request}", "txnVersion": "0"}
    )


def rows(place: Place) -> list[tuple[str, int]]:
    """All that the ledger holds."""
    return place.sql(f"SELECT sink, batch FROM {place.state}.dispatch_log")


def test_asking_changes_nothing(ledger: RequestLog, place: Place) -> None:
    """Neither of a request that is not known, nor of one that is open."""
    assert [ledger.state("r"), rows(place)] == [UNKNOWN, []]
    ledger.open("r")
    assert [ledger.state("r"), ledger.state("other")] == [OPEN, UNKNOWN]
    assert rows(place) == [("app:triage:r", OPEN)]


def test_what_was_sent_is_not_given_up(ledger: RequestLog, place: Place) -> None:
    """Nor opened again."""
    ledger.open("r")
    place.sql(f"UPDATE {place.state}.dispatch_log SET batch = {SENT}, messages = 7")

    assert ledger.state("r") == SENT
    assert ledger.give_up("r") == SENT
    ledger.open("r")
    assert ledger.state("r") == SENT


def test_what_is_given_up_stays_so(ledger: RequestLog) -> None:
    """Whoever comes late finds it closed."""
    ledger.open("r")

    assert [ledger.give_up("r") for _ in range(2)] == [GIVEN_UP] * 2
    ledger.open("r")
    assert ledger.state("r") == GIVEN_UP


def test_what_is_not_known_is_not_given_up(ledger: RequestLog, place: Place) -> None:
    """It may have been sent by way of another ledger."""
    assert ledger.give_up("r") == UNKNOWN
    assert rows(place) == []
