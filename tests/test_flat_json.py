"""Messages in columns: header texts, what Spark gets of a row, and payloads of receipts."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
import uuid
from datetime import UTC, datetime
from functools import partial
from itertools import compress, count, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from payloads import forged, of_receipt, sealed
from strict_headers import read_strictly

from sqlq_spark.errors import PayloadRefused
from sqlq_spark.send.frame import TOPICS
from sqlq_spark.send.sender import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.flat_json import MOST_SPACES, FlatObjects
from sqlq_spark.wire.header_columns import Headers, to_read_columns, with_legacy_columns
from sqlq_spark.wire.payload import LARGE, PAGE, RECEIPT_KEY, Expected, in_row, pack, pages, unpack
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


# the last two: without white space, and in lines with other letters in hex
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
    """Whether a name is there twice, or `__type` first."""
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
    """Each of 20 million places would take 8 bytes, several times; the rows beside it are read."""
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
    """Column by column, whichever are read, of a slice as of a whole; poison gives no header."""
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


# ----- payloads --------------------------------------------------------------------------------

KEY = ("stream", 7, 1)
ONE = pa.schema([pa.field("body", pa.binary())])


def ends(*values: int) -> bytes:
    """A buffer of offsets."""
    return struct.pack(f"<{len(values)}i", *values)


# two rows of QUEUE_ROW, buffer by buffer
TIMES, SEQS = struct.pack("<2q", 0, 0), struct.pack("<2q", 1, 2)
GOOD = [
    *(None, b"i" * 32, b"\x00", TIMES, None, ends(0, 2, 4), b"{}{}"),
    *(None, ends(0, 1, 3), b"abb", None, SEQS),
]


def payload(*changes: tuple[int, bytes | None], rows: int = 2, **more: Any) -> bytes:
    """A payload with other buffers."""
    buffers = [*GOOD]
    for at, buffer in changes:
        buffers[at] = buffer
    return forged([(rows, buffers)], **more)


def noise(size: int) -> pa.Table:
    """Rows that cannot be packed smaller than they are."""
    return pa.table({"body": [random.Random(size).randbytes(size)]})


@pytest.mark.parametrize("size", [0, LARGE - 2000, LARGE, LARGE + 2 * PAGE])
def test_a_payload_of_any_size_comes_back(size: int) -> None:
    """It is in its row or in pages, which count from 0. All but the last have one size."""
    packed = pack(noise(size)).bytes
    found = pages(packed, RECEIPT_KEY, KEY).to_pylist()
    inside, outside = in_row(packed), [row["payload"] for row in found]

    expected = Expected(where="a test", schema=ONE, most=size + 8, size=size + 8, rows=1)
    assert bool(inside) != bool(outside)
    assert unpack(inside, outside, expected).equals(noise(size))
    keys = [(row["stream"], row["batch"], row["task"], row["page"]) for row in found]
    assert keys == [(*KEY, at) for at in range(len(found))]
    assert {len(page) for page in outside[:-1]} <= {PAGE}
    like = pa.table({"body": [b"body" * 200] * 2000})
    assert pack(like).bytes.size < like.nbytes / 20


WORDS = st.none() | st.text(max_size=5)
LISTS = st.none() | st.lists(WORDS, max_size=4)


@given(
    rows=st.lists(st.tuples(WORDS, WORDS, st.binary(max_size=5), LISTS), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=3),
    first=st.integers(0, 20),
)
def test_rows_of_any_slice_and_any_chunks_come_back(
    rows: list[tuple[str | None, str | None, bytes, list[str | None] | None]],
    cuts: list[int],
    first: int,
) -> None:
    """Nulls, lists and empty ones, from wherever in a larger table they are cut."""
    schema = CHUNK_ROW.append(CHUNK_TOPICS)
    columns = [[row[at] for row in rows] for at in (0, 1, 2)]
    arrays = [*columns, [None] * len(rows), pa.array([row[3] for row in rows], TOPICS)]
    whole = pa.table(arrays, schema=schema)
    slices = [whole.slice(a, b - a) for a, b in pairwise([0, *sorted(cuts), len(rows)]) if a <= b]
    found = pa.concat_tables([whole.slice(0, 0), *slices]).slice(first)

    packed = pack(found)
    sizes: dict[str, Any] = {"most": packed.size, "size": packed.size}
    expected = Expected(where="a test", schema=CHUNK_ROW, optional=(CHUNK_TOPICS,), **sizes)
    again = unpack(packed.bytes.to_pybytes(), (), expected)

    assert again.schema.equals(schema)
    assert again.to_pylist() == found.to_pylist()


FORGED = [
    # offsets that reach outside, are negative, fall, or are none
    *(payload((8, ends(*values))) for values in ((0, 1, 4000), (0, -4000, 3), (0, 3, 1), (0, 3))),
    *(payload((8, None)), payload((11, SEQS * 2)), payload((6, b"\xff\xfe{}"))),
    *(forged([(2, [*GOOD, b"x"])]), forged([(2, GOOD[:-1])])),
    *(payload(rows=rows) for rows in (0, 3, 2_000_000_000)),
    # sizes that are too large, plain and packed
    *(payload(claims={9: claim}) for claim in ([4000, 12], [3, 2**40])),
    payload(columns=["id", "expires", "headers", "text", "seq"]),
    *(sealed(b"", b"[" * 100_000), b"{}" + (10**6).to_bytes(4, "little"), payload()[:-9]),
]


def test_a_forged_payload_is_refused() -> None:
    """The error says where the payload is stored. Nothing outside of the payload is ever read."""
    assert of_receipt(payload())["body"].to_pylist() == [b"a", b"bb"]
    for each in FORGED:
        with pytest.raises(PayloadRefused, match="the payload of a test in the state tables"):
            of_receipt(each)


def test_lists_that_reach_outside_are_refused() -> None:
    """The topics of a staged message are lists, and their values have buffers of their own."""
    expected = Expected(where="a test", schema=pa.schema([CHUNK_TOPICS]), most=1000)
    for values in ((0, 9, 1), (-1, 0, 1), (0, 1, 2**31 - 1)):
        lists = [None, ends(*values), None, ends(0, 1), b"x"]
        with pytest.raises(PayloadRefused):
            unpack(forged([(2, lists)], columns=["topics"]), (), expected)


def test_no_more_is_unpacked_than_was_stored() -> None:
    """200 kB would become gigabytes, whether the payload states that size or a smaller one."""
    before = pa.total_allocated_bytes()
    honest = payload((9, b"\0" * (64 << 20)))
    lying = honest.replace(b"[67108864,", b"[3,")
    lying = lying[:-4] + (int.from_bytes(honest[-4:], "little") - 7).to_bytes(4, "little")
    size = sum(len(each) for each in GOOD if each)
    expected = Expected(where="a test", schema=QUEUE_ROW, most=1 << 20, size=size)

    for each in (honest, lying):
        with pytest.raises(PayloadRefused):
            unpack(each, (), expected)
    with pytest.raises(PayloadRefused, match="too small"):
        of_receipt(lying)

    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_payload_is_what_was_stored_with_it() -> None:
    """Bytes, rows and seal are compared, and so is the most that a task could receive."""
    for what, value in (("size", 3), ("rows", 3), ("most", 10), ("seal", pack(noise(3)).seal)):
        given: Any = {"where": "receipt r/1/0", "schema": QUEUE_ROW, "most": 1000, what: value}
        with pytest.raises(PayloadRefused, match="receipt r/1/0"):
            unpack(payload(), (), Expected(**given))


BUFFERS = st.none() | st.binary(max_size=40) | st.sampled_from([each for each in GOOD if each])


@settings(max_examples=300)
@given(
    st.integers(0, 5),
    st.lists(BUFFERS, min_size=10, max_size=13) | st.just(GOOD),
    st.lists(st.tuples(st.integers(0, 9), BUFFERS), max_size=2),
)
def test_any_buffers_give_an_error_or_a_valid_table(
    rows: int, buffers: list[bytes | None], changes: list[tuple[int, bytes | None]]
) -> None:
    """Each buffer may be packed correctly, but hold wrong values."""
    chosen = [*buffers]
    for at, buffer in changes:
        chosen[at] = buffer

    try:
        found = of_receipt(forged([(rows, chosen)]))
    except PayloadRefused:
        return

    found.validate(full=True)
    assert len(found.to_pylist()) == rows
