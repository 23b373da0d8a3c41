"""Jobs on Spark Connect: no JVM of their own, files and tables by way of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from spark.stand import Queue

from .submit import ROOT, TIMEOUT, delta_rows, environ

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

pytestmark = pytest.mark.spark

MESSAGES = 300


def flags(**given: object) -> list[str]:
    """Settings as flags; a table of them is a flag that is repeated."""
    found = []
    for name, value in given.items():
        pairs = value.items() if isinstance(value, dict) else []
        texts = [f"{key}={text}" for key, text in pairs] if pairs else [str(value)]
        found += [f"--{name.replace('_', '-')}={text}" for text in texts]
    return found


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
    Queue to table, table to queue, queue to queue: each message once.

    A second run of a job finds nothing to do: the server reads the checkpoint and its dispatch log.
    """
    sent, relayed = Queue(place, "sent"), Queue(place, "relayed")
    sent.create()
    relayed.create()
    queue.fill(0, MESSAGES)
    state = {"stateSchema": place.state}
    source = state | {"maxMessagesPerTrigger": "100"}
    table = tmp_path / "table"
    received, sending, relaying = (tmp_path / name for name in ("received", "sending", "relaying"))
    columns = {"body": "body", "headers": "to_json(headers)"}
    receive = flags(queues=queue.name, table=table, checkpoint=received, source=source)
    send = flags(table=table, checkpoint=sending, queue=sent.name, sink=state, columns=columns)
    relay = flags(
        queues=sent.name,
        targets={sent.name: relayed.name},
        error_queue=queue.name,
        checkpoint=relaying,
        source=source,
        sink=state,
    )

    totals = connected(
        tmp_path,
        place,
        ["queue_to_delta", *receive],
        ["queue_to_delta", *receive],
        ["delta_to_queue", *send],
        ["delta_to_queue", *send],
        ["relay", *relay],
    )

    assert [each["messages"] for each in totals] == [MESSAGES, 0, MESSAGES, 0, MESSAGES]
    assert totals[0]["batches"] == 3
    assert numbers(table) == [*range(MESSAGES)]
    assert queue.count() == sent.count() == 0
    assert relayed.count() == MESSAGES


def test_a_table_for_each_type_on_spark_connect(queue: Queue, place: Place, tmp_path: Path) -> None:
    """Written by a process of the server, which reads the stream's id from the checkpoint."""
    queue.fill(0, MESSAGES)
    given = flags(
        queues=queue.name,
        table=tmp_path / "split",
        checkpoint=tmp_path / "splitting",
        split="true",
        most_types=1,
        source={"stateSchema": place.state},
    )

    totals = connected(tmp_path, place, ["queue_to_delta", *given])

    parts = [numbers(each) for each in (tmp_path / "split").iterdir()]
    assert totals[0]["messages"] == MESSAGES
    assert sorted(number for part in parts for number in part) == [*range(MESSAGES)]
    assert queue.count() == 0
