"""Publishing: a frame or a stream to all subscribers, once each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark.stand import numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

PLACED, EVENT = "Shop.Placed", "Shop.IEvent"


@dataclass(frozen=True)
class Shop:
    """A publisher's options, and the queues of its subscribers."""

    options: dict[str, str]
    queues: dict[str, SparkQueue]

    def publish(self, frame: DataFrame, **more: str) -> None:
        """Write a frame without a queue."""
        frame.write.format("sqlqueue").mode("append").options(**self.options | more).save()

    def ids(self) -> dict[str, list[str]]:
        """The message ids that each subscriber has."""
        return {name: sorted(each.ids()) for name, each in self.queues.items()}


@pytest.fixture
def shop(queue: SparkQueue) -> Shop:
    """Give three subscribers: of an event, of its base, and of both."""
    dotnet, table = queue.dotnet, queue.beside("Routing")
    dotnet.create_subscriptions(table.address)
    topics = {"web": [PLACED], "mail": [EVENT], "stock": [PLACED, EVENT]}
    queues = {name: queue.another(name) for name in topics}
    for name, made in queues.items():
        for topic in topics[name]:
            dotnet.subscribe(table.address, name, topic, made.name)
    return Shop(queue.database_options | {"subscriptionTable": table.name}, queues)


def test_an_absent_table_or_queue_sends_nothing(spark: SparkSession, shop: Shop) -> None:
    """An absent table of subscriptions is found before a task runs."""
    ran = spark.sparkContext.accumulator(0)

    @F.udf("string", useArrow=False)
    def counted(text: str) -> str:
        ran.add(1)
        return text

    frame = spark.range(2).select(counted(F.col("id").cast("string")).alias("body"))
    with pytest.raises(PySparkException, match=r"absent(?s:.*)sqlqueue subscribe"):
        shop.publish(frame, topics=EVENT, subscriptionTable="absent")
    assert ran.value == 0

    shop.queues["mail"].dba.drop(shop.queues.pop("mail").address)
    with pytest.raises(PySparkException, match="endpoint 'mail' is subscribed to topic"):
        shop.publish(frame, topics=f"{PLACED},{EVENT}")
    assert shop.ids() == {"web": [], "stock": []}


@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_frame_is_published_to_three_subscribers(
    spark: SparkSession, shop: Shop, delivery: str
) -> None:
    """Each row goes to the subscribers of any of its topics; null takes the option's topics."""
    topics = F.when(F.col("id") < 20, F.array(F.lit(PLACED), F.lit(EVENT))).when(
        F.col("id") < 30, F.array(F.lit(PLACED))
    )
    frame = spark.range(40, numPartitions=2).select(
        F.concat(F.lit("m-"), "id").alias("id"), F.lit("{}").alias("body"), topics.alias("topics")
    )

    shop.publish(frame, topics=EVENT, delivery=delivery)

    assert shop.ids() == {
        "web": sorted(numbered(0, 30)),
        "mail": sorted(numbered(0, 20) + numbered(30, 40)),
        "stock": sorted(numbered(0, 40)),
    }
    found = {
        (headers["NServiceBus.MessageIntent"], headers["NServiceBus.EnclosedMessageTypes"])
        for headers, _ in shop.queues["stock"].rows()
    }
    assert found == {("Publish", topics) for topics in (f"{PLACED};{EVENT}", PLACED, EVENT)}


def test_a_stream_receives_and_publishes_in_one_commit(queue: SparkQueue, shop: Shop) -> None:
    """Each message reaches each subscriber once, over two micro-batches."""
    queue.fill(0, 30)
    events = queue.stream(maxMessagesPerTrigger=20).load().select("headers", "body")
    mode = {"topics": PLACED, "transactionMode": "sendsAtomicWithReceive"}

    writer = events.writeStream.format("sqlqueue").options(**shop.options | mode)
    queue.finish(writer)

    received = sorted(numbered(0, 30))
    assert shop.ids() == {"web": received, "mail": [], "stock": received}
    assert queue.count() == 0
