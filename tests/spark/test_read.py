"""Browsing: `spark.read` sees what waits and takes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from servers import only

from spark.stand import message_ids, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.stand import Queue

pytestmark = pytest.mark.spark

COLUMNS = (
    "id string, correlationId string, replyToAddress string, expires timestamp, "
    "headers map<string,string>, corruptHeaders string, body binary, seq bigint, queue string"
)


def test_columns_are_the_documented_ones(spark: SparkSession, queue: Queue) -> None:
    """Names, order and types of a read, for both header formats."""
    schema = queue.reader(spark).load().schema
    as_json = queue.reader(spark, headersFormat="json").load().schema

    assert schema == spark.createDataFrame([], COLUMNS).schema
    assert as_json["headers"].dataType.simpleString() == "string"
    assert "corruptHeaders" not in as_json.names


def test_messages_of_net_endpoints_become_columns(
    spark: SparkSession, queue: Queue, wire: list[tuple[str, bytes]]
) -> None:
    """Whatever writer made them: the values are what an independent JSON stream finds."""
    for headers, body in wire:
        queue.put(headers, body)
    expected = [
        (
            json.loads(headers).get("NServiceBus.CorrelationId"),
            json.loads(headers).get("NServiceBus.ReplyToAddress"),
            None,
            json.loads(headers),
            None,
            body,
            seq,
            queue.name,
        )
        for seq, (headers, body) in enumerate(wire, start=1)
    ]

    read = queue.reader(spark).load().orderBy("seq")

    schema = COLUMNS.removeprefix("id string, ")
    assert_df_equality(read.drop("id"), spark.createDataFrame(expected, schema))
    event = next(row.headers for row in read.collect() if "emoji" in row.headers)
    assert event["emoji"] == "\N{ROCKET}"
    assert event["keyWithNull"] is None
    assert event["key/with/slashes"] == "a/b"
    assert event["newline"] == "line1\r\nline2"


def test_headers_as_json_are_the_text_of_the_row(
    spark: SparkSession, queue: Queue, wire: list[tuple[str, bytes]]
) -> None:
    """headersFormat=json hands over the raw text, not a copy of its meaning."""
    for headers, body in wire:
        queue.put(headers, body)

    read = queue.reader(spark, headersFormat="json").load().orderBy("seq").collect()

    assert [row.headers for row in read] == [headers for headers, _ in wire]
    assert [row.correlationId for row in read] == [
        json.loads(headers).get("NServiceBus.CorrelationId") for headers, _ in wire
    ]


FINE = {"postgresql": 123_456, "sqlserver": 120_000}  # microseconds


def test_expires_is_the_rows_utc_time(spark: SparkSession, queue: Queue) -> None:
    """The column is a timestamp without zone in UTC; expired messages are shown too."""
    # as fine as the column can hold
    moment = datetime(2026, 6, 30, 17, 5, 9, FINE[queue.dotnet.dialect], UTC)
    queue.put("{}", expires=moment.replace(tzinfo=None))

    (row,) = queue.reader(spark).load().select(F.unix_micros("expires").alias("at")).collect()

    assert timedelta(microseconds=row.at) == moment - datetime(1970, 1, 1, tzinfo=UTC)


def test_browsing_deletes_nothing_and_repeats(spark: SparkSession, queue: Queue) -> None:
    """A frame may be evaluated many times; no state tables are needed."""
    queue.fill(0, 500)
    frame = queue.reader(spark, stateSchema="absent", maxConcurrency=3).load()

    first, again = frame.collect(), frame.collect()

    assert frame.rdd.getNumPartitions() == 3
    assert first == again
    assert message_ids(first) == numbered(0, 500)
    assert [frame.count(), frame.limit(7).count(), len(frame.take(3))] == [500, 7, 3]
    assert queue.ids() == numbered(0, 500)


@only("postgresql", "streams that see what others hold")
def test_browsing_waits_for_no_one(spark: SparkSession, queue: Queue) -> None:
    """Rows that a consumer holds locked are seen, as they are still there."""
    queue.fill(0, 10)

    with queue.held(range(1, 11)):
        seen = queue.reader(spark, queryTimeout="2s").load().count()

    assert seen == 10


def test_an_empty_queue_reads_as_an_empty_frame(spark: SparkSession, queue: Queue) -> None:
    """No partition at all."""
    assert queue.reader(spark).load().collect() == []


def test_a_schema_of_fewer_columns_prunes(spark: SparkSession, queue: Queue) -> None:
    """The user's schema is the columns wanted; the database then sends no headers or bodies."""
    queue.fill(0, 5)
    queue.put('["poison"]')

    seqs = queue.reader(spark).schema("seq bigint").load()
    pair = queue.reader(spark).schema("body binary, seq bigint").load().orderBy("seq")

    assert seqs.columns == ["seq"]
    assert [row.seq for row in seqs.orderBy("seq").collect()] == [1, 2, 3, 4, 5, 6]
    assert pair.first() == (bytearray(b'{"number":0}'), 1)


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("sequence bigint", "sequence bigint"),
        ("seq int", "seq int"),
        ("headers string", "headers string"),
        ("seq bigint, body string", "body string"),
    ],
)
def test_a_schema_of_other_columns_is_refused(
    spark: SparkSession, queue: Queue, schema: str, found: str
) -> None:
    """The error lists what there is."""
    with pytest.raises(Exception, match="DataFrame") as refused:
        queue.reader(spark).schema(schema).load().collect()

    expected = f"the DataFrame cannot be read: a read has no column {found}; choose from {COLUMNS}"
    assert expected in str(refused.value)


def test_poison_is_shown_beside_the_good(spark: SparkSession, queue: Queue) -> None:
    """Headers that do not parse are null, their text is in corruptHeaders."""
    queue.fill(0, 1)
    poison = ['["array"]', "null", "not json", '{"number":1}', '{"deep":{"a":"b"}}', '{"a":"b",}']
    for text in poison:
        queue.put(text)

    read = queue.reader(spark).load().orderBy("seq").collect()

    assert [row.headers is None for row in read] == [False, *[True] * len(poison)]
    assert [row.corruptHeaders for row in read] == [None, *poison]
