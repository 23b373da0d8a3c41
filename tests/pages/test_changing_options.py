"""What docs/guide/changing-options.md says of an option that changes between two runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish

from sqlq_spark import open_batch
from sqlq_spark.errors import StateNotInstalled, StreamNotFound
from sqlq_spark.options import SourceOptions

from .page import blocks
from .shop import Shop, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS, BILLING = '"Shop.Orders"', '"Shop.Billing"'
# of a read, besides limits: another value than the default
OTHERS = {
    "peekDelay": "100ms",
    "minMessagesPerTrigger": "2",
    "maxTriggerDelay": "1s",
    "minConcurrency": "2",
    "warnIfShared": "false",
    "delayedDelivery": "true",
    "endpointTimeZone": "Europe/Berlin",
    "allowedDestinations": "Shop.*",
    "failOnDataLoss": "false",
    "failOnMissingReceipts": "true",
    "queryTimeout": "20s",
    "errorQueue": "error",
    "transactionMode": "none",
}
# of a write: all those that may stand together
HEADERS = {
    "contentType": "application/json",
    "intent": "Publish",
    "replyToAddress": "Shop.Orders",
    "originatingEndpoint": "Lake",
    "timeToBeReceived": "01:00:00",
    "maxMessagesPerSecond": "100000",
    "pauseAboveBacklog": "100000",
    "endpointTimeZone": "Europe/Berlin",
    "allowedDestinations": "Shop.*",
    "undeliverable": "error",
    "queryTimeout": "20s",
}


def changed(shop: Shop, ran: Stream, **options: str) -> Stream:
    """Start again on a checkpoint with other options."""
    ran.close()
    raw = {"url": shop.url, "queue": "Shop.Orders"} | options
    return Stream(SourceOptions.parse(raw), ran.offset)


def test_options_of_a_read_hold_from_the_next_batch_on(shop: Shop) -> None:
    """The open batch keeps its messages, whatever changed: limits, names, poison, receipts."""
    shop.fill(ORDERS, 3)
    stream = shop.stream()
    received = stream.batch()
    url = shop.url.replace("127.0.0.1", "localhost") + "?application_name=lake"
    limits = {"maxMessagesPerTrigger": "2", "maxBytesPerTrigger": "1k", "maxConcurrency": "1"}
    for options in ({"url": url}, *({name: text} for name, text in OTHERS.items()), limits):
        shop.fill(ORDERS, 4)
        stream = changed(shop, stream, **options)

        assert stream.received() == received, options
        received = stream.batch()
        assert len(received) == (2 if options == limits else 4), options
        if options == {"transactionMode": "none"}:
            assert shop.count("sqlqueue.receipt") == [0]
            received = []
    stream.close()


def test_another_state_schema_is_refused(shop: Shop) -> None:
    """Before anything is received, also with failOnDataLoss=false; the old one continues."""
    shop.sqlqueue("install", "--state-schema", "other")
    shop.fill(ORDERS, 3)
    stream = shop.stream()
    received = stream.batch()
    shop.fill(ORDERS, 1)
    for schema, error in {"other": StreamNotFound, "absent": StateNotInstalled}.items():
        with closing(changed(shop, stream, stateSchema=schema, failOnDataLoss="false")) as wrong:
            for work in (wrong.received, wrong.batch):
                with pytest.raises(error):
                    work()

    assert shop.count(ORDERS) == [1]
    with closing(changed(shop, stream)) as again:
        assert again.received() == received


@pytest.mark.spark
def test_columns_may_change_and_the_open_batch_has_the_new_ones(
    spark: SparkSession, shop: Shop
) -> None:
    """Headers as text, fewer columns; and the page's question has its answer."""
    shop.fill(ORDERS, 2)
    seen: list[list[dict[str, Any]]] = []
    checkpoint = shop.folder / "orders_checkpoint"

    def run(schema: str = "", *, fails: bool = False, **options: str) -> None:
        def look(frame: DataFrame, _batch: int) -> None:
            seen.append([row.asDict() for row in frame.collect()])
            if fails:
                raise RuntimeError("the sink failed")

        reader = spark.readStream.format("sqlqueue").options(url=shop.url, **options)
        frame = (reader.schema(schema) if schema else reader).load("Shop.Orders")
        finish(frame.writeStream.foreachBatch(look), checkpoint)

    for options in ({}, {"headersFormat": "json"}):
        with pytest.raises(Exception, match="the sink failed"):
            run(fails=True, **options)
    shop.names["spark"] = spark
    shop.run(*blocks("docs/guide/changing-options.md", "open"))
    run("seq bigint")

    first, text, narrow = seen
    assert isinstance(first[0]["headers"], dict)
    assert [row["headers"][0] for row in text] == ["{", "{"]
    assert [row["body"] for row in text] == [row["body"] for row in first]
    assert narrow == [{"seq": row["seq"]} for row in first]
    assert [shop.names["batch"], open_batch(spark, str(checkpoint))] == [0, None]


@pytest.mark.spark
def test_what_a_sink_does_with_a_batch_that_it_has_sent_before(
    spark: SparkSession, shop: Shop
) -> None:
    """It is sent again where another dispatch log, or none, is asked; else it is not."""
    shop.sqlqueue("create", "Shop.Billing")
    shop.sqlqueue("install", "--state-schema", "other")
    files, checkpoint = str(shop.folder / "input"), shop.folder / "checkpoint"
    spark.range(10).select(F.lit("{}").alias("body")).write.parquet(files)
    source = spark.readStream.schema("body string").parquet(files)

    def sends(**options: str) -> int:
        """How many messages a repetition of the batch adds to both queues."""
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        before = sum(shop.count(ORDERS, BILLING))
        given = {"url": shop.url, "queue": "Shop.Orders", "messageType": "Shop.A"} | options
        finish(source.writeStream.format("sqlqueue").options(**given), checkpoint)
        return sum(shop.count(ORDERS, BILLING)) - before

    assert sends() == 10  # the first time
    assert sends(queue="Shop.Billing", **HEADERS) == sends(messageType="Shop.B") == 0
    assert sends(stateSchema="other") == 10
    assert sends(delivery="atLeastOnce") == 10
