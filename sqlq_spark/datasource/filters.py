"""
The filters of a query that a browse applies itself, so that the database reads fewer rows.

They are ranges of `seq`, and equality and lists of `queue`. Spark applies all other filters.
Classes are known by their names, because Spark 4.0 lacks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlq_spark.receive.selection import STOP
from sqlq_spark.wire.rows import LOWEST_SEQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.datasource import Filter

    from sqlq_spark.receive.selection import Selection

SEQ, QUEUE = ("seq",), ("queue",)

# filter → the half-open range of seqs that a value stands for
RANGES: dict[str, Callable[[int], tuple[int, int]]] = {
    "EqualTo": lambda seq: (seq, seq + 1),
    "EqualNullSafe": lambda seq: (seq, seq + 1),
    "GreaterThan": lambda seq: (seq + 1, STOP),
    "GreaterThanOrEqual": lambda seq: (seq, STOP),
    "LessThan": lambda seq: (LOWEST_SEQ, seq),
    "LessThanOrEqual": lambda seq: (LOWEST_SEQ, seq + 1),
}


def narrow(wanted: Selection, condition: Filter) -> tuple[Selection, bool]:
    """
    Narrow a selection by one of Spark's filters.

    Returns:
        The selection, and whether it needs nothing more of Spark for this filter.
    """
    kind, column = type(condition).__name__, getattr(condition, "attribute", None)
    value: Any = getattr(condition, "value", None)
    if kind == "IsNotNull":
        return wanted, column in (SEQ, QUEUE)  # neither is ever null
    if column == SEQ and kind in RANGES and type(value) is int:
        return wanted.within(*RANGES[kind](value)), True
    if column == SEQ and kind == "In" and (seqs := [each for each in value if type(each) is int]):
        return wanted.within(min(seqs), max(seqs) + 1), False  # what lies between is for Spark
    if column == QUEUE and kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
        return wanted.among([value]), True
    if column == QUEUE and kind == "In":
        return wanted.among([each for each in value if isinstance(each, str)]), True
    return wanted, False
