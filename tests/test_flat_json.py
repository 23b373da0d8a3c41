"""Messages in columns: header texts, and what Spark gets of a row."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from datetime import UTC, datetime
from functools import partial
from itertools import compress, count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strict_headers import read_strictly

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.flat_json import MOST_SPACES, FlatObjects
from sqlq_spark.wire.header_columns import Headers, to_read_columns, with_legacy_columns
from sqlq_spark.wire.rows import QUEUE_ROW

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


# by three writers: ours; without white space; on several lines, and ASCII only
WRITTEN = OBJECTS.map(wire.dumps)
WRITTEN |= OBJECTS.map(partial(json.dumps, ensure_ascii=False, separators=(",", ":")))
WRITTEN |= OBJECTS.map(partial(json.dumps, indent=2))
TEXTS = PIECES | JSON.map(json.dumps) | WRITTEN | st.none()


def column(*texts: str | None) -> pa.Array:
    """A column of header texts."""
    return pa.array(texts, pa.string())


@given(st.lists(WRITTEN, max_size=6))
def test_objects_of_texts_are_read_without_parsing_a_row(texts: list[str]) -> None:
    """Any writer may have written them."""
    assert FlatObjects(column(*texts)).is_read.all()


def are_unfit(pairs: list[tuple[str, object]]) -> bool:
    """Whether a name is there twice, or `__type` is first."""
    return len(pairs) != len(dict(pairs)) or [*dict(pairs)][:1] == ["__type"]


@given(st.lists(TEXTS, max_size=6))
@settings(max_examples=500)
def test_headers_are_the_same_in_columns_and_row_by_row(texts: list[str | None]) -> None:
    """Maps, one header, missing headers, and rows that old endpoints cannot read are equal."""
    headers = Headers(column(*texts))
    rows = [read_strictly(text) for text in texts]
    both = [*zip(texts, rows, strict=True)]

    assert headers.text("a").to_pylist() == [(row or {}).get("a") for row in rows]
    assert headers.missing("a").to_pylist() == ["a" not in (row or {}) for row in rows]
    assert headers.without_any().to_pylist() == [not row for row in rows]
    assert headers.poison().to_pylist() == [row is None for row in rows]
    expected = [None if row is None else list(row.items()) for row in rows]
    assert headers.map(MAP).to_pylist() == expected
    pairs = [row and json.loads(text or "", object_pairs_hook=are_unfit) for text, row in both]
    assert sorted({*Headers(column(*texts)).unreadable_by_9_0()}) == [*compress(count(), pairs)]
    flat = FlatObjects(column(*(text or "" for text in texts)))
    names, values = flat.names.dictionary_decode().to_pylist(), flat.values().to_pylist()
    found: list[dict[str, str]] = [{} for _ in texts]
    for parent, name, value in zip(flat.parents, names, values, strict=True):
        found[parent][name] = value
    assert found == [
        row if is_read else {} for is_read, row in zip(flat.is_read, rows, strict=True)
    ]


MORE_POISON = [
    *('{"a":1.5e3}', '{"a":' + "9" * 5000 + "}", '{"a":-Infinity}', '{"a":undefined}', '{"a"}'),
    *('{"a":"nul\0"}', '{"a":"b"} // comment', "[" * 100_000, '{"a":' * 100_000),
    '{"a":' + "[" * 1000 + "]" * 1000 + ',"a":"b"}',  # Spark's JSON parser reads 1000 levels
]


def test_only_an_object_of_texts_is_headers() -> None:
    """It may be large. Any other text is poison."""
    big = "x/" * 2_500_000
    found = Headers(column(f'{{"big":"{big}"}}', *MORE_POISON))

    assert found.poison().to_pylist() == [False] + [True] * len(MORE_POISON)
    assert found.map(MAP).to_pylist() == [[("big", big)]] + [None] * len(MORE_POISON)


@pytest.mark.parametrize("times", [1, 8, 9, 1_000_000])
def test_white_space_of_any_length_is_read(times: int) -> None:
    """Short white space is read in columns. A control character is poison."""
    for white in " \n\t":
        gap = white * times
        text = f'{gap}{{{gap}"a"{gap}:{gap}"b"{gap},{gap}"c":"{" " * times}"{gap}}}{gap}'
        texts = column('{"a":"x"}', text, text.replace(":", ":\v"), text.replace(" ", "\t"))

        found = Headers(texts).map(MAP).to_pylist()

        assert found == [[("a", "x")], [("a", "b"), ("c", " " * times)], None, None]
        assert FlatObjects(texts).is_read[1] == (times <= MOST_SPACES)


def test_a_name_of_50_000_characters_is_read_and_a_longer_one_is_poison() -> None:
    """Characters are counted as Spark's JSON parser counts them. A value has no such limit."""
    for letter in ("n", "漢", r"\n", r"\u0041"):
        longest, longer = letter * 50_000, letter * 50_001
        names = ["a", longest, longer, "🚀" * 25_000, "🚀" * 25_001]
        headers = Headers(column(*(f'{{"{name}":"b"}}' for name in names), f'{{"a":"{longer}"}}'))

        expected = [False, False, True, False, True, False]
        assert headers.poison().to_pylist() == expected
        assert [row is None for row in headers.map(MAP).to_pylist()] == expected


def test_a_text_of_marks_alone_takes_little_memory() -> None:
    """Such a text is parsed without arrays of its 20 million marks. Other rows are read."""
    for mark in '"\\\n':
        texts = column('{"a":"b"}', mark * 20_000_000)

        tracemalloc.start()
        FlatObjects(texts)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert Headers(texts).text("a").to_pylist() == ["b", None]
        assert peak < 50_000_000


# ----- messages --------------------------------------------------------------------------------

TEXT = ("id", "correlationId", "replyToAddress", "corruptHeaders", "queue")
EXPIRY = pa.timestamp("us", "UTC")
MORE = {"expires": EXPIRY, "headers": MAP, "body": pa.binary(), "seq": pa.int64()}
SCHEMA = pa.schema(dict.fromkeys(TEXT, pa.string()) | MORE)
ADDRESSED = st.dictionaries(
    st.sampled_from([wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS, "a"]), st.none() | st.text()
).map(wire.dumps)
POISONED = f'{{"{wire.CORRELATION_ID}":"c","{wire.REPLY_TO_ADDRESS}":"r","number":1}}'
IDS = st.binary(min_size=16, max_size=16)
EXPIRES = st.datetimes(datetime(1753, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001 - as stored
ROW = {
    "id": IDS,
    "expires": st.none() | EXPIRES,
    "headers": TEXTS | ADDRESSED | st.just(POISONED),
    "body": st.none() | st.binary(max_size=20),
    "seq": st.integers(-(2**63), 2**63 - 1),
}
ROWS = st.lists(st.fixed_dictionaries(ROW), max_size=8)


@given(ROWS, st.integers(0, 3), st.sets(st.sampled_from(SCHEMA.names), min_size=1))
def test_what_spark_gets_is_what_the_row_holds(
    rows: list[dict[str, Any]], offset: int, some: set[str]
) -> None:
    """This holds for any choice of columns, and for a slice. Poison gives no header."""
    expected = []
    for row in rows[offset:]:
        headers = read_strictly(row["headers"])
        known = {
            "id": str(uuid.UUID(bytes=row["id"])),
            "correlationId": (headers or {}).get(wire.CORRELATION_ID),
            "replyToAddress": (headers or {}).get(wire.REPLY_TO_ADDRESS),
            "expires": row["expires"] and row["expires"].replace(tzinfo=UTC),
            "headers": None if headers is None else list(headers.items()),
            "corruptHeaders": row["headers"] if headers is None else None,
            "queue": '"public"."q"',
        }
        expected.append(row | known)

    table = pa.Table.from_pylist(rows, schema=QUEUE_ROW).slice(offset)
    for schema in (SCHEMA, pa.schema([each for each in SCHEMA if each.name in some])):
        found = [to_read_columns(each, schema, queue='"public"."q"') for each in table.to_batches()]
        assert all(each.schema.equals(schema) for each in found)
        got = [row for each in found for row in each.to_pylist()]
        assert got == [{name: row[name] for name in schema.names} for row in expected]


def test_what_endpoints_of_version_1_read_stands_in_columns() -> None:
    """They have the headers' values, and null where the column cannot hold one."""
    given = [("a", "sales@[dbo]"), (None, None), ("a" * 256, "bücher@[dbo]")]
    names = (wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS)
    texts = [wire.dumps(dict(zip(names, each, strict=True))) for each in given]

    found = with_legacy_columns(pa.table({"headers": texts}))

    assert found["correlationid"].to_pylist() == ["a", None, None]
    assert found["replytoaddress"].to_pylist() == ["sales@[dbo]", None, None]
