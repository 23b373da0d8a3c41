"""Failed and delayed messages, and acknowledged retries: as endpoints write them, and once."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import finish
from spark.test_functions import FORMATS, ROW, messages, odd_times, sent, settings
from sqlq_spark.database import schema
from sqlq_spark.errors import BadFrame
from sqlq_spark.functions import (
    acknowledge_retries,
    fail,
    failure,
    forward,
    is_retried,
    retry_later,
    return_to_source,
    wire_time,
)
from sqlq_spark.functions.expressions import wire_text
from sqlq_spark.wire.headers import BadTimeSpan, parse_wire_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[1] / "golden" / "nservicebus-10.jsonl"
QUEUE = '"public"."Shop.Server"'
FROM_SPARK = {"NServiceBus.ProcessingMachine", "$.diagnostics.hostid"} | {
    "$.diagnostics.hostdisplayname"
}
INFO = "NServiceBus.ExceptionInfo."
RETRIED: dict[str, str | None] = {
    "NServiceBus.MessageId": "m-1",
    "ServiceControl.Retry.UniqueMessageId": "u-1",
    "ServiceControl.Retry.AcknowledgementQueue": "ack",
}


def received(frame: DataFrame, queue: str = QUEUE) -> DataFrame:
    """The rows, as received from a queue."""
    return frame.withColumn("queue", F.lit(queue))


def golden() -> dict[str, str]:
    """The headers of a failed message, as an endpoint wrote it."""
    rows = map(json.loads, GOLDEN.read_text(encoding="utf-8").splitlines())
    found: dict[str, str] = json.loads(
        next(row["headers"] for row in rows if row["table"] == "error")
    )
    return found


@FORMATS
def test_a_failed_message_looks_as_one_of_an_endpoint(
    spark: SparkSession, *, as_json: bool
) -> None:
    """The same headers with the same values, except the time, the machine, and Data of .NET."""
    whole = golden()
    added = ("NServiceBus.FailedQ", INFO, "NServiceBus.TimeOfFailure", "NServiceBus.Processing")
    request: dict[str, str | None] = {
        name: text
        for name, text in whole.items()
        if not name.startswith((*added, "$.diagnostics."))
    }
    request["$.diagnostics.originating.hostid"] = whole["$.diagnostics.originating.hostid"]
    counted = request | {"NServiceBus.Retries": "3", "NServiceBus.FLRetries": "2"}
    frame = received(messages(spark, [counted], as_json=as_json))

    columns = fail(
        whole[f"{INFO}ExceptionType"],
        whole[f"{INFO}Message"],
        source=whole[f"{INFO}Source"],
        stack_trace=whole[f"{INFO}StackTrace"],
        json=as_json,
    )
    [(headers, row)] = sent(frame, columns)

    other = {*FROM_SPARK, "NServiceBus.TimeOfFailure"}
    expected = {name: text for name, text in whole.items() if f"{INFO}Data." not in name}
    assert headers.keys() == expected.keys()
    assert {n for n, text in headers.items() if text != expected[n]} <= other
    assert headers["NServiceBus.ProcessingMachine"] == socket.gethostname()
    assert len(headers["$.diagnostics.hostid"]) == len(whole["$.diagnostics.hostid"])
    failed_at = parse_wire_time(headers["NServiceBus.TimeOfFailure"])
    assert abs(datetime.now(UTC) - failed_at) < timedelta(minutes=10)
    assert row.asDict() == {"body": b"{}", "headers": row["headers"], "id": ROW}


@FORMATS
def test_what_an_earlier_failure_added_is_replaced(spark: SparkSession, *, as_json: bool) -> None:
    """All of it; other headers stay, and a returned message is again as it was."""
    mine: dict[str, str | None] = {"NServiceBus.MessageId": "m-1", "none": None, "é/\"'": "a\nb🚀"}
    old: dict[str, str | None] = {
        f"{INFO}{name}": "old" for name in ("StackTrace", "HelpLink", "Data.x", "Source")
    }
    old |= {"NServiceBus.FailedQ": "old", "NServiceBus.TimeOfFailure": "old"}
    frame = received(messages(spark, [mine | old, {}, mine], as_json=as_json))
    long = F.lit("ä" * 20_000)

    found = sent(frame, fail(F.lit("Shop.Bad"), long, "error", endpoint="Lake", json=as_json))
    again = frame.sparkSession.createDataFrame(
        [(row["id"], row["headers"], row["body"]) for _, row in found],
        "id string, headers string, body binary",
    )
    back = [headers for headers, _ in sent(again, return_to_source(json=True))]
    read = again.select(*failure(json=True)).collect()

    for (headers, row), before in zip(found, (mine, {}, mine), strict=True):
        assert headers.keys() - before.keys() == {
            "NServiceBus.FailedQ",
            "NServiceBus.TimeOfFailure",
            "NServiceBus.ProcessingEndpoint",
            f"{INFO}ExceptionType",
            f"{INFO}Message",
            *FROM_SPARK,
        }
        assert before.items() <= headers.items()
        assert headers["NServiceBus.ProcessingEndpoint"] == "Lake"
        assert headers[f"{INFO}Message"] == "ä" * 16_384
        assert row["queue"] == "error"
    assert [(each.failedQueue, each.exceptionType) for each in read] == [(QUEUE, "Shop.Bad")] * 3
    kept = ("NServiceBus.Processing", "$.diagnostics.")
    assert [{n: t for n, t in each.items() if not n.startswith(kept)} for each in back] == [
        mine,
        {},
        mine,
    ]


def test_the_endpoint_of_a_failure_is_named_as_its_queue(spark: SparkSession) -> None:
    """The table of the canonical address of either database; FailedQ is the address."""
    names = {
        '"public"."Shop.Orders"': "Shop.Orders",
        '"a"".""b"."say ""hi"""': 'say "hi"',
        "Shop.Orders@[dbo]@[shop]": "Shop.Orders",
        "[Orders]@[d@[bo]@[shop]": "[Orders]",
    }
    frame = messages(spark, [{}], as_json=False)
    for address, name in names.items():
        [(headers, _)] = sent(received(frame, address), fail("Shop.Bad", "no"))

        assert headers["NServiceBus.ProcessingEndpoint"] == name
        assert headers["NServiceBus.FailedQ"] == address


def test_a_name_that_is_there_twice_fails_one_message_only(spark: SparkSession) -> None:
    """Whoever sends a message can write a name twice; poison raises an error that names it."""
    texts = ['{"a":"1","a":"2","NServiceBus.FailedQ":"x","NServiceBus.FailedQ":"y"}', " {} ", ""]
    shape = "id string, headers string, body binary, queue string"
    frame = spark.createDataFrame([(ROW, text, b"", QUEUE) for text in texts], shape)
    poison = spark.createDataFrame([(ROW, "{bad", b"", QUEUE)], shape)

    for columns in (fail("T", "m", json=True), retry_later(1000, "T", "m", json=True)):
        assert len(sent(frame, columns)) == len(texts)
        with pytest.raises(PySparkException, match="its headers are corrupt"):
            poison.select(*columns).collect()
    assert {text for headers, _ in sent(frame, fail("T", "m", json=True)) for text in headers} > {
        "a",
        "NServiceBus.FailedQ",
    }
    assert sent(frame, fail("T", "m", json=True))[0][1]["headers"].count("FailedQ") == 1


def test_times_are_written_as_the_wire_has_them(spark: SparkSession) -> None:
    """What is written is read back the same, in every time zone and mode."""
    times = odd_times()
    frame = spark.createDataFrame([(text,) for text in times], "text string")
    good = frame.select("text", wire_time("text").alias("time")).where("time IS NOT NULL")
    for ansi, zone in (("true", "America/New_York"), ("false", "UTC")):
        with settings(spark, ansi, zone):
            found = good.select("text", wire_text(F.col("time")).alias("again")).collect()

        assert len(found) > 6
        assert [row.again for row in found] == [row.text for row in found]


# ---------------------------------------------------------------- retries


@FORMATS
def test_retries_are_counted_until_the_message_fails(spark: SparkSession, *, as_json: bool) -> None:
    """As an endpoint does; a count that cannot be read fails the message, and never loops."""
    counts: list[str | None] = [None, "", "1", "2", "3", "99999999999", "x", "-1"]
    at: dict[str, Any] = {"NServiceBus.Retries.Timestamp": "2026-06-30 17:05:09:123456 Z"}
    frame = received(
        messages(
            spark,
            [{"a/b": "c", "NServiceBus.Retries": each} | at for each in counts],
            as_json=as_json,
        )
    )

    later = retry_later("00:00:10", "Shop.Locked", "no", "error", most=3, json=as_json)
    found = sent(frame, later)

    again, failed = found[:4], found[4:]
    assert [headers["NServiceBus.Retries"] for headers, _ in again] == ["1", "1", "2", "3"]
    for headers, row in again:
        assert headers.keys() == {"a/b", "NServiceBus.Retries", *at}
        assert headers["NServiceBus.Retries.Timestamp"] > at["NServiceBus.Retries.Timestamp"]
        assert [row["queue"], row["delay"], row["id"]] == [QUEUE, "00:00:10", ROW]
    [(like, _)] = sent(frame.limit(1), fail("Shop.Locked", "no", json=as_json))
    for headers, row in failed:
        assert headers.keys() == like.keys()
        assert at.items() <= headers.items()
        assert headers["NServiceBus.FailedQ"] == QUEUE
        assert [row["queue"], row["delay"]] == ["error", None]


def test_delays_may_differ_and_bad_ones_are_refused(spark: SparkSession) -> None:
    """As every form that the sink takes; a negative number of retries is refused too."""
    frame = received(messages(spark, [{}], as_json=False))
    for delay in (10_000, timedelta(seconds=10), F.lit("00:00:10"), F.expr("INTERVAL 10 SECONDS")):
        [row] = frame.select(*retry_later(delay, "T", "m")).collect()

        assert row["delay"] in {10_000, timedelta(seconds=10), "00:00:10"}
        assert row["queue"] == QUEUE
    [row] = frame.select(*retry_later(10, "T", "m", most=0)).collect()
    assert [row["queue"], row["delay"]] == [None, None]
    with pytest.raises(BadTimeSpan, match="delay 'soon' cannot be read"):
        retry_later("soon", "T", "m")
    with pytest.raises(BadFrame, match="most is -1"):
        retry_later(1, "T", "m", most=-1)


def test_a_message_is_retried_by_the_real_queue_and_then_fails(queue: SparkQueue) -> None:
    """Twice through the table of delayed messages, then into the error queue, and back."""
    queue.connected(lambda c: schema.create_delayed(c, queue.address))
    errors = queue.another("error")
    queue.put('{"NServiceBus.MessageId":"m-1","x":"a\\/b"}', b"<bad/>")
    seen: list[Any] = []

    for number in range(3):
        stream = queue.stream(delayedDelivery="true", headersFormat="json").load()
        columns = retry_later("00:00:00", "Shop.Bad", "no", errors.name, most=2, json=True)
        writer = stream.select(*columns).writeStream.format("sqlqueue")
        finish(writer.options(**queue.database_options), queue.folder / "checkpoint")
        seen.append((queue.count(), errors.count(), number))
    [(headers, body)] = errors.rows()
    errors.reader().load().select(*return_to_source()).write.format("sqlqueue").options(
        **queue.database_options
    ).mode("append").save()

    assert [failed for _, failed, _ in seen] == [0, 0, 1]
    assert headers["NServiceBus.FailedQ"] == queue.name
    assert headers["NServiceBus.ProcessingEndpoint"] == queue.table
    assert [headers["x"], headers["NServiceBus.MessageId"], body] == ["a/b", "m-1", b"<bad/>"]
    assert not {"NServiceBus.Retries", "NServiceBus.SqlServer.ForwardDestination"} & headers.keys()
    assert queue.ids() == ["m-1"]


def test_a_replayed_batch_fails_the_same_messages_with_the_same_headers(queue: SparkQueue) -> None:
    """Its time is the batch's; it is in the error queue once, and in the target never."""
    errors, out = queue.another("error"), queue.another("out")
    queue.fill(0, 20)
    bad = F.col("headers")["NServiceBus.MessageId"].endswith("0")
    calls: list[list[str]] = []

    def split(frame: DataFrame, batch: int) -> None:
        failed = frame.where(F.col("queue") == errors.name)
        calls.append(sorted(row["headers"] for row in failed.collect()))
        names = {"txnAppId": "split", "txnVersion": str(batch)}
        whole = queue.database_options | names
        frame.write.format("sqlqueue").options(**whole).mode("append").save()
        if len(calls) == 1:
            raise RuntimeError("killed after the write")

    def run() -> None:
        stream = queue.stream().load()
        rows = stream.where(~bad).select(*forward(out.name))
        rows = rows.unionByName(stream.where(bad).select(*fail("Shop.Bad", "no", errors.name)))
        finish(rows.writeStream.foreachBatch(split), queue.folder / "checkpoint")

    with pytest.raises(StreamingQueryException, match="killed after the write"):
        run()
    run()

    first, again = calls
    assert first == again
    assert sorted(errors.ids()) == ["m-0", "m-10"]
    assert len(out.ids()) == 18
    assert {"m-0", "m-10"}.isdisjoint(out.ids())


# ---------------------------------------------------------------- acknowledgements


@FORMATS
def test_a_retry_is_acknowledged_as_by_an_endpoint(spark: SparkSession, *, as_json: bool) -> None:
    """An empty control message to the queue in the header; other messages are not selected."""
    others: list[dict[str, str | None] | None] = [
        {name: text for name, text in RETRIED.items() if name != left} for left in RETRIED
    ]
    blank = RETRIED | {"ServiceControl.Retry.AcknowledgementQueue": ""}
    rows = [RETRIED, *others[1:], blank, None]
    frame = messages(spark, rows, as_json=as_json)

    asked = frame.where(is_retried(json=as_json))
    [(headers, row)] = sent(asked, acknowledge_retries(json=as_json))

    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{6} Z", headers.pop("ServiceControl.Retry.Successful")
    )
    assert headers == {
        "ServiceControl.Retry.UniqueMessageId": "u-1",
        "NServiceBus.ControlMessage": "True",
    }
    assert row.asDict() == {"body": b"", "headers": row["headers"], "queue": "ack"}
    with pytest.raises(PySparkException, match=r"select messages by where\(is_retried\(\)\)"):
        frame.select(*acknowledge_retries(json=as_json)).collect()
