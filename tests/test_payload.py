"""Payloads: what is packed comes back, in its row or in pages."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sqlq_spark.payload import LARGE, PAGE, RECEIPT_KEY, in_row, packed, pages, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = ("reader", 7, 1, "login")


def noise(size: int) -> pa.Table:
    """Rows that cannot be packed smaller than they are."""
    return pa.table({"body": [random.Random(size).randbytes(size)]})


def stored(rows: pa.Table) -> tuple[bytes, Sequence[tuple[bytes]]]:
    """What the two tables would hold."""
    payload = packed(rows)
    found = pages(payload, RECEIPT_KEY, KEY)
    return in_row(payload), [(page,) for page in found["payload"].to_pylist()]


@pytest.mark.parametrize("size", [0, 1000, LARGE - 2000, LARGE, LARGE + PAGE, 3_000_000])
def test_a_payload_of_any_size_comes_back(size: int) -> None:
    """In its row or in pages, never in both."""
    rows = noise(size)

    inside, outside = stored(rows)

    assert bool(inside) != bool(outside)
    assert unpacked(inside, outside).equals(rows)


def test_a_page_is_a_row_of_its_own_under_the_key() -> None:
    """Numbered from 0, all but the last of the same size."""
    found = pages(packed(noise(LARGE + 2 * PAGE)), RECEIPT_KEY, KEY).to_pylist()

    assert [row["page"] for row in found] == list(range(len(found)))
    assert {(row["reader"], row["batch"], row["task"], row["login"]) for row in found} == {KEY}
    assert {len(row["payload"]) for row in found[:-1]} == {PAGE}
    assert 0 < len(found[-1]["payload"]) <= PAGE


def test_a_small_payload_has_no_pages() -> None:
    """But the columns of the table, with its types."""
    found = pages(packed(noise(10)), RECEIPT_KEY, KEY)

    assert found.num_rows == 0
    kinds = [*RECEIPT_KEY.values(), pa.int32(), pa.binary()]
    assert found.schema.types == kinds
