"""How far a receive goes on SQL Server: it lets through what fits, and bounds the rest."""

from __future__ import annotations

import sqlserver_texts
from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.database.sqlserver.calls import MOST_LOCKS, PAGE, cut_step

LARGEST = 1000
SIZES = st.lists(st.integers(0, LARGEST), min_size=1, max_size=60)


def rows(sizes: list[int]) -> list[tuple[int, int]]:
    """Rows with gaps between their seqs."""
    return [(3 * at + 1, size) for at, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 20_000))
def test_a_step_is_never_larger_than_its_limit_and_one_message(sizes: list[int], most: int) -> None:
    """Also if each of its rows was committed unweighed; all rows that were weighed may pass."""
    step = cut_step(rows(sizes), messages=2000, most=most, largest=LARGEST)

    passed = [size for seq, size in rows(sizes) if seq < step["stop"]]
    assert len(passed) == step["messages"] >= 1
    assert max(passed) <= step["largest"] <= LARGEST
    assert step["messages"] * step["largest"] <= most + LARGEST


@given(st.integers(0, LARGEST), st.integers(1, 60), st.integers(1, 20_000))
def test_messages_of_one_size_fill_a_step(size: int, count: int, most: int) -> None:
    """As PostgreSQL cuts it: the message that reaches the limit is the last one."""
    step = cut_step(rows([size] * count), messages=2000, most=most, largest=LARGEST)

    before = [at * size for at in range(count)]
    assert step["messages"] == sum(each < most for each in before)


def test_where_nothing_waits_there_is_no_step() -> None:
    """A table is not asked for rows then."""
    assert cut_step([], messages=1, most=1, largest=1) == {}


def test_messages_of_many_pages_make_fewer_rows() -> None:
    """SQL Server may count a lock for each page of a large value, and locks tables at 5,000."""
    step = cut_step(rows([9 * PAGE] * 2000), messages=2000, most=1 << 40, largest=1 << 40)

    assert step["messages"] == MOST_LOCKS // 10


def test_one_message_of_any_size_is_received() -> None:
    """It is the first of its step, and alone in it."""
    step = cut_step(rows([1 << 30, 1]), messages=2, most=1, largest=1 << 30)

    assert (step["messages"], step["largest"]) == (1, 1 << 30)


@given(st.lists(st.integers(0, 2 * LARGEST), min_size=1, max_size=60), st.integers(1, 60))
def test_messages_that_are_too_large_are_passed_over_and_counted(
    sizes: list[int], messages: int
) -> None:
    """A step ends among the rows that were weighed, so it locks no more of them."""
    weighed = rows(sizes)
    step = cut_step(weighed, messages=messages, most=1 << 40, largest=LARGEST)

    passed = [size for seq, size in weighed if seq < step["stop"] and size <= LARGEST]
    assert len(passed) == step["messages"] <= messages
    assert step["stop"] <= weighed[-1][0] + 1
    assert step["messages"] or step["stop"] == weighed[-1][0] + 1


def test_a_receive_locks_no_more_rows_than_were_weighed() -> None:
    """Between 4,000 messages that are too large, it would escalate: the size is no filter."""
    assert "@largest" not in sqlserver_texts.rendered()["weigh"]
