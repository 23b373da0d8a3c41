"""queue_to_delta and delta_to_queue: killed and started again, each message is there once."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from spark.stand import numbered

from jobs.submit import delta_rows, module
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.wire.headers import MESSAGE_ID, dumps

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from spark.stand import Queue

    from jobs.submit import Desk

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_queue_to_delta_killed_between_table_and_error_queue(queue: Queue, desk: Desk) -> None:
    """
    One table; its columns have the values of the headers and of the body.

    The second batch is in the table, and its body that does not fit is not yet in the error queue.
    """
    error = queue.another("error")
    settings = {
        "queues": queue.name,
        "table": str(desk.folder / "table"),
        "checkpoint": str(desk.folder / "checkpoint"),
        "error_queue": error.name,
        "schema": "number INT NOT NULL",
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": 200},
    }
    queue.fill(0, 399)
    queue.put(dumps({MESSAGE_ID: "unfit"}), b'{"number":"x"}')
    queue.fill(399, 500)
    queue.put("no json")
    queue.dotnet.send(queue.address, lives=-3_600_000)
    second = desk.folder / "table" / "_delta_log" / f"{1:020}.json"

    desk.killed_when(second.exists, "queue_to_delta", settings)
    before = error.count()
    ended = desk.submit("queue_to_delta", settings)

    rows = delta_rows(desk.folder / "table")
    first = next(row for row in rows if row["seq"] == 1)
    assert ended.code == 0, ended
    assert sorted(row["number"] for row in rows) == [*range(500)]
    assert before == 0
    poison, unfit = sorted((str(row.headers) for row in error.dotnet.rows(error.address)), key=len)
    assert poison == "no json"
    assert json.loads(unfit)[MESSAGE_ID] == "unfit"
    assert [queue.count(), queue.state("receipt")] == [0, 0]
    assert first["messageType"] == "Shop.PlaceOrder"
    assert first["sentAt"] == datetime(2026, 6, 30, 17, 5, 9, 123456)  # noqa: DTZ001 - as stored


def add_orders(spark: SparkSession, table: Path, first: int, stop: int) -> None:
    """Add orders to a table with a change feed, as one commit of one file."""
    rows = spark.range(first, stop, numPartitions=1).selectExpr(
        "id AS number", "concat('m-', id) AS name"
    )
    writer = rows.write.format("delta").mode("append")
    writer.option("delta.enableChangeDataFeed", "true").save(str(table))


STATED = ("EnclosedMessageTypes", "ContentType")


def test_delta_to_queue_killed_between_two_batches(
    spark: SparkSession, queue: Queue, desk: Desk
) -> None:
    """The change feed, batch by batch; rows that were added after the kill are sent too."""
    table = desk.folder / "orders"
    for first in range(0, 600, 200):
        add_orders(spark, table, first, first + 200)
    settings = {
        "table": str(table),
        "checkpoint": str(desk.folder / "checkpoint"),
        "changes": "feed",
        "queue": queue.name,
        "columns": {
            "body": "concat_ws(' ', number, _change_type, _commit_version)",
            "id": "name",
            "headers": "map('tenant', 'blue')",
        },
        "delta": {"startingVersion": 0, "maxFilesPerTrigger": 1},
        "sink": {"stateSchema": queue.place.state, "messageType": "Shop.OrderChanged"},
    }

    desk.killed_when(queue.count, "delta_to_queue", settings)
    before = queue.count()
    add_orders(spark, table, 600, 700)
    ended = desk.run("delta_to_queue", settings)

    rows = queue.rows()
    assert ended.code == 0, ended
    assert (desk.folder / "checkpoint" / "sqlqueue_target").exists()
    assert before < 600
    assert ended.totals["messages"] <= 700
    assert queue.state("staging") == 0
    bodies = [f"{number} insert {number // 200}" for number in range(700)]
    assert sorted(body.decode() for _, body in rows) == sorted(bodies)
    assert {headers["NServiceBus.MessageId"] for headers, _ in rows} == {*numbered(0, 700)}
    names = ("tenant", *(f"NServiceBus.{each}" for each in STATED))
    assert {tuple(headers[each] for each in names) for headers, _ in rows} == {
        ("blue", "Shop.OrderChanged", "application/json")
    }


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("ReadChangeFeed", 'set changes = "feed"'),
        ("readChangeData", 'set changes = "feed"'),
        ("ignoreChanges", "it would send rows again"),
    ],
)
def test_an_option_that_sends_rows_again_is_refused(option: str, expected: str) -> None:
    """A row as it was before its change, or one that another row's change wrote again."""
    kind = module("delta_to_queue").Settings
    given = {"url": "postgresql:///", "table": "t", "checkpoint": "c", "queue": "q"}

    with pytest.raises(BadSettings, match=f"setting {option} in .delta.: {expected}"):
        kind(**given, delta={option: "true"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "application/json"),
        ({"columns": {"body": "to_json(struct(id AS Id))"}}, "application/json"),
        ({"sink": {"CONTENTTYPE": "text/xml"}}, "text/xml"),
    ],
)
def test_the_content_type_is_json_unless_the_settings_name_another(
    given: dict[str, Any], expected: str
) -> None:
    """Also of a body of the settings' own."""
    kind = module("delta_to_queue").Settings
    settings = kind(url="postgresql:///s", table="t", checkpoint="c", queue="q", **given)

    (options,) = settings.options()

    assert options.content_type == expected
