"""Header texts that are read in columns: which of them, and what is found in them."""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlq_spark.wire.flat_json import MOST_SPACES, FlatObjects
from sqlq_spark.wire.header_columns import Headers, parse_headers
from sqlq_spark.wire.headers import dumps

MAP = pa.map_(pa.string(), pa.string())

PLAIN = st.text('abäß漢🚀 :,{}[]"\\/\b\f\n\r\t\0', max_size=6)
OBJECTS = st.dictionaries(PLAIN, PLAIN, max_size=4)
# pieces that make texts that are nearly in the form
PIECES = st.lists(
    st.sampled_from(
        [
            *('{"', '"}', '":"', '","', '"', "{", "}", ":", ",", "{}", '{"a":"b"}'),
            *("\\", '\\"', "\\\\", "\\/", "\\x", "\\u0061", "\\u0022", "\\u005F_type", "\\u12"),
            *("\\ud83d\\ude80", "\\ud83d", "\\uDE80", "\\uE000", "a", "é", "🚀"),
            *("null", '":null,"', "["),
            *(" ", "\t", "\r\n", "\v", "\0", "\xa0", " " * 8, '" : "', '"\n, "', '{ "', '" }'),
        ]
    ),
    max_size=8,
).map("".join)


def write(headers: dict[str, str]) -> str:
    """Write without white space, and as few escapes as JSON allows."""
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":"))


def write_lines(headers: dict[str, str]) -> str:
    """Write a line for each member, and other letters in hex."""
    return json.dumps(headers, indent=2)


TEXTS = st.one_of(PIECES, *(OBJECTS.map(each) for each in (write, json.dumps, write_lines)))


def are_unfit(pairs: list[tuple[str, object]]) -> bool:
    """Whether a name is there twice, or `__type` first."""
    return len(pairs) != len(dict(pairs)) or [*dict(pairs)][:1] == ["__type"]


def members(found: FlatObjects) -> list[list[tuple[str, str]]]:
    """Return the names and values of each row."""
    rows: list[list[tuple[str, str]]] = [[] for _ in range(found.rows)]
    names = found.names.dictionary_decode().to_pylist()
    for parent, name, value in zip(found.parents, names, found.values().to_pylist(), strict=True):
        rows[parent].append((name, value))
    return rows


@given(
    st.lists(OBJECTS, max_size=6),
    st.sampled_from([write, dumps, json.dumps, write_lines]),
    st.integers(0, 2),
)
def test_objects_of_texts_are_read_without_parsing_a_row(
    objects: list[dict[str, str]], writer: object, skipped: int
) -> None:
    """Names and values in their order, also from a slice of a longer column."""
    assert callable(writer)
    texts = pa.array(["x" * skipped] * skipped + [writer(each) for each in objects], pa.string())

    found = FlatObjects(texts[skipped:])

    assert found.is_read.all()
    assert members(found) == [list(each.items()) for each in objects]


@given(st.lists(TEXTS, max_size=6))
@settings(max_examples=400)
def test_a_text_is_read_only_if_it_is_an_object_of_texts(texts: list[str]) -> None:
    """Whatever it resembles, and whatever stands before and behind it."""
    found = FlatObjects(pa.array(texts, pa.string()))

    for text, is_read, row in zip(texts, found.is_read, members(found), strict=True):
        read = parse_headers(text)
        if is_read:
            assert read == dict(row)
        else:
            assert row == []


@given(st.lists(TEXTS | st.none(), max_size=6))
@settings(max_examples=400)
def test_headers_are_the_same_in_columns_and_row_by_row(texts: list[str | None]) -> None:
    """As a map, one header alone, what a row lacks, and which rows old endpoints cannot read."""
    headers = Headers(pa.array(texts, pa.string()))
    rows = [parse_headers(text) for text in texts]

    assert headers.text("a").to_pylist() == [(row or {}).get("a") for row in rows]
    assert headers.missing("a").to_pylist() == ["a" not in (row or {}) for row in rows]
    assert headers.without_any().to_pylist() == [not row for row in rows]
    assert headers.poison().to_pylist() == [row is None for row in rows]
    expected = [None if row is None else list(row.items()) for row in rows]
    assert headers.map(MAP).to_pylist() == expected
    assert headers.text("a").to_pylist() == [(row or {}).get("a") for row in rows]
    unfit = [
        at
        for at, (text, row) in enumerate(zip(texts, rows, strict=True))
        if row and json.loads(text or "", object_pairs_hook=are_unfit)
    ]
    assert sorted({*Headers(pa.array(texts, pa.string())).unreadable_by_9_0()}) == unfit


@pytest.mark.parametrize(
    ("text", "is_unfit"),
    [
        ('{"a":"1","b":"2"}', False),
        ('{"a":"1","__type":"2"}', False),
        ('{"__type":"1","a":"2"}', True),
        ('{"a":"1","b":"2","a":"3"}', True),
        ('{"a":null,"a":"3"}', True),
        ('{ "__type" : null }', True),
        (r'{"\u005f_type":"1"}', True),
        (r'{"a":"1","\u0061":"3"}', True),
        (r'{"a":"\"\\","b":null}', False),
        ('{"a":{"b":["c"]},"a":"b"}', True),
        ('{"a":' + "[" * 900 + "]" * 900 + ',"a":"b"}', True),
        ("{}", False),
        ("[]", False),
    ],
)
def test_texts_that_old_endpoints_cannot_read_are_found(text: str, is_unfit: bool) -> None:  # noqa: FBT001
    """A name twice, or `__type` first; between other rows."""
    headers = Headers(pa.array(['{"x":"y"}', text, '{"__type2":"y"}'], pa.string()))

    assert headers.unreadable_by_9_0() == [1] * is_unfit


@pytest.mark.parametrize("times", [1, 8, 9, 1_000_000])
@pytest.mark.parametrize("white", [" ", "\n", "\t"])
def test_white_space_of_any_length_is_read(white: str, times: int) -> None:
    """In columns if it is short; a row beside it is read, and a control character is poison."""
    gap = white * times
    text = f'{gap}{{{gap}"a"{gap}:{gap}"b"{gap},{gap}"c":"{" " * times}"{gap}}}{gap}'
    texts = ['{"a":"x"}', text, text.replace(":", ":\v"), text.replace(" ", "\t")]

    headers = Headers(pa.array(texts, pa.string()))

    rows = [parse_headers(text) for text in texts]
    expected = [None if row is None else list(row.items()) for row in rows]
    assert rows[1:] == [{"a": "b", "c": " " * times}, None, None]
    assert headers.map(MAP).to_pylist() == expected
    assert headers.unreadable_by_9_0() == []
    assert FlatObjects(pa.array(texts, pa.string())).is_read[1] == (times <= MOST_SPACES)


@pytest.mark.parametrize("letter", ["n", "漢", r"\n", r"\u0041"])
def test_a_name_of_50_000_characters_is_read_and_a_longer_one_is_poison(letter: str) -> None:
    """In columns and row by row, as Spark's JSON parser counts; a value has no such limit."""
    longest, longer = letter * 50_000, letter * 50_001
    names = [*("a", longest, longer), *("🚀" * 25_000, "🚀" * 25_001)]
    texts = [*(f'{{"{name}":"b"}}' for name in names), f'{{"a":"b","x":"{longer}"}}']

    headers = Headers(pa.array(texts, pa.string()))

    expected = [False, False, True, False, True, False]
    assert headers.poison().to_pylist() == expected
    assert [parse_headers(text) is None for text in texts] == expected
    assert [row is None for row in headers.map(MAP).to_pylist()] == expected


def test_a_deep_value_that_another_replaces_is_poison() -> None:
    """Spark's JSON parser reads 1000 levels, also of what is not used."""
    texts = [f'{{"a":{"[" * levels}{"]" * levels},"a":"b"}}' for levels in (1, 999, 1000)]

    assert Headers(pa.array(texts, pa.string())).poison().to_pylist() == [False, False, True]


@pytest.mark.parametrize("byte", ['"', "\\", "\n"])
def test_a_text_of_marks_alone_takes_little_memory(byte: str) -> None:
    """Each of 20 million places would take 8 bytes, several times; the rows beside it are read."""
    texts = pa.array(['{"a":"b"}', byte * 20_000_000], pa.string())

    tracemalloc.start()
    FlatObjects(texts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    headers = Headers(texts)
    assert headers.poison().to_pylist() == [False, True]
    assert headers.text("a").to_pylist() == ["b", None]
    assert peak < 50_000_000
