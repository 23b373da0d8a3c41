"""Header texts that are read in columns: which of them, and what is found in them."""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strict_headers import read_strictly

from sqlq_spark.wire.flat_json import MOST_SPACES, FlatObjects
from sqlq_spark.wire.header_columns import Headers
from sqlq_spark.wire.headers import dumps

MAP = pa.map_(pa.string(), pa.string())
PLAIN = st.text('abäß漢🚀 :,{}[]"\\/\b\f\n\r\t\0', max_size=6)
OBJECTS = st.dictionaries(PLAIN, PLAIN, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=5,
)
# pieces that make texts that are nearly in the form
PIECES = st.lists(
    st.sampled_from(
        [
            *('{"', '"}', '":"', '","', '"', "{", "}", ":", ",", "{}", '{"a":"b"}'),
            *("\\", '\\"', "\\\\", "\\/", "\\x", "\\u0061", "\\u0022", "\\u005F_type", "\\u12"),
            *("\\ud83d\\ude80", "\\ud83d", "\\uDE80", "\\uE000", "a", "é", "🚀"),
            *("null", '":null,"', '"a":"\\"a\\":\\"no\\""', "["),
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


TEXTS = PIECES | JSON.map(json.dumps) | OBJECTS.map(write) | OBJECTS.map(write_lines) | st.none()


def column(*texts: str | None) -> pa.Array:
    """A column of header texts."""
    return pa.array(texts, pa.string())


def members(found: FlatObjects) -> list[list[tuple[str, str]]]:
    """Return the names and values of each row."""
    rows: list[list[tuple[str, str]]] = [[] for _ in range(found.rows)]
    names = found.names.dictionary_decode().to_pylist()
    for parent, name, value in zip(found.parents, names, found.values().to_pylist(), strict=True):
        rows[parent].append((name, value))
    return rows


@pytest.mark.parametrize("writer", [write, dumps, json.dumps, write_lines])
@given(st.lists(OBJECTS, max_size=6), st.integers(0, 2))
def test_objects_of_texts_are_read_without_parsing_a_row(
    writer: object, objects: list[dict[str, str]], skipped: int
) -> None:
    """Names and values in their order, also from a slice of a longer column."""
    assert callable(writer)
    found = FlatObjects(column(*["x"] * skipped, *map(writer, objects))[skipped:])

    assert found.is_read.all()
    assert members(found) == [list(each.items()) for each in objects]


def are_unfit(pairs: list[tuple[str, object]]) -> bool:
    """Whether a name is there twice, or `__type` first."""
    return len(pairs) != len(dict(pairs)) or [*dict(pairs)][:1] == ["__type"]


@given(st.lists(TEXTS, max_size=6))
@settings(max_examples=400)
def test_headers_are_the_same_in_columns_and_row_by_row(texts: list[str | None]) -> None:
    """As a map, one header alone, what a row lacks, and which rows old endpoints cannot read."""
    headers = Headers(column(*texts))
    rows = [read_strictly(text) for text in texts]

    assert headers.text("a").to_pylist() == [(row or {}).get("a") for row in rows]
    assert headers.missing("a").to_pylist() == ["a" not in (row or {}) for row in rows]
    assert headers.without_any().to_pylist() == [not row for row in rows]
    assert headers.poison().to_pylist() == [row is None for row in rows]
    expected = [None if row is None else list(row.items()) for row in rows]
    assert headers.map(MAP).to_pylist() == expected
    unfit = [
        at
        for at, (text, row) in enumerate(zip(texts, rows, strict=True))
        if row and json.loads(text or "", object_pairs_hook=are_unfit)
    ]
    assert sorted({*Headers(column(*texts)).unreadable_by_9_0()}) == unfit
    flat = FlatObjects(column(*(text or "" for text in texts)))
    for is_read, row, found in zip(flat.is_read, rows, members(flat), strict=True):
        assert dict(found) == (row if is_read else {})


READ: dict[str | None, dict[str, str | None]] = {
    None: {},
    "": {},
    ' {\n"a" : "b" }\t': {"a": "b"},
    '{"a":"1","b":"2","a":"3"}': {"a": "3", "b": "2"},
    '{"a":"1","a":null}': {"a": None},
    r'{"emoji":"\ud83d\ude80","quote":"\u0022"}': {"emoji": "🚀", "quote": '"'},
    r'{"nul":"\u0000","":""}': {"nul": "\0", "": ""},
    '{"big":"' + "x/" * 2_500_000 + '"}': {"big": "x/" * 2_500_000},
}
POISON = [
    *("null", "[]", '["a"]', '"a"', "true", "1", '{"a":1}', '{"a":1.5e3}', '{"a":true}'),
    *('{"a":' + "9" * 5000 + "}", '{"a":{}}', '{"a":{"b":"c"}}', '{"a":["b"]}'),
    *('{"a":NaN}', '{"a":-Infinity}', '{"a":undefined}', " ", "garbage"),
    *(r'{"a":"\ud83d"}', r'{"a":"\ude80\ud83d"}', r'{"\ud83d":null}'),
    *('{"a":"b"', '{"a":"b"} x', '{"a":"b"}{}', '{"a":"b",}', "{a:'b'}", '{"a"}'),
    *('{"a":"line\nbreak"}', '{"a":"nul\0"}', r'{"a":"\x41"}', r'{"a":"\u12"}'),
    *('{"a":"b"} // comment', '\ufeff{"a":"b"}', "[" * 100_000, '{"a":' * 100_000),
    '{"a":' + "[" * 1000 + "]" * 1000 + ',"a":"b"}',  # Spark's JSON parser reads 1000 levels
]


def test_only_an_object_of_texts_is_headers() -> None:
    """By old writers and new; any other text is poison."""
    found = Headers(column(*READ, *POISON))

    assert found.poison().to_pylist() == [False] * len(READ) + [True] * len(POISON)
    maps = [list(each.items()) for each in READ.values()]
    assert found.map(MAP).to_pylist() == maps + [None] * len(POISON)


@pytest.mark.parametrize(
    ("text", "is_unfit"),
    [
        ('{"a":"1","__type":"2"}', False),
        ('{"__type":"1","a":"2"}', True),
        ('{"a":null,"a":"3"}', True),
        ('{ "__type" : null }', True),
        (r'{"\u005f_type":"1"}', True),
        (r'{"a":"1","\u0061":"3"}', True),
        (r'{"a":"\"\\","b":null}', False),
        ('{"a":{"b":["c"]},"a":"b"}', True),
        ('{"a":' + "[" * 900 + "]" * 900 + ',"a":"b"}', True),
        ("[]", False),
    ],
)
def test_texts_that_old_endpoints_cannot_read_are_found(text: str, is_unfit: bool) -> None:  # noqa: FBT001
    """A name twice, or `__type` first; between other rows."""
    headers = Headers(column('{"x":"y"}', text, '{"__type2":"y"}'))

    assert headers.unreadable_by_9_0() == [1] * is_unfit


@pytest.mark.parametrize("times", [1, 8, 9, 1_000_000])
@pytest.mark.parametrize("white", [" ", "\n", "\t"])
def test_white_space_of_any_length_is_read(white: str, times: int) -> None:
    """In columns if it is short; a row beside it is read, and a control character is poison."""
    gap = white * times
    text = f'{gap}{{{gap}"a"{gap}:{gap}"b"{gap},{gap}"c":"{" " * times}"{gap}}}{gap}'
    texts = column('{"a":"x"}', text, text.replace(":", ":\v"), text.replace(" ", "\t"))

    headers = Headers(texts)

    read = [[("a", "x")], [("a", "b"), ("c", " " * times)], None, None]
    assert headers.map(MAP).to_pylist() == read
    assert headers.unreadable_by_9_0() == []
    assert FlatObjects(texts).is_read[1] == (times <= MOST_SPACES)


@pytest.mark.parametrize("letter", ["n", "漢", r"\n", r"\u0041"])
def test_a_name_of_50_000_characters_is_read_and_a_longer_one_is_poison(letter: str) -> None:
    """As Spark's JSON parser counts; a value has no such limit."""
    longest, longer = letter * 50_000, letter * 50_001
    names = ["a", longest, longer, "🚀" * 25_000, "🚀" * 25_001]
    headers = Headers(column(*(f'{{"{name}":"b"}}' for name in names), f'{{"a":"{longer}"}}'))

    expected = [False, False, True, False, True, False]
    assert headers.poison().to_pylist() == expected
    assert [row is None for row in headers.map(MAP).to_pylist()] == expected


@pytest.mark.parametrize("byte", ['"', "\\", "\n"])
def test_a_text_of_marks_alone_takes_little_memory(byte: str) -> None:
    """Each of 20 million places would take 8 bytes, several times; the rows beside it are read."""
    texts = column('{"a":"b"}', byte * 20_000_000)

    tracemalloc.start()
    FlatObjects(texts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    headers = Headers(texts)
    assert headers.poison().to_pylist() == [False, True]
    assert headers.text("a").to_pylist() == ["b", None]
    assert peak < 50_000_000
