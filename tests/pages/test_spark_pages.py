"""The code of the pages runs as it stands, with a real Spark session, in the order of the page."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from spark.stand import finish

from .page import blocks, table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


def create(shop: Shop, *queues: str) -> None:
    """Make more queues."""
    for each in queues:
        shop.sqlqueue("create", each)


def keys(value: Any) -> Any:
    """The keys of a JSON value."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    return [keys(each) for each in value[:1]] if isinstance(value, list) else None


def test_the_code_of_the_readme_and_of_a_reply(spark: SparkSession, shop: Shop) -> None:
    """What waited is in the table, what was sent is in the queue, and a question has an answer."""
    create(shop, "Shop.Billing")
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 10)

    shop.run(*blocks("README.md", "receive"), *blocks("README.md", "send"))
    sent = shop.sql('SELECT headers, body FROM "Shop.Billing"')
    shop.fill('"Shop.Orders"', 1, ReplyToAddress="Shop.Billing")
    shop.run(*blocks("docs/functions.md", "reply"))
    shop.names["query"].processAllAvailable()
    shop.names["query"].stop()

    assert spark.read.parquet(str(shop.folder / "orders")).count() == 10
    assert len({bytes(body) for _, body in sent}) == 1000
    assert all("Shop.Contracts.BillOrder" in headers for headers, _ in sent)
    assert {"OrderId": 12} in [json.loads(body) for _, body in sent]
    headers = [json.loads(text) for (text,) in shop.sql('SELECT headers FROM "Shop.Billing"')]
    assert sum(each.get("NServiceBus.RelatedTo") == "m-1" for each in headers) == 1


def test_the_code_of_the_page_of_the_format(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every read and write of the page, each with messages that wait."""
    create(shop, "Shop.Billing", "Shop.Archive")
    shop.names["spark"] = spark
    for each in blocks("docs/sqlqueue.md"):
        if each.language in {"python", "sh"}:
            shop.fill('"Shop.Orders"', 10)
            shop.fill('"Shop.Billing"', 5)
            shop.run(each)

    sent = shop.sql("SELECT headers FROM \"Shop.Billing\" WHERE headers LIKE '%BillOrder%'")
    assert spark.read.parquet(str(shop.folder / "orders")).count() == 10
    assert "Shop.PlaceOrder" in capsys.readouterr().out
    assert len(sent) == 0  # they were passed on to the archive with all else
    assert shop.count('"Shop.Archive"') > 50
    assert shop.names["several"].columns == ["queue", "body"]


def test_the_progress_on_the_page_has_the_keys_of_a_real_one(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Of the second micro-batch; and the table below it names all of what is ours."""
    [sample] = blocks("docs/sqlqueue.md", "progress")
    shown = json.loads(sample.text)
    shop.fill('"Shop.Orders"', 250, TimeSent="2026-06-30 17:05:09:123456 Z")
    options = {"url": shop.url, "queue": "Shop.Orders", "maxMessagesPerTrigger": "100"}

    stream = spark.readStream.format("sqlqueue").options(**options).load()
    query = finish(stream.writeStream.format("noop"), tmp_path / "checkpoint")
    real = json.loads(query.recentProgress[1].json)
    real["sources"][0]["latestOffset"].setdefault("queues", [])  # only of several

    named = table("docs/sqlqueue.md", "metrics")
    assert keys(shown) | {"sources": []} == keys(real) | {"sources": []}
    theirs, ours = (keys(each["sources"][0]) for each in (shown, real))
    assert {name.strip("`") for name in named.column()} == ours["latestOffset"].keys()
    del ours["latestOffset"]["queues"]
    assert theirs == ours


def test_the_code_of_the_page_for_the_net_team(spark: SparkSession, shop: Shop) -> None:
    """Spark receives, is subscribed, publishes and answers."""
    create(shop, "Shop.Web")
    shop.sqlqueue(
        "subscribe", "Shop.Contracts.IOrderEvent", "--endpoint", "W", "--queue", "Shop.Web"
    )
    shop.names["spark"] = spark
    shown, asked = [], False
    for each in blocks("docs/dotnet.md"):
        if each.language in {"python", "sh"}:
            shop.run(each)
            shown.append(shop.printed)
        if "sqlqueue create Lake" in each.text and not asked:
            shop.fill('"Lake"', 4, ReplyToAddress="Shop.Web")
            asked = True

    events = [json.loads(row[0]) for row in shop.sql('SELECT headers FROM "Shop.Web" ORDER BY seq')]
    types = [each["NServiceBus.EnclosedMessageTypes"] for each in events]
    assert '"public"."Lake"' in "".join(shown)
    assert types[:3] == ["Shop.Contracts.OrderScored;Shop.Contracts.IOrderEvent"] * 3
    assert types[3:] == ["Shop.Contracts.OrderArchived"] * 4
    assert {each["NServiceBus.MessageIntent"] for each in events} == {"Publish", "Reply"}
    assert shop.count('"Lake"') == 0


def test_the_code_of_the_page_of_migration(spark: SparkSession, shop: Shop) -> None:
    """The JDBC read loses a message, and the stream receives all."""
    shop.names["spark"] = spark
    shop.sqlqueue("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", "error")
    for each in blocks("docs/migration.md"):
        if each.unrun is not None:
            compile(each.text, each.name, "exec")
        if each.language == "python" and each.unrun is None:
            shop.fill('"Shop.Orders"', 10)
        shop.run(each)
        if each.language == "sql":
            lost = shop.rows

    assert lost == [(0,)]
    assert spark.read.format("delta").load(str(shop.folder / "orders")).count() == 10
    assert "no receipts" in shop.printed


def test_the_code_of_the_page_of_transaction_modes(spark: SparkSession, shop: Shop) -> None:
    """A batch that is repeated is written once."""
    shop.names["spark"] = spark
    for each in blocks("docs/transactions.md"):
        shop.run(each)
    into_delta = shop.names["into_delta"]
    for batch in (0, 0, 1):
        into_delta(spark.range(5), batch)

    assert spark.read.format("delta").load(str(shop.folder / "orders")).count() == 10


def test_the_code_of_the_page_of_failed_messages(spark: SparkSession, shop: Shop) -> None:
    """Good rows are in the table, bad ones in the error queue and back, early ones wait."""
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 3)
    bodies = ("{}", '{"number":2000}')
    for number, body in enumerate(bodies):
        headers = json.dumps({"NServiceBus.MessageId": f"x-{number}"})
        columns = "(id, headers, body) VALUES (gen_random_uuid(), %s, convert_to(%s, 'UTF8'))"
        shop.sql(f'INSERT INTO "Shop.Orders" {columns}', headers, body)

    shop.run(*blocks("docs/failed.md", "split"))
    [(failed,)] = shop.sql("SELECT headers FROM error")
    [(waiting,)] = shop.sql('SELECT headers FROM "Shop.Orders.Delayed"')
    shop.run(*blocks("docs/failed.md", "operator"))
    [(returned,)] = shop.sql('SELECT headers FROM "Shop.Orders"')

    added = json.loads(failed).keys() - json.loads(returned).keys()
    named = {name.strip("`") for name in table("docs/failed.md", "failure-headers").column()}
    kept = {name for name in named if "Processing" in name or name.startswith("$.")}
    optional = {f"NServiceBus.ExceptionInfo.{name}" for name in ("Source", "StackTrace")}
    assert spark.read.format("delta").load(str(shop.folder / "orders")).count() == 3
    assert added == named - kept - optional
    assert kept <= json.loads(returned).keys()
    assert json.loads(waiting)["NServiceBus.Retries"] == "1"
    assert [shop.count("error"), json.loads(returned)["NServiceBus.MessageId"]] == [0, "x-0"]


def test_the_acknowledgement_on_the_page_of_failed_messages(
    spark: SparkSession, shop: Shop
) -> None:
    """Only a retried message has an answer, and only to the queue that is expected."""
    answered = {"Retry.UniqueMessageId": "u", "Retry.AcknowledgementQueue": '"public"."error"'}
    for address in ("error", "Shop.Orders", None):
        headers = answered | {"Retry.AcknowledgementQueue": f'"public"."{address}"'}
        text = json.dumps({f"ServiceControl.{name}": value for name, value in headers.items()})
        values = "VALUES (gen_random_uuid(), %s, '')"
        given = text if address else "{}"
        shop.sql(f'INSERT INTO "Shop.Orders" (id, headers, body) {values}', given)
    shop.names |= {"spark": spark, "F": F, "DATABASE": {"url": shop.url}}
    waiting = spark.read.format("sqlqueue").options(url=shop.url, queue="Shop.Orders").load()

    shop.run(*blocks("docs/failed.md", "acknowledge"))
    shop.names["acknowledge"](waiting, '"public"."error"')

    [(headers, body)] = shop.sql("SELECT headers, body FROM error")
    assert json.loads(headers)["ServiceControl.Retry.UniqueMessageId"] == "u"
    assert [body, shop.count('"Shop.Orders"')] == [b"", 3]
