"""Delays of rows to send: columns of a chunk, the headers that follow, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from strict_headers import loads
from test_outgoing import MAP, frame, sender

from sqlq_spark.errors import BadFrame, BadMessage
from sqlq_spark.send import columns
from sqlq_spark.send.delays import MOMENT
from sqlq_spark.send.messages import CHUNK_ROW
from sqlq_spark.wire import headers as wire

AT = datetime(2026, 7, 1, 9, 8, 7, 654321, UTC)


def moments(*found: datetime | int | None) -> pa.Array:
    """Make a timestamp column as Spark hands it over; numbers are microseconds since 1970."""
    return pa.array(found, pa.timestamp("us", "UTC"))


def headers(chunk: pa.Table) -> list[dict[str, str | None]]:
    """The headers of each message."""
    return [loads(text) for text in chunk["headers"].to_pylist()]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["00:30:00", None, "365000.00:00:00", "00:00:01.5", "00:00:00"]),
        pa.array([1_800_000, None, 365_000 * 86_400_000, 1500, 0], pa.int64()),
        pa.array(
            [
                timedelta(minutes=30),
                None,
                timedelta(days=365_000),
                timedelta(seconds=1.5),
                timedelta(0),
            ],
            pa.duration("us"),
        ),
    ],
    ids=["text", "bigint", "interval"],
)
def test_a_delay_is_milliseconds_and_a_header(column: pa.Array) -> None:
    """DeliverAt is the time sent and the delay; a row without one is as ever."""
    found = sender().messages(frame(5, delay=column), 0)

    assert found.schema.names == [*CHUNK_ROW.names, "delay"]
    assert found["delay"].to_pylist() == [1_800_000, None, 365_000 * 86_400_000, 1500, 0]
    assert [each.get(wire.DELIVER_AT) for each in headers(found)] == [
        "2026-06-30 17:35:09:123456 Z",
        None,
        "3025-10-31 17:05:09:123456 Z",
        "2026-06-30 17:05:10:623456 Z",
        "2026-06-30 17:05:09:123456 Z",
    ]
    assert wire.DELIVER_AT not in headers(found)[1]


def test_a_moment_is_utc_and_a_header() -> None:
    """Also in the past; read back as it was."""
    past = datetime(1900, 1, 1, tzinfo=UTC)
    found = sender().messages(frame(3, deliverAt=moments(AT, None, past)), 0)

    assert found.schema.names == [*CHUNK_ROW.names, "due"]
    assert found["due"].to_pylist() == [
        AT.replace(tzinfo=None),
        None,
        past.replace(tzinfo=None),
    ]
    at = [each.get(wire.DELIVER_AT) for each in headers(found)]
    assert at == ["2026-07-01 09:08:07:654321 Z", None, "1900-01-01 00:00:00:000000 Z"]
    assert wire.parse_wire_time(str(at[0])) == AT


def test_a_chunk_without_delays_is_as_it_was() -> None:
    """Not one column more, not one header."""
    found = sender().messages(frame(2), 0)

    assert found.schema.equals(CHUNK_ROW)
    assert wire.DELIVER_AT not in headers(found)[0]


@pytest.mark.parametrize("kind", ["map", "json"])
def test_a_column_states_anew_what_headers_say_of_delays(kind: str) -> None:
    """A row's own DeliverAt stays where it is not delayed; its ForwardDestination likewise."""
    own = {wire.DELIVER_AT: "then", wire.FORWARD_DESTINATION: "there", "a": "b"}
    column = (
        pa.array([list(own.items())] * 2, MAP) if kind == "map" else pa.array([wire.dumps(own)] * 2)
    )
    batch = frame(2, headers=column, deliverAt=moments(AT, None))

    delayed, plain = headers(sender().messages(batch, 0))

    assert delayed[wire.DELIVER_AT] == "2026-07-01 09:08:07:654321 Z"
    assert delayed["a"] == "b"
    assert wire.FORWARD_DESTINATION not in delayed
    assert {name: plain[name] for name in own} == own


def test_each_row_may_be_delayed_in_its_own_way() -> None:
    """The one, the other or neither."""
    batch = frame(3, delay=pa.array([5, None, None], pa.int64()), deliverAt=moments(None, AT, None))

    found = sender().messages(batch, 0)

    assert found["delay"].to_pylist() == [5, None, None]
    assert found["due"].to_pylist() == [None, AT.replace(tzinfo=None), None]
    assert [wire.DELIVER_AT in each for each in headers(found)] == [True, True, False]


TOO_LATE = 253_370_764_800_000_000  # the year 9999


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"delay": pa.array([0, -1], pa.int64())}, "delay is negative: expected at least 0 and"),
        ({"delay": pa.array([0, 2**62], pa.int64())}, "delay is too long: "),
        ({"delay": pa.array([0, 31_536_000_000_001], pa.int64())}, "(365,000 days)"),
        ({"delay": pa.array(["00:00:00", "-00:00:01"])}, "delay '-00:00:01' is negative"),
        ({"delay": pa.array(["00:00:00", "365001.00:00:00"])}, "longer than 365000.00:00:00"),
        ({"delay": pa.array(["00:00:00", "soon"])}, "delay 'soon' cannot be read"),
        ({"delay": pa.array([timedelta(0), timedelta(-1)], pa.duration("us"))}, "is negative"),
        ({"deliverAt": moments(0, TOO_LATE)}, "deliverAt is outside of the years 1900 to 9998"),
        ({"deliverAt": moments(TOO_LATE - 1, -(2**62))}, "deliverAt is outside of the years"),
        ({"deliverAt": moments(0, 2**62)}, "deliverAt is outside of the years"),
        (
            {"delay": pa.array([None, 1], pa.int64()), "deliverAt": moments(0, 0)},
            "it has both deliverAt and delay: leave one of them null",
        ),
        (
            {
                "delay": pa.array([1, 1], pa.int64()),
                "timeToBeReceived": pa.array([None, 1], pa.int64()),
            },
            "it has a delay and a time-to-be-received, from its column or from the option",
        ),
        (
            {"deliverAt": moments(0, 0), "timeToBeReceived": pa.array([None, "00:01:00"])},
            "the transport cannot delay a message that expires",
        ),
    ],
)
def test_what_cannot_be_delayed_is_refused(columns: dict[str, Any], told: str) -> None:
    """By row; the second is wrong here."""
    with pytest.raises(BadMessage) as caught:
        sender().messages(frame(2, **columns), 0)

    assert str(caught.value).startswith("row 1 of partition 3 cannot be sent: ")
    assert told in str(caught.value)


def test_a_lifetime_by_option_forbids_delays_too() -> None:
    """As the attribute of a message type does to an endpoint."""
    batch = frame(2, delay=pa.array([None, 1], pa.int64()))

    with pytest.raises(BadMessage, match=r"row 1 .*from the option timeToBeReceived"):
        sender(timeToBeReceived="00:01:00").messages(batch, 0)


@pytest.mark.parametrize("kind", ["string", "bigint", "int", "interval day to second"])
def test_columns_that_can_be_delays_pass(kind: str) -> None:
    """As Spark names their types."""
    columns.check_frame({"body": "binary", "delay": kind, "deliverAt": "timestamp"}, queue=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("delay", "interval year to month"),
        ("delay", "interval"),
        ("delay", "timestamp"),
        ("delay", "double"),
        ("timeToBeReceived", "interval year"),
        ("deliverAt", "timestamp_ntz"),
        ("deliverAt", "date"),
        ("deliverAt", "string"),
    ],
)
def test_columns_that_cannot_are_refused_with_what_can(name: str, kind: str) -> None:
    """A month has no length, and a time without its zone could be any moment."""
    with pytest.raises(BadFrame) as caught:
        columns.check_frame({"body": "binary", name: kind}, queue=True)

    expected = "timestamp" if name == "deliverAt" else 'string "hh:mm:ss", interval day to second'
    assert f"column {name} is {kind}: expected {expected}" in str(caught.value)


def test_moments_are_microseconds_in_utc() -> None:
    """As Spark hands them over."""
    assert moments(AT).type == MOMENT
