"""
A long transaction elsewhere: dead rows pile up, and the stream does not walk over them.

The full size is `python -m tests.faults.pinned`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import pinned

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_a_pinned_snapshot_does_not_slow_a_stream(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    """Each entry is read a few times, however many died; seconds are measured by the command."""
    run = pinned.run(place, spark, tmp_path, messages=50_000, batch=1_000, notes=3)

    assert run.whole
    # else nothing was pinned; the server's statistics may not know of the last batches yet
    assert run.dead >= 0.9 * 50_000
    # a peek, a receive, and a few from the very beginning; walking over the dead: 25 and more
    assert run.read < 6


def test_a_stream_that_becomes_slow_has_a_low_ratio() -> None:
    """Each batch takes a little longer than the one before."""
    batches = [(1000, 100 + at) for at in range(100)]
    run = pinned.Run(messages=100_000, batches=batches, left=0, dead=0, read=0.0)

    assert run.whole
    assert run.ratio < pinned.AT_LEAST
