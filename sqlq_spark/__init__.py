"""
A Spark data source and sink for SQL table queues, in the wire format of NServiceBus.

`spark.readStream.format("sqlqueue")` receives messages. `df.write.format("sqlqueue")` and
`df.writeStream.format("sqlqueue")` send them. `spark.read.format("sqlqueue")` browses a queue.
Spark finds the format when the package is installed. `register(spark)` registers it by hand.
`open_batch(spark, checkpoint)` returns the batch that the next start of a query repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark import versions
from sqlq_spark.checkpoints import open_batch
from sqlq_spark.errors import SqlQueueError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SqlQueueError", "__version__", "open_batch", "register"]
__version__ = "0.2.0"

versions.check_versions()  # checks only the version of Python


def register(spark: SparkSession) -> None:
    """
    Register the format `sqlqueue` in a session in which Spark did not find it.

    A stream then gets one task for each core of the cluster, unless clusterCores or maxConcurrency
    is set. Spark Connect does not report the cluster's cores. There the driver's cores are counted
    instead.

    Raises:
        UnsupportedVersion: this Spark or its pyarrow is too old.
    """
    versions.check_versions("pyspark", "pyarrow")
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    from sqlq_spark.datasource import sized  # noqa: PLC0415 - needs pyspark
    from sqlq_spark.log import log  # noqa: PLC0415

    # read the attribute: on Spark Connect the property `sparkContext` raises an error
    context = getattr(spark, "_sc", None)
    cores = None if context is None else max(1, context.defaultParallelism)
    try:
        application = spark.conf.get("spark.app.name", None)
    except PySparkException:
        application = None  # this session does not report the name
    try:
        spark.dataSource.register(sized(cores, application))
    except PySparkException as error:
        # Spark 4.0.0 finds the format without `register`, and then refuses to register it again
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        log.info("the format sqlqueue is registered already")
