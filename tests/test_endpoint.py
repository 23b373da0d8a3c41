"""Pure rules of the commands: names of an endpoint's queues, lives of messages, the report."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from sqlq_spark.admin.problems import short_lifetimes
from sqlq_spark.admin.script import Endpoint, endpoint
from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import QueueAddress

URL = "postgresql://"


def test_a_delayed_table_leaves_less_room_for_a_name() -> None:
    """The transport accepts the longer name only for an endpoint without delayed messages."""
    for url, longest, limits in (
        (URL, "ü" * 23, "at most 55 UTF-8 bytes, or of 47 with --delayed, .* has 48 "),
        ("sqlserver://", "x" * 120, "at most 128 UTF-16 .* or of 120 with --delayed, .* has 121 "),
    ):
        longer = longest + longest[0]

        made = [endpoint(url, longest, delayed=True), endpoint(url, longer)]
        with pytest.raises(BadOption, match=limits):
            endpoint(url, longer, delayed=True)

        assert [each.primary.table for each in made] == [longest, longer]


def test_an_endpoint_has_all_queues_that_were_asked_for() -> None:
    """In the order of the flags; its own lie in its schema, plain names in the default one."""
    more = {"instances": ["web1", '"web"."shop.web2"'], "qualifiers": ["Retries", '"a""b"."c.d"']}
    made = endpoint(URL, '"sales"."shop"', error="error", audit='"ops"."audit"', **more)

    # a name in quotes is an address, so each queue may have a schema of its own
    own = [QueueAddress(name, "sales") for name in ("shop", "shop.web1", "shop.Retries")]
    own.insert(2, QueueAddress("shop.web2", "web"))
    own.append(QueueAddress("c.d", 'a"b'))
    assert made == Endpoint(own, [QueueAddress("error"), QueueAddress("audit", "ops")])


BAD_NAMES: list[tuple[dict[str, Any], str]] = [
    ({"instances": [""]}, "option --instance is ''"),
    ({"qualifiers": ["a\0b"]}, "NUL character"),
    ({"instances": ["x" * 51]}, r"a name that can follow shop. .the table has 56 UTF-8 bytes"),
    ({"error": "x" * 56}, "option --error is"),
    ({"audit": '"a"."b"."c"'}, "option --audit is"),
]


def test_a_name_that_cannot_be_is_refused_by_its_flag() -> None:
    """Empty, or too long for an endpoint: before anything is created."""
    for flags, sentence in BAD_NAMES:
        with pytest.raises(BadOption, match=sentence):
            endpoint(URL, "shop", **flags)


EXPIRES = datetime(2026, 6, 30, 17, 5, 19, 500_000)  # noqa: DTZ001 - as the column has it
SENT = "2026-06-30 17:05:09:000000 Z"


LIVES: list[tuple[list[tuple[str | None, str | None]], float, list[str]]] = [
    ([(SENT, None)], 100.0, ["10.5"]),
    ([(SENT, None)], 10.5, []),
    ([(SENT, "00:00:07")], 100.0, ["7"]),
    ([(None, "1.00:00:00"), (None, None)], 100.0, []),
    ([("soon", None), (SENT, "soon")], 100.0, []),  # untrusted text counts for nothing
    ([(SENT, "-00:00:07"), (SENT, "00:00:00")], 100.0, []),  # sent as expired
    ([(None, "00:00:05"), (None, "00:00:00.9"), (None, None)], 1.0, ["0.9"]),
]


def test_only_a_life_shorter_than_the_pause_is_reported() -> None:
    """By the shortest of them; TimeToBeReceived takes precedence."""
    for headers, peek_delay, shortest in LIVES:
        found = short_lifetimes("orders", [(EXPIRES, *each) for each in headers], peek_delay)

        assert [each.found.split()[3] for each in found] == shortest
        assert all((each.name, each.severity) == ("peek_delay", "warning") for each in found)
