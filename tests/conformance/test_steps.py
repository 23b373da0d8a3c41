"""The steps between versions of the state tables, there and back, on each database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import schema
from sqlq_spark.database.migrations import OLDEST_STATE_VERSION, STATE_VERSION

if TYPE_CHECKING:
    from conformance.conftest import Bench


def test_a_receipt_outlives_the_steps_back_and_forward(bench: Bench) -> None:
    """All steps back and forward again leave a stream that hands out what it has received."""
    bench.dotnet.send(bench.queue, body=b"held")
    task = bench.task(bench.new_stream())
    rows = bench.receive(task)

    back = schema.step_back(bench.connection, OLDEST_STATE_VERSION)
    version = schema.find_version(bench.connection)
    forward = schema.install(bench.connection)

    assert (back.before, back.after) == (STATE_VERSION, OLDEST_STATE_VERSION)
    assert version == forward.before == OLDEST_STATE_VERSION
    assert schema.find_version(bench.connection) == forward.after == STATE_VERSION
    assert bench.receive(task).equals(rows)
    assert rows["body"].to_pylist() == [b"held"]
