"""How far a receive goes on SQL Server: it lets through what fits, and bounds the rest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqlq_spark.database.sqlserver.calls import MOST_LOCKS, PAGE, STATEMENTS, cut_step

LARGEST = 1000
SIZES = st.lists(st.integers(0, 2 * LARGEST), min_size=1, max_size=60)


def rows(sizes: list[int]) -> list[tuple[int, int]]:
    """Rows with gaps between their seqs."""
    return [(3 * at + 1, size) for at, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 60), st.integers(1, 20_000))
def test_a_step_is_never_larger_than_its_limits_and_one_message(
    sizes: list[int], messages: int, most: int
) -> None:
    """Also if all were committed unweighed. What is too large is passed over, and not counted."""
    weighed = rows(sizes)
    step = cut_step(weighed, messages=messages, most=most, largest=LARGEST)

    fitting = [(seq, size) for seq, size in weighed if size <= LARGEST]
    passed = [size for seq, size in fitting if seq < step["stop"]]
    assert min(1, len(fitting)) <= len(passed) == step["messages"] <= messages
    assert max(passed, default=0) <= step["largest"] <= LARGEST
    assert step["messages"] * step["largest"] <= most + LARGEST
    assert step["stop"] <= weighed[-1][0] + 1
    assert passed or step["stop"] == weighed[-1][0] + 1


@given(st.integers(0, LARGEST), st.integers(1, 60), st.integers(1, 20_000))
def test_messages_of_one_size_fill_a_step(size: int, count: int, most: int) -> None:
    """As PostgreSQL cuts it: the message that reaches the limit is the last one."""
    step = cut_step(rows([size] * count), messages=2000, most=most, largest=LARGEST)

    assert step["messages"] == sum(at * size < most for at in range(count))


def test_the_ends_of_a_step() -> None:
    """Nothing waits; one message of any size; many pages, each of which may count as a lock."""
    large = cut_step(rows([1 << 30, 1]), messages=2, most=1, largest=1 << 30)
    pages = cut_step(rows([9 * PAGE] * 2000), messages=2000, most=1 << 40, largest=1 << 40)

    assert cut_step([], messages=1, most=1, largest=1) == {}
    assert (large["messages"], large["largest"]) == (1, 1 << 30)
    assert pages["messages"] == MOST_LOCKS // 10


def test_a_receive_locks_no_more_rows_than_were_weighed() -> None:
    """Between 4,000 messages that are too large, it would escalate: the size is no filter."""
    assert "@largest" not in STATEMENTS["weigh"]
