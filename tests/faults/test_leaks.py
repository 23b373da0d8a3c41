"""
Nothing grows from batch to batch: sessions, files, memory, state tables.

The full size is `python -m tests.faults.leaks`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from . import leaks, measuring

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_nothing_grows_from_batch_to_batch(
    server: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Half of the batches go into nothing, half into a queue; so few are less even than many."""
    with measuring.ground(server) as ground:
        phases = list(leaks.run(ground, spark, tmp_path, batches=120, wide=3, patience=0))

    assert [phase.batches for phase in phases] == [60, 60]
    grown = {
        f"{phase.name}: {name}": each.values
        for phase in phases
        for name, each in phase.series.items()
        if not each.kept
    }
    assert grown == {}
    assert [sum(phase.left.values()) for phase in phases] == [0, 0]


@pytest.mark.parametrize(
    ("values", "most", "kept"),
    [
        ([1.0, 5.0, 5.0, 5.0], None, True),  # the first quarter is for caches
        ([5.0, 5.0, 5.0, 5.2], None, True),
        ([5.0, 5.0, 5.0, 5.3], None, False),
        ([float(at) for at in range(100, 200)], None, False),
        ([1.0, 9.0, 1.0, 1.0], 8.0, False),
        ([1.0, 2.0, 4.0, 8.0], 8.0, True),
    ],
)
def test_what_grows_is_noticed(values: list[float], most: float | None, kept: bool) -> None:  # noqa: FBT001
    """The law can fail: by 5% of the last quarter over the second, or by a bound."""
    series = leaks.Series(leaks.Law(percent=5, most=most), values)

    assert series.kept is kept


def test_the_watch_sees_sessions_and_files(server: str, spark: SparkSession) -> None:
    """A session of the package and open files that are left are counted."""
    with measuring.ground(server) as ground:
        ground.create("orders")
        watch = leaks.Watch(ground, spark, wide=1)
        watch.take()
        sessions = [measuring.connect(ground) for _ in range(20)]
        files = [os.dup(0) for _ in range(20)]
        watch.take()
        for session in sessions:
            session.close()
        for file in files:
            os.close(file)

    assert watch.series["sessions"].values[1] >= 20
    assert not watch.series["sessions"].kept
    before, after = watch.series["driver's files"].values
    assert after > before + 30  # a session is a socket; an earlier one may have been closed
