"""An endpoint's queues are named as the transport names them, or refused by the flag."""

from __future__ import annotations

import pytest

from sqlq_spark.admin.script import Endpoint, endpoint
from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import QueueAddress

URL = "postgresql://"


@pytest.mark.parametrize(
    ("url", "letter", "longest", "limits"),
    [
        (URL, "ü", 23, "at most 55 UTF-8 bytes, or of 47 with --delayed, .* has 48 "),
        ("sqlserver://", "x", 120, "at most 128 UTF-16 .* or of 120 with --delayed, .* has 121 "),
    ],
)
def test_a_delayed_table_leaves_less_room_for_a_name(
    url: str, letter: str, longest: int, limits: str
) -> None:
    """The transport accepts the longer name only for an endpoint without delayed messages."""
    longer = letter * (longest + 1)

    made = [endpoint(url, letter * longest, delayed=True), endpoint(url, longer)]
    with pytest.raises(BadOption, match=limits):
        endpoint(url, longer, delayed=True)

    assert [each.primary.table for each in made] == [letter * longest, longer]


def test_an_endpoint_has_all_queues_that_were_asked_for() -> None:
    """In the order of the flags; its own lie in its schema, plain names in the default one."""
    made = endpoint(
        URL,
        '"sales"."shop"',
        instances=["web1", "web2"],
        qualifiers=["Retries"],
        error="error",
        audit='"ops"."audit"',
    )

    own = ("shop", "shop.web1", "shop.web2", "shop.Retries")
    shared = [QueueAddress("error"), QueueAddress("audit", "ops")]
    assert made == Endpoint([QueueAddress(name, "sales") for name in own], shared)
    # a name in quotes is an address, so each queue may have a schema of its own
    made = endpoint(
        URL, "shop", instances=['"web"."shop.web1"'], qualifiers=['"plain"', '"a""b"."c.d"']
    )
    others = [QueueAddress("shop.web1", "web"), QueueAddress("plain"), QueueAddress("c.d", 'a"b')]
    assert made.own[1:] == others
    _, longest = endpoint(URL, "shop", instances=["x" * 50]).own
    assert len(longest.table) == 55


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"instances": [""]}, "option --instance is ''"),
        ({"qualifiers": ["a\0b"]}, "NUL character"),
        ({"instances": ["x" * 51]}, "a name that can follow shop. (the table has 56 UTF-8 bytes"),
        ({"error": "x" * 56}, "option --error is"),
        ({"audit": '"a"."b"."c"'}, "option --audit is"),
    ],
)
def test_a_name_that_cannot_be_is_refused_by_its_flag(
    flags: dict[str, list[str]], sentence: str
) -> None:
    """Empty, or too long for an endpoint: before anything is created."""
    with pytest.raises(BadOption) as caught:
        endpoint(URL, "shop", **flags)  # type: ignore[arg-type]

    assert sentence in str(caught.value)
