"""Receive the queue Shop.Orders into the streaming table `orders`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


# a full refresh would delete messages that cannot be received again
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def orders() -> DataFrame:
    """Return every message of the queue, with the columns of a read."""
    source = SparkSession.active().readStream.format("sqlqueue")
    return source.options(url=os.environ["SQLQUEUE_URL"], errorQueue="error").load("Shop.Orders")
