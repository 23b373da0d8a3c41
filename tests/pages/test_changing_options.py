"""What docs/guide/changing-options.md says of an option that changes between two runs."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish

from sqlq_spark import open_batch
from sqlq_spark.errors import (
    PayloadRefused,
    StateNotInstalled,
    StreamNotFound,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_names

from .page import blocks, table
from .shop import Shop, Stream, bodies, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PAGE = "docs/guide/changing-options.md"
# the rows "any other" of the two tables: option → another value than its default
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
}


# of a write: all those that may stand together, with the url, the queue and the type
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


def body(number: int) -> bytes:
    """What `Shop.fill` sends."""
    return b'{"number":%d}' % number


@pytest.fixture
def ran(shop: Shop) -> Iterator[Stream]:
    """Give a stream that received 3 messages; its batch is open. Another one waits."""
    shop.fill('"Shop.Orders"', 3)
    stream = shop.stream()
    assert stream.bodies() == [*map(body, (1, 2, 3))]
    shop.fill('"Shop.Orders"', 1)
    yield stream
    stream.close()


def changed(shop: Shop, ran: Stream, **options: str) -> Stream:
    """Start again on its checkpoint with other options."""
    ran.close()
    raw = {"url": shop.url, "queue": "Shop.Orders"} | options
    return Stream(SourceOptions.parse(raw), ran.offset)


def both(stream: Stream) -> list[list[bytes]]:
    """The bodies of the open batch, and of the next one."""
    found = [bodies(stream.received()), stream.bodies()]
    stream.close()
    return found


CONTINUES = [[*map(body, (1, 2, 3))], [body(1)]]


def test_another_name_of_the_server_continues(shop: Shop, ran: Stream) -> None:
    """The url is no part of a stream's identity."""
    url = shop.url.replace("127.0.0.1", "localhost") + "?application_name=lake"

    assert url != shop.url
    assert both(changed(shop, ran, url=url)) == CONTINUES


def test_another_database_or_state_schema_is_refused(
    server: str, shop: Shop, ran: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is received, also with failOnDataLoss=false."""
    shop.sqlqueue("install", "--state-schema", "other")
    with opened(server, tmp_path, capsys) as elsewhere:
        elsewhere.sqlqueue("install")
        elsewhere.sqlqueue("create", "Shop.Orders")
        elsewhere.fill('"Shop.Orders"', 1)
        wrong = [
            ({"url": elsewhere.url}, StreamNotFound),
            ({"stateSchema": "other"}, StreamNotFound),
            ({"stateSchema": "absent"}, StateNotInstalled),
        ]
        for options, error in wrong:
            stream = changed(shop, ran, **options, failOnDataLoss="false")
            for work in (stream.received, stream.batch):
                with pytest.raises(error):
                    work()
            stream.close()
        left = [elsewhere.count('"Shop.Orders"'), shop.count('"Shop.Orders"')]

    assert left == [1, 1]
    assert both(changed(shop, ran)) == CONTINUES


def test_without_receipts_the_open_batch_is_still_handed_out(shop: Shop, ran: Stream) -> None:
    """It is acknowledged too; the next batch leaves no receipt."""
    assert both(changed(shop, ran, transactionMode="none")) == CONTINUES
    assert shop.count("sqlqueue.receipt") == 0


def test_limits_and_other_options_hold_from_the_next_batch_on(shop: Shop, ran: Stream) -> None:
    """The open batch keeps its messages, whatever changed."""
    stream, received = ran, CONTINUES[0]
    for name, text in OTHERS.items():
        shop.fill('"Shop.Orders"', 2)
        stream = changed(shop, stream, **{name: text})

        assert bodies(stream.received()) == received, name
        received = stream.bodies()
        assert received, name
    shop.fill('"Shop.Orders"', 9)
    limits = {"maxMessagesPerTrigger": "2", "maxBytesPerTrigger": "1k", "maxConcurrency": "1"}
    small = changed(shop, stream, **limits)

    assert both(small) == [received, [*map(body, (1, 2))]]


def test_a_lower_limit_of_one_message_refuses_a_receipt(shop: Shop, ran: Stream) -> None:
    """The old value takes it again. A receipt of less than 112 MiB is never refused."""
    shop.sql("""INSERT INTO "Shop.Orders" (id, headers, body)
                VALUES (gen_random_uuid(), '{}', convert_to(repeat('x', 120000000), 'UTF8'))""")
    heavy = changed(shop, ran)
    first, large = heavy.bodies()

    lower = changed(shop, heavy, maxMessageBytes="1k")
    with pytest.raises(PayloadRefused):
        lower.received()
    lower.close()

    assert (first, len(large)) == (body(1), 120_000_000)
    assert bodies(changed(shop, heavy, maxMessageBytes="120m").received()) == [first, large]


def test_an_error_queue_takes_what_comes_later(shop: Shop) -> None:
    """Poison of the open batch was received, and is delivered again."""
    poison = """INSERT INTO "Shop.Orders" (id, headers, body)
                VALUES (gen_random_uuid(), 'not JSON', 'x')"""
    shop.sql(poison)
    stream = shop.stream()
    assert stream.bodies() == [b"x"]
    shop.sql(poison)
    shop.fill('"Shop.Orders"', 1)

    again = changed(shop, stream, errorQueue="error")

    assert both(again) == [[b"x"], [body(1)]]
    assert shop.count("error") == 1


# ---------------------------------------------------------------- with Spark


@pytest.fixture
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.mark.spark
@pytest.mark.usefixtures("_quiet")
def test_columns_may_change_and_the_open_batch_has_the_new_ones(
    spark: SparkSession, shop: Shop
) -> None:
    """Headers as text, fewer columns; and the page's question has its answer."""
    shop.sqlqueue("create", "Shop.Orders")
    shop.fill('"Shop.Orders"', 2)
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
    shop.run(*blocks(PAGE, "open"))
    batch = shop.names["batch"]
    run("seq bigint")

    first, text, narrow = seen
    assert isinstance(first[0]["headers"], dict)
    assert [row["headers"][0] for row in text] == ["{", "{"]
    assert [row["body"] for row in text] == [row["body"] for row in first]
    assert narrow == [{"seq": row["seq"]} for row in first]
    assert [batch, open_batch(spark, str(checkpoint))] == [0, None]


@pytest.mark.spark
@pytest.mark.usefixtures("_quiet")
def test_what_a_sink_does_with_a_batch_that_it_has_sent_before(
    spark: SparkSession, shop: Shop
) -> None:
    """It is sent again where another dispatch log, or none, is asked; else it is not."""
    shop.sqlqueue("create", "Shop.Billing")
    shop.sqlqueue("install", "--state-schema", "other")
    files = str(shop.folder / "input")
    spark.range(10).select(F.lit("{}").alias("body")).write.parquet(files)
    source = spark.readStream.schema("body string").parquet(files)
    orders, billing, checkpoint = '"Shop.Orders"', '"Shop.Billing"', shop.folder / "checkpoint"

    def writer(**options: str) -> DataStreamWriter:
        given = {"url": shop.url, "queue": "Shop.Orders", "messageType": "Shop.A"} | options
        return source.writeStream.format("sqlqueue").options(**given)

    def sends(**options: str) -> int:
        """How many messages a repetition of the batch adds to both queues."""
        for name in ("0", ".0.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)
        before = shop.count(orders) + shop.count(billing)
        finish(writer(**options), checkpoint)
        return shop.count(orders) + shop.count(billing) - before

    assert sends() == 10  # the first time
    assert sends(queue="Shop.Billing") == 0
    assert sends(**HEADERS) == sends(messageType="Shop.B", legacyColumns="true") == 0
    assert sends(stateSchema="other") == 10
    assert sends(delivery="atLeastOnce") == 10
    spark.range(5).select(F.lit("{}").alias("body")).write.mode("append").parquet(files)
    finish(writer(queue="Shop.Billing"), checkpoint)
    assert [shop.count(billing), shop.count(orders)] == [5, 30]

    for name in ("before", "before", "after"):
        given = {"url": shop.url, "queue": "Shop.Orders", "txnAppId": name, "txnVersion": "0"}
        frame = spark.range(2).select(F.lit("x").alias("body"))
        frame.write.format("sqlqueue").mode("append").options(**given).save()
    assert shop.count(orders) == 34


@pytest.mark.spark
@pytest.mark.usefixtures("_quiet")
def test_a_sink_may_begin_and_end_to_commit_with_its_source(
    spark: SparkSession, shop: Shop
) -> None:
    """Each message is sent once, and no receipt stays."""
    shop.sqlqueue("create", "Shop.Billing")
    mine = {"url": shop.url, "peekDelay": "100ms"}
    for mode in ({}, {"transactionMode": "sendsAtomicWithReceive"}, {}):
        shop.fill('"Shop.Orders"', 3)
        stream = spark.readStream.format("sqlqueue").options(**mine).load("Shop.Orders")
        sink = {"url": shop.url, "queue": "Shop.Billing", "asReceived": "true"} | mode
        finish(stream.writeStream.format("sqlqueue").options(**sink), shop.folder / "relay")

    assert [shop.count('"Shop.Billing"'), shop.count("sqlqueue.receipt")] == [9, 0]


@pytest.mark.spark
def test_a_table_keeps_the_type_of_its_headers(spark: SparkSession, tmp_path: Path) -> None:
    """Delta refuses another one; files of both types in one folder cannot be read together."""
    as_map = spark.sql("SELECT map('a', 'b') AS headers")
    as_text = as_map.select(F.to_json("headers").alias("headers"))
    delta, files = str(tmp_path / "delta"), str(tmp_path / "files")
    as_map.write.format("delta").save(delta)
    for frame in (as_map, as_text):
        frame.write.mode("append").parquet(files)

    with pytest.raises(AnalysisException, match="headers"):
        as_text.write.format("delta").mode("append").save(delta)
    with pytest.raises(Exception, match="headers"):
        spark.read.parquet(files).collect()
    back = as_text.select(F.from_json("headers", "map<string,string>").alias("headers"))
    assert back.collect() == as_map.collect()


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize(
    ("table_id", "options"), [("read-changes", SourceOptions), ("write-changes", SinkOptions)]
)
def test_the_tables_name_every_option(table_id: str, options: type) -> None:
    """An option that is new fails here, until the page says whether it may change."""
    cells = " ".join(table(PAGE, table_id).column())
    named = set(re.findall(r"`(\w+)`", cells))

    known = set(option_names(options).values()) | {"user", "password"}
    assert named - {"none", "receiveOnly"} == known - {"checkpointLocation"}


def test_the_options_of_the_last_row_were_changed() -> None:
    """`OTHERS` has those that the row of a read names, but for a limit of its own test."""
    named = set(re.findall(r"`(\w+)`", table(PAGE, "read-changes").row("others")[0]))

    assert named == set(OTHERS)
