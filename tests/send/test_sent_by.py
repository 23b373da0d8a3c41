"""Who sent a message: three headers, the same at each attempt, never of two senders."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sqlq_spark.send.sender import UNNAMED, name_sender
from sqlq_spark.wire import headers as wire

from .frames import frame, headers, maps, sender

if TYPE_CHECKING:
    from collections.abc import Mapping

BY = name_sender("Lake")
NAMES = (wire.ORIGINATING_MACHINE, wire.ORIGINATING_ENDPOINT, wire.HOST_ID)
MACHINE, HOST = BY[wire.ORIGINATING_MACHINE], BY[wire.HOST_ID]
OURS = (MACHINE, "Lake", HOST)


def sent(own: Mapping[str, str], **raw: str) -> list[tuple[str | None, ...]]:
    """The three headers of a message, of a map and of text."""
    by = name_sender(raw["originatingEndpoint"]) if raw else BY
    made = dataclasses.replace(sender(**raw), sent_by=by)
    found = []
    for column in (maps(own), pa.array([wire.dumps(own)])):
        (each,) = headers(made.messages(frame(1, headers=column), 0))
        found.append(tuple(each.get(name) for name in NAMES))
    return found


def test_a_sender_is_the_same_for_the_same_name_and_machine() -> None:
    """The host id has the form that endpoints write, and differs between names."""
    assert name_sender("Lake") == BY
    assert name_sender("Other")[wire.HOST_ID] != HOST
    assert re.fullmatch("[0-9a-f]{32}", HOST)
    assert name_sender(None)[wire.ORIGINATING_ENDPOINT] == UNNAMED
    assert name_sender("") == name_sender(None)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, OURS),
        ({wire.ORIGINATING_ENDPOINT: "Mine"}, (MACHINE, "Mine", HOST)),
        (dict.fromkeys(NAMES, "theirs"), ("theirs",) * 3),
        # another sender made it
        ({wire.TIME_SENT: "then"}, (None, None, None)),
        ({wire.TIME_SENT: "then", wire.ORIGINATING_ENDPOINT: "Shop"}, (None, "Shop", None)),
    ],
)
def test_headers_of_the_row_win_and_of_two_senders_none_is_made(
    own: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    """A message that is passed on keeps what it has; the option is a default of it too."""
    assert sent(own) == [expected] * 2
    passed_on = sent({wire.TIME_SENT: "then"}, originatingEndpoint="Stated")
    assert passed_on == [(None, "Stated", None)] * 2


def test_the_three_headers_stand_where_an_endpoint_writes_them() -> None:
    """Between the reply address and the types."""
    made = dataclasses.replace(sender(messageType="Shop.Placed"), sent_by=BY)

    (text,) = made.messages(frame(), 0)["headers"].to_pylist()

    assert [*json.loads(text)][-5:] == [*NAMES, wire.ENCLOSED_MESSAGE_TYPES, wire.TIME_SENT]
