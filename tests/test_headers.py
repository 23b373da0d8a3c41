"""Headers: texts, times, spans and names of types, written and read as endpoints do."""

import json
import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strict_headers import loads
from wire import golden

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.headers import LONGEST_SPAN, BadTimeSpan, BadWireTime, dumps, escape
from sqlq_spark.wire.postgresql import POSTGRESQL

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
HEADERS = st.dictionaries(ANY_TEXT, st.none() | ANY_TEXT)
TIMES = {
    *(wire.TIME_SENT, wire.DELIVER_AT, wire.TIME_OF_FAILURE, f"{wire.RETRIES}.Timestamp"),
    *(wire.PROCESSING_STARTED, wire.PROCESSING_ENDED),
}


def test_what_endpoints_wrote_is_read_and_written_byte_for_byte() -> None:
    """Headers keep their order. Every time, lifetime and address is written back the same."""
    assert dumps({"a/b": None, "emoji": "🚀"}) == r'{"a\/b":null,"emoji":"\uD83D\uDE80"}'
    for case in golden():
        read = {name: value or "" for name, value in loads(case.headers).items()}
        assert dumps(read) == case.headers
        for name in TIMES & read.keys():
            assert wire.format_wire_time(wire.parse_wire_time(read[name])) == read[name]
        for name in {wire.REPLY_TO_ADDRESS, wire.FAILED_Q} & read.keys():
            assert POSTGRESQL.print_address(POSTGRESQL.parse_address(read[name])) == read[name]
        if lifetime := read.get(wire.TIME_TO_BE_RECEIVED):
            assert wire.format_span(wire.parse_span(lifetime)) == lifetime


@given(st.characters())
@example(" ")
@example("/")
@example("\ufeff")
@example("\U0010ffff")
@example("\ud83d")
def test_text_is_escaped_as_the_9_1_writer_does(character: str) -> None:
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
    assert category == "Cs" or json.loads(f'"{written}"') == character


@given(HEADERS)
@example({"__type": "x", "a": "1", "b": None})
@example({"a": "1", "__type": "x", "b": "2"})
@example({"__type": None})
def test_any_headers_are_read_back_as_they_were(headers: dict[str, str | None]) -> None:
    """They keep their order, but old endpoints fail if `__type` is first, so it moves."""
    written = dumps(headers)

    order = [*headers]
    if order[:1] == ["__type"]:
        order = [*order[1:], "__type"]
    assert list(loads(written).items()) == [(name, headers[name]) for name in order]
    with pytest.raises(TypeError):
        dumps({"retries": 3})  # type: ignore[dict-item]


NO_TIMES = [
    *("", "2026-06-30 17:05:09.123456 Z", "2026-06-30 17:05:09:123 Z"),
    *("2026-06-30T17:05:09:123456Z", "2026-02-30 17:05:09:123456 Z"),
    *("2026-06-30 24:05:09:123456 Z", "0000-06-30 17:05:09:123456 Z"),
    *("\u0662\u0660\u0662\u0666-06-30 17:05:09:123456 Z", "2026-06-30 17:05:09:123456 Z\n"),
]


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_written_in_utc_and_read_back(moment: datetime) -> None:
    """Microseconds follow a colon. A time without a zone, or in another form, is refused."""
    local = datetime(2026, 6, 30, 19, 5, 9, 42, timezone(timedelta(hours=2)))

    assert wire.parse_wire_time(wire.format_wire_time(moment)) == moment
    assert wire.format_wire_time(local) == "2026-06-30 17:05:09:000042 Z"
    with pytest.raises(ValueError, match="has no zone"):
        wire.format_wire_time(moment.replace(tzinfo=None))
    for text in NO_TIMES:
        with pytest.raises(BadWireTime, match=f"time {re.escape(repr(text))} .* expected yyyy-"):
            wire.parse_wire_time(text)


# as .NET reads them; what is below a millisecond is cut off, as the transports do
SPANS = {
    "1.12:00:00": 129_600_000,
    "00:00:01.5000000": 1500,
    "00:00:00.0019999": 1,
    "24.20:31:23.6479999": LONGEST_SPAN,
    "-00:00:01": "is negative",
    "24.20:31:23.648": "is longer than 24.20:31:23.6470000",
} | dict.fromkeys(
    [
        *("", "6", "10:00", "24:00:00", "00:60:00", "00:00:60", "00:00:01.", "00:00:01.12345678"),
        *("1 hour", " 00:00:01", "00:00:01\n", "\u0660\u0660:00:01", "--00:00:01"),
    ],
    "cannot be read",
)


def test_a_span_is_milliseconds_or_refused() -> None:
    """The error says why no endpoint could pass the span on."""
    for text, expected in SPANS.items():
        if isinstance(expected, int):
            assert wire.parse_span(text) == expected
        else:
            with pytest.raises(BadTimeSpan, match=f"{re.escape(repr(text))} {expected}: expected"):
                wire.parse_span(text)


@given(st.integers(0, LONGEST_SPAN))
@example(0)
@example(1500)
@example(86_400_000)
def test_a_span_is_written_as_dotnet_writes_it_and_read_back(milliseconds: int) -> None:
    """Days and a fraction are written only if they are not zero. A fraction has seven digits."""
    written = wire.format_span(milliseconds)

    days, rest = divmod(milliseconds, 86_400_000)
    seconds, fraction = divmod(rest, 1000)
    expected = f"{days}." * bool(days) + f"{timedelta(seconds=seconds)}".zfill(8)
    assert written == expected + f".{fraction:03}0000" * bool(fraction)
    assert wire.parse_span(written) == milliseconds
    for wrong in (-1 - milliseconds, LONGEST_SPAN + 1 + milliseconds):
        with pytest.raises(BadTimeSpan, match=f"'{wrong} ms' is not between 0 and 2147483647"):
            wire.format_span(wrong)


# ----- names of types --------------------------------------------------------------------------

VERSION = "Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
GENERIC = f"Shop.Changed`2[[Shop.Order, Shop, {VERSION}],[System.Int32[,], mscorlib]]"
MARKED = st.text(alphabet="aB.+`,;[]\\ \n\0é🚀", max_size=40)
FULL_NAMES = {
    f" Shop.Placed , Shop, {VERSION} ": "Shop.Placed",
    "Shop.Outer+Inner, Shop": "Shop.Outer+Inner",
    f"{GENERIC}, Shop, {VERSION}": GENERIC,  # its arguments keep their assemblies, as in .NET
    r"Shop.Odd\,Name\[, Shop": r"Shop.Odd\,Name\[",
    "Placed]], Shop": "Placed]]",
    "Placed[[Order, Shop": "Placed[[Order, Shop",
}


def test_a_full_name_ends_at_the_first_comma_outside_brackets() -> None:
    """A hundred thousand marks take one pass. A search from each mark would take hours."""
    assert {name: wire.full_name(name) for name in FULL_NAMES} == FULL_NAMES
    for text in ("[" * 10**5, "]" * 10**5, "[]" * 10**5, "\\" * 10**5, "," * 10**5):
        assert text.startswith(wire.full_name(text))


@given(st.lists(MARKED.map(str.strip).filter(lambda t: wire.topic_problem(t) is None), max_size=5))
def test_topics_that_fit_come_back_from_their_header(topics: list[str]) -> None:
    """No topic can count as two. Blank ones are left out, but not those of an option."""
    assert wire.split_types(wire.SEPARATOR.join(topics)) == topics
    assert wire.split_types(" ; ;") == wire.split_types(None) == []
    assert wire.split_names(f"Shop.Placed, {GENERIC},,") == ["Shop.Placed", GENERIC, "", ""]


def test_a_blank_counts_only_outside_of_the_arguments_of_a_generic_type() -> None:
    """Arguments have blanks before their assemblies. A tab and a line break are blanks too."""
    blanks = ["Shop.Placed, Shop", " A", "A ", "A\tB", "A\n", f"{GENERIC} ", "A]] B", "A\\[ B]"]
    none = ["Shop.Placed", GENERIC, "A`1[[B, C]],D`1[[E, F]]", r"A\ B", ""]
    assert [*map(wire.has_blank, blanks + none)] == [True] * len(blanks) + [False] * len(none)
    for mark, found in ((" ", False), ("[ ", False), ("] ", True), ("\\ ", False)):
        assert wire.has_blank("[" + mark * 10**5) is found


PROBLEMS = {
    f"Shop.Rush, Shop, {VERSION}; Shop.Placed, Shop;Shop.IEvent": None,
    r"Shop.Odd\,Name\[, Shop": None,
    "Shop.Placed; ;Shop.IEvent": "a blank name",
    "Shop.Placed, Shop;Shop.IEvent;Shop.Placed": "Shop.Placed twice",
    '["Shop.Placed"]': "'[\"Shop.Placed\"]', which is no type name",
}


def test_only_what_is_certainly_wrong_is_no_header_of_types() -> None:
    """An odd name may be right: .NET decides."""
    for topic, why in (("", "blank"), (" \n", "blank"), ("a;b", "';'"), ("a\0", "NUL")):
        assert why in str(wire.topic_problem(topic))
    assert {header: wire.types_problem(header) for header in PROBLEMS} == PROBLEMS
