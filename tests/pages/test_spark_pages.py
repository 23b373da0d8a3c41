"""The code of the pages runs as it stands, with a real Spark session, in the order of the page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish
from waiting import until

from sqlq_spark.testing import Message, frame

from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark
ORDERS, BILLING, WEB = '"Shop.Orders"', '"Shop.Billing"', '"Shop.Web"'
TYPE, INTENT = "NServiceBus.EnclosedMessageTypes", "NServiceBus.MessageIntent"
HERE = "OPTIONS (url '{url}', queue 'Shop.Orders')"
SEND = "OPTIONS (url '{url}', queue 'Shop.Billing', messageType 'Shop.BillOrder')"


@pytest.fixture(autouse=True)
def _queues(spark: SparkSession, shop: Shop) -> None:
    """Make the pages' other queues; their code finds the session."""
    for each in ("Shop.Billing", "Shop.Archive", "Shop.Web"):
        shop.sqlqueue("create", each)
    shop.names["spark"] = spark


def landed(shop: Shop, kind: str, *tables: str) -> list[int]:
    """How many rows tables of the lake have."""
    spark: SparkSession = shop.names["spark"]
    return [spark.read.format(kind).load(f"{shop.folder}/{each}").count() for each in tables]


# ---------------------------------------------------------------- first steps and the reference


def test_the_code_of_the_readme_and_of_a_reply(shop: Shop) -> None:
    """What waited is in the table, what was sent is in the queue, and a question has an answer."""
    shop.fill(ORDERS, 10)

    shop.run(*blocks("README.md", "receive"), *blocks("README.md", "send"))
    shop.fill(ORDERS, 1, ReplyToAddress="Shop.Billing")
    shop.run(*blocks("docs/functions.md", "reply"))
    shop.names["query"].processAllAvailable()
    shop.names["query"].stop()

    sent = shop.headers(BILLING)
    assert landed(shop, "parquet", "orders") == [10]
    assert sum(each[TYPE].startswith("Shop.Contracts.BillOrder") for each in sent) == 1000
    assert sum(each.get("NServiceBus.RelatedTo") == "m-1" for each in sent) == 1


def test_the_code_of_the_page_of_the_format(shop: Shop) -> None:
    """Every read and write of the page, each with messages that wait."""
    for each in blocks("docs/sqlqueue.md"):
        if each.language in {"python", "sh"}:
            shop.fill(ORDERS, 10)
            shop.fill(BILLING, 5)
            shop.run(each)

    assert landed(shop, "parquet", "orders") == [10]
    assert {each[TYPE] for each in shop.headers(BILLING)} == {"Shop.PlaceOrder"}  # the rest went on
    assert shop.count('"Shop.Archive"')[0] > 50
    assert shop.names["several"].columns == ["queue", "body"]


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


def test_the_trial(spark: SparkSession, shop: Shop) -> None:
    """From a server to a table and back, as the page's reader types it."""
    shop.names["input"] = lambda _: None
    shop.words["/tmp/sqlqueue_trial"] = str(shop.folder)  # noqa: S108 - as the page has it
    steps = [each for each in blocks("docs/guide/trial.md") if each.id != "clean"]
    again = [each for each in steps if each.id in {"stream", "view"}]

    with mock.patch.dict("os.environ", {"SQLQ_TEST_POSTGRES": shop.url}):
        shop.run(*steps, *again, spark=spark)
    waiting = spark.table("trial_orders").count()
    shop.run(*blocks("docs/guide/trial.md", "clean"))

    assert waiting == 0
    assert shop.names["received"].count() == 6
    assert shop.sql("SELECT to_regclass('\"Trial.Orders\"')") == [(None,)]


def test_the_code_of_moving_from_kafka_and_jdbc(shop: Shop) -> None:
    """A look deletes nothing, a stream receives all, also what a JDBC read loses."""
    shop.fill(ORDERS, 5)
    shop.run(*blocks("docs/guide/kafka.md", "look"))
    assert shop.count(ORDERS) == [5]
    shop.run(*blocks("docs/guide/kafka.md", "consumes"))
    assert shop.count(ORDERS) == [0]

    shop.sqlqueue("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", "error")
    for each in blocks("docs/migration.md"):
        shop.fill(ORDERS, 10 * (each.language == "python" and each.unrun is None))
        shop.run(each)
    assert shop.rows == [(0,)]  # of the message that the JDBC read has lost
    assert landed(shop, "delta", "orders") == [10]
    assert "no receipts" in shop.printed


# ---------------------------------------------------------------- read, parse, write


def test_the_code_of_reading_and_writing(spark: SparkSession, shop: Shop) -> None:
    """A browse shows what waits, of the page and of docs/guide/databricks.md."""
    shop.fill(ORDERS, 4)
    shop.run(*blocks("docs/guide/databricks.md", "check"), *blocks("docs/guide/versions.md"))
    assert shop.count(ORDERS) == [4]

    shop.run(*blocks("docs/guide/read-and-write.md"), *blocks("docs/guide/sizing.md"))
    for group in ("browse", "columns"):  # again, with what was sent
        shop.run(*blocks("docs/guide/read-and-write.md", group))
    assert landed(shop, "parquet", "received") == [4]
    assert {row.type for row in shop.names["typed"].collect()} == {"Shop.BillOrder"}
    shop.run(*blocks("docs/guide/troubleshooting.md"))
    assert "python" in "".join(shop.capture.readouterr())


def test_each_sql_of_the_page_of_bodies_gives_its_body(shop: Shop) -> None:
    """JSON word for word, XML of one element each, and a body with a mark is read."""
    bodies = table("docs/bodies.md", "json")
    marked = "\ufeff" + '{"OrderId":12,"Total":19.90}'
    spark: SparkSession = shop.names["spark"]
    shop.names["received"] = spark.createDataFrame([(marked.encode(),)], "body binary")

    shop.run(*blocks("docs/bodies.md"))

    [found] = spark.sql("SELECT " + ", ".join(row[1].strip("`") for row in bodies.rows)).collect()
    assert [f"`{body}`" for body in found] == bodies.column(2)
    [json_body], [xml], [order] = (
        shop.names[each].collect()[0][:1] for each in ("bodies", "orders", "placed")
    )
    assert f"`{json_body}`" in read("docs/bodies.md")
    assert "<OrderId>12</OrderId><State>Paid</State>" in re.sub(r"\s", "", xml)
    assert order.OrderId == 12


def test_bodies_of_older_and_newer_types_are_parsed(spark: SparkSession, shop: Shop) -> None:
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
    shop.names["received"].createOrReplaceTempView("raw")

    shop.run(*blocks("docs/guide/bodies.md"), spark=spark)

    orders = {row.OrderId: str(row.Total) for row in shop.names["orders"].collect()}
    assert orders == {1: "19.90", 2: "1.00", 3: "None", 4: "None", 7: "1.00"}
    assert {row.OrderId: str(row.Total) for row in shop.rows} == orders
    bad = [bytes(row.body).decode() for row in shop.names["bad"].collect()]
    assert bad == [texts[each] for each in ("wider", "type", "not JSON")]
    assert sum(row.Total is None for row in shop.names["totals"].collect()) == 5


def test_the_code_of_the_raw_table(spark: SparkSession, shop: Shop) -> None:
    """Two tables and a replay have every message; the backfill sends each once."""
    shop.fill(ORDERS, 5)

    shop.run(*blocks("docs/guide/raw-table.md"), spark=spark)
    shop.run(*blocks("docs/guide/raw-table.md", "backfill"))  # as after an error

    tables = ("raw", "numbers", "sizes", "numbers_again")
    assert landed(shop, "delta", *tables) == [5, 5, 5, 5]
    related = [each["NServiceBus.RelatedTo"] for each in shop.headers(BILLING)]
    assert sorted(related) == [f"m-{n}" for n in range(1, 6)]


def test_which_sinks_write_a_repeated_batch_twice(spark: SparkSession, shop: Shop) -> None:
    """Delta and MERGE with the names of the page skip it; a write without a name does not."""
    spark.sql(f"CREATE TABLE totals (number INT, seen INT) USING delta LOCATION '{shop.folder}/t'")
    shop.fill(ORDERS, 10)
    failing = iter((True, False))

    def write(batch: DataFrame, number: int) -> None:
        for name in ("append", "merge", "look", "into_delta"):
            shop.names[name](batch, number)
        batch.write.mode("append").parquet(f"{shop.folder}/plain")
        if next(failing):
            raise RuntimeError("after the writes")

    def run() -> None:
        stream = spark.readStream.format("sqlqueue").options(url=shop.url).load("Shop.Orders")
        finish(stream.writeStream.foreachBatch(write), shop.folder / "each")

    try:
        shop.run(*blocks("docs/guide/sinks.md"), *blocks("docs/transactions.md"))
        with pytest.raises(Exception, match="after the writes"):
            run()
        run()
        seen = spark.table("totals").agg(F.count("*"), F.max("seen")).collect()
    finally:
        spark.sql("DROP TABLE totals")

    assert [tuple(row) for row in seen] == [(10, 1)]
    assert landed(shop, "delta", "appended", "orders") == [10, 10]
    assert landed(shop, "parquet", "plain") == [20]


# ---------------------------------------------------------------- send, fail, watch


def test_the_code_of_sending(spark: SparkSession, shop: Shop) -> None:
    """Commands, rows with their own destination, an event, replies, and a repeated batch."""
    shop.sqlqueue("subscribe", "Shop.OrderScored", "--endpoint", "E", "--queue", "Shop.Archive")
    shop.fill(ORDERS, 2, ReplyToAddress="Shop.Billing")
    shop.fill(ORDERS, 1)

    shop.run(*blocks("docs/guide/send.md"))
    for number in (0, 0, 1):
        shop.names["send"](spark.range(2).select(F.lit("{}").alias("body")), number)

    billing, archive = shop.headers(BILLING), shop.headers('"Shop.Archive"')
    assert [each[INTENT] for each in billing] == ["Send"] * 5 + ["Reply"] * 2
    assert [each[INTENT] for each in archive] == ["Send"] * 2 + ["Publish"] * 3 + ["Send"] * 4
    assert [each["NServiceBus.MessageId"] for each in archive[:2]] == ["invoice-2", "invoice-3"]
    assert shop.count("error") == [1]


def test_the_code_of_the_page_for_the_net_team(shop: Shop) -> None:
    """Spark receives, is subscribed, publishes and answers."""
    shop.sqlqueue(
        "subscribe", "Shop.Contracts.IOrderEvent", "--endpoint", "W", "--queue", "Shop.Web"
    )
    first, *rest = [each for each in blocks("docs/dotnet.md") if each.language in {"python", "sh"}]
    shop.run(first)
    shop.fill('"Lake"', 4, ReplyToAddress="Shop.Web")
    shop.run(*rest)

    events = shop.headers(WEB)
    types = ["Shop.Contracts.OrderScored;Shop.Contracts.IOrderEvent"] * 3
    assert [each[TYPE] for each in events] == [*types, *["Shop.Contracts.OrderArchived"] * 4]
    assert {each[INTENT] for each in events} == {"Publish", "Reply"}
    assert shop.count('"Lake"') == [0]


def test_the_code_of_the_page_of_failed_messages(spark: SparkSession, shop: Shop) -> None:
    """Good rows are in the table, bad ones in the error queue and back, early ones wait."""
    shop.fill(ORDERS, 3)
    shop.fill(ORDERS, 1, "{}")
    shop.fill(ORDERS, 1, '{"number":2000}')

    shop.run(*blocks("docs/failed.md", "split"))
    [failed] = shop.headers("error")
    [(waiting,)] = shop.sql('SELECT headers FROM "Shop.Orders.Delayed"')
    shop.run(*blocks("docs/failed.md", "operator"))
    [returned] = shop.headers(ORDERS)

    named = {each.strip("`") for each in table("docs/failed.md", "failure-headers").column()}
    kept = {each for each in named if "Processing" in each or each.startswith("$.")}
    optional = {f"NServiceBus.ExceptionInfo.{each}" for each in ("Source", "StackTrace")}
    assert landed(shop, "delta", "orders") == [3]
    assert failed.keys() - returned.keys() == named - kept - optional
    assert kept <= returned.keys()
    assert json.loads(waiting)["NServiceBus.Retries"] == "1"

    shop.sql(f"DELETE FROM {ORDERS}")
    retried = {"Retry.UniqueMessageId": "u", "Retry.AcknowledgementQueue": '"public"."error"'}
    for address in ("error", "Shop.Orders"):
        asked = retried | {"Retry.AcknowledgementQueue": f'"public"."{address}"'}
        text = json.dumps({f"ServiceControl.{name}": value for name, value in asked.items()})
        values = "VALUES (gen_random_uuid(), %s, '')"
        shop.sql(f"INSERT INTO {ORDERS} (id, headers, body) {values}", text)
    shop.names |= {"F": F, "DATABASE": {"url": shop.url}}
    shop.run(*blocks("docs/failed.md", "acknowledge"))
    given = spark.read.format("sqlqueue").options(url=shop.url, queue="Shop.Orders").load()
    shop.names["acknowledge"](given, '"public"."error"')

    [answer] = shop.headers("error")  # only to the queue that is expected
    assert answer["ServiceControl.Retry.UniqueMessageId"] == "u"


def test_a_listener_sends_what_the_table_of_alerts_names(spark: SparkSession, shop: Shop) -> None:
    """Of the second batch and later ones, when another batch was acknowledged; and its end."""
    sent: list[tuple[str, Any]] = []
    shop.run(*blocks("docs/guide/monitoring.md", "listener"))
    shop.names["send"] = lambda name, value, **_: sent.append((name, value))
    try:
        for messages, metric in ((5, "backlog"), (7, "diverted")):
            shop.fill(ORDERS, messages)
            if messages == 5:
                shop.run(*blocks("docs/guide/monitoring.md", "query"))
            until(lambda metric=metric: metric in {name for name, _ in sent})  # type: ignore[misc]
        shop.names["query"].stop()
        until(lambda: "failed" in {name for name, _ in sent})
    finally:
        spark.streams.removeListener(shop.names["listener"])
    shop.run(*blocks("docs/guide/monitoring.md", "database"))

    alerts = table("docs/guide/monitoring.md", "alerts").column()
    assert {each.strip("`") for each in alerts} <= {name for name, _ in sent}
    assert sum(value for name, value in sent if name == "rows") == 12
    assert {value for name, value in sent if name in {"failed", "diverted"}} == {0}


def test_a_checkpoint_is_moved_and_shows_its_stream(shop: Shop) -> None:
    """The query continues on the moved folder; the id on the page is that of the stream's row."""
    [move] = blocks("docs/guide/checkpoints.md", "move")
    code, _, again = move.text.rpartition("\n\n\n")
    first, *rest = again.splitlines()

    for messages, text in ((5, f"{code}\n{first}"), (7, "\n".join(rest))):
        shop.fill(ORDERS, messages)
        shop.do("python", text)
    shop.capture.readouterr()
    shop.run(*blocks("docs/guide/checkpoints.md", "which"))
    shown = shop.capture.readouterr().out
    shop.run(*blocks("docs/guide/checkpoints.md", "new"))

    streams = shop.sql("SELECT stream::text FROM sqlqueue.stream")
    assert landed(shop, "parquet", "orders") == [12]
    assert [name for (name,) in streams] == re.findall(r"\b[0-9a-f-]{36}\b", shown)
    assert "no receipts" in shop.printed


def test_spark_says_what_the_page_of_troubles_says(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """The errors that a session raises; those of other machines and set-ups were tried by hand."""
    stream = spark.readStream.format("sqlqueue").options(url=shop.url).load("Shop.Orders")
    write = spark.range(1).selectExpr("'{}' AS body").write.format("sqlqueue")
    into = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    into.trigger(availableNow=True).start().awaitTermination()
    two = stream.union(stream).writeStream.format("noop").trigger(availableNow=True)
    two = two.option("checkpointLocation", str(tmp_path / "c"))
    page = table("docs/guide/troubleshooting.md", "spark")

    for row_id, call in {
        "save-mode": lambda: write.options(url=shop.url).save("Shop.Orders"),
        "direct-query": lambda: spark.sql("SELECT * FROM sqlqueue.`Shop.Orders`"),
        "stream-action": stream.count,
        "no-checkpoint": lambda: stream.writeStream.format("parquet").start(f"{tmp_path}/lake"),
        "continuous": lambda: into.trigger(continuous="1 second").start(),
        "sources": lambda: two.start().awaitTermination(),
    }.items():
        [said, *_] = re.findall(r"`([^`]+)`", page.row(row_id)[1])
        with pytest.raises(Exception, match=re.escape(said)):
            call()  # type: ignore[no-untyped-call]


# ---------------------------------------------------------------- SQL


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session with Spark's own catalog; its tables are dropped."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield session
    for each in session.catalog.listTables():
        if not each.isTemporary:
            session.sql(f"DROP TABLE `{each.name}`")


def test_the_statements_of_the_page_of_sql(plain: SparkSession, shop: Shop) -> None:
    """Views and tables browse, `INSERT` sends, and a stream receives."""
    shop.names["spark"] = plain
    shop.fill(ORDERS, 5)
    for each in blocks("docs/sql.md"):
        shop.run(each, spark=plain)
        if each.id == "stream/view":
            shop.fill(ORDERS, 5)

    assert shop.rows[0].messages == 5
    assert landed(shop, "parquet", "numbers") == [5]
    types = [each.get(TYPE, "") for each in shop.headers(BILLING)]
    assert (len(types), types.count("Shop.Contracts.BillOrder")) == (7, 6)


def test_what_does_not_work_in_sql_has_the_error_of_the_page(
    spark: SparkSession, plain: SparkSession, shop: Shop
) -> None:
    """The error is raised, and nothing was sent; a table that is refused is not in the catalog."""
    for view, options in (("orders", HERE), ("billing (body STRING)", SEND)):
        plain.sql(f"CREATE TEMPORARY VIEW {view} USING sqlqueue " + options.format(url=shop.url))
    plain.sql("CREATE TABLE queue (body BINARY) USING sqlqueue")
    plain.sql(f"CREATE TABLE hidden (body BINARY) USING sqlqueue {HERE.format(url=shop.url)}")
    cases = {
        "table-options": (f"CREATE TABLE t USING sqlqueue {HERE}", "OptionsOfTable"),
        "columns-options": ("SELECT * FROM hidden", "MissingOption"),
        "delta": ("SELECT * FROM queue WITH (url 'x')", "is not a valid Spark SQL Data Source"),
        "create-as": (f"CREATE TABLE t USING sqlqueue {SEND} AS SELECT 'x' body", "MissingOption"),
        "write-options": (f"CREATE TEMPORARY VIEW v USING sqlqueue {SEND}", "MisplacedOption"),
        "overwrite": ("INSERT OVERWRITE billing SELECT 'x'", "BadOption"),
        "delete": ("DELETE FROM queue", "does not support deletes"),
        "function": ("SELECT * FROM sqlqueue('x')", "UNRESOLVABLE_TABLE_VALUED_FUNCTION"),
        "path": ("SELECT * FROM sqlqueue.`x`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        "stream": ("SELECT * FROM STREAM orders", "is not a temp view of streaming"),
    }

    assert cases.keys() == {*table("docs/sql.md", "sql-errors").ids}
    for row_id, (text, error) in cases.items():
        session = spark if row_id == "delta" else plain
        try:
            session.sql(text.format(url=shop.url)).collect()
            said = ""
        except Exception as raised:  # noqa: BLE001 - Spark's, of several classes
            said = f"{type(raised).__name__} {raised}"
        assert error in said, row_id
    assert shop.count(BILLING) == [0]
    assert not plain.catalog.tableExists("t")
