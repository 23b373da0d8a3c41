"""Delays of rows to send: columns of a chunk, and the headers that follow."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from strict_headers import loads

from sqlq_spark.send.frame import MOMENT
from sqlq_spark.send.sender import CHUNK_ROW
from sqlq_spark.wire import headers as wire

from .frames import frame, headers, maps, moments, sender

AT = datetime(2026, 7, 1, 9, 8, 7, 654321, UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["00:30:00", None, "365000.00:00:00", "00:00:01.5", "00:00:00"]),
        pa.array([1_800_000, None, 365_000 * 86_400_000, 1500, 0], pa.int64()),
        pa.array([1_800_000_000, None, 365_000 * 86_400_000_000, 1_500_000, 0], pa.duration("us")),
    ],
    ids=["text", "bigint", "interval"],
)
def test_a_delay_is_milliseconds_and_a_header(column: pa.Array) -> None:
    """DeliverAt is the time sent and the delay; a row without a delay has neither."""
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


def test_a_moment_is_utc_and_a_header() -> None:
    """Also in the past; read back as it was. A row may have a delay instead."""
    past = datetime(1900, 1, 1, tzinfo=UTC)
    found = sender().messages(frame(3, deliverAt=moments(AT, None, past)), 0)

    assert found.schema.names == [*CHUNK_ROW.names, "due"]
    assert found["due"].to_pylist() == [AT.replace(tzinfo=None), None, past.replace(tzinfo=None)]
    at = [each.get(wire.DELIVER_AT) for each in headers(found)]
    assert at == ["2026-07-01 09:08:07:654321 Z", None, "1900-01-01 00:00:00:000000 Z"]
    assert wire.parse_wire_time(str(at[0])) == AT
    assert moments(AT).type == MOMENT


@pytest.mark.parametrize("kind", ["map", "json"])
def test_a_column_overrides_what_headers_say_of_delays(kind: str) -> None:
    """A row's own DeliverAt stays where it is not delayed; its ForwardDestination likewise."""
    own = {wire.DELIVER_AT: "then", wire.FORWARD_DESTINATION: "there", "a": "b"}
    column = maps(own, own) if kind == "map" else pa.array([wire.dumps(own)] * 2)
    batch = frame(2, headers=column, deliverAt=moments(AT, None))

    delayed, plain = headers(sender().messages(batch, 0))

    assert delayed[wire.DELIVER_AT] == "2026-07-01 09:08:07:654321 Z"
    assert delayed["a"] == "b"
    assert delayed[wire.FORWARD_DESTINATION] == '"public"."orders"'
    assert {name: plain[name] for name in own} == own


def test_a_stored_message_has_one_destination() -> None:
    """Also where it was delivered with its former one, however that is spelt; all else stays."""
    own = '"NServiceBus.MessageId":"m"'
    texts = [
        f"{{{own}}}",
        f'{{{own} , "b":"x\\/"}}',
        f'{{{own},"{wire.FORWARD_DESTINATION}":"old"}}',
        f'{{"a":"1","{wire.FORWARD_DESTINATION}":"old",{own},"b":"\\u00e9"}}',
        f'{{"NServiceBus.SqlServer.Forward\\u0044estination":null,{own}}}',
        f'{{{own},"{wire.FORWARD_DESTINATION}":"\\"public\\".\\"orders\\""}}',
        f"\t{{{own} }} \n",
    ]
    batch = frame(7, headers=pa.array(texts), delay=pa.array([5] * 7, pa.int64()))
    entry = f'"{wire.FORWARD_DESTINATION}":"\\"public\\".\\"orders\\""'

    found = sender(asReceived="true").messages(batch, 0)

    assert found["headers"].to_pylist() == [
        f"{{{own},{entry}}}",
        f'{{{own} , "b":"x\\/",{entry}}}',
        f"{{{own},{entry}}}",
        f'{{"a":"1",{own},"b":"é",{entry}}}',
        f"{{{own},{entry}}}",
        texts[5],
        f"{{{own} ,{entry}}}",
    ]
    for text in sender().messages(batch, 0)["headers"].to_pylist():
        assert loads(text)[wire.FORWARD_DESTINATION] == '"public"."orders"'


def test_each_delayed_row_names_its_own_destination() -> None:
    """Its queue's, or the option's; a row that is not delayed names none."""
    rows = frame(
        4,
        queue=pa.array(["billing", '"Sales"."web"', "billing", ""]),
        delay=pa.array([5, 5, None, 5], pa.int64()),
    )
    some = sender(queue=None, undeliverable="error").messages(rows, 0)

    found = [each.get(wire.FORWARD_DESTINATION) for each in headers(some)]
    assert found == ['"public"."billing"', '"Sales"."web"', None, None]
