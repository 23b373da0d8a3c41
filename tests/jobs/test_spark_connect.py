"""Jobs on Spark Connect: they have no JVM, and reach files and tables through the server."""

from __future__ import annotations

import json
import re
import sys
import uuid
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest
from pages.page import blocks
from prometheus_client.parser import text_string_to_metric_families

from jobs import together
from jobs.submit import delta_rows, environ, flags, settings, started
from sqlq_spark.jobs.queue_to_delta import table_name
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, FAILED_Q, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from pathlib import Path

    from spark.stand import Queue

pytestmark = pytest.mark.spark


def test_jobs_work_on_spark_connect(queue: Queue, tmp_path: Path) -> None:
    """
    Every job but maintenance runs, and so do the upserts of the guide.

    A process of the server writes the tables for types, acknowledges a retry, and sends a body
    that does not fit its schema to an error queue. A second run finds nothing to do, because
    the server reads the checkpoint and its dispatch log. A run counts what it moved to its error
    queue itself, not what the run before moved.

    A listener gets the events of a query until its queue is empty, and then its gauges are zero.
    """
    names = ("sent", "relayed", "unfit", "control", "error", "back", "changes", "bad", "heard")
    sent, relayed, unfit, control, error, back, changes, bad, heard = map(queue.another, names)
    retry = {"UniqueMessageId": str(uuid.uuid4()), "AcknowledgementQueue": control.name}
    retried = dumps({f"ServiceControl.Retry.{name}": text for name, text in retry.items()})
    queue.fill(0, 60)
    queue.put(retried, b'{"number":60}')
    queue.put(dumps({ENCLOSED_MESSAGE_TYPES: "Shop.PlaceOrder"}))
    for name in ("m-1", "m-2"):
        error.put(dumps({MESSAGE_ID: name, FAILED_Q: back.name}))
    orders: list[list[str]] = []

    def order(job: str, given: Queue, folder: str, **more: Any) -> None:
        orders.append([job, *flags(**settings(job, given, tmp_path / folder, **more))])

    typed = {"Shop.PlaceOrder": "number INT NOT NULL"}
    table = tmp_path / "1" / "table" / table_name("Shop.PlaceOrder")
    columns = {"body": "body", "headers": "to_json(headers)"}
    order(
        "queue_to_delta", queue, "1", most=40, split="true", schemas=typed, error_queue=unfit.name
    )
    for _ in range(2):
        order("delta_to_queue", sent, "2", table=table, columns=columns)
    sent.put("no json")
    for _ in range(2):
        order("relay", sent, "3", targets={sent.name: relayed.name}, error_queue=bad.name)
    order("audit_to_delta", relayed, "4")
    order("error_triage", queue, "5")
    order("error_triage", queue, "5", mode="retry", ids="m-2")

    heard.fill(0, 5)
    limited = json.dumps({**heard.options, "maxMessagesPerTrigger": "2"})
    orders.append(["listen", str(tmp_path), limited])

    # a free port: another test's server may have 15002
    environment = environ(SPARK_REMOTE="local[2]", SPARK_TESTING="1")
    orders.insert(0, upserts(changes, bad, tmp_path))
    words = [sys.executable, together.__file__, json.dumps([orders])]
    with started(words, tmp_path, environment) as running:
        ended = running.ended()

    assert ended.code == 0, f"{ended.out}\n{ended.log[-3000:]}"
    totals = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    totals.sort(key=itemgetter("job"))  # those of one job stay in their order
    assert [each.get("messages", "retry") for each in totals] == [
        *(60, 60, 0),
        *(2, "retry"),
        *(62, 60, 0),
    ]
    assert [totals[5]["batches"], totals[4]["returned"]] == [2, 1]
    assert "failed" not in totals[5]  # a process of the server counted, not this one
    relays = [(each["failed"], each["error_queue"]) for each in totals[6:]]
    assert relays == [(1, bad.name), (0, bad.name)]
    assert bad.count() == 1
    assert sorted(row["number"] for row in delta_rows(table)) == [*range(60)]
    (other,) = delta_rows(table.with_name("other"))
    assert other["body"] == b'{"number":60}'
    assert [control.count(), unfit.count()] == [1, 1]
    assert sent.count() == relayed.count() == error.count() == 0
    assert len(delta_rows(tmp_path / "4" / "table")) == 60
    assert back.ids() == ["m-2"]
    [row] = delta_rows(tmp_path / "orders")
    assert [row["Version"], changes.count()] == [3, 0]
    gauges_fell(json.loads((tmp_path / "pages.json").read_text(encoding="utf-8")))


def upserts(changes: Queue, errors: Queue, folder: Path) -> list[str]:
    """Send changes of one order, and return the program of the guide that receives them."""
    for version in (1, 3, 2):
        changes.put("{}", b'{"OrderId":1,"Version":%d}' % version)
    [block] = blocks("docs/guide/upserts.md")
    code = re.sub("DATABASE = .*", f"DATABASE = {changes.options}", block.text)
    code = code.replace("/lake/", f"{folder}/").replace('"Shop.Orders"', "")
    return ["page", code.replace('"error"', repr(errors.name))]


def gauges_fell(pages: list[str]) -> None:
    """Check what a listener exported of a query that received 5 messages, 2 in a batch."""
    exported = [read_metrics(page) for page in pages]
    last = exported[-1]
    assert 3 in [each.get("backlog") for each in exported]
    assert [last[each] for each in ("backlog", "oldest_seconds", "batch_seconds")] == [0, 0, 0]
    assert [last[each] for each in ("rows_total", "running", "failed")] == [5, 0, 0]


def read_metrics(page: str) -> dict[str, float]:
    """Read the metrics of a query and its one queue, as Prometheus reads them."""
    return {
        sample.name.removeprefix("sqlqueue_query_"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
