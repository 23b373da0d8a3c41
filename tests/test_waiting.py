"""Waiting for a condition."""

from __future__ import annotations

import pytest
from waiting import until


def test_until_returns_what_it_saw_or_fails_with_it() -> None:
    """The error has the lines of the look, what was wanted, what was seen last, and a log's end."""
    seen = iter([[], [], [7]])

    assert until(lambda: next(seen)) == [7]
    assert until(lambda: 0, 0, seconds=0) == 0
    with pytest.raises(AssertionError) as waited:
        until(lambda: [3, "of five"], [5, ""], seconds=0, told=lambda: "end of a log")

    said = str(waited.value)
    assert said.startswith("waited 0 s for [5, '']: until(lambda: [3, ")
    assert said.endswith("saw last: [3, 'of five']\nend of a log")
