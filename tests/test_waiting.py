"""What waits for something tells what it saw."""

from __future__ import annotations

import pytest
from waiting import until


def test_what_is_there_is_returned() -> None:
    """Also where it comes with the last look."""
    seen = iter([[], [], [7]])

    assert until(lambda: next(seen)) == [7]
    assert until(lambda: 0, 0, seconds=0) == 0


def test_what_never_comes_is_told_with_what_was_seen() -> None:
    """The lines of the look, what was wanted, what it saw last, and what else there is to tell."""
    with pytest.raises(AssertionError) as waited:
        until(lambda: [3, "of five"], [5, ""], seconds=0, told=lambda: "end of a log")

    said = str(waited.value)
    assert said.startswith("waited 0 s for [5, '']: until(lambda: [3, ")
    assert said.endswith("saw last: [3, 'of five']\nend of a log")
