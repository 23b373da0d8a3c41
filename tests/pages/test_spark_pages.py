"""The code of the pages runs as it stands, with a real Spark session, in the order of the page."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish
from waiting import until

from sqlq_spark.testing import Message, frame

from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark
ORDERS, BILLING, ARCHIVE, WEB = '"Shop.Orders"', '"Shop.Billing"', '"Shop.Archive"', '"Shop.Web"'


@pytest.fixture(autouse=True)
def spark_shop(spark: SparkSession, shop: Shop) -> Iterator[SparkSession]:
    """Make the pages' other queues, and a session with Spark's own catalog; tables are dropped."""
    for each in ("Shop.Billing", "Shop.Archive", "Shop.Web"):
        shop.sqlqueue("create", each)
    shop.names["spark"] = spark
    plain = spark.newSession()
    plain.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield plain
    for made in plain.catalog.listTables():
        if not made.isTemporary:
            (spark if made.name == "totals" else plain).sql(f"DROP TABLE `{made.name}`")


# ---------------------------------------------------------------- pages that are run as a whole


@dataclass(frozen=True, kw_only=True)
class Case:
    """Pages that are run together, and the rows that they leave."""

    pages: tuple[str, ...]
    counts: dict[str, int]  # of a queue, or of a table of the lake, such as `delta raw`
    before: Callable[[Shop], object] = field(default=lambda _: None)
    after: Callable[[Shop], object] = field(default=lambda _: None)


def stop(shop: Shop) -> None:
    """Stop the stream that answers when it has answered."""
    shop.names["query"].processAllAvailable()
    shop.names["query"].stop()


def subscribe(topic: str, queue: str) -> Callable[[Shop], object]:
    """Give a function that subscribes a queue."""
    return lambda shop: shop.sqlqueue("subscribe", topic, "--endpoint", "E", "--queue", queue)


def same_again(*functions: str) -> Callable[[Shop], object]:
    """Give a function that hands batches to functions of a page: 0, 0 again, and 1."""

    def call(shop: Shop) -> None:
        messages = [Message({"number": 1}, message_type="Shop.PlaceOrder")]
        batch = frame(shop.names["spark"].newSession(), messages)
        for number in (0, 0, 1):
            for each in functions:
                shop.names[each](batch.select("body") if each == "send" else batch, number)

    return call


def totals(shop: Shop) -> None:
    """Make the table into which docs/guide/sinks.md merges."""
    columns = "(number INT, seen INT)"
    text = f"CREATE TABLE totals {columns} USING delta LOCATION '{shop.folder}/totals'"
    shop.names["spark"].sql(text)


CASES = [
    Case(
        pages=("README.md", "docs/guide/changing-options.md", "docs/functions.md"),
        counts={"parquet orders": 5, ORDERS: 0, BILLING: 1015},
        after=stop,
    ),
    Case(pages=("docs/sqlqueue.md",), counts={"parquet orders": 5, ARCHIVE: 35}),
    Case(
        pages=("docs/dotnet.md",),
        counts={ORDERS: 0, WEB: 3, BILLING: 10},
        before=lambda shop: (
            shop.words.update(Lake="Shop.Orders"),
            subscribe("Shop.Contracts.IOrderEvent", "Shop.Web")(shop),
        ),
    ),
    Case(
        pages=("docs/migration.md",),
        counts={"delta orders": 5, ORDERS: 0},
        before=subscribe("Shop.OrderPlaced", "error"),
    ),
    Case(pages=("docs/guide/kafka.md",), counts={ORDERS: 5}),
    Case(
        pages=("docs/guide/read-and-write.md", "docs/guide/sizing.md"),
        counts={"parquet received": 5, BILLING: 3},
    ),
    Case(
        pages=(
            "docs/guide/databricks.md",
            "docs/guide/versions.md",
            "docs/guide/troubleshooting.md",
        ),
        counts={ORDERS: 15},
    ),
    Case(pages=("docs/guide/checkpoints.md",), counts={"parquet orders": 5, ORDERS: 5}),
    Case(
        pages=("docs/guide/raw-table.md",),
        counts={"delta raw": 5, "delta numbers": 5, "delta sizes": 5, "delta numbers_again": 5}
        | {BILLING: 5},
    ),
    Case(
        pages=("docs/guide/send.md",),
        counts={BILLING: 25, ARCHIVE: 7},
        before=subscribe("Shop.OrderScored", "Shop.Archive"),
        after=same_again("send"),
    ),
    Case(
        pages=("docs/guide/sinks.md", "docs/transactions.md"),
        counts={"delta appended": 2, "delta orders": 2, "delta totals": 1},
        before=totals,
        after=same_again("append", "merge", "look", "into_delta"),
    ),
    Case(
        pages=("docs/guide/trial.md",),
        counts={"parquet orders": 3},
        before=lambda shop: (
            shop.names.update(input=lambda _: None),
            shop.words.update({"/tmp/sqlqueue_trial": str(shop.folder)}),  # noqa: S108 - the page's
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.pages[0])
def test_the_code_of_a_page_runs(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """Five new messages wait before each block of Python; each table has its rows in the end."""
    monkeypatch.setenv("SQLQ_TEST_POSTGRES", shop.url)
    case.before(shop)
    for page in case.pages:
        for each in blocks(page):
            if each.language == "python" and each.unrun is None:
                shop.fill(ORDERS, 5, ReplyToAddress="Shop.Billing")
            if (page, each.language) != ("README.md", "sh"):  # which makes an environment
                shop.run(each, spark=spark if "/guide/" in page else None)
    case.after(shop)

    found = {}
    for name in case.counts:
        kind, _, place = name.partition(" ")
        lake = spark.read.format(kind).load(f"{shop.folder}/{place}") if place else None
        found[name] = shop.count(name)[0] if lake is None else lake.count()
    assert found == case.counts


# ---------------------------------------------------------------- the reference, bodies


def keys(value: Any) -> Any:
    """The keys of a JSON value."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    return [keys(each) for each in value[:1]] if isinstance(value, list) else None


def test_the_progress_on_the_page_has_the_keys_of_a_real_one(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Of the second micro-batch; and the table below it names all of what is ours."""
    [sample] = blocks("docs/sqlqueue.md", "progress")
    shown = json.loads(sample.text)
    shop.fill(ORDERS, 250, TimeSent="2026-06-30 17:05:09:123456 Z")
    options = {"url": shop.url, "queue": "Shop.Orders", "maxMessagesPerTrigger": "100"}

    stream = spark.readStream.format("sqlqueue").options(**options).load()
    query = finish(stream.writeStream.format("noop"), tmp_path / "checkpoint")
    real = json.loads(query.recentProgress[1].json)

    [theirs], [ours] = keys(shown.pop("sources")), keys(real.pop("sources"))
    named = {each.strip("`") for each in table("docs/sqlqueue.md", "metrics").column()}
    assert named == ours.pop("latestOffset").keys() | {"queues"}  # only of several
    theirs.pop("latestOffset")
    assert (keys(shown), theirs) == (keys(real), ours)


def test_each_sql_of_the_page_of_bodies_gives_its_body(spark: SparkSession, shop: Shop) -> None:
    """JSON word for word, XML of one element each, and a body with a mark is read."""
    bodies = table("docs/bodies.md", "json")
    marked = "\ufeff" + '{"OrderId":12,"Total":19.90}'
    shop.names["received"] = spark.createDataFrame([(marked.encode(),)], "body binary")

    shop.run(*blocks("docs/bodies.md"))

    [found] = spark.sql("SELECT " + ", ".join(row[1].strip("`") for row in bodies.rows)).collect()
    assert [f"`{body}`" for body in found] == bodies.column(2)
    json_body, xml, order = (
        shop.names[each].collect()[0][0] for each in ("bodies", "orders", "placed")
    )
    assert f"`{json_body}`" in read("docs/bodies.md")
    assert "<OrderId>12</OrderId><State>Paid</State>" in re.sub(r"\s", "", xml)
    assert order.OrderId == 12


def test_bodies_of_older_and_newer_types_are_parsed(spark: SparkSession, shop: Shop) -> None:
    """Good ones are orders, bad ones are kept with their bytes."""
    good = {
        '\ufeff{"OrderId":1,"Total":19.90,"Note":"x"}': "19.90",
        '{"OrderId":2,"Total":1.00,"Colour":"red"}': "1.00",  # a property was added
        '{"OrderId":3,"Note":"x"}': "None",  # one was removed
        '{"OrderId":4,"total":1.00}': "None",  # one was renamed
        '{"OrderId":5,"Total":1.00,"Note":12}': "1.00",
    }
    bad = ['{"OrderId":6,"Total":123456789.00}', '{"OrderId":"7","Total":1.00}', "OrderId=8"]
    placed = [Message(each, message_type="Shop.OrderPlaced") for each in [*good, *bad]]
    other = Message('{"OrderId":9}', message_type="Shop.OrderPaid")
    shop.names["received"] = frame(spark, [*placed, other])
    shop.names["received"].createOrReplaceTempView("raw")

    shop.run(*blocks("docs/guide/bodies.md"), spark=spark)

    for rows in (shop.names["orders"].collect(), shop.rows):
        assert {row.OrderId: str(row.Total) for row in rows} == dict(enumerate(good.values(), 1))
    assert [bytes(row.body).decode() for row in shop.names["bad"].collect()] == bad
    assert sum(row.Total is None for row in shop.names["totals"].collect()) == 5


# ---------------------------------------------------------------- failed messages, alerts


def test_the_code_of_the_page_of_failed_messages(spark: SparkSession, shop: Shop) -> None:
    """Good rows are in the table, bad ones in the error queue and back, early ones wait."""
    for messages, body in ((3, ""), (1, "{}"), (1, '{"number":2000}')):
        shop.fill(ORDERS, messages, body)

    shop.run(*blocks("docs/failed.md", "split"))
    [failed] = shop.headers("error")
    [(waiting,)] = shop.sql('SELECT headers FROM "Shop.Orders.Delayed"')
    shop.run(*blocks("docs/failed.md", "operator"))
    [returned] = shop.headers(ORDERS)
    shop.names |= {"F": F, "DATABASE": {"url": shop.url}}
    shop.run(*blocks("docs/failed.md", "acknowledge"))
    given = spark.read.format("sqlqueue").options(url=shop.url, queue="Shop.Orders").load()
    shop.names["acknowledge"](given, '"public"."error"')

    named = {each.strip("`") for each in table("docs/failed.md", "failure-headers").column()}
    kept = {each for each in named if "Processing" in each or each.startswith("$.")}
    optional = {f"NServiceBus.ExceptionInfo.{each}" for each in ("Source", "StackTrace")}
    assert spark.read.format("delta").load(f"{shop.folder}/orders").count() == 3
    assert failed.keys() - returned.keys() == named - kept - optional
    assert kept <= returned.keys()
    assert json.loads(waiting)["NServiceBus.Retries"] == "1"
    assert shop.count("error") == [0]  # ServiceControl has not asked for an answer


def test_a_listener_sends_what_the_table_of_alerts_names(spark: SparkSession, shop: Shop) -> None:
    """Of the second batch and later ones, when another batch was acknowledged; and its end."""
    sent: list[tuple[str, Any]] = []
    shop.run(*blocks("docs/guide/monitoring.md", "listener"))
    shop.names["send"] = lambda name, value, **_: sent.append((name, value))
    shop.fill(ORDERS, 5)
    try:
        shop.run(*blocks("docs/guide/monitoring.md", "query"))
        until(lambda: "backlog" in {name for name, _ in sent})
        shop.fill(ORDERS, 7)
        until(lambda: "diverted" in {name for name, _ in sent})
        shop.names["query"].stop()
        until(lambda: "failed" in {name for name, _ in sent})
    finally:
        spark.streams.removeListener(shop.names["listener"])
    shop.run(*blocks("docs/guide/monitoring.md", "database"))

    alerts = table("docs/guide/monitoring.md", "alerts").column()
    assert {each.strip("`") for each in alerts} <= {name for name, _ in sent}
    assert sum(value for name, value in sent if name == "rows") == 12
    assert {value for name, value in sent if name in {"failed", "diverted"}} == {0}


# ---------------------------------------------------------------- SQL


def test_the_statements_of_the_page_of_sql(spark_shop: SparkSession, shop: Shop) -> None:
    """Views and tables browse, `INSERT` sends, and a stream receives."""
    shop.names["spark"] = spark_shop
    shop.fill(ORDERS, 5)
    for each in blocks("docs/sql.md"):
        shop.run(each, spark=spark_shop)

    assert shop.rows[0].messages == 0
    assert spark_shop.read.parquet(f"{shop.folder}/numbers").count() == 5
    assert shop.count(BILLING) == [7]
