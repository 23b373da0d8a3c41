"""Jobs on Spark Connect: they have no JVM, and reach files and tables through the server."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from sqlq_spark.jobs.queue_to_delta import table_name
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, FAILED_Q, MESSAGE_ID, dumps

from .submit import ROOT, TIMEOUT, delta_rows, environ

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place
    from spark.stand import Queue

pytestmark = pytest.mark.spark

MESSAGES = 300


def flags(**given: object) -> list[str]:
    """Settings as flags; a table of them is a flag that is repeated."""
    pairs = [
        (name, f"{key}={text}" if key else text)
        for name, value in given.items()
        for key, text in (value.items() if isinstance(value, dict) else [("", value)])
    ]
    return [f"--{name.replace('_', '-')}={text}" for name, text in pairs]


def connected(folder: Path, place: Place, *orders: list[str]) -> list[dict[str, Any]]:
    """Run jobs in a session of Spark Connect; gives the totals of each."""
    more = {"SPARK_REMOTE": "local[2]", "SQLQUEUE_URL": place.url}
    more |= {"SQLQUEUE_SOURCE_URL": place.url, "SQLQUEUE_TARGET_URL": place.url}
    environment = environ(more)
    environment["PYTHONPATH"] += f":{ROOT / 'tests'}"
    environment["SPARK_TESTING"] = "1"  # a free port: another test's server may have 15002
    done = subprocess.run(
        [sys.executable, "-m", "jobs.connected", json.dumps(orders)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT * 2,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def numbers(table: Path) -> list[int]:
    """The numbers in the bodies of a table, in their order."""
    return sorted(json.loads(row["body"])["number"] for row in delta_rows(table))


def test_jobs_work_on_spark_connect(queue: Queue, place: Place, tmp_path: Path) -> None:
    """
    Every job but maintenance, and queue_to_delta also with a table for each type.

    A second run of a job finds nothing to do: the server reads the checkpoint and its dispatch log.
    The tables for types are written by a process of the server, which also acknowledges a retry,
    and sends a body that does not fit its schema to an error queue.
    """
    names = ("sent", "relayed", "split", "unfit")
    sent, relayed, split, unfit = (queue.another(name) for name in names)
    for each in (queue, split):
        each.fill(0, MESSAGES)
    control = queue.another("control")
    retry = {"UniqueMessageId": "u-1", "AcknowledgementQueue": control.name}
    retried = dumps({f"ServiceControl.Retry.{name}": text for name, text in retry.items()})
    place.dotnet.send(split.address, retried, b'{"number":%d}' % MESSAGES)
    place.dotnet.send(split.address, dumps({ENCLOSED_MESSAGE_TYPES: "Shop.PlaceOrder"}))
    state = {"stateSchema": place.state}
    source = state | {"maxMessagesPerTrigger": "100"}
    table, tables = tmp_path / "table", tmp_path / "tables"
    columns = {"body": "body", "headers": "to_json(headers)"}
    receive = flags(queues=queue.name, table=table, checkpoint=tmp_path / "1", source=source)
    send = flags(
        table=table, checkpoint=tmp_path / "2", queue=sent.name, sink=state, columns=columns
    )
    relay = flags(
        queues=sent.name,
        targets={sent.name: relayed.name},
        error_queue=queue.name,
        checkpoint=tmp_path / "3",
        source=source,
        sink=state,
    )
    by_type = flags(
        queues=split.name,
        table=tables,
        checkpoint=tmp_path / "4",
        split="true",
        schemas={"Shop.PlaceOrder": "number INT NOT NULL"},
        error_queue=unfit.name,
        acknowledge_retries="true",
        source=state,
    )

    error = queue.another("error")
    for name in ("m-1", "m-2"):
        error.place.dotnet.send(error.address, dumps({MESSAGE_ID: name, FAILED_Q: queue.name}))
    failures = {"error_queue": error.name, "table": tmp_path / "failures", "source": state}
    collect = flags(**failures, checkpoint=tmp_path / "5", sink=state)
    give_back = flags(**failures, mode="retry", ids="m-2", sink=state)
    keep = flags(
        queue=relayed.name, table=tmp_path / "audit", checkpoint=tmp_path / "6", source=source
    )

    totals = connected(
        tmp_path,
        place,
        ["queue_to_delta", *receive],
        ["queue_to_delta", *receive],
        ["delta_to_queue", *send],
        ["delta_to_queue", *send],
        ["relay", *relay],
        ["queue_to_delta", *by_type],
        ["audit_to_delta", *keep],
        ["error_triage", *collect],
        ["error_triage", *give_back],
    )

    counts = [MESSAGES, 0, MESSAGES, 0, MESSAGES, MESSAGES + 2, MESSAGES, 2]
    assert [each["messages"] for each in totals[:-1]] == counts
    assert totals[0]["batches"] == 3
    assert numbers(table) == [*range(MESSAGES)]
    assert sorted(chain(*map(numbers, tables.iterdir()))) == [*range(MESSAGES + 1)]
    typed = delta_rows(tables / table_name("Shop.PlaceOrder"))
    assert sorted(row["number"] for row in typed) == [*range(MESSAGES)]
    assert [control.count(), unfit.count()] == [1, 1]
    assert sent.count() == split.count() == relayed.count() == error.count() == 0
    assert len(delta_rows(tmp_path / "audit")) == MESSAGES
    assert totals[-1]["returned"] == 1
    assert queue.ids() == ["m-2"]
