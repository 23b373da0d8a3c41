"""Publishing: a frame or a stream to whoever is subscribed, once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from spark.stand import Queue, finish, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PLACED, EVENT = "Shop.Placed", "Shop.IEvent"


@pytest.fixture
def shop(queue: Queue) -> tuple[dict[str, str], dict[str, Queue]]:
    """Give the options of a publisher, and three subscribers: of an event, its base, and both."""
    dotnet, table = queue.dotnet, queue.beside("Routing")
    dotnet.create_subscriptions(table.address)
    hear = {"web": [PLACED], "mail": [EVENT], "stock": [PLACED, EVENT]}
    queues = {name: Queue(queue.place, name) for name in hear}
    for name, topics in hear.items():
        queues[name].create()
        for topic in topics:
            dotnet.subscribe(table.address, name, topic, queues[name].name)
    options = {name: text for name, text in queue.options.items() if name != "queue"}
    return options | {"subscriptionTable": table.name}, queues


def test_an_absent_table_of_subscriptions_is_told_before_a_task_runs(
    spark: SparkSession, shop: tuple[dict[str, str], dict[str, Queue]]
) -> None:
    """Where the option names the topics."""
    options, _ = shop
    ran = spark.sparkContext.accumulator(0)

    @F.udf("string", useArrow=False)
    def counted(text: str) -> str:
        ran.add(1)
        return text

    frame = spark.range(2).select(counted(F.col("id").cast("string")).alias("body"))
    writer = frame.write.format("sqlqueue").mode("append").options(**options, topics=EVENT)

    with pytest.raises(PySparkException) as refused:
        writer.option("subscriptionTable", "absent").save()

    assert "absent" in str(refused.value)
    assert "sqlqueue subscribe" in str(refused.value)
    assert ran.value == 0


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_frame_is_published_to_three_subscribers(
    spark: SparkSession,
    shop: tuple[dict[str, str], dict[str, Queue]],
    delivery: str,
) -> None:
    """Each row to those who are subscribed to any of its topics; null takes the option's."""
    options, queues = shop
    topics = F.when(F.col("id") < 20, F.array(F.lit(PLACED), F.lit(EVENT))).when(
        F.col("id") < 30, F.array(F.lit(PLACED))
    )
    frame = spark.range(40, numPartitions=2).select(
        F.concat(F.lit("m-"), "id").alias("id"), F.lit("{}").alias("body"), topics.alias("topics")
    )

    frame.write.format("sqlqueue").mode("append").options(
        **options, topics=EVENT, delivery=delivery
    ).save()

    got = {name: sorted(each.ids()) for name, each in queues.items()}
    assert got == {
        "web": sorted(numbered(0, 30)),
        "mail": sorted(numbered(0, 20) + numbered(30, 40)),
        "stock": sorted(numbered(0, 40)),
    }
    said = {
        (headers["NServiceBus.MessageIntent"], headers["NServiceBus.EnclosedMessageTypes"])
        for headers, _ in queues["stock"].rows()
    }
    assert said == {("Publish", topics) for topics in (f"{PLACED};{EVENT}", PLACED, EVENT)}


def test_a_stream_receives_and_publishes_in_one_commit(
    spark: SparkSession,
    queue: Queue,
    shop: tuple[dict[str, str], dict[str, Queue]],
    tmp_path: Path,
) -> None:
    """From a queue to whoever is subscribed, each message once, over two micro-batches."""
    options, queues = shop
    queue.fill(0, 30)
    events = queue.stream(spark, maxMessagesPerTrigger=20).load().select("headers", "body")

    writer = events.writeStream.format("sqlqueue").options(
        **options, topics=PLACED, transactionMode="sendsAtomicWithReceive"
    )
    finish(writer, tmp_path / "checkpoint")

    assert {name: sorted(each.ids()) for name, each in queues.items()} == {
        "web": sorted(numbered(0, 30)),
        "mail": [],
        "stock": sorted(numbered(0, 30)),
    }
    assert queue.count() == 0


def test_an_error_of_a_publication_says_what_mends_it(
    spark: SparkSession, queue: Queue, shop: tuple[dict[str, str], dict[str, Queue]]
) -> None:
    """A subscriber's queue that is gone, as Spark shows it; nothing was sent."""
    options, queues = shop
    queue.dba.drop(queues["mail"].address)
    writer = spark.createDataFrame([("{}",)], "body string").write.format("sqlqueue")

    with pytest.raises(PySparkException, match="endpoint 'mail' is subscribed to topic"):
        writer.mode("append").options(**options, topics=f"{PLACED},{EVENT}").save()

    assert queues["web"].count() == 0
