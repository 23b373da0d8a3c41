"""Filters that a browse applies: for every row the same as Spark's own."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

filters = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(filters, "Filter"):
    pytest.skip("Spark 4.0 pushes no filters", allow_module_level=True)

from sqlq_spark.receive.browse import ALL  # noqa: E402
from sqlq_spark.wire import HIGHEST_SEQ, LOWEST_SEQ  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SEQ, QUEUE = ("seq",), ("queue",)
SEQS = st.integers(LOWEST_SEQ, HIGHEST_SEQ) | st.integers(-3, 3)
QUEUES = st.sampled_from(["a", "A", "b"])
MEANING: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("EqualTo", "EqualNullSafe"), operator.eq),
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda found, value: found in value,
}


def conditions(column: tuple[str], values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Each kind of filter of a column."""
    single = st.sampled_from([name for name in MEANING if name != "In"])
    many = st.lists(values | st.none(), max_size=3).map(tuple)
    return st.builds(
        lambda name, value: getattr(filters, name)(column, value), single, values
    ) | st.builds(lambda value: filters.In(column, value), many)


@given(
    st.lists(conditions(SEQ, SEQS) | conditions(QUEUE, QUEUES), max_size=4),
    st.lists(st.tuples(SEQS, QUEUES), max_size=8),
)
def test_what_is_selected_and_left_to_spark_is_what_was_asked(
    asked: list[object], rows: list[tuple[int, str]]
) -> None:
    """For every row: selected, and passed by the filters that are left."""
    wanted, left = ALL, []
    for each in asked:
        wanted, done = wanted.narrow(each)  # type: ignore[arg-type]
        left += [] if done else [each]

    for seq, queue in rows:
        named = wanted.queues is None or queue in wanted.queues
        selected = wanted.first <= seq < wanted.stop and named
        assert (selected and passes((seq, queue), left)) == passes((seq, queue), asked)


def passes(row: tuple[int, str], conditions: list[object]) -> bool:
    """Whether a row passes, as Spark decides it."""
    return all(
        MEANING[type(each).__name__](row[each.attribute == QUEUE], each.value)  # type: ignore[attr-defined]
        for each in conditions
    )


def test_any_other_filter_is_left_to_spark() -> None:
    """And selects everything; neither column is ever null, which Spark asks for too."""
    others = [filters.EqualTo(("headers", "seq"), 1), filters.EqualTo(SEQ, True)]  # noqa: FBT003
    others += [filters.Not(filters.EqualTo(QUEUE, "a")), filters.GreaterThan(QUEUE, "a")]
    assert {ALL.narrow(each) for each in others} == {(ALL, False)}  # type: ignore[arg-type]
    assert ALL.narrow(filters.IsNotNull(SEQ)) == ALL.narrow(filters.IsNotNull(QUEUE)) == (ALL, True)
