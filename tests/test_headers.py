"""Headers: text, times and spans, written and read as endpoints do."""

import json
import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strict_headers import loads

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import POSTGRESQL
from sqlq_spark.wire.headers import (
    LONGEST_SPAN,
    NEVER_FIRST,
    BadTimeSpan,
    BadWireTime,
    dumps,
    escape,
    format_span,
    parse_span,
    parse_wire_time,
    wire_time,
)

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HEADERS = st.dictionaries(ANY_TEXT, st.none() | ANY_TEXT)

# ----- writing ---------------------------------------------------------------------------------


# what endpoints of NServiceBus 10.2 with transport 9.1 wrote
GOLDEN = [
    json.loads(line)["headers"]
    for line in Path(__file__)
    .with_name("golden")
    .joinpath("nservicebus-10.jsonl")
    .read_text("utf-8")
    .splitlines()
]
TIMES = {
    *(wire.TIME_SENT, wire.DELIVER_AT, wire.TIME_OF_FAILURE, f"{wire.RETRIES}.Timestamp"),
    *(wire.PROCESSING_STARTED, wire.PROCESSING_ENDED),
}


def test_what_endpoints_wrote_is_read_and_written_byte_for_byte() -> None:
    """All headers in their order, every time, the one lifetime, and each address."""
    assert wire.dumps({"a/b": None, "emoji": "🚀"}) == r'{"a\/b":null,"emoji":"\uD83D\uDE80"}'
    for text in GOLDEN:
        read = {name: value or "" for name, value in loads(text).items()}
        assert wire.dumps(read) == text
        for name in TIMES & read.keys():
            assert wire_time(parse_wire_time(read[name])) == read[name]
        for name in {wire.REPLY_TO_ADDRESS, wire.FAILED_Q} & read.keys():
            assert POSTGRESQL.print_address(POSTGRESQL.parse_address(read[name])) == read[name]
        if lifetime := read.get(wire.TIME_TO_BE_RECEIVED):
            assert format_span(parse_span(lifetime)) == lifetime


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ASCII < > & ' + ` ~", "plain ASCII < > & ' + ` ~"),
        ('"\\/\b\t\n\f\r', r"\"\\\/\b\t\n\f\r"),
        ("\0\x1f\x7f\x80", r"\u0000\u001F\u007F\u0080"),
        ("ä ß Ж 漢 €", "ä ß Ж 漢 €"),
        ("\u00a0\u2003\u3000", r"\u00A0\u2003\u3000"),
        ("\ue000\uffff", r"\uE000\uFFFF"),
        ("\u200d\u00ad", "\u200d\u00ad"),  # Cf is not escaped
        ("\ufeff", r"\uFEFF"),  # but for the byte order mark
        ("\U0001d4b3\U0010ffff", r"\uD835\uDCB3\uDBFF\uDFFF"),
        ("a\ud83d", r"a\uFFFD"),
        ("\udc00b", r"\uFFFDb"),
    ],
)
def test_text_is_escaped_as_the_9_1_writer_does(text: str, expected: str) -> None:
    """Short forms, upper-case hex, pairs beyond the BMP, a lone surrogate replaced."""
    assert escape(text) == expected


@given(st.characters())
@example(" ")
@example("/")
@example("\ufeff")
def test_a_character_is_escaped_if_and_only_if_its_category_says_so(character: str) -> None:
    r"""Every code point is one of four: short, replaced, `\uXXXX` in UTF-16 units, or itself."""
    written = escape(character)
    assert escape("\n" + character) == "\\n" + written  # beside one that is not printable

    category = unicodedata.category(character)
    if character in '"\\/\b\t\n\f\r':
        assert re.fullmatch(r'\\["\\/btnfr]', written)
    elif category == "Cs":
        assert written == "\\uFFFD"
    elif (
        ord(character) > 0xFFFF
        or character == "\ufeff"
        or (category in {"Cc", "Co", "Cn", "Zl", "Zp", "Zs"} and character != " ")
    ):
        assert re.fullmatch(r"(\\u[0-9A-F]{4}){1,2}", written)
    else:
        assert written == character
    if category != "Cs":
        assert json.loads(f'"{written}"') == character


@given(HEADERS)
def test_any_headers_are_read_back_as_they_were(headers: dict[str, str | None]) -> None:
    """In their order, by any JSON parser; a value that is not text is refused."""
    written = dumps(headers)

    found = loads(written)
    assert found == headers
    assert list(found) == list(headers) or next(iter(headers)) == NEVER_FIRST
    assert json.loads(written) == headers
    with pytest.raises(TypeError):
        dumps({"retries": 3})  # type: ignore[dict-item]


def test_no_text_begins_with_a_name_on_which_old_endpoints_fail() -> None:
    """The header is written behind the others; alone it stays."""
    assert dumps({"__type": "x", "a": "1", "b": None}) == '{"a":"1","b":null,"__type":"x"}'
    assert dumps({"a": "1", "__type": "x", "b": "2"}) == '{"a":"1","__type":"x","b":"2"}'
    assert dumps({"__type": None}) == '{"__type":null}'


# ----- times -----------------------------------------------------------------------------------


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_written_in_utc_and_read_back(moment: datetime) -> None:
    """To the microsecond, behind a colon; a time without a zone could be any moment."""
    local = datetime(2026, 6, 30, 19, 5, 9, 42, timezone(timedelta(hours=2)))

    assert parse_wire_time(wire_time(moment)) == moment
    assert wire_time(local) == "2026-06-30 17:05:09:000042 Z"
    with pytest.raises(ValueError, match="has no zone"):
        wire_time(moment.replace(tzinfo=None))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-06-30 17:05:09.123456 Z",
        "2026-06-30 17:05:09:123 Z",
        "2026-06-30T17:05:09:123456Z",
        "2026-02-30 17:05:09:123456 Z",
        "2026-06-30 24:05:09:123456 Z",
        "0000-06-30 17:05:09:123456 Z",
        "\u0662\u0660\u0662\u0666-06-30 17:05:09:123456 Z",
        "2026-06-30 17:05:09:123456 Z\n",
    ],
)
def test_a_time_in_another_form_says_what_was_expected(text: str) -> None:
    """Found and fix in one sentence."""
    with pytest.raises(BadWireTime) as caught:
        parse_wire_time(text)

    assert str(caught.value) == (
        f"time {text!r} cannot be read: "
        "expected yyyy-MM-dd HH:mm:ss:ffffff Z, as 2026-06-30 17:05:09:123456 Z"
    )


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("00:00:00", 0),
        ("1.12:00:00", 129_600_000),
        ("00:00:01.5000000", 1500),
        ("00:00:00.0019999", 1),
        ("24.20:31:23.647", 2_147_483_647),
        ("24.20:31:23.6479999", 2_147_483_647),
    ],
)
def test_a_span_is_read_in_milliseconds(text: str, milliseconds: int) -> None:
    """As .NET reads it; what is below a millisecond is cut off, as the transports do."""
    assert parse_span(text) == milliseconds


UNREADABLE = [
    *("", "6", "10:00", "24:00:00", "00:60:00", "00:00:60", "00:00:01.", "00:00:01.12345678"),
    *("1 hour", " 00:00:01", "00:00:01\n", "\u0660\u0660:00:01", "--00:00:01"),
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *((text, "cannot be read") for text in UNREADABLE),
        ("-00:00:01", "is negative"),
        ("24.20:31:23.648", "is longer than 24.20:31:23.6470000"),
    ],
)
def test_a_span_that_no_endpoint_could_pass_says_why(text: str, reason: str) -> None:
    """Found, reason and fix in one sentence."""
    with pytest.raises(BadTimeSpan) as caught:
        parse_span(text)

    assert str(caught.value) == (
        f"time to be received {text!r} {reason}: "
        "expected [d.]hh:mm:ss[.fffffff], as 00:30:00 or 1.12:00:00"
    )


@given(st.integers(0, LONGEST_SPAN))
@example(0)
@example(1500)
@example(86_400_000)
def test_a_span_is_written_as_dotnet_writes_it_and_read_back(milliseconds: int) -> None:
    """No days and no fraction where there are none; a fraction has seven digits."""
    written = format_span(milliseconds)

    days, rest = divmod(milliseconds, 86_400_000)
    seconds, fraction = divmod(rest, 1000)
    expected = f"{days}." * bool(days) + f"{timedelta(seconds=seconds)}".zfill(8)
    assert written == expected + f".{fraction:03}0000" * bool(fraction)
    assert parse_span(written) == milliseconds
    for wrong in (-1 - milliseconds, LONGEST_SPAN + 1 + milliseconds):
        with pytest.raises(BadTimeSpan, match=f"'{wrong} ms' is not between 0 and 2147483647"):
            format_span(wrong)
