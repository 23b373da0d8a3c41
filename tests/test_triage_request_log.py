"""What the dispatch log has of a return request: opened, sent, given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.stand import Queue

from sqlq_spark.jobs.triage.request_log import RequestLog
from sqlq_spark.send.dispatch import GIVEN_UP, OPEN, SENT, UNKNOWN

if TYPE_CHECKING:
    from conftest import Place


@pytest.fixture
def log(place: Place) -> RequestLog:
    """Give the log of an empty database."""
    queue = Queue(place, "orders")
    queue.install()
    return RequestLog(
        lambda request: {**queue.options, "txnAppId": f"triage:{request}", "txnVersion": "0"}
    )


def rows(place: Place) -> list[tuple[str, int]]:
    """Return the rows of the dispatch log."""
    return place.sql(f"SELECT sink, batch FROM {place.state}.dispatch_log")


def test_a_request_is_opened_sent_and_then_not_given_up(log: RequestLog, place: Place) -> None:
    """Asking changes nothing; what was sent is not opened again."""
    assert [log.state("r"), rows(place)] == [UNKNOWN, []]
    log.open("r")
    assert [log.state("r"), log.state("other")] == [OPEN, UNKNOWN]
    assert rows(place) == [("app:triage:r", OPEN)]

    place.sql(f"UPDATE {place.state}.dispatch_log SET batch = {SENT}, messages = 7")
    assert log.state("r") == SENT
    assert log.give_up("r") == SENT
    log.open("r")
    assert log.state("r") == SENT


def test_only_an_open_request_is_given_up_and_stays_so(log: RequestLog, place: Place) -> None:
    """An unknown one may have been sent through another dispatch log."""
    assert log.give_up("r") == UNKNOWN
    assert rows(place) == []

    log.open("r")
    assert [log.give_up("r") for _ in range(2)] == [GIVEN_UP] * 2
    log.open("r")
    assert log.state("r") == GIVEN_UP
