"""Messages in columns: what Spark gets of a row, receipts there and back, ids."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from payloads import reread
from strict_headers import PoisonHeaders, loads

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import Headers, to_read_columns, with_legacy_columns
from sqlq_spark.wire.payload import pack
from sqlq_spark.wire.rows import (
    QUEUE_ROW,
    id_texts,
    random_ids,
    record_batches,
    sort_by_seq,
    uuid_text,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("correlationId", pa.string()),
        pa.field("replyToAddress", pa.string()),
        pa.field("expires", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("corruptHeaders", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("seq", pa.int64()),
        pa.field("queue", pa.string()),
    ]
)
TEXT = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
TEXTS = (
    st.dictionaries(TEXT, st.none() | TEXT).map(wire.dumps)
    | JSON.map(json.dumps)
    | st.sampled_from(["", "{", '{"a":"\\ud800"}', '{"a":"1","a":null}', '{"a":"\\u0000"}'])
    | st.text(max_size=10)
    | st.none()
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.binary(min_size=16, max_size=16),
            "expires": st.none() | st.datetimes(datetime(1753, 1, 1), datetime(9999, 12, 31)),  # noqa: DTZ001 - as stored
            "headers": TEXTS,
            "body": st.none() | st.binary(max_size=20),
            "seq": st.integers(-(2**63), 2**63 - 1),
        }
    ),
    max_size=8,
)


def read(text: str | None) -> dict[str, str | None] | None:
    """Read headers by the strict reader; None for poison."""
    try:
        return loads(text)
    except PoisonHeaders:
        return None


def table(rows: list[dict[str, object]]) -> pa.Table:
    """Make a table of QUEUE_ROW."""
    return pa.Table.from_pylist(rows, schema=QUEUE_ROW)


# ----- headers ---------------------------------------------------------------------------------


READ: dict[str | None, dict[str, str | None]] = {
    None: {},
    "": {},
    "{}": {},
    ' {\n"a" : "b" }\t': {"a": "b"},
    '{"a":"1","b":"2","a":"3"}': {"a": "3", "b": "2"},
    '{"a":"1","a":null}': {"a": None},
    r'{"emoji":"\ud83d\ude80","quote":"\u0022"}': {"emoji": "🚀", "quote": '"'},
    '{"emoji":"🚀","slash":"/"}': {"emoji": "🚀", "slash": "/"},
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
]


def test_only_an_object_of_texts_is_headers() -> None:
    """By old writers and new; any other text is poison."""
    found = Headers(pa.array([*READ, *POISON], pa.string()))

    assert found.poison().to_pylist() == [False] * len(READ) + [True] * len(POISON)
    kind = pa.map_(pa.string(), pa.string())
    maps = [list(each.items()) for each in READ.values()]
    assert found.map(kind).to_pylist() == maps + [None] * len(POISON)
    assert [read(text) for text in POISON] == [None] * len(POISON)


@given(st.lists(TEXTS, max_size=8))
def test_the_fast_reader_of_headers_agrees_with_the_strict_one(texts: list[str | None]) -> None:
    """Which texts are poison, and what the others hold; one bad row spoils no other."""
    found = Headers(pa.array(texts, pa.string()))

    expected = [read(text) for text in texts]
    assert found.poison().to_pylist() == [each is None for each in expected]
    kind = pa.map_(pa.string(), pa.string())
    assert found.map(kind).to_pylist() == [
        None if each is None else list(each.items()) for each in expected
    ]


# the name of a header, as JSON may write it, and names that are nearly it
NAMES = [
    r'"NServiceBus.CorrelationId"',
    r'"NServiceBus.\u0043orrelationId"',
    r'"NServiceBus\u002eCorrelationId"',
    r'"x\"NServiceBus.CorrelationId"',
    r'"\\\"NServiceBus.CorrelationId"',
    r'"xNServiceBus.CorrelationId"',
    r'"\u0022"',
]
VALUES = ['"c"', "null", r'"\"q\""', r'"\u00e4"', r'"\"NServiceBus.CorrelationId\":\"no\""']


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=3),
    st.sampled_from([",", " , "]),
)
@settings(max_examples=300)
def test_one_header_is_found_without_parsing_as_it_is_by_parsing(
    members: list[tuple[str, str]], comma: str
) -> None:
    """However its name and its value are written, and whatever looks like it."""
    text = "{" + comma.join(f"{name}:{value}" for name, value in members) + "}"
    (batch,) = table([{"headers": text, "seq": 1}]).to_batches()

    found = to_read_columns(batch, pa.schema([SCHEMA.field("correlationId")]), queue="q")
    column = Headers(pa.array([text, None, "[]"], pa.string())).text(wire.CORRELATION_ID)

    expected = loads(text).get(wire.CORRELATION_ID)
    assert found["correlationId"].to_pylist() == [expected]
    assert column.to_pylist() == [expected, None, None]


# ----- received --------------------------------------------------------------------------------


@given(ROWS, st.integers(0, 3), st.sets(st.sampled_from(SCHEMA.names), min_size=1))
def test_what_spark_gets_is_what_the_row_holds(
    rows: list[dict[str, object]], offset: int, some: set[str]
) -> None:
    """Column by column, whichever are read, and of a slice as of a whole."""
    part = rows[offset:]

    batches = [
        to_read_columns(batch, SCHEMA, queue='"public"."q"')
        for batch in table(rows).slice(offset).to_batches()
    ]

    got = [row for batch in batches for row in batch.to_pylist()]
    for row, given_ in zip(got, part, strict=True):
        headers = read(given_["headers"])  # type: ignore[arg-type]
        known = headers or {}
        expires = given_["expires"]
        assert row == {
            "id": str(uuid.UUID(bytes=given_["id"])),  # type: ignore[arg-type]
            "correlationId": known.get(wire.CORRELATION_ID),
            "replyToAddress": known.get(wire.REPLY_TO_ADDRESS),
            "expires": expires.replace(tzinfo=UTC) if isinstance(expires, datetime) else None,
            "headers": None if headers is None else list(headers.items()),
            "corruptHeaders": given_["headers"] if headers is None else None,
            "body": given_["body"],
            "seq": given_["seq"],
            "queue": '"public"."q"',
        }
    narrow = pa.schema([field for field in SCHEMA if field.name in some])
    for batch, whole in zip(table(rows).slice(offset).to_batches(), batches, strict=True):
        found = to_read_columns(batch, narrow, queue='"public"."q"')
        assert found.schema.equals(narrow)
        assert found.to_pylist() == whole.select(narrow.names).to_pylist()
    raw = pa.schema([pa.field("headers", pa.string())])  # as the option headersFormat=json
    texts = [to_read_columns(each, raw, queue="q") for each in table(part).to_batches()]
    assert [row["headers"] for each in texts for row in each.to_pylist()] == [
        each["headers"] for each in part
    ]


def test_poison_gives_no_header_whichever_columns_are_read() -> None:
    """A row that an endpoint could not read has no correlation, whichever columns are read."""
    text = f'{{"{wire.CORRELATION_ID}":"c","{wire.REPLY_TO_ADDRESS}":"r","number":1}}'
    (batch,) = table([{"headers": text, "seq": 1}]).to_batches()

    for names in (["correlationId", "corruptHeaders"], ["replyToAddress", "headers"], SCHEMA.names):
        schema = pa.schema([SCHEMA.field(name) for name in names])
        (row,) = to_read_columns(
            batch.set_column(0, "id", pa.array([bytes(16)], pa.binary(16))), schema, queue="q"
        ).to_pylist()
        assert row.get("correlationId") is None
        assert row.get("replyToAddress") is None


# ----- receipts --------------------------------------------------------------------------------


@given(ROWS)
def test_a_payload_is_small_and_unpacked_as_it_was_packed(rows: list[dict[str, object]]) -> None:
    """Types, nulls and order; a receipt of like messages is a small part of what it holds."""
    whole = table(rows)
    again = reread(pack(whole), QUEUE_ROW)
    assert again.schema.equals(QUEUE_ROW)
    assert again.equals(whole)
    row = {"headers": '{"a":"' + "header" * 80 + '"}', "body": b"body" * 200, "seq": 1}
    like = table([row] * 2000)
    assert pack(like).bytes.size < like.nbytes / 20


@given(st.lists(st.integers(-1000, 1000), unique=True, max_size=30))
def test_rows_are_put_in_the_order_of_seq(seqs: list[int]) -> None:
    """Whatever order the database chose."""
    found = sort_by_seq(table([{"seq": seq, "body": b"%d" % seq} for seq in seqs]))

    assert found["seq"].to_pylist() == sorted(seqs)
    assert found["body"].to_pylist() == [b"%d" % seq for seq in sorted(seqs)]


@given(
    st.lists(st.integers(0, 300), max_size=40),
    st.integers(1, 10),
    st.integers(1, 2000),
    st.integers(1, 40),
)
def test_chunks_together_are_the_rows(sizes: list[int], rows: int, size: int, split: int) -> None:
    """In order, none is empty or above the number of rows; above the size only where one row is."""
    whole = table([{"seq": at, "body": b"x" * each} for at, each in enumerate(sizes)])
    parts = [whole.slice(at, split) for at in range(0, len(sizes), split)]
    whole = pa.concat_tables([QUEUE_ROW.empty_table(), *parts])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlq_spark.wire.rows.BATCH_ROWS", rows)
        patch.setattr("sqlq_spark.wire.rows.BATCH_BYTES", size)

        found = list(record_batches(whole))

    assert pa.Table.from_batches(found, QUEUE_ROW).equals(whole)
    assert all(0 < part.num_rows <= rows for part in found)
    weights = (sum(map(len, part["body"].to_pylist())) for part in found if part.num_rows > 1)
    assert max(weights, default=0) <= size


# ----- ids -------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.binary(min_size=16, max_size=16))
def test_ids_are_version_4_uuids_and_a_seed_repeats_them(how_many: int, seed: bytes) -> None:
    """A retried task repeats its message ids; nothing else shares them."""
    one = random_ids(how_many, seed=seed)
    others = [
        random_ids(how_many, seed=each) for each in (None, bytes(255 - byte for byte in seed))
    ]

    assert np.array_equal(one, random_ids(how_many, seed=seed))
    found = [uuid.UUID(bytes=each.tobytes()) for ids in (one, *others) for each in ids]
    assert len(set(found)) == 3 * how_many
    assert all((each.version, each.variant) == (4, uuid.RFC_4122) for each in found)


@given(st.lists(st.none() | st.binary(min_size=16, max_size=16), max_size=20), st.integers(0, 5))
def test_id_texts_are_those_of_uuid(ids: list[bytes | None], offset: int) -> None:
    """Also of a slice; null stays null."""
    column = pa.array(ids, pa.binary(16)).slice(offset)

    assert id_texts(column).to_pylist() == [
        None if each is None else str(uuid.UUID(bytes=each)) for each in ids[offset:]
    ]
    assert [None if each is None else uuid_text(each) for each in ids[offset:]] == (
        id_texts(column).to_pylist()
    )


# ---------------------------------------------------------------- endpoints of version 1


def test_what_endpoints_of_version_1_read_stands_in_columns() -> None:
    """As the headers say it; null where they do not, or where the column cannot hold it."""
    texts = [
        wire.dumps({wire.CORRELATION_ID: "a", wire.REPLY_TO_ADDRESS: "sales@[dbo]"}),
        "{}",
        wire.dumps({wire.CORRELATION_ID: "a" * 256, wire.REPLY_TO_ADDRESS: "bücher@[dbo]"}),
    ]

    found = with_legacy_columns(pa.table({"headers": texts}))

    assert found["correlationid"].to_pylist() == ["a", None, None]
    assert found["replytoaddress"].to_pylist() == ["sales@[dbo]", None, None]
