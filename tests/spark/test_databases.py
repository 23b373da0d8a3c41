"""
What Spark does with either database: receive, replay, send, publish, delay, browse.

The endpoint of the conformance suite fills the queue and looks at it, in the SQL of the database.
The other Spark tests fill theirs by PostgreSQL's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance import conftest as conformance
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from spark.stand import finish
from sqlq_spark.database import schema
from sqlq_spark.receive import due
from sqlq_spark.send import subscriptions
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.conftest import Bench
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

bare, bench = conformance.bare, conformance.bench
TEXT = '{"NServiceBus.MessageId":"ü🚀","a\\/b":null}'
BODIES = [bytes([number]) * number for number in range(40)]


def options(bench: Bench, **more: str) -> dict[str, str]:
    """What a stream and a writer of the bench's queue are given."""
    mine = {"url": bench.dotnet.url, "stateSchema": bench.dotnet.state, "queue": bench.printed}
    return mine | more


def test_a_stream_receives_each_message_once(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    """In several micro-batches, by several tasks; bytes, headers and ids as they were sent."""
    sent = bench.dotnet.send(bench.queue, TEXT, b"\xef\xbb\xbf{}")
    bench.dotnet.send_many(bench.queue, BODIES)
    limited = options(bench, maxMessagesPerTrigger="30")

    stream = spark.readStream.format("sqlqueue").options(**limited).load()
    finish(
        stream.writeStream.format("parquet").option("path", str(tmp_path / "table")),
        tmp_path / "checkpoint",
    )

    got = spark.read.parquet(str(tmp_path / "table")).orderBy("seq").collect()
    assert [bytes(row.body) for row in got] == [b"\xef\xbb\xbf{}", *BODIES]
    assert got[0].id == str(sent)
    assert got[0].headers == {"NServiceBus.MessageId": "ü🚀", "a/b": None}
    assert {row.queue for row in got} == {bench.printed}
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_a_batch_that_failed_is_handed_out_again(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    """The same rows in the same order, though the queue has none of them any more."""
    bench.dotnet.send_many(bench.queue, BODIES)
    seen: list[list[Any]] = []

    def handled(batch: DataFrame, _: int) -> None:
        rows = batch.orderBy("seq").select("seq", "body").collect()
        seen.append(rows)
        if len(seen) == 1:
            message = "not this time"
            raise ValueError(message)

    stream = spark.readStream.format("sqlqueue").options(**options(bench)).load()
    writer = stream.writeStream.foreachBatch(handled)
    with pytest.raises(PySparkException, match="not this time"):
        finish(writer, tmp_path / "checkpoint")
    finish(writer, tmp_path / "checkpoint")

    assert seen[0] == seen[1]
    assert [bytes(row.body) for row in seen[0]] == BODIES
    assert bench.seqs() == []


def test_a_frame_is_sent_published_and_delayed(spark: SparkSession, bench: Bench) -> None:
    """All in one transaction: to a queue, to a subscriber of a topic, into the delayed table."""
    table = QueueAddress("Subscriptions", bench.dotnet.schema)
    printed = bench.desk.printed(table)
    subscriptions.subscribe(
        bench.desk, table, topic="Shop.Placed", endpoint="Lake", queue=bench.errors, timeout=20
    )
    schema.create_delayed(bench.desk, bench.queue, timeout=20)
    frame = spark.createDataFrame([(1, None, None), (2, ["Shop.Placed"], None), (3, None, 1)]).toDF(
        "n", "topics", "delay"
    )
    rows = frame.select(
        F.concat(F.lit("ü🚀"), F.col("n")).alias("body"),
        F.col("topics").cast("array<string>"),
        F.col("delay").cast("bigint"),
        F.when(F.col("topics").isNull(), F.lit(bench.printed)).alias("queue"),
    )

    whole = options(bench, subscriptionTable=printed)
    del whole["queue"]
    rows.write.format("sqlqueue").options(**whole).mode("append").save()

    assert bench.bodies() == ["ü🚀1".encode()]
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == ["ü🚀2".encode()]
    assert due.Mover(bench.queue, zone=None, timeout=20).move(bench.desk).messages == 1
    assert bench.bodies() == ["ü🚀1".encode(), "ü🚀3".encode()]
    assert bench.dotnet.state_rows("staging", "sink") == []


def test_a_stream_answers_each_message_once(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    """Receive and sends commit together; a browse sees the answers and takes none."""
    bench.dotnet.send_many(bench.queue, BODIES)
    target = bench.desk.printed(bench.errors)

    stream = spark.readStream.format("sqlqueue").options(**options(bench)).load()
    answers = stream.select("body").writeStream.format("sqlqueue")
    mode = {"transactionMode": "sendsAtomicWithReceive", "queue": target}
    finish(answers.options(**options(bench) | mode), tmp_path / "checkpoint")

    browse = spark.read.format("sqlqueue").options(**options(bench) | {"queue": target}).load()
    assert sorted(bytes(row.body) for row in browse.collect()) == sorted(BODIES)
    assert len(bench.dotnet.rows(bench.errors)) == len(BODIES)
    assert bench.seqs() == []
