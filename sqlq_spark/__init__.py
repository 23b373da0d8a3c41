"""
A Spark data source and sink for SQL table queues, in the wire format of NServiceBus.

`spark.readStream.format("sqlqueue")` receives, `df.write.format("sqlqueue")` and
`df.writeStream.format("sqlqueue")` send, `spark.read.format("sqlqueue")` browses.
Installed, the format registers itself; `register(spark)` does it by hand.
`open_batch(spark, checkpoint)` says which batch the next start of a query repeats.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlq_spark import versions
from sqlq_spark.checkpoints import open_batch
from sqlq_spark.errors import SqlQueueError, clean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SqlQueueError", "__version__", "open_batch", "register"]
__version__ = "0.1.0"

versions.check_versions()  # of Python


def _clean_arguments(record: logging.LogRecord) -> bool:
    """Let no name or address of a log line write a line of its own."""
    if isinstance(record.args, tuple):
        record.args = tuple(clean(each) if isinstance(each, str) else each for each in record.args)
    return True


logging.getLogger("sqlq_spark").addFilter(_clean_arguments)


def register(spark: SparkSession) -> None:
    """
    Make the format `sqlqueue` known to a session, where Spark did not find it.

    A stream then has a task for each core of the cluster, unless it says maxConcurrency. Spark
    Connect does not say how many there are: there the driver's cores count.

    Raises:
        UnsupportedVersion: this Spark or its pyarrow is too old.
    """
    versions.check_versions("pyspark", "pyarrow")
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    from sqlq_spark.datasource import sized  # noqa: PLC0415 - needs pyspark
    from sqlq_spark.log import log  # noqa: PLC0415

    found = getattr(spark, "_sc", None)  # no property: that of Spark Connect raises
    cores = None if found is None else max(1, found.defaultParallelism)
    try:
        application = spark.conf.get("spark.app.name", None)
    except PySparkException:
        application = None  # the session does not say it
    try:
        spark.dataSource.register(sized(cores, application))
    except PySparkException as error:
        # Spark 4.0.0 finds the format and then takes no other; what it found is this package
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        log.info("the format sqlqueue is registered already")
