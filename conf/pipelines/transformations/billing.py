"""Send a command to the queue Shop.Billing for each row of the table `orders`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

dp.create_sink(
    "billing",
    "sqlqueue",
    {
        "url": os.environ["SQLQUEUE_URL"],
        "queue": "Shop.Billing",
        "messageType": "Shop.Contracts.BillOrder",
        "contentType": "application/json",
        "originatingEndpoint": "Lake",
    },
)


@dp.append_flow(target="billing")
def bill_orders() -> DataFrame:
    """Return the body of each order, as it was received."""
    return SparkSession.active().readStream.table("orders").select("body")
