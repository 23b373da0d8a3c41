"""queue_to_delta with schemas: typed columns, and bodies that do not fit in the error queue."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows, module

from sqlq_spark.jobs.queue_to_delta import table_name
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, EXCEPTION_INFO, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

DDL = """
    number INT NOT NULL, name STRING, total DECIMAL(10, 2), due TIMESTAMP, day DATE,
    ratio DOUBLE, customer STRUCT<id: BIGINT NOT NULL, tags: ARRAY<STRING>>,
    items ARRAY<STRUCT<sku: STRING NOT NULL, count: INT>>, prices MAP<STRING, INT>
"""
BOM = "\ufeff".encode()

GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"number":1}', {"number": 1, "name": None}),
    (b'{"number":2,"name":"a","more":{"x":[1]}}', {"number": 2, "name": "a"}),
    (BOM + b' {"number":3} \n', {"number": 3}),
    (b'{"number":4,"total":12.5,"day":"2026-01-02"}', {"total": Decimal("12.50")}),
    (b'{"number":5,"day":"2026-01-02"}', {"day": date(2026, 1, 2)}),
    (
        b'{"number":6,"due":"2026-01-02T03:04:05.123+01:00"}',
        {"due": datetime(2026, 1, 2, 2, 4, 5, 123000)},  # noqa: DTZ001 - as stored
    ),
    (b'{"number":7,"name":8,"customer":null}', {"name": "8", "customer": None}),
    (
        b'{"number":8,"customer":{"id":9,"tags":["x"]},"items":[],"prices":{"a":1}}',
        {"customer": {"id": 9, "tags": ["x"]}, "items": [], "prices": [("a", 1)]},
    ),
    (b'{"number":1,"number":9}', {"number": 9}),
    (b'{"number":9,"name":"7e123456","total":1e2}', {"name": "7e123456", "total": Decimal(100)}),
    (b'{"number":10,"other":"7e123456"}', {"number": 10}),
]
EMPTY, UTF8, OBJECT = "empty", "not UTF-8", "not one JSON object"
BAD: list[tuple[bytes | None, str]] = [
    (None, EMPTY),
    (b"", EMPTY),
    (b"  ", OBJECT),
    (b"null", OBJECT),
    (b"1", OBJECT),
    (b'[{"number":1}]', OBJECT),
    (b'{"number":1', OBJECT),
    (b'{"number":1} more', OBJECT),
    (b'{"number":1}{"number":2}', OBJECT),
    (b'{"number":1},{"number":2}', OBJECT),
    (b'{"number":1}}', OBJECT),
    (b'{"number":1}]', OBJECT),
    (b'{"number":1},"body":{"number":2}', OBJECT),
    (b'{"number":1,"z":' + b"[" * 3000 + b"]" * 3000 + b"}", OBJECT),
    (b'{"number":' + b"9" * 2000 + b"}", OBJECT),
    (b'{"number":1,"name":"\xff"}', UTF8),
    ('{"number":1}'.encode("utf-16"), UTF8),
    (b'{"number":"1"}', "number is not int"),
    (b'{"number":99999999999}', "number is not int"),
    (b'{"number":1,"total":123456789012.5}', "total is not decimal(10,2)"),
    (b'{"number":1,"total":1e100000000}', "an exponent of four digits or more"),
    (b'{"number":1,"total":1e-100000000}', "an exponent of four digits or more"),
    (b'{"number":1,"total":1e100000000,"total":1}', "an exponent of four digits or more"),
    (b'{"number":1,"total":"1e100000000"}', "total is not decimal(10,2)"),
    (b'{"number":1,"day":"soon","due":"later"}', "due is not timestamp, day is not date"),
    (b'{"number":1,"customer":{"id":"x"}}', "customer is not struct<"),
    (b'{"number":1,"prices":{"a":"b"}}', "prices is not map<string,int>"),
    (b"{}", "number is missing or null"),
    (b'{"Number":1}', "number is missing or null"),
    (b'{"number":null}', "number is missing or null"),
    (b'{"number":1,"customer":{}}', "customer.id is missing or null"),
    (b'{"number":1,"items":[{"sku":"a"},{"count":1}]}', "items[].sku is missing or null"),
]


def typed(queue: SparkQueue, **more: Any) -> tuple[Any, Any]:
    """The job's module, and its settings with an error queue."""
    made = module("queue_to_delta")
    settings = made.Settings(
        url=queue.place.url,
        queues=queue.name,
        table=str(queue.folder / "table"),
        checkpoint=str(queue.folder / "checkpoint"),
        error_queue=queue.beside("error").name,
        source={"stateSchema": queue.place.state},
        **more,
    )
    return made, settings


def put(queue: SparkQueue, body: bytes | None, name: str, kind: str = "Shop.Placed") -> None:
    """Send a message with an id and a type."""
    queue.put(dumps({MESSAGE_ID: name, ENCLOSED_MESSAGE_TYPES: kind}), body)


def reasons(queue: SparkQueue) -> dict[str, str]:
    """The reason of each message of an error queue, by its id."""
    name = f"{EXCEPTION_INFO}Message"
    return {str(each[MESSAGE_ID]): str(each[name]) for each, _ in queue.rows()}


def test_bodies_become_columns_or_go_to_the_error_queue(queue: SparkQueue) -> None:
    """Each with the reason; a message that fails has its body, its headers and its id."""
    error = queue.another("error")
    made, settings = typed(queue, schema=DDL)
    for at, (body, _) in enumerate([*GOOD, *BAD]):
        put(queue, body, f"m-{at}")

    totals = made.run(queue.spark, settings)

    rows = sorted(delta_rows(queue.folder / "table"), key=lambda row: row["seq"])
    assert totals["messages"] == len(GOOD) + len(BAD)
    assert [row["body"] for row in rows] == [body for body, _ in GOOD]
    for row, (_, expected) in zip(rows, GOOD, strict=True):
        assert {name: row[name] for name in expected} == expected
    assert not {"unfitBody", "typedBody0", "acknowledgement"} & rows[0].keys()
    failed = reasons(error)
    assert sorted(failed) == sorted(f"m-{len(GOOD) + at}" for at in range(len(BAD)))
    for at, (body, words) in enumerate(BAD):
        assert words in failed[f"m-{len(GOOD) + at}"], body
    headers = error.rows()[0][0]
    assert headers["NServiceBus.FailedQ"] == queue.name
    assert headers[ENCLOSED_MESSAGE_TYPES] == "Shop.Placed"
    assert headers[f"{EXCEPTION_INFO}ExceptionType"] == "sqlq_spark.UnfitBody"
    assert sorted(body for _, body in error.rows()) == sorted(body or b"" for body, _ in BAD)


def test_a_run_that_ends_between_table_and_error_queue_is_finished_by_the_next(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that ends after both; a retry that fails again is not acknowledged."""
    error, control = queue.another("error"), queue.another("ServiceControl")
    made, settings = typed(queue, schema="number INT NOT NULL")
    retry = {"UniqueMessageId": "u-1", "AcknowledgementQueue": control.name}
    returned = {f"ServiceControl.Retry.{name}": text for name, text in retry.items()}
    queue.fill(0, 20)
    queue.put(dumps({MESSAGE_ID: "bad", **returned}), b'{"number":"x"}')

    def end(*_: object, **__: object) -> str:
        ended.append(error.count())
        reason = "the end"
        raise RuntimeError(reason)

    ended: list[int] = []
    # the name of the write to the error queue, and what comes after it
    for place, name in ((made.bodies, "reason"), (made.table_writer, "acknowledge")):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, end)
            with pytest.raises(Exception, match="the end"):
                made.run(queue.spark, settings)
    made.run(queue.spark, settings)

    numbers = sorted(row["number"] for row in delta_rows(queue.folder / "table"))
    assert ended == [0, 1]
    assert numbers == [*range(20)]
    assert reasons(error) == {"bad": "the body does not fit: number is not int"}
    assert [queue.count(), control.count()] == [0, 0]


def test_each_type_has_its_schema(queue: SparkQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A type that has one always gets a table; one without has the columns of a message.

    A field whose name the table has already gets another.
    """
    error, placed = queue.another("error"), "number INT,\n  Id STRING"
    schemas = {"Shop.Placed": placed, "Shop.Moved": placed, "Shop.Paid": "total INT"}
    names = {"Shop.Placed": "orders", "Shop.Moved": "orders"}
    made, settings = typed(queue, split=True, schemas=schemas, names=names)
    monkeypatch.setattr(made, "MOST_TYPES", 1)
    for at, (kind, body) in enumerate(
        [
            ("Shop.Placed, Shop, Version=1.0.0.0;Shop.IEvent", b'{"number":1,"Id":"a"}'),
            ("Shop.Moved", b'{"number":2}'),
            ("Shop.Paid", b'{"total":3}'),
            ("Shop.Paid", b'{"total":"x"}'),
            ("Shop.Moved", b"<xml/>"),
            ("Shop.Free", b"<xml/>"),
            ("Shop.Free", b"<xml/>"),
            ("Shop.Rare", b""),
        ]
    ):
        put(queue, body, f"m-{at}", kind)

    made.run(queue.spark, settings)

    tables = {each.name: delta_rows(each) for each in (queue.folder / "table").iterdir()}
    orders = sorted(tables["orders"], key=lambda row: row["seq"])
    assert [(row["number"], row["body_Id"]) for row in orders] == [(1, "a"), (2, None)]
    assert [row["total"] for row in tables[table_name("Shop.Paid")]] == [3]
    assert [row["body"] for row in tables[table_name("Shop.Free")]] == [b"<xml/>"] * 2
    assert "number" not in tables[table_name("Shop.Free")][0]
    assert [row["messageType"] for row in tables["other"]] == ["Shop.Rare"]
    assert len(tables) == 4
    assert set(reasons(error)) == {"m-3", "m-4"}
    assert "total is not int" in reasons(error)["m-3"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schema": "number INTT"}, "setting schema is 'number INTT': expected DDL"),
        ({"schema": "number INT,,"}, "setting schema is 'number INT,,': expected DDL"),
        ({"schema": "INT"}, "expected DDL, for example number INT"),
        ({"schema": "a CHAR(5)"}, "expected DDL, for example number INT"),
        ({"schema": "a INT, A INT"}, "setting schema has a column twice: a, A. Names are not case"),
        ({"schema": "Id INT, body_id INT"}, "setting schema has a column twice: body_Id, body_id"),
        (
            {"split": True, "schemas": {"Shop.A": "a INT", "Shop.B": "b BAD"}},
            "setting Shop.B in [schemas] is 'b BAD'",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_the_start(
    queue: SparkQueue, given: dict[str, Any], expected: str
) -> None:
    """Before the stream: nothing is received."""
    queue.another("error")
    queue.fill(0, 1)
    made, settings = typed(queue, **given)

    with pytest.raises(BadSettings) as error:
        made.run(queue.spark, settings)

    assert expected in str(error.value)
    assert queue.count() == 1


def test_a_dry_run_shows_the_columns(queue: SparkQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """And looks at the error queue."""
    made = module("queue_to_delta")
    given = {
        "url": queue.place.url,
        "queues": queue.name,
        "table": str(queue.folder / "table"),
        "checkpoint": str(queue.folder / "checkpoint"),
        "error-queue": queue.beside("error").name,
        "schema": "number INT, Body INT",
        "source": f"stateSchema={queue.place.state}",
    }
    words = ["--dry-run", *(f"--{name}={text}" for name, text in given.items())]

    absent = made.main.main(words)
    queue.another("error")
    ended = made.main.main(words)

    said = capsys.readouterr().out
    assert (absent, ended) == (3, 0)
    assert "receivedAt timestamp, number int, body_Body int" in said
    assert json.loads(said.splitlines()[-1])["dryRun"] is True
