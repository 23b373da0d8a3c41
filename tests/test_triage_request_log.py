"""What the dispatch log has of a return request: opened, sent, given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark.stand import Queue

from sqlq_spark.jobs.error_triage import in_log
from sqlq_spark.send.dispatch import (
    GIVEN_UP,
    OPEN,
    SENT,
    UNKNOWN,
    give_up,
    open_request,
    read_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Place

    Sink = Callable[[str], dict[str, str]]


@pytest.fixture
def sink(place: Place) -> Sink:
    """Give a function of a request's options, in an empty database."""
    queue = Queue(place, "orders")
    queue.install()
    return lambda name: {**queue.options, "txnAppId": f"triage:{name}", "txnVersion": "0"}


def rows(place: Place) -> list[tuple[str, int]]:
    """Return the rows of the dispatch log."""
    return place.sql(f"SELECT sink, batch FROM {place.state}.dispatch_log")


def test_a_request_is_opened_sent_and_then_not_given_up(
    sink: Callable[[str], dict[str, str]], place: Place
) -> None:
    """Asking changes nothing; what was sent is not opened again."""
    assert [in_log(sink("r"), read_state), rows(place)] == [UNKNOWN, []]
    in_log(sink("r"), open_request)
    assert [in_log(sink("r"), read_state), in_log(sink("other"), read_state)] == [OPEN, UNKNOWN]
    assert rows(place) == [("app:triage:r", OPEN)]

    place.sql(f"UPDATE {place.state}.dispatch_log SET batch = {SENT}, messages = 7")
    assert in_log(sink("r"), read_state) == SENT
    in_log(sink("r"), give_up)
    assert in_log(sink("r"), read_state) == SENT
    in_log(sink("r"), open_request)
    assert in_log(sink("r"), read_state) == SENT


def test_only_an_open_request_is_given_up_and_stays_so(
    sink: Callable[[str], dict[str, str]],
) -> None:
    """Also if it is done twice."""
    in_log(sink("r"), open_request)
    for _ in range(2):
        in_log(sink("r"), give_up)
        assert in_log(sink("r"), read_state) == GIVEN_UP
    in_log(sink("r"), open_request)
    assert in_log(sink("r"), read_state) == GIVEN_UP
