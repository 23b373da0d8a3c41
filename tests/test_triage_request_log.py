"""What the dispatch log has of a return request: opened, sent, given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.stand import Queue

from sqlq_spark.jobs.error_triage import in_log
from sqlq_spark.send import dispatch
from sqlq_spark.send.dispatch import GIVEN_UP, OPEN, SENT, UNKNOWN, read_state

if TYPE_CHECKING:
    from conftest import Place


def test_a_request_is_opened_once_and_then_sent_or_given_up(place: Place) -> None:
    """Asking changes nothing; neither end is undone."""
    queue = Queue(place, "orders")
    queue.install()
    sent, given_up, other = (
        {**queue.options, "txnAppId": f"triage:{name}", "txnVersion": "0"} for name in "abc"
    )
    assert in_log(sent, read_state) == UNKNOWN
    assert place.sql(f"SELECT sink, batch FROM {place.state}.dispatch_log") == []
    in_log(sent, dispatch.open_request)
    assert [in_log(each, read_state) for each in (sent, other)] == [OPEN, UNKNOWN]
    place.sql(f"UPDATE {place.state}.dispatch_log SET batch = {SENT}, messages = 7")
    in_log(given_up, dispatch.open_request)

    for change in (dispatch.give_up, dispatch.open_request, dispatch.give_up):
        in_log(sent, change)
        in_log(given_up, change)

        assert [in_log(each, read_state) for each in (sent, given_up)] == [SENT, GIVEN_UP]
