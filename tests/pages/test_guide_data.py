"""The code of the guide's pages for the data engineer, run in the order of each page."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish
from waiting import until

from sqlq_spark.testing import Message, frame

from .page import blocks, read, table
from .test_pages import figures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .page import Block
    from .shop import Shop


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


def create(shop: Shop, *queues: str) -> None:
    """Make more queues."""
    for each in queues:
        shop.sqlqueue("create", each)


def run(shop: Shop, *given: Block) -> None:
    """Run Python as the page has it, and SQL by Spark; `rows` of the names has its last rows."""
    for each in given:
        if each.language == "sql":
            for text in filter(str.strip, shop.ours(each.text).split(";")):
                shop.names["rows"] = shop.names["spark"].sql(text).collect()
        elif each.language != "mermaid":
            shop.run(each)


def headers(shop: Shop, queue: str) -> list[dict[str, str]]:
    """The headers of what waits, by seq."""
    return [json.loads(text) for (text,) in shop.sql(f"SELECT headers FROM {queue} ORDER BY seq")]


def test_the_defaults_of_the_common_options_are_those_of_the_reference() -> None:
    """Each row of the page has one option of the tables of docs/sqlqueue.md."""
    known: dict[str, str] = {}
    for each in ("read-options", "write-options"):
        for names, default, _ in table("docs/sqlqueue.md", each).rows:
            known |= dict.fromkeys(re.findall(r"`(\w+)`", names), default)

    for _, name, default in table("docs/guide/read-and-write.md", "common-options").rows:
        assert known[name.strip("`")].startswith(default), name


def test_the_figures_of_sizing_are_those_of_the_bench() -> None:
    """Each line that links to growth.md has no other number than that page."""
    lines = re.findall(r"^.*\.\./growth\.md#.*$", read("docs/guide/sizing.md"), flags=re.MULTILINE)
    measured = figures(read("docs/growth.md"))

    assert len(lines) == 2
    assert [each for each in lines if not figures(each) <= measured] == []


@pytest.mark.spark
def test_the_code_for_those_who_know_kafka_and_of_reading_and_writing(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """A look deletes nothing, a query into memory everything."""
    create(shop, "Shop.Billing")
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 5)
    shop.fill('"Shop.Billing"', 2)
    kafka = "docs/guide/kafka.md"

    shop.run(*blocks(kafka, "look"))
    looked = shop.count('"Shop.Orders"')
    shop.run(*blocks(kafka, "consumes"))
    consumed = shop.count('"Shop.Orders"')
    shop.fill('"Shop.Orders"', 4)
    shop.run(*blocks("docs/guide/read-and-write.md"), *blocks("docs/guide/sizing.md", "collect"))
    before = shop.names["typed"].count()  # planned before the send
    shop.run(*blocks("docs/guide/read-and-write.md", "browse"))
    shop.run(*blocks("docs/guide/read-and-write.md", "columns"))

    assert [looked, consumed, spark.table("looked").count()] == [5, 0, 5]
    assert '{"number":2}' in capsys.readouterr().out
    assert spark.read.parquet(str(shop.folder / "received")).count() == 4
    assert before == 2
    types = [row.type for row in shop.names["typed"].collect()]
    assert types == ["Shop.PlaceOrder"] * 2 + ["Shop.BillOrder"] * 3
    assert "seq" in shop.names["orders"].columns


@pytest.mark.spark
def test_the_trial(spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """From a server to a table and back, as the page's reader types it."""
    page = "docs/guide/trial.md"
    steps = {each.id: each for each in blocks(page) if each.id != "install"}
    shop.names |= {"spark": spark, "input": lambda _: None}
    shop.words["/tmp/sqlqueue_trial"] = str(shop.folder)  # noqa: S108 - as the page has it

    with mock.patch.dict("os.environ", {"SQLQ_TEST_POSTGRES": shop.url}):
        shop.run(steps["server"])
    printed = capsys.readouterr().out
    shop.run(steps["queue"])
    browsed = shop.printed
    shop.run(steps["view"])
    run(shop, steps["sql"])
    waited = shop.names["rows"][0].waiting
    for step in ("stream", "stream", "send"):
        shop.run(steps[step])
    old = spark.table("trial_orders").count()
    shop.run(steps["view"])
    waiting = spark.table("trial_orders").count()
    shop.run(steps["clean"])

    assert shop.url in printed
    assert '"OrderId":3' in browsed
    assert waited == 3
    assert [shop.names["received"].count(), old, waiting] == [3, 0, 3]
    assert shop.sql("SELECT to_regclass('\"Trial.Orders\"')") == [(None,)]


@pytest.mark.spark
def test_which_sinks_write_a_repeated_batch_twice(spark: SparkSession, shop: Shop) -> None:
    """Delta, and Delta and MERGE that are named, skip it; a write without a name does not."""
    page, options = "docs/guide/sinks.md", {"url": shop.url, "peekDelay": "100ms"}
    spark.sql(f"CREATE TABLE totals (number INT, seen INT) USING delta LOCATION '{shop.folder}/t'")
    try:
        shop.run(*blocks(page, "append"), *blocks(page, "merge"), *blocks(page, "actions"))
        shop.fill('"Shop.Orders"', 10)
        fails, plain = [True], str(shop.folder / "plain")

        def all_of_them(batch: DataFrame, number: int) -> None:
            for name in ("append", "merge", "look"):
                shop.names[name](batch, number)
            batch.write.mode("append").parquet(plain)
            if fails:
                fails.clear()
                raise RuntimeError("after the writes")

        def stream() -> DataFrame:
            return spark.readStream.format("sqlqueue").options(**options).load("Shop.Orders")

        with pytest.raises(Exception, match="after the writes"):
            finish(stream().writeStream.foreachBatch(all_of_them), shop.folder / "each")
        finish(stream().writeStream.foreachBatch(all_of_them), shop.folder / "each")

        seen = spark.table("totals").agg(F.count("*"), F.max("seen")).collect()
        assert spark.read.format("delta").load(f"{shop.folder}/appended").count() == 10
        assert [tuple(row) for row in seen] == [(10, 1)]
        assert spark.read.parquet(plain).count() == 20
        assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None

        # a second write of one batch to one table
        other = frame(spark.newSession(), [Message({"number": 1})])
        for number in (7, 7):
            shop.names["merge"](other, number)
        assert spark.table("totals").agg(F.max("seen")).collect()[0][0] == 2
    finally:
        spark.sql("DROP TABLE totals")

    # Delta's own sink
    shop.fill('"Shop.Orders"', 10)
    checkpoint = shop.folder / "delta_checkpoint"
    into = {"path": str(shop.folder / "delta"), "checkpointLocation": str(checkpoint)}
    writer = stream().writeStream.format("delta").options(**into)
    query = writer.trigger(processingTime="1 hour").start()
    until((checkpoint / "commits" / "0").exists)
    query.stop()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    finish(stream().writeStream.format("delta").options(**into), checkpoint)
    assert spark.read.format("delta").load(into["path"]).count() == 10


@pytest.mark.spark
def test_bodies_of_older_and_newer_types_are_parsed_as_the_page_says(
    spark: SparkSession, shop: Shop
) -> None:
    """Good ones are orders, bad ones are kept with their bytes."""
    texts = {
        "good": '\ufeff{"OrderId":1,"Total":19.90,"Note":"x"}',
        "added": '{"OrderId":2,"Total":1.00,"Note":"x","Colour":"red"}',
        "removed": '{"OrderId":3,"Note":"x"}',
        "renamed": '{"OrderId":4,"total":1.00}',
        "wider": '{"OrderId":5,"Total":123456789.00}',
        "type": '{"OrderId":"six","Total":1.00}',
        "text": '{"OrderId":7,"Total":1.00,"Note":12}',
        "not JSON": "OrderId=8",
    }
    placed = [Message(each, message_type="Shop.OrderPlaced") for each in texts.values()]
    other = Message('{"OrderId":9}', message_type="Shop.OrderPaid")
    shop.names["received"] = frame(spark, [*placed, other])
    shop.names["spark"] = spark

    shop.names["received"].createOrReplaceTempView("raw")
    run(shop, *blocks("docs/guide/bodies.md"))
    by_sql = {row.OrderId: row.Total for row in shop.names["rows"]}
    orders = {row.OrderId: row.Total for row in shop.names["orders"].collect()}
    bad = [bytes(row.body).decode() for row in shop.names["bad"].collect()]
    loose = [row.Total for row in shop.names["totals"].collect()]

    assert set(orders) == {1, 2, 3, 4, 7}
    assert by_sql == orders
    assert [str(orders[each]) for each in (1, 2, 3, 4)] == ["19.90", "1.00", "None", "None"]
    assert bad == [texts[each] for each in ("wider", "type", "not JSON")]
    assert [str(each) for each in loose] == [
        *("19.90", "1.00", "None", "None", "None", "1.00", "1.00", "None", "None"),
    ]


@pytest.mark.spark
def test_the_code_of_the_raw_table(spark: SparkSession, shop: Shop) -> None:
    """Two tables and a replay have every message; the backfill sends each once."""
    create(shop, "Shop.Billing")
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 5)

    run(shop, *blocks("docs/guide/raw-table.md"))
    shop.run(*blocks("docs/guide/raw-table.md", "backfill"))  # as after an error

    tables = ("raw", "numbers", "sizes", "numbers_again")
    counts = [spark.read.format("delta").load(f"{shop.folder}/{each}").count() for each in tables]
    sent = headers(shop, '"Shop.Billing"')
    assert counts == [5, 5, 5, 5]
    assert {each["NServiceBus.EnclosedMessageTypes"] for each in sent} == {"Shop.PlaceOrder"}
    assert {each["NServiceBus.RelatedTo"] for each in sent} == {f"m-{n}" for n in range(1, 6)}
    assert len(sent) == 5


@pytest.mark.spark
def test_the_code_of_sending(spark: SparkSession, shop: Shop) -> None:
    """Commands, rows with their own destination, an event, replies, and a repeated batch."""
    create(shop, "Shop.Billing", "Shop.Archive")
    shop.sqlqueue("subscribe", "Shop.OrderScored", "--endpoint", "E", "--queue", "Shop.Archive")
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 2, ReplyToAddress="Shop.Billing")
    shop.fill('"Shop.Orders"', 1)

    shop.run(*blocks("docs/guide/send.md"))
    for number in (0, 0, 1):
        shop.names["send"](spark.range(2).select(F.lit("{}").alias("body")), number)

    billing, archive = headers(shop, '"Shop.Billing"'), headers(shop, '"Shop.Archive"')
    intents = [each["NServiceBus.MessageIntent"] for each in (*billing, *archive)]
    assert intents[:7] == ["Send"] * 5 + ["Reply"] * 2
    assert intents[7:] == ["Send"] * 2 + ["Publish"] * 3 + ["Send"] * 4
    assert {each["tenant"] for each in (*billing[3:5], *archive[:2])} == {"blue"}
    assert [each["NServiceBus.MessageId"] for each in archive[:2]] == ["invoice-2", "invoice-3"]
    assert shop.count("error") == 1
