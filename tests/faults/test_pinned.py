"""
A long transaction elsewhere: dead rows pile up, and the stream does not walk over them.

The full size is `python -m tests.faults.pinned`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from . import measuring, pinned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]
long = pytest.mark.skipif(
    os.environ.get("SQLQ_FAULTS_LONG") != "1", reason="SQLQ_FAULTS_LONG=1 runs it too"
)
MESSAGES, BATCH = 100_000, 1_000


@pytest.fixture
def ground(server: str) -> Iterator[measuring.Ground]:
    """Give a corner of the database."""
    with measuring.ground(server) as made:
        yield made


@pytest.mark.parametrize("pin", ["snapshot", pytest.param("xid", marks=long)])
def test_a_pinned_snapshot_does_not_slow_a_stream(
    ground: measuring.Ground, spark: SparkSession, tmp_path: Path, pin: str
) -> None:
    """Each entry is read a few times, however many died; seconds are measured by the command."""
    sizes = {"messages": MESSAGES, "batch": BATCH, "notes": 3}
    run = pinned.run(ground, spark, tmp_path, pin=pin, **sizes)

    assert run.whole
    # else nothing was pinned; the server's statistics may not know of the last batches yet
    assert run.dead >= 0.9 * MESSAGES
    # a peek, a receive, and a few from the very beginning; walking over the dead: 50 and more
    assert run.read["orders_seq_key"] < 6


def test_a_stream_that_becomes_slow_is_noticed() -> None:
    """The law can fail: each batch takes a little longer than the one before."""
    batches = [(1000, 100 + at) for at in range(100)]
    run = pinned.Run(pin="none", messages=100_000, batches=batches, left=0, dead=0, read={})

    assert run.whole
    assert run.ratio < 0.7
