"""The code of the pages runs as it stands, with a real Spark session, in the order of the page."""

from __future__ import annotations

import json
import re
import sys
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from jobs.submit import environ, started
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from waiting import until

from sqlq_spark import functions, metrics
from sqlq_spark.testing import Message, frame

from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.samples import Sample
    from pyspark.sql import DataFrame, SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark
ORDERS, BILLING, ARCHIVE, WEB = '"Shop.Orders"', '"Shop.Billing"', '"Shop.Archive"', '"Shop.Web"'


@pytest.fixture(autouse=True)
def spark_shop(spark: SparkSession, shop: Shop) -> Iterator[SparkSession]:
    """
    Make the other queues of the pages, and a session with Spark's own catalog.

    Tables are dropped.
    """
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


@dataclass(frozen=True)
class Case:
    """Pages that are run together, and the rows that they leave."""

    pages: tuple[str, ...]
    counts: dict[str, int]  # a queue, a table of the lake (`delta raw`) or `name x` → its rows
    before: Callable[[Shop], object] = lambda _: None
    after: Callable[[Shop], object] = lambda _: None


def subscribe(topic: str, queue: str) -> Callable[[Shop], object]:
    """Give a function that subscribes a queue."""
    return lambda shop: shop.sqlqueue("subscribe", topic, "--endpoint", "E", "--queue", queue)


def same_again(*functions: str) -> Callable[[Shop], object]:
    """Give a function that calls functions of a page with batches 0, 0 again, and 1."""

    def call(shop: Shop) -> None:
        bodies = [{"number": 1}, {}]  # the second has no key
        messages = [Message(each, message_type="Shop.PlaceOrder") for each in bodies]
        batch = frame(shop.names["spark"].newSession(), messages)
        for number in (0, 0, 1):
            for each in functions:
                shop.names[each](batch.select("body") if each == "send" else batch, number)

    return call


def totals(shop: Shop) -> None:
    """Make the table into which docs/guide/sinks.md merges."""
    text = f"CREATE TABLE totals (number INT, seen INT) USING delta LOCATION '{shop.folder}/totals'"
    shop.names["spark"].sql(text)


def contracts(shop: Shop) -> None:
    """Name the filled queue as the one that the page receives from, and subscribe another."""
    shop.words["Lake"] = "Shop.Orders"
    subscribe("Shop.Contracts.IOrderEvent", "Shop.Web")(shop)


def bodies(shop: Shop) -> None:
    """Send bodies of newer and older types, bad ones, and a message of another type."""
    good = [
        '\ufeff{"OrderId":1,"Total":19.90,"Colour":"red"}',
        '{"OrderId":2,"Note":"x"}',
        '{"OrderId":3,"total":1.00}',
        '{"OrderId":4,"Total":1.00,"Note":12}',
    ]
    bad = ['{"OrderId":5,"Total":123456789.00}', '{"OrderId":"6","Total":1.00}', "OrderId=7"]
    placed = [Message(each, message_type="Shop.OrderPlaced") for each in good + bad]
    other = Message('{"OrderId":9}', message_type="Shop.OrderPaid")
    shop.names["received"] = frame(shop.names["spark"], [*placed, other])
    shop.names["received"].createOrReplaceTempView("raw")


def change(shop: Shop, *changes: tuple[int, int, int, str]) -> None:
    """Let orders change: a key, a version, the day when it was sent, and the status."""
    types = {"-": "Shop.OrderDeleted", "no type": ""}
    for key, version, day, status in changes:
        shop.fill(
            ORDERS,
            1,
            f'{{"OrderId":{key},"Version":{version},"Status":"{status}"}}',
            EnclosedMessageTypes=types.get(status, "Shop.OrderChanged"),
            TimeSent=f"2026-01-{day:02} 00:00:00:000000 Z",
        )


def changed_late(shop: Shop) -> None:
    """Older messages in a later batch change nothing, not even a row that was deleted."""
    change(shop, (1, 1, 4, "late"), (2, 1, 1, "late"), (3, 1, 4, "late"), (4, 1, 1, "no type"))
    shop.run(*blocks(f"{GUIDE}upserts.md"))

    found = shop.names["spark"].read.format("delta").load(f"{shop.folder}/orders")
    rows = [(row.OrderId, row.Status, row.deleted) for row in found.orderBy("OrderId").collect()]
    assert rows == [(1, "x", False), (2, "y", False), (3, "-", True), (4, "no type", False)]


def keep(shop: Shop, *messages: tuple[str, int, int]) -> None:
    """Add messages to the raw table: the kind, an order, and the day when it was sent."""
    kept = [
        Message(
            {"OrderId": order},
            message_type=f"Shop.Order{kind}",
            headers={"NServiceBus.TimeSent": f"2026-01-{day:02} 00:00:00:000000 Z"},
        )
        for kind, order, day in messages
    ]
    rows = frame(shop.names["spark"], kept)
    rows.write.format("delta").mode("append").save(f"{shop.folder}/raw")


def billed_late(shop: Shop) -> None:
    """A bill that arrives after its watermark is dropped, and the batch process finds it."""
    keep(shop, ("Billed", 2, 1), ("Placed", 4, 20))
    shop.run(*blocks(f"{GUIDE}stateful.md"))

    progress = [each for run in shop.names["query"].recentProgress for each in run.stateOperators]
    assert sum(each.numRowsDroppedByWatermark for each in progress) == 1
    for name, bills in (("pairs", 2), ("pairs_corrected", 3)):
        found = shop.names["spark"].read.format("delta").load(f"{shop.folder}/{name}")
        assert found.where("billed IS NOT NULL").count() == bills, name


GUIDE = "docs/guide/"
PLACED = [("Placed", 1, 1), ("Placed", 1, 1), ("Placed", 2, 1), ("Placed", 3, 20)]
CHANGES = [(1, 1, 1, "-"), (1, 2, 2, "x"), (2, 1, 2, "y"), (2, 1, 1, "z"), (3, 1, 1, "z")]
RAW = {f"delta {each}": 5 for each in ("raw", "numbers", "sizes", "numbers_again")}
CASES = [
    Case(
        ("README.md", f"{GUIDE}checkpoints.md"),
        {"parquet orders": 16, ORDERS: 5, BILLING: 1000},
        lambda shop: shop.words.update({"/tmp/lake": str(shop.folder)}),  # noqa: S108
    ),
    Case(("docs/columns.md", "docs/options.md"), {ORDERS: 10}),
    Case(
        ("docs/delayed.md",),
        {'"Shop.Billing.Delayed"': 2},
        lambda shop: shop.sqlqueue("create", "Shop.Billing", "--delayed"),
    ),
    Case(("docs/dotnet.md",), {WEB: 3}, contracts),
    Case(
        ("docs/migration.md",),
        {'"SubscriptionRouting"': 2},
        subscribe("Shop.OrderPlaced", "error"),
    ),
    Case((f"{GUIDE}bodies.md",), {"name orders": 4, "name bad": 3}, bodies),
    Case(
        (f"{GUIDE}databricks.md", f"{GUIDE}troubleshooting.md", f"{GUIDE}sizing.md"),
        {ORDERS: 15},
    ),
    Case((f"{GUIDE}raw-table.md",), RAW | {BILLING: 5}),
    Case(
        (f"{GUIDE}send.md",),
        {BILLING: 28, ARCHIVE: 9},
        subscribe("Shop.OrderScored", "Shop.Archive"),
        same_again("send"),
    ),
    Case(
        (f"{GUIDE}sinks.md", "docs/guarantees.md"),
        {"delta orders": 4, "delta totals": 2},
        totals,
        same_again("merge", "into_delta"),
    ),
    Case(
        (f"{GUIDE}stateful.md",),
        {"delta pairs": 3, "delta pairs_corrected": 4},
        lambda shop: keep(shop, *PLACED, ("Billed", 1, 1), ("Billed", 3, 20)),
        billed_late,
    ),
    Case(
        (f"{GUIDE}upserts.md",),
        {"delta orders": 4, ORDERS: 0},
        lambda shop: change(shop, *CHANGES, (3, 2, 2, "-")),
        changed_late,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.pages[0])
def test_the_code_of_a_page_runs(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """Five new messages wait before each block of Python; each table has its rows in the end."""
    monkeypatch.setenv("SQLQ_TEST_POSTGRES", shop.url)
    login = psycopg.conninfo.conninfo_to_dict(shop.url)
    monkeypatch.setenv("SQLQUEUE_PASSWORD", str(login.get("password", "")))
    case.before(shop)
    for page in case.pages:
        for each in blocks(page):
            if each.language == "python" and each.unrun is None:
                shop.fill(ORDERS, 5, ReplyToAddress="Shop.Billing")
            shop.run(each, spark=spark if "/guide/" in page else None)
    case.after(shop)

    found = {}
    for name in case.counts:
        kind, _, place = name.partition(" ")
        if not place:
            found[name] = shop.count(name)[0]
        elif kind == "name":
            found[name] = shop.names[place].count()
        else:
            found[name] = spark.read.format(kind).load(f"{shop.folder}/{place}").count()
    assert found == case.counts


# ---------------------------------------------------------------- pages with tests of their own


def test_each_sql_of_the_page_of_bodies_gives_its_body(spark: SparkSession, shop: Shop) -> None:
    """JSON is equal word for word, and the XML has one element for each field."""
    bodies = table("docs/bodies.md", "json")
    texts = ", ".join(each.strip("`") for each in bodies.column())

    shop.run(*blocks("docs/bodies.md"))

    [found] = spark.sql(f"SELECT {texts}").collect()
    made = [shop.names[each].collect()[0][0] for each in ("bodies", "orders")]
    assert [f"`{body}`" for body in found] == bodies.column(1)
    assert f"`{made[0]}`" in read("docs/bodies.md")
    assert "<OrderId>12</OrderId><State>Paid</State>" in re.sub(r"\s", "", made[1])


def test_the_code_of_the_page_of_failed_messages(spark: SparkSession, shop: Shop) -> None:
    """Good rows are in the table, bad ones in the error queue and back, early ones wait."""
    for messages, body in ((3, ""), (1, "{}"), (1, '{"number":2000}')):
        shop.fill(ORDERS, messages, body)

    shop.run(*blocks("docs/failed.md", "split"))
    [failed] = shop.headers("error")
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
    # the message of the error queue: ServiceControl has not asked for an answer
    assert shop.count("error", '"Shop.Orders.Delayed"') == [0, 1]


def test_the_table_of_headers_has_those_that_are_sent(spark: SparkSession, shop: Shop) -> None:
    """The sink, its options and columns, and the functions send them. Endpoints write no others."""
    by: dict[str, set[str]] = {}
    for cell, source, _ in table("docs/columns.md", "sent-headers").rows:
        by.setdefault(source, set()).update(re.findall(r"`([^`]+)`", cell))
    always, stated = by["always"], by["option, column"]
    new = always | by["`reply`, `send`, `publish`"]
    given = dict.fromkeys(["traceparent", "tracestate", "baggage"], "x")
    given |= dict.fromkeys(by["never"], "x") | {"NServiceBus.ReplyToAddress": "Shop.Billing"}
    received = frame(spark, [Message({}, headers=given)])
    body = spark.range(1).selectExpr("'{}' AS body")
    subscribe("Shop.Paid", "Shop.Billing")(shop)

    def sent(rows: DataFrame, place: str = BILLING, **options: str) -> set[str]:
        """The headers of what a write sends."""
        shop.sql(f"DELETE FROM {place}")
        rows.write.format("sqlqueue").options(url=shop.url, **options).mode("append").save()
        [(text,)] = shop.sql(f"SELECT headers FROM {place}")
        return {*json.loads(text)}

    options = {"messageType": "Shop.Paid", "contentType": "text/xml", "replyToAddress": "error"}
    limited = body.selectExpr("body", "'00:01:00' AS timeToBeReceived")
    delayed = body.selectExpr("body", "'00:01:00' AS delay")
    all_stated = sent(limited, queue="Shop.Billing", **options)
    all_stated |= sent(delayed, '"Shop.Orders.Delayed"', queue="Shop.Orders")
    published = functions.publish("body", message_type="Shop.Paid")
    wire = [json.loads(line) for line in read("tests/golden/nservicebus-10.jsonl").splitlines()]
    written = {
        name for row in wire if row["table"] == "Lake" for name in json.loads(row["headers"])
    }

    assert sent(body, queue="Shop.Billing") == always
    assert all_stated == always | stated
    assert sent(received.select(*functions.send("body", "Shop.Billing"))) == new
    assert sent(received.select(*published)) == new | {"NServiceBus.EnclosedMessageTypes"}
    assert sent(received.select(*functions.reply("body"))) == new | by["`reply`"]
    assert written - {"tenant", "n"} <= always | stated | by["never"]


def test_a_listener_sends_what_the_table_of_alerts_names(spark: SparkSession, shop: Shop) -> None:
    """It exports what batches received once they are acknowledged, and the end of the query."""
    file = shop.folder / "orders.prom"
    [listener] = blocks("docs/guide/monitoring.md", "listener")
    text = listener.text.replace("/var/lib/node_exporter/orders.prom", str(file))
    shop.run(replace(listener, text=text))

    def sample(name: str) -> Sample | None:
        """A metric in the file. The query and its queue have one of each."""
        families = text_string_to_metric_families(file.read_text() if file.exists() else "")
        samples = [sample for family in families for sample in family.samples]
        return next((found for found in samples if found.name == f"sqlqueue_query_{name}"), None)

    def value(name: str) -> float | None:
        found = sample(name)
        return None if found is None else found.value

    idle = "spark.sql.streaming.noDataProgressEventInterval"
    interval = spark.conf.get(idle)
    assert interval is not None
    spark.conf.set(idle, "1000")
    try:
        shop.fill(ORDERS, 5)
        shop.run(*blocks("docs/guide/monitoring.md", "query"))
        until(lambda: value("rows_total") == 5)
        shop.fill(ORDERS, 7)
        shop.run(*blocks("docs/guide/monitoring.md", "database"))
        until(lambda: value("diverted_total") == 0)
        # the queue is empty, and Spark makes no batch
        until(lambda: value("batch_seconds") == 0)
        gauges = [sample(name) for name in ("backlog", "oldest_seconds")]
        shop.names["query"].stop()
        until(lambda: value("running") == 0)
    finally:
        spark.conf.set(idle, interval)
        spark.streams.removeListener(shop.names["listener"])

    for gauge in gauges:
        assert gauge is not None
        assert gauge.value == 0
        assert gauge.labels["query"] == "orders"
        assert gauge.labels["queue"].endswith("Shop.Orders")
        assert gauge.labels["database"]
    assert (value("rows_total"), value("failed")) == (12, 0)
    alerts = {each.strip("`") for each in table("docs/guide/monitoring.md", "alerts").column()}
    assert alerts <= {*metrics.GAUGES, *metrics.COUNTERS}


def test_the_statements_of_the_page_of_sql(spark_shop: SparkSession, shop: Shop) -> None:
    """Views and tables browse, `INSERT` sends, and a stream receives."""
    shop.names["spark"] = spark_shop
    shop.fill(ORDERS, 5)

    shop.run(*blocks("docs/sql.md"), spark=spark_shop)

    assert spark_shop.read.parquet(f"{shop.folder}/numbers").count() == 5
    assert shop.count(ORDERS, BILLING) == [0, 6]


# ---------------------------------------------------------------- docs/recipes.md

DELTA = "from spark import driver\nspark = driver.session({'sink': 'delta'})\n"
WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
# rows and greatest last value of each answer
ANSWERS = [(2, "4"), (2, "3.0"), (2, "1.0"), (2, "Shop.OrderPlaced"), (2, "2"), (6, "m-2")]
ANSWERS += [(1, "5"), (1, "5"), (3, "m-3"), (2, "System.Bad")]


def handled(shop: Shop, messages: int, kind: str, endpoint: str, day: int, **more: str) -> None:
    """Let an endpoint audit messages. It took them 1 s after they were sent, for 2 s."""
    times = {"TimeSent": 0, "ProcessingStarted": 1, "ProcessingEnded": 3}
    texts = {name: f"2026-11-{day} 10:00:0{at}:000000 Z" for name, at in times.items()}
    named = {"EnclosedMessageTypes": kind, "ProcessingEndpoint": endpoint, "Odd": r"a\/b"}
    shop.fill("audit", messages, '{"OrderId":12}', **named, **texts, **more)


@pytest.mark.faults
def test_the_recipes_around_servicecontrol(spark: SparkSession, shop: Shop) -> None:
    """The first recipe is killed between its two writes. It passes messages on byte for byte."""
    create, streams, *replay_and_views, ask = blocks("docs/recipes.md")
    shop.sqlqueue("create", "audit")
    shop.run(create)
    retry = str(uuid.uuid4())
    returned = {"Retry.UniqueMessageId": retry, "Retry.AcknowledgementQueue": "error_operators"}
    bad = {"ExceptionInfo.ExceptionType": "System.Bad", "ExceptionInfo.StackTrace": r"at A\r\nat B"}
    for messages in (2, 1):  # m-1 twice
        handled(shop, messages, "Shop.OrderPlaced", "Shop.Billing", 16, ConversationId="c")
    handled(shop, 3, "Shop.OrderBilled", "Shop.Shipping", 17, ConversationId="c", RelatedTo="m-2")
    handled(shop, 1, "Shop.OrderBilled", "Shop.Shipping", 17, **returned)
    shop.fill("error", 5, "{}", FailedQ="q", TimeOfFailure="2026-11-15 09:00:00:000000 Z", **bad)
    shop.sql(
        "UPDATE error SET body = '\\x00ff'; "
        "UPDATE audit SET headers = replace(headers, 'NServiceBus.Retry', 'ServiceControl.Retry')"
    )
    rows = "SELECT headers, body FROM {} ORDER BY headers"
    audited, failed = (shop.sql(rows.format(each)) for each in ("audit", "error"))

    with psycopg.connect(shop.url) as other:
        other.execute("LOCK audit_operators, error_operators IN SHARE MODE")
        patient = shop.ours(streams.text).replace("dict(", "dict(queryTimeout='300s', ")
        with started([sys.executable, "-c", DELTA + patient], shop.folder, environ()) as running:
            running.until(lambda: len(shop.sql(WAITING)) == 2)
    written = [
        spark.read.format("delta").load(f"{shop.folder}/first/{x}") for x in ("audit", "error")
    ]
    between = [
        *(each.count() for each in written),
        *shop.count("audit_operators", "error_operators"),
    ]
    shop.run(streams)
    fresh = spark.newSession()
    shop.run(*replay_and_views, spark=fresh)
    asked = [fresh.sql(each).collect() for each in shop.ours(ask.text).split(";\n")]

    assert between == [7, 5, 0, 0]
    assert [each.count() for each in written] == [7, 5]
    needed = [row for row in audited if "Placed" in row[0] or "ServiceControl" in row[0]]
    assert shop.sql(rows.format("audit_operators")) == needed
    assert shop.sql(rows.format("error_operators")) == failed
    sent = shop.headers(BILLING)
    assert sorted(each["NServiceBus.MessageId"] for each in sent) == [
        *["replay 1 m-1"] * 2,
        "replay 1 m-2",
    ]
    assert all("NServiceBus.ProcessingEnded" not in each for each in sent)
    assert [(len(each), max(str(row[-1]) for row in each)) for each in asked] == ANSWERS
