"""Messages in columns: what Spark gets of a row, their order, and ids."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from strict_headers import read_strictly
from test_flat_json import TEXTS

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import to_read_columns, with_legacy_columns
from sqlq_spark.wire.rows import QUEUE_ROW, id_texts, random_ids, sort_by_seq, uuid_text

SCHEMA = pa.schema(
    {
        **dict.fromkeys(("id", "correlationId", "replyToAddress"), pa.string()),
        "expires": pa.timestamp("us", "UTC"),
        "headers": pa.map_(pa.string(), pa.string()),
        "corruptHeaders": pa.string(),
        "body": pa.binary(),
        "seq": pa.int64(),
        "queue": pa.string(),
    }
)
ADDRESSED = st.dictionaries(
    st.sampled_from([wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS, "a"]), st.none() | st.text()
).map(wire.dumps)
POISON = f'{{"{wire.CORRELATION_ID}":"c","{wire.REPLY_TO_ADDRESS}":"r","number":1}}'
IDS = st.binary(min_size=16, max_size=16)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": IDS,
            "expires": st.none() | st.datetimes(datetime(1753, 1, 1), datetime(9999, 12, 31)),  # noqa: DTZ001 - as stored
            "headers": TEXTS | ADDRESSED | st.just(POISON),
            "body": st.none() | st.binary(max_size=20),
            "seq": st.integers(-(2**63), 2**63 - 1),
        }
    ),
    max_size=8,
)


@given(ROWS, st.integers(0, 3), st.sets(st.sampled_from(SCHEMA.names), min_size=1))
def test_what_spark_gets_is_what_the_row_holds(
    rows: list[dict[str, object]], offset: int, some: set[str]
) -> None:
    """Column by column, whichever are read, of a slice as of a whole; poison gives no header."""
    expected = []
    for row in rows[offset:]:
        headers = read_strictly(row["headers"])  # type: ignore[arg-type]
        expires = row["expires"]
        known = {
            "id": str(uuid.UUID(bytes=row["id"])),  # type: ignore[arg-type]
            "correlationId": (headers or {}).get(wire.CORRELATION_ID),
            "replyToAddress": (headers or {}).get(wire.REPLY_TO_ADDRESS),
            "expires": expires.replace(tzinfo=UTC) if isinstance(expires, datetime) else None,
            "headers": None if headers is None else list(headers.items()),
            "corruptHeaders": row["headers"] if headers is None else None,
            "queue": '"public"."q"',
        }
        expected.append(row | known)

    table = pa.Table.from_pylist(rows, schema=QUEUE_ROW).slice(offset)
    for names in (SCHEMA.names, [name for name in SCHEMA.names if name in some]):
        schema = pa.schema([SCHEMA.field(name) for name in names])
        found = [to_read_columns(each, schema, queue='"public"."q"') for each in table.to_batches()]
        assert all(each.schema.equals(schema) for each in found)
        got = [row for each in found for row in each.to_pylist()]
        assert got == [{name: row[name] for name in names} for row in expected]
    raw = pa.schema([pa.field("headers", pa.string())])  # as the option headersFormat=json
    texts = [to_read_columns(each, raw, queue="q")["headers"] for each in table.to_batches()]
    assert [text for each in texts for text in each.to_pylist()] == [
        row["headers"] for row in rows[offset:]
    ]


@given(st.lists(st.integers(-1000, 1000), unique=True, max_size=30))
def test_rows_are_put_in_the_order_of_seq(seqs: list[int]) -> None:
    """Whatever order the database chose."""
    rows = [{"seq": seq, "body": b"%d" % seq} for seq in seqs]
    found = sort_by_seq(pa.Table.from_pylist(rows, schema=QUEUE_ROW))

    assert found["seq"].to_pylist() == sorted(seqs)
    assert found["body"].to_pylist() == [b"%d" % seq for seq in sorted(seqs)]


@given(st.integers(1, 50), IDS)
def test_ids_are_version_4_uuids_and_a_seed_repeats_them(how_many: int, seed: bytes) -> None:
    """A retried task repeats its message ids; nothing else shares them."""
    seeds = (seed, seed, None, bytes(255 - byte for byte in seed))
    one, again, *others = (
        [uuid.UUID(bytes=each.tobytes()) for each in random_ids(how_many, seed=each)]
        for each in seeds
    )

    assert one == again
    assert len({*one, *others[0], *others[1]}) == 3 * how_many
    assert all((each.version, each.variant) == (4, uuid.RFC_4122) for each in one + others[0])


@given(st.lists(st.none() | IDS, max_size=20), st.integers(0, 5))
def test_id_texts_are_those_of_uuid(ids: list[bytes | None], offset: int) -> None:
    """Also of a slice; null stays null."""
    expected = [None if each is None else str(uuid.UUID(bytes=each)) for each in ids[offset:]]

    assert id_texts(pa.array(ids, pa.binary(16)).slice(offset)).to_pylist() == expected
    assert [None if each is None else uuid_text(each) for each in ids[offset:]] == expected


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
