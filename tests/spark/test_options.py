"""A bad option, such as a typo, is one clear sentence of Spark's; see tests/test_options.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

NOWHERE = {"url": "postgresql://nobody@nowhere.invalid/x", "queue": "orders", "header": "json"}


def test_spark_reports_a_bad_option_at_once(spark: SparkSession) -> None:
    """`load` reads the options, and so does a write before it runs; no server is needed."""
    frame = spark.createDataFrame([("",)], "body string").write.format("sqlqueue").mode("append")

    spark.readStream.format("sqlqueue").options(**NOWHERE).load()
    with pytest.raises(PySparkException, match="option peekDelay is 'soon': expected a time"):
        spark.readStream.format("sqlqueue").options(**NOWHERE, peekDelay="soon").load()
    with pytest.raises(PySparkException, match=r"deliverry is not known: did you mean delivery\?"):
        frame.options(**NOWHERE, deliverry="x").save()
