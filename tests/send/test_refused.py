"""Rows and frames that cannot be sent: the error names the row or the column, and what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from sqlq_spark.errors import BadFrame, BadMessage
from sqlq_spark.send.frame import TOPICS, check_frame
from sqlq_spark.wire.headers import dumps

from .frames import frame, maps, moments, sender

TOO_LATE = 253_370_764_800_000_000  # the year 9999
HEADERS = "headers is no JSON object of texts"
NOT_UTF8 = pa.Array.from_buffers(  # as Spark casts bytes: unchecked
    pa.string(), 2, pa.array([b"{}", b'{"a":"\xff"}'], pa.binary()).buffers()
)
NO_QUEUE = "queue is null, topics too, and the sink has no option for either"
NOWHERE: dict[str, Any] = {"queue": None}  # a sink without the option queue


def big(*numbers: int | None) -> pa.Array:
    """Make a bigint column."""
    return pa.array(numbers, pa.int64())


def spans(*found: timedelta | None) -> pa.Array:
    """Make an interval column."""
    return pa.array(found, pa.duration("us"))


def topics(*lists: list[str | None] | None) -> pa.Array:
    """Make a column of topics."""
    return pa.array(lists, TOPICS)


ONE_MS = timedelta(milliseconds=1)
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({"headers": pa.array(["{}", text])}, HEADERS)
        for text in ("[]", "{", '{"a":1}', '{"a":"\\ud800"}')
    ),
    ({"headers": NOT_UTF8}, "headers is not UTF-8"),
    (
        {"body": pa.array([b"x", None], pa.binary())},
        "body is null: send zero bytes instead, coalesce(body, '')",
    ),
    ({"timeToBeReceived": big(0, -1)}, "timeToBeReceived is negative"),
    ({"timeToBeReceived": big(0, 2**31)}, "timeToBeReceived is too long"),
    ({"timeToBeReceived": ["00:00:00", "-00:00:01"]}, "is negative"),
    ({"timeToBeReceived": ["00:00:00", "soon"]}, "'soon' cannot be read: expected [d.]hh:mm:ss"),
    ({"timeToBeReceived": spans(0 * ONE_MS, timedelta(days=25))}, "is too long"),
    ({"delay": big(0, -1)}, "delay is negative: expected at least 0 and"),
    ({"delay": big(0, 31_536_000_000_001)}, "(365,000 days)"),
    ({"delay": ["00:00:00", "365001.00:00:00"]}, "longer than 365000.00:00:00"),
    ({"delay": ["00:00:00", "soon"]}, "delay 'soon' cannot be read"),
    ({"delay": spans(0 * ONE_MS, -ONE_MS)}, "is negative"),
    ({"deliverAt": moments(0, TOO_LATE)}, "deliverAt is outside of the years 1900 to 9998"),
    ({"deliverAt": moments(TOO_LATE - 1, -(2**62))}, "deliverAt is outside of the years"),
    (
        {"delay": big(None, 1), "deliverAt": moments(0, 0)},
        "it has both deliverAt and delay: leave one of them null",
    ),
    (
        {"delay": big(1, 1), "timeToBeReceived": big(None, 1)},
        "it has a delay and a time-to-be-received, from its column or from the option",
    ),
    (
        {"deliverAt": moments(0, 0), "timeToBeReceived": [None, "00:01:00"]},
        "the transport cannot delay a message that expires",
    ),
    ({"topics": topics(None, ["Shop.Placed", None])}, "topics holds a null"),
    ({"topics": topics(["fine"], ["fine", ""])}, "topics holds a blank topic"),
    ({"topics": topics(["fine"], ["a;b"])}, "topics holds a topic with ';': give each type as"),
]


@pytest.mark.parametrize(("given", "reason"), REFUSED)
def test_a_row_that_cannot_be_sent_is_refused_by_its_number(
    given: dict[str, Any], reason: str
) -> None:
    """The second row is wrong here, also where the batch is a slice of a larger one."""
    batch = frame(2, **given)
    larger = pa.concat_batches([batch.slice(0, 1), batch])

    for each in (batch, larger.slice(1)):
        with pytest.raises(BadMessage) as caught:
            sender().messages(each, 10)
        assert str(caught.value).startswith("row 11 of partition 3 cannot be sent: ")
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("given", "raw", "reason"),
    [
        ({"queue": ["a", None]}, NOWHERE, "queue is null"),
        ({"topics": topics(["fine"], None)}, NOWHERE, NO_QUEUE),
        ({"topics": topics(["fine"], [])}, NOWHERE, NO_QUEUE),
        (
            {"delay": big(None, 1)},
            {"timeToBeReceived": "00:01:00"},
            "from the option timeToBeReceived",
        ),
        *(
            (
                {"topics": topics(["A"], ["A"]), "queue": [None, "orders"]},
                raw,
                "it has both a queue",
            )
            for raw in (NOWHERE, NOWHERE | {"topics": "Shop.Placed"})
        ),
        *(
            (given | {name: spans(None, ONE_MS)}, raw, f"it has topics and a {name}: the transport")
            for name in ("delay", "deliverAt")
            for given, raw in (
                ({"topics": topics(["A"], ["A"])}, NOWHERE),
                ({}, NOWHERE | {"topics": "Shop.Placed"}),
            )
        ),
    ],
)
def test_a_row_that_does_not_fit_the_options_is_refused(
    given: dict[str, Any], raw: dict[str, Any], reason: str
) -> None:
    """The second row is wrong here."""
    with pytest.raises(BadMessage) as caught:
        sender(**raw).messages(frame(2, **given), 10)

    assert str(caught.value).startswith("row 11 of partition 3 cannot be sent: ")
    assert reason in str(caught.value)


# ----- bodies of zero bytes --------------------------------------------------------------------

TYPE, CONTROL = "NServiceBus.EnclosedMessageTypes", "NServiceBus.ControlMessage"
PASSED_ON = ("NServiceBus.MessageId", "NServiceBus.TimeSent", "NServiceBus.FailedQ")
TYPED: dict[str, Any] = {"messageType": "Shop.Placed"}


@pytest.mark.parametrize(
    ("own", "given", "raw"),
    [
        ({TYPE: "Shop.Placed"}, {}, {}),
        ({TYPE: "Shop.Placed", CONTROL: "False"}, {}, {}),
        ({"tenant": "blue"}, {"id": ["a", "b"]}, TYPED),
        ({}, {"topics": topics(["Shop.Placed"], ["Shop.Placed"])}, NOWHERE),
        ({}, {}, NOWHERE | {"topics": "Shop.Placed"}),
    ],
)
def test_a_typed_message_without_a_body_is_refused(
    own: dict[str, str], given: dict[str, Any], raw: dict[str, Any]
) -> None:
    """No endpoint would run a handler for it. The first row has a body, the second none."""
    for column in (maps(own, own), pa.array([dumps(own)] * 2)):
        batch = frame(2, body=pa.array([b"x", b""], pa.binary()), headers=column, **given)

        with pytest.raises(BadMessage, match=r"row 11 of .* cannot be sent: body is emp") as caught:
            sender(**raw).messages(batch, 10)
        assert f"the header {CONTROL} with the value True" in str(caught.value)


@pytest.mark.parametrize(
    ("own", "given", "raw"),
    [
        ({}, {}, {}),
        ({TYPE: ""}, {}, TYPED),
        ({CONTROL: "true"}, {}, TYPED),
        ({TYPE: "Shop.Placed"}, {"id": ["row"]}, {}),
        *(({TYPE: "Shop.Placed", name: "theirs"}, {}, {}) for name in PASSED_ON),
        ({TYPE: "Shop.Placed"}, {}, {"asReceived": "true"}),
    ],
)
def test_other_messages_without_a_body_are_sent(
    own: dict[str, str], given: dict[str, Any], raw: dict[str, Any]
) -> None:
    """Without a type, control messages, and those that another sender made."""
    batch = frame(1, body=pa.array([b""], pa.binary()), headers=maps(own), **given)

    assert sender(**raw).messages(batch, 10)["body"].to_pylist() == [b""]


# ----- frames ----------------------------------------------------------------------------------

READ = {
    **dict.fromkeys(("id", "correlationId", "replyToAddress", "corruptHeaders"), "string"),
    "expires": "timestamp",
    "headers": "map<string,string>",
    "body": "binary",
    "seq": "bigint",
    "queue": "string",
}
DELAY = 'string "hh:mm:ss", interval day to second'


def test_a_frame_with_a_destination_and_columns_that_fit_is_accepted() -> None:
    """The destination may be an option or a column; what only a read has is ignored."""
    check_frame(READ, queue=False)
    check_frame({"body": "binary", "topics": "array<string>"}, queue=False)
    for kind in ("string", "bigint", "int", "interval day to second"):
        check_frame({"body": "binary", "delay": kind, "deliverAt": "timestamp"}, queue=True)


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({}, "it has no column body (binary or string); it has none"),
        ({"Body": "binary"}, "column Body is not known; known are body, id, headers, "),
        ({"body": "int"}, "column body is int: expected binary or string"),
        ({"body": "string", "headers": "map<string,int>"}, "column headers is map<string,int>: "),
        ({"body": "string", "id": "bigint"}, "column id is bigint: expected string"),
        ({"body": "string", "timeToBeReceived": "double"}, "column timeToBeReceived is double: "),
        ({"body": "binary", "topics": "string"}, "column topics is string: expected array<string>"),
        *(
            ({"body": "binary", "delay": kind}, f"column delay is {kind}: expected {DELAY}")
            for kind in ("interval year to month", "interval", "timestamp", "double")
        ),
        *(
            ({"body": "binary", "deliverAt": kind}, f"column deliverAt is {kind}: expected time")
            for kind in ("timestamp_ntz", "date", "string")
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_with_what_fits(
    types: dict[str, str], reason: str
) -> None:
    """A month has no length, and a time without its zone could be any moment."""
    with pytest.raises(BadFrame) as caught:
        check_frame(types, queue=True)

    assert str(caught.value).startswith(f"the DataFrame cannot be sent: {reason}")


def test_a_frame_without_one_destination_is_refused() -> None:
    """Neither the option nor a column, or a read that would be published where it came from."""
    check_frame({"body": "binary"}, queue=False, topics=True)
    with pytest.raises(BadFrame, match="give the option queue, or a column queue"):
        check_frame({"body": "binary"}, queue=False)
    read = {"body": "binary", "queue": "string", "seq": "bigint"}
    with pytest.raises(BadFrame, match=r"would override the option topics: drop the column queue"):
        check_frame(read, queue=False, topics=True)
    check_frame(read, queue=True)


def test_an_option_queue_beside_retries_is_refused() -> None:
    """Retries would go to the error queue's delayed table, where nobody moves them."""
    retries = {"body": "binary", "queue": "string", "delay": "int"}
    with pytest.raises(BadFrame, match="drop the option, and name the error queue by to"):
        check_frame(retries, queue=True)
    check_frame(retries, queue=False)
    check_frame({**retries, "seq": "bigint"}, queue=True)  # a read that is delayed
