"""
Chaos for a while, and proof that its count can fail.

SQLQ_CHAOS_MINUTES sets how long; SQLQ_CHAOS_SEED repeats a choice of harms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .chaos.counting import Tally, problems

_ROOT = Path(__file__).resolve().parents[2]
_MINUTES = float(os.environ.get("SQLQ_CHAOS_MINUTES", "1"))

SOUND: dict[str, Any] = {
    "sent": {0: "plain", 1: "plain", 2: "expiring", 3: "expiring", 4: "poison", 5: "poison"},
    "confirmed": {0, 1, 2, 3, 4, 5},
    "streamed": [0, 3],
    "taken": [1, 5],
    "errors": [4],
    "left": [],
    "expired": 1,
    "delivered": 2,
    "diverted": 1,
}


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.timeout(_MINUTES * 60 + 1200)  # the last round may have to drain on a busy machine
def test_nothing_is_lost_or_repeated_whatever_is_harmed(tmp_path: Path) -> None:
    """Every committed message is in one place at the end of every round."""
    figures = tmp_path / "figures.json"
    words = ["--minutes", str(_MINUTES), "--json", str(figures)]
    if seed := os.environ.get("SQLQ_CHAOS_SEED"):
        words += ["--seed", seed]

    code, said = run(words)

    assert code == 0, said[-5000:]
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert (found["lost"], found["repeated"], found["wrong"]) == (0, 0, [])
    assert min(found["sent"], found["streamed"], found["competitor"], found["harms_in_all"]) > 0


def run(words: list[str]) -> tuple[int, str]:
    """Run the harness to its end; where this test is stopped it is stopped too, and cleans up."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults", *words],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, said


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, {}),
        ({"streamed": [3], "delivered": 1}, {"lost": [0]}),
        ({"taken": [1]}, {"lost": [5]}),
        # what had no time to be received stands first among the lost
        ({"streamed": [], "delivered": 0}, {"lost": [0, 3], "counted and expired": [1, 2]}),
        ({"streamed": [0, 3, 1], "delivered": 3}, {"repeated": [1]}),
        ({"streamed": [0, 3, 3], "delivered": 3}, {"repeated": [3]}),
        ({"errors": [4, 5], "diverted": 2}, {"repeated": [5]}),
        ({"streamed": [0, 3, 9], "delivered": 3}, {"never committed, but delivered": [9]}),
        ({"left": [0]}, {"repeated": [0], "left in the queue": [0]}),
        ({"taken": [1], "left": [5]}, {"left in the queue": [5]}),
        (
            {"streamed": [0, 3, 5], "taken": [1], "delivered": 3},
            {"poison, but delivered": [5]},
        ),
        (
            {"errors": [4, 0], "streamed": [3], "diverted": 2, "delivered": 1},
            {"no poison, but in the error queue": [0]},
        ),
        ({"confirmed": {*range(7)}}, {"committed, but not in the producer's table": [6]}),
        ({"confirmed": {*range(5)}}, {"in the producer's table, but not confirmed": [5]}),
        ({"expired": 2}, {"counted and expired": [2, 1]}),
        ({"delivered": 3}, {"counted and delivered": [3, 2]}),
        ({"diverted": 0}, {"counted and diverted": [0, 1]}),
    ],
)
def test_the_count_names_each_kind_of_problem_and_its_messages(
    change: dict[str, Any], found: dict[str, list[int]]
) -> None:
    """By number, so that the message can be followed through the logs; sound books have none."""
    assert problems(Tally(**SOUND | change)) == found
