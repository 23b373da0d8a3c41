"""Payloads of receipts and of staged chunks: their pages, their limits, and damaged ones."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from payloads import forged, of_receipt, sealed

from sqlq_spark.errors import PayloadRefused
from sqlq_spark.send.chunk import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.frame import TOPICS
from sqlq_spark.wire.payload import LARGE, PAGE, RECEIPT_KEY, Expected, in_row, pack, pages, unpack
from sqlq_spark.wire.rows import QUEUE_ROW

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
    # offsets that reach outside, are negative, decrease, or are too few
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
