"""Lets Spark find the format `sqlqueue` by itself: it imports every module named `pyspark_*`."""

from sqlq_spark.datasource import DefaultSource

__all__ = ["DefaultSource"]
