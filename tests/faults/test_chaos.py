"""
Chaos for a while, and proof that its count can fail.

SQLQ_CHAOS_MINUTES sets how long; SQLQ_CHAOS_SEED repeats a choice of harms. With `-s` it prints
figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from .chaos import problems, rounds

if TYPE_CHECKING:
    from pathlib import Path

MINUTES = float(os.environ.get("SQLQ_CHAOS_MINUTES", "0.5"))


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.timeout(MINUTES * 60 + 1200)  # the last round may have to drain on a busy machine
def test_nothing_is_lost_or_repeated_whatever_is_harmed(tmp_path: Path) -> None:
    """Every committed message is in one place at the end of every round."""
    seed = int(os.environ.get("SQLQ_CHAOS_SEED", str(int(time.time()))))

    found = rounds(MINUTES, seed, tmp_path)

    sys.stdout.write(json.dumps(found, indent=1))
    assert found["wrong"] == [], found
    assert min(found["streamed"], found["taken"]) > 0
    assert any(name.startswith("harm") for name in found)


@pytest.mark.parametrize(
    ("places", "counted", "found"),
    [
        ({}, 2, {}),
        ({"taken": []}, 2, {"lost": [1]}),
        ({"streamed": [0, 3, 1]}, 3, {"repeated": [1]}),
        ({"taken": [], "left": [1]}, 2, {"left": [1]}),
        ({"streamed": [0, 3, 4]}, 2, {"counted": [2, 3]}),
    ],
)
def test_the_count_names_each_kind_of_problem_and_its_messages(
    places: dict[str, list[int]], counted: int, found: dict[str, list[int]]
) -> None:
    """The answer to the commit of message 4 was lost, so it may be nowhere."""
    sound = {"streamed": [0, 3], "taken": [1], "left": []}

    assert problems({0, 1, 3}, sound | places, counted) == found
