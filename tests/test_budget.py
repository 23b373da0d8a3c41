"""The project does not grow without someone raising a number."""

from __future__ import annotations

import budget


def test_nothing_is_above_its_budget() -> None:
    """Files, lines, tokens, statements and words; `python -m tests.budget` prints new figures."""
    above = {
        (what, name): number
        for what, its in budget.figures().items()
        for name, number in its.items()
        if number > budget.BUDGET[what][name]
    }

    assert above == {}
