"""
Chaos for a while, and proof that its count can fail.

SQLQ_CHAOS_MINUTES sets how long; SQLQ_CHAOS_SEED repeats a choice of harms.
"""

from __future__ import annotations

import os
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

    assert found["wrong"] == [], found
    assert min(found["sent"], found["streamed"], found["taken"]) > 0
    assert any(name.startswith("harm") for name in found)


SENT = {0: "plain", 1: "plain", 2: "expiring", 3: "expiring", 4: "poison", 5: "poison"}
PLACES: dict[str, list[int]] = {"streamed": [0, 3], "taken": [1, 5], "errors": [4], "left": []}


@pytest.mark.parametrize(
    ("places", "counted", "found"),  # counted: expired, streamed, errors
    [
        ({}, (1, 2, 1), {}),
        # what had no time to be received stands first among the lost
        ({"streamed": []}, (1, 0, 1), {"lost": [0, 3], "counted and expired": [1, 2]}),
        ({"streamed": [0, 3, 1]}, (1, 3, 1), {"repeated": [1]}),
        ({"streamed": [0, 3, 9]}, (1, 3, 1), {"never committed, but delivered": [9]}),
        ({"taken": [1], "left": [5]}, (1, 2, 1), {"left in the queue": [5]}),
        ({"streamed": [0, 3, 5], "taken": [1]}, (1, 3, 1), {"misplaced": [5]}),
        ({"errors": [4, 0], "streamed": [3]}, (1, 1, 2), {"misplaced": [0]}),
        ({}, (1, 3, 1), {"counted and streamed": [3, 2]}),
    ],
)
def test_the_count_names_each_kind_of_problem_and_its_messages(
    places: dict[str, list[int]], counted: tuple[int, int, int], found: dict[str, list[int]]
) -> None:
    """By number, so that the message can be followed through the logs; sound books have none."""
    names = ("expired", "streamed", "errors")

    assert problems(SENT, PLACES | places, dict(zip(names, counted, strict=True))) == found
