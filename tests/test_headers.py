"""Header text: written as the 9.1 writer does, read as strictly as an endpoint does."""

import json
import pickle
import re
import sys
import unicodedata
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strict_headers import PoisonHeaders, loads

from sqlq_spark.wire.headers import (
    FAULT_PREFIXES,
    LONGEST_SPAN,
    SPECIAL,
    UNSAFE,
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


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "{}"),
        ({"key/with/slashes": "v"}, r'{"key\/with\/slashes":"v"}'),
        ({"emoji": "🚀"}, r'{"emoji":"\uD83D\uDE80"}'),
        ({"newline": "line1\r\nline2"}, r'{"newline":"line1\r\nline2"}'),
        ({"keyWithNull": None}, '{"keyWithNull":null}'),
        ({"b": "1", "a": "2"}, '{"b":"1","a":"2"}'),
        ({"NServiceBus.ContentType": "text/xml"}, r'{"NServiceBus.ContentType":"text\/xml"}'),
        (
            {"NServiceBus.ReplyToAddress": '"public"."Shop.Orders"'},
            r'{"NServiceBus.ReplyToAddress":"\"public\".\"Shop.Orders\""}',
        ),
    ],
)
def test_headers_are_written_as_the_9_1_writer_does(
    headers: dict[str, str | None], expected: str
) -> None:
    """Compact, in the order given, byte for byte."""
    assert dumps(headers) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain ASCII < > & ' + ` ~", "plain ASCII < > & ' + ` ~"),
        ('"\\/\b\t\n\f\r', r"\"\\\/\b\t\n\f\r"),
        ("\0\x1f\x7f\x80", r"\u0000\u001F\u007F\u0080"),
        ("ä ß Ж 漢 €", "ä ß Ж 漢 €"),
        ("\u00a0\u2003\u3000", r"\u00A0\u2003\u3000"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ue000\uffff", r"\uE000\uFFFF"),
        ("\u200d\u00ad\ufeff", "\u200d\u00ad\ufeff"),  # Cf is not escaped
        ("\ufffd", "\ufffd"),
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
def test_a_character_is_escaped_if_and_only_if_its_category_says_so(character: str) -> None:
    r"""Every code point is one of four: short, replaced, `\uXXXX` in UTF-16 units, or itself."""
    written = escape(character)

    category = unicodedata.category(character)
    if character in '"\\/\b\t\n\f\r':
        assert re.fullmatch(r'\\["\\/btnfr]', written)
    elif category == "Cs":
        assert written == "\\uFFFD"
    elif ord(character) > 0xFFFF or (
        category in {"Cc", "Co", "Cn", "Zl", "Zp", "Zs"} and character != " "
    ):
        assert re.fullmatch(r"(\\u[0-9A-F]{4}){1,2}", written)
    else:
        assert written == character
    if category != "Cs":
        assert json.loads(f'"{written}"') == character


def test_the_fast_path_skips_nothing_that_must_be_escaped() -> None:
    """Over all code points: what the pattern does not find is written as it is."""
    table = {chr(code): escape("ä" + chr(code))[1:] for code in range(sys.maxunicode + 1)}

    missed = [one for one, written in table.items() if written != one and not UNSAFE.search(one)]
    assert missed == []
    assert [one for one in map(chr, range(32, 127)) if UNSAFE.search(one)] == ['"', "/", "\\"]
    assert UNSAFE.pattern == SPECIAL


def test_re2_finds_the_same_text_unsafe() -> None:
    """The pattern means the same to pyarrow."""
    compute = pytest.importorskip("pyarrow.compute")
    arrow = pytest.importorskip("pyarrow")
    texts = [chr(code) for code in (*range(0x300), 0x2028, 0xFEFF, 0x1F680)]

    found = compute.match_substring_regex(arrow.array(texts), SPECIAL).to_pylist()

    assert found == [UNSAFE.search(text) is not None for text in texts]


@given(HEADERS)
def test_any_headers_are_read_back_as_they_were(headers: dict[str, str | None]) -> None:
    """In their order, and any JSON stream agrees."""
    written = dumps(headers)

    assert list(loads(written).items()) == list(headers.items())
    assert json.loads(written) == headers


def test_a_value_that_is_not_text_is_refused() -> None:
    """A number would be poison to every endpoint."""
    with pytest.raises(TypeError):
        dumps({"retries": 3})  # type: ignore[dict-item]


# ----- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        (' {\n"a" : "b" }\t', {"a": "b"}),
        ('{"a":"1","b":"2","a":"3"}', {"a": "3", "b": "2"}),
        ('{"a":"1","a":null}', {"a": None}),
        (r'{"emoji":"\ud83d\ude80","quote":"\u0022"}', {"emoji": "🚀", "quote": '"'}),
        ('{"emoji":"🚀","slash":"/"}', {"emoji": "🚀", "slash": "/"}),
        (r'{"nul":"\u0000","":""}', {"nul": "\0", "": ""}),
    ],
)
def test_any_valid_object_of_strings_is_read(
    text: str | None, expected: dict[str, str | None]
) -> None:
    """By old writers and new; the last of two values counts; no text is no headers."""
    assert loads(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("null", "null where an object was expected"),
        ("[]", "an array where an object was expected"),
        ('["a"]', "an array where an object was expected"),
        ('"a"', "a string where an object was expected"),
        ("true", "true or false where an object was expected"),
        ("1", "a number where a string was expected"),
        ('{"a":1}', "a number where a string was expected"),
        ('{"a":1.5e3}', "a number where a string was expected"),
        ('{"a":' + "9" * 5000 + "}", "a number where a string was expected"),
        ('{"a":1,"a":"b"}', "a number where a string was expected"),
        ('{"a":true}', "header 'a' holds true or false, not a string"),
        ('{"a":{}}', "header 'a' holds an object, not a string"),
        ('{"a":{"b":"c"}}', "header 'a' holds an object, not a string"),
        ('{"a":["b"]}', "header 'a' holds an array, not a string"),
        ('{"a":[],"a":"b"}', "header 'a' holds an array, not a string"),
        ('{"a":NaN}', "not JSON: NaN"),
        ('{"a":-Infinity}', "not JSON: -Infinity"),
        (r'{"a":"\ud83d"}', "header 'a' holds half of a surrogate pair"),
        (r'{"a":"\ude80\ud83d"}', "header 'a' holds half of a surrogate pair"),
        (r'{"\ud83d":null}', r"header '\ud83d' holds half of a surrogate pair"),
        ('{"a":"\udc00"}', "header 'a' holds half of a surrogate pair"),
    ],
)
def test_poison_is_named(text: str, reason: str) -> None:
    """Valid JSON or nearly so, but not headers."""
    with pytest.raises(PoisonHeaders) as caught:
        loads(text)

    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "text",
    [
        " ",
        "garbage",
        '{"a":"b"',
        '{"a":"b"} x',
        '{"a":"b"}{}',
        '{"a":"b",}',
        "{a:'b'}",
        '{"a"}',
        '{"a":"line\nbreak"}',
        '{"a":"nul\0"}',
        r'{"a":"\x41"}',
        r'{"a":"\u12"}',
        '{"a":"b"} // comment',
        '\ufeff{"a":"b"}',
        '{"a":undefined}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_text_that_is_not_json_is_poison(text: str) -> None:
    """Python reads some of these with a looser setting; an endpoint reads none."""
    with pytest.raises(PoisonHeaders, match=r"^not JSON: .* at character \d+$|^nested too deeply$"):
        loads(text)


@given(st.text(st.sampled_from('{}[]":,\\und801tNa \n\udc00'), max_size=20))
def test_any_text_is_headers_or_poison(text: str) -> None:
    """Nothing else comes out, and headers can always be written."""
    try:
        headers = loads(text)
    except PoisonHeaders:
        return
    assert loads(dumps(headers)) == headers


def test_headers_of_five_megabytes_are_read() -> None:
    """Size is no poison."""
    headers: dict[str, str | None] = {"big": "x/" * 2_500_000}

    assert loads(dumps(headers)) == headers


def test_a_poison_reason_quotes_no_value_and_little_of_a_name() -> None:
    """It goes to logs; the reason survives pickling from an executor."""
    with pytest.raises(PoisonHeaders) as caught:
        loads(json.dumps({"n" * 1000: ["secret"]}))

    assert str(caught.value) == f"header '{'n' * 64}\\u2026' holds an array, not a string"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_what_return_to_source_removes_is_known_by_its_beginning() -> None:
    """The prefixes of WIRE.md part 8."""
    assert FAULT_PREFIXES == (
        "NServiceBus.Retries",
        "NServiceBus.FailedQ",
        "NServiceBus.TimeOfFailure",
        "NServiceBus.ExceptionInfo.",
    )


# ----- times -----------------------------------------------------------------------------------


def test_a_time_is_written_with_a_colon_before_its_microseconds() -> None:
    """In UTC, whatever zone it came in."""
    moment = datetime(2026, 6, 30, 19, 5, 9, 42, timezone(timedelta(hours=2)))

    assert wire_time(moment) == "2026-06-30 17:05:09:000042 Z"


def test_a_time_without_a_zone_is_refused() -> None:
    """It could be any moment."""
    with pytest.raises(ValueError, match="has no zone"):
        wire_time(datetime(2026, 6, 30))  # noqa: DTZ001


@given(st.datetimes(timezones=st.just(UTC)))
def test_any_time_is_read_back_as_it_was(moment: datetime) -> None:
    """To the microsecond."""
    assert parse_wire_time(wire_time(moment)) == moment


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
        ("00:00:01", 1000),
        ("00:30:00", 1_800_000),
        ("1:2:3", 3_723_000),
        ("1.12:00:00", 129_600_000),
        ("0.00:00:01", 1000),
        ("00:00:01.5", 1500),
        ("00:00:01.5000000", 1500),
        ("00:00:00.0019999", 1),
        ("24.20:31:23.647", 2_147_483_647),
        ("24.20:31:23.6479999", 2_147_483_647),
    ],
)
def test_a_span_is_read_in_milliseconds(text: str, milliseconds: int) -> None:
    """As .NET reads it; what is below a millisecond is cut off, as the transports do."""
    assert parse_span(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("6", "cannot be read"),
        ("10:00", "cannot be read"),
        ("24:00:00", "cannot be read"),
        ("00:60:00", "cannot be read"),
        ("00:00:60", "cannot be read"),
        ("00:00:01.", "cannot be read"),
        ("00:00:01.12345678", "cannot be read"),
        ("1 hour", "cannot be read"),
        (" 00:00:01", "cannot be read"),
        ("00:00:01\n", "cannot be read"),
        ("\u0660\u0660:00:01", "cannot be read"),
        ("--00:00:01", "cannot be read"),
        ("-00:00:01", "is negative"),
        ("-1.00:00:00", "is negative"),
        ("24.20:31:23.648", "is longer than 24.20:31:23.6470000"),
        ("99999999.00:00:00", "is longer than 24.20:31:23.6470000"),
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


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "00:00:00"),
        (1, "00:00:00.0010000"),
        (1500, "00:00:01.5000000"),
        (86_400_000, "1.00:00:00"),
        (LONGEST_SPAN, "24.20:31:23.6470000"),
    ],
)
def test_a_span_is_written_as_dotnet_does(milliseconds: int, expected: str) -> None:
    """No days and no fraction where there are none; a fraction has seven digits."""
    assert format_span(milliseconds) == expected


@pytest.mark.parametrize("milliseconds", [-1, LONGEST_SPAN + 1])
def test_a_span_out_of_range_is_not_written(milliseconds: int) -> None:
    """What could not be read back is refused."""
    with pytest.raises(BadTimeSpan, match=f"'{milliseconds} ms' is not between 0 and 2147483647"):
        format_span(milliseconds)


@given(st.integers(0, LONGEST_SPAN))
def test_any_span_is_read_back_as_it_was(milliseconds: int) -> None:
    """To the millisecond."""
    assert parse_span(format_span(milliseconds)) == milliseconds
