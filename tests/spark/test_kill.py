"""
A kill around a sink's commit: every message is delivered once.

The driver, its JVM and its workers get SIGKILL at once. The session of the tests then continues
from its checkpoints. Kills at any moment are in tests/faults.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import started
from pages.page import blocks

from spark import driver
from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = [pytest.mark.spark, pytest.mark.faults]

OURS = "sqlqueue "  # in the name of every session of ours


def test_killed_around_a_write(queue: SparkQueue) -> None:
    """
    One driver is killed with two streams, one after a write to Delta and one before a dispatch.

    Delta has the batch, but Spark's commit log does not. The MERGE of docs/guide/upserts.md, by
    the number, changes nothing when the batch comes again. The chunks for a queue and an error
    queue are staged, and a lock holds the dispatch. One of 50 messages is for a queue that is
    not there.
    """
    orders, out, errors, lost = (queue.another(name) for name in ("delta", "out", "error", "lost"))
    to = {"out": out.name, "errors": errors.name, "absent": queue.beside("absent").name}
    for each in (queue, orders):
        each.fill(0, 500)
    limits = {"maxMessagesPerTrigger": "200", "peekDelay": "100ms"}
    into_delta, into_queue = (queue.folder / name for name in ("into_delta", "into_queue"))
    table, reached = str(queue.folder / "table"), queue.folder / "reached"
    [page] = blocks("docs/guide/upserts.md")
    code = page.text.partition("received =")[0].replace("OrderId", "number")
    delta: dict[str, Any] = {
        "options": orders.options | limits,
        "sink": "delta",
        "table": table,
        "code": code.replace("/lake/", f"{queue.folder}/"),
        "checkpoint": str(into_delta),
        "stop": 1,
        "reached": str(reached),
    }
    relay: dict[str, Any] = {
        "options": queue.options | limits,
        "sink": "sqlqueue",
        "out": queue.database_options | {"undeliverable": lost.name},
        "to": to,
        "checkpoint": str(into_queue),
    }

    words = [sys.executable, driver.__file__, json.dumps({"streams": [relay, delta]})]
    with (
        queue.dba.closed(out.address),
        started(words, queue.folder, dict(os.environ)) as running,
    ):
        running.until(
            lambda: reached.exists() and queue.state("staging") and queue.dotnet.waiting(OURS)
        )
    staged, sent = queue.state("staging"), [each.count() for each in (out, errors, lost)]
    committed = [(into_delta / "commits" / name).exists() for name in ("0", "1")]
    received, relayed = (
        queue.spark.readStream.format("sqlqueue").options(**each["options"]).load()
        for each in (delta, relay)
    )
    save = received.writeStream.foreachBatch(driver.into_delta(queue.spark, delta))
    finish(save, into_delta)
    send = driver.relayed(relayed, to).writeStream.format("sqlqueue").options(**relay["out"])
    finish(send, into_queue)

    assert staged > 0
    assert sent == [0, 0, 0]
    assert committed == [True, False]
    landed = message_ids(queue.spark.read.format("delta").load(table))
    ids = out.ids() + errors.ids() + lost.ids()
    assert sorted(landed) == sorted(ids) == sorted(numbered(0, 500))
    merged = f"delta.`{queue.folder}/orders`"
    history = queue.spark.sql(f"DESCRIBE HISTORY {merged}").collect()
    assert {each.operationMetrics.get("numTargetRowsUpdated", "0") for each in history} == {"0"}
    assert queue.spark.table(merged).select("number").distinct().count() == 500
    assert sorted(errors.ids()) == sorted(each for each in numbered(0, 500) if each[-1] == "7")
    failed = [headers["NServiceBus.FailedQ"] for headers, _ in lost.rows()]
    assert failed == [queue.beside("absent").whole_name] * 10
    left = [queue.count(), orders.count(), queue.state("staging"), queue.state("receipt")]
    assert left == [0, 0, 0, 0]
