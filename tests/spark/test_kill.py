"""
Kills at chosen moments around a sink's commit: every message is delivered once.

Kills at any moment are tests/faults. The driver, its JVM and its workers get SIGKILL at once.
The session of the tests then goes on from its checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import started

from spark import driver
from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spark.stand import SparkQueue

pytestmark = [pytest.mark.spark, pytest.mark.faults]


OURS = "sqlqueue "  # in the name of every session of ours


def killed_when(folder: Path, streams: list[dict[str, Any]], moment: Callable[[], object]) -> None:
    """Run a driver up to a moment."""
    words = [sys.executable, driver.__file__, json.dumps({"streams": streams})]
    with started(words, folder, dict(os.environ)) as running:
        running.until(moment)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_a_write(queue: SparkQueue, moment: str) -> None:
    """
    Into Delta, and into a queue and an error queue, by two streams of one driver.

    One of 50 messages is for a queue that is not there, and goes to the error queue.

    Before: Delta does not have the batch; the chunks are staged, and a lock holds the dispatch.
    After: it is written, or dispatched, but Spark's commit log does not have it.
    """
    orders, out, errors, lost = (queue.another(name) for name in ("delta", "out", "error", "lost"))
    to = {"out": out.name, "errors": errors.name, "absent": queue.beside("absent").name}
    for each in (queue, orders):
        each.fill(0, 500)
    limits = {"maxMessagesPerTrigger": "200", "peekDelay": "100ms"}
    into_delta, into_queue = (queue.folder / name for name in ("into_delta", "into_queue"))
    table, reached = str(queue.folder / "table"), queue.folder / "reached"
    delta: dict[str, Any] = {
        "options": orders.options | limits,
        "sink": "delta",
        "table": table,
        "checkpoint": str(into_delta),
        "stop": {"before": "received", "after": "written"}[moment],
        "batch": 1,
        "reached": str(reached),
    }
    relay: dict[str, Any] = {
        "options": queue.options | limits,
        "sink": "sqlqueue",
        "out": {name: value for name, value in out.options.items() if name != "queue"}
        | {"undeliverable": lost.name},
        "to": to,
        "checkpoint": str(into_queue),
        "every": "1 hour",
    }

    if moment == "before":
        with queue.dba.closed(out.address):
            killed_when(
                queue.folder,
                [relay, delta],
                lambda: reached.exists() and queue.state("staging") and queue.dotnet.waiting(OURS),
            )
    else:
        killed_when(
            queue.folder,
            [relay, delta],
            lambda: reached.exists() and queue.dotnet.state_rows("dispatch_log", "batch") == [(0,)],
        )
        for name in ("0", ".0.crc"):
            (into_queue / "commits" / name).unlink(missing_ok=True)
    staged, sent = queue.state("staging"), (out.count(), errors.count())
    committed = [(into_delta / "commits" / name).exists() for name in ("0", "1")]

    stream = queue.spark.readStream.format("sqlqueue").options(**delta["options"]).load()
    writer = stream.writeStream.foreachBatch(lambda rows, at: driver.save(rows, at, table))
    finish(writer, into_delta)
    stream = queue.spark.readStream.format("sqlqueue").options(**relay["options"]).load()
    rows = driver.relayed(stream, to)
    finish(rows.writeStream.format("sqlqueue").options(**relay["out"]), into_queue)

    assert committed == [True, False]
    assert (staged > 0, sent) == ((True, (0, 0)) if moment == "before" else (False, (176, 20)))
    landed = message_ids(queue.spark.read.format("delta").load(table))
    assert (
        sorted(landed) == sorted(out.ids() + errors.ids() + lost.ids()) == sorted(numbered(0, 500))
    )
    assert sorted(errors.ids()) == sorted(each for each in numbered(0, 500) if each[-1] == "7")
    assert lost.count() == 10
    assert {headers["NServiceBus.FailedQ"] for headers, _ in lost.rows()} == {to["absent"]}
    assert [queue.count(), orders.count()] == [0, 0]
    assert [queue.state("staging"), queue.state("receipt")] == [0, 0]
