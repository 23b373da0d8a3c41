"""Browsing: everything that waits, once, by seq; and nothing is touched."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlq_spark.receive import browse
from sqlq_spark.wire.rows import QUEUE_ROW

if TYPE_CHECKING:
    import pyarrow as pa
    import pytest

    from .conftest import Bench


def pages(bench: Bench, first: int, stop: int, *, narrow: bool = False) -> list[pa.Table]:
    """Read a range."""
    return list(browse.pages(bench.desk, bench.queue, first, stop, narrow=narrow))


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(gone=st.sets(st.integers(0, 39)), parts=st.integers(1, 9), sizes=st.integers(0, 3000))
def test_the_ranges_together_hold_every_message_once_and_by_seq(
    bench: Bench, gone: set[int], parts: int, sizes: int
) -> None:
    """Whatever gaps there are; ranges ascend, do not overlap, and are not more than asked for."""
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.send_many(bench.queue, [b"%d" % at + b"x" * sizes for at in range(40)], lives=None)
    base = bench.seqs()[0]
    bench.dotnet.dba.delete(bench.queue, [base + at for at in gone])

    found = browse.parts(bench.desk, [bench.queue], parts=parts)
    ranges = [(first, stop) for _, first, stop in found]
    tables = [page for first, stop in ranges for page in pages(bench, first, stop)]

    assert len(ranges) <= parts
    assert all(stop == first for (_, stop), (first, _) in pairwise(ranges))
    rows = [row for page in tables for row in page.to_pylist()]
    there = bench.dotnet.rows(bench.queue)
    assert [(row["id"], row["body"], row["seq"]) for row in rows] == [
        (row.id.bytes, row.body, row.seq) for row in there
    ]


def test_browsing_waits_for_no_one_and_deletes_nothing(bench: Bench) -> None:
    """Expired rows and poison are shown; what others hold, where streams see it."""
    bench.dotnet.send(bench.queue, "[]", None)
    bench.dotnet.send(bench.queue, lives=-1)
    before = bench.dotnet.rows(bench.queue)

    with bench.dotnet.hold(bench.queue, [1, 2]):
        held = pages(bench, 1, 3)
    (page,) = pages(bench, 1, 3)

    if bench.dotnet.dialect == "postgresql":
        assert held == [page]
    else:  # READPAST
        assert sum(each.num_rows for each in held) == 0
    assert page.schema.equals(QUEUE_ROW)
    assert page["headers"].to_pylist() == ["[]", "{}"]
    assert page["body"].to_pylist() == [None, b"{}"]
    assert page["expires"].to_pylist() == [None, before[1].expires]
    assert bench.dotnet.rows(bench.queue) == before


def test_heavy_messages_come_in_small_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows before weighed sizes the next page; the server cuts it; one row at least."""
    monkeypatch.setattr(browse, "FIRST_PAGE", 2)
    monkeypatch.setattr(browse, "PAGE_BYTES", 10_000)
    bench.dotnet.send_many(bench.queue, [b"x" * 4000] * 12 + [b"y" * 20_000] * 2, lives=None)

    sizes = [page.num_rows for page in pages(bench, 1, 15)]

    assert sizes == [2] * 6 + [1, 1]


def test_a_page_cut_short_by_its_reader_holds_no_transaction(bench: Bench) -> None:
    """`limit` stops asking: what is left open must not pin dead rows."""
    bench.dotnet.send_many(bench.queue, [b"x"] * 100, lives=None)
    one = browse.pages(bench.desk, bench.queue, 1, 101, narrow=False)

    next(one)

    bench.dotnet.dba.truncate(bench.queue)  # waits for every transaction on it
    assert list(one) == []
