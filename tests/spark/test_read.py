"""Browsing: `spark.read` shows the messages that wait, and deletes none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.sql import datasource
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import message_ids, numbered
from sqlq_spark.datasource.browse import BrowseReader
from sqlq_spark.options import SourceOptions

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

COLUMNS = (
    "id string, correlationId string, replyToAddress string, expires timestamp, "
    "headers map<string,string>, corruptHeaders string, body binary, seq bigint, queue string"
)
PUSHDOWN = hasattr(datasource, "Filter")  # from Spark 4.1
FINEST = {"postgresql": 123_456, "sqlserver": 120_000}  # microseconds that `expires` can hold


def test_columns_are_the_documented_ones(queue: SparkQueue) -> None:
    """Names, order and types of a read, for both header formats; an empty queue has no rows."""
    empty = queue.reader().load()
    as_json = queue.reader(headersFormat="json").load().schema

    assert empty.schema == queue.spark.createDataFrame([], COLUMNS).schema
    assert empty.collect() == []
    assert as_json["headers"].dataType.simpleString() == "string"
    assert "corruptHeaders" not in as_json.names


def test_messages_of_net_endpoints_become_columns(
    queue: SparkQueue, wire: list[tuple[str, bytes]]
) -> None:
    """The values are those that a JSON parser finds; headersFormat=json gives the raw text."""
    for headers, body in wire:
        queue.put(headers, body)
    parsed = [json.loads(headers) for headers, _ in wire]
    correlated = [each.get("NServiceBus.CorrelationId") for each in parsed]
    expected = [
        (parent, each.get("NServiceBus.ReplyToAddress"), None, each, None, body, seq, queue.name)
        for seq, (parent, each, (_, body)) in enumerate(
            zip(correlated, parsed, wire, strict=True), 1
        )
    ]

    read = queue.reader().load().orderBy("seq")
    raw = queue.reader(headersFormat="json").load().orderBy("seq").collect()

    schema = COLUMNS.removeprefix("id string, ")
    assert_df_equality(read.drop("id"), queue.spark.createDataFrame(expected, schema))
    event = next(row.headers for row in read.collect() if "emoji" in row.headers)
    assert event["emoji"] == "\N{ROCKET}"
    assert event["keyWithNull"] is None
    assert event["key/with/slashes"] == "a/b"
    assert event["newline"] == "line1\r\nline2"
    assert [row.headers for row in raw] == [headers for headers, _ in wire]
    assert [row.correlationId for row in raw] == correlated


def test_expires_is_the_rows_utc_time(queue: SparkQueue) -> None:
    """The table's column is a timestamp without zone, in UTC; expired messages are shown too."""
    moment = datetime(2026, 6, 30, 17, 5, 9, FINEST[queue.dotnet.dialect], UTC)
    queue.put("{}", expires=moment.replace(tzinfo=None))

    (row,) = queue.reader().load().select(F.unix_micros("expires").alias("at")).collect()

    assert timedelta(microseconds=row.at) == moment - datetime(1970, 1, 1, tzinfo=UTC)


def test_browsing_deletes_nothing_and_repeats(queue: SparkQueue) -> None:
    """A frame may be evaluated many times; no state tables are needed."""
    queue.fill(0, 500)
    frame = queue.reader(stateSchema="absent", maxConcurrency=3).load()

    first, again = frame.collect(), frame.collect()

    assert frame.rdd.getNumPartitions() == 3
    assert first == again
    assert message_ids(first) == numbered(0, 500)
    assert [frame.count(), frame.limit(7).count(), len(frame.take(3))] == [500, 7, 3]
    assert queue.ids() == numbered(0, 500)


def test_a_schema_of_fewer_columns_is_read(queue: SparkQueue) -> None:
    """The database sends only the columns of the user's schema; others raise an error."""
    queue.fill(0, 5)
    queue.put('["poison"]')

    seqs = queue.reader().schema("seq bigint").load()
    pair = queue.reader().schema("body binary, seq bigint").load().orderBy("seq")

    assert seqs.columns == ["seq"]
    assert [row.seq for row in seqs.orderBy("seq").collect()] == [1, 2, 3, 4, 5, 6]
    assert pair.first() == (bytearray(b'{"number":0}'), 1)
    for schema in ("sequence bigint", "seq int", "headers string", "seq bigint, body string"):
        with pytest.raises(Exception, match="the DataFrame cannot be read: ") as refused:
            queue.reader().schema(schema).load().collect()
        wrong = schema.rpartition(", ")[2]
        assert f"a read has no column {wrong}; choose from {COLUMNS}" in str(refused.value)


@pytest.mark.parametrize(
    ("condition", "seqs", "left"),
    [
        ("seq > 90 AND seq <= 93", [91, 92, 93], False),
        ("seq BETWEEN 5 AND 7 AND queue = '{queue}'", [5, 6, 7], False),
        ("queue IN ('{queue}', 'absent') AND seq < 3", [1, 2], False),
        ("queue = 'absent'", [], False),
        ("seq IN (2, 4)", [2, 4], True),
        ("seq >= 99 AND corruptHeaders IS NULL", [99, 100], True),
    ],
)
def test_a_browse_applies_filters_of_seq_and_queue(
    queue: SparkQueue,
    capsys: pytest.CaptureFixture[str],
    condition: str,
    seqs: list[int],
    left: bool,  # noqa: FBT001 - whether Spark filters too
) -> None:
    """Where Spark pushes them; with and without that the rows are the same."""
    queue.fill(0, 100)
    condition = condition.format(queue=queue.name)
    pushed = "spark.sql.python.filterPushdown.enabled"
    browsed = queue.reader(maxConcurrency=4).load().where(condition).orderBy("seq")
    assert [row.seq for row in browsed.collect()] == seqs
    try:
        queue.spark.conf.set(pushed, "true")
        browsed = queue.reader(maxConcurrency=4).load().where(condition).orderBy("seq")
        capsys.readouterr()
        browsed.explain()
        plan = capsys.readouterr().out

        assert [row.seq for row in browsed.collect()] == seqs
        assert ("Filter" in plan.replace("RuntimeFilters", "")) == (left or not PUSHDOWN)
    finally:
        queue.spark.conf.unset(pushed)


def test_a_limit_reads_pages_of_one_task_until_spark_has_its_rows(queue: SparkQueue) -> None:
    """The lowest seqs; a page is read only when Spark asks for more."""
    queue.fill(0, 200)
    options = SourceOptions.parse(queue.options | {"maxConcurrency": "2"})
    reader = BrowseReader(options, queue.reader().load().schema)
    first, second = reader.partitions()
    assert (first.first, first.stop, second.stop) == (1, 101, 201)

    asked = reader.read(first)
    pages = [next(asked).column("seq").to_pylist()]
    queue.dba.empty(queue.address)

    assert pages + [each.column("seq").to_pylist() for each in asked] == [list(range(1, 51))]
    queue.fill(0, 200)
    found = queue.reader(maxConcurrency=2).load().limit(10).collect()
    assert message_ids(found) == numbered(0, 10)


def test_poison_is_shown_with_its_text(queue: SparkQueue) -> None:
    """Headers that cannot be parsed are null, and corruptHeaders has their text."""
    queue.fill(0, 1)
    poison = ['["array"]', "null", "not json", '{"number":1}', '{"deep":{"a":"b"}}', '{"a":"b",}']
    for text in poison:
        queue.put(text)

    read = queue.reader().load().orderBy("seq").collect()

    assert [row.headers is None for row in read] == [False, *[True] * len(poison)]
    assert [row.corruptHeaders for row in read] == [None, *poison]
