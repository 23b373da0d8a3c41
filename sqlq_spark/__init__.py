"""
A Spark data source and sink for SQL table queues, in the wire format of NServiceBus.

`spark.readStream.format("sqlqueue")` receives, `df.write.format("sqlqueue")` and
`df.writeStream.format("sqlqueue")` send, `spark.read.format("sqlqueue")` browses.
Installed, the format registers itself; `register(spark)` does it by hand.
`open_batch(spark, checkpoint)` says which batch the next start of a query repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark import versions
from sqlq_spark.checkpoints import open_batch
from sqlq_spark.errors import SqlQueueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SqlQueueError", "__version__", "open_batch", "register"]
__version__ = "0.1.0"

versions.check()  # of Python


def register(spark: SparkSession) -> None:
    """
    Make the format `sqlqueue` known to a session, where Spark did not find it.

    A stream then has a task for each core of the cluster, unless it says maxConcurrency. Spark
    Connect does not say how many there are: there the driver's cores count.

    Raises:
        UnsupportedVersion: this Spark or its pyarrow is too old.
    """
    versions.check("pyspark", "pyarrow")
    from sqlq_spark import datasource  # noqa: PLC0415 - pyspark is an extra

    datasource.register(spark)
