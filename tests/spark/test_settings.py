"""Settings of the session that change what a DDL text, an SQL text or a cast means in Spark."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from servers import only
from wire import messages

from sqlq_spark.functions import (
    acknowledge_retries,
    audit,
    deliver_at,
    fail,
    failure,
    forward,
    header,
    is_retried,
    message_type,
    message_types,
    publish,
    reply,
    retry_later,
    return_to_source,
    send,
    sent_at,
)
from sqlq_spark.jobs import bodies
from sqlq_spark.jobs.audit_to_delta import audit_rows
from sqlq_spark.jobs.error_triage import failures
from sqlq_spark.wire.headers import dumps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

# settings that do not contradict one another are tried together
SETTINGS = [
    {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.caseSensitive": "true",
        "spark.sql.legacy.json.allowEmptyString.enabled": "true",
        "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
    },
    {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.interval.enabled": "true",
        "spark.sql.legacy.sizeOfNull": "true",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
    },
    {
        "spark.sql.preserveCharVarcharTypeInfo": "true",
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    },
    {
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
    },
]
NOW = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z"
COLUMNS = [
    ("id", "string"),
    ("correlationId", "string"),
    ("replyToAddress", "string"),
    ("expires", "timestamp"),
    ("headers", "map<string,string>"),
    ("corruptHeaders", "string"),
    ("body", "binary"),
    ("seq", "bigint"),
    ("queue", "string"),
]
HEADERS = {
    "NServiceBus.MessageId": "m",
    "NServiceBus.EnclosedMessageTypes": "Shop.Placed, Shop;Shop.Event, Shop",
    "NServiceBus.ReplyToAddress": '"public"."answers"',
    "NServiceBus.TimeSent": "2026-06-30 17:05:09:123456 Z",
    "NServiceBus.DeliverAt": "2026-06-30 18:05:09:123456 Z",
    "NServiceBus.ProcessingStarted": "2026-06-30 23:59:59:000001 Z",
    "NServiceBus.ProcessingEnded": "2026-07-01 00:00:01:900000 Z",
    "NServiceBus.FailedQ": '"public"."orders"',
    "NServiceBus.TimeOfFailure": "2026-06-30 17:05:09:123456 Z",
    "NServiceBus.ExceptionInfo.ExceptionType": "System.Bad",
    "NServiceBus.ExceptionInfo.Message": 'a "quoted" word and C:\\path',
    "NServiceBus.ExceptionInfo.StackTrace": "   at Shop.Placed.Handle() in C:\\a\\b.cs:line 7",
    "NServiceBus.Retries": "2",
    "ServiceControl.Retry.UniqueMessageId": "0fa1b2c3-0000-4000-8000-000000000000",
    "ServiceControl.Retry.AcknowledgementQueue": '"public"."control"',
}


@contextmanager
def settings(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    """Set some settings as long as the block lasts."""
    before: dict[str, Any] = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def outcome(frame: DataFrame) -> Any:
    """The columns, their types and the rows of a frame, without the present time."""
    rows = [re.sub(NOW, "now", str(row)) for row in frame.collect()]
    return frame.dtypes, rows


def everything(queue: SparkQueue) -> list[Any]:
    """What a user and the jobs make of the messages of a queue."""
    found = []
    for kind in ("map", "json"):
        read = queue.reader(headersFormat=kind).load().orderBy("seq")
        json: dict[str, Any] = {"json": kind == "json"}
        whole = read.where("seq > 0 AND body IS NOT NULL")
        if kind == "map":
            whole = whole.where("headers IS NOT NULL")
        known = whole.where(F.col("seq") == 1)
        found += [
            outcome(frame)
            for frame in (
                read,
                read.select(
                    header("headers", "NServiceBus.MessageId", **json).alias("id"),
                    message_types("headers", **json).alias("types"),
                    message_type("headers", **json).alias("type"),
                    sent_at("headers", **json).alias("sent"),
                    deliver_at("headers", **json).alias("due"),
                    is_retried(**json).alias("again"),
                    *audit(**json),
                    *failure(**json),
                ),
                known.select(*reply("body", message_type="Shop.Answer", **json)),
                known.select(*publish("body", message_type="Shop.Placed", **json)),
                known.select(*send("body", "billing", message_type="Shop.Bill", **json)),
                known.select(*forward("billing", **json)),
                known.select(*fail("System.Bad", F.col("id"), "error", **json)),
                known.select(*retry_later(1, "System.Bad", "m", **json)),
                known.select(*return_to_source(**json)),
                known.select(*acknowledge_retries(**json)),
            )
        ]
        if kind == "json":
            found.append(outcome(failures(read).drop("receivedAt")))
        else:
            schemas = bodies.parse(
                queue.spark, {"": "Total DECIMAL(10,2), number INT NOT NULL, at STRING"}, []
            )
            typed = read.withColumn("messageType", message_type("headers"))
            parsed = bodies.add_columns(typed, schemas)
            found.append(outcome(parsed.withColumn("why", bodies.reason(schemas[0]))))
            found.append(outcome(audit_rows(read, 100).drop("receivedAt")))
    return found


def test_no_setting_changes_what_is_read_or_made(queue: SparkQueue) -> None:
    """Columns, types and values of reads, functions and jobs stay the same."""
    queue.put(dumps(HEADERS), b'{"number": 7, "Total": 1.50, "at": "x"}', datetime(2999, 1, 1))  # noqa: DTZ001
    for headers, body in messages():
        queue.put(headers, body)
    queue.put('["poison"]')
    expected = everything(queue)
    assert expected[0][0] == COLUMNS

    changed = {}
    for given in SETTINGS:
        with settings(queue.spark, given):
            found = everything(queue)
        differences = [
            (place, one, other)
            for place, (one, other) in enumerate(zip(expected, found, strict=True))
            if one != other
        ]
        if differences:
            changed[str(given)] = differences

    assert changed == {}


def test_a_stream_reads_with_another_type_of_timestamps(queue: SparkQueue) -> None:
    """The column expires is a point in time, whatever `timestamp` means in the session."""
    queue.put("{}", b"1", datetime(2999, 1, 1))  # noqa: DTZ001
    queue.put("{}", b"2")

    with settings(queue.spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        queue.into_table(queue.stream().load())

        assert queue.landed().schema["expires"].dataType.typeName() == "timestamp"
        assert [row.expires.year for row in queue.landed().collect() if row.expires] == [2999]


@pytest.mark.parametrize(
    ("columns", "option", "reason"),
    [
        ("expires timestamp_ntz", {}, "a read has no column expires timestamp_ntz"),
        (
            "body binary",
            {"maxMessagesPerTrigger": "none"},
            "option maxMessagesPerTrigger is 'none'",
        ),
    ],
)
def test_a_stream_says_why_it_has_no_reader(
    queue: SparkQueue, columns: str, option: dict[str, str], reason: str
) -> None:
    """Spark's runner would report an UnboundLocalError of its own."""
    frame = queue.stream(**option).schema(columns).load()

    with pytest.raises(PySparkException, match=reason) as caught:
        queue.into_table(frame)

    assert "UnboundLocalError" not in str(caught.value)


@only("postgresql", "times beyond the calendar")
def test_odd_expiries_can_be_shown(queue: SparkQueue) -> None:
    """`collect` and `toPandas` give null where there is no end. One of -infinity has expired."""
    for moment in ("infinity", "50000-01-01", "2100-01-01"):
        row = queue.dotnet.send(queue.address)
        queue.dba.do("set_expires_text", queue.address, moment=moment, row=str(row))
    gone = queue.dotnet.send(queue.address)
    queue.dba.do("set_expires_text", queue.address, moment="-infinity", row=str(gone))

    browsed = queue.reader().load().orderBy("seq")
    years = [row.expires and row.expires.year for row in browsed.collect()]
    frame: Any = browsed.toPandas()
    queue.into_table(queue.stream().load())

    assert years == [None, None, 2100, 1900]
    assert frame["expires"].isna().tolist() == [True, True, False, False]
    assert [row.expires and row.expires.year for row in queue.landed().collect()] == years[:3]
