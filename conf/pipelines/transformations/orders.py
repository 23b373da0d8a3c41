"""The queue Shop.Orders, into the streaming table `orders`."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession


# a full refresh deletes the table, and the queue cannot be read again
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def orders() -> DataFrame:
    """Every message, with the columns of a read."""
    source = SparkSession.active().readStream.format("sqlqueue")
    return source.options(url=os.environ["SQLQUEUE_URL"]).load("Shop.Orders")
